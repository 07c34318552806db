"""One contour integral: bounds on δ(ε) that meet those of the lattice, and their crossing."""

from collections.abc import Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting.contour.integral import Aim, build_contour
from apiece.accounting.contour.moments import discretise_cut_windows, discretise_windows
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition
from apiece.numerics.rounding import UNIT

Z, Q, TIMES, DELTA = 3.0, 0.1, 400, 1e-6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """As its callers do: what overflows ends in bounds that say nothing."""
    with np.errstate(all="ignore"):
        yield


def integral(way: object, *, reverse: bool) -> tuple[object, Floats]:
    columns = np.array([Z, Q, float(TIMES), DELTA, 9.0])[:, None, None]
    steps, rest, share = way(columns, 448)  # type: ignore[operator]
    steps, share = (steps.reverse(), np.ones_like(share)) if reverse else (steps, share)
    return build_contour(steps, columns[2], columns[3], rest, share, Aim(400))


@pytest.mark.parametrize("way", [discretise_windows, discretise_cut_windows])
def test_bounds_meet_those_of_the_lattice(way: object) -> None:
    found, guess = integral(way, reverse=False)
    lattice = Composition(((GaussianPair(Z, Q), TIMES),))
    for moved in (0.95, 1.0, 1.05):
        lower, upper = (float(end[0, 0]) for end in found.delta(guess * moved))  # type: ignore[attr-defined]
        known = lattice.delta((guess * moved).ravel())
        assert lower <= known.upper[0]
        assert known.lower[0] <= upper
        assert 0 < lower <= upper <= lower * (1 + 2e-3)


@pytest.mark.parametrize("reverse", [False, True])
def test_epsilon_is_where_the_bounds_cross(reverse: bool) -> None:
    found, guess = integral(discretise_windows, reverse=reverse)
    delta = np.array([[DELTA]])
    lower, upper = found.epsilon(delta, guess)  # type: ignore[attr-defined]
    assert found.delta(upper).upper <= DELTA  # type: ignore[attr-defined]
    assert found.delta(lower).lower > DELTA  # type: ignore[attr-defined]
    assert upper == pytest.approx(lower, rel=1e-4)


def test_the_derivative_is_that_of_the_value() -> None:
    found, guess = integral(discretise_windows, reverse=False)
    (value, fall), step = found.estimate(guess), 1e-5  # type: ignore[attr-defined]
    after, _ = found.estimate(guess + step)  # type: ignore[attr-defined]
    assert (value - after) / step == pytest.approx(fall, rel=1e-3)


def test_the_rounding_of_powers_is_counted() -> None:
    """e^{−iyε} by powers, against 40 digits, is off by no more than is counted, and by a share."""
    found: Any = integral(discretise_windows, reverse=False)[0]
    step, worst = float(found.y[0, 1]), 0.0
    for epsilon in (0.0, 1e-3, 0.77, 5.0, 40.0):
        turns = found._turns(np.array([[epsilon]]))[0]
        counted = UNIT * found.y[0] * found._turn_error(np.array([[epsilon]]))[0]
        with mp.workdps(40):
            for m in range(1, turns.size):
                exact = mp.expj(-mp.mpf(step) * m * mp.mpf(epsilon))
                wrong = float(abs(mp.mpc(turns[m]) - exact))
                assert wrong <= counted[m] + 4 * UNIT  # its own last digit is in the sums' share
                worst = max(worst, wrong / counted[m])
    assert worst > 0.01  # of an order that matters


def test_rows_are_the_integrals_that_were_made() -> None:
    columns = np.array([[Z, Q, float(TIMES), delta, 9.0] for delta in (1e-3, 1e-6, 1e-9)])
    steps, rest, share = discretise_windows(columns.T[:, :, None], 448)
    found, guess = build_contour(steps, *columns.T[2:4, :, None], rest, share, Aim(400))
    lower, upper = found.delta(guess)
    for k in ([2], [1, 0], [0, 0, 2]):
        some = found.rows(np.array(k)).delta(guess[k])
        assert np.array_equal(some.lower, lower[k])
        assert np.array_equal(some.upper, upper[k])
