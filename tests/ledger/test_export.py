"""A ledger's tables as Parquet files: whole or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from apiece.errors import DataError
from apiece.ledger import Ledger, accounts, codec, schema
from apiece.ledger.chain import Entry

from .tables import pairs, terms


def test_accounts_in_the_filter_s_own_unit(tmp_path: Path) -> None:
    blocks = [
        (np.array(["ann", "bob"]), terms(2**40, 7), pairs(2**39, 0)),
        (np.array(["cy"]), terms(3, slack=9), pairs(3, slack=8)),
    ]
    assert (
        accounts.write_parquet(accounts.tabulate_accounts(iter(blocks)), tmp_path / "a.parquet", [])
        == 3
    )
    found = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert found["id"] == ["ann", "bob", "cy"]
    assert found["epsilon"] == [1.0] * 3
    assert found["delta"] == [1e-6] * 3
    assert found["limit"] == [2**40 * codec.UNIT, 7 * codec.UNIT, 3 * codec.UNIT]
    assert found["spent"] == [2**39 * codec.UNIT, 0.0, 3 * codec.UNIT]
    assert found["slack"] == [0.0, 0.0, 9 * codec.SLACK_UNIT]
    assert found["slack_spent"] == [0.0, 0.0, 8 * codec.SLACK_UNIT]


def test_nobody_has_no_accounts_and_pays_for_nothing(tmp_path: Path) -> None:
    ledger = Ledger.open(f"{tmp_path}/p.db")
    ledger.reserve_everyone("q", 1.0, 9.0)
    with pytest.raises(DataError, match="no accounts to export; enroll people first"):
        ledger.export(tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()
    # whether anybody could pay is no outcome that an asker sees
    assert ledger.export(tmp_path / "a.parquet", "paid", analysis_id="q") == 0
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0


def test_history_holds_the_entries_alone(tmp_path: Path) -> None:
    entries = [Entry(0, "init", "t", None, "d"), Entry(1, "commit", "u", "q", "e")]
    assert (
        accounts.write_parquet([accounts.tabulate_history(entries)], tmp_path / "h.parquet", [])
        == 2
    )
    assert pq.read_table(tmp_path / "h.parquet").to_pydict() == {
        "number": [0, 1],
        "kind": ["init", "commit"],
        "at": ["t", "u"],
        "analysis": [None, "q"],
        "digest": ["d", "e"],
    }


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    rows = accounts.tabulate_history([Entry(0, "init", "t", None, "d")])
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"theirs")
    for place in (tmp_path / "file" / "h.parquet", tmp_path / "folder"):
        with pytest.raises(DataError):
            accounts.write_parquet([rows], place, [])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_bytes() == b"theirs"


def test_a_failure_halfway_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "h.parquet"
    accounts.write_parquet([accounts.tabulate_history([])], target, [])
    old = target.read_bytes()

    def halfway() -> Iterator[Any]:
        yield accounts.tabulate_history([Entry(0, "init", "t", None, "d")])
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="No space left"):
        accounts.write_parquet(halfway(), target, [])
    assert target.read_bytes() == old
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", ["integer", "text"])
def test_accounts_are_written_as_they_are_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Block by block, and the whole file as it was at one moment."""
    monkeypatch.setattr(accounts, "GROUP", 1)
    monkeypatch.setattr(schema, "CHUNK", 1)
    ids: Any = np.random.default_rng(0).permutation(2 * codec.BLOCK + 5)
    ids = ids if kind == "integer" else ids.astype(str)
    ledger = Ledger.make(f"{tmp_path}/p.db", ids, np.where(np.arange(ids.size) % 3, 1.0, 0.1), 1e-6)
    ledger.reserve_everyone("q", 1.0, 9.0)
    assert ledger.export(tmp_path / "a.parquet") == ids.size
    assert pq.read_metadata(tmp_path / "a.parquet").num_row_groups == 3
    found = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert found["id"] == ids.tolist()
    assert found["spent"] == ledger.spent(ids).tolist()


@pytest.mark.parametrize("table", ["accounts", "history"])
def test_a_ledger_is_no_output_of_its_own(table: str, tmp_path: Path) -> None:
    """By whatever name, and what may come to lie beside it."""
    path = tmp_path / "people.parquet"  # a ledger, whatever its name ends with
    ledger = Ledger.open(f"sqlite:///{path}")
    ledger.enroll(["ann"], 1.0, 1e-6)
    (tmp_path / "other.parquet").hardlink_to(path)
    names = ("people.parquet", "other.parquet", "people.parquet-journal", "people.parquet.head")
    for name in names:
        with pytest.raises(DataError, match="is what is read"):
            ledger.export(tmp_path / name, table)
    assert ledger.export(tmp_path / "free.parquet", table) > 0
    assert ledger.spent(["ann"]).tolist() == [0.0]
