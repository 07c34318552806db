"""A ledger recomputed from its history: what does not add up is named, digests or not.

Whoever rewrites all digests is caught only by what the entries say; these do, and say impossible
things. Edits that leave the digests alone are in `test_mutations.py`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece.ledger import Ledger, accounts, chain, codec
from apiece.ledger.chain import Tip
from apiece.ledger.database import transaction
from apiece.ledger.schema import read_settings
from apiece.ledger.verify import verify


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger.open(f"{tmp_path}/p.db")
    made.enroll([1, 2], 1.0, 1e-6)
    made.reserve("q", [1], 1.0, 10.0)
    return made


def salt_of(ledger: Ledger) -> bytes:
    with transaction(ledger.engine, writes=False) as connection:
        return bytes.fromhex(read_settings(connection)["salt"])


def added(
    ledger: Ledger, body: dict[str, Any], spent: np.ndarray | None, *payloads: tuple[int, bytes]
) -> tuple[str, ...]:
    """Add an entry with true digests, whatever it says; return the problems found."""
    head, salt = ledger.head(), salt_of(ledger)
    with transaction(ledger.engine, writes=True) as connection:
        if spent is not None:
            pairs = np.column_stack([spent, np.zeros_like(spent)])  # no slack
            accounts.write_spent(connection, salt, [(0, pairs)])
        last = Tip(head.number, bytes.fromhex(head.digest), 2)
        chain.append(connection, salt, last, body, list(payloads))
    return verify(ledger.engine, salt, {}).problems


def reserve(name: str, units: int) -> tuple[dict[str, Any], tuple[int, bytes]]:
    data = codec.pack_mask(np.array([False, True]), np.array([units], "<i8").tobytes())
    return {"kind": "reserve", "analysis": name}, (0, data)


def test_a_true_ledger_adds_up(ledger: Ledger) -> None:
    found = ledger.verify()
    assert found.ok
    assert (found.entries, found.people, found.head) == (3, 2, ledger.head())
    spent = np.round(ledger.spent([1, 2]) / codec.UNIT).astype(np.int64)
    body, payload = reserve("r", 5)
    assert added(ledger, body, spent + np.array([0, 5]), payload) == ()


def test_charges_that_no_balance_has(ledger: Ledger) -> None:
    body, payload = reserve("r", 5)
    assert added(ledger, body, None, payload) == (
        "balances: block 0 (people 0 to 4095) is not what the history adds up to",
    )


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            {"kind": "commit", "analysis": "never", "result": 1},
            "entry 3: commits what is not reserved",
        ),
        ({"kind": "reserve", "analysis": "q"}, "entry 3: analysis 'q' is reserved twice"),
        ({"kind": "refund"}, "entry 3: unknown kind 'refund'"),
        ({"kind": "reserve"}, "entry 3: cannot be read (KeyError)"),
    ],
)
def test_entries_that_cannot_be(ledger: Ledger, body: dict[str, Any], said: str) -> None:
    assert added(ledger, body, None) == (said,)


@pytest.mark.parametrize(
    ("charge", "said"),
    [(-1, "charges of block 0 out of range"), (codec.CAP, "someone in block 0 is over budget")],
)
def test_charges_that_cannot_be(ledger: Ledger, charge: int, said: str) -> None:
    spent = np.round(ledger.spent([1, 2]) / codec.UNIT).astype(np.int64)
    body, payload = reserve("r", charge)
    assert added(ledger, body, spent + np.array([0, charge]), payload) == (f"entry 3: {said}",)


def test_what_was_kept_is_missed_and_what_cannot_be_read_is_said(ledger: Ledger) -> None:
    salt, head = salt_of(ledger), ledger.head()
    assert verify(ledger.engine, salt, {head.number: head.digest}).ok
    lost = verify(ledger.engine, salt, {head.number: "00" * 32, 9: head.digest})
    assert lost.problems == tuple(
        f"entry {number}: not the one whose digest was kept" for number in (2, 9)
    )
    with transaction(ledger.engine, writes=True) as connection:
        connection.exec_driver_sql("DELETE FROM apiece_entry WHERE number = 2")
    stopped = verify(ledger.engine, salt, {})
    assert stopped.problems[-1] == "stopped: entry 2: has charges but is missing"
