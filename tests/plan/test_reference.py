"""Reference: the uniform mechanism that was requested."""

import pytest

from apiece.errors import InputError
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.plan.parts import Reference


def test_its_mechanism_with_a_noise() -> None:
    assert Reference(0.25, 7).mechanism(1.5) == Repeated(Sampled(Gaussian(1.5), 0.25), 7)
    assert Reference(1.0, 7).mechanism(1.5) == Repeated(Gaussian(1.5), 7)


@pytest.mark.parametrize(("rate", "steps"), [(0.0, 1), (1.5, 1), (float("nan"), 1), (0.5, 0)])
def test_out_of_bounds(rate: float, steps: int) -> None:
    with pytest.raises(InputError):
        Reference(rate, steps)
