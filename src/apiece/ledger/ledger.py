"""Ledger: one durable account per person, across trainings and queries."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import require_ids
from apiece._types import Floats, Ids, Mask
from apiece.budgets.levels import Offered, parse_epsilons
from apiece.errors import InputError, StateError
from apiece.filters import Costs
from apiece.ledger import chain, codec, store
from apiece.ledger.anchor import Anchor
from apiece.ledger.chain import check_id, to_json
from apiece.ledger.charging import (
    Demand,
    find_reservation,
    reserve_all,
    reserve_listed,
    update_pools,
)
from apiece.ledger.codec import BLOCK
from apiece.ledger.database import make_engine, show_address, sqlite_file
from apiece.ledger.entries import CommitEntry, PolicyEntry, Subject, WithdrawEntry
from apiece.ledger.reading import LedgerReader
from apiece.ledger.reports import Lineage, make_receipts
from apiece.ledger.scopes import Policy, Scope


class Ledger(LedgerReader):
    """Durable accounts of privacy loss, charged before anything is released.

    `reserve` charges all who can pay in one transaction, and returns them; compute on those alone;
    `commit` records that the answer goes out, and returns it. Charges are never given back, and one
    analysis id is charged once.

    All that is read is checked against the history. Where that lacks an entry that this process has
    seen, or that the head file beside an SQLite file or an anchor has, every call raises
    `StateError`. Threads may share a ledger; their calls wait for each other.

    Args:
        engine: The database, as `open` makes it.
        anchor: Where digests are kept outside it.

    Guarantee:
        Over all analyses ever reserved, adaptively, by any number of processes, each person's
        charges stay within their own budget, in μ² and in slack. So each person's transcript is
        (ε, δ)-DP under add/remove adjacency: the ledger is a Gaussian filter with a slack. Sums
        with Gaussian noise cost (s²/S², 0), and everything else what `costs_of` says. Whoever was
        promised ρ has a transcript that is ρ-zero-concentrated DP: their account is a Rényi filter.

    References:
        docs/mathematics.md, section 11; Koskela, Tobaben, Honkela 2023, Thm 8; Feldman and Zrnic
        2021, Thm 2.2.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [0.1, 1.0], 1e-6)
        ...     paying = ledger.reserve("mean age", ["ann", "bob"], norms=1.0, noise_stddev=10.0)
        ...     ledger.commit("mean age", 41.5), paying.tolist()
        (41.5, ['bob'])
    """

    def __repr__(self) -> str:
        return f"Ledger.open({show_address(self.engine)!r})"

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///people.db",
        *,
        create: bool = True,
        anchor: str | os.PathLike[str] | None = None,
    ) -> Ledger:
        """Return the ledger at `url`; an empty one, which admits nobody, is made if there is none.

        Args:
            url: sqlite:///file, a path, or postgresql://user@host/name; a password is taken from
                PGPASSWORD or a password file.
            create: Whether to make one.
            anchor: A file, besides the head file, with the digests of the entries; by default the
                one that APIECE_LEDGER_ANCHOR names, if any.

        Raises:
            StateError: For a database or an anchor that cannot be read, and a ledger that is
                damaged or of another version.
            InputError: For an address that is not allowed.
            DataError: Where, with create=False, there is none.
        """
        engine = make_engine(url)
        heads = Anchor.of(anchor, sqlite_file(engine))
        if not store.is_there(engine):
            # Heads that are kept of a ledger that is not there: it was put away or deleted, and all
            # that it charged could be spent again.
            heads.require_none(show_address(engine))
            if not create:
                raise store.report_missing(engine)
            tip = store.make_ledger(engine, None)
            # None where another process made one first.
            if tip is not None:
                heads.keep(tip)
        return cls(engine, heads)

    @classmethod
    def make(
        cls,
        url: str,
        ids: Any,
        epsilon: Any = None,
        delta: Any = None,
        *,
        rho: Any = None,
        slack: Any = None,
        levels: Offered | None = None,
        anchor: str | os.PathLike[str] | None = None,
    ) -> Ledger:
        """Return a new ledger with these people's accounts: both, or no ledger is left behind.

        Args:
            url: The address of the new ledger; see `open`.
            ids: Whole numbers or text; see `enroll`, also for what follows.
            epsilon: ε of each budget: one entry a person, or a scalar.
            delta: δ of each budget: one entry a person, or a scalar.
            rho: ρ of each budget, in place of epsilon: one entry a person, or a scalar.
            slack: The share of delta kept for what is no Gaussian: one entry a person, a scalar, or
                None for a tenth.
            levels: The ε that epsilon's words stand for.
            anchor: A file with the digests of the entries, besides the head file; see `open`.

        Raises:
            DataError: For ids that repeat, and for a Series of others.
            StateError: Where there is a ledger already, and for a database or an anchor that cannot
                be read.
            InputError: For an address that is not allowed.
        """
        engine = make_engine(url)
        heads = Anchor.of(anchor, sqlite_file(engine))
        ids, terms = _read_terms(ids, epsilon, delta, rho, slack, levels)
        tip = None
        if not store.is_there(engine):
            heads.require_none(show_address(engine))
            tip = store.make_ledger(engine, (ids, terms))
        if tip is None:
            raise StateError(
                f"ledger {show_address(engine)}: exists already; open it, and enroll people"
            )
        heads.keep(tip)
        return cls(engine, heads)

    def set_policy(self, text: str) -> Policy:
        """Let a policy of scopes hold from now on; the one that holds already changes nothing.

        Args:
            text: TOML; see `Policy.from_toml`. It is kept in the history: name no person.

        Returns:
            The policy.

        Raises:
            InputError: For what is no policy, and a version that is not above the last one's.
            StateError: For another unit once anything was charged.

        Guarantee:
            Quotas hold for charges from now on. What a person spent stays spent.
        """
        policy = Policy.from_toml(text)
        with self.store.writing() as writing:
            trail = self.store.trail
            if policy == trail.policy:
                return policy
            # Versions rise, so that an older text cannot come back by mistake.
            if policy.version <= trail.policy.version:
                raise InputError(
                    f"policy: version = {policy.version}, where version {trail.policy.version} "
                    "holds; give a higher one"
                )
            # What is charged to the budget of one unit says nothing of the budget of another.
            if policy.unit != trail.policy.unit and trail.reserved:
                raise StateError(
                    f"policy: unit = {policy.unit!r}, where budgets of a {trail.policy.unit} were "
                    "charged; make a new ledger"
                )
            connection = writing.connection
            # The balances of pools come before the entry, whose digest of the state covers them.
            update_pools(connection, trail.salt, policy, writing.tip.people)
            body = PolicyEntry(text).to_body()
            writing.tip = chain.append(connection, trail.salt, writing.tip, body, [])
        return policy

    def enroll(
        self,
        ids: Any,
        epsilon: Any = None,
        delta: Any = None,
        *,
        rho: Any = None,
        slack: Any = None,
        levels: Offered | None = None,
    ) -> int:
        """Open accounts, or change the budgets of open ones; the same terms again change nothing.

        Args:
            ids: Whole numbers or text, of one kind in a ledger.
            epsilon: ε of each budget: one entry a person, or a scalar. A Series has the ids as its
                index, or that of ids, where these are a Series; a list or an array is taken by
                position.
            delta: δ of each budget, in the same forms.
            rho: ρ of each budget, in place of epsilon and in the same forms: the person's losses
                are ρ-zero-concentrated. Sums with Gaussian noise take μ²/2 of it, mechanisms
                their ρ (`concentrated_rho`); whose ρ is infinite takes in nobody promised so. delta
                is that at which receipts say ε.
            slack: The share of delta kept for what is no Gaussian, such as trainings with sampled
                batches; one, or one a person. `account_shares` says what suits a training. By
                default a tenth, and an account of this ε and δ stays as it is.
            levels: What people could choose, as {"low": 1, "high": 8}, where epsilon has these
                names, or rho has.

        Returns:
            How many accounts are new.

        Raises:
            BudgetError: For a budget lower than what the person has spent, ε for who has spent of a
                ρ, and words that are no declared level; then nothing at all is changed.
            InputError: Where delta is missing, or not one of epsilon and rho is given.
            DataError: For ids that repeat or are of another kind, and for a Series of others, or of
                these in another order.
        """
        ids, terms = _read_terms(ids, epsilon, delta, rho, slack, levels)
        with self.store.writing() as writing:
            people_before = writing.tip.people
            # Without a word on the slack an account of the same ε and δ keeps the one that it has.
            self.store.enroll(writing, ids, terms, keep=slack is None and rho is None)
            return writing.tip.people - people_before

    def withdraw(self, ids: Any) -> Lineage:
        """Charge these people nothing more, and return what became of their data.

        From now on they are in no answer and no training; those that go on leave them out at their
        next step. It is final in this ledger, and again it changes nothing.

        Args:
            ids: Persons with accounts.

        Returns:
            In which releases they were, and what these can tell. Data about people.

        Raises:
            DataError: For an unknown person.

        Guarantee:
            Nobody else's draws, noise or charges change. What was released stays released: the
            lineage bounds what all of it tells of each person.

        Example:
            >>> import tempfile
            >>> from apiece import Ledger
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], 1.0, 1e-6)
            ...     lineage = ledger.withdraw(["ann"])
            ...     ledger.reserve("q", ["ann", "bob"], norms=1.0, noise_stddev=30.0).tolist()
            ['bob']
        """
        ids = codec.normalize_ids(ids)
        with self.store.writing() as writing:
            trail = self.store.trail
            places = self.store.directory(writing).require_places(ids)
            # Who withdrew before is not in the entry again; where that is everybody there is none.
            withdrawing = places[~codec.mark_members(places, trail.withdrawn)]
            arrays = []
            for block, part in codec.group_by_block(withdrawing):
                in_block = withdrawing[part] % BLOCK
                # As long as the last of them needs: who comes into the block later is not meant.
                mask = np.zeros(int(in_block.max()) + 1, dtype=bool)
                mask[in_block] = True
                arrays.append((block, codec.pack_mask(mask)))
            if arrays:
                body = WithdrawEntry().to_body()
                writing.tip = chain.append(
                    writing.connection, trail.salt, writing.tip, body, arrays
                )
        # After the withdrawal is durable: the lineage has it, and speaks of that head.
        with self.store.reading() as reading:
            return Lineage(tuple(make_receipts(self.store, reading, ids)), reading.tip.head)

    def reserve(
        self,
        analysis_id: str,
        ids: Any,
        norms: Any,
        noise_stddev: float,
        *,
        terms: Any = None,
        scope: Scope | None = None,
    ) -> Ids:
        """Charge a Gaussian sum to everyone who can pay; only they may enter the sum.

        Durable before it returns; all or nothing. Until it is committed, the same terms again
        return the same ids and charge nothing: use that after a crash.

        Args:
            analysis_id: A name that no other analysis has.
            ids: The persons who are asked to pay.
            norms: Bound on each person's contribution to the sum (ℓ2), or one for all. A Series is
                joined to ids as in `enroll`.
            noise_stddev: Standard deviation of the noise on the sum.
            terms: What is asked, as a JSON value made of public facts: question, schema, ε, δ,
                source. It is compared before any id or norm is. Where it is the same, who was not
                charged, or was charged less than they now contribute, is left out without an error.
                Without terms, another list of ids or norms is an error.
            scope: Who asks, what for, of which source and period: {"querier": "clinic"}, one name
                for each dimension of the policy; one of the terms, by default that of `within`.
                Whoever cannot pay in every scope that applies is charged in none.

        Returns:
            The ids of those who paid, in the order given. Data about people.

        Raises:
            AnalysisError: For an id that stands for other terms, or for a committed analysis.
            DataError: For an unknown person, ids that repeat, and a Series of others, or of these
                in another order.
            InputError: For a norm that is negative or not finite, noise that is not positive, terms
                that are no JSON, and a scope that the policy does not have.

        Guarantee:
            With terms, whether there is an `AnalysisError`, and its text, depend on the analysis id
            and the terms alone.
        """
        # The ids are joined to the norms as they were given, before they lose their index.
        losses = codec.compute_losses(norms, noise_stddev)
        require_ids("ids", ids, norms=norms)
        ids = codec.normalize_ids(ids, least=0)
        if losses.ndim and losses.shape != ids.shape:
            raise InputError(f"{losses.size} norms for {ids.size} ids; give one a person")
        # One norm for all is one loss a person, without a copy.
        demand = Demand.of(Costs.fixed(np.broadcast_to(losses, ids.shape)))
        subject = self._describe(terms, scope, float(noise_stddev))
        return self._reserve(analysis_id, ids, demand, subject)

    def reserve_costs(
        self,
        analysis_id: str,
        ids: Any,
        costs: Costs,
        *,
        terms: Any = None,
        scope: Scope | None = None,
    ) -> Ids:
        """Charge costs of any kind to everyone who can pay; only they may take part.

        For what is not one Gaussian sum; all else is said at `reserve`.

        Each account pays the pair whose larger share of that account's budget, not of what is left
        of it, is the least.

        Args:
            analysis_id: A name that no other analysis has.
            ids: The persons who are asked to pay.
            costs: One row a person, in the same order; `costs_of` makes them.
            terms: What is asked, as a JSON value made of public facts; see `reserve`.
            scope: Who asks, what for, of which source and period; see `reserve`.

        Returns:
            The ids of those who paid, in the order given. Data about people.

        Raises:
            AnalysisError: For an id that stands for other terms, or for a committed analysis.
            DataError: For an unknown person, and ids that repeat.
            InputError: For costs of another number of people.
        """
        ids = codec.normalize_ids(ids, least=0)
        if len(costs) != ids.size:
            raise InputError(f"costs: of {len(costs)} people for {ids.size} ids; give one a person")
        return self._reserve(analysis_id, ids, Demand.of(costs), self._describe(terms, scope))

    def reserve_everyone(
        self,
        analysis_id: str,
        norms: float | Callable[[Ids], Any],
        noise_stddev: float,
        *,
        terms: Any = None,
        scope: Scope | None = None,
    ) -> int:
        """Charge a Gaussian sum to all accounts that can pay; only they may enter the sum.

        What is not said here is said at `reserve`.

        `admitted` yields who paid. Repeated, it charges those who had accounts at first: nobody
        again.

        Args:
            analysis_id: A name that no other analysis has.
            norms: Bound on each person's contribution (ℓ2): one for all, or a function from some
                ids to a norm for each, called with the ledger locked; repeated, it has to return
                the same.
            noise_stddev: Standard deviation of the noise on the sum.
            terms: What is asked, as a JSON value made of public facts; see `reserve`. Other norms
                under the same terms are an error.
            scope: Who asks, what for, of which source and period; see `reserve`.

        Returns:
            How many paid. Data about people.

        Raises:
            AnalysisError: For an id that stands for other terms or norms, or for a committed
                analysis.
            InputError: For norms, noise, terms or a scope that `reserve` refuses, and where the
                function returns another number of norms.
        """
        check_id(analysis_id)
        common_norm = 0.0 if callable(norms) else norms
        if np.ndim(common_norm):
            raise InputError("norms: give one number for all, or a function from ids to norms")
        # Checks the noise too, before the ledger is locked.
        common_loss = codec.compute_losses(common_norm, noise_stddev)
        subject = self._describe(terms, scope, float(noise_stddev))

        # Called for some people at a time while the ledger is locked, so that none is added in
        # between.
        def find_losses(ids: Ids) -> Floats:
            if not callable(norms):
                return np.full(ids.shape, common_loss)
            norms_of_ids = norms(ids)
            require_ids("ids", ids, norms=norms_of_ids)
            return codec.compute_losses(norms_of_ids, noise_stddev)

        with self.store.writing() as writing:
            paid, writing.tip = reserve_all(
                writing.connection,
                self.store.trail,
                writing.tip,
                analysis_id,
                find_losses,
                subject,
            )
        return paid

    def commit(self, analysis_id: str, result: Any = None) -> Any:
        """Record that the analysis is being released; return the result to release.

        One charge never pays for two noisy answers: all commits of an analysis return the first's.

        Args:
            analysis_id: The name of a reserved analysis.
            result: Any JSON value.

        Returns:
            The result that was committed first.

        Raises:
            AnalysisError: Where nothing was reserved under this id.
            InputError: For a result that is no JSON.
        """
        check_id(analysis_id)
        # Raises before anything is written.
        to_json("result", result)
        with self.store.writing() as writing:
            trail = self.store.trail
            trail.require(analysis_id)
            # Who commits second is given the first result: the charge has paid for one noisy
            # answer.
            if analysis_id in trail.committed:
                return trail.read_result(writing.connection, analysis_id)
            body = CommitEntry(analysis_id, result).to_body()
            writing.tip = chain.append(writing.connection, trail.salt, writing.tip, body, [])
        return result

    def _reserve(self, analysis_id: str, ids: Ids, demand: Demand, subject: Subject) -> Ids:
        check_id(analysis_id)
        with self.store.writing() as writing:
            trail = self.store.trail
            connection = writing.connection
            if analysis_id in trail.reserved:
                # Other terms are refused before any id is looked at.
                find_reservation(connection, trail, analysis_id, subject)
            places = self.store.directory(writing).require_places(ids)
            admitted, writing.tip = reserve_listed(
                connection, trail, writing.tip, analysis_id, places, demand, subject
            )
        return np.asarray(ids[admitted])


def _read_terms(
    ids: Any, epsilon: Any, delta: Any, rho: Any, slack: Any, levels: Offered | None
) -> tuple[Ids, codec.Terms]:
    """Return the ids and the accounts that they are promised, as ε and δ or as ρ."""
    if delta is None:
        raise InputError("delta: missing; give one, such as 1e-6")
    if (epsilon is None) == (rho is None):
        raise InputError("epsilon, rho: give one of the two")
    if rho is not None and slack is not None:
        raise InputError("slack: an account of rho has none; leave it out, or give epsilon")
    budget = {"epsilon": epsilon} if rho is None else {"rho": rho}
    require_ids("ids", ids, **budget, delta=delta, slack=slack)
    ids = codec.normalize_ids(ids)
    if rho is None:
        return ids, codec.make_terms(ids, parse_epsilons(epsilon, levels), delta, slack)
    return ids, codec.make_concentrated_terms(ids, parse_epsilons(rho, levels), delta)


# How much of an account is left over when a norm is all that it can still pay: more than the units
# of its charge are rounded up by, in μ² and as a share.
_ROUNDING_LOSS: Final = 2.0**-48
_ROUNDING_SHARE: Final = 2.0**-44


@dataclass
class LedgerFilter:
    """Accounts in a ledger for a `FilteredTrainer`; each call of `admit` is an analysis.

    The calls are reserved and committed as `run`/0, `run`/1 and so on. A run's name can be used
    once: a training that starts over is another run and is charged again.

    Args:
        ledger: With accounts of all these persons.
        ids: Each record's person, one record a person.
        run: The run's name in the ledger.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.ledger import LedgerFilter
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], [0.1, 1.0], 1e-6)
        ...     LedgerFilter(ledger, ["ann", "bob"], "model 1").admit([0.1, 1.0], 10.0).tolist()
        [True, True]
    """

    ledger: Ledger
    ids: Any = field(repr=False)
    run: str
    # The number of the next call, a part of its name.
    calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.ids = codec.normalize_ids(self.ids)

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Return who can pay for this analysis and takes part; charge them, durably.

        Args:
            norms: Bound on each person's contribution, or one for all.
            noise_stddev: Standard deviation of the noise on the sum.

        Raises:
            AnalysisError: Where the run's name was used before.
            DataError: For a person without an account.
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        # The terms are run, step and noise: a repetition is compared by them before anybody's norm
        # is looked at.
        step = f"{self.run}/{self.calls}"
        stddev = _check.positive("noise_stddev", noise_stddev)
        terms = {"run": self.run, "step": self.calls, "noise_stddev": stddev}
        admitted = self.ledger.reserve(step, self.ids, norms, stddev, terms=terms)
        # A committed step cannot be reserved again: a training that starts over under this name
        # fails at its first step instead of going on for free.
        self.ledger.commit(step)
        self.calls += 1
        # In the order of `ids`, in which the trainer has its records.
        return np.asarray(np.isin(self.ids, admitted))

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm each person can still pay for. Data about people.

        Args:
            noise_stddev: Standard deviation of the noise on the sum.

        Raises:
            InputError: For noise that is not positive.
        """
        stddev = _check.positive("noise_stddev", noise_stddev)
        # s²/S² ≤ what is left, or s ≤ S·√left, with a margin for the rounding of the charge.
        remaining = np.maximum(self.ledger.remaining(self.ids) - _ROUNDING_LOSS, 0.0)
        return np.asarray(np.sqrt(remaining) * (stddev * (1 - _ROUNDING_SHARE)))
