"""A receipt: what one person's account was charged, for that person to keep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from apiece._types import Json
from apiece.errors import StateError
from apiece.ledger import accounts, codec
from apiece.ledger.chain import Head
from apiece.ledger.codec import BLOCK
from apiece.ledger.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Charge:
    """What one analysis took from one person's account; data about a person.

    Attributes:
        analysis: Its name in the ledger.
        at: When it was reserved, in UTC.
        share: Of the person's budget, in the ledger's unit, in which charges add up.
        committed: Whether its result was released.

    Example:
        >>> Charge("q1", "2026-01-01T00:00:00Z", 0.25, True)
        Charge(analysis='q1', committed=True)
    """

    analysis: str
    at: str = field(repr=False)
    share: float = field(repr=False)
    committed: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """One person's account; data about a person.

    Attributes:
        person: Their id.
        epsilon: Of their budget, for all analyses together.
        delta: Of their budget.
        charges: In order. An analysis that they could not pay for, or were not in, is not there.
        spent: The share of the budget that is spent.
        head: The last entry of the history, whose digest covers each charge. If the steward
            publishes heads, a person can see that theirs is one of them.

    Example:
        >>> Receipt("ann", 1.0, 1e-5, (), 0.0, Head(3, "0" * 64)).charges
        ()
    """

    person: Any = field(repr=False)
    epsilon: float = field(repr=False)
    delta: float = field(repr=False)
    charges: tuple[Charge, ...] = field(repr=False)
    spent: float = field(repr=False)
    head: Head

    def to_dict(self) -> Json:
        """Return all of it as JSON types. Data about a person."""
        return {
            "person": self.person,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "spent": self.spent,
            "charges": [
                {name: getattr(c, name) for name in ("analysis", "at", "share", "committed")}
                for c in self.charges
            ],
            "head": {"number": self.head.number, "digest": self.head.digest},
        }


def receipt(ledger: Ledger, person: Any) -> Receipt:
    """Return what one person's account was charged, by which analyses. Data about a person.

    Args:
        ledger: With an account of this person.
        person: Their id.

    Raises:
        DataError: For a person without an account.
        StateError: Where the charges are not what the balance says.

    Guarantee:
        All charges together keep the person's (ε, δ), whoever chose the analyses and why.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.open(f"{folder}/people.db")
        ...     _ = ledger.enroll(["ann", "bob"], epsilon=[1.0, 3.0], delta=1e-6)
        ...     _ = ledger.reserve("q1", ["ann", "bob"], norms=1.0, noise_stddev=50.0)
        ...     found = receipt(ledger, "ann")
        >>> [charge.analysis for charge in found.charges], 0 < found.spent < 1
        (['q1'], True)
    """
    ids = codec.checked_ids([person])
    with ledger._reading() as reading:
        connection, trail = reading.connection, ledger._trail
        ledger._directory.refresh(connection, reading.last.people)
        block, at = divmod(int(ledger._directory.numbers(ids)[0]), BLOCK)
        terms = accounts.read_people(connection, trail.salt, [block])[block][1][at]
        balance = int(accounts.read_spent(connection, trail.salt, [block])[block][at])
        charged = []
        for body, _ in trail.bodies(connection):
            if body["kind"] == "reserve":
                digests = trail.array_digests(connection, body["number"])
                own = {block: digests[block]} if block in digests else {}
                stored = trail.arrays(connection, body["number"], own)
                charged.append((body, _of(stored[block], at) if stored else 0))
        committed = set(trail.committed)
    if sum(units for _, units in charged) != balance:
        raise StateError("ledger: charges do not add up to the balance; run `apiece ledger verify`")
    limit = int(terms["limit"])
    return Receipt(
        person=ids[0].item(),
        epsilon=float(terms["epsilon"]),
        delta=float(terms["delta"]),
        charges=tuple(
            Charge(body["analysis"], body["at"], units / limit, body["analysis"] in committed)
            for body, units in charged
            if units
        ),
        spent=balance / limit if limit else 0.0,
        head=Head(reading.last.number, reading.last.digest.hex()),
    )


def _of(stored: bytes, at: int) -> int:
    """Return the charge of the person at this place of a block; 0 of who was not charged."""
    mask, charges = codec.unpack_masked(stored, "<i8")
    return int(charges[int(mask[:at].sum())]) if at < mask.size and mask[at] else 0
