"""Gaussian and Laplace noise on a grid, exact to the last bit, from a cryptographic source.

A Gaussian drawn in floating point leaks through its low bits (Mironov 2012). Here every
contribution is first rounded to a whole number of grid steps σ/2^BITS, sums are sums of
integers, and the noise is an exact Gaussian rounded to the grid: the answer is round(sum + σN),
a post-processing of the exact Gaussian mechanism, so the Gaussian's guarantee holds as it stands.
Laplace noise is made and rounded in the same way.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from typing import Final

Bits = Callable[[int], int]  # k ↦ a uniform integer of k bits
Words = Callable[[], int]  # the next uniform integer of WORD bits

BITS: Final = 24  # the grid is 6e-8 noise standard deviations
WORD: Final = 32


class _Uniform:
    """A uniform real in (0, 1), its binary digits drawn when they are first looked at."""

    __slots__ = ("_more", "_rest", "first")

    def __init__(self, more: Words, first: int | None = None) -> None:
        self._more, self.first = more, more() if first is None else first
        self._rest: list[int] = []

    def word(self, i: int) -> int:
        while len(self._rest) < i:
            self._rest.append(self._more())
        return self._rest[i - 1] if i else self.first

    def __lt__(self, other: _Uniform) -> bool:
        i = 0
        while self.word(i) == other.word(i):
            i += 1
        return self.word(i) < other.word(i)


def _pool(bits: Bits) -> Words:
    """Return a source of words of WORD bits, drawn many at a time."""
    mask, size = (1 << WORD) - 1, 64

    def words() -> Iterator[int]:
        while True:
            drawn = bits(WORD * size)
            for _ in range(size):
                yield drawn & mask
                drawn >>= WORD

    return words().__next__


def _below(n: int, more: Words) -> int:
    """Return a uniform integer in [0, n), n at most 2^WORD."""
    shift = WORD - max((n - 1).bit_length(), 1)
    while (value := more() >> shift) >= n:
        pass
    return value


def _exp_minus_half(more: Words) -> bool:
    """Return true with probability exp(−1/2): von Neumann's run of falling uniforms."""
    # First words decide all but one comparison in 2^WORD; the rest is done on all digits.
    last = more()
    if last >= 1 << (WORD - 1):
        return True
    even = False
    while (new := more()) < last:
        last, even = new, not even
    if new > last:
        return even
    lower, upper = _Uniform(more, new), _Uniform(more, last)
    while lower < upper:
        lower, upper, even = _Uniform(more), lower, not even
    return even


def _accept_fraction(k: int, x: _Uniform, more: Words) -> bool:
    """Return true with probability exp(−x(2k + x)/(2k + 2))."""
    y, even = x, True
    while True:
        first = more()
        if first > y.first:
            return even
        z = _Uniform(more, first)
        if first == y.first and not z < y:
            return even
        part = _below(2 * k + 2, more)
        # true with probability (2k + x)/(2k + 2)
        if part == 2 * k + 1 or (part == 2 * k and not _Uniform(more) < x):
            return even
        y, even = z, not even


def _normal(more: Words) -> tuple[bool, int, _Uniform]:
    """Return the sign, whole part and fraction of an exact standard normal deviate."""
    # Source: Karney 2016, Sampling exactly from the normal distribution, Algorithm N.
    while True:
        k = 0
        while _exp_minus_half(more):
            k += 1
        if k > 1 and not all(_exp_minus_half(more) for _ in range(k * (k - 1))):
            continue
        x = _Uniform(more)
        if all(_accept_fraction(k, x, more) for _ in range(k + 1)):
            return more() >> (WORD - 1) == 1, k, x


def _exponential(more: Words) -> tuple[int, _Uniform]:
    """Return whole part and fraction of an exact exponential deviate (von Neumann 1951)."""
    whole = 0
    while True:
        x = _Uniform(more)
        y, even = x, True
        while (z := _Uniform(more)) < y:
            y, even = z, not even
        if even:  # with probability exp(−x)
            return whole, x
        whole += 1


def rounded_laplaces(count: int, bits: Bits = secrets.randbits) -> list[int]:
    """Return `count` independent values of round(2^BITS · L), L standard Laplace, exactly."""
    more = _pool(bits)
    return [_rounded(more() >> (WORD - 1) == 1, *_exponential(more)) for _ in range(count)]


def _rounded(negative: bool, whole: int, fraction: _Uniform) -> int:
    """Return the nearest whole number of grid steps; a tie has probability 0."""
    word = fraction.first
    steps = (whole << BITS) + (word >> (WORD - BITS))
    steps += (word >> (WORD - BITS - 1)) & 1
    return -steps if negative else steps


def rounded_gaussians(count: int, bits: Bits = secrets.randbits) -> list[int]:
    """Return `count` independent values of round(2^BITS · N), N standard normal, exactly."""
    more = _pool(bits)
    return [_rounded(*_normal(more)) for _ in range(count)]
