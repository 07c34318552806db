"""One step behind a coin: between no coin and no step, and never above the bounded loss."""

import math

import numpy as np
import pytest

from apiece.accounting import privacy_curve
from apiece.accounting.exact import GaussianProfile, OneStep
from apiece.mechanisms import Laplace, Sampled

EPSILON, DELTA = np.array([0.0, 0.3, 2.0]), np.array([0.05, 1e-4, 1e-9])


def test_a_certain_coin_is_none() -> None:
    plain, coined = GaussianProfile(0.8), OneStep(0.8, 1.0)
    for one, other in zip(plain.delta(EPSILON), coined.delta(EPSILON), strict=True):
        assert other == pytest.approx(one, rel=1e-12)


@pytest.mark.parametrize("q", [0.5, 1e-3, 1e-9])
def test_amplification_by_the_formula(q: float) -> None:
    """δ at log(1 + q(e^ε − 1)) is q times that at ε without a coin (remove, the larger one)."""
    behind = np.log1p(q * np.expm1(EPSILON))
    found, plain = OneStep(0.8, q).delta(behind), GaussianProfile(0.8).delta(EPSILON)
    assert found.upper == pytest.approx(q * plain.upper, rel=1e-6)


@pytest.mark.parametrize("q", [1.0, 0.2])
def test_laplace_losses_are_bounded(q: float) -> None:
    b = 0.7
    most = math.log1p(q * math.expm1(1 / b))
    found = privacy_curve(Sampled(Laplace(b), q)).epsilon([*DELTA, 1e-300]).upper
    assert (found <= most * (1 + 1e-14)).all()
    assert found[-1] == pytest.approx(most, rel=1e-9)
