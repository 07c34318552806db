"""The exact rounded Gaussian: its distribution, and that a wrong one would be noticed."""

import math
import random

import numpy as np
import pytest
from scipy import stats

from apiece.queries import noise
from apiece.queries.noise import (
    BITS,
    _flip_exp_minus_half,
    draw_rounded_gaussians,
    draw_rounded_laplaces,
)


def draws(count: int, seed: int) -> np.ndarray:
    return np.array(draw_rounded_gaussians(count, random.Random(seed).getrandbits)) / 2**BITS


def test_distribution_is_normal() -> None:
    values = draws(20_000, 1)
    # At 20,000 draws this finds a distance of 0.0138 with one false alarm in a thousand.
    assert stats.kstest(values, "norm").pvalue > 1e-3
    assert abs(values.mean()) < 4 / math.sqrt(20_000)
    assert abs(values.var() - 1) < 4 * math.sqrt(2 / 20_000)
    tail = (np.abs(values) > 2.5).mean()
    expected = 2 * stats.norm.sf(2.5)
    assert abs(tail - expected) < 4 * math.sqrt(expected / 20_000)


def test_a_wrong_distribution_is_noticed() -> None:
    """Negative control: 4 % too wide, and a logistic of the same variance, fail the test above."""
    values = draws(20_000, 1)
    assert abs((values * 1.04).var() - 1) > 4 * math.sqrt(2 / 20_000)
    logistic = np.random.default_rng(0).logistic(0, math.sqrt(3) / math.pi, 20_000)
    assert stats.kstest(logistic, "norm").pvalue < 1e-3


def test_distribution_is_laplace() -> None:
    drawn = draw_rounded_laplaces(20_000, random.Random(5).getrandbits)
    values = np.array(drawn) / 2**BITS
    assert stats.kstest(values, "laplace").pvalue > 1e-3
    assert abs(values.mean()) < 4 * math.sqrt(2 / 20_000)
    for size in (3.0, 6.0):
        expected = math.exp(-size)
        tail = (np.abs(values) > size).mean()
        assert abs(tail - expected) < 4 * math.sqrt(expected / 20_000)
    for wrong in (values * 1.15, np.random.default_rng(0).logistic(0, 0.78, 20_000)):
        assert stats.kstest(wrong, "laplace").pvalue < 1e-3  # another scale, another law
    last = np.array(drawn) % 16  # no digit is favoured
    assert stats.chisquare(np.bincount(last, minlength=16)).pvalue > 1e-3
    assert draw_rounded_laplaces(4) != draw_rounded_laplaces(4)


def test_probability_of_exp_minus_half() -> None:
    more = noise._pool_words(random.Random(2).getrandbits)
    share = np.mean([_flip_exp_minus_half(more) for _ in range(40_000)])
    assert share == pytest.approx(math.exp(-0.5), abs=4 * 0.5 / 200)


@pytest.mark.parametrize("word", [5, 8])
def test_ties_of_first_words_are_decided_by_all_digits(
    word: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With short words ties are common; the distribution stays the same to the last digit."""
    monkeypatch.setattr(noise, "WORD", word)
    more, values = noise._pool_words(random.Random(4).getrandbits), []
    for _ in range(12_000):
        negative, whole, fraction = noise._draw_normal(more)
        size = whole + sum(fraction.word(i) / 2.0 ** (word * (i + 1)) for i in range(6))
        values.append(-size if negative else size)
    assert stats.kstest(values, "norm").pvalue > 1e-3
    monkeypatch.setattr(noise, "WORD", 3)
    more = noise._pool_words(random.Random(4).getrandbits)
    share = np.mean([_flip_exp_minus_half(more) for _ in range(40_000)])
    assert share == pytest.approx(math.exp(-0.5), abs=4 * 0.5 / 200)


def test_words_of_a_uniform_are_those_of_its_source_and_stay() -> None:
    x = noise._Uniform(iter(range(10, 20)).__next__)
    for _ in range(2):
        assert [x.word(i) for i in range(5)] == [10, 11, 12, 13, 14]
        assert [x.word(i) for i in (4, 0, 2)] == [14, 10, 12]


@pytest.mark.parametrize("asked", [1, 7, 300])
def test_every_bit_that_is_drawn_is_used_once(asked: int) -> None:
    drawn: list[str] = []

    def bits(count: int) -> int:
        value = random.Random(len(drawn)).getrandbits(count)
        drawn.append(f"{value:0{count}b}")
        return value

    more = noise._pool_words(bits)
    words = [f"{more():0{noise.WORD}b}" for _ in range(asked)]
    given = "".join("".join(reversed(words_of(chunk))) for chunk in drawn)
    assert given.startswith("".join(words))


def words_of(chunk: str) -> list[str]:
    return [chunk[i : i + noise.WORD] for i in range(0, len(chunk), noise.WORD)]


def test_ties_that_are_cut_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: with only the first words compared the distribution is another one."""
    monkeypatch.setattr(noise, "WORD", 3)
    monkeypatch.setattr(noise._Uniform, "__lt__", lambda a, b: a.first < b.first)
    more = noise._pool_words(random.Random(4).getrandbits)
    share = np.mean([_flip_exp_minus_half(more) for _ in range(40_000)])
    assert abs(share - math.exp(-0.5)) > 4 * 0.5 / 200


def test_default_source_is_cryptographic_and_differs() -> None:
    assert draw_rounded_gaussians(4) != draw_rounded_gaussians(4)


def test_low_bits_are_uniform() -> None:
    """The last grid digit carries no pattern that a float generator would leave."""
    last = np.array(draw_rounded_gaussians(8000, random.Random(3).getrandbits)) % 16
    assert stats.chisquare(np.bincount(last, minlength=16)).pvalue > 1e-3
