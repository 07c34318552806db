"""Records in files: those of the table, read where they lie, and nothing that was not drawn."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from apiece import Budgets, Sample, assign
from apiece.errors import DataError
from apiece.training import ParquetShards, TarShards, Trainer


def table(size: int) -> pd.DataFrame:
    rng = np.random.default_rng(size)
    columns = {"a": rng.normal(size=size), "b": rng.integers(-5, 5, size)}
    return pd.DataFrame({**columns, "y": rng.integers(0, 2, size), "who": np.arange(size) // 2})


def shards(folder: Path, rows: pd.DataFrame, files: int = 3, group: int = 4) -> ParquetShards:
    for number, part in enumerate(np.array_split(np.arange(len(rows)), files)):
        some = pa.Table.from_pandas(rows.iloc[part], preserve_index=False)
        pq.write_table(some, folder / f"{number}.parquet", row_group_size=group)
    return ParquetShards(folder, inputs=["a", "b"], target="y")


def test_the_records_are_those_of_the_table(tmp_path: Path) -> None:
    rows = table(37)
    of = shards(tmp_path, rows)
    assert len(of) == 37
    for positions in ([3], [36, 0, 36], list(range(37)), np.random.default_rng(0).permutation(37)):
        for at, (x, y) in zip(positions, of.__getitems__(list(positions)), strict=True):
            assert x.tolist() == rows.loc[at, ["a", "b"]].astype(np.float32).tolist()
            assert (y.item(), y.dtype) == (rows.loc[at, "y"], torch.int64)
    assert of.column("who").tolist() == rows["who"].tolist()


def test_row_groups_without_a_drawn_record_are_not_read(tmp_path: Path) -> None:
    of = shards(tmp_path, table(120), files=3, group=10)
    of.__getitems__([0, 9, 45, 119])
    assert of.read == 3
    assert of.__getitems__([]) == []
    assert of.read == 3


def test_a_missing_cell_contributes_nothing_and_changes_no_other_row(tmp_path: Path) -> None:
    rows = pd.DataFrame({"a": [1.0, None, 3.0], "b": [1, 2, 3], "y": pd.array([0, 1, None])})
    rows["y"] = rows["y"].astype("Int64")
    found = shards(tmp_path, rows, files=1).__getitems__([0, 1, 2])
    assert found[0][0].tolist() == [1.0, 1.0]
    assert [bool(torch.isnan(x).any()) for x, _ in found] == [False, True, True]
    assert {y.dtype for _, y in found} == {torch.int64}


def trained(dataset: Any, budgets: Budgets, **options: Any) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    plan = assign(budgets, Sample(), steps=5, expected_batch_size=6, clip_norm=1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    Trainer(model, optimizer, loss, plan, dataset, seed=1, **options).fit()
    return model.weight.detach()


def test_training_from_files_is_training_from_memory(tmp_path: Path) -> None:
    rows = table(60)
    of = shards(tmp_path, rows)
    held = (
        torch.tensor(rows[["a", "b"]].to_numpy(), dtype=torch.float32),
        torch.tensor(rows["y"].to_numpy()),
    )
    asked = Budgets(np.tile([1.0, 4.0], 30), 1e-3)
    torch.testing.assert_close(trained(of, asked), trained(held, asked), rtol=0, atol=0)
    people = Budgets(np.tile([1.0, 4.0], 15), 1e-3, ids=np.arange(30))
    whose = of.column("who")
    found = [trained(data, people, people=whose) for data in (of, held)]
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda _: None, "no \\*.parquet"),
        (lambda f: (f / "0.parquet").write_text("a,b,y"), "cannot be read"),
        (lambda f: pd.DataFrame({"a": [1.0]}).to_parquet(f / "0.parquet"), "no column 'b'"),
        (
            lambda f: pd.DataFrame({"a": ["x"], "b": [1], "y": [1]}).to_parquet(f / "0.parquet"),
            "not as numbers",
        ),
    ],
)
def test_what_cannot_be_records_is_refused(write: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(DataError, match=said):
        ParquetShards(tmp_path, inputs=["a", "b"], target="y")


def tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as file:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))


def decode(parts: Mapping[str, bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    x = np.frombuffer(parts["x"], np.float32).copy()
    return torch.from_numpy(x), torch.tensor(int(parts["cls"]))


def test_of_a_tar_file_exactly_the_drawn_record_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 3)).astype(np.float32)
    for number in range(2):
        tar(
            tmp_path / f"{number}.tar",
            [
                (f"{number}/{i}.{end}", data)
                for i in range(10)
                for end, data in (("x", x[10 * number + i].tobytes()), ("cls", b"%d" % (i % 2)))
            ],
        )
    of = TarShards(tmp_path, decode=decode)
    assert len(of) == 20
    asked, plain = [], os.pread
    monkeypatch.setattr(os, "pread", lambda *a: asked.append(a[1]) or plain(*a))
    for i in (19, 0, 7):
        assert of[i][0].tolist() == x[i].tolist()
    assert sum(asked) == 3 * (12 + 1)


def test_a_tar_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*.tar"):
        TarShards(tmp_path, decode=decode)
    (tmp_path / "0.tar").write_bytes(b"?" * 1000)
    with pytest.raises(DataError, match="not a plain tar"):
        TarShards(tmp_path, decode=decode)
    tar(tmp_path / "0.tar", [("a.x", b""), ("b.x", b""), ("a.cls", b"")])
    with pytest.raises(DataError, match="two records have one name"):
        TarShards(tmp_path, decode=decode)


def test_of_a_tar_file_little_is_held(tmp_path: Path) -> None:
    """24 bytes a part and 8 a record, beside its name; it was some 500 bytes a part."""
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for number in range(5000):
            for ending in ("x", "cls"):
                tar.addfile(tarfile.TarInfo(f"{number:05}.{ending}"), io.BytesIO())
    tracemalloc.start()
    try:
        of = TarShards(tmp_path, decode=dict)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert of[4999] == {"x": b"", "cls": b""}
    assert held < 1.3 * 5000 * (2 * 24 + 8 + 5 * 4) + 50_000
