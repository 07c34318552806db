"""Plan: what will be done to the records of each group; BoundPlan: also which records these are.

A `Plan` holds public numbers alone, one entry a group: it may be published. A `BoundPlan` holds
beside them who is where, which is data about people: the engine runs it, no file contains it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from apiece import _check, _json
from apiece._text import MAX_ROWS, html_table, per_cent, rounded_up
from apiece._types import AnyArray, Floats, Integers, Json
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting.slack import GaussianSummary, gaussian_summary
from apiece.budgets import Budgets
from apiece.budgets.groups import SMALL_GROUP
from apiece.budgets.records import Consents
from apiece.budgets.release import BudgetHistogram
from apiece.errors import InputError
from apiece.mechanisms import Mechanism
from apiece.plan import serial
from apiece.plan.parts import PUBLIC, UNSPENT, Group, Numbers, Stage, freeze_array
from apiece.plan.verification import (
    Limits,
    Measures,
    Verification,
    compute_spending,
    find_limits,
    measure,
    verify,
)

_COLUMNS = ("group", "records", "ε asked", "δ", "ε spent", "sampling", "clip norm", "noise")


@dataclass(frozen=True, eq=False, repr=False)
class Plan(Numbers):
    """What will be done to every record, decided before training and frozen.

    Public numbers alone: nothing in it says who is where. `bind` gives the engine's `BoundPlan`.
    Arrays are read-only.

    Attributes:
        strategy: The name of what made it.
        clip_norm: The mean clip norm asked for.
        budget_groups: The distinct budgets asked for, in the order of every per-group array.
        stages: Run one after the other.
        relation: The adjacency.
        method: The accounting that the parameters were calibrated with, and that states what is
            promised.
        combine: "continue" trains one model through all stages, "average" trains one a stage, from
            scratch, and averages their outputs by the stages' weights.
        objections: Why the plan must not be used for a release; empty for a plan that keeps every
            promise.
        worst_paths: For plans whose coins are revealed, which stages a record of each group may
            take part in on its worst path (groups × stages); None otherwise.
        counts: "exact" where `budget_groups.records` are the true sizes of groups, "released" where
            they come from a private histogram; then a bound plan's records are those that
            `bind_released` found.
        notes: For people, such as what other plans would have cost.
        learning_rate: A factor on the optimizer's learning rate at each step, counted from the
            first step of the model (of each stage, for "average"); None leaves it alone. It costs
            no privacy.
        reference: The uniform mechanism that the excess is measured against, by the batch size,
            records and steps that were requested; of a plan made by hand, if not given, by its own.
        unit: Whose presence is hidden: "record", or "person" where each of the plan's records is a
            person with any number of rows. No number depends on it.
        selection: That the model is the best of a random number of runs; None for one run. What is
            promised then holds of all runs together, of which the best model alone is released.

    Raises:
        InputError: For parts that do not fit one another.

    Guarantee:
        What is promised to a group, under `relation`, is computed from `mechanism_for(group)` and
        nothing else.

    Example:
        >>> from apiece import Budgets, Plan, Scale, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=10, expected_batch_size=10, clip_norm=1.0).public()
        >>> Plan.from_json(plan.to_json()).to_dict() == plan.to_dict()
        True
    """

    def __repr__(self) -> str:
        """Return what is public and short: nothing of who is where."""
        size = f"{self.records} {self.unit}s in {len(self.budget_groups)} groups"
        return f"{type(self).__name__}({self.strategy}, {size}, {self.steps} steps)"

    def _repr_html_(self) -> str:
        """Return the table of groups for a notebook; of small ones only how many there are."""
        # What a small group spends could tell who is in it.
        large = [
            (group, spent)
            for group, spent in zip(self.groups, self.epsilon_spent, strict=True)
            if group.records >= SMALL_GROUP
        ]
        notes = [
            f"{self.records:,} records, {self.steps:,} steps; ε spent is an upper bound, "
            "add/remove."
        ]
        small_count = len(self.groups) - len(large)
        if small_count:
            notes.append(f"{small_count} groups of fewer than {SMALL_GROUP} records are not shown.")
        if len(large) > MAX_ROWS:
            notes.append(f"{len(large) - MAX_ROWS} more groups are not shown.")
        notes += [f"Not for release: {objection}" for objection in self.objections]
        rows = [_format_cells(*pair) for pair in large[:MAX_ROWS]]
        return html_table(self.strategy, _COLUMNS, rows, notes)

    @property
    def records(self) -> int:
        """How many records the plan is for."""
        return int(self.budget_groups.records.sum())

    @property
    def has_fixed_steps(self) -> bool:
        """Whether each record's steps are fixed beforehand in some stage, and none is drawn."""
        return any(stage.has_fixed_steps for stage in self.stages)

    @property
    def has_turns(self) -> bool:
        """Whether noise is correlated in some stage, with parts that take turns and coins."""
        return any(
            stage.correlated is not None and stage.correlated.sampled for stage in self.stages
        )

    @property
    def _stage(self) -> Stage:
        """The only stage of the plan; raises where it has several."""
        if len(self.stages) != 1:
            raise InputError(f"plan: it has {len(self.stages)} stages; read plan.stages[i]")
        return self.stages[0]

    @property
    def expected_batch_size(self) -> float:
        """Sum of all records' chances to be in a batch; for a plan of one stage."""
        return self._stage.expected_batch_size

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise on the sum; for a plan of one stage."""
        return self._stage.noise_stddev

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The groups, in the order of every per-group array; of any number of stages."""
        budgets = self.budget_groups
        bounds = [None] * len(budgets) if budgets.excess is None else budgets.excess.tolist()
        # `tolist` turns numpy's scalars into Python's.
        rows = zip(
            budgets.name.tolist(),
            budgets.records.tolist(),
            budgets.epsilon.tolist(),
            budgets.delta.tolist(),
            bounds,
            strict=True,
        )
        return tuple(
            Group(*row, stages=tuple(stage.of(g) for stage in self.stages))
            for g, row in enumerate(rows)
        )

    def mechanism_for(self, group: int | str) -> Mechanism:
        """Return the mechanism that a record of `group` meets in all stages together.

        With revealed coins this is the record's worst path, on which no coin hides anything.

        Args:
            group: A position or a name.

        Raises:
            InputError: For a group that there is not.
        """
        return self.mechanism_at(self._position(group))

    def renamed(self, names: Sequence[str]) -> Self:
        """Return the same plan with other names of its groups, in its notes too.

        Args:
            names: One a group, each once.

        Raises:
            BudgetError: For a name that is given twice, and another number of names than of groups.
        """
        groups = replace(self.budget_groups, name=np.array(names))
        # The new name takes the old one's place wherever a note has it after "group". In one pass,
        # so that a name that is new to one group and old to another is replaced once; the longest
        # first, since one name may begin with another.
        new_names = dict(zip(self.budget_groups.name.tolist(), names, strict=True))
        alternatives = "|".join(map(re.escape, sorted(new_names, key=len, reverse=True)))
        pattern = re.compile(rf"\bgroup ({alternatives})(?!\w)")
        notes = tuple(
            pattern.sub(lambda found: f"group {new_names[found[1]]}", note) for note in self.notes
        )
        plan = replace(self, budget_groups=groups, notes=notes)
        # Names decide nothing, so that what was computed under the old ones holds.
        return _copy_cached(self, plan, "epsilon_spent", "measures")

    def curve(self, group: int | str, *, method: str | None = None) -> PrivacyCurve:
        """Return the privacy curve of a record of `group`.

        Args:
            group: A position or a name.
            method: As for `privacy_curve`; None for the plan's own.

        Raises:
            InputError: For a group that there is not.
        """
        return privacy_curve(self.mechanism_for(group), method=method or self.method)

    def gaussian(self, group: int | str, *, slack: float | None = None) -> GaussianSummary:
        """Return the Gaussian that stands for what a record of `group` risks: a μ that composes.

        Args:
            group: A position or a name.
            slack: The chance left out; None for a tenth of the group's δ.

        Raises:
            InputError: For a group that there is not, and a slack outside [0, 1).
            RangeError: As `gaussian_summary`.

        Guarantee:
            As `gaussian_summary`: μ and its regret are rounded up.
        """
        position = self._position(group)
        if slack is None:
            slack = float(self.budget_groups.delta[position]) / 10
        return gaussian_summary(self.curve(position, method="pld"), slack)

    @cached_property
    def epsilon_spent(self) -> Floats:
        """An upper bound on each group's ε at its δ, from the plan's own numbers; computed once."""
        return compute_spending(self, self.method)

    @property
    def spent_share(self) -> Floats:
        """ε spent over ε asked, of each group; `notes` name those of which it is below 0.95."""
        return np.asarray(self.epsilon_spent / self.budget_groups.epsilon)

    @cached_property
    def measures(self) -> Measures:
        """Each group's ε spent, advantage and Δ, from the plan's own numbers; computed once."""
        return measure(self, self.epsilon_spent)

    def verify(self, budgets: Budgets | None = None, *, method: str | None = None) -> Verification:
        """Return each group's spending, recomputed from the plan alone, beside what was asked.

        A broken promise raises nothing: read `.ok`, `.kept`, or call `.require()`. A bound plan is
        held against each record's own consent, whatever else it is held against.

        Args:
            budgets: What to hold the plan against as well, joined by record id to a bound plan; of
                a padded plan (see `contract.enforce`) also without the public records.
            method: As for `privacy_curve`; None for the plan's own.

        Raises:
            InputError: For a record of the plan that `budgets` lacks.
        """
        limits = self._find_limits(budgets)
        if method is None or method == self.method:
            spent = self.epsilon_spent
        else:
            spent = compute_spending(self, method)
        return verify(self, spent, limits, lambda: self.measures)

    def _find_limits(self, budgets: Budgets | None) -> Limits:
        """Return the strictest ε, δ and Δ̄ of each group, its records and `budgets`."""
        if isinstance(self, BoundPlan):
            plan = self
        elif budgets is not None:
            plan = self.bind(budgets)
        else:
            return find_limits(self.budget_groups)
        # The strictest of what each record allowed when it was bound and of what `budgets` say now.
        consents = plan.consents
        if budgets is not None:
            # A padded plan's public records asked for nothing, and no budget is looked for.
            added = self.budget_groups.name[plan.group_index] == PUBLIC
            consents = consents.lowered_to(budgets, added=added)
        return find_limits(self.budget_groups, plan.group_index, consents)

    def require(self) -> None:
        """Raise unless this plan may make a release: nothing is believed, all is recomputed.

        Raises:
            InputError: Where it has objections.
            VerificationError: Where a group's or, in a bound plan, a record's own ε, δ or forward
                Δ (more vulnerable than its bound allows) is not kept by the plan's own numbers.
        """
        if self.objections:
            raise InputError(
                f"plan: not fit for a release ({self.objections[0]}); use another strategy, or "
                "give a seed to run it as an experiment"
            )
        self.verify().require()

    def bind(self, budgets: Budgets) -> BoundPlan:
        """Return this plan with the records of `budgets`.

        Args:
            budgets: With the same groups as the plan's, whatever their names; only a group "public"
                has to be one in both.

        Raises:
            InputError: Where the groups differ.
        """
        planned = self.budget_groups
        groups = budgets.groups
        # By budgets and counts, not by names; but who is public is public by name.
        fit = planned.same_as(groups) and np.array_equal(
            planned.name == PUBLIC, groups.name == PUBLIC
        )
        if not fit:
            raise InputError(
                f"budgets: {len(budgets)} records in {len(groups)} groups do not fit the plan's "
                f"{self.records} in {len(planned)}; make the plan from these budgets"
            )
        return _convert(self, BoundPlan, group_index=budgets.group_index, consents=budgets.consents)

    def bind_released(self, histogram: BudgetHistogram, budgets: Budgets) -> BoundPlan:
        """Return this plan, made from `histogram.budgets()`, with the real records that fit it.

        Each record goes to the largest group that does not exceed its own budget. One that is below
        all groups is left out: the bound plan's ids are those of the others. Rates, noise and the
        batch normaliser stay as released.

        Args:
            histogram: The released one that the plan was made from.
            budgets: What the real records asked for.

        Raises:
            InputError: Where the plan was not made from this histogram.
            BudgetError: For budgets with bounds Δ̄ where the histogram's levels have none.
        """
        if not self.budget_groups.same_as(histogram.budgets().groups):
            raise InputError(
                "histogram: the plan was not made from it; assign(histogram.budgets())"
            )
        index = histogram.place(budgets)
        fits = index >= 0
        consents = budgets.consents.select(fits)
        # The sizes of groups stay those released: who really fits is nowhere in public numbers.
        plan = replace(self.public(), counts="released")
        return _convert(plan, BoundPlan, group_index=index[fits], consents=consents)

    def public(self) -> Plan:
        """Return the plan without who is where, which may be published."""
        return _convert(self, Plan)

    def _position(self, group: int | str) -> int:
        """Return the position of a group that is given by position or name."""
        if isinstance(group, str):
            positions = np.flatnonzero(self.budget_groups.name == group)
            if positions.size != 1:
                names = ", ".join(map(str, self.budget_groups.name[:8]))
                raise InputError(f"group {group!r}: the plan has none; give one of {names}")
            return int(positions[0])
        position = _check.count("group", group, least=0)
        if not position < len(self.budget_groups):
            raise InputError(
                f"group = {group}: the plan has {len(self.budget_groups)}; count from 0"
            )
        return position

    def to_dict(self) -> Json:
        """Return the public numbers with their measures; of a bound plan not who is where."""
        return serial.describe_plan(self, self.measures)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON; every number survives the round trip exactly.

        Args:
            indent: As for `json.dumps`.
        """
        # No number of a plan is NaN or infinite, and neither would be JSON.
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    @classmethod
    def from_dict(cls, data: object) -> Plan:
        """Return the plan that `to_dict` described, without its records; see `bind`.

        Nothing that follows from the parameters is believed: totals and quotients must agree with
        them, each group's ε is recomputed, and with bounds on the excess all measures are.

        Args:
            data: JSON types.

        Raises:
            InputError: Where `data` is no plan, or says of it what is not so.
            VerificationError: Where it breaks a promise without saying so in `objections`.
        """
        arguments, claims = serial.read_plan(data)
        plan = cls(**arguments)
        # Measures are handed over uncomputed: they cost a curve a group, and mostly none is needed.
        claims.require(plan, lambda: plan.epsilon_spent, lambda: plan.measures)
        return plan

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan in a JSON text, as `from_dict` does.

        Args:
            text: What can be read in two ways, such as a key twice, is refused.

        Raises:
            InputError: As for `from_dict`, and for text that is not JSON.
            VerificationError: As for `from_dict`.
        """
        return cls.from_dict(_json.loads(text, "plan"))

    def hash(self) -> str:
        """Return a SHA-256 of the parameters and budgets, which a checkpoint carries."""
        # Sorted, so that the hash does not depend on the order of fields.
        text = json.dumps(serial.describe_parameters(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BoundPlan(Plan):
    """A plan with who is where: what the engine runs.

    Who is where is data about people: `to_json`, `hash` and repr leave it out.

    Attributes:
        group_index: The plan's group of each record; the other attributes are those of `Plan`.
        consents: Each record's id and what it allows, in the same order.

    Raises:
        InputError: For parts that do not fit one another, and a record in a group whose ε, δ or Δ̄
            is above what the record allows.

    Guarantee:
        `verify` and `require` compare with each record's own (ε, δ, Δ̄), which nothing loosens.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.public().bind(asked).group_index[[0, 99]].tolist()
        [0, 1]
    """

    group_index: Integers
    consents: Consents

    def __post_init__(self) -> None:
        super().__post_init__()
        # Read-only: who is where must not change under a plan that was verified.
        index = freeze_array("group_index", self.group_index, np.int64, (len(self.consents),))
        object.__setattr__(self, "group_index", index)
        size = len(self.budget_groups)
        if index.size and not 0 <= index.min() <= index.max() < size:
            raise InputError(f"group_index: must be in [0, {size})")
        # Released counts are noisy: only exact ones must be those of the records.
        counts = np.bincount(index, minlength=size)
        if self.counts == "exact" and not (counts == self.budget_groups.records).all():
            raise InputError("group_index: its counts are not those of plan.budget_groups.records")
        # No record may spend more than it allows: its consent is at least its group's budget.
        groups = self.budget_groups
        excess = np.ones(size) if groups.excess is None else groups.excess
        budgets = {"epsilon": groups.epsilon, "delta": groups.delta, "excess": excess}
        for name, budget in budgets.items():
            if not (budget[index] <= getattr(self.consents, name)).all():
                raise InputError(
                    f"consents: a record is in a group whose {name} is above what the record "
                    "allows; bind the plan to the budgets that it was made from"
                )

    @property
    def ids(self) -> AnyArray:
        """Each record's id, in the order of `group_index`."""
        return self.consents.ids

    @classmethod
    def of(cls, plan: Plan) -> BoundPlan:
        """Return `plan`, which must be bound.

        Args:
            plan: Any plan.

        Raises:
            InputError: Where it is not bound; it says how to bind it.
        """
        if isinstance(plan, BoundPlan):
            return plan
        raise InputError(
            "plan: it does not know which record is in which group; use plan.bind(budgets)"
        )


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def _convert(plan: Plan, kind: type[AnyPlan], **records: Any) -> AnyPlan:
    """Return a plan of another kind with the same numbers, and with what is cached of them."""
    # Of `Plan` alone: a bound plan's records are left behind, or given anew.
    numbers = {field.name: getattr(plan, field.name) for field in fields(Plan)}
    return _copy_cached(plan, kind(**numbers, **records), "groups", "epsilon_spent", "measures")


def _copy_cached(source: Plan, target: AnyPlan, *names: str) -> AnyPlan:
    """Copy those cached properties that were already computed; return the target."""
    # Only what was computed already: a copy is no reason to compute the rest.
    for name in names:
        if name in source.__dict__:
            target.__dict__[name] = source.__dict__[name]
    return target


def _format_cells(group: Group, spent: float) -> list[str]:
    """Return the cells of a group in the order of `_COLUMNS`."""
    spent_text = rounded_up(spent)
    share = spent / group.epsilon
    # The share that is spent is shown where it is low enough to be asked about.
    if share < UNSPENT:
        spent_text += f" ({per_cent(share)})"
    parameters = ["by stage"] * 3
    if len(group.stages) == 1:
        (stage,) = group.stages
        numbers = (stage.sampling_probability, stage.clip_norm, stage.noise_multiplier)
        parameters = [f"{number:.4g}" for number in numbers]
    return [
        group.name,
        f"{group.records:,}",
        f"{group.epsilon:g}",
        f"{group.delta:g}",
        spent_text,
        *parameters,
    ]
