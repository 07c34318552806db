"""Costs (μ², slack): each account pays the pair that suits it, and no adversary overspends one.

The adversaries choose the next mechanism, and which of its pairs is paid, from all outcomes so far.
Over small discrete mechanisms the best of them is found exactly, by going through all outcomes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.errors import InputError
from apiece.filters import (
    Costs,
    GaussianFilter,
    cheapest,
    costs_of,
    gaussian_budget,
    gaussian_delta,
)
from apiece.mechanisms import Finite, Gaussian, Laplace, Mechanism, Repeated, Sampled

TOOLS: list[Mechanism] = [
    Finite([0.7, 0.3], [0.3, 0.7]),  # randomized response
    Finite([0.55, 0.45], [0.45, 0.55]),
    Sampled(Finite([0.95, 0.05], [0.05, 0.95]), 0.15),
    Finite([0.97, 0.03, 0.0], [0.97, 0.0, 0.03]),  # tells all, now and then
    Finite([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]),
]
SLACKS = (0.0, 0.01, 0.031)
Pair = tuple[float, float]


def outcomes(mechanism: Mechanism) -> list[Pair]:
    q = mechanism.probability if isinstance(mechanism, Sampled) else 1.0
    inner = mechanism.mechanism if isinstance(mechanism, Sampled) else mechanism
    pairs = zip(inner.with_record, inner.without_record, strict=True)
    return [((1 - q) * without + q * with_, without) for with_, without in pairs]


def pairs_of(mechanism: Mechanism) -> list[Pair]:
    from apiece.accounting import gaussian_with_slack

    mu = np.asarray(gaussian_with_slack(privacy_curve(mechanism), np.array(SLACKS)).upper)
    return [(m * m, s) for m, s in zip(mu.tolist(), SLACKS, strict=True) if m < math.inf]


def best(
    menu: list[tuple[list[Pair], list[Pair]]],
    fits: Callable[[float, float], bool],
    tilt: float,
    depth: int,
) -> float:
    """The largest P(A) − e^ε Q(A) of everything seen, over all ways to choose what to see."""

    def value(spent: float, told: float, p: float, q: float, left: int) -> float:
        most = max(p - tilt * q, 0.0)
        if left == 0 or p == 0:
            return most
        for seen, prices in menu:
            for loss, slack in prices:
                if fits(spent + loss, told + slack):
                    most = max(
                        most,
                        sum(
                            value(spent + loss, told + slack, p * a, q * b, left - 1)
                            for a, b in seen
                        ),
                    )
                    break  # a cheaper pair of the same mechanism shows no more
        return most

    return value(0.0, 0.0, 1.0, 1.0, depth)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.08), (0.5, 0.09)])
def test_the_best_adversary_keeps_within_an_account(
    swapped: bool, epsilon: float, delta: float
) -> None:
    slack = delta * 0.4
    budget = float(gaussian_budget(epsilon, delta, slack))
    menu = [([(b, a) if swapped else (a, b) for a, b in outcomes(m)], pairs_of(m)) for m in TOOLS]
    search = partial(best, menu, tilt=math.exp(epsilon), depth=4)
    found = search(lambda loss, told: loss <= budget and told <= slack)
    assert 0.2 * delta < found <= delta
    # Planted: slacks that are not added up, and budgets that are.
    assert search(lambda loss, told: loss <= budget) > delta
    assert search(lambda loss, told: told <= slack and loss <= 40 * budget) > delta


def test_adversaries_who_steer_by_what_was_told_keep_within_an_account() -> None:
    """Gaussian sums, trainings and tellings in turn, by luck so far; estimated, with its error."""
    epsilon, delta, runs, rng = 1.0, 0.05, 40_000, np.random.default_rng(4)
    slack = delta * 0.2
    budget = float(gaussian_budget(epsilon, delta, slack))
    for eager in (False, True):
        loss, spent = np.zeros(runs), np.zeros(runs)
        told = np.zeros(runs)
        for _ in range(12):
            lucky = (loss > 0.3) == eager
            square = np.where(lucky, budget / 3, budget / 30)
            s = np.where(lucky, slack / 8, 0.0)
            fits = (spent + square <= budget) & (told + s <= slack)
            square, s = square * fits, s * fits
            spent, told = spent + square, told + s
            shown = rng.random(runs) < s
            loss += np.where(
                shown, np.inf, square / 2 + np.sqrt(square) * rng.standard_normal(runs)
            )
        gain = np.maximum(1 - np.exp(epsilon - loss), 0.0)  # of the best test, under P
        error = 4 * gain.std() / math.sqrt(runs)
        assert 0.3 * delta < gain.mean() <= delta + error


def test_an_account_pays_by_its_own_budget() -> None:
    costs = costs_of([Repeated(Sampled(Gaussian(2.5), 0.05), 200)], 1e-5)
    loss, slack = costs.rows()
    order = np.argsort(slack[0])
    assert (np.diff(loss[0][order]) <= 0).all()  # more slack, less μ²
    rich, poor = GaussianFilter(8.0, 1e-5, slack=0.1), GaussianFilter(1.2, 1e-5, slack=0.1)
    for account in (rich, poor):
        assert account.admit_costs(costs).all()
        shares = (
            float(account.spent / account.limit),
            1 - float(account.slack_remaining) / 1e-6,
        )
        assert abs(shares[0] - shares[1]) < 0.6 * max(shares)
    assert rich.slack_remaining > 0.9e-6
    assert poor.slack_remaining < 0.6e-6
    assert not poor.admit_costs(costs).any()
    times = 1
    while rich.admit_costs(costs).any():
        times += 1
    exact = privacy_curve(Repeated(Sampled(Gaussian(2.5), 0.05), 200 * times))
    assert 0.85 * 8.0 < exact.epsilon(1e-5).upper <= 8.0


def test_whose_slack_is_gone_is_refused_but_for_what_needs_none() -> None:
    account = GaussianFilter([3.0, 3.0], 1e-5, slack=0.1)
    training = Costs.fixed([0.01, 0.01], 6e-7)
    assert account.admit_costs(training).tolist() == [True, True]
    assert account.admit_costs(training).tolist() == [False, False]
    assert account.admit(0.1, 1.0).tolist() == [True, True]
    assert account.spent == pytest.approx([0.02, 0.02])
    assert account.slack_remaining == pytest.approx([4e-7, 4e-7])
    without = GaussianFilter([3.0], 1e-5)
    assert without.admit_costs(Costs.fixed([0.01], 1e-300)).tolist() == [False]
    assert without.admit_costs(costs_of([Laplace(2.0)], 1e-5)).tolist() == [True]


def test_the_least_account_that_pays() -> None:
    costs = costs_of([Laplace(2.0), Gaussian(2.0)], 1e-6)
    for delta in (1e-6, 1e-9):
        needs = costs.epsilon(delta)
        for k, least in enumerate(needs):
            for factor, paid in ((1 + 1e-6, True), (1 - 1e-4, False)):
                account = GaussianFilter(least * factor, delta, slack=0.1)
                assert bool(account.admit_costs(costs.of([k]))) is paid
    free = Costs.fixed([0.0], 0.0).epsilon(1e-6)
    assert free.tolist() == [0.0]
    assert Costs(np.array([[math.inf]]), np.array([[0.0]])).epsilon(1e-6).tolist() == [math.inf]


def test_a_gaussian_costs_what_it_costs_as_a_sum() -> None:
    loss, slack = costs_of([Repeated(Gaussian(10.0), 4)], 1e-6).rows()
    assert loss[0][slack[0] == 0] == pytest.approx(0.04, rel=1e-6)
    assert (loss <= 0.04 * (1 + 1e-6)).all()
    assert (loss >= 0.04 * (1 - 1e-3)).all()
    assert float(gaussian_delta(math.sqrt(loss[0, -1]), 1.0)) > 0


def test_costs_that_are_none() -> None:
    for loss, slack in (
        ([[1.0]], [[1.0]]),
        ([[-1.0]], [[0.0]]),
        ([[math.nan]], [[0.0]]),
        ([1.0], [0.0]),
        ([[1.0]], [[0.0, 0.1]]),
        (np.zeros((1, 0)), np.zeros((1, 0))),
    ):
        with pytest.raises(InputError, match=r"^costs: "):
            Costs(np.array(loss), np.array(slack))
    one = Costs.fixed([0.5, 0.25])
    for group in ([2], [-1], [0.5], [[0]]):
        with pytest.raises(InputError, match=r"^group: "):
            one.of(group)
    assert one.of([1, 1]).of([0]).rows()[0].tolist() == [[0.25]]
    with pytest.raises(InputError, match="of 2 people, and there are 3 accounts"):
        GaussianFilter([1.0] * 3, 1e-5).admit_costs(one)
    with pytest.raises(InputError, match="slack"):
        GaussianFilter(1.0, 1e-5, slack=1.0)
    assert cheapest(np.array([[0, 9]]), np.array([[9, 0]]), np.array([0]), np.array([0])).size == 1
