"""Requests: budgets and the settings of a training, and the strategies that plan for them."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.accounting.choose import require_batch
from apiece.budgets import BudgetGroups, BudgetLevels, Budgets
from apiece.correlation.strategies import NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import Reference, Stage

# By how much of log ε a broken promise is at least aimed lower, the first time.
BACK = 1e-3
# How the noise of a training's steps goes together: independent, with batches drawn by chance;
# correlated, with fixed batches; or cyclic, with parts that take turns and coins in each.
NOISES = ("independent", "correlated", "cyclic")
# The relative difference up to which a batch size is the one asked.
BATCH_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Correlated:
    """Correlated noise in place of sampling: each record takes part in fixed steps.

    Args:
        separation: The least number of steps between two of one record; None for a pass, as with
            batches in an order that is the same in every pass.
        bands: Of the strategy that is searched for; None for as many as the separation. Noise
            remembers a copy of the model for each but one.
        buffers: In place of bands: the noise remembers so many copies of the model, however long
            the training is.
        strategy: A strategy matrix in place of the one that is searched for.
        momentum: Of the optimizer, in [0, 1): what the noise is made to disturb least.
        learning_rates: Of each step, up to a common factor; None where they are alike.
        sampled: Whether coins decide as well: records are in `separation` parts, which take turns,
            and join the steps of their part by coins. Without a separation it is searched for,
            from one part, which is independent noise and Poisson sampling, to fixed steps, for the
            least disturbance.

    Raises:
        InputError: For numbers that are out of bounds, and buffers or a strategy with `sampled`.

    References:
        Denisov et al. 2022; Choquette-Choo et al. 2023; Kalinin and Lampert 2024.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.assignment import Correlated
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=40, expected_batch_size=10, clip_norm=1.0,
        ...               noise=Correlated())
        >>> round(plan.mechanism_for(0).noise_multiplier, 3)
        3.732
    """

    separation: int | None = None
    bands: int | None = None
    buffers: int | None = None
    strategy: NoiseStrategy | None = None
    momentum: float = 0.0
    learning_rates: Floats | None = None
    sampled: bool = False

    def __post_init__(self) -> None:
        if self.separation is not None:
            _check.put(self, separation=_check.count)
        if self.bands is not None:
            _check.put(self, bands=_check.count)
        if self.buffers is not None:
            _check.put(self, buffers=_check.count)
        # Any of these fixes the matrix; two of them could contradict each other.
        ways = {"bands": self.bands, "buffers": self.buffers, "strategy": self.strategy}
        chosen = [name for name, value in ways.items() if value is not None]
        if len(chosen) > 1:
            raise InputError(f"{chosen[0]}, {chosen[1]}: say one of them; each fixes the noise")
        if self.sampled and not {"buffers", "strategy"}.isdisjoint(chosen):
            raise InputError(
                f"{chosen[0]}: with coins the noise is banded and searched for; leave it out, or "
                "take fixed steps"
            )
        _check.probability("momentum", self.momentum, high_open=True)

    def workload(self, steps: int) -> Workload:
        """Return what the noise of so many steps is made to disturb least.

        Args:
            steps: At least 1.

        Raises:
            InputError: For learning rates of another number of steps.
        """
        return Workload(steps, momentum=self.momentum, learning_rates=self.learning_rates)


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """Budgets, and the settings that every strategy has to keep.

    Attributes:
        budgets: What each record asked for, or how many asked for what.
        steps: How many updates, T, at least 1.
        expected_batch_size: B, above 0, at most the number of records.
        clip_norm: The mean ℓ2 bound c̄ on a record's gradient, above 0.
        method: The accounting to calibrate with.
        back: How far below its budget each group is aimed at, in log ε (see `lower`).
        noise: How the noise is correlated; None for sampling and independent noise.

    Raises:
        InputError: For values outside their bounds; an unknown method.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment.request import Request
        >>> Request(Budgets([1.0] * 50, 1e-5), 10, 5, 1.0).mean_probability
        0.1
    """

    budgets: Budgets | BudgetLevels
    steps: int
    expected_batch_size: float
    clip_norm: float
    method: str = "pld"
    back: Floats | float = 0.0
    noise: Correlated | None = None

    def __post_init__(self) -> None:
        _check.put(self, steps=_check.count, expected_batch_size=_check.positive)
        _check.put(self, clip_norm=_check.positive)
        require_batch(self.method)
        if not self.expected_batch_size <= self.records:
            raise InputError(
                f"expected_batch_size = {self.expected_batch_size:g}: there are {self.records} "
                f"records; give at most {self.records}"
            )

    @property
    def groups(self) -> BudgetGroups:
        """The distinct budgets."""
        return self.budgets.groups

    @property
    def records(self) -> int:
        """How many records there are."""
        return len(self.budgets)

    @property
    def share(self) -> Floats:
        """Each group's share of the records."""
        return np.asarray(self.groups.records / self.records)

    @property
    def target(self) -> Floats:
        """The ε that each group is aimed at: what it asked, or less where that went wrong."""
        return np.asarray(self.groups.epsilon * np.exp(-np.asarray(self.back)))

    @property
    def mean_probability(self) -> float:
        """The sampling probability if all records had the same: q̄ = B/n."""
        return self.expected_batch_size / self.records

    @property
    def reference(self) -> Reference:
        """The uniform mechanism that was asked for, whatever the plan arrives at."""
        return Reference(self.mean_probability, self.steps)

    def lower(self, spent: Floats, times: int) -> Self:
        """Return this request with the groups aimed lower that spent more than they asked.

        Args:
            spent: Each group's ε in the plan that failed.
            times: How many plans failed before.
        """
        # By twice what they were above, and by at least `BACK`; doubled each time, as ε may jump.
        asked = self.groups.epsilon
        # A factor beyond e counts as e, so that an ε without bound does not lower the aim to 0.
        overspending = np.minimum(np.log(np.maximum(spent / asked, 1.0)), 1.0)
        retreat = (2 * overspending + BACK) * 2**times
        return replace(self, back=self.back + np.where(spent > asked, retreat, 0.0))

    def one_stage(
        self,
        strategy: str,
        noise_stddev: float,
        sampling_probability: npt.ArrayLike,
        clip_norm: npt.ArrayLike | None = None,
        *,
        objections: tuple[str, ...] = (),
    ) -> Plan:
        """Return the plan of one stage with these parameters.

        Args:
            strategy: Its name.
            noise_stddev: Of the noise on the sum.
            sampling_probability: Each group's, or one for all.
            clip_norm: Likewise; None for the mean one.
            objections: Why the plan is not for release.

        Raises:
            InputError: For arrays of another length, and values out of bounds.
        """
        size = len(self.groups)
        q = _broadcast("sampling_probability", sampling_probability, size)
        batch = float(q @ self.groups.records)
        if not batch > 0:
            raise InputError("sampling_probability: 0 in every group; give some a chance above 0")
        # A batch that differs by rounding alone is the one that was asked.
        asked = self.expected_batch_size
        if abs(batch - asked) <= BATCH_TOLERANCE * asked:
            batch = asked
        clip_norms = _broadcast(
            "clip_norm", self.clip_norm if clip_norm is None else clip_norm, size
        )
        stage = Stage(self.steps, batch, noise_stddev, q, clip_norms)
        return self.plan(strategy, (stage,), objections=objections)

    def plan(
        self,
        strategy: str,
        stages: tuple[Stage, ...],
        *,
        objections: tuple[str, ...] = (),
        combine: str = "continue",
    ) -> Plan:
        """Return the plan with these stages; `assign` binds it to the records.

        Args:
            strategy: Its name.
            stages: In the order of training.
            objections: Why the plan is not for release.
            combine: "continue" trains one model through all stages, "average" a model a stage.
        """
        return Plan(
            strategy=strategy,
            clip_norm=self.clip_norm,
            budget_groups=self.groups,
            stages=stages,
            method=self.method,
            objections=objections,
            combine=combine,
            reference=self.reference,
        )


def _broadcast(name: str, values: npt.ArrayLike, groups: int) -> Floats:
    """Return one number a group; a single one is each group's."""
    numbers = np.asarray(values, np.float64)
    if numbers.shape not in ((), (groups,)):
        raise InputError(
            f"{name}: shape {numbers.shape}; give one number a budget group, of which there are "
            f"{groups}, or a single one"
        )
    if not np.isfinite(numbers).all():
        raise InputError(f"{name}: NaN or infinite for a group; give finite numbers")
    return np.array(np.broadcast_to(numbers, groups))


class Strategy(Protocol):
    """A way to turn a request into a plan; a frozen value that holds the strategy's options."""

    __slots__ = ()
    name: ClassVar[str]

    def plan(self, request: Request) -> Plan:
        """Return the plan; `assign` binds it to the records and verifies it.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            BudgetError: For budgets without what the strategy goes by.
            InfeasibleError: Where no plan meets the request.
            UnsupportedError: For more groups than the strategy can plan for, and for levels where
                it needs every record.
        """
        ...
