"""`apiece audit` of a run by person tells persons apart, never rows."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.cli import run

from .test_train_persons import BASE, OWN, SCHEMA, N, visits


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by person; "other" has the same rows in another order, one of which is faulty."""
    place = tmp_path_factory.mktemp("persons")
    (place / "schema.toml").write_text(SCHEMA)
    table = visits()
    mixed = table.sample(frac=1, random_state=5).astype({"age": str})
    faulty = np.flatnonzero((mixed.part == "train") & mixed.patient.duplicated(keep=False))[0]
    mixed.iloc[faulty, 0] = ""
    words = [*BASE.split(), *OWN.split(), "--seed", "0"]
    words[words.index("schema.toml")] = str(place / "schema.toml")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("apiece.reporting.pages.render", lambda *_: "tested elsewhere")
        for name, frame in (("first", table), ("other", mixed)):
            frame.to_csv(place / f"{name}.csv", index=False)
            data = ["--data", str(place / f"{name}.csv"), "--out", str(place / name)]
            assert run(["train", *data, *words]) == 0
    return place


def audited(capsys: Any, *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert run(["audit", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_units_of_a_run_by_person_are_persons(folder: Path, capsys: Any) -> None:
    found = audited(capsys, str(folder / "first"))
    trained = int(visits().groupby("patient").part.first().eq("train").sum())
    rocs = found["roc"]
    assert found["unit"] == "person"
    assert (rocs["all"]["members"], rocs["all"]["others"]) == (trained, N - trained)
    assert rocs["epsilon=1"]["members"] + rocs["epsilon=8"]["members"] == trained
    assert found["canaries"] == min(trained, N - trained)


def test_who_has_a_faulty_row_counts_by_the_others(folder: Path, capsys: Any) -> None:
    first, other = (audited(capsys, str(folder / name)) for name in ("first", "other"))
    assert other["roc"]["all"]["members"] == first["roc"]["all"]["members"]
    assert other["roc"]["all"]["others"] == first["roc"]["all"]["others"]


def test_shadow_models_of_a_run_by_person(folder: Path, tmp_path: Path, capsys: Any) -> None:
    found = audited(capsys, str(folder / "first"), "--models", "6", "--out", str(tmp_path / "a"))
    trained = int(visits().groupby("patient").part.first().eq("train").sum())
    assert (found["unit"], found["records"]) == ("person", trained)
    with np.load(tmp_path / "a" / "scores.npz") as stored:
        assert stored["confidences"].shape == stored["included"].shape == (6, trained)
        assert set(stored["ids"]) <= set(visits().patient)
    assert pd.Series(found["privacy_score"]).map(lambda s: s["records"]).sum() == trained
    run(["audit", str(folder / "first")])
    assert "by person" in capsys.readouterr().out
