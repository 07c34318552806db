"""Laplace noise: its multiplier is a positive finite number, and nothing else is taken."""

import dataclasses
import math

import pytest

from apiece.errors import InputError
from apiece.mechanisms import Laplace
from refusals import refused


@pytest.mark.parametrize("z", [0, -1, math.nan, math.inf, "1", True, None])
def test_bad_noise_is_rejected(z: object) -> None:
    with refused(InputError, "scale"):
        Laplace(z)  # type: ignore[arg-type]


def test_it_is_a_frozen_float() -> None:
    mechanism = Laplace(2)
    assert type(mechanism.scale) is float
    assert mechanism == Laplace(2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        mechanism.scale = 1.0  # type: ignore[misc]
