"""The kinds of entries in a history: what each says, and what it does to the ledger.

An entry is stored as JSON. `read_entry` makes an object of it, and `to_body` is the inverse. Who
follows a history lets each entry `update` the state; `verify` lets it `check` what may come after
what, and add its arrays block by block (`fold_block`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from apiece._types import Integers, Json
from apiece.errors import StateError
from apiece.ledger import codec
from apiece.ledger.codec import BLOCK, REMEDY, SLACK_UNIT, UNIT
from apiece.ledger.fold import Fold
from apiece.ledger.scopes import NO_POLICY, Permits, Policy

# The packed arrays of an entry by block, read and checked when they are asked for.
Arrays = Callable[[], Iterator[tuple[int, bytes]]]


def report_damage(number: int) -> StateError:
    """Return the error for an entry that is not as it was written."""
    return StateError(f"ledger: entry {number} is damaged or missing; {REMEDY}")


@dataclass(slots=True, kw_only=True)
class HistoryState:
    """What the entries of a history say, as far as they were followed."""

    # The entries that reserved and committed an analysis, by its id.
    reserved: dict[str, int] = field(default_factory=dict, repr=False)
    committed: dict[str, int] = field(default_factory=dict, repr=False)
    # People with an account.
    people: int = 0
    policy: Policy = NO_POLICY
    # The places of people who have withdrawn, in order.
    withdrawn: Integers = field(default_factory=lambda: np.zeros(0, np.int64), repr=False)
    permits: Permits | None = field(default=None, repr=False)


class LedgerEntry:
    """What one entry says; as it stands here, of a kind that changes nothing and has no fields."""

    __slots__ = ()
    # Its name in the stored history.
    kind: ClassVar[str]

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the entry in a stored body; raises one of `DAMAGE` for what is none."""
        return cls()

    def to_body(self) -> Json:
        """Return the entry as JSON, without its number, time, people and state."""
        return {"kind": self.kind}

    def find_analysis(self) -> str | None:
        """Return the id of the analysis that the entry is about, if it is about one."""
        return None

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Change what the history says; raises `StateError` where the entry cannot follow it.

        people: how many have an account after the entry.
        """

    def check(self, fold: Fold, number: int) -> None:
        """Note in a fold whether the entry can follow those before it."""

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Add the entry's array of one block to a fold."""


@dataclass(frozen=True, slots=True)
class InitEntry(LedgerEntry):
    """The first entry, of an empty ledger."""

    kind: ClassVar[str] = "init"
    # The units of μ² and of slack in which the ledger counts.
    units: Any = (UNIT, SLACK_UNIT)
    # Whether the ledger was copied from one of a format of before the first release.
    is_copy: bool = False

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the first entry in a body."""
        return cls(body.get("units"), "migrated" in body)

    def to_body(self) -> Json:
        """Return the units, besides the kind."""
        return {"kind": self.kind, "units": list(self.units)}


@dataclass(frozen=True, slots=True)
class EnrollEntry(LedgerEntry):
    """Accounts were opened; its arrays hold ids and terms."""

    kind: ClassVar[str] = "enroll"

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Open the accounts of one block."""
        fold.open_accounts(block, data)


@dataclass(frozen=True, slots=True)
class AmendEntry(LedgerEntry):
    """Terms of accounts were changed; its arrays hold the new ones."""

    kind: ClassVar[str] = "amend"
    # Whether what was taken of shared pools was found anew, by the new accounts.
    pools: bool = False

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the amendment in a body."""
        return cls(bool(body.get("pools")))

    def to_body(self) -> Json:
        """Return whether pools were found anew, where they were."""
        body: Json = {"kind": self.kind}
        if self.pools:
            body["pools"] = True
        return body

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Change the terms of one block."""
        fold.amend_accounts(number, block, data, pools=self.pools)


@dataclass(frozen=True, slots=True)
class Subject:
    """What a reservation is about, in public facts that a repetition has to bring again."""

    # Who asks, what for, of which source and period; empty without a policy of scopes.
    scope: Json = field(default_factory=dict)
    # The keyed digest of what is asked, in hexadecimal digits; None where nothing was said.
    terms: str | None = None
    # Standard deviation of the noise on a Gaussian sum; None of other analyses.
    noise_stddev: float | None = None


@dataclass(frozen=True, slots=True)
class ReserveEntry(LedgerEntry):
    """People were charged for an analysis; its arrays hold who, and how much."""

    kind: ClassVar[str] = "reserve"
    analysis: str
    # ISO 8601 in UTC: the time by which periods and consents were found.
    at: str
    # The keyed digest of the people and of what they were asked, in hexadecimal digits.
    request: str | None
    subject: Subject

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the reservation in a body."""
        subject = Subject(body.get("scope", {}), body.get("terms"), body.get("noise_stddev"))
        return cls(body["analysis"], body["at"], body.get("request"), subject)

    def to_body(self) -> Json:
        """Return the analysis, the request and what of its subject was said."""
        body: Json = {
            "kind": self.kind,
            "analysis": self.analysis,
            "at": self.at,
            "request": self.request,
        }
        if self.subject.noise_stddev is not None:
            body["noise_stddev"] = self.subject.noise_stddev
        if self.subject.terms is not None:
            body["terms"] = self.subject.terms
        if self.subject.scope:
            body["scope"] = self.subject.scope
        return body

    def find_analysis(self) -> str | None:
        """Return the analysis that was charged."""
        return self.analysis

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Note that the analysis is reserved, which it was not before."""
        if self.analysis in state.reserved:
            raise report_damage(number)
        state.reserved[self.analysis] = number

    def check(self, fold: Fold, number: int) -> None:
        """Note an analysis that is reserved twice, or in a scope that there is not."""
        fold.reserve(number, self.analysis, self.subject.scope, self.at)

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Add the charges of one block."""
        fold.charge(number, self.subject.scope, self.at, block, data)


@dataclass(frozen=True, slots=True)
class CommitEntry(LedgerEntry):
    """The result of a reserved analysis is released."""

    kind: ClassVar[str] = "commit"
    analysis: str
    result: Any

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the commit in a body."""
        return cls(body["analysis"], body["result"])

    def to_body(self) -> Json:
        """Return the analysis and its result."""
        return {"kind": self.kind, "analysis": self.analysis, "result": self.result}

    def find_analysis(self) -> str | None:
        """Return the analysis that is released."""
        return self.analysis

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Note that the analysis is committed, which was only reserved."""
        if self.analysis in state.committed or self.analysis not in state.reserved:
            raise report_damage(number)
        state.committed[self.analysis] = number

    def check(self, fold: Fold, number: int) -> None:
        """Note a commit of what is not reserved."""
        fold.commit(number, self.analysis)


@dataclass(frozen=True, slots=True)
class PolicyEntry(LedgerEntry):
    """A policy of scopes holds from here on."""

    kind: ClassVar[str] = "policy"
    # TOML; see `Policy.from_toml`.
    text: str

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the policy in a body."""
        return cls(body["policy"])

    def to_body(self) -> Json:
        """Return the text of the policy."""
        return {"kind": self.kind, "policy": self.text}

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Let the policy hold."""
        state.policy = Policy.from_history(self.text)

    def check(self, fold: Fold, number: int) -> None:
        """Note a policy that cannot follow the last."""
        fold.change_policy(number, self.text)


@dataclass(frozen=True, slots=True)
class WithdrawEntry(LedgerEntry):
    """People are charged nothing more; its arrays hold who."""

    kind: ClassVar[str] = "withdraw"

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Add the places of those who withdraw."""
        places = [codec.find_places(block, codec.unpack_mask(data)[0]) for block, data in arrays()]
        # Each place once, and in the order in which `mark_members` searches them.
        state.withdrawn = np.unique(np.concatenate([state.withdrawn, *places]))

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Add who of one block withdraws."""
        fold.withdraw(block, data)


@dataclass(frozen=True, slots=True)
class ConsentEntry(LedgerEntry):
    """Who permits what from here on; its arrays hold it of everybody, in place of earlier ones."""

    kind: ClassVar[str] = "consent"
    # Names, the last of which stands for all others.
    queriers: tuple[str, ...]
    purposes: tuple[str, ...]
    # The day for which consents were read, in ISO 8601.
    day: str

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the names and the day in a body."""
        return cls(tuple(body["queriers"]), tuple(body["purposes"]), body["day"])

    def to_body(self) -> Json:
        """Return the names and the day."""
        return {
            "kind": self.kind,
            "queriers": self.queriers,
            "purposes": self.purposes,
            "day": self.day,
        }

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Let the permits hold."""
        blocks = dict(arrays())
        state.permits = Permits.unpack(self.queriers, self.purposes, blocks, people)

    def check(self, fold: Fold, number: int) -> None:
        """Note that from here on who permits nothing is charged nothing."""
        fold.first_consent = min(fold.first_consent, number)

    def fold_block(self, fold: Fold, number: int, block: int, data: bytes) -> None:
        """Let the permits of one block hold."""
        # As if the block were the first: a fold keeps each block by itself.
        permits = Permits.unpack(self.queriers, self.purposes, {0: data}, BLOCK)
        fold.permits[block] = permits


@dataclass(frozen=True, slots=True)
class UnknownEntry(LedgerEntry):
    """An entry of a kind that no ledger has: a history with one is damaged."""

    kind: ClassVar[str] = "unknown"
    name: Any

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the kind that a body names."""
        return cls(body["kind"])

    def to_body(self) -> Json:
        """Return the kind."""
        return {"kind": self.name}

    def update(self, state: HistoryState, number: int, people: int, arrays: Arrays) -> None:
        """Refuse the history."""
        raise report_damage(number)

    def check(self, fold: Fold, number: int) -> None:
        """Note the kind."""
        fold.report(number, f"unknown kind {self.name!r}")


# The kinds that a history may have; a name stands for one class for ever.
_CLASSES: tuple[type[LedgerEntry], ...] = (
    InitEntry, EnrollEntry, AmendEntry, ReserveEntry,
    CommitEntry, PolicyEntry, WithdrawEntry, ConsentEntry,
)  # fmt: skip


def read_entry(body: Json) -> LedgerEntry:
    """Return the entry of a stored body; raises one of `DAMAGE` where it cannot be read."""
    kind = body["kind"]
    for entry_class in _CLASSES:
        if entry_class.kind == kind:
            return entry_class.read(body)
    return UnknownEntry.read(body)


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry as it stands in the history."""

    number: int
    # When it was written, ISO 8601 in UTC.
    at: str
    # People with an account after it.
    people: int
    # The digest of all terms and balances after it, in hexadecimal digits.
    state: str
    content: LedgerEntry

    @classmethod
    def read(cls, body: Json) -> Self:
        """Return the entry in a stored body; raises one of `DAMAGE` where it cannot be read."""
        people = int(body["people"])
        content = read_entry(body)
        return cls(body["number"], str(body["at"]), people, str(body["state"]), content)
