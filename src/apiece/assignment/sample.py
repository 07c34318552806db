"""Sample: everyone's clip norm is the same, the sampling rate carries the budget."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece._types import Floats
from apiece.assignment.levels import (
    STEP,
    Population,
    find_noise_range,
    make_rate_ladder,
    needs_ladder,
)
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import (
    ROUND,
    RateCurve,
    find_crossing,
    find_harmonic_noise,
    find_level_noise,
    find_uniform_noise,
    require_rates,
    solve_rates,
)
from apiece.errors import InfeasibleError, unknown
from apiece.plan import Plan

NOISES = ("batch", "strictest", "loosest", "mean")
# How far from the one asked the mean rate may be, in its log.
TOLERANCE = 2e-4
# How many times the mean rate reached the one asked may be, where rates are read off a ladder.
LADDER_ROOM = 1.01
# How many times the mean rate reached the one asked may be, where rates are solved for.
SOLVED_ROOM = 1 + 1e-4
# A rate at which every budget is feasible: twice the least one that is looked for.
MIN_RATE = 2e-12
# The largest number of groups for which the noise is sought by solving for each; beyond, by a
# ladder.
MAX_SOLVED = 6
# How many times the noise is corrected for what interpolation missed.
CORRECTIONS = 20


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
            z, free_rates = find_batch_noise(request)
            rates = fit_mean(request, free_rates)
        else:
            epsilon = request.groups.epsilon
            level = float(request.share @ epsilon) if self.noise == "mean" else self.noise
            z = find_level_noise(request, level, epsilon)
            free_rates = find_free_rates(request, z)
            rates = free_rates
        require_rates(request, free_rates, z)
        # Rounded up, so that stddev/clip is not below z.
        return request.one_stage(self.name, z * request.clip_norm / ROUND, rates)


def find_batch_noise(request: Request) -> tuple[float, Floats]:
    """Return the noise multiplier at which the mean rate is at least q̄, by little; the rates."""
    groups = request.groups
    q = request.mean_probability
    epsilon = request.target
    delta = groups.delta
    # At the least of these the mean rate is at most q̄, at the most at least q̄.
    low, high = find_noise_range(request, q)
    if (epsilon == epsilon[0]).all() and (delta == delta[0]).all():
        return low, np.full(len(groups), q)
    if q == 1:
        # Everyone takes part in every step, at the noise of the strictest.
        return find_uniform_noise(request, epsilon, delta, q), np.ones(len(groups))
    z, rates = _search_batch_noise(request, low, high)
    if request.method != "rdp" or (rates > 0).all():
        return z, rates
    # Rényi accounting knows no rate for a small budget at the noise of a far larger one: then there
    # is more noise, and rates are scaled down.
    if len(groups) > MAX_SOLVED:
        # Below the lowest rung of a ladder.
        epsilon = 0.97 * epsilon.min(keepdims=True)
        delta = delta.min(keepdims=True)
    floor = find_uniform_noise(request, epsilon, delta, MIN_RATE)
    return _search_batch_noise(request, max(low, floor), max(high, floor))


def _search_batch_noise(request: Request, low: float, high: float) -> tuple[float, Floats]:
    """Return the noise multiplier in [low, high] for a mean rate of q̄, and the rates there."""
    if len(request.groups) <= MAX_SOLVED:
        return _search_by_solving(request, low, high)
    share = request.share
    q = request.mean_probability
    z = _search_by_ladder(request, low, high)
    tolerated = np.log(_mean_room(request))
    for _ in range(CORRECTIONS):
        rates = find_free_rates(request, z)
        # What interpolation missed of the mean, in its log.
        missing = float(np.log(q / (share @ rates)))
        if missing <= tolerated:
            break
        # Rates grow faster than z: half of what is missing, and the loop makes up for the rest.
        z *= float(np.exp(0.5 * missing + TOLERANCE))
    return z, rates


def _search_by_solving(request: Request, low: float, high: float) -> tuple[float, Floats]:
    """Return what `_search_batch_noise` does, with a rate solved for each group at each noise."""
    share = request.share
    curve = RateCurve(request, request.target, request.groups.delta, share)

    def measure_room(z: float) -> float:
        ratio = float(share @ curve.at(z)) / request.mean_probability
        return float(np.log(max(ratio, 1e-300)))

    z = find_crossing(measure_room, find_harmonic_noise(request), low, high)
    return z, curve.closely(z)


def _search_by_ladder(request: Request, low: float, high: float) -> float:
    """Return about the noise multiplier in [low, high], from rates on a ladder at each noise."""
    people = Population.of(request).summary()
    # On rungs a rate lies half a step lower on average; solved one by one, where ε is by a hair.
    margin = STEP / 2 if needs_ladder(request) else 1e-3
    log_aim = float(np.log(request.mean_probability)) + margin

    def measure_room(z: float) -> float:
        ladder = make_rate_ladder(request, people, z)
        mean_rate = people.share @ np.exp(ladder.estimate(people))
        return float(np.log(mean_rate)) - log_aim

    start = find_harmonic_noise(request)
    return find_crossing(measure_room, start, low, high, slope=2.5, tolerance=2 * TOLERANCE)


def _mean_room(request: Request) -> float:
    """Return how many times the mean rate reached the one asked may be."""
    return LADDER_ROOM if needs_ladder(request) else SOLVED_ROOM


def find_free_rates(request: Request, z: float) -> Floats:
    """Return each group's largest rate at one noise multiplier."""
    if needs_ladder(request):
        everyone = Population.of(request)
        return np.exp(make_rate_ladder(request, everyone, z).place(everyone))
    return solve_rates(request, request.target, request.groups.delta, z)


def fit_mean(request: Request, rates: Floats) -> Floats:
    """Return rates scaled down, which is safe, to the mean asked; raise where it is not reached."""
    # On a ladder of levels the mean may stay below it by up to 1 %; the plan then says what it is.
    factor = request.mean_probability / float(request.share @ rates)
    if factor > _mean_room(request):
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: these budgets reach at most "
            f"{request.expected_batch_size / factor:g}; ask for that"
        )
    return rates * min(1.0, factor)
