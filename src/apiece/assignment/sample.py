"""Sample: everyone's clip norm is the same, the sampling rate carries the budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece._types import Floats
from apiece.assignment.levels import STEP, Population, extremes, many, rate_ladder
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import (
    ROUND,
    Follow,
    crossing,
    harmonic_noise,
    level_noise,
    rates,
    require_rates,
    uniform_noise,
)
from apiece.errors import InfeasibleError, unknown
from apiece.plan import Plan

NOISES = ("batch", "strictest", "loosest", "mean")
TOLERANCE = 2e-4  # of the mean rate
# The mean rate asked may be so many times the one reached: read off a ladder, or solved for.
LADDER_ROOM, SOLVED_ROOM = 1.01, 1 + 1e-4
LEAST_RATE = 2e-12  # twice the least one that is looked for
MOST_SOLVED = 6  # groups up to which the noise is sought by solving for each; beyond, by a ladder


@dataclass(frozen=True, slots=True)
class Sample(Strategy):
    """Each record's sampling probability is as large as its budget allows; the noise is shared.

    A group may spend less than ε_g: where even q_g = 1 costs less, and where ε jumps with the rate,
    at noise far below 1, and the rate below the jump is taken; `plan.notes` names it. A record's
    curve depends on the others' budgets through the noise: see `contract`.

    Attributes:
        noise: How the one noise multiplier z is fixed. "batch": so that the expected batch size is
            the one asked, mean q_g(z) = B/n. "strictest", "loosest" and "mean": what the smallest,
            the largest or the mean ε (with the smallest δ) needs at q̄ = B/n; the expected batch
            size is then what comes out.

    Raises:
        InputError: For another word.

    References:
        Boenisch et al. 2023, Algorithm 1; Kaiser et al. 2026, Table III.

    Example:
        >>> from apiece import Budgets, Sample, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Sample(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].sampling_probability.round(2).tolist()
        [0.04, 0.16]
    """

    name: ClassVar[str] = "sample"
    noise: str = "batch"

    def __post_init__(self) -> None:
        if self.noise not in NOISES:
            raise unknown("Sample noise", self.noise, NOISES)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a sampling probability a group."""
        if self.noise == "batch":
            z, free = batch_noise(request)
            q = fit_mean(request, free)
        else:
            epsilon = request.groups.epsilon
            level = float(request.share @ epsilon) if self.noise == "mean" else self.noise
            z = level_noise(request, level, epsilon)
            q = free = free_rates(request, z)
        require_rates(request, free, z)
        # rounded up, so that stddev/clip is not below z
        return request.one_stage(self.name, z * request.clip_norm / ROUND, q)


def batch_noise(request: Request) -> tuple[float, Floats]:
    """Return the noise multiplier at which the mean rate is at least q̄, by little; the rates."""
    groups, q = request.groups, request.mean_probability
    epsilon, delta = request.target, groups.delta
    # At the least of these the mean rate is at most q̄, at the most at least q̄.
    least, most = extremes(request, q)
    if (epsilon == epsilon[0]).all() and (delta == delta[0]).all():
        return least, np.full(len(groups), q)
    if q == 1:  # everyone takes part in every step, at the noise of the strictest
        return uniform_noise(request, epsilon, delta, q), np.ones(len(groups))
    shared = _shared(request, least, most)
    if request.method != "rdp" or (shared[1] > 0).all():
        return shared
    # Rényi accounting knows no rate for a small budget at the noise of a far larger one: then there
    # is more noise, and rates are scaled down.
    if len(groups) > MOST_SOLVED:  # below the lowest rung of a ladder
        epsilon, delta = 0.97 * epsilon.min(keepdims=True), delta.min(keepdims=True)
    floor = uniform_noise(request, epsilon, delta, LEAST_RATE)
    return _shared(request, max(least, floor), max(most, floor))


def _shared(request: Request, least: float, most: float) -> tuple[float, Floats]:
    """Return `batch_noise` between two noise multipliers."""
    share, q = request.share, request.mean_probability
    if len(request.groups) <= MOST_SOLVED:
        follow = Follow(request, request.target, request.groups.delta, share)

        def room(z: float) -> float:
            return float(np.log(max(float(share @ follow.at(z)) / q, 1e-300)))

        z = crossing(room, harmonic_noise(request), least, most)
        return z, follow.closely(z)
    people = Population.of(request).summary()
    # on rungs a rate lies half a step lower on average; solved one by one, where ε is by a hair
    aim = float(np.log(q)) + (STEP / 2 if many(request) else 1e-3)

    def about(z: float) -> float:
        ladder = rate_ladder(request, people, z)
        return float(np.log(people.share @ np.exp(ladder.estimate(people)))) - aim

    start = harmonic_noise(request)
    z = crossing(about, start, least, most, slope=2.5, tolerance=2 * TOLERANCE)
    for _ in range(20):  # what interpolation missed is made up for
        free = free_rates(request, z)
        missing = float(np.log(q / (share @ free)))
        if missing <= np.log(LADDER_ROOM if many(request) else SOLVED_ROOM):
            break
        # Rates grow faster than z: half of what is missing, and the loop makes up for the rest.
        z *= float(np.exp(0.5 * missing + TOLERANCE))
    return z, free


def free_rates(request: Request, z: float) -> Floats:
    """Return each group's largest rate at one noise multiplier."""
    if many(request):
        everyone = Population.of(request)
        return np.exp(rate_ladder(request, everyone, z).place(everyone))
    return rates(request, request.target, request.groups.delta, z)


def fit_mean(request: Request, q: Floats) -> Floats:
    """Return `q` scaled down, which is safe, to the mean asked; raise where it is below it."""
    # On a ladder of levels the mean may stay below it by up to 1 %; the plan then says what it is.
    factor = request.mean_probability / float(request.share @ q)
    if factor > (LADDER_ROOM if many(request) else SOLVED_ROOM):
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: these budgets reach at most "
            f"{request.expected_batch_size / factor:g}; ask for that"
        )
    return q * min(1.0, factor)
