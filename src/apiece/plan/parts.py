"""The parts of a plan: stages, a schedule, a reference, groups, and the numbers that hold them."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import AnyArray, Floats, Integers, Mask
from apiece.budgets import BudgetGroups
from apiece.errors import InputError, unknown
from apiece.mechanisms import (
    Allocated,
    Composed,
    Gaussian,
    Mechanism,
    Repeated,
    Runs,
    Sampled,
    Selected,
)
from apiece.mechanisms.allocated import block_sizes
from apiece.plan.correlated import CorrelatedNoise

# The only adjacency that a plan knows: a neighbour lacks one record.
RELATION = "add_remove"
# What becomes of the stages' models: one trained through all, or one a stage and their mean output.
COMBINE = ("continue", "average")
# Whether the sizes of groups are the true ones or those of a private histogram.
COUNTS = ("exact", "released")
# Whose presence is hidden.
UNITS = ("record", "person")
# How a schedule goes from one point to the next.
INTERPOLATIONS = ("hold", "linear", "cosine", "exponential")
# The name of the group of records that a plan adds to those who asked.
PUBLIC = "public"
# The share of its ε below which a group is said to spend less than it asked.
UNSPENT = 0.95
# The distance from 1.0 to the next float64.
ULP = 2.0**-52
# How far times/steps may be from the sampling probability that it is given as.
TIMES_TOLERANCE = 1e-12
# How far a batch size may be from the sum of its sampling probabilities, relative to itself.
BATCH_TOLERANCE = 1e-6


def sampled_steps(noise_multiplier: float, probability: float, steps: int) -> Repeated:
    """Return steps with Gaussian noise that a record joins with `probability`, each by itself."""
    # Rate 1 is no coin: the mechanism is then a plain Gaussian, whose profile is exact.
    step = Gaussian(noise_multiplier)
    return Repeated(step if probability == 1 else Sampled(step, probability), steps)


def allocated_steps(noise_multiplier: float, times: int, steps: int) -> Mechanism:
    """Return steps with Gaussian noise, of which a record joins one in each of `times` blocks."""
    blocks = [
        Repeated(Allocated(noise_multiplier, size), count)
        for size, count in block_sizes(times, steps)
    ]
    return blocks[0] if len(blocks) == 1 else Composed(*blocks)


@dataclass(frozen=True, slots=True)
class Reference:
    """The uniform mechanism that `excess` is measured against: its rate and number of steps.

    Its noise is the one that spends a record's own (ε, δ). Nothing in it moves with what others
    ask: not the batch size that a plan arrives at, not the records that it leaves out or adds.

    Attributes:
        sampling_probability: In (0, 1]: the batch size that was *requested* over the number of
            records that it was requested for.
        steps: As requested.

    Raises:
        InputError: For values out of bounds.

    References:
        Kaiser et al. 2026, Def. 8.

    Example:
        >>> from apiece.plan.parts import Reference
        >>> Reference(1.0, 5).mechanism(2.0)
        Repeated(mechanism=Gaussian(noise_multiplier=2.0), times=5)
    """

    sampling_probability: float
    steps: int

    def __post_init__(self) -> None:
        rate = partial(_check.probability, low_open=True)
        _check.put(self, sampling_probability=rate, steps=_check.count)

    def mechanism(self, noise_multiplier: float) -> Mechanism:
        """Return the uniform mechanism with this noise.

        Args:
            noise_multiplier: Above 0.
        """
        return sampled_steps(noise_multiplier, self.sampling_probability, self.steps)


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """`steps` updates with the same parameters; arrays have one entry a budget group.

    The arrays are read-only copies.

    Attributes:
        steps: The number of updates, at least 1.
        expected_batch_size: What a summed gradient is divided by: the sum of all records' chances
            to be in a batch.
        noise_stddev: The standard deviation of the noise on the sum of clipped gradients.
        sampling_probability: A record's chance of joining a step, in [0, 1]; a group with 0 takes
            no part.
        clip_norm: The bound on a record's ℓ2 gradient norm.
        participation: Each record's chance of joining the stage at all, by one secret coin a stage;
            None where every record takes part.
        weight: This stage's model's weight, where outputs of the stages' models are averaged.
        times: k, where each record takes part in exactly k of the steps: one in each of k equal
            blocks, drawn uniformly, or, with `correlated` noise, k fixed ones.
            `sampling_probability` is then times/steps. None where a coin decides in each step.
        correlated: How the noise of the steps is correlated; None where it is independent.

    Raises:
        InputError: For values out of bounds and for arrays of different lengths.

    Example:
        >>> from apiece.plan.parts import Stage
        >>> stage = Stage(10, 10.0, 2.0, [0.1, 0.1], [0.7, 1.3])
        >>> round(stage.mechanism(0).mechanism.mechanism.noise_multiplier, 2)
        2.86
    """

    steps: int
    expected_batch_size: float
    noise_stddev: float
    sampling_probability: Floats = field(repr=False)
    clip_norm: Floats = field(repr=False)
    participation: Floats | None = field(default=None, repr=False)
    weight: float = 1.0
    times: Integers | None = field(default=None, repr=False)
    correlated: CorrelatedNoise | None = None

    def __post_init__(self) -> None:
        _check.put(
            self,
            steps=_check.count,
            expected_batch_size=_check.positive,
            noise_stddev=_check.positive,
            weight=_check.positive,
            clip_norm=_check.positive_array,
        )
        # After the clip norms, whose length the chances are compared with.
        _check.put(self, sampling_probability=self._check_chances)
        if self.participation is not None:
            _check.put(self, participation=self._check_chances)
        # Fixed numbers of steps, coins of turns and correlated noise exclude or need one another.
        if self.times is not None:
            self._check_times(np.asarray(self.times))
        if self.correlated is not None and self.correlated.sampled:
            if self.times is not None or self.participation is not None:
                raise InputError(
                    "correlated: coins decide who joins its parts' steps; give neither times nor "
                    "participation"
                )
            self.correlated.check_chances(self.sampling_probability)
        elif self.correlated is not None:
            if self.times is None:
                raise InputError(
                    "correlated: without times; say how many steps a group takes part in"
                )
            self.correlated.check_times(self.steps, int(self.times.max()))

    def _check_times(self, times: AnyArray) -> None:
        """Raise unless `times` are whole numbers that agree with the sampling probabilities."""
        shape = self.clip_norm.shape
        # Whole by type: times are counted, not measured.
        integral = times.shape == shape and times.dtype.kind in "iu"
        allowed = integral and self.participation is None
        if not (allowed and ((times >= 0) & (times <= self.steps)).all()):
            raise InputError(
                f"times = {times.tolist()!r}: must be a whole number of steps a group, at most "
                f"{self.steps}, in a stage without participation"
            )
        differences = np.abs(times / self.steps - self.sampling_probability)
        if not (differences <= TIMES_TOLERANCE).all():
            raise InputError("times: over the steps they must be the sampling probabilities")
        object.__setattr__(self, "times", freeze_array("times", times, np.int64, shape))

    def _check_chances(self, name: str, values: object) -> Floats:
        """Return `values` as probabilities, one a budget group; raise for another shape."""
        array = _check.probability_array(name, values)
        if array.shape != self.clip_norm.shape or array.ndim != 1 or array.size == 0:
            raise InputError(
                f"{name}: shape {array.shape}, clip_norm has {self.clip_norm.shape}; give one "
                "entry a budget group to both"
            )
        return array

    def mechanism(self, group: int, steps: int | None = None) -> Mechanism | None:
        """Return the mechanism that a record of `group` meets; None where it takes no part.

        Args:
            group: A position.
            steps: How many of its steps, from the first on; None for all. A block of allocated
                steps that has begun counts in full.
        """
        part = self.of(group)
        if part.sampling_probability == 0 or part.participation == 0:
            return None
        if steps is None:
            steps = self.steps
        if self.correlated is not None and self.correlated.sampled:
            # A record joins only its own part's steps: one coin and one Gaussian a turn.
            multipliers, rates = self.of_turns()
            turns = self.correlated.turns(steps)
            return sampled_steps(float(multipliers[group]), float(rates[group]), turns)
        if self.correlated is not None:
            assert self.times is not None  # checked when it was made
            moved = self.correlated.sensitivity(steps=steps, times=int(self.times[group]))
            # Rounded down: the sensitivity is rounded up, and the division to the nearest.
            return Gaussian(part.noise_multiplier / moved * (1 - 2 * ULP))
        if self.times is not None:
            times = int(self.times[group])
            # Rounded up: the record may have been drawn in any step of a block that has begun.
            blocks = -(-steps * times // self.steps)
            # Of the first `steps` the blocks that have begun, each at its full length.
            return allocated_steps(part.noise_multiplier, blocks, blocks * self.steps // times)
        run = sampled_steps(part.noise_multiplier, part.sampling_probability, steps)
        return run if part.participation == 1 else Sampled(run, part.participation)

    def of(self, group: int) -> GroupStage:
        """Return the stage's parameters for the records of `group`.

        Args:
            group: A position.
        """
        clip_norm = float(self.clip_norm[group])
        participation = 1.0 if self.participation is None else float(self.participation[group])
        return GroupStage(
            steps=self.steps,
            sampling_probability=float(self.sampling_probability[group]),
            clip_norm=clip_norm,
            noise_multiplier=self.noise_stddev / clip_norm,
            participation=participation,
        )

    @property
    def has_fixed_steps(self) -> bool:
        """Whether each record's steps are fixed beforehand, and none is drawn by chance."""
        return self.correlated is not None and not self.correlated.sampled

    def of_turns(self) -> tuple[Floats, Floats]:
        """Return what each group meets once a turn of its part: noise multiplier and chance.

        For noise that is correlated and parts whose records join by coins; rounded towards privacy.
        """
        assert self.correlated is not None
        moved = self.correlated.sensitivity(steps=self.steps, times=1)
        # Rounded down: the sensitivity is rounded up, and the two quotients to the nearest.
        multipliers = self.noise_stddev / self.clip_norm / moved * (1 - 3 * ULP)
        return multipliers, self.correlated.rates(self.sampling_probability)

    def chances(self) -> Floats:
        """Return each group's chance that a record of it is in a given batch."""
        participation = 1.0 if self.participation is None else self.participation
        return np.asarray(self.sampling_probability * participation)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A factor for every step: fixed points, and a way to go from each to the next.

    Before the first and after the last point the factor stays. It depends on the number of the step
    and on nothing else.

    Attributes:
        points: (step, factor) pairs, steps rising from 0 or later, factors at least 0 and finite.
        between: "hold" keeps each point's factor up to the next, "linear" and "cosine" (half a
            wave) go over to it, "exponential" does so by a constant ratio.

    Raises:
        InputError: For no points, steps that do not rise and factors out of bounds.

    Example:
        >>> from apiece.plan import Schedule
        >>> warm_up_and_down = Schedule(((0, 0.0), (10, 1.0), (110, 0.0)))
        >>> [warm_up_and_down.at(step) for step in (0, 5, 10, 60, 200)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
        >>> Schedule(((0, 1.0), (100, 0.1)), between="hold").at(99)
        1.0
    """

    points: tuple[tuple[int, float], ...]
    between: str = "linear"

    def __post_init__(self) -> None:
        if self.between not in INTERPOLATIONS:
            raise unknown("between", self.between, INTERPOLATIONS)
        try:
            pairs = [(step, factor) for step, factor in self.points]
        except (TypeError, ValueError):
            raise InputError(f"points = {self.points!r}: must be (step, factor) pairs") from None
        points = tuple(
            (_check.count("step", step, least=0), _check.finite("factor", factor))
            for step, factor in pairs
        )
        object.__setattr__(self, "points", points)
        steps = [step for step, _ in points]
        rising = all(step < following for step, following in itertools.pairwise(steps))
        if not steps or not rising:
            raise InputError(f"points: at steps {steps}; give at least one, in rising order")
        for step, factor in points:
            if not factor >= 0 or (self.between == "exponential" and factor == 0):
                raise InputError(
                    f"points: factor {factor!r} at step {step} must be at least 0, and above 0 "
                    "for an exponential schedule"
                )

    def at(self, step: int) -> float:
        """Return the factor of a step.

        Args:
            step: Counted from 0.
        """
        # The first point after the step; before the first and after the last the factor stays.
        following = bisect_right(self.points, step, key=lambda point: point[0])
        if following == 0:
            return self.points[0][1]
        start, start_factor = self.points[following - 1]
        if self.between == "hold" or following == len(self.points):
            return start_factor
        end, end_factor = self.points[following]
        share = (step - start) / (end - start)
        if self.between == "exponential":
            return float(start_factor * (end_factor / start_factor) ** share)
        if self.between == "cosine":
            share = (1 - math.cos(math.pi * share)) / 2
        return start_factor + (end_factor - start_factor) * share


@dataclass(frozen=True, slots=True)
class GroupStage:
    """The parameters of one stage for the records of one group."""

    steps: int
    # In [0, 1]; 0 where the group takes no part.
    sampling_probability: float
    # Bound on a record's ℓ2 gradient norm.
    clip_norm: float
    # The noise's standard deviation over the clip norm.
    noise_multiplier: float
    # Chance in [0, 1] of joining the stage at all.
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
        return self._read_common("sampling_probability")

    @property
    def clip_norm(self) -> float:
        """The bound on a record's gradient norm."""
        return self._read_common("clip_norm")

    @property
    def noise_multiplier(self) -> float:
        """The noise over the clip norm."""
        return self._read_common("noise_multiplier")

    def _read_common(self, name: str) -> float:
        """Return the number called `name` on which all stages agree; raise where they do not."""
        values = {float(getattr(stage, name)) for stage in self.stages}
        if len(values) > 1:
            raise InputError(
                f"group {self.name}: {name} differs between its stages; read group.stages[i].{name}"
            )
        return values.pop()


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The choice of the best model of a random number of runs: part of the promise of a plan.

    A run draws its settings, trains by the plan's stage or one of `others`, and scores its model.

    Attributes:
        runs: The law of their number.
        score_noise: Standard deviation of the noise on how many of the records that its stage
            samples a run's model gets right; None where the score reads no record of the plan.
        others: Stages that a run may train by in place of the plan's own.

    Raises:
        InputError: For a noise that is not above 0.

    Example:
        >>> from apiece.mechanisms import Runs
        >>> from apiece.plan.parts import Selection
        >>> Selection(Runs(40), 30.0).runs.mean
        40.0
    """

    runs: Runs
    score_noise: float | None
    others: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if self.score_noise is not None:
            _check.put(self, score_noise=_check.positive)

    def of(self, own: Stage, group: int) -> Mechanism:
        """Return the mechanism of all runs together for a record of `group`.

        Args:
            own: The plan's stage.
            group: A position.
        """
        # One record moves the number of right answers by at most 1.
        score = () if self.score_noise is None else (Gaussian(self.score_noise),)
        scored_runs = set()
        for stage in (own, *self.others):
            run = stage.mechanism(group)
            # A run that never sees the record tells nothing of it: a composition of nothing.
            scored_runs.add(Composed() if run is None else Composed(run, *score))
        # Sorted, so that equal sets of runs are one mechanism, whichever stage is the plan's own.
        return Selected(tuple(sorted(scored_runs, key=repr)), self.runs)


@dataclass(frozen=True, eq=False, repr=False)
class Numbers:
    """The public numbers of a plan, checked against one another; `Plan` describes each."""

    strategy: str
    clip_norm: float
    budget_groups: BudgetGroups
    stages: tuple[Stage, ...]
    relation: str = RELATION
    method: str = "pld"
    combine: str = "continue"
    objections: tuple[str, ...] = ()
    worst_paths: Mask | None = None
    counts: str = "exact"
    notes: tuple[str, ...] = ()
    learning_rate: Schedule | None = None
    reference: Reference | None = None
    unit: str = "record"
    selection: Selection | None = None

    def __post_init__(self) -> None:
        vocabularies = {
            "unit": UNITS,
            "relation": (RELATION,),
            "counts": COUNTS,
            "combine": COMBINE,
        }
        for name, words in vocabularies.items():
            if getattr(self, name) not in words:
                raise unknown(name, getattr(self, name), words)
        put = object.__setattr__
        put(self, "stages", tuple(self.stages))
        put(self, "objections", tuple(map(str, self.objections)))
        put(self, "notes", tuple(map(str, self.notes)))
        put(self, "clip_norm", _check.positive("clip_norm", self.clip_norm))
        if self.worst_paths is not None:
            shape = (len(self.budget_groups), len(self.stages))
            put(self, "worst_paths", freeze_array("worst_paths", self.worst_paths, bool, shape))
        # Before a reference is derived, which divides by sums that this checks.
        self._require_fit()
        if self.reference is None:
            put(self, "reference", self.own_reference())

    def _require_fit(self) -> None:
        """Raise where the stages do not fit the groups, or a batch size its rates."""
        if not self.stages:
            raise InputError("plan: no stages; give at least one")
        stages = self.stages
        # Revealed coins or further stages would show more than the best run's output.
        if self.selection is not None:
            if len(stages) > 1 or self.worst_paths is not None:
                raise InputError("selection: is among runs of one stage, without revealed coins")
            stages = (*stages, *self.selection.others)
        size = len(self.budget_groups)
        for number, stage in enumerate(stages):
            if stage.clip_norm.shape != (size,):
                raise InputError(
                    f"stage {number}: arrays of {stage.clip_norm.size} for {size} groups"
                )
            batch = stage.expected_batch_size
            # What sums are divided by follows from the rates: no other number may be claimed.
            total = float(stage.chances() @ self.budget_groups.records)
            if not abs(total - batch) <= BATCH_TOLERANCE * batch:
                raise InputError(
                    f"stage {number}: expected_batch_size = {batch!r}, but the sampling "
                    f"probabilities sum to {total!r}; they must agree"
                )

    @property
    def steps(self) -> int:
        """How many updates in total."""
        return sum(stage.steps for stage in self.stages)

    @property
    def releasable(self) -> bool:
        """Whether the plan has no objections: each group's (ε, δ) is kept. `require` checks Δ̄."""
        return not self.objections

    @property
    def runs_on_average(self) -> float | None:
        """The mean number of runs whose best is released; None without a search."""
        return None if self.selection is None else self.selection.runs.mean

    def mechanism_at(self, group: int, steps: int | None = None) -> Mechanism:
        """Return the mechanism that a record of a group meets in the first steps, or in all.

        Args:
            group: A position.
            steps: How many; None for all.
        """
        if self.selection is not None:
            # Nothing is released before all runs are over, so the count of steps is no matter.
            return self.selection.of(self.stages[0], group)
        remaining = self.steps if steps is None else steps
        mechanisms = []
        for number, stage in enumerate(self.stages):
            # Stages are passed in order, until the steps asked about are used up.
            stage_steps = min(remaining, stage.steps)
            remaining -= stage_steps
            if stage_steps == 0:
                break
            if self.worst_paths is not None:
                if not self.worst_paths[group, number]:
                    continue
                # The coin is revealed, so on the worst path the record takes part for certain.
                stage = replace(stage, participation=None)
            mechanism = stage.mechanism(group, stage_steps)
            if mechanism is not None:
                mechanisms.append(mechanism)
        return mechanisms[0] if len(mechanisms) == 1 else Composed(*mechanisms)

    def own_reference(self) -> Reference:
        """Return the reference at the mean rate of this plan, for one that nobody requested."""
        # Over the records that asked: public ones are added to the batch size that was requested
        # for those.
        if any(stage.correlated is not None for stage in self.stages):
            # Without sampling: one Gaussian.
            return Reference(1.0, 1)
        groups = self.budget_groups
        records = groups.records[groups.name != PUBLIC]
        if not records.size:
            records = groups.records
        size = int(records.sum())
        joined = sum(stage.steps * stage.expected_batch_size for stage in self.stages)
        return Reference(min(1.0, joined / self.steps / size), self.steps)


def freeze_array(
    name: str, values: npt.ArrayLike, dtype: npt.DTypeLike, shape: tuple[int, ...]
) -> AnyArray:
    """Return `values` as a read-only array; raise `InputError` for another shape."""
    array = np.asarray(values, dtype=dtype)
    if array.shape != shape:
        raise InputError(f"{name}: shape {array.shape}, must be {shape} to fit the plan")
    # What nobody can write is held without a copy: a plan has an entry a record.
    return _check.freeze(array)
