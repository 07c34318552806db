"""Plan: what will be done to the records of each group; BoundPlan: also which records these are.

A `Plan` holds public numbers alone, one entry a group: it may be published. A `BoundPlan` holds
beside them who is where, which is data about people: the engine runs it, no file contains it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from apiece import _check, _json
from apiece._types import Floats, Integers
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.budgets import BudgetGroups, BudgetHistogram, Budgets
from apiece.errors import InputError, unknown
from apiece.mechanisms import Mechanism
from apiece.plan import serial
from apiece.plan.group import Group, groups_of
from apiece.plan.numbers import mechanism_of, own_reference, require_fit, steps_of
from apiece.plan.reference import Reference
from apiece.plan.schedule import Schedule
from apiece.plan.stage import Stage
from apiece.plan.verification import (
    Measures,
    Verification,
    measure,
    require_bounds,
    spending,
    strictest,
    verify,
)

RELATION = "add_remove"
COMBINE = ("continue", "average")
COUNTS = ("exact", "released")


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What will be done to every record, decided before training and frozen.

    Public numbers alone: nothing in it says who is where. Of the same budgets it is the same,
    whoever asked for which. `bind` gives the engine's `BoundPlan`.

    strategy: the name of what made it. clip_norm: the mean clip norm asked for. budget_groups:
    the distinct budgets asked for, in the order of every per-group array. stages: run one after
    the other. saturated: groups that spend less than they allow because their own rate is
    1 or their noise multiplier the least there is (0.05).
    method: the accounting that the parameters were calibrated with, and that states the plan's
    guarantees. combine: "continue" trains one model through all stages, "average" trains one a
    stage, from scratch, and averages their outputs by the stages' weights.
    objections: why the plan must not be used for a release; empty for a plan that keeps every
    promise. worst_paths: for plans whose coins are revealed, which stages a record of each group
    may take part in on its worst path (groups × stages); None otherwise.
    counts: "exact" where budget_groups.records are the true sizes of groups, "released" where they
    come from a private histogram; then a bound plan's records are those that `bind_released` found.
    notes: for people, such as what other plans would have cost.
    learning_rate: a factor on the optimizer's learning rate at each step, counted from the first
    step of the model (of each stage, for "average"); None leaves it alone. It costs no privacy.
    reference: the uniform mechanism that the excess is measured against, by the batch size,
    records and steps that were requested; of a plan made by hand, if not given, by its own.

    The guarantee of a group is computed from `mechanism_for(group)` and nothing else. Arrays are
    read-only. Raises `InputError` for parts that do not fit one another.
    """

    strategy: str
    clip_norm: float
    budget_groups: BudgetGroups
    stages: tuple[Stage, ...]
    saturated: npt.NDArray[np.bool_]
    relation: str = RELATION
    method: str = "pld"
    combine: str = "continue"
    objections: tuple[str, ...] = ()
    worst_paths: npt.NDArray[np.bool_] | None = None
    counts: str = "exact"
    notes: tuple[str, ...] = ()
    learning_rate: Schedule | None = None
    reference: Reference | None = None

    def __post_init__(self) -> None:
        if self.relation != RELATION:
            raise unknown("relation", self.relation, [RELATION])
        if self.counts not in COUNTS:
            raise unknown("counts", self.counts, COUNTS)
        if self.combine not in COMBINE:
            raise unknown("combine", self.combine, COMBINE)
        put = object.__setattr__
        put(self, "stages", tuple(self.stages))
        put(self, "objections", tuple(map(str, self.objections)))
        put(self, "notes", tuple(map(str, self.notes)))
        put(self, "clip_norm", _check.positive("clip_norm", self.clip_norm))
        size = (len(self.budget_groups),)
        put(self, "saturated", _frozen("saturated", self.saturated, bool, size))
        if self.worst_paths is not None:
            shape = (*size, len(self.stages))
            put(self, "worst_paths", _frozen("worst_paths", self.worst_paths, bool, shape))
        require_fit(self)
        if self.reference is None:
            put(self, "reference", own_reference(self))

    def __repr__(self) -> str:
        """Return what is public and short: nothing of who is where."""
        many = f"{self.records} records in {len(self.budget_groups)} groups"
        return f"{type(self).__name__}({self.strategy}, {many}, {self.steps} steps)"

    @property
    def records(self) -> int:
        """How many records the plan is for."""
        return int(self.budget_groups.records.sum())

    @property
    def steps(self) -> int:
        """How many updates in total."""
        return steps_of(self)

    @property
    def releasable(self) -> bool:
        """Whether the plan has no objections: each group's (ε, δ) is kept. `require` checks Δ̄."""
        return not self.objections

    @property
    def _stage(self) -> Stage:
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
        return groups_of(self)

    def mechanism_for(self, group: int | str) -> Mechanism:
        """Return what is done to a record of `group` (a position or a name), all stages together.

        With revealed coins this is the record's worst path, on which no coin hides anything.
        """
        return mechanism_of(self, self._position(group))

    def curve(self, group: int | str, *, method: str | None = None) -> PrivacyCurve:
        """Return the privacy curve of a record of `group`, by `method` or else the plan's own."""
        return privacy_curve(self.mechanism_for(group), method=method or self.method)

    @cached_property
    def epsilon_spent(self) -> Floats:
        """An upper bound on each group's ε at its δ, from the plan's own numbers; computed once."""
        return spending(self, self.method)

    @cached_property
    def measures(self) -> Measures:
        """What each group spends and risks, from the plan's own numbers; computed once."""
        return measure(self, self.epsilon_spent)

    def verify(self, budgets: Budgets | None = None, *, method: str | None = None) -> Verification:
        """Return, for each group, the ε recomputed from the plan alone beside what was asked.

        budgets: what to hold the plan against, joined by record id to a bound plan; the groups
        that the plan was made for if not given. A plan may use less than a record allows, never
        more. Raises `InputError` where records are missing; never for a broken promise: read
        `.ok`, `.kept`, or call `.require()`.
        """
        own = method in (None, self.method)
        spent = self.epsilon_spent if own else spending(self, str(method))
        if budgets is None:
            return verify(self.budget_groups, spent, None)
        bound = self if isinstance(self, BoundPlan) else self.bind(budgets)
        asked = strictest(len(self.budget_groups), bound.group_index, bound.ids, budgets)
        return verify(self.budget_groups, spent, asked)

    def require(self) -> None:
        """Raise unless this plan may make a release: nothing is believed, all is recomputed.

        `InputError` where it has objections, `VerificationError` where a group's ε, or forward Δ
        (more vulnerable than its bound allows), is not kept by the plan's own numbers.
        """
        if self.objections:
            raise InputError(
                f"plan: not fit for a release ({self.objections[0]}); use another strategy, or "
                "give a seed to run it as an experiment"
            )
        self.verify().require()
        bounds = self.budget_groups.excess
        if bounds is not None and (bounds < 1).any():
            require_bounds(self, self.measures)

    def bind(self, budgets: Budgets) -> BoundPlan:
        """Return this plan with the records of `budgets`, which must have the same groups.

        Raises `InputError` where the groups differ.
        """
        asked, own = budgets.groups, self.budget_groups
        if not own.same_as(asked):
            raise InputError(
                f"budgets: {len(budgets)} records in {len(asked)} groups do not fit the plan's "
                f"{self.records} in {len(own)}; make the plan from these budgets"
            )
        return _changed(self, BoundPlan, group_index=budgets.group_index, ids=budgets.ids)

    def bind_released(self, histogram: BudgetHistogram, budgets: Budgets) -> BoundPlan:
        """Return this plan, made from `histogram.budgets()`, with the real records that fit it.

        Each record goes to the largest group that does not exceed its own budget; one that is
        below all groups is left out: the bound plan's ids are those of the others. Rates, noise and
        the batch normaliser stay as released. Raises `InputError` where the plan was not made
        from this histogram.
        """
        own, released = self.budget_groups, histogram.budgets().groups
        if not own.same_as(released):
            raise InputError(
                "histogram: the plan was not made from it; assign(histogram.budgets())"
            )
        index = histogram.place(budgets)
        taken = index >= 0
        released_plan = replace(self, counts="released")
        return _changed(released_plan, BoundPlan, group_index=index[taken], ids=budgets.ids[taken])

    def public(self) -> Plan:
        """Return the plan without who is where, which may be published."""
        return _changed(self, Plan)

    def _position(self, group: int | str) -> int:
        if isinstance(group, str):
            found = np.flatnonzero(self.budget_groups.name == group)
            if found.size != 1:
                raise InputError(f"group {group!r}: {found.size} such groups in the plan")
            return int(found[0])
        position = _check.count("group", group, least=0)
        if not position < len(self.budget_groups):
            raise InputError(f"group = {group}: the plan has {len(self.budget_groups)} groups")
        return position

    def to_dict(self) -> dict[str, Any]:
        """Return the public numbers with their measures; of a bound plan not who is where."""
        return serial.with_measures(self, self.measures)

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON; every number survives the round trip exactly."""
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Return the plan that `to_dict` described, without its records; see `bind`.

        Nothing that follows from the parameters is believed: totals and quotients must agree with
        them, each group's ε is recomputed, and with bounds on the excess all measures are. Raises
        `InputError` where `data` is no plan, or says of it what is not so, `VerificationError`
        where it breaks a promise without saying so in `objections`.
        """
        arguments, claims = serial.read(data)
        plan = cls(**arguments)
        claims.require(plan)
        return plan

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan in a JSON `text`, as `from_dict` does; of two readings, none."""
        return cls.from_dict(_json.loads(text, "plan"))

    def hash(self) -> str:
        """Return a SHA-256 of the parameters and budgets, which a checkpoint carries."""
        text = json.dumps(serial.parameters(self), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BoundPlan(Plan):
    """A plan with who is where: what the engine runs.

    group_index: the plan's group of each record; ids: each record's id, in the same order. Both are
    data about people: `to_json`, `hash` and repr leave them out, and `public()` returns the plan
    without them. Raises `InputError` for parts that do not fit one another.
    """

    group_index: Integers
    ids: npt.NDArray[Any]

    def __post_init__(self) -> None:
        super().__post_init__()
        exact = self.counts == "exact"
        size = (self.records if exact else np.size(self.ids),)
        index = _frozen("group_index", self.group_index, np.int64, size)
        object.__setattr__(self, "group_index", index)
        object.__setattr__(self, "ids", _frozen("ids", self.ids, None, size))
        if index.size and not 0 <= index.min() <= index.max() < len(self.budget_groups):
            raise InputError(f"group_index: must be in [0, {len(self.budget_groups)})")
        found = np.bincount(index, minlength=len(self.budget_groups))
        if exact and not (found == self.budget_groups.records).all():
            raise InputError("group_index: its counts are not those of plan.budget_groups.records")

    @classmethod
    def of(cls, plan: Plan) -> BoundPlan:
        """Return `plan`, if it is bound; raise `InputError`, which says how to bind it, if not."""
        if isinstance(plan, BoundPlan):
            return plan
        raise InputError(
            "plan: it does not know which record is in which group; use plan.bind(budgets)"
        )


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def _changed(plan: Plan, kind: type[AnyPlan], **records: Any) -> AnyPlan:
    """Return the same numbers as another kind of plan; what they were found to spend goes along."""
    made = kind(**{field.name: getattr(plan, field.name) for field in fields(Plan)}, **records)
    for name in ("groups", "epsilon_spent", "measures"):
        if name in plan.__dict__:
            made.__dict__[name] = plan.__dict__[name]
    return made


def _frozen(name: str, values: Any, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    array = np.asarray(values, dtype=dtype)
    if array.shape != shape:
        raise InputError(f"{name}: shape {array.shape}, must be {shape} to fit the plan")
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array
