"""A count with discrete Gaussian noise: its law is a law, and no continuous one."""

import math

import numpy as np
import pytest

from apiece.errors import InputError, RangeError
from apiece.mechanisms import DiscreteGaussian
from refusals import refused


@pytest.mark.parametrize(("scale", "sensitivity"), [(0.5, 1), (2.0, 1), (30.0, 4)])
def test_both_worlds_have_all_their_mass(scale: float, sensitivity: int) -> None:
    atoms = DiscreteGaussian(scale, sensitivity).atoms()
    assert atoms.mass.sum() == pytest.approx(1, abs=1e-14)
    assert (atoms.mass * np.exp(atoms.log_ratio)).sum() == pytest.approx(1, abs=1e-12)
    assert 0 < atoms.outside_p < 1e-60


def test_the_continuous_gaussian_does_not_cover_it() -> None:
    """At scale 1 and some ε the discrete δ is above the continuous one."""
    from apiece.numerics.gaussian import gaussian_delta

    atoms = DiscreteGaussian(1.0).atoms()

    def delta(epsilon: float) -> float:
        return float((atoms.mass * np.maximum(np.exp(atoms.log_ratio) - np.exp(epsilon), 0)).sum())

    grid = np.linspace(0.01, 3, 300)
    assert any(delta(e) > 1.05 * float(gaussian_delta(1.0, e).upper) for e in grid)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_bad_scales(scale: float) -> None:
    with refused(InputError, "scale"):
        DiscreteGaussian(scale)


@pytest.mark.parametrize("sensitivity", [0, 1.5, -1])
def test_bad_sensitivities(sensitivity: float) -> None:
    with refused(InputError, "sensitivity"):
        DiscreteGaussian(1.0, sensitivity)  # type: ignore[arg-type]


def test_past_the_numerical_range() -> None:
    for scale, sensitivity in ((1e-4, 1), (1e7, 10**7)):
        with pytest.raises(RangeError, match="past the numerical range"):
            DiscreteGaussian(scale, sensitivity)
