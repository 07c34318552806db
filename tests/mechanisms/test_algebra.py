"""Mechanisms compose, repeat and toss coins; what is no mechanism, or out of bounds, is refused."""

import math

import pytest

from apiece.errors import InputError
from apiece.mechanisms import (
    Composed,
    Gaussian,
    Repeated,
    Sampled,
)
from refusals import refused


def test_double_amplification_by_one_coin_raises() -> None:
    with pytest.raises(InputError, match="one coin amplifies once"):
        Sampled(Sampled(Gaussian(1.0), 0.1), 0.1)


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, "x"])
def test_bad_probability_is_rejected(q: object) -> None:
    with refused(InputError, "probability"):
        Sampled(Gaussian(1.0), q)  # type: ignore[arg-type]


@pytest.mark.parametrize("times", [0, -1, 1.5, math.nan, "2", True])
def test_bad_times_are_rejected(times: object) -> None:
    with refused(InputError, "times"):
        Repeated(Gaussian(1.0), times)  # type: ignore[arg-type]


def test_only_mechanisms_compose() -> None:
    for wrong in (lambda: Sampled(1, 0.5), lambda: Repeated("m", 2), lambda: Composed(None)):
        with pytest.raises(InputError, match="not a mechanism"):
            wrong()  # type: ignore[no-untyped-call]


def test_equal_values_are_equal_and_hash_alike() -> None:
    one, other = Sampled(Gaussian(1.0), 0.5), Sampled(Gaussian(1), 0.5)
    assert one == other
    assert hash(one) == hash(other)
    assert Repeated(one, 2) != Repeated(one, 3)
    assert Composed(one, Gaussian(2.0)) != Composed(Gaussian(2.0), one)  # trees; `flatten` is equal
