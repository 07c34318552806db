"""One contour integral: bounds on δ(ε) that meet those of the lattice, and their crossing."""

from collections.abc import Iterator

import numpy as np
import pytest

from apiece._types import Floats
from apiece.accounting.contour.integral import Aim, contour
from apiece.accounting.contour.windows import cut, whole
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition

Z, Q, TIMES, DELTA = 3.0, 0.1, 400, 1e-6


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """As its callers do: what overflows ends in bounds that say nothing."""
    with np.errstate(all="ignore"):
        yield


def integral(way: object, *, reverse: bool) -> tuple[object, Floats]:
    columns = np.array([Z, Q, float(TIMES), DELTA, 9.0])[:, None, None]
    steps, rest, share = way(columns, 448)  # type: ignore[operator]
    steps, share = (steps.reversed(), np.ones_like(share)) if reverse else (steps, share)
    return contour(steps, columns[2], columns[3], rest, share, Aim(400))


@pytest.mark.parametrize("way", [whole, cut])
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
    found, guess = integral(whole, reverse=reverse)
    delta = np.array([[DELTA]])
    lower, upper = found.epsilon(delta, guess)  # type: ignore[attr-defined]
    assert found.delta(upper).upper <= DELTA  # type: ignore[attr-defined]
    assert found.delta(lower).lower > DELTA  # type: ignore[attr-defined]
    assert upper == pytest.approx(lower, rel=1e-4)


def test_the_derivative_is_that_of_the_value() -> None:
    found, guess = integral(whole, reverse=False)
    (value, fall), step = found.estimate(guess), 1e-5  # type: ignore[attr-defined]
    after, _ = found.estimate(guess + step)  # type: ignore[attr-defined]
    assert (value - after) / step == pytest.approx(fall, rel=1e-3)
