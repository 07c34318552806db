"""The Gaussian with a slack against the loss distributions of dp-accounting."""

import math

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.accounting.slack import gaussian_with_slack
from apiece.filters import costs_of
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.numerics.gaussian import gaussian_delta

CASES = [(2.5, 0.05, 200, 1e-5), (1.0, 0.02, 1465, 1e-5), (4.0, 0.3, 50, 1e-9)]


def theirs(z: float, q: float, times: int, *, pessimistic: bool) -> object:
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    return pld.from_gaussian_mechanism(
        z,
        value_discretization_interval=2e-3 * min(max(q * math.sqrt(times) / z, 1e-2), 1.0),
        sampling_prob=q,
        pessimistic_estimate=pessimistic,
        use_connect_dots=pessimistic,
    ).self_compose(times)


@pytest.mark.parametrize(("z", "q", "times", "delta"), CASES)
def test_their_profile_lies_below_and_just_below(
    z: float, q: float, times: int, delta: float
) -> None:
    slack = delta / 10
    mu = gaussian_with_slack(privacy_curve(Repeated(Sampled(Gaussian(z), q), times)), slack)
    low, high = (theirs(z, q, times, pessimistic=each) for each in (False, True))
    epsilon = np.linspace(0, float(high.get_epsilon_for_delta(slack)), 120)  # type: ignore[attr-defined]
    least = np.asarray(low.get_delta_for_epsilon(epsilon))  # type: ignore[attr-defined]
    most = np.asarray(high.get_delta_for_epsilon(epsilon))  # type: ignore[attr-defined]
    allowed = slack + (1 - slack) * gaussian_delta(mu.upper, epsilon).upper
    assert (least <= allowed * (1 + 1e-6)).all()
    # With one per cent less it does not hold, by their own accounting.
    fewer = slack + (1 - slack) * gaussian_delta(0.99 * mu.lower, epsilon).upper
    assert (most > fewer).any()


@pytest.mark.parametrize(("z", "q", "times", "delta"), CASES)
def test_an_account_is_never_below_their_epsilon_and_a_hundredth_above(
    z: float, q: float, times: int, delta: float
) -> None:
    costs = costs_of([Repeated(Sampled(Gaussian(z), q), times)], delta)
    least = theirs(z, q, times, pessimistic=False).get_epsilon_for_delta(delta)  # type: ignore[attr-defined]
    most = theirs(z, q, times, pessimistic=True).get_epsilon_for_delta(delta)  # type: ignore[attr-defined]
    assert least <= costs.epsilon(delta)[0] <= 1.01 * most
