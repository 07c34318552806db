"""Noise that changes during training, by a schedule declared beforehand, at unchanged budgets."""

import math
from dataclasses import replace
from typing import TypeVar

import numpy as np

from apiece import _check
from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.assignment.solve import ROUND, require_few
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import Composed
from apiece.numerics.roots import log_room, safe_end
from apiece.plan import Plan, Schedule, Stage
from apiece.plan.parts import sampled_steps

AnyPlan = TypeVar("AnyPlan", bound=Plan)
PRECISION = 1e-6  # of log ε, or of a noise multiplier
FAR = 10.0  # of log z: how far from the guess it may lie


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
    stage = _single(plan)
    steps, factors = _parts(schedule, plan.steps, stages)
    old = stage.noise_stddev / stage.clip_norm
    targets = np.minimum(plan.epsilon_spent, plan.budget_groups.epsilon)
    # Groups with the same rate, noise, ε and δ are solved for once.
    keys = np.stack([stage.sampling_probability, old, targets, plan.budget_groups.delta], axis=1)
    distinct, group = np.unique(keys, axis=0, return_inverse=True)
    require_few("schedule_noise", len(distinct), of="distinct mechanisms")
    how = steps, factors, plan.method
    levels = np.array([_multiplier(q, z, e, d, *how) for q, z, e, d in distinct.tolist()])
    # The mean clip norm stays while each group's own moves: budgets feel uneven noise differently.
    multiplier = levels[group.reshape(-1)]  # where the factor is 1
    share = plan.budget_groups.records / plan.records
    # The mean clip norm stays: S = c̄ / mean(1/z).
    level = float(share @ stage.clip_norm) / float(share @ (1 / multiplier))
    clip_norm = level / multiplier * ROUND
    new = tuple(
        replace(stage, steps=int(t), noise_stddev=level * f, clip_norm=clip_norm)
        for t, f in zip(steps, factors, strict=True)
    )
    note = f"noise schedule: relative noise {', '.join(f'{f:.4g}' for f in factors)}"
    scheduled = replace(plan, stages=new, notes=(*plan.notes, note))
    scheduled.verify().require()
    return scheduled


def _single(plan: Plan) -> Stage:
    stage = plan.stages[0]
    if len(plan.stages) > 1 or stage.participation is not None or plan.worst_paths is not None:
        raise UnsupportedError(
            f"schedule_noise: strategy {plan.strategy} has {len(plan.stages)} stages or coins of "
            "its own; take a plan of one stage, such as Sample's, Scale's or Uniform's"
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


def _parts(schedule: Schedule, steps: int, stages: int | None) -> tuple[list[int], Floats]:
    """Return each stage's steps and relative noise.

    >>> _parts(Schedule(((0, 4.0), (8, 0.0))), 8, 2)
    ([4, 4], array([3., 1.]))
    """
    if stages is None:
        if schedule.between != "hold" and len(schedule.points) > 1:
            raise InputError(
                f"stages: not given for a {schedule.between} schedule; say into how many parts "
                "the steps are cut"
            )
        starts = [0, *(step for step, _ in schedule.points[1:])]
        if not starts[-1] < steps:
            raise InputError(f"points: one at step {starts[-1]}, but the plan has {steps} steps")
        factors = [factor for _, factor in schedule.points]
    else:
        count = _check.count("stages", stages)
        if not count <= steps:
            raise InputError(f"stages = {count}: the plan has {steps} steps; give at most as many")
        starts = [k * steps // count for k in range(count)]
        ends = [*starts[1:], steps]
        factors = [schedule.at((a + b) // 2) for a, b in zip(starts, ends, strict=True)]
    lengths = np.diff([*starts, steps]).tolist()
    for factor in factors:
        _check.positive("factor of the noise", factor)
    return lengths, np.array(factors)


def _multiplier(
    q: float, old: float, target: float, delta: float, steps: list[int], factors: Floats, by: str
) -> float:
    """Return the least noise multiplier, where the factor is 1, that spends at most `target`."""

    def room(log_z: float) -> float:
        runs = zip(steps, factors.tolist(), strict=True)
        mechanism = Composed(*(sampled_steps(math.exp(log_z) * f, q, t) for t, f in runs))
        spent = float(privacy_curve(mechanism, method=by).epsilon(delta).upper)
        return float(log_room(target, spent))

    if q == 0 or target == 0:
        return old
    weights = np.array(steps) / sum(steps)
    guess = math.log(old * float(np.sqrt((weights / factors**2).sum())))  # exact where q is 1
    ends, close = (guess + FAR, guess - FAR), {"tolerance": PRECISION, "narrow": PRECISION}
    return math.exp(safe_end(room, guess, *ends, slope=1.3, **close))
