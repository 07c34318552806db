"""The normal tails against mpmath, which sums in sixty digits."""

import math

import mpmath
import numpy as np
import pytest

from apiece.numerics.normal import density, invert_log_tail, log_tail, mills, quantile, tail
from apiece.numerics.rounding import UNIT

FEW = 8  # units in the last place, as `gaussian_profile` counts on
PLACES = np.concatenate([
    np.linspace(-37.0, 37.0, 371),
    *([a - 1e-9, a, a + 1e-9] for a in (math.sqrt(2) * 0.46875, math.sqrt(2) * 4)),
])  # fmt: skip


def off(found: np.ndarray, exact: list[mpmath.mpf]) -> float:
    """Return the largest relative error, in units."""
    return max(abs(float((f - e) / e)) for f, e in zip(found.tolist(), exact, strict=True)) / UNIT


@pytest.fixture(scope="module", autouse=True)
def digits() -> object:
    with mpmath.workdps(60):
        yield


def exact_tail(x: float) -> mpmath.mpf:
    return mpmath.erfc(mpmath.mpf(x) / mpmath.sqrt(2)) / 2


def test_tails_and_density_are_right_to_a_few_units() -> None:
    exact = [exact_tail(x) for x in PLACES.tolist()]
    assert off(tail(PLACES), exact) < FEW
    assert off(density(PLACES), [mpmath.npdf(x) for x in PLACES.tolist()]) < FEW
    right = PLACES[PLACES > -8].tolist()
    assert off(log_tail(right), [mpmath.log(exact_tail(x)) for x in right]) < FEW


def test_mills_ratio_is_right_to_a_few_units() -> None:
    x = np.append(np.abs(PLACES), np.geomspace(40.0, 1e4, 50))
    exact = [exact_tail(each) / mpmath.npdf(each) for each in x.tolist()]
    assert off(mills(x), exact) < FEW
    assert off(mills(x) * (1 + 2 * FEW * UNIT), exact) > FEW  # a fault of so little is seen


def test_far_out_nothing_overflows() -> None:
    with np.errstate(all="raise", under="ignore"):
        assert tail([math.inf, -math.inf, 1e200]).tolist() == [0.0, 1.0, 0.0]
        assert log_tail([math.inf, 1e200]).tolist() == [-math.inf, -math.inf]
        assert mills([1e300, math.inf])[1] == 0.0
        assert invert_log_tail([-math.inf, 0.0]).tolist() == [math.inf, -math.inf]


def test_the_place_of_a_tail_has_that_tail() -> None:
    masses = -np.append(np.geomspace(1e-12, 1e8, 2000), math.log(2))
    found = log_tail(invert_log_tail(masses))
    assert (np.abs(found / masses - 1) < 1e-12)[masses < -0.7].all()
    # nearer 0 the other tail is what is exact
    near = masses[masses > -0.7]
    assert np.allclose(tail(-invert_log_tail(near)), -np.expm1(near), rtol=1e-13, atol=0)
    assert np.allclose(quantile([0.025, 0.5, 0.975]), [-1.95996398454005, 0, 1.95996398454005])
