"""What a coin makes of a log-ratio, in 400-digit arithmetic, over the whole range."""

import math

import mpmath as mp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apiece.accounting.exact import log_ratio
from apiece.numerics.rounding import UNIT, after_coin

coins = st.one_of(
    st.floats(-300.0, 0.0).map(lambda x: 10**x),
    st.floats(-16.0, -0.01).map(lambda x: 1 - 10**x),
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(st.floats(-800.0, 800.0), coins)
@example(-40.0, 1 - 1e-10)
@example(1000.0, 1e-300)
@example(746.0, 5e-324)
@example(-1e-300, 0.5)
def test_it_is_right_to_eight_units(rho: float, q: float) -> None:
    found = float(after_coin(rho, q))
    assert log_ratio(rho, q) == pytest.approx(found, rel=4 * UNIT)
    with mp.workdps(400):
        exact = mp.log(1 + mp.mpf(q) * mp.expm1(mp.mpf(rho)))
        if abs(exact) < 1e-300:
            assert abs(found - exact) < 1e-300
        else:
            assert abs(found / exact - 1) <= 8 * UNIT


def test_the_ends() -> None:
    assert after_coin(-math.inf, 0.25) == math.log(0.75)
    assert after_coin(math.inf, 1e-9) == math.inf
    assert after_coin(-math.inf, 1.0) == -math.inf
    assert after_coin(np.zeros((2, 3)), 0.1).tolist() == [[0.0] * 3] * 2


def test_one_logarithm_is_not_enough() -> None:
    """Negative control: log1p alone is wrong by 1e-7 where hardly anything of 1 is left."""
    q, rho = 1 - 1e-10, -40.0
    assert math.log1p(q * math.expm1(rho)) != pytest.approx(float(after_coin(rho, q)), rel=1e-9)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.float64])
def test_a_ratio_of_any_precision_is_read_in_double(kind: type) -> None:
    rho = np.array([-40, -1, 0, 3, 100, 1000], dtype=kind)
    for q in (1.0, 0.25, 1e-3, 1e-300):
        found = after_coin(rho, q)
        assert found.dtype == np.float64
        assert found.tolist() == [float(after_coin(float(each), q)) for each in rho]
