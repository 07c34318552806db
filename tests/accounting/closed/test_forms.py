"""Closed forms contain the exact value, tightly, in 160-digit arithmetic."""

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece._types import Floats
from apiece.accounting import Bounds
from apiece.accounting.closed import forms as closed

laws = settings(max_examples=150, derandomize=True, deadline=None)


def exact_gaussian(z: float, epsilon: float) -> mp.mpf:
    z, epsilon = mp.mpf(z), mp.mpf(epsilon)
    half, centre = 1 / (2 * z), epsilon * z
    return mp.ncdf(half - centre) - mp.exp(epsilon) * mp.ncdf(-half - centre)


def exact_sampled(z: float, q: float, epsilon: float, *, add: bool) -> mp.mpf:
    """The hockey-stick by its likelihood-ratio region, without any change of variables."""
    z, q, epsilon = mp.mpf(z), mp.mpf(q), mp.mpf(epsilon)
    t = mp.exp(epsilon)
    # (1−q)Q + qP against t·Q: ratio 1 − q + q·e^w above t; or Q against t of that: below 1/t.
    bound = ((1 / t if add else t) - 1 + q) / q
    edge = z * z * mp.log(bound) + mp.mpf(1) / 2 if bound > 0 else -mp.inf

    def above(mean: int) -> mp.mpf:
        return mp.ncdf((mean - edge) / z) if bound > 0 else mp.mpf(1)

    p1, q1 = above(1), above(0)
    if add:
        return (1 - q1) - t * ((1 - q) * (1 - q1) + q * (1 - p1))
    return (1 - q) * q1 + q * p1 - t * q1


def contains(bounds: Bounds, exact: mp.mpf, *, rtol: float) -> None:
    lower, upper = float(bounds.lower[0]), float(bounds.upper[0])
    assert mp.mpf(lower) <= exact <= mp.mpf(upper)
    if exact > 1e-250:
        assert upper - lower <= rtol * exact + 1e-290


@laws
@given(st.floats(-1.5, 3.0), st.floats(-1.0, 1.0), st.floats(0.0, 1.0))
def test_gaussian(log_z: float, sign: float, share: float) -> None:
    """δ from 1 down to about 1e-120, at ε of either sign."""
    z = 10**log_z
    epsilon = float(np.sign(sign)) * share * min(0.5 / z**2 + 23 / z, 600.0)
    with mp.workdps(160):
        contains(closed.gaussian(z, np.array([epsilon])), exact_gaussian(z, epsilon), rtol=1e-6)


@laws
@given(st.floats(-0.7, 1.5), st.floats(-5.0, -0.01), st.floats(0.0, 1.0), st.booleans())
def test_one_sampled_step(log_z: float, log_q: float, share: float, add: bool) -> None:
    z, q = 10**log_z, 10**log_q

    def inner(epsilon: Floats) -> Bounds:
        return closed.gaussian(z, epsilon)

    epsilon = share * (-np.log1p(-q) if add else min(0.5 / z**2 + 10 / z, 600.0))
    form = closed.sampled_add if add else closed.sampled_remove
    with mp.workdps(160):
        exact = exact_sampled(z, q, epsilon, add=add)
        contains(form(inner, q, np.array([epsilon])), exact, rtol=1e-6)


@pytest.mark.parametrize("left", [1e-3, 1e-6, 1e-9, 1e-12, 1e-14])
@pytest.mark.parametrize("z", [0.1, 0.3, 1.0])
def test_add_direction_where_hardly_any_share_is_left(z: float, left: float) -> None:
    """ε just below −log(1 − q), where rounding moves the inner ε most."""
    q = 0.3
    epsilon = np.array([-np.log1p(-q) * (1 - left)])
    bounds = closed.sampled_add(lambda e: closed.gaussian(z, e), q, epsilon)
    with mp.workdps(400):
        contains(bounds, exact_sampled(z, q, float(epsilon[0]), add=True), rtol=np.inf)
