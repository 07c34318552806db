"""A model file takes the memory of what it holds, whatever it declares; nothing in it is run."""

import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from apiece.datasets import Categorical, Numeric
from apiece.errors import DataError
from apiece.jobs import load_model
from apiece.jobs.model import TabularModel, build_network, to_bytes


def content(folder: Path, hidden: tuple[int, ...] = (4,)) -> dict[str, Any]:
    network = build_network(2, 2, hidden, torch.Generator())
    columns = {"a": Numeric(0.0, 1.0), "b": Numeric(0.0, 1.0)}
    (folder / "good.pt").write_bytes(
        to_bytes(TabularModel(network, columns, "y", Categorical(("n", "p"))))
    )
    found: dict[str, Any] = torch.load(folder / "good.pt", weights_only=True)
    assert len(load_model(folder / "good.pt").network) == 2 * len(hidden) + 1
    return found


HUGE = 10**9


@pytest.mark.parametrize(
    "case", ["declared", "two declared", "expanded", "word", "classes", "deep"]
)
def test_a_huge_network_is_not_made(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = content(tmp_path)
    match case:
        case "declared":
            model["hidden"] = [HUGE]
        case "two declared":
            model["hidden"] = [4, HUGE, 4]
        case "expanded":  # a tensor of 10⁹ rows that share one, in a file of a few kB
            model["hidden"] = [HUGE]
            model["state"]["0.weight"] = torch.zeros(1, 2).expand(HUGE, 2)
            model["state"]["0.bias"] = torch.zeros(1).expand(HUGE)
            model["state"]["2.weight"] = torch.zeros(1, 1).expand(2, HUGE)
        case "word":
            model["hidden"] = ["a lot"]
        case "classes":
            model["target"]["values"] = [str(k) for k in range(10**4)]
        case "deep":
            model["hidden"] = [1] * 10**5
    torch.save(model, tmp_path / "bad.pt")
    assert (tmp_path / "bad.pt").stat().st_size < 10**6

    made: list[Any] = []
    monkeypatch.setattr("apiece.jobs.model.build_network", lambda *widths: made.append(widths))
    with pytest.raises(DataError, match="not an apiece model") as error:
        load_model(tmp_path / "bad.pt")
    assert "\n" not in str(error.value)
    assert not made


def test_an_archive_that_unpacks_to_more_is_refused(tmp_path: Path) -> None:
    content(tmp_path)
    with (
        zipfile.ZipFile(tmp_path / "good.pt") as good,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for part in good.infolist():
            bomb.writestr(part.filename, good.read(part) + bytes(10**6))
    with pytest.raises(DataError, match="compressed"):
        load_model(tmp_path / "bomb.pt")


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"\x80\x04cos\nsystem\n(S'true'\ntR."])
def test_what_is_no_model_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "bad.pt").write_bytes(data)
    with pytest.raises(DataError, match="not an apiece model"):
        load_model(tmp_path / "bad.pt")
