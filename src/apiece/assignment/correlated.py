"""Plans with correlated noise: fixed steps in place of sampling, one Gaussian a person."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apiece._types import Floats, Integers
from apiece.assignment.hybrid import Hybrid
from apiece.assignment.request import Correlated, Request, Strategy
from apiece.assignment.sample import Sample
from apiece.assignment.scale import Scale
from apiece.assignment.solve import ROUND, solve_noise
from apiece.assignment.threshold import Threshold
from apiece.assignment.uniform import Uniform
from apiece.correlation.optimize import optimize_banded, optimize_buffered
from apiece.correlation.sensitivity import sensitivity_bound
from apiece.correlation.strategies import Banded, NoiseStrategy
from apiece.correlation.workloads import Workload
from apiece.errors import InfeasibleError, UnsupportedError
from apiece.plan import Plan
from apiece.plan.correlated import CorrelatedNoise
from apiece.plan.parts import ULP, Reference, Stage

# What the excess is measured against: each person's own Gaussian, in one step without sampling.
ONE_GAUSSIAN = Reference(1.0, 1)


@dataclass(frozen=True, slots=True)
class Epochs(Strategy):
    """The strict take part less often: in k_g of the passes, and the clip norm carries the rest.

    It needs correlated noise, `assign(…, noise=Correlated())`. A group takes part as often as its
    budget allows at the clip norm of the loosest, at least once; what is left of its budget then
    goes into its clip norm. Each record's privacy curve is the Gaussian of its own budget, so
    nobody else's choice moves it: Δ = 0.

    Example:
        >>> from apiece import Budgets, assign
        >>> from apiece.assignment import Correlated, Epochs
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Epochs(), steps=40, expected_batch_size=10, clip_norm=1.0,
        ...               noise=Correlated())
        >>> plan.stages[0].times.tolist()
        [1, 4]
    """

    name: ClassVar[str] = "epochs"

    def plan(self, request: Request) -> Plan:
        """Return the plan with a number of passes a group.

        Raises `UnsupportedError` where the request asks for independent noise.
        """
        if request.noise is None:
            raise UnsupportedError(
                "strategy epochs: needs correlated noise, whose steps are fixed; plan with "
                "noise=Correlated(), or apiece plan --noise correlated"
            )
        return plan_correlated(self, request, request.noise)


def plan_correlated(strategy: Strategy, request: Request, noise: Correlated) -> Plan:
    """Return a strategy's plan with correlated noise.

    Raises `UnsupportedError` for a strategy that rests on sampling.
    """
    if noise.sampled:
        return _plan_sampled(strategy, request, noise)
    # Of each group the noise multiplier at which one Gaussian spends its budget.
    multipliers = solve_noise(request, request.target, request.groups.delta, 1.0, steps=1)
    match strategy:
        case Uniform(budget="strictest"):
            every = np.ones(multipliers.size, dtype=bool)
            return _plan_alike(strategy, request, noise, multipliers, every)
        case Threshold(epsilon):
            return _plan_threshold(strategy, request, noise, multipliers, epsilon)
        case Scale() | Hybrid():
            # Each meets their own Gaussian whatever others ask: Δ = 0, within any bound.
            times = _count_passes(request, np.ones(multipliers.size, dtype=bool))
            return _plan_scaled(strategy, request, noise, multipliers, times)
        case Epochs():
            times = _count_epochs(request, noise, multipliers)
            return _plan_scaled(strategy, request, noise, multipliers, times)
    raise UnsupportedError(
        f"strategy {strategy.name}: rests on sampling, and correlated noise has none; use scale, "
        "epochs, threshold or uniform, or coins as well (cyclic)"
    )


# ---------------------------------------------------------------- parts that take turns


def _plan_sampled(strategy: Strategy, request: Request, noise: Correlated) -> Plan:
    """Return the plan that disturbs least: of parts that take turns, one part, or fixed steps.

    One part is independent noise and Poisson sampling, so that no plan is worse than that.
    """
    if not isinstance(strategy, Uniform | Scale | Sample | Threshold):
        raise UnsupportedError(
            f"strategy {strategy.name}: has no parts that take turns; use sample, scale, threshold "
            "or uniform"
        )
    workload = noise.workload(request.steps)
    plans = []
    # A number of parts that was asked for is not searched for.
    if noise.separation is not None:
        plans.append(_plan_turns(strategy, request, noise, noise.separation))
    else:
        for parts in _list_parts(request):
            try:
                plans.append(_plan_turns(strategy, request, noise, parts))
            except InfeasibleError:
                # Without a part more the groups cannot spend; with one part there is always a plan.
                if parts == 1:
                    raise
        if not isinstance(strategy, Sample):
            with suppress(InfeasibleError):
                plans.append(plan_correlated(strategy, request, replace(noise, sampled=False)))
    return min(plans, key=lambda plan: _disturbance(plan, workload))


def _list_parts(request: Request) -> list[int]:
    """Return numbers of parts to choose from: powers of two, and as many as leave no coin."""
    most = min(int(request.records / request.expected_batch_size), request.steps)
    parts = [1 << power for power in range(most.bit_length()) if 1 << power <= most]
    return sorted({*parts, most})


def _plan_turns(strategy: Strategy, request: Request, noise: Correlated, parts: int) -> Plan:
    """Return the plan with so many parts: the strategy's own for a part's steps, its noise spread.

    In a turn a record meets one sampled Gaussian, whatever the bands: the plan with T/parts steps
    and batches that are `parts` times as large, whose noise is multiplied by the norm of a column.
    """
    batch = request.expected_batch_size * parts
    # Rounded up: some parts may have one turn less, which costs them less.
    turns = -(-request.steps // parts)
    if batch > request.records or turns < 1:
        raise InfeasibleError(
            f"separation = {parts}: parts of {request.records / parts:g} records have no batch of "
            f"{request.expected_batch_size:g}; take fewer parts or a smaller batch"
        )
    inner = strategy.plan(replace(request, steps=turns, expected_batch_size=batch, noise=None))
    if parts == 1:
        note = "correlated noise: none, since independent noise and sampling disturb less"
        return replace(inner, notes=(*inner.notes, note))
    (stage,) = inner.stages
    # With no more bands than parts, a record's turns share no noise.
    bands = parts if noise.bands is None else min(noise.bands, parts)
    matrix = Banded([1.0])
    if bands > 1:
        matrix = optimize_banded(
            noise.workload(request.steps), bands=bands, participations=turns, separation=parts
        )
    correlated = CorrelatedNoise(matrix, parts, sampled=True)
    norm = correlated.sensitivity(steps=request.steps, times=1)
    # Rounded up, and the chances down, so that a turn is no more than the inner plan's step.
    chances = stage.sampling_probability / parts * (1 - 8 * ULP)
    spread = Stage(
        request.steps,
        float(chances @ request.groups.records),
        stage.noise_stddev * norm * (1 + 8 * ULP),
        chances,
        stage.clip_norm,
        correlated=correlated,
    )
    plan = request.plan(inner.strategy, (spread,), objections=inner.objections)
    note = (
        f"correlated noise: {matrix!r}, which remembers {matrix.memory} copies of the model; "
        f"{parts} parts take turns"
    )
    return replace(plan, notes=(*inner.notes, note))


def _plan_alike(
    strategy: Strategy, request: Request, noise: Correlated, multipliers: Floats, joins: object
) -> Plan:
    """Return the plan in which all groups that join are treated as the strictest of them."""
    mask = np.asarray(joins)
    times = _count_passes(request, mask)
    correlated, sensitivities = _correlate(request, noise, times)
    # The noise, in clip norms, with which each group that joins keeps its budget.
    worst = float((multipliers * sensitivities)[mask].max())
    clip_norms = np.full(multipliers.size, request.clip_norm)
    return _make_plan(strategy, request, correlated, times, worst * request.clip_norm, clip_norms)


def _plan_threshold(
    strategy: Strategy,
    request: Request,
    noise: Correlated,
    multipliers: Floats,
    epsilon: float | None,
) -> Plan:
    """Return the plan without the groups below τ; without a τ, the one with the least noise."""
    asked = request.groups.epsilon
    # Each ε that somebody asked is a possible τ.
    levels = np.unique(asked) if epsilon is None else np.array([epsilon])
    plans = []
    for level in levels:
        joins = asked >= level
        if request.groups.records[joins].sum() >= request.expected_batch_size:
            plans.append(_plan_alike(strategy, request, noise, multipliers, joins))
    if not plans:
        raise InfeasibleError(
            f"Threshold epsilon = {levels[0]:g}: keeps fewer records than expected_batch_size = "
            f"{request.expected_batch_size:g}; use a lower one"
        )
    workload = noise.workload(request.steps)
    return min(plans, key=lambda plan: _disturbance(plan, workload))


def _disturbance(plan: Plan, workload: Workload) -> float:
    """Return the error of what the optimizer makes of gradients, over their largest sum a step."""
    (stage,) = plan.stages
    matrix = Banded([1.0]) if stage.correlated is None else stage.correlated.strategy
    signal = float(plan.budget_groups.records @ (stage.sampling_probability * stage.clip_norm))
    return stage.noise_stddev * workload.mean_error(matrix) / signal


def _plan_scaled(
    strategy: Strategy, request: Request, noise: Correlated, multipliers: Floats, times: Integers
) -> Plan:
    """Return the plan whose clip norms let each group spend its budget, their mean as asked."""
    correlated, sensitivities = _correlate(request, noise, times)
    # c_g = S/(z_g·s_g) with mean c̄.
    inverse = 1 / (multipliers * sensitivities)
    stddev = request.clip_norm / float(request.share @ inverse)
    # Rounded down, so that no quotient S/c is below its group's multiplier.
    clip_norms = stddev * inverse * ROUND
    return _make_plan(strategy, request, correlated, times, stddev, clip_norms)


def _make_plan(
    strategy: Strategy,
    request: Request,
    correlated: CorrelatedNoise,
    times: Integers,
    noise_stddev: float,
    clip_norms: Floats,
) -> Plan:
    records = request.groups.records
    # Nothing is drawn: a record that takes part k times in T steps counts as one with rate k/T.
    probabilities = times / request.steps
    stage = Stage(
        request.steps,
        float(probabilities @ records),
        noise_stddev,
        probabilities,
        clip_norms,
        times=times,
        correlated=correlated,
    )
    plan = request.plan(strategy.name, (stage,))
    note = (
        f"correlated noise: {correlated.strategy!r}, which remembers "
        f"{correlated.strategy.memory} copies of the model"
    )
    return replace(plan, reference=ONE_GAUSSIAN, notes=(*plan.notes, note))


def _count_passes(request: Request, joins: Integers | np.ndarray) -> Integers:
    """Return how often each group takes part where all that join do so alike: T·B over theirs."""
    records = int(request.groups.records[joins].sum())
    share = request.steps * request.expected_batch_size / records
    # A whole number but for rounding, or the next below.
    passes = int(share * (1 + 1e-9))
    if not 1 <= passes <= request.steps:
        raise InfeasibleError(
            f"steps·expected_batch_size = {request.steps * request.expected_batch_size:g}: less "
            f"than one pass over {records} records; give more steps or a larger batch"
        )
    return np.where(joins, passes, 0)


def _count_epochs(request: Request, noise: Correlated, multipliers: Floats) -> Integers:
    """Return how often each group takes part: as its μ, beside the loosest group's, allows."""
    most = int(_count_passes(request, np.ones(multipliers.size, dtype=bool)).max())
    strategy = _choose_strategy(request, noise, most)
    separation = _separate(request, noise, most)
    # (passes,), rising: of a record that takes part k times, k from 1 on.
    sensitivities = np.array(
        [
            sensitivity_bound(
                strategy, steps=request.steps, participations=k, separation=separation
            )
            for k in range(1, most + 1)
        ]
    )
    # At the clip norm S/(z·s) of the loosest group, s of another group may be s·z of that over z of
    # its own.
    allowed = sensitivities[-1] * multipliers.min() / multipliers
    counts = np.searchsorted(sensitivities, allowed * (1 + 1e-9), side="right")
    return np.asarray(np.maximum(counts, 1))


def _separate(request: Request, noise: Correlated, passes: int) -> int:
    """Return the least distance of a record's steps: as asked, or a pass."""
    return request.steps // passes if noise.separation is None else noise.separation


def _correlate(
    request: Request, noise: Correlated, times: Integers
) -> tuple[CorrelatedNoise, Floats]:
    """Return the noise, and of each group by how much a record moves it a unit of clip norm."""
    most = int(times.max())
    # The matrix is made for who takes part most often; each group is then accounted for by its own
    # number of steps.
    separation = _separate(request, noise, most)
    strategy = _choose_strategy(request, noise, most)
    correlated = CorrelatedNoise(strategy, separation)
    distinct, inverse = np.unique(times, return_inverse=True)
    # Groups that take no part move nothing; 1 keeps their numbers finite.
    moved = [
        correlated.sensitivity(steps=request.steps, times=int(k)) if k else 1.0 for k in distinct
    ]
    return correlated, np.array(moved)[inverse]


def _choose_strategy(request: Request, noise: Correlated, passes: int) -> NoiseStrategy:
    """Return the strategy asked for, or the banded one with the least error."""
    if noise.strategy is not None:
        return noise.strategy
    separation = _separate(request, noise, passes)
    workload = noise.workload(request.steps)
    if noise.buffers is not None:
        return optimize_buffered(
            workload, buffers=noise.buffers, participations=passes, separation=separation
        )
    bands = separation if noise.bands is None else noise.bands
    if bands == 1:
        return Banded([1.0])
    return optimize_banded(workload, bands=bands, participations=passes, separation=separation)
