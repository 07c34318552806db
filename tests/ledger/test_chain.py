"""The chain of entries: each covers its content, the balances after it, and the last one."""

import json
import struct

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import DataError, StateError
from apiece.ledger import Ledger, accounts, schema
from apiece.ledger.chain import append, digest_state, naming_damage
from apiece.ledger.codec import digest_entry, digest_payloads

from .tables import SALT, START, pairs, terms


def test_truncated_and_rewritten_history_is_found_with_the_head(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 10.0)
    kept = ledger.head()
    ledger.reserve("r", [2], 1.0, 10.0)
    assert ledger.verify(kept).ok
    other = kept._replace(digest="00" * 32)
    if ledger_url.startswith("sqlite"):  # its head file says otherwise
        with pytest.raises(StateError, match="head 2: the head file has another digest"):
            ledger.verify(other)
    else:
        assert not ledger.verify(other).ok
    assert not ledger.verify(kept._replace(number=99)).ok


def test_a_clock_set_back_changes_nothing(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1], 0.5, 1e-6)
    ledger.reserve("a", [1], 1.0, 20.0)
    monkeypatch.setattr("time.gmtime", lambda: (1999, 1, 1, 0, 0, 0, 4, 1, 0))
    ledger.reserve("b", [1], 1.0, 20.0)
    entries = list(ledger.history())
    assert entries[-1].at == entries[-2].at  # no period comes again
    assert [e.number for e in entries] == [0, 1, 2, 3]
    assert ledger.spent([1])[0] >= 2 / 400
    assert ledger.reserve("c", [1], 1.0, 5.0).size == 0
    assert ledger.verify().ok


def test_an_entry_covers_its_body_its_arrays_and_the_state(tables: sa.Connection) -> None:
    accounts.write_people(tables, SALT, [(0, np.array([1]), terms(9))])
    accounts.write_spent(tables, SALT, [(0, pairs(4))])
    first = append(tables, SALT, START._replace(people=1), {"kind": "init"}, [])
    second = append(tables, SALT, first, {"kind": "amend"}, [(0, b"x"), (3, b"y")])
    assert (second.number, second.people) == (1, 1)
    rows = tables.execute(sa.select(schema.ENTRY).order_by(schema.ENTRY.c.number)).all()
    body = json.loads(rows[1].body)
    assert body.keys() == {"kind", "number", "at", "people", "state"}
    assert body["state"] == digest_state(tables, SALT)
    arrays = digest_payloads(SALT, [(0, b"x"), (3, b"y")])
    assert second.digest == digest_entry(SALT, first.digest, rows[1].body, arrays)
    head = tables.execute(sa.select(schema.HEAD)).one()
    assert (head.number, bytes(head.digest), head.people) == tuple(second)


def test_the_state_is_that_of_every_block_of_both_tables(tables: sa.Connection) -> None:
    seen = {digest_state(tables, SALT), digest_state(tables, b"\x02" * 32)}
    accounts.write_spent(tables, SALT, [(0, pairs(4)), (1, pairs(4))])
    seen.add(digest_state(tables, SALT))
    accounts.write_spent(tables, SALT, [(1, pairs(5))])
    seen.add(digest_state(tables, SALT))
    accounts.write_people(tables, SALT, [(1, np.array([7]), terms(5))])
    seen.add(digest_state(tables, SALT))
    assert len(seen) == 5


def test_what_damaged_content_raises_becomes_one_line() -> None:
    for error in (KeyError("x"), RecursionError("deep"), struct.error("short")):
        said = rf"cannot be read \({type(error).__name__}\)"
        with pytest.raises(StateError, match=said), naming_damage():
            raise error
    for error in (DataError("said already"), AttributeError("a mistake of ours")):
        with pytest.raises(type(error)), naming_damage():
            raise error
