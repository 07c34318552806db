"""A receipt: what one person's account was charged, for that person to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

import numpy as np

from apiece._types import Integers, Json
from apiece.errors import StateError
from apiece.ledger import accounts, codec
from apiece.ledger.chain import Head
from apiece.ledger.codec import BLOCK
from apiece.ledger.ledger import Ledger

_FREE: Final = np.zeros(2, dtype=np.int64)
_WORDS: Final = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PaidCharge:
    """What one analysis took from one person's account; data about a person."""

    analysis: str  # Its name in the ledger
    at: str = field(repr=False)  # When it was reserved, in UTC
    share: float = field(repr=False)  # Of the person's budget, in μ², in which charges add up
    slack: float = field(repr=False)  # Of the person's slack, the same
    committed: bool  # Whether its result was released


@dataclass(frozen=True, slots=True)
class Receipt:
    """One person's account; data about a person.

    Attributes:
        person: Their id.
        epsilon: Of their budget, for all analyses together.
        delta: Of their budget.
        charges: In order. An analysis that they could not pay for, or were not in, is not there.
        spent: The share of the budget that is spent.
        slack: The share of the slack that is spent.
        repeats: How many more analyses like the last one what is left pays for; None where nothing
            was charged yet.
        head: The last entry of the history, whose digest covers each charge. If the steward
            publishes heads, a person can see that theirs is one of them.

    Example:
        >>> Receipt("ann", 1.0, 1e-5, (), 0.0, 0.0, 2, Head(3, "0" * 64)).left
        'What is left pays for two more analyses like the last one.'
    """

    person: Any = field(repr=False)
    epsilon: float = field(repr=False)
    delta: float = field(repr=False)
    charges: tuple[PaidCharge, ...] = field(repr=False)
    spent: float = field(repr=False)
    slack: float = field(repr=False)
    repeats: int | None = field(repr=False)
    head: Head

    @property
    def left(self) -> str:
        """What is left, in words. Data about a person."""
        if self.repeats is None:
            return "Nothing was charged yet: the whole budget is left."
        if self.repeats == 0:
            return "What is left does not pay for another analysis like the last one."
        number = _WORDS[self.repeats] if self.repeats < len(_WORDS) else f"{self.repeats:,}"
        analyses = "analysis" if self.repeats == 1 else "analyses"
        return f"What is left pays for {number} more {analyses} like the last one."

    def to_dict(self) -> Json:
        """Return all of it as JSON types. Data about a person."""
        told = {each.name: getattr(self, each.name) for each in fields(self)}
        charges = [asdict(charge) for charge in self.charges]
        return {**told, "left": self.left, "charges": charges, "head": self.head._asdict()}


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
    store = ledger._store
    with store.reading() as reading:
        connection, trail = reading.connection, store.trail
        block, at = divmod(int(store.directory(reading).numbers(ids)[0]), BLOCK)
        terms = accounts.read_people(connection, trail.salt, [block])[block][1][at]
        balance = accounts.read_spent(connection, trail.salt, [block])[block][at]
        charged = []
        for body, _ in trail.bodies(connection):
            if body["kind"] == "reserve":
                digests = trail.array_digests(connection, body["number"])
                own = {block: digests[block]} if block in digests else {}
                stored = trail.arrays(connection, body["number"], own)
                charged.append((body, _of(stored[block], at) if stored else _FREE))
        committed = set(trail.committed)
    if (sum((pair for _, pair in charged), _FREE) != balance).any():
        raise StateError("ledger: charges do not add up to the balance; run `apiece ledger verify`")
    limits = codec.limits(terms)
    spent, told = _shares(balance, limits)
    paid = [(body, pair) for body, pair in charged if pair.any()]
    repeats = None
    if paid:  # how often what is left pays for the last pair, which is not free
        last, left = paid[-1][1].tolist(), (limits - balance).tolist()
        repeats = min(most // p for p, most in zip(last, left, strict=True) if p)
    return Receipt(
        person=ids[0].item(),
        epsilon=float(terms["epsilon"]),
        delta=float(terms["delta"]),
        charges=tuple(
            PaidCharge(body["analysis"], body["at"], share, slack, body["analysis"] in committed)
            for body, pair in paid
            for share, slack in [_shares(pair, limits)]
        ),
        spent=spent,
        slack=told,
        repeats=repeats,
        head=Head(reading.last.number, reading.last.digest.hex()),
    )


def _of(stored: bytes, at: int) -> Integers:
    """Return what the person at this place of a block was charged: nothing who was not."""
    mask, charges = codec.unpack_charges(stored)
    charged = at < mask.size and mask[at]
    return np.asarray(charges[int(mask[:at].sum())]) if charged else _FREE


def _shares(pair: Integers, limits: Integers) -> tuple[float, float]:
    """Return which shares of an account a pair is; 0 of what the account does not have."""
    loss, slack = (
        int(p) / int(most) if most else 0.0 for p, most in zip(pair, limits, strict=True)
    )
    return loss, slack


SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.1, 0.01)  # of an account, at least which are left


def standing(ledger: Ledger) -> dict[str, Integers]:
    """Return how many accounts have at least each of `SHARES` left, for two kinds of analyses.

    "queries" is about the budget alone, which is what Gaussian sums take; "trainings" about the
    budget and the slack, whichever has less left. Data about people: what was charged follows from
    their rows.

    Args:
        ledger: All of its accounts are counted.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [0.2, 3.0], 1e-6)
        ...     _ = ledger.reserve("q", ["ann", "bob"], norms=1.0, noise_stddev=30.0)
        ...     standing(ledger)["queries"].tolist()
        [0, 1, 2, 2, 2, 2]
    """
    bins = sum(
        (binned(codec.limits(terms), spent) for _, terms, spent in ledger.account_blocks()),
        np.zeros((2, len(SHARES) + 1), dtype=np.int64),
    )
    return cumulated(bins)


def binned(limits: Integers, spent: Integers) -> Integers:
    """Return (2, shares + 1) how many accounts lie between which shares; each in one a row."""
    left = 1 - spent / np.maximum(limits, 1)
    places = [(each[:, None] < np.array(SHARES)).sum(axis=1) for each in (left[:, 0], left.min(1))]
    return np.array([np.bincount(place, minlength=len(SHARES) + 1) for place in places])


def cumulated(bins: Any) -> dict[str, Any]:
    """Return how many have at least each share, from how many lie between which."""
    rows: Iterable[Any] = np.cumsum(np.asarray(bins)[:, :-1], axis=1)
    return dict(zip(("queries", "trainings"), rows, strict=True))
