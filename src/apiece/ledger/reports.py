"""Receipts of what was charged, lineages of who withdrew, and what accounts have left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from apiece._types import Ids, Integers, Json, Mask
from apiece.errors import StateError
from apiece.filters import Costs
from apiece.ledger import accounts, codec
from apiece.ledger.chain import Head
from apiece.ledger.codec import BLOCK, SLACK_UNIT, UNIT
from apiece.ledger.reading import LedgerReader
from apiece.ledger.scopes import accounts_of
from apiece.ledger.store import LedgerStore, Reading

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
    released: str = ""  # "model", "answer", or "" where nothing was
    digest: str = field(default="", repr=False)  # Of the model or the answer
    scope: Json = field(default_factory=dict)  # Who asked, and what for


@dataclass(frozen=True, slots=True)
class Receipt:
    """One person's account; data about a person.

    Attributes:
        person: Their id.
        epsilon: ε of their budget, for all analyses together.
        delta: δ of their budget.
        charges: The charges that they paid, in order.
        spent: The share of the budget that is spent; with periods, in the one with the most spent.
        slack: The share of the slack that is spent, likewise.
        repeats: How many more analyses like the last one it pays for; None where there was none.
        head: The last entry of the history, whose digest covers each charge. If the steward
            publishes heads, a person can see that theirs is one of them.
        told: The ε, at `delta`, of all that was charged together: what it can tell of the person.
        withdrawn: When they withdrew, or None.

    Example:
        >>> from apiece.ledger import Head, Receipt
        >>> Receipt("ann", 1.0, 1e-5, (), 0.0, 0.0, 2, Head(3, "0" * 64)).left
        'What is left pays for two more analyses like the last one.'
    """

    person: int | str = field(repr=False)
    epsilon: float = field(repr=False)
    delta: float = field(repr=False)
    charges: tuple[PaidCharge, ...] = field(repr=False)
    spent: float = field(repr=False)
    slack: float = field(repr=False)
    repeats: int | None = field(repr=False)
    head: Head
    told: float = field(default=0.0, repr=False)
    withdrawn: str | None = field(default=None, repr=False)

    @property
    def left(self) -> str:
        """What is left, in words. Data about a person."""
        if self.withdrawn is not None:
            return f"Withdrawn on {self.withdrawn}: nothing more is charged."
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


CANNOT: Final = (
    "Models that were released keep what they learned, and answers that were given stay given.",
    "The table still has the rows: delete them there, in its copies and in backups.",
    "Whoever reads the ledger sees that the person was in it: charges are never given back.",
)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The releases that hold data of people who withdrew; data about people.

    Attributes:
        receipts: One a person: in which releases they were, and what these can tell.
        head: The last entry of the history, with the withdrawal in it.

    Example:
        >>> from apiece.ledger import Head, Lineage
        >>> Lineage((), Head(3, "0" * 64)).events()
        []
    """

    receipts: tuple[Receipt, ...] = field(repr=False)
    head: Head

    def events(self) -> list[Json]:
        """Return a machine-readable event for each person. Data about people."""
        return [
            {
                "event": "withdrawal",
                "format": 1,
                "person": each.person,
                "at": each.withdrawn,
                "head": self.head._asdict(),
                "releases": [asdict(c) for c in each.charges if c.committed],
                "unreleased": [c.analysis for c in each.charges if not c.committed],
                "spent": {"budget": each.spent, "slack": each.slack},
                "told": {"epsilon": each.told, "delta": each.delta},
                "allowed": {"epsilon": each.epsilon, "delta": each.delta},
                "cannot": list(CANNOT),
            }
            for each in self.receipts
        ]


def receipt(ledger: LedgerReader, person: int | str) -> Receipt:
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
        >>> from apiece.ledger import Ledger, receipt
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [1.0, 3.0], 1e-6)
        ...     _ = ledger.reserve("q1", ["ann", "bob"], norms=1.0, noise_stddev=50.0)
        ...     [charge.analysis for charge in receipt(ledger, "ann").charges]
        ['q1']
    """
    ids = codec.checked_ids([person])
    with ledger.store.reading() as reading:
        return receipts(ledger.store, reading, ids)[0]


def receipts(store: LedgerStore, reading: Reading, ids: Ids) -> list[Receipt]:
    """Return what some people's accounts were charged, in the order of their ids."""
    connection, trail = reading.connection, store.trail
    places = store.directory(reading).numbers(ids)
    blocks = [block for block, _ in codec.by_block(places)]
    people = accounts.read_people(connection, trail.salt, blocks)
    entries: list[tuple[Json, dict[int, tuple[Mask, bytes]]]] = []
    results = {}
    for body, _ in trail.bodies(connection):
        if body["kind"] == "commit":
            results[body["analysis"]] = body["result"]
        elif body["kind"] in ("reserve", "withdraw"):
            stored = trail.arrays(connection, body["number"], blocks)
            entries.append((body, {b: codec.unpack_mask(data) for b, data in stored}))
    result = []
    for person, place in zip(ids.tolist(), places.tolist(), strict=True):
        block, at = divmod(place, BLOCK)
        charged, gone, spent = list[tuple[Json, Integers]](), None, {"": _FREE}
        for body, own_blocks in entries:
            mask, rest = own_blocks.get(block, (np.zeros(0, bool), b""))
            if not (at < mask.size and mask[at]):
                continue
            if body["kind"] == "withdraw":
                gone = body["at"]
                continue
            pair = codec.unpack_pairs(rest, int(mask.sum()))[int(mask[:at].sum())]
            charged += [(body, pair)] if pair.any() else []
            for key in accounts_of(trail.policy, body.get("scope")):
                spent[key] = spent.get(key, _FREE) + pair
        for key, total in spent.items():
            balance = accounts.read_balances(connection, trail.salt, np.array([place]), key)[0]
            if (total != balance).any():
                raise StateError(
                    "ledger: charges do not add up to the balance; run `apiece ledger verify`"
                )
        most = np.max(list(spent.values()), axis=0)
        result.append(
            _receipt(person, people[block][1][at], charged, most, results, gone, reading.last.head)
        )
    return result


def _receipt(
    person: int | str,
    terms: codec.Terms,
    charged: list[tuple[Json, Integers]],
    spent: Integers,
    results: Mapping[str, object],
    gone: str | None,
    head: Head,
) -> Receipt:
    limits, delta = codec.limits(terms), float(terms["delta"])
    repeats = None
    if charged:  # how often what is left pays for the last pair, which is not free
        last, left = charged[-1][1].tolist(), (limits - spent).tolist()
        repeats = min(most // p for p, most in zip(last, left, strict=True) if p)
    mu, slack = np.sum([pair for _, pair in charged] or [_FREE], axis=0) * (UNIT, SLACK_UNIT)
    told = Costs.fixed(mu, slack).epsilon(delta, slack / delta * (1 + 2.0**-40))[0]
    shares = _shares(spent, limits)
    paid = []
    for body, pair in charged:
        name, share = body["analysis"], _shares(pair, limits)
        kind, digest = _released(results[name]) if name in results else ("", "")
        scope = body.get("scope", {})
        paid.append(PaidCharge(name, body["at"], *share, name in results, kind, digest, scope))
    return Receipt(
        person, float(terms["epsilon"]), delta, tuple(paid), *shares, repeats, head,
        float(told) if charged else 0.0, gone,
    )  # fmt: skip


def _released(result: object) -> tuple[str, str]:
    """Return what a committed result is, and its digest."""
    if isinstance(result, dict) and isinstance(result.get("model"), str):
        return "model", result["model"]
    text = json.dumps(result, sort_keys=True, ensure_ascii=False)
    return "answer", hashlib.sha256(text.encode()).hexdigest()


def _shares(pair: Integers, limits: Integers) -> tuple[float, float]:
    """Return which shares of an account a pair is; 0 of what the account does not have."""
    loss, slack = (
        int(p) / int(most) if most else 0.0 for p, most in zip(pair, limits, strict=True)
    )
    return loss, slack


SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.1, 0.01)  # of an account, at least which are left


def standing(ledger: LedgerReader) -> dict[str, Integers]:
    """Return how many accounts have at least each of `SHARES` left, for "queries" and "trainings".

    Queries take the budget alone, as Gaussian sums do. Trainings take the budget and the slack: the
    smaller share of both counts. Data about people: what was charged follows from their rows.

    Args:
        ledger: All of its accounts are counted.

    Example:
        >>> import tempfile
        >>> from apiece.ledger import Ledger, standing
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


def cumulated(bins: npt.ArrayLike) -> dict[str, Integers]:
    """Return how many have at least each share, from how many lie between which."""
    rows = np.cumsum(np.asarray(bins)[:, :-1], axis=1)
    return dict(zip(("queries", "trainings"), rows, strict=True))
