"""The noise is standard normal, independent and fresh each step; broken variants are caught."""

import numpy as np
import pytest
import torch
from scipy import stats

from apiece.errors import InputError
from apiece.training import ClippedSum
from apiece.training.randomness import ChaCha20Stream, Streams, noisy_mean

SIZE = 200_001


def fits(draws):
    """Whether draws pass Kolmogorov-Smirnov, moments up to 4, serial and half correlation."""
    n = draws.size
    half = n // 2
    scores = [
        draws.mean() * np.sqrt(n),
        (np.square(draws).mean() - 1) * np.sqrt(n / 2),
        np.power(draws, 3).mean() * np.sqrt(n / 15),
        (np.power(draws, 4).mean() - 3) * np.sqrt(n / 96),
        (draws[1:] * draws[:-1]).mean() * np.sqrt(n - 1),
        (draws[:half] * draws[half : 2 * half]).mean() * np.sqrt(half),
    ]
    return np.abs(scores).max() < 5 and stats.kstest(draws, "norm").pvalue > 1e-6


@pytest.mark.parametrize(
    "generator",
    [ChaCha20Stream(bytes(32)), torch.Generator().manual_seed(0)],
    ids=["chacha", "torch"],
)
def test_noise_is_normal(generator):
    one = torch.ones(1)
    total = ClippedSum({"a": torch.zeros(SIZE - 7), "b": torch.zeros(7)}, one, one, one)
    noisy = noisy_mean(total, 2.5, 1.0, generator=generator)
    draws = torch.cat([noisy["a"], noisy["b"]]).double().numpy() / 2.5
    assert fits(draws)


def test_broken_noise_is_caught():
    draws = ChaCha20Stream(bytes(32)).normal(SIZE).numpy()
    assert not fits(draws * 1.02)
    assert not fits(np.tile(draws[: SIZE // 2], 2))
    uniform = ChaCha20Stream(bytes(32)).uniform(SIZE)
    assert not fits((uniform - 0.5) * np.sqrt(12))


def test_the_cipher_is_chacha20():
    """RFC 8439, appendix A.1, test vector 1: the first block under a zero key and nonce."""
    first = ChaCha20Stream(bytes(32)).bits(2).tobytes().hex()
    assert first == "76b8e0ada0f13d90405d6ae55386bd28"


def test_every_step_and_purpose_has_noise_of_its_own():
    streams = Streams.from_seed(None)
    draws = [streams.noise(0).normal(1000), streams.noise(1).normal(1000)]
    draws += [streams.sampling(0).normal(1000), Streams.from_seed(None).noise(0).normal(1000)]
    correlation = np.corrcoef(torch.stack(draws).numpy()) - np.eye(4)
    assert np.abs(correlation).max() < 5 / np.sqrt(1000)
    assert torch.equal(streams.noise(1).normal(9), streams.noise(1).normal(9))


def test_noise_needs_a_sum_with_bounds():
    with pytest.raises(InputError, match="ClippedSum"):
        noisy_mean({"a": torch.zeros(3)}, 1.0, 1.0, generator=torch.Generator())
    one = torch.ones(1)
    total = ClippedSum({"a": torch.zeros(3)}, one, one, one)
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="noise_stddev"):
            noisy_mean(total, bad, 1.0, generator=torch.Generator())
    with pytest.raises(InputError, match="generator"):
        noisy_mean(total, 1.0, 1.0, generator=7)
