"""Gaussian noise on a grid, exact to the last bit, from a cryptographic source.

A Gaussian drawn in floating point leaks through its low bits (Mironov 2012). Here every
contribution is first rounded to a whole number of grid steps σ/2^BITS, sums are sums of
integers, and the noise is an exact Gaussian rounded to the grid: the answer is round(sum + σN),
a post-processing of the exact Gaussian mechanism, so the Gaussian's guarantee holds as it stands.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Final

Bits = Callable[[int], int]  # k ↦ a uniform integer of k bits

BITS: Final = 24  # the grid is 6e-8 noise standard deviations
WORD: Final = 32


class _Uniform:
    """A uniform real in (0, 1), its binary digits drawn when they are first looked at."""

    __slots__ = ("_bits", "_words")

    def __init__(self, bits: Bits) -> None:
        self._bits, self._words = bits, [bits(WORD)]

    def word(self, i: int) -> int:
        while len(self._words) <= i:
            self._words.append(self._bits(WORD))
        return self._words[i]

    def __lt__(self, other: _Uniform) -> bool:
        i = 0
        while self.word(i) == other.word(i):
            i += 1
        return self.word(i) < other.word(i)

    def below_half(self) -> bool:
        return self.word(0) < 1 << (WORD - 1)


def _below(n: int, bits: Bits) -> int:
    """Return a uniform integer in [0, n)."""
    k = max((n - 1).bit_length(), 1)
    while (value := bits(k)) >= n:
        pass
    return value


def _exp_minus_half(bits: Bits) -> bool:
    """Return true with probability exp(−1/2): von Neumann's run of falling uniforms."""
    last = _Uniform(bits)
    if not last.below_half():
        return True
    even = False
    while (new := _Uniform(bits)) < last:
        last, even = new, not even
    return even


def _accept_fraction(k: int, x: _Uniform, bits: Bits) -> bool:
    """Return true with probability exp(−x(2k + x)/(2k + 2))."""
    y, even = x, True
    while (z := _Uniform(bits)) < y:
        part = _below(2 * k + 2, bits)
        # true with probability (2k + x)/(2k + 2)
        if part == 2 * k + 1 or (part == 2 * k and not _Uniform(bits) < x):
            break
        y, even = z, not even
    return even


def _normal(bits: Bits) -> tuple[bool, int, _Uniform]:
    """Return the sign, whole part and fraction of an exact standard normal deviate.

    Source: Karney 2016, Sampling exactly from the normal distribution, Algorithm N.
    """
    while True:
        k = 0
        while _exp_minus_half(bits):
            k += 1
        if not all(_exp_minus_half(bits) for _ in range(k * (k - 1))):
            continue
        x = _Uniform(bits)
        if all(_accept_fraction(k, x, bits) for _ in range(k + 1)):
            return bool(bits(1)), k, x


def rounded_gaussians(count: int, bits: Bits = secrets.randbits) -> list[int]:
    """Return `count` independent values of round(2^BITS · N), N standard normal, exactly.

    bits: where randomness comes from; the operating system's cryptographic source by default.
    Anything else is for tests and simulations, never for a release.

    >>> import random
    >>> [v / 2**BITS for v in rounded_gaussians(2, random.Random(0).getrandbits)] == [0.0, 0.0]
    False
    """
    values = []
    for _ in range(count):
        negative, whole, fraction = _normal(bits)
        word = fraction.word(0)
        steps = (whole << BITS) + (word >> (WORD - BITS))
        steps += (word >> (WORD - BITS - 1)) & 1  # to the nearest; a tie has probability 0
        values.append(-steps if negative else steps)
    return values
