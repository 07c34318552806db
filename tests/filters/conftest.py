"""The exact δ(ε) of a Gaussian, for whoever needs it."""

from collections.abc import Callable

import pytest
from mpmath import mp, mpf


@pytest.fixture(scope="session")
def exact_delta() -> Callable[[float, float], mpf]:
    """δ(ε) of μ-GDP with 60 digits (Balle and Wang 2018, Thm 8)."""

    def delta(mu: float, epsilon: float) -> mpf:
        with mp.workdps(60):
            m, e = mpf(mu), mpf(epsilon)
            return mp.ncdf(m / 2 - e / m) - mp.exp(e) * mp.ncdf(-m / 2 - e / m)

    return delta
