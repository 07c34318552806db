"""Receipts of what was charged, lineages of who withdrew, and what accounts have left."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Final

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from apiece._types import Ids, Integers, Json, Mask
from apiece.accounting.concentrated import concentrated_epsilon
from apiece.errors import StateError
from apiece.filters import Costs
from apiece.ledger import accounts, codec
from apiece.ledger.chain import Head
from apiece.ledger.codec import BLOCK, SLACK_UNIT, UNIT
from apiece.ledger.entries import CommitEntry, ReserveEntry, StoredEntry, WithdrawEntry
from apiece.ledger.reading import LedgerReader
from apiece.ledger.scopes import Policy, list_accounts
from apiece.ledger.store import LedgerStore, Reading

# Nothing, of μ² and of slack.
_FREE: Final = np.zeros(2, dtype=np.int64)
_WORDS: Final = (
    "no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"
)  # fmt: skip
# More than the sum of all charges in doubles is rounded down by, as a share.
_ROUNDING_SHARE: Final = 2.0**-40


@dataclass(frozen=True, slots=True)
class PaidCharge:
    """What one analysis took from one person's account; data about a person."""

    # The analysis's id.
    analysis: str
    # When it was reserved, in UTC.
    at: str = field(repr=False)
    # The share of the person's budget, in μ², in which charges add up.
    share: float = field(repr=False)
    # The share of the person's slack.
    slack: float = field(repr=False)
    # Whether its result was released.
    committed: bool
    # "model", "answer", or "" where nothing was released.
    released: str = ""
    # The digest of the model or the answer.
    digest: str = field(default="", repr=False)
    # Who asked, and what for.
    scope: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Receipt:
    """One person's account; data about a person.

    Attributes:
        person: Their id.
        epsilon: ε of their budget, for all analyses together.
        delta: δ of their budget.
        charges: The charges that they paid, in order.
        spent: The share of the budget that is spent; with periods, in the one with the most spent.
        slack: The share of the slack that is spent; with periods, in the one with the most spent.
        repeats: How many more analyses like the last one it pays for; None where there was none.
        head: The last entry of the history, whose digest covers each charge. If the steward
            publishes heads, a person can see that theirs is one of them.
        told: The ε, at `delta`, of all that was charged together: what it can tell of the person.
        withdrawn: When they withdrew, or None.
        rho: ρ of their budget, where that was promised; None of an ε.

    Example:
        >>> from apiece.ledger import Head
        >>> from apiece.ledger.reports import Receipt
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
    rho: float | None = field(default=None, repr=False)

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
        result = {item.name: getattr(self, item.name) for item in fields(self)}
        result["left"] = self.left
        result["charges"] = [asdict(charge) for charge in self.charges]
        result["head"] = self.head._asdict()
        return result


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
        >>> from apiece.ledger import Head
        >>> from apiece.ledger.reports import Lineage
        >>> Lineage((), Head(3, "0" * 64)).events()
        []
    """

    receipts: tuple[Receipt, ...] = field(repr=False)
    head: Head

    def events(self) -> list[Json]:
        """Return a machine-readable event for each person. Data about people."""
        events: list[Json] = []
        for receipt in self.receipts:
            releases = [asdict(charge) for charge in receipt.charges if charge.committed]
            unreleased = [charge.analysis for charge in receipt.charges if not charge.committed]
            event = {
                "event": "withdrawal",
                "format": 1,
                "person": receipt.person,
                "at": receipt.withdrawn,
                "head": self.head._asdict(),
                "releases": releases,
                "unreleased": unreleased,
                "spent": {"budget": receipt.spent, "slack": receipt.slack},
                "told": {"epsilon": receipt.told, "delta": receipt.delta},
                "allowed": {"epsilon": receipt.epsilon, "delta": receipt.delta},
                "cannot": list(CANNOT),
            }
            events.append(event)
        return events


def receipt(ledger: LedgerReader, person: int | str) -> Receipt:
    """Return one person's receipt: what their account was charged, by which analyses.

    Data about a person.

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
    ids = codec.normalize_ids([person])
    with ledger.store.reading() as reading:
        return make_receipts(ledger.store, reading, ids)[0]


@dataclass(slots=True, repr=False)
class _PersonalHistory:
    """What the entries say of one person's account."""

    # Each reservation that charged them, and the units of μ² and slack that it took.
    charges: list[tuple[ReserveEntry, Integers]] = field(default_factory=list)
    # (2,) units by scope; "" is the whole account.
    spent: dict[str, Integers] = field(default_factory=lambda: {"": _FREE})
    # When they withdrew.
    withdrawn: str | None = None

    def take_in(
        self, entry: StoredEntry, mask: Mask, values: bytes, row: int, policy: Policy
    ) -> None:
        """Add what an entry says of the person in row `row` of a block, by its array."""
        if not (row < mask.size and mask[row]):
            return
        content = entry.content
        if isinstance(content, WithdrawEntry):
            self.withdrawn = entry.at
        elif isinstance(content, ReserveEntry):
            pairs = codec.unpack_pairs(values, int(mask.sum()))
            # A mask's values are of those in it alone: the row of a person is how many are in it
            # before them.
            pair = pairs[int(mask[:row].sum())]
            if pair.any():
                self.charges.append((content, pair))
            for key in list_accounts(policy, content.subject.scope):
                self.spent[key] = self.spent.get(key, _FREE) + pair


def make_receipts(store: LedgerStore, reading: Reading, ids: Ids) -> list[Receipt]:
    """Return the receipts of some people, in the order of their ids."""
    connection = reading.connection
    trail = store.trail
    places = store.directory(reading).require_places(ids)
    blocks = [block for block, _ in codec.group_by_block(places)]
    people = accounts.read_people(connection, trail.salt, blocks)
    results: dict[str, object] = {}
    # One pass over the history for all of these people.
    entries: list[tuple[StoredEntry, dict[int, tuple[Mask, bytes]]]] = []
    for entry, _ in trail.read_entries(connection):
        content = entry.content
        if isinstance(content, CommitEntry):
            results[content.analysis] = content.result
        elif isinstance(content, ReserveEntry | WithdrawEntry):
            arrays = trail.read_arrays(connection, entry.number, blocks)
            entries.append((entry, {block: codec.unpack_mask(data) for block, data in arrays}))
    receipts = []
    for person, place in zip(ids.tolist(), places.tolist(), strict=True):
        block, row = divmod(place, BLOCK)
        history = _PersonalHistory()
        for entry, masks in entries:
            if block in masks:
                mask, values = masks[block]
                history.take_in(entry, mask, values, row, trail.policy)
        _check_balances(connection, trail.salt, place, history)
        _, terms = people[block]
        receipts.append(_make_receipt(person, terms[row], history, results, reading.tip.head))
    return receipts


def _check_balances(
    connection: sa.Connection, salt: bytes, place: int, history: _PersonalHistory
) -> None:
    """Raise `StateError` where a person's charges are not what their balances say."""
    for key, total in history.spent.items():
        balance, _ = accounts.read_balances(connection, salt, np.array([place]), key)
        # Units are whole numbers, so that sums agree to the last one.
        if (total != balance).any():
            raise StateError(
                "ledger: charges do not add up to the balance; run `apiece ledger verify`"
            )


def _make_receipt(
    person: int | str,
    terms: codec.Terms,
    history: _PersonalHistory,
    results: Mapping[str, object],
    head: Head,
) -> Receipt:
    limits = codec.read_limits(terms)
    delta = float(terms["delta"])
    # With periods, in the one with the most spent.
    spent = np.max(list(history.spent.values()), axis=0)
    pairs = [pair for _, pair in history.charges]
    told = 0.0
    repeats = None
    rho = None
    # The limit of such an account is counted in μ², twice the ρ that was promised.
    if codec.find_concentrated(terms):
        rho = float(limits[0]) * UNIT / 2
    if pairs:
        # What all charges together tell of the person: the ε of the composed Gaussian with that
        # slack, at the account's δ.
        mu_squared, slack = np.sum(pairs, axis=0) * (UNIT, SLACK_UNIT)
        slack_share = slack / delta * (1 + _ROUNDING_SHARE)
        if rho is None:
            told = float(Costs.fixed(mu_squared, slack).epsilon(delta, slack_share)[0])
        elif mu_squared > 0:
            told = float(concentrated_epsilon(mu_squared / 2 * (1 + _ROUNDING_SHARE), delta))
        # The last pair is not free, so one of its parts is above 0.
        # How often it fits into what is left, in the part into which it fits the fewest times.
        remaining = (limits - spent).tolist()
        parts = zip(pairs[-1].tolist(), remaining, strict=True)
        repeats = min(amount // price for price, amount in parts if price)
    spent_share, slack_spent_share = _find_shares(spent, limits)
    return Receipt(
        person=person,
        epsilon=float(terms["epsilon"]),
        delta=delta,
        charges=tuple(_describe_charge(*charge, limits, results) for charge in history.charges),
        spent=spent_share,
        slack=slack_spent_share,
        repeats=repeats,
        head=head,
        told=told,
        withdrawn=history.withdrawn,
        rho=rho,
    )


def _describe_charge(
    entry: ReserveEntry, pair: Integers, limits: Integers, results: Mapping[str, object]
) -> PaidCharge:
    budget_share, slack_share = _find_shares(pair, limits)
    committed = entry.analysis in results
    released = ""
    digest = ""
    if committed:
        released, digest = _describe_result(results[entry.analysis])
    return PaidCharge(
        analysis=entry.analysis,
        at=entry.at,
        share=budget_share,
        slack=slack_share,
        committed=committed,
        released=released,
        digest=digest,
        scope=entry.subject.scope,
    )


def _describe_result(result: object) -> tuple[str, str]:
    """Return the kind of a committed result, "model" or "answer", and its digest."""
    if isinstance(result, dict) and isinstance(result.get("model"), str):
        return "model", result["model"]
    text = json.dumps(result, sort_keys=True, ensure_ascii=False)
    return "answer", hashlib.sha256(text.encode()).hexdigest()


def _find_shares(pair: Integers, limits: Integers) -> tuple[float, float]:
    """Return which shares of an account a pair is; 0 of what the account does not have."""
    loss, slack = (
        int(part) / int(limit) if limit else 0.0 for part, limit in zip(pair, limits, strict=True)
    )
    return loss, slack


# Shares of an account: `standing` counts who has at least each of them left.
SHARES: Final = (1.0, 0.75, 0.5, 0.25, 0.1, 0.01)


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
    bins = np.zeros((2, len(SHARES) + 1), dtype=np.int64)
    for _, terms, spent in ledger.account_blocks():
        bins = bins + count_bins(codec.read_limits(terms), spent)
    return cumulate_bins(bins)


def count_bins(limits: Integers, spent: Integers) -> Integers:
    """Return how many accounts lie between which shares: (2, shares + 1), by budget and by both.

    Each account is in one bin of each row.
    """
    # Shares of (people, 2), of μ² and of slack; an account without slack counts as full.
    remaining = 1 - spent / np.maximum(limits, 1)
    rows = []
    for shares in (remaining[:, 0], remaining.min(1)):
        # `SHARES` fall: the bin is how many of them the account is below, 0 for one that is
        # untouched.
        is_below = shares[:, None] < np.array(SHARES)
        bins = is_below.sum(axis=1)
        rows.append(np.bincount(bins, minlength=len(SHARES) + 1))
    return np.array(rows)


def cumulate_bins(bins: npt.ArrayLike) -> dict[str, Integers]:
    """Return how many have at least each share, from how many lie between which."""
    # Bins 0 to i hold the accounts that have at least share i; the last bin is below all shares.
    rows = np.cumsum(np.asarray(bins)[:, :-1], axis=1)
    return dict(zip(("queries", "trainings"), rows, strict=True))
