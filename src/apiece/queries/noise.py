"""Gaussian and Laplace noise on a grid, exact to the last bit, from a cryptographic source.

A Gaussian drawn in floating point leaks through its low bits (Mironov 2012). Here every
contribution is first rounded to a whole number of grid steps σ/2^BITS, sums are sums of
integers, and the noise is an exact Gaussian rounded to the grid: the answer is round(sum + σN),
a post-processing of the exact Gaussian mechanism, so the Gaussian's guarantee holds as it stands.
Laplace noise is made and rounded in the same way.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Iterator
from typing import Final

from apiece import _check

# k ↦ a uniform integer of k bits.
Bits = Callable[[int], int]
# The next uniform integer of WORD bits.
Words = Callable[[], int]

# The grid is 2^−24, or 6e-8, noise standard deviations.
BITS: Final = 24
# What the arithmetic of a charge or a scale in doubles is off by at most, in proportion.
SLACK: Final = 2.0**-40
# Bits of a word, in which uniform reals are drawn and compared.
WORD: Final = 32
# Words that are drawn from the source at a time.
_POOL_SIZE: Final = 64


class _Uniform:
    """A uniform real in (0, 1), its binary digits drawn when they are first looked at."""

    __slots__ = ("_later_words", "_next_word", "first")

    def __init__(self, next_word: Words, first: int | None = None) -> None:
        # The first word decides nearly all comparisons; later ones are drawn when they are needed,
        # and kept.
        self._next_word = next_word
        self.first = next_word() if first is None else first
        self._later_words: list[int] = []

    def word(self, i: int) -> int:
        """Return the i-th word of the binary digits, from 0."""
        while len(self._later_words) < i:
            self._later_words.append(self._next_word())
        return self._later_words[i - 1] if i else self.first

    def __lt__(self, other: _Uniform) -> bool:
        i = 0
        while self.word(i) == other.word(i):
            i += 1
        return self.word(i) < other.word(i)


def make_bits(seed: int | None) -> Bits:
    """Return a source of uniform integers: the operating system's, or one that a seed repeats."""
    if seed is None:
        return secrets.randbits
    return random.Random(_check.count("seed", seed, least=0)).getrandbits


def _pool_words(bits: Bits) -> Words:
    """Return a source of words of WORD bits, which draws many of them at a time."""
    mask = (1 << WORD) - 1

    def yield_words() -> Iterator[int]:
        while True:
            pool = bits(WORD * _POOL_SIZE)
            for _ in range(_POOL_SIZE):
                yield pool & mask
                pool >>= WORD

    return yield_words().__next__


def _draw_below(limit: int, next_word: Words) -> int:
    """Return a uniform integer in [0, limit), with limit at most 2^WORD."""
    # The highest bits of a word, as many as the limit needs: fewer than half of the values are
    # rejected.
    shift = WORD - max((limit - 1).bit_length(), 1)
    while (value := next_word() >> shift) >= limit:
        pass
    return value


def _flip_exp_minus_half(next_word: Words) -> bool:
    """Return true with probability exp(−1/2): von Neumann's run of falling uniforms."""
    # The length n of the run 1/2 > u₁ > u₂ > … > uₙ is at least k with probability (1/2)^k/k!, so
    # it is even with probability Σ (−1/2)^k/k! = exp(−1/2).
    # First words decide all but one comparison in 2^WORD; the others are decided on all digits.
    previous = next_word()
    if previous >= 1 << (WORD - 1):
        return True
    even = False
    while (current := next_word()) < previous:
        previous = current
        even = not even
    if current > previous:
        return even
    lower = _Uniform(next_word, current)
    upper = _Uniform(next_word, previous)
    while lower < upper:
        upper = lower
        lower = _Uniform(next_word)
        even = not even
    return even


def _accept_fraction(k: int, x: _Uniform, next_word: Words) -> bool:
    """Return true with probability exp(−x(2k + x)/(2k + 2))."""
    # The run of falling uniforms again, from x on. It goes on after each fall with probability
    # (2k + x)/(2k + 2), so it is at least j long with probability (x(2k + x)/(2k + 2))^j/j!.
    y = x
    even = True
    while True:
        first = next_word()
        if first > y.first:
            return even
        z = _Uniform(next_word, first)
        if first == y.first and not z < y:
            return even
        # Of 2k + 2 equal chances the first 2k go on, one goes on with probability x, and one ends
        # the run.
        part = _draw_below(2 * k + 2, next_word)
        is_last = part == 2 * k + 1
        if is_last or (part == 2 * k and not _Uniform(next_word) < x):
            return even
        y = z
        even = not even


def _draw_normal(next_word: Words) -> tuple[bool, int, _Uniform]:
    """Return the sign, whole part and fraction of an exact standard normal deviate."""
    # Source: Karney 2016, Sampling exactly from the normal distribution, Algorithm N.
    while True:
        # The heads before the first tail make exp(−k/2), and the coins after them exp(−k²/2) of it.
        # The fraction x is accepted with probability exp(−x(2k + x)/2), in k + 1 equal factors.
        # Together that is exp(−(k + x)²/2), the density of a normal up to a constant.
        k = 0
        while _flip_exp_minus_half(next_word):
            k += 1
        # k is accepted with probability exp(−k(k − 1)/2): none of k(k − 1) coins shows tails.
        coins = k * (k - 1)
        if not all(_flip_exp_minus_half(next_word) for _ in range(coins)):
            continue
        x = _Uniform(next_word)
        if all(_accept_fraction(k, x, next_word) for _ in range(k + 1)):
            negative = next_word() >> (WORD - 1) == 1
            return negative, k, x


def _draw_exponential(next_word: Words) -> tuple[int, _Uniform]:
    """Return whole part and fraction of an exact exponential deviate (von Neumann 1951)."""
    units = 0
    while True:
        x = _Uniform(next_word)
        y = x
        even = True
        while (z := _Uniform(next_word)) < y:
            y = z
            even = not even
        # The run x > u₁ > u₂ > … has an even length with probability exp(−x).
        if even:
            return units, x
        units += 1


def _draw_laplace(next_word: Words) -> tuple[bool, int, _Uniform]:
    """Return the sign, whole part and fraction of an exact standard Laplace deviate."""
    negative = next_word() >> (WORD - 1) == 1
    units, fraction = _draw_exponential(next_word)
    return negative, units, fraction


def _round_to_grid(negative: bool, units: int, fraction: _Uniform) -> int:
    """Return the nearest whole number of grid steps; a tie has probability 0."""
    # The grid needs BITS digits and one more to round by, all of them in the first word.
    word = fraction.first
    steps = (units << BITS) + (word >> (WORD - BITS))
    # The first digit beyond the grid rounds up.
    steps += (word >> (WORD - BITS - 1)) & 1
    return -steps if negative else steps


def draw_rounded_laplaces(count: int, bits: Bits = secrets.randbits) -> list[int]:
    """Return `count` independent values of round(2^BITS · L), L standard Laplace, exactly."""
    next_word = _pool_words(bits)
    return [_round_to_grid(*_draw_laplace(next_word)) for _ in range(count)]


def draw_rounded_gaussians(count: int, bits: Bits = secrets.randbits) -> list[int]:
    """Return `count` independent values of round(2^BITS · N), N standard normal, exactly."""
    next_word = _pool_words(bits)
    return [_round_to_grid(*_draw_normal(next_word)) for _ in range(count)]
