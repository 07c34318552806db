"""Group: what one budget group asked, and what is done to it in each stage, for reading."""

from __future__ import annotations

from dataclasses import dataclass

from apiece.errors import InputError
from apiece.plan.numbers import Numbers


@dataclass(frozen=True, slots=True)
class GroupStage:
    """What one stage does to the records of a group.

    Attributes:
        steps: How many updates.
        sampling_probability: A record's chance of joining a step.
        clip_norm: The bound on its ℓ2 gradient norm.
        noise_multiplier: The noise over that bound.
        participation: Its chance of joining the stage at all, 1 where every record takes part.

    Example:
        >>> GroupStage(10, 0.1, 1.0, 2.0, 1.0).noise_multiplier
        2.0
    """

    steps: int
    sampling_probability: float
    clip_norm: float
    noise_multiplier: float
    participation: float


@dataclass(frozen=True, slots=True)
class Group:
    """One budget group of a plan: how many records, what they asked, what is done to them.

    `sampling_probability`, `clip_norm` and `noise_multiplier` are those of all stages, where these
    agree, as in a plan of one stage; where they do not, reading one raises `InputError`.

    Attributes:
        name: As in the budgets.
        records: How many.
        epsilon: As asked.
        delta: As asked.
        excess: The bound Δ̄ asked, None where none was.
        stages: In the order of the plan's.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> [(group.epsilon, group.sampling_probability) for group in plan.groups]
        [(1.0, 0.1), (3.0, 0.1)]
    """

    name: str
    records: int
    epsilon: float
    delta: float
    excess: float | None
    stages: tuple[GroupStage, ...]

    @property
    def sampling_probability(self) -> float:
        """The chance of joining a step."""
        return self._common("sampling_probability")

    @property
    def clip_norm(self) -> float:
        """The bound on a record's gradient norm."""
        return self._common("clip_norm")

    @property
    def noise_multiplier(self) -> float:
        """The noise over the clip norm."""
        return self._common("noise_multiplier")

    def _common(self, name: str) -> float:
        values = [float(getattr(stage, name)) for stage in self.stages]
        if any(value != values[0] for value in values):
            raise InputError(
                f"group {self.name}: {name} differs between its stages; read group.stages[i].{name}"
            )
        return values[0]


def groups_of(plan: Numbers) -> tuple[Group, ...]:
    """Return the groups of `plan`, in the order of every per-group array."""
    budgets = plan.budget_groups
    return tuple(
        Group(
            name=str(budgets.name[g]),
            records=int(budgets.records[g]),
            epsilon=float(budgets.epsilon[g]),
            delta=float(budgets.delta[g]),
            excess=None if budgets.excess is None else float(budgets.excess[g]),
            stages=tuple(
                GroupStage(
                    steps=stage.steps,
                    sampling_probability=float(stage.sampling_probability[g]),
                    clip_norm=float(stage.clip_norm[g]),
                    noise_multiplier=stage.noise_stddev / float(stage.clip_norm[g]),
                    participation=(
                        1.0 if stage.participation is None else float(stage.participation[g])
                    ),
                )
                for stage in plan.stages
            ),
        )
        for g in range(len(budgets))
    )
