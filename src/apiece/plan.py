"""Plan: the one object that the engine runs and the accountant reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.budgets import BudgetGroups, Budgets, Integers
from apiece.errors import InputError
from apiece.mechanisms import Composed, Gaussian, Mechanism, Repeated, Sampled

Floats = npt.NDArray[np.float64]
RELATION = "add_remove"


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """`steps` updates with the same parameters; arrays have one entry a budget group.

    participation: each record's chance of joining the stage at all, by one coin a stage; None
    where every record takes part.
    """

    steps: int
    expected_batch_size: float
    noise_stddev: float
    sampling_probability: Floats
    clip_norm: Floats
    participation: Floats | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """One budget group of a single-stage plan, for reading."""

    name: str
    records: int
    epsilon: float
    delta: float
    excess: float | None
    sampling_probability: float
    clip_norm: float
    noise_multiplier: float
    saturated: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """What will be done to every record, decided before training and frozen.

    budgets: the distinct budgets asked for, in the order of every per-group array.
    stages: run one after the other. saturated: groups whose budget cannot be spent in full.
    group_index, ids: which record is in which group, for the engine; None in a plan read from
    JSON until `bind` is called, because who asked for what is data about people.

    The guarantee of a group is computed from `mechanism_for(group)` and nothing else.
    """

    strategy: str
    clip_norm: float
    budgets: BudgetGroups
    stages: tuple[Stage, ...]
    saturated: npt.NDArray[np.bool_]
    group_index: Integers | None = None
    ids: npt.NDArray[Any] | None = None
    relation: str = RELATION

    @property
    def records(self) -> int:
        """How many records the plan is for."""
        return int(self.budgets.records.sum())

    @property
    def steps(self) -> int:
        """How many updates in total."""
        return sum(stage.steps for stage in self.stages)

    @property
    def _stage(self) -> Stage:
        if len(self.stages) != 1:
            raise InputError(f"plan: it has {len(self.stages)} stages; read plan.stages[i]")
        return self.stages[0]

    @property
    def expected_batch_size(self) -> float:
        """Sum of all sampling probabilities; for a plan of one stage."""
        return self._stage.expected_batch_size

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise on the sum; for a plan of one stage."""
        return self._stage.noise_stddev

    @property
    def groups(self) -> Iterator[Group]:
        """The groups of a plan of one stage, one by one."""
        stage, budgets = self._stage, self.budgets
        for g in range(len(budgets)):
            yield Group(
                name=str(budgets.name[g]),
                records=int(budgets.records[g]),
                epsilon=float(budgets.epsilon[g]),
                delta=float(budgets.delta[g]),
                excess=None if budgets.excess is None else float(budgets.excess[g]),
                sampling_probability=float(stage.sampling_probability[g]),
                clip_norm=float(stage.clip_norm[g]),
                noise_multiplier=stage.noise_stddev / float(stage.clip_norm[g]),
                saturated=bool(self.saturated[g]),
            )

    def mechanism_for(self, group: int | str) -> Mechanism:
        """Return what is done to a record of `group` (a position or a name)."""
        g = self._position(group)
        return Composed(*(m for stage in self.stages if (m := _stage_mechanism(stage, g))))

    def curve(self, group: int | str, *, method: str = "pld") -> PrivacyCurve:
        """Return the privacy curve of a record of `group`."""
        return privacy_curve(self.mechanism_for(group), method=method)

    def bind(self, budgets: Budgets) -> Plan:
        """Return this plan with the records of `budgets`, which must have the same groups."""
        asked, own = budgets.groups, self.budgets
        same = (
            len(asked) == len(own)
            and np.array_equal(asked.epsilon, own.epsilon)
            and np.array_equal(asked.delta, own.delta)
            and np.array_equal(asked.records, own.records)
        )
        if not same:
            raise InputError(
                f"budgets: {len(budgets)} records in {len(asked)} groups do not fit the plan's "
                f"{self.records} in {len(own)}; make the plan from these budgets"
            )
        return replace(self, group_index=budgets.group_index, ids=budgets.ids)

    def _position(self, group: int | str) -> int:
        if isinstance(group, str):
            found = np.flatnonzero(self.budgets.name == group)
            if found.size != 1:
                raise InputError(f"group {group!r}: {found.size} such groups in the plan")
            return int(found[0])
        position = _check.count("group", group, least=0)
        if not position < len(self.budgets):
            raise InputError(f"group = {group}: the plan has {len(self.budgets)} groups")
        return position

    def to_dict(self) -> dict[str, Any]:
        """Return the public part of the plan: everything but who is in which group."""
        single = len(self.stages) == 1
        groups = [
            {
                "name": g.name,
                "records": g.records,
                "epsilon": g.epsilon,
                "delta": g.delta,
                "sampling_probability": g.sampling_probability,
                "clip_norm": g.clip_norm,
                "noise_multiplier": g.noise_multiplier,
                "saturated": g.saturated,
            }
            for g in (self.groups if single else ())
        ]
        return {
            "strategy": self.strategy,
            "relation": self.relation,
            "steps": self.steps,
            "expected_batch_size": self.expected_batch_size,
            "noise_stddev": self.noise_stddev,
            "clip_norm": self.clip_norm,
            "groups": groups,
        }

    def hash(self) -> str:
        """Return a SHA-256 of the public part, which a checkpoint carries."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _stage_mechanism(stage: Stage, g: int) -> Mechanism | None:
    q, clip = float(stage.sampling_probability[g]), float(stage.clip_norm[g])
    if q == 0:
        return None
    step: Mechanism = Sampled(Gaussian(stage.noise_stddev / clip), q)
    if q == 1:
        step = Gaussian(stage.noise_stddev / clip)
    run = Repeated(step, stage.steps)
    joins = 1.0 if stage.participation is None else float(stage.participation[g])
    return run if joins == 1 else Sampled(run, joins)
