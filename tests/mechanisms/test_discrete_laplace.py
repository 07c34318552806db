"""A count with discrete Laplace noise is pure, and its law is a law."""

import math

import numpy as np
import pytest

from apiece.errors import InputError, RangeError
from apiece.mechanisms import DiscreteLaplace
from refusals import refused


@pytest.mark.parametrize(("scale", "sensitivity"), [(2.0, 3), (0.5, 1), (40.0, 7)])
def test_it_is_pure(scale: float, sensitivity: int) -> None:
    atoms = DiscreteLaplace(scale, sensitivity).atoms()
    ends = atoms.log_ratio[[0, -1]]
    assert ends.tolist() == pytest.approx([-sensitivity / scale, sensitivity / scale])
    assert (atoms.only_p, atoms.only_q, atoms.outside_p, atoms.outside_q) == (0, 0, 0, 0)


@pytest.mark.parametrize(("scale", "sensitivity"), [(2.0, 3), (0.5, 1), (40.0, 7)])
def test_both_worlds_have_all_their_mass(scale: float, sensitivity: int) -> None:
    atoms = DiscreteLaplace(scale, sensitivity).atoms()
    assert atoms.mass.sum() == pytest.approx(1, abs=1e-14)
    assert (atoms.mass * np.exp(atoms.log_ratio)).sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales(scale: float) -> None:
    with refused(InputError, "scale"):
        DiscreteLaplace(scale)


@pytest.mark.parametrize("sensitivity", [0, 1.5, -1])
def test_bad_sensitivities(sensitivity: float) -> None:
    with refused(InputError, "sensitivity"):
        DiscreteLaplace(1.0, sensitivity)  # type: ignore[arg-type]


def test_the_ends_of_the_numerical_range_are_within_it() -> None:
    assert DiscreteLaplace(1e4, 10**6).sensitivity == 10**6
    assert DiscreteLaplace(0.5, 300).atoms().log_ratio[-1] == 600


def test_past_the_numerical_range() -> None:
    for scale, sensitivity in ((1e-4, 1), (1e7, 10**7)):
        with pytest.raises(RangeError, match="past the numerical range"):
            DiscreteLaplace(scale, sensitivity)
