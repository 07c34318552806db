"""Noise that changes during training, by a schedule declared beforehand, at unchanged budgets."""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.assignment.solve import ROUND, require_few
from apiece.errors import InfeasibleError, InputError, UnsupportedError
from apiece.mechanisms import Composed
from apiece.numerics.roots import log_room, safe_end
from apiece.plan import Plan, Schedule
from apiece.plan.parts import Stage, sampled_steps

AnyPlan = TypeVar("AnyPlan", bound=Plan)
# Of log ε, and of the log of a noise multiplier.
PRECISION = 1e-6
# How far from the guess the noise multiplier may lie, in its log.
SEARCH_RADIUS = 10.0


def schedule_noise(plan: AnyPlan, schedule: Schedule, *, stages: int | None = None) -> AnyPlan:
    """Return `plan` with its steps split into stages whose noise follows `schedule`.

    Rates, the mean clip norm and the normaliser stay. The level of the noise and the groups'
    clip norms are solved again, so that every group spends what it spent in `plan`. Where clip
    norms were equal they end up a little apart, since budgets feel an uneven noise differently.

    Args:
        plan: Of one stage, without coins, objections and bounds on the excess.
        schedule: Relative noise by step, of which only the shape counts: twice the factor is twice
            the noise.
        stages: Into how many equal parts the steps are cut, each with the factor at its middle.
            None only for a schedule that holds its factors: a stage a point.

    Raises:
        InputError: For a factor of 0; for points beyond the last step; for `stages` that are not
            given or more than the steps.
        InfeasibleError: Where no noise keeps a group's ε, such as one below all that the plan's
            method can state.
        UnsupportedError: For another plan, and for more than 500 distinct mechanisms.
        VerificationError: Where a group would spend more than it asked.

    Guarantee:
        Each group's ε, recomputed from the new plan's own numbers, is at most what was asked.

    References:
        Hong, Wang, Zhou 2021, for what such schedules can gain.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.assignment import schedule_noise
        >>> from apiece.plan import Schedule
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 1000, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=100, expected_batch_size=100, clip_norm=1.0)
        >>> falling = schedule_noise(plan, Schedule(((0, 2.0), (50, 1.0)), "hold"))
        >>> [stage.steps for stage in falling.stages], falling.verify().ok
        ([50, 50], True)
    """
    stage = _require_plain(plan)
    lengths, factors = _cut_steps(schedule, plan.steps, stages)
    multiplier = _solve_multipliers(plan, stage, lengths, factors)
    share = plan.budget_groups.records / plan.records
    # The mean clip norm stays while each group's own moves, because budgets feel an uneven noise
    # differently: S = c̄ / mean(1/z).
    stddev = float(share @ stage.clip_norm) / float(share @ (1 / multiplier))
    clip_norm = stddev / multiplier * ROUND
    scheduled_stages = tuple(
        replace(stage, steps=int(length), noise_stddev=stddev * factor, clip_norm=clip_norm)
        for length, factor in zip(lengths, factors, strict=True)
    )
    listed = ", ".join(f"{factor:.4g}" for factor in factors)
    note = f"noise schedule: relative noise {listed}"
    scheduled = replace(plan, stages=scheduled_stages, notes=(*plan.notes, note))
    scheduled.verify().require()
    return scheduled


def _require_plain(plan: Plan) -> Stage:
    """Return the only stage of a plan; raise where the plan cannot be scheduled."""
    stage = plan.stages[0]
    if len(plan.stages) > 1 or stage.participation is not None or plan.worst_paths is not None:
        raise UnsupportedError(
            f"schedule_noise: strategy {plan.strategy} has {len(plan.stages)} stages or coins of "
            "its own; take a plan of one stage, such as Sample's, Scale's or Uniform's"
        )
    if stage.correlated is not None:
        raise UnsupportedError(
            "schedule_noise: the noise of the plan's steps is correlated, and one matrix for all; "
            "leave out the schedule, or noise=Correlated()"
        )
    if plan.budget_groups.excess is not None:
        raise UnsupportedError(
            "schedule_noise: the budgets carry bounds on the excess, which it does not solve for; "
            "leave them out, or the schedule"
        )
    if plan.objections:
        raise UnsupportedError(
            f"schedule_noise: the plan keeps no promise to hold on to ({plan.objections[0]})"
        )
    return stage


def _cut_steps(schedule: Schedule, steps: int, stages: int | None) -> tuple[list[int], Floats]:
    """Return each stage's steps and relative noise.

    >>> _cut_steps(Schedule(((0, 4.0), (8, 0.0))), 8, 2)
    ([4, 4], array([3., 1.]))
    """
    if stages is None:
        if schedule.between != "hold" and len(schedule.points) > 1:
            raise InputError(
                f"stages: not given for a {schedule.between} schedule; say into how many parts "
                "the steps are cut"
            )
        # A stage a point: the first one begins with the training, wherever its point lies.
        starts = [0, *(step for step, _ in schedule.points[1:])]
        if not starts[-1] < steps:
            raise InputError(f"points: one at step {starts[-1]}, but the plan has {steps} steps")
        factors = [factor for _, factor in schedule.points]
    else:
        count = _check.count("stages", stages)
        if not count <= steps:
            raise InputError(f"stages = {count}: the plan has {steps} steps; give at most as many")
        # Equal parts but for rounding, each with the factor at its middle.
        starts = [number * steps // count for number in range(count)]
        ends = [*starts[1:], steps]
        middles = [(start + end) // 2 for start, end in zip(starts, ends, strict=True)]
        factors = [schedule.at(middle) for middle in middles]
    lengths = np.diff([*starts, steps]).tolist()
    for factor in factors:
        _check.positive("factor of the noise", factor)
    return lengths, np.array(factors)


def _solve_multipliers(plan: Plan, stage: Stage, lengths: list[int], factors: Floats) -> Floats:
    """Return each group's noise multiplier, where the factor is 1, at the ε that it spends now."""
    q = stage.sampling_probability
    multiplier = stage.noise_stddev / stage.clip_norm
    # What is spent now, which may be less than was asked.
    targets = np.minimum(plan.epsilon_spent, plan.budget_groups.epsilon)
    # Groups with the same rate, noise, ε and δ are solved for once.
    keys = np.stack([q, multiplier, targets, plan.budget_groups.delta], axis=1)
    distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
    require_few("schedule_noise", len(distinct), of="distinct mechanisms")
    solved = []
    for probability, constant, target, delta in distinct.tolist():
        solved.append(
            _solve_multiplier(probability, constant, target, delta, lengths, factors, plan.method)
        )
    return np.array(solved)[inverse.reshape(-1)]


def _solve_multiplier(
    q: float,
    constant: float,
    target: float,
    delta: float,
    lengths: list[int],
    factors: Floats,
    method: str,
) -> float:
    """Return the least noise multiplier, where the factor is 1, that spends at most `target`.

    Args:
        q: The sampling probability.
        constant: The noise multiplier without a schedule.
        target: ε.
        delta: Of that ε.
        lengths: Each stage's steps.
        factors: Each stage's relative noise.
        method: The accounting.
    """
    # Who takes no part spends nothing at any noise.
    if q == 0 or target == 0:
        return constant

    def measure_room(log_z: float) -> float:
        runs = [
            sampled_steps(math.exp(log_z) * factor, q, length)
            for length, factor in zip(lengths, factors.tolist(), strict=True)
        ]
        spent = float(privacy_curve(Composed(*runs), method=method).epsilon(delta).upper)
        return float(log_room(target, spent))

    # Exact at q = 1, where the squared signals 1/z² of steps add up.
    weights = np.array(lengths) / sum(lengths)
    guess = math.log(constant * float(np.sqrt((weights / factors**2).sum())))
    end = safe_end(
        measure_room,
        guess,
        guess + SEARCH_RADIUS,
        guess - SEARCH_RADIUS,
        slope=1.3,
        tolerance=PRECISION,
        narrow=PRECISION,
    )
    if math.isnan(end):
        raise InfeasibleError(
            f"schedule_noise: a group spends more than epsilon = {target:g} at delta = {delta:g} "
            f"even at noise multiplier {math.exp(guess + SEARCH_RADIUS):.4g}; raise the group's "
            "epsilon, or plan with another accounting method"
        )
    return math.exp(end)
