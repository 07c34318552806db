"""Stage: bounds on its numbers, and what it does to a record of each group."""

import numpy as np
import pytest

from apiece.errors import InputError
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.plan.parts import Stage

RATES, CLIPS = np.array([0.0, 0.5, 1.0]), np.array([1.0, 2.0, 4.0])


def test_what_each_group_sees() -> None:
    stage = Stage(3, 1.0, 4.0, RATES, CLIPS)
    assert stage.mechanism(0) is None
    assert stage.mechanism(1) == Repeated(Sampled(Gaussian(2.0), 0.5), 3)
    assert stage.mechanism(2) == Repeated(Gaussian(1.0), 3)
    coin = Stage(3, 1.0, 4.0, RATES, CLIPS, participation=np.array([1.0, 0.0, 0.25]))
    assert coin.mechanism(1) is None
    assert coin.mechanism(2) == Sampled(Repeated(Gaussian(1.0), 3), 0.25)
    assert coin.chances().tolist() == [0.0, 0.0, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"noise_stddev": float("nan")}, "noise_stddev"),
        ({"expected_batch_size": 0.0}, "expected_batch_size"),
        ({"weight": float("inf")}, "weight"),
        ({"clip_norm": np.array([1.0, -1.0, 1.0])}, "clip_norm"),
        ({"sampling_probability": np.array([0.1, 1.5, 0.2])}, r"sampling_probability\[1\]"),
        ({"sampling_probability": np.array([0.1])}, "one entry a budget group"),
        ({"participation": np.array([0.1, np.nan, 1.0])}, r"participation\[1\]"),
    ],
)
def test_numbers_out_of_bounds_are_named(change: dict[str, object], message: str) -> None:
    good = {
        "steps": 1,
        "expected_batch_size": 1.0,
        "noise_stddev": 1.0,
        "sampling_probability": RATES,
        "clip_norm": CLIPS,
    }
    with pytest.raises(InputError, match=message):
        Stage(**(good | change))  # type: ignore[arg-type]


def test_arrays_are_copies_that_nobody_writes() -> None:
    rates = RATES.copy()
    stage = Stage(1, 1.0, 1.0, rates, CLIPS)
    rates[0] = 0.9
    assert stage.sampling_probability[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        stage.sampling_probability[0] = 0.9


def test_a_view_that_is_read_only_is_copied_where_its_memory_is_not() -> None:
    times = np.array([0, 1, 2])
    view = times[:]
    view.flags.writeable = False
    stage = Stage(2, 1.0, 1.0, times / 2, CLIPS, times=view)
    times[:] = 2
    assert stage.times is not None
    assert stage.times.tolist() == [0, 1, 2]
