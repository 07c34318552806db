"""Privacy in whole units: charges up, budgets down, and nothing that is no number."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import BudgetError, InputError, OptionError
from apiece.filters import gaussian_mu, renyi_budget
from apiece.ledger import units

UNIT = Fraction(units.UNIT)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.floats(0, 1e4), st.floats(1e-3, 1e3))
def test_a_charge_is_never_below_the_loss(norm: float, stddev: float) -> None:
    loss = units.losses("gaussian", None, [norm], stddev)
    exact = (Fraction(norm) / Fraction(stddev)) ** 2
    charged = int(units.to_units(loss)[0]) * UNIT
    assert charged >= min(exact, units.CAP * UNIT)
    assert norm > 0 or charged == 0


def test_a_tiny_contribution_is_not_free() -> None:
    tiny = [1e-300, 5e-324, 0.0]
    assert units.to_units(units.losses("renyi", 2.0, tiny, 1e10)).tolist() == [1, 1, 0]


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_a_limit_is_never_above_the_budget(epsilon: float, delta: float) -> None:
    one = np.array([epsilon]), np.array([delta])
    gaussian = int(units.limits("gaussian", None, *one)[0]) * UNIT
    assert gaussian <= Fraction(float(gaussian_mu(*one)[0])) ** 2
    order = 200.0 if epsilon > 0.01 else 1e4
    renyi = int(units.limits("renyi", order, *one)[0]) * UNIT
    assert renyi <= Fraction(float(renyi_budget(*one, order)[0]))


def test_a_loss_past_every_budget_is_the_cap() -> None:
    charges = units.to_units(np.array([1e300, np.inf]))
    assert charges.tolist() == [units.CAP, units.CAP]
    assert int(charges[0]) + int(charges[1]) < 2**63  # two of them add up


@pytest.mark.parametrize("values", [[-1.0], [np.nan], [np.inf], ["a"], [None]])
def test_norms_that_are_none(values: list[object]) -> None:
    with pytest.raises(InputError, match=r"^norms"):
        units.losses("gaussian", None, values, 1.0)


def test_settings_of_a_ledger() -> None:
    assert units.settings(None, None) == ("gaussian", None)
    assert units.settings("renyi", 16) == ("renyi", 16.0)
    with pytest.raises(OptionError, match="did you mean 'renyi'"):
        units.settings("reny", 16)
    for method, order in (("gaussian", 16), ("renyi", None), ("renyi", 1.0), ("renyi", np.nan)):
        with pytest.raises(InputError, match="order"):
            units.settings(method, order)


def test_a_budget_that_an_order_cannot_carry_names_the_remedy() -> None:
    with pytest.raises(BudgetError, match="one of 2 carries epsilon above"):
        units.limits("renyi", 2.0, np.array([0.1]), np.array([1e-5]))
