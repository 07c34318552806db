"""Sample: everyone's clip norm is the same, the sampling rate carries the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece._types import Floats
from apiece.assignment.levels import STEP, Population, extremes, many, rate_ladder
from apiece.assignment.request import Request
from apiece.assignment.solve import (
    ROUND,
    Follow,
    crossing,
    harmonic_noise,
    loosest,
    noise,
    rates,
    require_rates,
    strictest,
    uniform_noise,
)
from apiece.errors import InfeasibleError, unknown
from apiece.plan import Plan

NOISES = ("batch", "strictest", "loosest", "mean")
TOLERANCE = 2e-4  # of the mean rate
BELOW, BARELY = 1.01, 1 + 1e-4  # times the mean rate found that it may be asked to be
SELDOM = 2e-12  # a rate, twice the least one that is looked for
FEW = 6  # up to so many groups the noise is sought by solving for each; beyond, by a ladder


@dataclass(frozen=True, slots=True)
class Sample:
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
        >>> from apiece import Budgets, assign
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
        """Return the plan with a sampling probability a group.

        Args:
            request: The budgets and the settings of the training.

        Raises:
            InfeasibleError: Where no batch of the size asked can be reached, or a budget allows no
                rate at all.
        """
        if self.noise == "batch":
            z, free = batch_noise(request)
            q = fit_mean(request, free)
        else:
            z = self._noise_multiplier(request)
            q = free = free_rates(request, z)
        require_rates(request, free, z)
        clips = np.full(len(request.groups), request.clip_norm)
        # rounded up, so that stddev/clip is not below z
        stddev = z * request.clip_norm / ROUND
        return request.one_stage(self.name, stddev, q, clips)

    def _noise_multiplier(self, request: Request) -> float:
        groups, q = request.groups, request.mean_probability
        epsilon, delta = groups.epsilon, groups.delta
        if self.noise == "mean":
            mean = np.array([request.share @ epsilon])
            return float(noise(request, mean, delta.min(keepdims=True), q)[0])
        if self.noise == "loosest":
            front = loosest(epsilon, delta)
            return float(noise(request, epsilon[front], delta[front], q).min())
        front = strictest(epsilon, delta)
        return float(noise(request, epsilon[front], delta[front], q).max())


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
    floor = _floor(request)
    return _shared(request, max(least, floor), max(most, floor))


def _shared(request: Request, least: float, most: float) -> tuple[float, Floats]:
    """Return `batch_noise` between two noise multipliers."""
    if len(request.groups) > FEW:
        return _laddered(request, least, most)
    follow = Follow(request, request.target, request.groups.delta, request.share)

    def room(z: float) -> float:
        mean = float(request.share @ follow.at(z))
        return float(np.log(max(mean / request.mean_probability, 1e-300)))

    z = crossing(room, harmonic_noise(request), least, most)
    return z, follow.closely(z)


def _floor(request: Request) -> float:
    """Return the noise multiplier below which somebody would have no rate at all."""
    epsilon, delta = request.target, request.groups.delta
    if len(request.groups) > FEW:  # below the lowest rung of a ladder
        epsilon, delta = 0.97 * epsilon.min(keepdims=True), delta.min(keepdims=True)
    return uniform_noise(request, epsilon, delta, SELDOM)


def _laddered(request: Request, least: float, most: float) -> tuple[float, Floats]:
    """Return `batch_noise` of many groups; what interpolation missed is made up for."""
    allowed = np.log(BELOW if many(request) else BARELY)
    z = _ladder_noise(request, least, most)
    for _ in range(20):
        free = free_rates(request, z)
        missing = float(np.log(request.mean_probability / (request.share @ free)))
        if missing <= allowed:
            break
        # Rates grow faster than z: half of what is missing, and the loop makes up for the rest.
        z *= float(np.exp(0.5 * missing + TOLERANCE))
    return z, free


def _ladder_noise(request: Request, least: float, most: float) -> float:
    """Return the noise multiplier of `batch_noise`, sought with interpolated rates."""
    people = Population.of(request).summary()
    # on rungs a rate lies half a step lower on average; solved one by one, where ε is by a hair
    lost = STEP / 2 if many(request) else 1e-3
    aim = float(np.log(request.mean_probability)) + lost

    def room(z: float) -> float:
        ladder = rate_ladder(request, people, z)
        return float(np.log(people.share @ np.exp(ladder.estimate(people)))) - aim

    return crossing(room, harmonic_noise(request), least, most, slope=2.5, tolerance=2 * TOLERANCE)


def free_rates(request: Request, z: float) -> Floats:
    """Return each group's largest rate at one noise multiplier."""
    if many(request):
        everyone = Population.of(request)
        return np.exp(rate_ladder(request, everyone, z).place(everyone))
    return rates(request, request.target, request.groups.delta, z)


def fit_mean(request: Request, q: Floats) -> Floats:
    """Return `q` scaled down, which is safe, to the mean asked.

    On a ladder of levels the mean may stay below it by up to 1 %; the plan then says what it is.
    Raises `InfeasibleError` where the mean is below it by more than rounding.
    """
    factor = request.mean_probability / float(request.share @ q)
    if factor > (BELOW if many(request) else BARELY):
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: these budgets reach at most "
            f"{request.expected_batch_size / factor:g}; ask for that"
        )
    return q * min(1.0, factor)
