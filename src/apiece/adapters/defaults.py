"""Settings of estimators where none are given, by public numbers alone: the plan and its noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from apiece.plan import Plan, Schedule

# Momentum, where the learning rate is chosen: as many steps go further.
MOMENTUM: Final = 0.9
# (The most that `measure_noise` may be, knots of curves); with more noise lines are straight.
KNOTS: Final = ((0.1, 16), (0.25, 8))


@dataclass(frozen=True, slots=True)
class Defaults:
    """The settings of an additive model, which were chosen on held-out rows of public tables.

    Attributes:
        clip_norm: Clip norm: large enough that few records are clipped near the end, as clipped
            ones count by their number and make probabilities too sure.
        noise: Standard deviation of all noise in a weight, which the learning rate is chosen for.
        largest: The largest learning rate, at `MOMENTUM`.
        fixed_rate: Learning rate of what is no additive model, and of searches.
    """

    clip_norm: float
    noise: float
    largest: float
    fixed_rate: float


# Chosen on parts held out of the training rows of public tables.
CLASSES: Final = Defaults(clip_norm=3.0, noise=0.3, largest=2.5, fixed_rate=2.0)
AMOUNT: Final = Defaults(clip_norm=1.0, noise=0.05, largest=0.2, fixed_rate=0.5)


def decay_to_zero(steps: int) -> Schedule:
    """Return a factor on the learning rate that falls from 1 to 0: late noise stays small."""
    return Schedule(((0, 1.0), (steps, 0.0)))


def measure_noise(plan: Plan) -> float:
    """Return the noise in the sum of all mean gradients, as a share of the clip norm."""
    total = 0.0
    for stage in plan.stages:
        # Of the mean gradient, in clip norms; steps add up as independent variances.
        scale = stage.noise_stddev / stage.expected_batch_size / plan.clip_norm
        total += stage.steps * scale**2
    return math.sqrt(total)


def noise_of_weights(plan: Plan, learning_rate: float, momentum: float = 0.0) -> float:
    """Return the standard deviation of all noise that steps of SGD add to a weight.

    Later steps contract a part of it where the loss is curved: this is what they start from.
    """
    factors: list[float] = []
    scales: list[float] = []
    for stage in plan.stages:
        for _ in range(stage.steps):
            step = len(factors)
            factors.append(1.0 if plan.learning_rate is None else plan.learning_rate.at(step))
            scales.append(stage.noise_stddev / stage.expected_batch_size)
    variance = 0.0
    # A step's noise is added by that step, and by each later one momentum times as much again.
    share = 0.0
    for factor, scale in zip(reversed(factors), reversed(scales), strict=True):
        share = factor + momentum * share
        variance += (learning_rate * share * scale) ** 2
    return math.sqrt(variance)


def choose_rate(plan: Plan, momentum: float, defaults: Defaults) -> float:
    """Return the learning rate at which weights end with the default noise, or the largest."""
    # With less momentum each step moves less far: the limit grows by as much.
    largest = defaults.largest * (1 - momentum) / (1 - MOMENTUM)
    return min(largest, defaults.noise / noise_of_weights(plan, 1.0, momentum))


def choose_knots(plan: Plan) -> int:
    """Return the knots of curves that the noise of a plan allows, 0 for straight lines."""
    noise = measure_noise(plan)
    for most, knots in KNOTS:
        if noise <= most:
            return knots
    return 0
