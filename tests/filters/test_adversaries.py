"""Adversaries who choose the next mechanism, and which price is paid, from all that was seen.

Over small discrete mechanisms the best of them is found exactly, by dynamic programming over how
likely what was seen is in the two worlds, in whole units as the ledger's. Each planted break of
what is charged lets one through.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting import privacy_curve
from apiece.accounting.slack import gaussian_with_slack
from apiece.filters import Costs, GaussianFilter
from apiece.filters.convert import gaussian_budget
from apiece.mechanisms import Finite, Sampled
from apiece.numerics.gaussian import gaussian_delta

UNIT = 2.0**-40
Pair = tuple[int, int]  # units of μ² and of slack
Tool = tuple[tuple[float, ...], tuple[float, ...]]  # the chances of what is seen, with and without
BASE = 0.3  # log-likelihood ratios of most tools are multiples of it, so that states meet again


def response(odds: float) -> Tool:
    low = 1 / (1 + math.exp(odds))
    return (1 - low, low), (low, 1 - low)


def lopsided() -> Tool:
    """Ratios e^(2·BASE), e^(−BASE) and 1: the two directions differ."""
    first = 0.1
    second = first * math.expm1(2 * BASE) / -math.expm1(-BASE)
    without = (first, second, 1 - first - second)
    return (first * math.exp(2 * BASE), second * math.exp(-BASE), without[2]), without


COIN = 0.15
RARE: Tool = ((COIN * 0.95 + (1 - COIN) * 0.05, COIN * 0.05 + (1 - COIN) * 0.95), (0.05, 0.95))
TELLS: Tool = ((0.98, 0.02, 0.0), (0.98, 0.0, 0.02))  # all, now and then
TOOLS = (response(BASE), response(2 * BASE), lopsided(), RARE, TELLS)
EPSILON, DELTA, SHARE, DEPTH = 1.0, 0.09, 0.5, 6
SLACKS = DELTA * SHARE * np.array([0.0, 0.1, 0.25, 0.5, 1.0]) * (1 - 1e-9)


def priced(tool: Tool) -> list[Pair]:
    curve = privacy_curve(Finite(list(tool[0]), list(tool[1])))
    mu = np.asarray(gaussian_with_slack(curve, SLACKS).upper)
    known = np.isfinite(mu)
    return in_units(mu[known] ** 2, SLACKS[known])


def in_units(loss: Floats, slack: Floats) -> list[Pair]:
    return [
        (math.ceil(each / UNIT), math.ceil(told / UNIT))
        for each, told in zip(loss, slack, strict=True)
    ]


def at_points(tool: Tool, points: list[float], *, sides: tuple[int, ...] = (0, 1)) -> list[Pair]:
    """The least μ by the values of the profile at some ε alone, of some of its directions."""
    needed = np.zeros(SLACKS.shape)
    for side in sides:
        p, q = np.array(tool[side]), np.array(tool[1 - side])
        for epsilon in points:
            delta = np.maximum(p - math.exp(epsilon) * q, 0.0).sum()
            low, high = np.zeros(SLACKS.shape), np.full(SLACKS.shape, 50.0)
            for _ in range(60):
                mid = (low + high) / 2
                told = SLACKS + (1 - SLACKS) * gaussian_delta(mid, epsilon).upper
                low, high = np.where(told < delta, mid, low), np.where(told < delta, high, mid)
            needed = np.maximum(needed, np.where(delta <= SLACKS, 0.0, high))
    return in_units(needed**2, SLACKS)


def account() -> Pair:
    slack = DELTA * SHARE
    return math.floor(float(gaussian_budget(EPSILON, DELTA, slack)) / UNIT), math.floor(
        slack / UNIT
    )


def most_told(
    prices: Callable[[Tool], list[Pair]],
    *,
    swapped: bool = False,
    summed: bool = True,
    tools: tuple[Tool, ...] = TOOLS,
) -> float:
    """The largest P(A) − e^ε·Q(A) of all that is seen, over all ways to choose what to see."""
    menu = [((tool[1], tool[0]) if swapped else tool, prices(tool)) for tool in tools]
    budget, most = account()
    tilt = math.exp(EPSILON)

    @cache
    def value(ratio: float, left: int, loss: int, slack: int) -> float:
        """Per unit of Q; `ratio` is log P − log Q of what was seen, loss and slack what is left."""
        best = max(math.exp(ratio) - tilt, 0.0)
        if left == 0:
            return best
        for (with_, without), pairs in menu:
            for cost, told in pairs:
                if cost > loss or (told > slack if summed else told > most):
                    continue
                rest = loss - cost, slack - told if summed else slack
                best = max(best, sum(
                    b * value(round(ratio + math.log(a / b), 9), left - 1, *rest) if a and b
                    else math.exp(ratio) * a  # seen with the person alone
                    for a, b in zip(with_, without, strict=True)
                ))  # fmt: skip
        return best

    return value(0.0, DEPTH, budget, most)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_best_adversary_keeps_within_an_account(swapped: bool) -> None:
    found = most_told(priced, swapped=swapped)
    assert 0.3 * DELTA < found <= DELTA


def test_slacks_that_are_not_added_up_are_caught() -> None:
    assert most_told(priced, summed=False) > DELTA


def test_a_grid_without_the_envelope_is_caught() -> None:
    """The profile at 0 and where it ends, and not at what lies between."""
    end = max(abs(math.log(a / b)) for a, b in zip(*RARE, strict=True))
    assert most_told(lambda tool: at_points(tool, [0.0, end]), tools=(RARE,)) > DELTA
    between = np.linspace(0.0, end, 50).tolist()
    assert most_told(lambda tool: at_points(tool, between), tools=(RARE,)) <= DELTA


def test_one_direction_alone_is_caught() -> None:
    """Who is charged by what their absence hides, and shown what their presence does."""
    between = np.linspace(0.0, 1.4, 50).tolist()
    assert most_told(lambda tool: at_points(tool, between, sides=(1,)), tools=(RARE,)) > DELTA
    for swapped in (False, True):
        both = most_told(lambda tool: at_points(tool, between), swapped=swapped, tools=(RARE,))
        assert both <= DELTA


def test_a_coin_is_the_tool_that_it_is() -> None:
    inner = Finite([0.95, 0.05], [0.05, 0.95])
    epsilon = np.array([0.0, 0.3, 1.0])
    coined = privacy_curve(Sampled(inner, COIN)).delta(epsilon)
    own = privacy_curve(Finite(list(RARE[0]), list(RARE[1]))).delta(epsilon)
    assert np.asarray(own.upper) == pytest.approx(np.asarray(coined.upper), abs=1e-9)


@pytest.mark.parametrize("eager", [False, True])
def test_adversaries_who_steer_by_what_was_told_keep_within_an_account(eager: bool) -> None:
    """Gaussian sums, trainings and tellings in turn, by luck so far; estimated, with its error."""
    epsilon, delta, runs, rng = 1.0, 0.05, 40_000, np.random.default_rng(4)
    people = GaussianFilter(np.full(runs, epsilon), delta, slack=0.2)
    budget, slack = people.limit[0], delta * 0.2
    loss = np.zeros(runs)
    for _ in range(12):
        lucky = (loss > 0.3) == eager
        square = np.where(lucky, budget / 3, budget / 30)
        s = np.where(lucky, slack / 8, 0.0)
        paid = people.admit_costs(Costs.fixed(square, s))
        square, s = square * paid, s * paid
        shown = rng.random(runs) < s
        loss += np.where(shown, np.inf, square / 2 + np.sqrt(square) * rng.standard_normal(runs))
    assert (people.spent <= people.limit).all()
    gain = np.maximum(1 - np.exp(epsilon - loss), 0.0)  # of the best test, under P
    error = 4 * gain.std() / math.sqrt(runs)
    assert 0.3 * delta < gain.mean() <= delta + error
