"""Closed forms contain the exact value, tightly, in 160-digit arithmetic."""

import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece._types import Floats
from apiece.accounting import Bounds
from apiece.accounting import exact as closed

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


def exact_laplace(b: float, q: float, epsilon: float, *, add: bool) -> mp.mpf:
    """One step behind a coin, by the region of the noise in which the ratio is above e^ε."""
    b, q, epsilon = mp.mpf(b), mp.mpf(q), mp.mpf(epsilon)
    t = mp.exp(epsilon)
    level = ((1 / t if add else t) - 1 + q) / q
    rho = mp.log(level) if level > 0 else -mp.inf
    end = 1 / b
    if rho >= end:
        p1, q1 = (mp.mpf(1), mp.mpf(1)) if add else (mp.mpf(0), mp.mpf(0))
    elif rho < -end:
        p1, q1 = (mp.mpf(0), mp.mpf(0)) if add else (mp.mpf(1), mp.mpf(1))
    else:
        x = (rho * b + 1) / 2  # the place in [0, 1] where the ratio is e^rho
        p1, q1 = 1 - mp.exp((x - 1) / b) / 2, mp.exp(-x / b) / 2  # masses above it
        p1, q1 = (1 - p1, 1 - q1) if add else (p1, q1)
    with_record = (1 - q) * q1 + q * p1
    return q1 - t * with_record if add else with_record - t * q1


def rare_draws(count: int, seed: int) -> list[tuple[str, float, float, float]]:
    """Laplace and Gaussian steps, coins down to 1e-16 and some to 1e-300, ε down to about q."""
    random, draws = np.random.default_rng(seed), []
    for _ in range(count):
        kind = str(random.choice(["laplace", "gaussian"]))
        q = 10 ** random.uniform(*random.choice([(-16, -1), (-300, -16), (-14, -10)]))
        if kind == "laplace":
            noise = 10 ** random.uniform(-2.5, 1)
            rho = random.uniform(0, min(1 / noise, 650.0))
        else:
            noise = 10 ** random.uniform(-1.3, 1)
            rho = random.uniform(0, min(0.5 / noise**2 + 8 / noise, 650.0))
        draws.append((kind, noise, q, float(mp.log1p(q * mp.expm1(rho)))))
    return draws


EXACT = {"laplace": exact_laplace, "gaussian": exact_sampled}


@pytest.mark.parametrize("count", [250, pytest.param(6000, marks=pytest.mark.slow)])
def test_rare_steps_contain_the_exact_value(count: int) -> None:
    """ε and (e^ε − 1)/q of all sizes: the exact δ is between the bounds, which are close."""
    overflowed = 0
    for kind, noise, q, epsilon in rare_draws(count, 29):
        plain = partial(getattr(closed, kind), noise)
        for add, form in ((False, closed.sampled_remove), (True, closed.sampled_add)):
            bounds = form(plain, q, np.array([epsilon]))
            with mp.workdps(450):
                exact = EXACT[kind](noise, q, epsilon, add=add)
                assert bounds.lower[0] <= exact <= bounds.upper[0], (kind, noise, q, epsilon, add)
                if not add and exact > 1e-250:
                    assert bounds.upper[0] - bounds.lower[0] <= 1e-9 * exact
        overflowed += math.expm1(epsilon) / q > 1e15
    assert overflowed > count / 10


def test_what_is_beyond_1e15_is_not_dropped() -> None:
    """Negative control: without log(1 − e^−ε) the exact value is outside the bounds, often."""
    seen = 0
    for kind, noise, q, epsilon in rare_draws(250, 29):
        if math.expm1(epsilon) / q > 1e15:
            wrong = getattr(closed, kind)(noise, np.array([epsilon - math.log(q)]))
            with mp.workdps(450):
                seen += EXACT[kind](noise, q, epsilon, add=False) > q * float(wrong.upper[0])
    assert seen >= 5
