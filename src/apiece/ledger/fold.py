"""What a history adds up to, by its entries alone: the sums that `verify` compares with the tables.

The arrays of all entries are summed some blocks at a time: accounts, what they spent by scope, who
withdrew, who permits what. What no entry may say is noted as a problem, and summing goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from apiece._identifiers import find_flaw, find_flawed, find_period
from apiece._types import Ids, Integers, Json, Mask
from apiece.errors import InputError
from apiece.ledger import codec
from apiece.ledger.codec import BLOCK, TERMS
from apiece.ledger.scopes import (
    ACCOUNT,
    NO_POLICY,
    Ceiling,
    Permits,
    Policy,
    Scope,
    compute_pools,
    compute_takings,
)

# Blocks that are summed at a time: a million people.
SPAN: Final = 256


@dataclass(slots=True, repr=False)
class FoldedBlock:
    """Ids, terms and spending of a block of people, as the history alone tells them."""

    ids: Ids
    terms: codec.Terms
    # (people, 2) units by scope; "" is the whole account.
    spent: dict[str, Integers]
    limits: Integers = field(init=False)

    def __post_init__(self) -> None:
        self.limits = codec.read_limits(self.terms)


@dataclass(slots=True, repr=False)
class Fold:
    """The sums of a history's entries, and the problems that were met on the way.

    An entry is checked first, in the order of the history, and its arrays are added later, block by
    block and in the same order.
    """

    # The policy after the last entry that was checked, and every policy by its entry.
    policy: Policy = NO_POLICY
    policies: dict[int, Policy] = field(default_factory=dict)
    # Entries whose policies do not hold yet for the blocks at hand.
    waiting: list[int] = field(default_factory=list)
    # What the charges of a reservation have to stay under, by entry.
    ceilings: dict[int, list[Ceiling]] = field(default_factory=dict)
    # By block: who has withdrawn, and who permits what.
    withdrawn: dict[int, Mask] = field(default_factory=dict)
    permits: dict[int, Permits] = field(default_factory=dict)
    # The first entry with consents; from there on who permits nothing is charged nothing.
    first_consent: float = math.inf
    reserved: set[str] = field(default_factory=set)
    committed: set[str] = field(default_factory=set)
    blocks: dict[int, FoldedBlock] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    # How many identifiers could be written in another way, by what they are of.
    flaws: dict[str, int] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """Return a line for each kind of identifier that older ledgers took."""
        return [
            f"{count} {owner} could be written in another way, and a new one would be refused; "
            "they are read as they are"
            for owner, count in self.flaws.items()
        ]

    def report(self, number: int, problem: str) -> None:
        """Note a problem of an entry."""
        self.problems.append(f"entry {number}: {problem}")

    def change_policy(self, number: int, text: str) -> None:
        """Check an entry with a policy, which begins to hold when its turn comes."""
        policy = Policy.from_history(text)
        changes_unit = policy.unit != self.policy.unit
        if policy.version <= self.policy.version or (changes_unit and self.reserved):
            self.report(number, "a policy that cannot follow the last")
        self.policy = policy
        self.policies[number] = policy

    def reserve(self, number: int, analysis_id: object, scope: Json, at: str) -> None:
        """Check an entry that reserved an analysis, and note what its charges stay under."""
        # An edited entry may hold anything here; what is no text counts as an empty id.
        analysis = analysis_id if isinstance(analysis_id, str) else ""
        if analysis in self.reserved:
            self.report(number, f"analysis {analysis!r} is reserved twice")
        self.reserved.add(analysis)
        self._count_flaws("ids of analyses", find_flaw(analysis) is not None)
        self._count_flaws_of_scope(scope)
        try:
            self.ceilings[number] = self.policy.ceilings_in_history(scope, at)
        except InputError as error:
            self.report(number, str(error))
            self.ceilings[number] = list(ACCOUNT)

    def commit(self, number: int, analysis: str) -> None:
        """Check an entry that committed an analysis."""
        if analysis not in self.reserved or analysis in self.committed:
            self.report(number, "commits what is not reserved")
        self.committed.add(analysis)

    def open_accounts(self, block: int, data: bytes) -> None:
        """Add newly enrolled people to a block."""
        ids, terms = codec.unpack_enrolled(data)
        flawed = find_flawed(ids)
        self._count_flaws("ids of persons", 0 if flawed is None else flawed[1])
        spent = {"": codec.make_zero_pairs(ids.size)}
        if block in self.blocks:
            # Scopes keep their shorter rows: who is new has spent nothing in them.
            earlier = self.blocks[block]
            ids = np.concatenate([earlier.ids, ids])
            terms = np.concatenate([earlier.terms, terms])
            spent = {**earlier.spent, "": codec.pad_pairs(earlier.spent[""], ids.size)}
        self.blocks[block] = FoldedBlock(ids, terms, spent)

    def amend_accounts(self, number: int, block: int, data: bytes, *, pools: bool) -> None:
        """Change the terms of some people of a block; pools: and what was taken of shared pools."""
        mask, packed = codec.unpack_mask(data)
        terms = self.blocks[block].terms.copy()
        terms[mask] = np.frombuffer(packed, TERMS)
        # Made anew, so that the limits follow from the terms.
        people = replace(self.blocks[block], terms=terms)
        self.blocks[block] = people
        if pools:
            policy = self._find_policy(number)
            people.spent |= compute_pools(policy, people.limits, people.spent)
        if (people.spent[""] > people.limits).any():
            self.report(number, f"someone in block {block} is over budget")

    def withdraw(self, block: int, data: bytes) -> None:
        """Note who of a block has withdrawn."""
        mask, _ = codec.unpack_mask(data)
        withdrawn = self.withdrawn.setdefault(block, np.zeros(BLOCK, bool))
        withdrawn[: mask.size] |= mask

    def start_policies(self, end: int) -> None:
        """Let the policies of the entries before number `end` begin to hold."""
        # Payloads are read in the order of entries, and a policy has none: it begins to hold before
        # the first array of a later entry.
        for number in [number for number in self.waiting if number < end]:
            self.waiting.remove(number)
            policy = self.policies[number]
            for people in self.blocks.values():
                people.spent |= compute_pools(policy, people.limits, people.spent)

    def charge(self, number: int, scope: Scope, at: str, block: int, data: bytes) -> None:
        """Add what an entry charged to all that it counts in; note what it may not have charged."""
        mask, charges = codec.unpack_charges(data)
        people = self.blocks[block]
        # A negative charge would give budget back, and one beyond the cap could overflow.
        is_in_range = (charges >= 0) & (charges <= codec.CAP)
        if not is_in_range.all():
            self.report(number, f"charges of block {block} out of range")
        self._check_participation(number, scope, at, block, mask)
        count = len(people.limits)
        charged = np.zeros(count, dtype=bool)
        charged[: mask.size] = mask
        if not charged.all():
            # From a row for each who was charged to a row for each of the block, (people, 2).
            listed = charges
            charges = codec.make_zero_pairs(count)
            charges[charged] = listed
        ceilings = self.ceilings[number]
        # The same rule by which it was charged: `compute_takings` is the one place that knows it.
        for scope_key, *_ in ceilings:
            people.spent[scope_key] = codec.pad_pairs(people.spent.get(scope_key), count)
        takings = compute_takings(ceilings, people.limits, people.spent, charges)
        for key, taking, over in takings:
            if (over & charged).any():
                limit = f"scope {key!r}" if key else "budget"
                self.report(number, f"someone in block {block} is over {limit}")
            # What is over is added all the same: the tables are compared with what the history
            # says.
            people.spent[key] += taking

    def _check_participation(
        self, number: int, scope: Scope, at: str, block: int, charged: Mask
    ) -> None:
        """Note a charge of people who had withdrawn, or who did not permit it."""
        withdrawn = self.withdrawn.get(block)
        if withdrawn is not None and (withdrawn[: charged.size] & charged).any():
            self.report(number, f"someone in block {block} had withdrawn")
        if self.first_consent >= number:
            return
        permits = self.permits.get(block)
        # Who is in no block of consents permits nothing.
        barred = charged
        if permits is not None:
            barred = charged & ~permits.hold(scope, at, charged.size)
        if barred.any():
            self.report(number, f"someone in block {block} did not permit it")

    def _find_policy(self, number: int) -> Policy:
        """Return the policy that held when an entry was written."""
        earlier = [entry for entry in self.policies if entry < number]
        return self.policies[max(earlier)] if earlier else NO_POLICY

    def _count_flaws(self, owner: str, count: int) -> None:
        if count:
            self.flaws[owner] = self.flaws.get(owner, 0) + count

    def _count_flaws_of_scope(self, scope: Json) -> None:
        period_length = self.policy.every
        for dimension, value in scope.items():
            for name in [value] if isinstance(value, str) else value:
                if dimension == "period" and period_length is not None:
                    is_flawed = find_period(name, period_length) is None
                else:
                    is_flawed = find_flaw(name) is not None
                self._count_flaws(f"names of a {dimension} in charges", is_flawed)
