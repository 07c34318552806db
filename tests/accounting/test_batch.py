"""Whole arrays at once: shapes, bad values, agreement with single curves."""

import numpy as np
import pytest

from apiece import accounting
from apiece.accounting import privacy_curve
from apiece.errors import BudgetError, InputError, OptionError
from apiece.mechanisms import Gaussian, Repeated, Sampled


def test_broadcasts_and_equals_single_curves() -> None:
    z, delta = np.array([1.0, 2.0]), np.array([[1e-5], [1e-7], [1e-12]])
    bounds = accounting.epsilons(
        noise_multiplier=z, sampling_probability=0.01, steps=300, delta=delta
    )
    assert bounds.upper.shape == (3, 2)
    for column, one in enumerate(z):
        curve = privacy_curve(Repeated(Sampled(Gaussian(one), 0.01), 300))
        for row, d in enumerate(delta[:, 0]):
            assert bounds.upper[row, column] == curve.epsilon(d).upper


def test_many_curves_are_computed_side_by_side() -> None:
    z = np.linspace(1, 2, 12)
    upper = accounting.epsilons(
        noise_multiplier=z, sampling_probability=0.01, steps=100, delta=1e-5
    ).upper
    assert (np.diff(upper) < 0).all()


def test_nobody_sampled_spends_nothing() -> None:
    bounds = accounting.epsilons(
        noise_multiplier=1.0, sampling_probability=[0.0, 0.1], steps=10, delta=1e-5
    )
    assert bounds.upper[0] == 0
    assert bounds.upper[1] > 0


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("noise_multiplier", 0.0, InputError),
        ("noise_multiplier", float("nan"), InputError),
        ("sampling_probability", [0.1, 1.5], InputError),
        ("steps", 2.5, InputError),
        ("steps", 0, InputError),
        ("delta", 1.0, BudgetError),
    ],
)
def test_bad_values_are_named(name: str, value: object, error: type[Exception]) -> None:
    good = {"noise_multiplier": 1.0, "sampling_probability": 0.1, "steps": 10, "delta": 1e-5}
    with pytest.raises(error, match=name):
        accounting.epsilons(**{**good, name: value})  # type: ignore[arg-type]


def test_unknown_method_and_shapes() -> None:
    with pytest.raises(OptionError, match="pld"):
        accounting.epsilons(
            noise_multiplier=1, sampling_probability=0.1, steps=1, delta=1e-5, method="pdl"
        )
    with pytest.raises(InputError, match="broadcast"):
        accounting.epsilons(
            noise_multiplier=[1, 2], sampling_probability=[0.1] * 3, steps=1, delta=1e-5
        )
