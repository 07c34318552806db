"""What lies outside a window of sampled Gaussian steps: chances against the normal law."""

import numpy as np
import pytest
from scipy.stats import norm

from apiece._types import Floats
from apiece.accounting.contour.moments import discretise_cut_windows, discretise_windows

Z, Q, TIMES, DELTA, REACH = 0.7, 0.03, 40.0, 1e-6, 8.0


def columns() -> Floats:
    return np.array([Z, Q, TIMES, DELTA, REACH])[:, None, None]


def tails(high: float) -> tuple[float, float]:
    """The P- and Q-chance that a step's u lies above `high`."""
    above = norm.sf(high)
    return (1 - Q) * above + Q * norm.sf(high - 1 / Z), above


def test_a_whole_window_tells_apart_what_is_above_it() -> None:
    steps, rest, share = discretise_windows(columns(), 160)
    p, q = tails(float(steps.edge[0, -1]))
    assert TIMES * p <= float(rest.p[1][0, 0]) <= TIMES * p * (1 + 1e-9)
    assert TIMES * q <= float(rest.q[1][0, 0])
    assert float(rest.outside[0, 0]) >= TIMES * norm.cdf(-REACH)
    assert float(share[0, 0]) == 1
    assert rest.bounds(np.zeros((1, 1)), reverse=False).lower == 0


def test_a_cut_window_calls_them_jumps() -> None:
    steps, rest, share = discretise_cut_windows(columns(), 160)
    high = float(steps.edge[0, -1])
    assert high < REACH + 1 / Z
    for chance, (low, most) in zip(tails(high), (rest.p, rest.q), strict=True):
        some = -np.expm1(TIMES * np.log1p(-chance))
        assert float(low[0, 0]) <= some * (1 + 1e-12)
        assert some * (1 - 1e-12) <= float(most[0, 0])
        assert float(most[0, 0]) == pytest.approx(some, rel=1e-6)
    assert 0.05 <= float(share[0, 0]) <= 1
