"""Noise and rates for whole arrays of budgets: the safe end, and nearly all is spent."""

import numpy as np
import pytest

from apiece import accounting
from apiece.errors import InfeasibleError
from refusals import refused


@pytest.mark.parametrize("method", ["pld", "rdp"])
def test_calibrations_are_safe_and_nearly_all_is_spent(method: str) -> None:
    epsilon = np.array([0.2, 1.0, 3.0, 9.0])
    z = accounting.noise_multipliers(
        epsilon=epsilon, delta=1e-5, sampling_probability=0.02, steps=500, method=method
    )
    q = accounting.sampling_probabilities(
        epsilon=epsilon, delta=1e-5, noise_multiplier=1.5, steps=500, method=method
    )
    for parameters in (
        {"noise_multiplier": z, "sampling_probability": 0.02},
        {"noise_multiplier": 1.5, "sampling_probability": q},
    ):
        spent = accounting.epsilons(**parameters, steps=500, delta=1e-5, method=method).upper
        assert (spent <= epsilon).all()
        assert (spent >= 0.999 * epsilon).all()


def test_less_noise_than_returned_is_not_safe() -> None:
    """Negative control: 1 % below the multiplier returned, even the lower bound is above ε."""
    z = accounting.noise_multipliers(
        epsilon=1.0, delta=1e-5, sampling_probability=0.00853, steps=9375
    )
    lower = accounting.epsilons(
        noise_multiplier=0.99 * z, sampling_probability=0.00853, steps=9375, delta=1e-5
    ).lower
    assert lower > 1.0


def test_full_participation_where_it_costs_less() -> None:
    q = accounting.sampling_probabilities(
        epsilon=[1e3, 1.0], delta=1e-5, noise_multiplier=2.0, steps=10
    )
    assert q[0] == 1.0
    assert 0 < q[1] < 1


def test_budgets_are_solved_in_step_with_very_different_ones() -> None:
    """Each entry as close as alone, equal entries equal, and the ends of the range among them."""
    epsilon = np.array([1e-3, 0.5, 2.0, 400.0, 2.0])
    settings = {"delta": 1e-6, "steps": 200}
    z = accounting.noise_multipliers(
        epsilon=epsilon, sampling_probability=[0.1, 0.1, 0.0, 0.1, 0.0], **settings
    )
    assert z[2] == z[4] == 0.05
    q = accounting.sampling_probabilities(epsilon=epsilon, noise_multiplier=0.8, **settings)
    assert q[2] == q[4]
    assert q[3] == 1  # full participation costs less than 400
    assert (np.diff(q[:4]) > 0).all()
    spent_z = accounting.epsilons(noise_multiplier=z[:2], sampling_probability=0.1, **settings)
    spent_q = accounting.epsilons(noise_multiplier=0.8, sampling_probability=q, **settings)
    for spent, asked in ((spent_z, epsilon[:2]), (spent_q, epsilon)):
        assert (spent.upper <= asked).all()
        least = np.where(asked < 0.01, 0.9, 0.999)  # bounds on so small an ε are further apart
        assert (spent.upper >= least * asked)[asked < 400].all()


def test_the_infeasible_entry_is_named() -> None:
    with refused(InfeasibleError, "epsilon", 1e-12):
        accounting.noise_multipliers(
            epsilon=[1.0, 1e-12], delta=1e-15, sampling_probability=0.5, steps=10**6
        )


@pytest.mark.parametrize("guess", [1e-9, 0.06, 0.9, 1.1, 40.0, 1e12, np.nan, -1.0, np.inf])
def test_no_guess_is_believed(guess: float) -> None:
    """The noise and the rate are as safe and as close from any."""
    asked = {"epsilon": 1.0, "delta": 1e-5, "steps": 500}
    z = float(accounting.noise_multipliers(**asked, sampling_probability=0.02, guess=guess))
    q = float(accounting.sampling_probabilities(**asked, noise_multiplier=1.5, guess=guess))
    for noise, rate in ((z, 0.02), (1.5, q)):
        setting = {"noise_multiplier": noise, "sampling_probability": rate, "steps": 500}
        assert 0.998 <= accounting.epsilons(**setting, delta=1e-5).upper <= 1  # type: ignore[arg-type]
