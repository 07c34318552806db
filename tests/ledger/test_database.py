"""Files for their owner alone, one transaction at a time, and failures in one line."""

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from apiece.errors import ApieceError, DataError, StateError
from apiece.ledger import Ledger, database
from apiece.ledger.database import create_private, is_missing, make_engine, transaction


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_ledger_file_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ledger = Ledger.open(str(tmp_path / "new.db"))
        (tmp_path / "planted.db").touch(0o666)
        (tmp_path / "private.db").touch(0o600)
        Ledger.open(str(tmp_path / "private.db"))
    finally:
        os.umask(before)
    planted = tmp_path / "planted.db"
    mode = stat.S_IMODE(planted.stat().st_mode)
    if mode & 0o077:  # no mode of what existed is changed
        with pytest.raises(DataError, match="an empty file is there, which others may use"):
            Ledger.open(str(planted))
        assert (stat.S_IMODE(planted.stat().st_mode), planted.stat().st_size) == (mode, 0)
    for name in ("new.db", "private.db"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    ledger.enroll([1], 1.0, 1e-6)
    with sqlite3.connect(tmp_path / "new.db") as direct:
        direct.execute("BEGIN IMMEDIATE")
        direct.execute("UPDATE apiece_head SET people = 9")
        assert stat.S_IMODE((tmp_path / "new.db-journal").stat().st_mode) == 0o600
        direct.rollback()


def test_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "p.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(ApieceError):
        Ledger.open(str(tmp_path / "p.db"))
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_database_of_something_else_is_left_as_it_is(tmp_path: Path, journal: str) -> None:
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as direct:
        direct.execute(f"PRAGMA journal_mode = {journal}")
        direct.execute("CREATE TABLE t (x)")
    direct.close()
    before = path.read_bytes()
    for call in (Ledger.open, lambda at: Ledger.make(at, [1], 1.0, 1e-6)):
        with pytest.raises(StateError, match="is a database of something else"):
            call(str(path))
    assert path.read_bytes() == before


def test_all_of_a_transaction_happens_or_none_of_it(tmp_path: Path) -> None:
    engine = make_engine(str(tmp_path / "p.db"))
    assert is_missing(engine)
    assert database.show_address(engine) == f"sqlite:///{tmp_path}/p.db"

    def told(*statements: str, writes: bool = True) -> None:
        with transaction(engine, writes=writes) as connection:
            for statement in statements:
                connection.exec_driver_sql(statement)

    told("CREATE TABLE t (x INTEGER NOT NULL)")
    assert not is_missing(engine)
    for writes, says in ((True, "charges at most once"), (False, "the ledger cannot be read")):
        with pytest.raises(StateError, match=f"NOT NULL constraint.*{says}") as error:
            told("INSERT INTO t VALUES (2)", "INSERT INTO t VALUES (NULL)", writes=writes)
        assert "\n" not in str(error.value)
    with pytest.raises(TypeError):
        told("INSERT INTO t VALUES (1)", 7)  # type: ignore[arg-type]
    with transaction(engine, writes=False) as connection:
        assert connection.exec_driver_sql("SELECT * FROM t").all() == []


def test_a_charge_survives_a_power_cut(tmp_path: Path) -> None:
    """As far as SQLite promises it, with these settings, on every connection."""
    engine = make_engine(str(tmp_path / "p.db"))
    for _ in range(2):
        with transaction(engine, writes=True) as connection:
            found = {
                pragma: connection.exec_driver_sql(f"PRAGMA {pragma}").scalar()
                for pragma in ("synchronous", "journal_mode", "busy_timeout")
            }
        assert found == {"synchronous": 3, "journal_mode": "delete", "busy_timeout": 120_000}


def test_a_file_that_was_made_for_nothing_is_taken_away(tmp_path: Path) -> None:
    engine = make_engine(str(tmp_path / "p.db"))
    with pytest.raises(ZeroDivisionError), create_private(engine):
        raise ZeroDivisionError
    assert not (tmp_path / "p.db").exists()
    (tmp_path / "p.db").touch(0o600)
    with pytest.raises(ZeroDivisionError), create_private(engine):
        raise ZeroDivisionError
    assert (tmp_path / "p.db").exists()  # it was there before
    nowhere = create_private(make_engine(str(tmp_path / "none" / "p.db")))
    with pytest.raises(StateError, match="unable to open it"), nowhere:
        pass
    assert is_missing(make_engine("x" * 5000))  # a name that no file can have
