"""Making a ledger, all of it or nothing, and what is none."""

from pathlib import Path

import pytest

from apiece.errors import ApieceError, DataError, StateError
from apiece.ledger import Ledger, store
from apiece.ledger.database import make_engine


def test_people_who_cannot_be_enrolled_leave_no_ledger(ledger_url: str) -> None:
    for ids, epsilon in ((["a", "a"], [1.0, 3.0]), (["a", "b"], [1.0, -3.0])):
        with pytest.raises(ApieceError):
            Ledger.make(ledger_url, ids, epsilon, 1e-6)
        with pytest.raises(ApieceError, match="no ledger there"):
            Ledger.open(ledger_url, create=False)
        if ledger_url.startswith("sqlite"):
            assert not Path(ledger_url.removeprefix("sqlite:///")).exists()
    assert Ledger.make(ledger_url, ["a", "b"], [1.0, 3.0], 1e-6).people == 2
    assert Ledger.open(ledger_url).verify().ok
    with pytest.raises(StateError, match="exists already"):
        Ledger.make(ledger_url, ["a", "b"], [1.0, 3.0], 1e-6)


def test_missing_ledger_is_not_made_where_unwanted(ledger_url: str) -> None:
    with pytest.raises(DataError, match="apiece ledger init"):
        Ledger.open(ledger_url, create=False)


def test_a_ledger_is_made_once(tmp_path: Path) -> None:
    engine = make_engine(str(tmp_path / "p.db"))
    assert not store.is_there(engine)
    assert str(store.report_missing(engine)).endswith("no ledger there; run `apiece ledger init`")
    last = store.make_ledger(engine, None)
    assert last is not None
    assert (last.number, last.people) == (0, 0)
    assert store.make_ledger(engine, None) is None
    assert store.is_there(engine)
    assert len(store.read_salt(engine)) == 32


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("DELETE FROM apiece_meta WHERE key = 'salt'", "its setting 'salt' is missing"),
        ("UPDATE apiece_meta SET value = 'x' WHERE key = 'salt'", "cannot be read"),
        ("UPDATE apiece_meta SET value = '00' WHERE key = 'salt'", "entry 0 is damaged"),
        ("DELETE FROM apiece_entry", "its first entry is missing"),
    ],
)
def test_a_ledger_without_its_beginning_is_refused(edit: str, said: str, tmp_path: Path) -> None:
    engine = make_engine(str(tmp_path / "p.db"))
    store.make_ledger(engine, None)
    with engine.execution_options(apiece_writes=True).begin() as connection:
        connection.exec_driver_sql(edit)
    with pytest.raises(StateError, match=said):
        store.read_salt(engine)
