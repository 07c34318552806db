"""A coin before a composition: against closed forms, quadrature-free identities and exact sums."""

import itertools
import math

import numpy as np
import pytest

from apiece.accounting import nested, pld, privacy_curve
from apiece.errors import RangeError
from apiece.mechanisms import Composed, Gaussian, Laplace, Repeated, Sampled

RUN = Repeated(Sampled(Gaussian(2.0), 0.05), 300)


def test_a_certain_coin_composes_like_the_closed_form() -> None:
    part = nested._Part(pld.profile(Gaussian(4.0)), 1.0)
    composed = nested._composed((part,) * 4)
    deltas = np.array([1e-5, 1e-8, 1e-12])
    exact = privacy_curve(Gaussian(2.0), method="gdp").epsilon(deltas)
    upper = composed.epsilon(deltas).upper
    assert (upper >= exact.lower).all()
    assert upper == pytest.approx(exact.upper, rel=1e-4)


def test_one_coin_is_the_amplification_formula() -> None:
    inner, outer = privacy_curve(RUN), privacy_curve(Sampled(RUN, 0.3))
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        level = math.log1p(math.expm1(epsilon) / 0.3)
        lower, upper = inner.delta(level)
        assert outer.delta(epsilon).upper >= 0.3 * lower
        assert outer.delta(epsilon).upper == pytest.approx(0.3 * upper, rel=2e-3)


def test_more_chances_cost_more_and_less_than_no_coin() -> None:
    spent = [
        privacy_curve(Composed(*[Sampled(RUN, p)] * 2)).epsilon(1e-6).upper for p in (0.1, 0.5, 0.9)
    ]
    assert spent == sorted(spent)
    assert spent[-1] < privacy_curve(Repeated(RUN, 2)).epsilon(1e-6).upper
    twice = privacy_curve(Composed(Sampled(RUN, 0.5), Gaussian(3.0))).epsilon(1e-6).upper
    assert twice > privacy_curve(Sampled(RUN, 0.5)).epsilon(1e-6).upper


def test_against_an_exact_sum_of_two_rounds_of_laplace() -> None:
    """Laplace noise has atoms at ±ε and a density between: bound by its own randomized response."""
    inner = Repeated(Laplace(2.0), 2)
    upper = privacy_curve(Repeated(Sampled(inner, 0.4), 2)).epsilon(1e-9).upper
    # any post-processing is a lower bound: the sign of each of the four outputs
    p = 1 - 0.5 * math.exp(-0.25)  # threshold in the middle: P[x + Lap(2) > 1/2], x = 1
    q = 0.5 * math.exp(-0.25)
    both = {}
    for bits in itertools.product((0, 1), repeat=4):
        chance = [1.0, 1.0]
        for world, joined in enumerate((0.4, 0.0)):
            for one in (bits[:2], bits[2:]):
                there = math.prod(p if b else 1 - p for b in one)
                absent = math.prod(q if b else 1 - q for b in one)
                chance[world] *= joined * there + (1 - joined) * absent
        both[bits] = chance
    lower = max(abs(math.log(a / b)) for a, b in both.values())
    assert lower <= upper <= 2 * math.log1p(0.4 * math.expm1(1.0)) * (1 + 1e-3)


def test_past_the_range_is_an_error() -> None:
    with pytest.raises(RangeError):
        privacy_curve(Sampled(RUN, 0.3)).epsilon(1e-30)
