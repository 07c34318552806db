"""Noise on a sum that knows its bounds: on a grid of its own, in the sum's type, divided alike."""

import math

import numpy as np
import pytest
import torch

from apiece.training import ClippedSum
from apiece.training.randomness import ChaCha20Stream, noisy_mean

ONE = torch.ones(1)


def released(value, stddev, dtype=torch.float64):
    total = ClippedSum({"w": torch.full((5000,), value, dtype=dtype)}, ONE, ONE, ONE)
    return noisy_mean(total, stddev, 1.0, generator=ChaCha20Stream(bytes(32)))["w"]


def off_grid(values, stddev):
    step = 2.0 ** (math.floor(math.log2(stddev)) - 20)
    return int((torch.remainder(values.double() / step, 1) != 0).sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("stddev", [1e-9, 0.7, 1.0, 3e4])
@pytest.mark.parametrize("value", [0.0, 1 / 3, -1e-7, 5.0])
def test_released_values_lie_on_a_grid_of_the_noise_alone(dtype, stddev, value):
    assert off_grid(released(value, stddev, dtype), stddev) == 0


def test_the_low_bits_of_a_plain_sum_tell(monkeypatch):
    """Negative control: without the grid nearly every value is off it."""
    monkeypatch.setattr("apiece.training.randomness._round_to_grid", lambda *_: None)
    assert off_grid(released(1 / 3, 1.0), 1.0) > 4900


def test_the_grid_costs_no_accuracy(monkeypatch):
    rounded = released(1 / 3, 1.0)
    monkeypatch.setattr("apiece.training.randomness._round_to_grid", lambda *_: None)
    assert float((rounded - released(1 / 3, 1.0)).abs().max()) <= 2.0**-21


GENERATORS = {
    "chacha": lambda: ChaCha20Stream(bytes(32)),
    "torch": lambda: torch.Generator().manual_seed(0),
    "numpy": lambda: np.random.default_rng(0),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_one_draw_covers_all_parameters_in_their_order(make):
    """So that the noise does not depend on how the model is cut into parameters."""
    whole = ClippedSum({"w": torch.zeros(12)}, ONE, ONE, ONE)
    parts = {"a": torch.zeros(2, 3), "b": torch.zeros(()), "c": torch.zeros(5)}
    cut = noisy_mean(ClippedSum(parts, ONE, ONE, ONE), 2.0, 1.0, generator=make())
    assert {name: value.shape for name, value in cut.items()} == {
        name: value.shape for name, value in parts.items()
    }
    one = noisy_mean(whole, 2.0, 1.0, generator=make())["w"]
    assert torch.equal(torch.cat([value.flatten() for value in cut.values()]), one)
    assert one.unique().numel() == 12


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_the_sum_is_in_it_and_keeps_its_type_and_is_left_as_it_was(make):
    sums = {"w": torch.full((4000,), 7.0, dtype=torch.float64), "v": torch.full((9,), -2.0)}
    noisy = noisy_mean(ClippedSum(sums, ONE, ONE, ONE), 0.5, 1.0, generator=make())
    assert {name: value.dtype for name, value in noisy.items()} == {
        "w": torch.float64,
        "v": torch.float32,
    }
    assert abs(float(noisy["w"].mean()) - 7) < 5 * 0.5 / 4000**0.5
    assert abs(float(noisy["v"].mean()) + 2) < 5 * 0.5 / 9**0.5
    assert set(sums["w"].tolist()) == {7.0}


def test_without_noise_nothing_is_added_and_without_parameters_nothing_is_drawn():
    sums = {"w": torch.rand(5)}
    same = noisy_mean(ClippedSum(sums, ONE, ONE, ONE), 0.0, 1.0, generator=GENERATORS["chacha"]())
    assert torch.equal(same["w"], sums["w"])
    stream = GENERATORS["chacha"]()
    assert noisy_mean(ClippedSum({}, ONE, ONE, ONE), 1.0, 1.0, generator=stream) == {}
    assert stream.bits(1) == GENERATORS["chacha"]().bits(1)


@pytest.mark.parametrize("stddev", [0.0, 1.0])
def test_a_mean_is_the_noisy_sum_over_the_expected_size(stddev):
    sums = {"w": torch.tensor([8.0, -2.0]), "v": torch.tensor(1.0, dtype=torch.float64)}
    total = ClippedSum(sums, ONE, ONE, ONE)
    mean = noisy_mean(total, stddev, 4.0, generator=GENERATORS["chacha"]())
    noisy = noisy_mean(total, stddev, 1.0, generator=GENERATORS["chacha"]())
    for name, value in noisy.items():
        assert torch.equal(mean[name], value / 4)
        assert mean[name].dtype == sums[name].dtype
