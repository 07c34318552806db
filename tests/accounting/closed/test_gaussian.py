"""Plain Gaussians: μ, ρ and the profile of one of them."""

import math

import numpy as np
import pytest

from apiece.accounting.exact import GaussianProfile, PureProfile, mu
from apiece.errors import UnsupportedError
from apiece.mechanisms import Composed, Gaussian, Laplace, Repeated
from refusals import refused


def test_mu_is_the_root_of_the_sum_of_squares() -> None:
    both = Composed(Repeated(Gaussian(3.0), 7), Gaussian(0.5))
    assert mu(both) == pytest.approx(math.sqrt(7 / 9 + 4))
    assert mu(Composed()) == 0
    with refused(UnsupportedError, "Laplace"):
        mu(Composed(Gaussian(1.0), Laplace(1.0)))


def test_epsilon_inverts_delta() -> None:
    profile, deltas = GaussianProfile(1.3), np.array([0.1, 1e-5, 1e-12])
    lower, upper = profile.epsilon(deltas)
    assert (profile.delta(upper).upper <= deltas).all()
    assert (profile.delta(lower).lower >= deltas * (1 - 1e-9)).all()
    assert (upper - lower <= 1e-9 * upper).all()


def test_nothing_released_is_nothing_known() -> None:
    nothing = PureProfile(0.0)
    assert nothing.delta(np.zeros(2)).upper.tolist() == [0, 0]
    assert nothing.epsilon(np.array([1e-9])).upper.tolist() == [0]
