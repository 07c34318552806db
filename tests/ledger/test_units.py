"""Privacy in whole units: charges up, budgets down, and nothing that is no number."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import BudgetError, InputError
from apiece.filters import Costs
from apiece.filters.costs import cheapest
from apiece.ledger import codec
from apiece.ledger.charging import Demand
from apiece.numerics.gaussian import gaussian_delta
from refusals import refused

UNIT, SLACK = Fraction(codec.UNIT), Fraction(codec.SLACK_UNIT)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.floats(0, 1e4), st.floats(1e-3, 1e3))
def test_a_charge_is_never_below_the_loss(norm: float, stddev: float) -> None:
    ((loss, slack),) = (
        Demand.of(Costs.fixed(codec.compute_losses([norm], stddev))).pairs[0].tolist()
    )
    exact = (Fraction(norm) / Fraction(stddev)) ** 2
    assert loss * UNIT >= min(exact, codec.CAP * UNIT)
    assert norm > 0 or loss == 0
    assert slack == 0


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.floats(0, 1e9), st.floats(0, 0.5))
def test_a_pair_is_never_below_its_cost(loss: float, slack: float) -> None:
    ((first, second),) = Demand.of(Costs.fixed([loss], slack)).pairs[0].tolist()
    assert first * UNIT >= min(Fraction(loss), codec.CAP * UNIT)
    assert second * SLACK >= min(Fraction(slack), codec.CAP * SLACK)


def test_a_tiny_contribution_is_not_free() -> None:
    tiny = [1e-300, 5e-324, 0.0]
    assert codec.to_units(codec.compute_losses(tiny, 1e10)).tolist() == [1, 1, 0]


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-9, 1e-3, 0.3])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.9])
def test_an_account_keeps_its_promise(epsilon: float, delta: float, share: float) -> None:
    ((loss, slack),) = codec.compute_limits(np.array([epsilon]), np.array([delta]), share).tolist()
    told = float(slack * SLACK)
    assert told <= share * delta
    assert told == pytest.approx(min(share * delta, 2.0**-10), rel=1e-4)
    mu = float(loss * UNIT) ** 0.5
    assert told + (1 - told) * float(gaussian_delta(mu, epsilon).upper) <= delta * (1 + 1e-13)
    assert told + (1 - told) * float(gaussian_delta(mu * 1.001, epsilon).upper) > delta * (1 - 1e-3)


@pytest.mark.parametrize("delta", [1e-15, 1e-12, 1e-5])
def test_a_whole_slack_is_in_the_account(delta: float) -> None:
    """Rounded up, what is charged at once still fits into what is rounded down."""
    from apiece.filters import costs_of
    from apiece.mechanisms import Gaussian, Repeated, Sampled

    costs = costs_of([Repeated(Sampled(Gaussian(3.0), 0.1), 50)], delta)
    limit = codec.compute_limits(np.array([50.0]), np.array([delta]))
    pairs = Demand.of(costs).pairs[0]  # of .9 of δ, .8 and so on; a tenth is the ninth
    assert pairs[8, 1] <= limit[0, 1] <= pairs[8, 1] * 1.001
    assert pairs[7, 1] > limit[0, 1]
    assert cheapest(pairs[None, :, 0], pairs[None, :, 1], limit[:, 0], limit[:, 1]).tolist() != [0]


def test_a_loss_past_every_budget_is_the_cap() -> None:
    charges = codec.to_units(np.array([1e300, np.inf]))
    assert charges.tolist() == [codec.CAP, codec.CAP]
    assert int(charges[0]) + int(charges[1]) < 2**63  # two of them add up
    (least,) = codec.compute_limits(np.array([1e-3]), np.array([0.999]), 0.999)
    assert least[1] < codec.to_units(np.array([0.9]), codec.SLACK_UNIT)[0]


@pytest.mark.parametrize("values", [[-1.0], [np.nan], [np.inf], ["a"], [None]])
def test_norms_that_are_none(values: list[object]) -> None:
    with refused(InputError, "norms"):
        codec.compute_losses(values, 1.0)


def test_budgets_that_no_units_hold() -> None:
    for epsilon, remedy in ((1e-12, "a larger epsilon"), (1e9, "a smaller epsilon")):
        with pytest.raises(BudgetError, match=rf"epsilon\[0\] = .*give {remedy}"):
            codec.compute_limits(np.array([epsilon]), np.array([1e-12]))
