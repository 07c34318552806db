"""Bounds on δ(ε) on lattices of ε, and what several of them say together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, tightest
from apiece.accounting.lattice.convolution import Tail, moment, side, tilt_part
from apiece.accounting.lattice.masses import Lattice
from apiece.accounting.truncation import Jumps, Remainder, remainder
from apiece.numerics import UNIT


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A decreasing bound on one direction's δ(ε), linear in e^ε between lattice points."""

    start: float
    step: float
    value: Floats

    def delta(self, epsilon: Floats, before: float) -> Floats:
        """Return the bound at ε; its last value to the right of the lattice.

        To its left δ rises by at most `before` times as much as e^ε falls.
        """
        position = (epsilon - self.start) / self.step
        left = np.clip(np.floor(position), 0, self.value.size - 2).astype(np.intp)
        share = np.expm1(self.step * np.clip(position - left, 0, 1)) / math.expm1(self.step)
        value = self.value[left] * (1 - share) + self.value[left + 1] * share
        grow = np.exp(np.minimum(epsilon, self.start))
        rise = grow * np.expm1(np.clip(self.start - epsilon, 0.0, 700.0))
        return np.asarray(value + before * np.minimum(rise, 1.0), dtype=np.float64)

    def epsilon(self, delta: Floats, before: float) -> Floats:
        """Return where the bound meets δ: `before` where it starts below, ∞ where never below."""
        right = self.value.size - np.searchsorted(self.value[::-1], delta, side="right")
        inside = np.clip(right, 1, self.value.size - 1)
        high, low = self.value[inside - 1], self.value[inside]
        fall = np.where(high > low, high - low, 1.0)
        with np.errstate(over="ignore"):  # a fall may be as small as a denormal number
            share = np.clip((high - delta) / fall, 0, 1)
        found = self.start + self.step * (inside - 1)
        found = found + np.log1p(share * math.expm1(self.step))
        found = np.where(right == 0, before, found)
        return np.asarray(np.where(right == self.value.size, np.inf, found), dtype=np.float64)


def above_line(tail: Tail, outside: float, rare: Remainder | None, *, reverse: bool) -> Line:
    """Return an upper bound: right at lattice points, between which δ is linear in e^ε."""
    start = tail.start + 2 * tail.exponent
    value = (tail.value + tail.error) * math.exp(tail.exponent) + outside
    if rare is not None:
        value += rare.bounds(start + tail.step * np.arange(value.size), reverse=reverse).upper
    return Line(start, tail.step, np.minimum.accumulate(np.minimum(value, 1.0)))


def below_line(tail: Tail, certain: float, rare: Remainder | None) -> Line:
    """Return a lower bound, in the same way; certain: what it never falls below."""
    start = tail.start - 2 * tail.exponent
    value = np.maximum((tail.value - tail.error) * math.exp(-tail.exponent), 0.0) + certain
    if rare is not None:
        added = rare.bounds(start + tail.step * np.arange(value.size), reverse=False).lower
        # linear in e^ε, so that chords are valid, up to the last ε at which it is positive
        value += np.where(np.append(added[1:], 0.0) > 0, added, 0.0)
    value = np.maximum.accumulate(value[::-1])[::-1]
    return Line(start, tail.step, value)


def rare_losses(
    lattices: Sequence[tuple[Lattice, int]],
    rate: float,
    below: Sequence[tuple[Lattice, int]] | None = None,
) -> Remainder | None:
    """Return what the jumps of dominating lattice pairs, so many times each, add to δ.

    None where no loss is cut. rate: the θ of the bound. below: the dominated lattice pairs, where
    their jumps are others. The moment of order −θ is that of the dominating lattices: r^{−θ} is
    convex, so it is no smaller.
    """
    if not any(lattice.jump.q > 0 for lattice, _ in lattices):
        return None
    slack = max(lattice.rounding for lattice, _ in (*lattices, *(below or ()))) + 16 * UNIT
    kinds = [Jumps(*lattice.jump, times, _log_body(lattice, rate)) for lattice, times in lattices]
    inside = (
        max(1 - sum(times * lattice.outside_p for lattice, times in lattices), 0.0),
        max(1 - sum(times * lattice.outside_q for lattice, times in lattices), 0.0),
    )
    under = None if below is None else [Jumps(*low.jump, times, 0.0) for low, times in below]
    return remainder(kinds, rate, slack, inside=inside, below=under)


def _log_body(lattice: Lattice, rate: float) -> float:
    """Return an upper bound on the log of a lattice's moment of order −θ."""
    part = side(lattice, 1, reverse=False)
    log_moment, rounding = moment([part], [tilt_part(part, lattice.step, -rate)], -rate)
    return log_moment + rounding + 8 * UNIT * abs(rate * part.offset)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Bounds of both directions around one δ."""

    above: tuple[Line, ...]
    below: tuple[Line, ...]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) ≥ 0 of the larger direction."""
        upper = np.max([line.epsilon(delta, line.start) for line in self.above], axis=0)
        lower = np.max([line.epsilon(delta, 0.0) for line in self.below], axis=0)
        return Bounds(np.maximum(lower, 0.0), np.maximum(upper, 0.0))

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) of the larger direction."""
        upper = np.max([line.delta(epsilon, 1.0) for line in self.above], axis=0)
        lower = np.max([line.delta(epsilon, 0.0) for line in self.below], axis=0)
        return Bounds(np.clip(lower, 0.0, 1.0), np.clip(upper, 0.0, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Attempts:
    """What several attempts say together; `close`: whether as tightly as was wanted."""

    attempts: tuple[Attempt, ...]
    close: bool

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the tightest of all."""
        return tightest([refined.epsilon(delta) for refined in self.attempts])

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the tightest of all."""
        return tightest([refined.delta(epsilon) for refined in self.attempts])
