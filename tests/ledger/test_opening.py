"""Making a ledger, all of it or nothing, and bringing an old one up to date."""

from pathlib import Path

import pytest

from apiece.errors import AnalysisError, ApieceError, DataError, StateError
from apiece.ledger import Ledger, opening
from apiece.ledger.anchor import Anchor
from apiece.ledger.database import make_engine
from apiece.ledger.schema import VERSION


def test_people_who_cannot_be_enrolled_leave_no_ledger(ledger_url: str) -> None:
    for ids, epsilon, options in (
        (["a", "b"], [0.1, 3.0], {"method": "renyi", "order": 2.0}),
        (["a", "a"], [1.0, 3.0], {}),
        (["a", "b"], [1.0, -3.0], {}),
    ):
        with pytest.raises(ApieceError):
            Ledger.make(ledger_url, ids, epsilon, 1e-6, **options)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_older_version_is_migrated(ledger_url: str, version: int) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 10.0)
    ledger.reserve("r", [1, 2], 1.0, 10.0)
    ledger.commit("q", 4)
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        if version == 2:  # version 1 had no such table, and neither has version 3
            connection.exec_driver_sql(
                "CREATE TABLE apiece_analysis (id VARCHAR(200) PRIMARY KEY, reserved BIGINT)"
            )
        if version < 3:
            connection.exec_driver_sql("ALTER TABLE apiece_entry DROP COLUMN payload_root")
        connection.exec_driver_sql(
            f"UPDATE apiece_meta SET value = '{version}' WHERE key = 'schema'"
        )
    migrated = Ledger.open(ledger_url)
    assert migrated.result("q") == 4
    assert migrated.status("r") == "reserved"
    for analysis in ("q", "r"):  # neither holds terms, and so neither stands for any
        with pytest.raises(AnalysisError, match="another analysis or other terms"):
            migrated.status(analysis, {"query": "count()"})
        with pytest.raises(AnalysisError, match="another analysis or other terms"):
            migrated.reserve(analysis, [1, 2], 1.0, 10.0, terms={"query": "count()"})
    assert migrated.reserve("r", [1, 2], 1.0, 10.0).tolist() == [1, 2]
    assert [e.kind for e in migrated.history()][-1] == "migrate"
    assert migrated.verify().ok


def test_a_ledger_is_made_once(tmp_path: Path) -> None:
    engine = make_engine(str(tmp_path / "p.db"))
    assert opening.version(engine) is None
    assert str(opening.none_there(engine)).endswith("no ledger there; run `apiece ledger init`")
    last = opening.make(engine, ("renyi", 8.0), None)
    assert last is not None
    assert (last.number, last.people) == (0, 0)
    assert opening.make(engine, ("gaussian", None), None) is None
    assert opening.version(engine) == VERSION
    salt, settings = opening.read(engine)
    assert (len(salt), settings) == (32, ("renyi", 8.0))
    opening.migrate(engine, Anchor.of(None, None))  # what is current stays
    assert opening.read(engine) == (salt, settings)


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
    opening.make(engine, ("gaussian", None), None)
    with engine.execution_options(apiece_writes=True).begin() as connection:
        connection.exec_driver_sql(edit)
    with pytest.raises(StateError, match=said):
        opening.read(engine)
