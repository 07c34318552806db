"""Costs (μ², slack): each account pays the pair that suits it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.errors import InputError
from apiece.filters import Costs, GaussianFilter, costs_of
from apiece.filters.costs import cheapest
from apiece.mechanisms import Gaussian, Laplace, Repeated, Sampled
from apiece.numerics.gaussian import gaussian_delta
from refusals import refused


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
    assert float(gaussian_delta(math.sqrt(loss[0, -1]), 1.0).upper) > 0


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
    with refused(InputError, 2, "people", 3, "accounts"):
        GaussianFilter([1.0] * 3, 1e-5).admit_costs(one)
    with refused(InputError, "slack"):
        GaussianFilter(1.0, 1e-5, slack=1.0)
    assert cheapest(np.array([[0, 9]]), np.array([[9, 0]]), np.array([0]), np.array([0])).size == 1
