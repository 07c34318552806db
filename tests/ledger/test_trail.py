"""A history that was followed is believed; what was put back, or edited under it, is not."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from apiece.errors import AnalysisError, InputError, StateError
from apiece.ledger import Ledger, codec
from apiece.ledger.chain import Tip, Trail, append, check_first_entry, check_id, to_json
from refusals import refused

from .tables import SALT, START, another_process


def people_file(folder: Path) -> tuple[str, Path]:
    path = folder / "p.db"
    Ledger.open(str(path)).enroll(["ann", "bob"], 1.0, 1e-6)
    return f"sqlite:///{path}", path


def test_a_live_process_refuses_a_ledger_that_was_put_back(tmp_path: Path) -> None:
    """After the restore somebody else has the place that the process knows as cy's."""
    url, path = people_file(tmp_path)
    shutil.copy(path, tmp_path / "backup")
    live = Ledger.open(url)
    live.enroll(["cy"], 1.0, 1e-6)
    assert live.reserve("q", ["cy"], 1.0, 20.0).tolist() == ["cy"]
    shutil.copy(tmp_path / "backup", path)
    another_process()
    (tmp_path / "p.db.head").unlink()
    other = Ledger.open(url)
    other.enroll(["dan"], 1.0, 1e-6)
    for call in (
        lambda: live.reserve("r", ["cy"], 1.0, 20.0),
        lambda: live.enroll(["eve"], 1.0, 1e-6),
        lambda: live.spent(["cy"]),
        lambda: live.commit("q", 1),
        lambda: live.status("q"),
        lambda: list(live.history()),
    ):
        with pytest.raises(StateError, match="put back"):
            call()
    assert other.spent(["dan"]).tolist() == [0.0]
    assert other.verify().ok


def test_a_live_process_refuses_another_ledger_of_the_same_length(tmp_path: Path) -> None:
    url, path = people_file(tmp_path)
    live = Ledger.open(url)
    live.spent(["ann"])
    path.unlink()
    (tmp_path / "p.db.head").unlink()
    Ledger.open(url).enroll(["bob", "ann"], 1.0, 1e-6)  # the same people, in another order
    with pytest.raises(StateError):
        live.reserve("q", ["ann"], 1.0, 10.0)
    assert not Ledger.open(url).spent(["ann", "bob"]).any()


def write(tables: sa.Connection, *kinds: str) -> Tip:
    """Write a history in which the analysis q is reserved and committed."""
    last = START
    for kind in kinds:
        body: dict[str, Any] = {"kind": kind}
        if kind in ("reserve", "commit"):
            body |= {"analysis": "q", "result": 1}
        last = append(tables, SALT, last, body, [(0, kind.encode())])
    return last


HISTORY = ("init", "enroll", "reserve", "amend", "commit", "amend")


def test_a_history_is_followed_to_its_end_and_on_from_there(tables: sa.Connection) -> None:
    trail = Trail(SALT)
    last = write(tables, *HISTORY)
    assert trail.follow(tables, {}) == trail.follow(tables, {}) == last
    assert (trail.reserved, trail.committed) == ({"q": 2}, {"q": 4})
    assert [entry.content.kind for entry, _ in trail.read_entries(tables)] == list(HISTORY)
    digests = trail.digest_arrays(tables, 2)
    assert (
        trail.read_blocks(tables, 2, digests)
        == dict(trail.read_arrays(tables, 2))
        == {0: b"reserve"}
    )
    assert trail.follow(tables, {5: last.digest.hex()}) == last
    for kept in ({5: "00" * 32}, {6: last.digest.hex()}):
        with pytest.raises(StateError, match="cut short or rewritten"):
            trail.follow(tables, kept)
    more = append(tables, SALT, last, {"kind": "amend"}, [])
    assert trail.follow(tables, {}) == more
    with pytest.raises(AnalysisError, match="'r': unknown to this ledger"):
        trail.require("r")


@pytest.mark.parametrize(
    "kinds",
    [
        ("enroll",),
        ("init", "init"),
        ("init", "refund"),
        ("init", "commit"),
        ("init", "reserve", "reserve"),
        ("init", "reserve", "commit", "commit"),
    ],
)
def test_histories_that_cannot_be(kinds: tuple[str, ...], tables: sa.Connection) -> None:
    write(tables, *kinds)
    with pytest.raises(StateError, match=f"entry {len(kinds) - 1} is damaged"):
        Trail(SALT).follow(tables, {})


@pytest.mark.parametrize("edit", [
    "UPDATE apiece_entry SET body = replace(body, 'amend', 'commit') WHERE number = 3",
    "UPDATE apiece_entry SET payload_root = x'00' WHERE number = 0",
    "DELETE FROM apiece_entry WHERE number = 2",
    "DELETE FROM apiece_entry WHERE number = 5",
    "DELETE FROM apiece_entry",
    "UPDATE apiece_head SET number = 4",
    "UPDATE apiece_head SET people = 1",
    "DELETE FROM apiece_head",
    "INSERT INTO apiece_balance VALUES (0, 1, x'00', x'00')",
])  # fmt: skip
def test_an_edit_is_seen_by_who_follows_from_the_start(edit: str, tables: sa.Connection) -> None:
    write(tables, *HISTORY)
    tables.exec_driver_sql(edit)
    with pytest.raises(StateError):
        Trail(SALT).follow(tables, {})


def test_what_is_read_again_is_checked_again(tables: sa.Connection) -> None:
    write(tables, *HISTORY)
    trail = Trail(SALT)
    trail.follow(tables, {})
    digests = trail.digest_arrays(tables, 2)
    tables.exec_driver_sql("UPDATE apiece_payload SET data = x'00' WHERE number = 2")
    with pytest.raises(StateError, match="entry 2 is damaged or missing"):
        trail.read_blocks(tables, 2, digests)
    with pytest.raises(StateError, match="entry 2 is damaged or missing"):
        list(trail.read_arrays(tables, 2))
    assert trail.read_entry(tables, 2).content.kind == "reserve"
    tables.exec_driver_sql("DELETE FROM apiece_entry WHERE number = 2")
    with pytest.raises(StateError, match="entry 2 is damaged or missing"):
        trail.read_entry(tables, 2)


def test_the_first_entry_is_that_of_a_ledger_in_today_s_format(tables: sa.Connection) -> None:
    with pytest.raises(StateError, match="first entry is missing"):
        check_first_entry(tables, SALT)
    body = {"kind": "init", "units": [codec.UNIT, codec.SLACK_UNIT]}
    append(tables, SALT, START, body, [])
    check_first_entry(tables, SALT)


def test_a_copy_of_an_older_format_is_refused(tables: sa.Connection) -> None:
    body = {"kind": "init", "units": [codec.UNIT, codec.SLACK_UNIT]}
    append(tables, SALT, START, {**body, "migrated": {"people": 3, "order": 8}}, [])
    with pytest.raises(StateError, match=r"before the first release.*`apiece ledger init`"):
        check_first_entry(tables, SALT)


@pytest.mark.parametrize("units_", [[1.0, 2.0], [codec.UNIT], None, "x"])
def test_other_units_are_refused(units_: Any, tables: sa.Connection) -> None:
    append(tables, SALT, START, {"kind": "init", "units": units_}, [])
    with pytest.raises(StateError, match="entry 0 is damaged"):
        check_first_entry(tables, SALT)


@pytest.mark.parametrize("value", ["", "x" * 201, "a\nb", "a\x1b[0m", "\u202e", None, 7, b"a"])
def test_ids_that_are_refused(value: object) -> None:
    with refused(InputError, "analysis_id"):
        check_id(value)


@pytest.mark.parametrize("value", ["q1", "x" * 200, "mean age, 2026", "Größe/3"])
def test_ids_that_are_taken(value: str) -> None:
    assert check_id(value) == value


@pytest.mark.parametrize("result", [math.nan, [math.inf], object(), {1, 2}, b"x"])
def test_results_that_are_no_json(result: object) -> None:
    with refused(InputError, "result", "JSON"):
        to_json("result", result)


@pytest.mark.parametrize("result", [None, 1.5, [1, "ε"], {"a": {"b": []}}])
def test_results_that_are(result: object) -> None:
    """A result of another kind in the same place is refused: it was looked at."""
    to_json("result", result)
    with pytest.raises(InputError):
        to_json("result", [result, object()])
