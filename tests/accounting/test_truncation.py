"""Jumps: what rare large losses add to δ, against sums over every outcome."""

import itertools

import numpy as np
import pytest

from apiece.accounting.truncation import (
    Jumps,
    Points,
    bound_remainder,
    estimate_epsilon,
    find_slightest_fall,
)

Q = np.array([0.5, 0.4, 0.099, 0.001])
P = np.array([0.45, 0.4, 0.1, 0.05])
LOSS = np.log(P / Q)
TIMES = 4


def jump_part(epsilon: float, *, reverse: bool) -> float:
    """The most that outcomes with a jump (the last outcome of a step) add to δ(ε), summed up."""
    total = 0.0
    for outcome in itertools.product(range(4), repeat=TIMES):
        if 3 in outcome:
            p, q = P[list(outcome)].prod(), Q[list(outcome)].prod()
            first, second = (q, p) if reverse else (p, q)
            total += max(first - np.exp(epsilon) * second, 0.0)
    return total


def kind(rate: float) -> Jumps:
    body = float(np.log((Q[:3] * (P[:3] / Q[:3]) ** -rate).sum()))
    return Jumps(float(P[3]), float(Q[3]), float(LOSS[3]), TIMES, body)


@pytest.mark.parametrize("rate", [0.5, 2.0, 10.0])
@pytest.mark.parametrize("reverse", [False, True])
def test_bounds_hold_what_jumps_add(rate: float, reverse: bool) -> None:
    epsilon = np.linspace(0.0, 6.0, 25)
    found = bound_remainder([kind(rate)], rate, 1e-12).bounds(epsilon, reverse=reverse)
    exact = np.array([jump_part(float(e), reverse=reverse) for e in epsilon])
    assert (found.lower <= exact * (1 + 1e-12)).all()
    assert (exact <= found.upper * (1 + 1e-12)).all()


def test_bounds_are_close_where_jumps_are_hardly_ever_taken_back() -> None:
    epsilon = np.array([0.5, 1.0])
    found = bound_remainder([kind(10.0)], 10.0, 1e-12).bounds(epsilon, reverse=False)
    exact = np.array([jump_part(float(e), reverse=False) for e in epsilon])
    assert found.upper == pytest.approx(exact, rel=1e-3)
    assert found.lower == pytest.approx(exact, rel=1e-3)


def test_a_bound_without_what_is_taken_back_would_be_wrong() -> None:
    """Negative control: P(J) − e^ε·Q(J) alone is no upper bound where jumps are taken back."""
    low = bound_remainder([kind(1.0)], 1.0, 1e-12).bounds(np.array([4.5]), reverse=False).lower[0]
    assert jump_part(4.5, reverse=False) > low * (1 + 1e-6) + 1e-9


def test_arrays_are_as_one_by_one() -> None:
    """K compositions at once: the same estimates and bounds as each alone."""
    rng = np.random.default_rng(3)
    ratio = np.sort(rng.normal(0, 1, (5, 40)), axis=1)
    log_q = np.log(rng.dirichlet(np.ones(40), 5))
    times, delta = np.full((5, 1), 7.0), 10.0 ** -np.arange(3, 8)[:, None]
    width = np.zeros((5, 1))
    together = estimate_epsilon([Points.of(ratio, width, log_q, times)], delta)
    falls, rates = find_slightest_fall([Points.of(ratio, width, log_q, times)], together, delta)
    for k in range(5):
        row = slice(k, k + 1)
        alone = [Points.of(ratio[row], width[row], log_q[row], times[row])]
        assert estimate_epsilon(alone, delta[row]) == together[row]
        assert find_slightest_fall(alone, together[row], delta[row]) == (falls[row], rates[row])


def test_several_kinds_are_one_kind_more_often() -> None:
    one, two = kind(2.0), kind(2.0)._replace(times=TIMES // 2)
    whole, parts = bound_remainder([one], 2.0, 1e-12), bound_remainder([two, two], 2.0, 1e-12)
    assert whole.p == pytest.approx(parts.p, rel=1e-12)
    assert whole.log_fall == pytest.approx(parts.log_fall, rel=1e-9)


def test_where_none_falls_surely_enough_the_largest_is_taken_row_by_row() -> None:
    """At the largest fall the chance is the one sought; by rounding it is below in some rows."""
    rng = np.random.default_rng(3)
    rows = 60
    ratio = np.sort(rng.normal(0, 1, (rows, 20)), axis=1)
    log_q = np.log(rng.dirichlet(np.ones(20), rows))
    times, delta = np.full((rows, 1), 7.0), np.full((rows, 1), 1e-5)
    far = np.full((rows, 1), 1e3)  # where all that is surely known is needed
    width = np.zeros((rows, 1))
    falls, rates = find_slightest_fall([Points.of(ratio, width, log_q, times)], far, delta)
    for k in range(rows):
        row = slice(k, k + 1)
        alone = [Points.of(ratio[row], width[row], log_q[row], times[row])]
        assert find_slightest_fall(alone, far[row], delta[row]) == (falls[row], rates[row])
