"""Composition of lattice pairs: an exponentially tilted FFT with an explicit error.

Tilted by λ > 1, the masses of a pair become a probability vector w ∝ q_k·e^{λℓ_k}, whose T-fold
convolution is taken by FFT; with e^{TK} the product of the normalisers,

    δ(ε) = e^{TK} Σ_j w_j·g(ℓ_j),   g(ℓ) = e^{−λℓ}·(e^ℓ − e^ε)₊ ≤ e^{(1−λ)ε}·(λ−1)^{λ−1}/λ^λ.

g is bounded, so every absolute error in w enters δ with a known factor, and at the λ where the
tilted mean lies near ε the value itself is nearly as large as that factor: the relative error of
δ stays tiny however small δ is. Two errors are bounded:

- mass of w outside the transform's window, by Chernoff's inequality on both sides (`wrap`);
- round-off, in ℓ2: an FFT of length N has relative error ≤ 8u·log₂N (Higham 2002, Thm 24.2), and
  |a^T − b^T| ≤ T·|a − b|·max(|a|, |b|)^{T−1}.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats, Reals
from apiece.accounting.bounds import tightest
from apiece.accounting.exact import power
from apiece.accounting.lattice.discretise import Lattice
from apiece.accounting.truncation import Jumps, Remainder, bound_remainder, log_conversion
from apiece.numerics.rounding import UNIT

_SPAN = 600.0  # largest exponent kept when the tilt is undone
_UNDERFLOWS = 1e-280
NEGLIGIBLE = 1e-30  # tilted masses below it may be wrong by a factor of two


class Direction(NamedTuple):
    """One direction of a lattice pair, `times` over: log masses under the second measure."""

    # rounding bounds the relative error of each mass.

    log_mass: Floats
    offset: float
    times: int
    rounding: float


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """δ at ε = start + k·step for one direction: within `error` of `value`, chords between."""

    # exponent: a bound on the log of the relative effect of rounded masses.

    start: float
    step: float
    value: Floats
    error: Floats
    exponent: float


def side(lattice: Lattice, times: int, *, reverse: bool) -> Direction:
    """Return the remove direction of a lattice pair, or the add direction (`reverse`)."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(lattice.mass)
    if not reverse:
        return Direction(log_mass, lattice.offset, times, lattice.rounding)
    ratio = lattice.offset + lattice.step * np.arange(log_mass.size)
    return Direction((log_mass + ratio)[::-1], -float(ratio[-1]), times, lattice.rounding)


class Tilted(NamedTuple):
    """w ∝ q_k·e^{λkh}, the log of its normaliser, and the largest exponent met."""

    weight: Floats
    log_total: float
    largest: float


def tilt_part(part: Direction, step: float, tilt: float) -> Tilted:
    """Return w ∝ q_k·e^{λkh}, the log of its normaliser, and the largest exponent met."""
    exponent = part.log_mass + tilt * step * np.arange(part.log_mass.size)
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    weight /= total
    last = int(np.flatnonzero(weight > NEGLIGIBLE)[-1])
    return Tilted(weight, top + math.log(total), 2 * (abs(top) + abs(tilt) * step * last) + 100)


def moment(
    parts: Sequence[Direction], tilted: Sequence[Tilted], tilt: float
) -> tuple[float, float]:
    """Return the log of the composition's moment of order `tilt`, and what rounding does to it."""
    pairs = list(zip(parts, tilted, strict=True))
    log_moment = sum(part.times * (t.log_total + tilt * part.offset) for part, t in pairs)
    return log_moment, sum(p.times * (p.rounding + 8 * UNIT * t.largest) for p, t in pairs)


def reach(tilted: list[Tilted], parts: Sequence[Direction], nats: float) -> tuple[int, int]:
    """Return lattice indices outside which the composed w has at most e^{−nats} on either side."""
    mean = variance = 0.0
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        index = np.arange(weight.size, dtype=np.float64)
        centre = _inner(weight, index)
        mean += part.times * centre
        variance += part.times * _inner(weight, (index - centre) ** 2)
    low, high = 0.0, float(sum(part.times * (part.log_mass.size - 1) for part in parts))
    if variance <= 0:
        return int(low), int(high)
    longest = max(part.log_mass.size for part in parts)
    quick = min(math.sqrt(2 * nats / variance), 50.0)
    count = max(4, math.ceil(math.log2(max(quick * longest, 1.0))) + 1)
    rates = quick * 2.0 ** np.arange(1 - count, 1)
    cumulants = np.zeros((2, count))
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        cumulants += part.times * _cumulants(weight, rates)
    right, left = (cumulants + nats) / rates
    return math.floor(max(low, -float(left.min()))), math.ceil(min(high, float(right.min())))


def _inner(first: Floats, second: Floats) -> float:
    """Return the inner product, without BLAS, whose threads cost more than they bring."""
    return float(np.einsum("i,i->", first, second))


def _cumulants(weight: Floats, rates: Reals) -> Floats:
    """Return log Σ w_k e^{θk} and log Σ w_k e^{−θk} at rates θ, each twice the one before."""
    index = np.arange(weight.size)
    out = np.full((2, rates.size), np.inf)
    for row, shift in ((0, index - (weight.size - 1)), (1, -index)):
        power = np.exp(rates[0] * shift)
        for j, rate in enumerate(rates):
            moment = _inner(weight, power)
            if moment > _UNDERFLOWS:
                out[row, j] = math.log(moment) - rate * shift[0] * (row == 0) + 1e-9
            power = power * power
    return out


def _fold(weight: Floats, size: int) -> Floats:
    """Return `weight` wrapped around to `size` entries."""
    out = np.zeros(size)
    for start in range(0, weight.size, size):
        some = weight[start : start + size]
        out[: some.size] += some
    return out


def quick_length(least: int) -> int:
    """Return the least number that is not below and has no prime factor above 5.

    >>> quick_length(1001), quick_length(1)
    (1024, 1)
    """
    best, fives = 1 << (least - 1).bit_length(), 1
    while fives < best:
        odd = fives
        while odd < best:
            best = min(best, odd << (-(-least // odd) - 1).bit_length())
            odd *= 3
        fives *= 5
    return best


def convolve(tilted: list[Tilted], parts: Sequence[Direction], size: int) -> tuple[Floats, float]:
    """Return the cyclic composition of all parts and a bound on the error of each entry."""
    unit = 8 * UNIT * math.log2(size)
    product: npt.NDArray[np.complex128] | None = None
    spread = []
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        folded = _fold(weight, size)
        powered = power(np.fft.rfft(folded), part.times, operator.mul)
        product = powered if product is None else product * powered
        spread.append(unit * float(np.linalg.norm(folded)))
    assert product is not None
    times = sum(part.times for part in parts)
    modulus = np.abs(product)
    energy = 2 * float(modulus.sum())
    error = 0.0
    for part, norm in zip(parts, spread, strict=True):
        # ‖f̂ − f‖₂ ≤ √N·norm; the other factors have squared ℓ2-norm at most `energy` (T ≥ 2) or N.
        slack = math.exp(min(4 * times * norm * math.sqrt(size), 700.0))
        others = energy + size * 2.0 ** -min(part.times, 1000) if part.times > 1 else float(size)
        others = min(others * slack, size * slack)
        error += part.times * norm * math.sqrt(others / size)
    result = np.fft.irfft(product, size)
    error += 8 * times * UNIT * energy / size + unit * float(np.linalg.norm(result))
    return result, error


class TooLongError(Exception):
    """The transform would be longer than allowed, by the factor in `args[0]`."""


def tail(
    parts: Sequence[Direction],
    step: float,
    tilt: float,
    wrap: float,
    points: int,
    until: float = 0.0,
) -> Tail:
    """Return δ(ε) of the composition of `parts` around the ε that belongs to `tilt` > 1."""
    # The lattice of ε goes on at least up to `until`. Raises `TooLongError` where this takes a
    # transform of more than `points`.
    tilted = [tilt_part(part, step, tilt) for part in parts]
    low, high = reach(tilted, parts, -math.log(wrap))
    last = sum(part.times * (part.log_mass.size - 1) for part in parts)
    lost = wrap * ((low > 0) + (high < last))
    high = max(high, math.ceil((until - sum(p.times * p.offset for p in parts)) / step) + 2)
    if high - low >= points:
        raise TooLongError((high - low + 1) / points)
    size = quick_length(max(high - low, 1) + 1)
    weight, noise = convolve(tilted, parts, size)
    weight = np.roll(weight, -(low % size))
    start = step * low + sum(part.times * part.offset for part in parts)
    centre = int(np.argmax(weight))
    skip = max(0, math.floor(centre - _SPAN / ((tilt - 1) * step)))
    position = np.arange(skip, size) - float(centre)
    value = _undo(weight[skip:], step, tilt, position)
    log_moment, exponent = moment(parts, tilted, tilt)
    scale = math.exp(log_moment + (1 - tilt) * (start + step * centre))
    error = _error(parts, step, tilt, noise, lost) * np.exp((1 - tilt) * step * position)
    error = scale * (error + 8 * size * UNIT * np.abs(value))
    ended = max(last - low - skip, 0)  # no loss is larger: δ is 0 exactly
    value[ended:], error[ended:] = 0.0, 0.0
    return Tail(start + step * skip, step, scale * value, error, exponent)


def _undo(weight: Floats, step: float, tilt: float, position: Reals) -> Floats:
    """Return D_j = Σ_{i>j} p_i·(1 − e^{x_j − x_i}), p_i = w_i·e^{(1−λ)x_i}, x = step·position."""
    # By D_j = e^{−h}·D_{j+1} + (1 − e^{−h})·Σ_{i>j} p_i, where nothing cancels, solved in blocks
    # over which e^{−hj} keeps within range.
    p = weight * np.exp((1 - tilt) * step * position)
    above = np.append(np.cumsum(p[:0:-1])[::-1], 0.0)
    out = np.empty_like(above)
    block, right, carried = max(int(_SPAN / 2 / step), 1), above.size, 0.0
    while right > 0:
        left = max(right - block, 0)
        growth = np.exp(step * np.arange(right - left))
        inner = np.cumsum((above[left:right] / growth)[::-1])[::-1]
        out[left:right] = growth * (
            -math.expm1(-step) * inner + carried / growth[-1] / math.exp(step)
        )
        carried, right = float(out[left]), left
    return out


def _error(
    parts: Sequence[Direction], step: float, tilt: float, noise: float, lost: float
) -> float:
    """Return the error of δ, in units of e^{TK + (1−λ)ε}; lost: what is outside the transform."""
    # g ≤ e^{largest} bounds what is lost, and the sum of all g(ℓ_j) what each entry may be off.
    largest = math.exp(log_conversion(tilt - 1))
    total = 1 / (step * tilt * (tilt - 1)) + largest
    lost += sum(part.times * part.log_mass.size for part in parts) * NEGLIGIBLE
    return total * noise + largest * lost


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A decreasing bound on one direction's δ(ε), linear in e^ε between lattice points."""

    start: float
    step: float
    value: Floats

    def delta(self, epsilon: Floats, before: float) -> Floats:
        """Return the bound at ε; its last value to the right of the lattice."""
        # To its left δ rises by at most `before` times as much as e^ε falls.
        position = (epsilon - self.start) / self.step
        left = np.clip(np.floor(position), 0, self.value.size - 2).astype(np.intp)
        share = np.expm1(self.step * np.clip(position - left, 0, 1)) / math.expm1(self.step)
        value = self.value[left] * (1 - share) + self.value[left + 1] * share
        distance = np.clip(self.start - epsilon, 0.0, 700.0)
        with np.errstate(over="ignore", invalid="ignore"):  # e^ε may be past the range
            rise = np.exp(np.minimum(epsilon, self.start)) * np.expm1(distance)
        rise = np.where(distance > 0, rise, 0.0)
        return np.asarray(value + before * np.minimum(rise, 1.0), dtype=np.float64)

    def epsilon(self, delta: Floats, before: float) -> Floats:
        """Return where the bound meets δ: `before` where it starts below, ∞ where never below."""
        right = self.value.size - np.searchsorted(self.value[::-1], delta, side="right")
        inside = np.clip(right, 1, self.value.size - 1)
        high, low = self.value[inside - 1], self.value[inside]
        fall = np.where(high > low, high - low, 1.0)
        with np.errstate(over="ignore"):  # a fall may be as small as a denormal number
            share = np.clip((high - delta) / fall, 0, 1)
        crossing = self.start + self.step * (inside - 1)
        crossing = crossing + np.log1p(share * math.expm1(self.step))
        crossing = np.where(right == 0, before, crossing)
        return np.asarray(np.where(right == self.value.size, np.inf, crossing), dtype=np.float64)


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
    """Return what the jumps of dominating lattice pairs, so many times each, add to δ."""
    # None where no loss is cut. rate: the θ of the bound. below: the dominated lattice pairs, where
    # their jumps are others. The moment of order −θ is that of the dominating lattices: r^{−θ} is
    # convex, so it is no smaller.
    if not any(lattice.jump.q > 0 for lattice, _ in lattices):
        return None
    slack = max(lattice.rounding for lattice, _ in (*lattices, *(below or ()))) + 16 * UNIT

    def log_body(lattice: Lattice) -> float:
        """Return an upper bound on the log of a lattice's moment of order −θ."""
        part = side(lattice, 1, reverse=False)
        log_moment, rounding = moment([part], [tilt_part(part, lattice.step, -rate)], -rate)
        return log_moment + rounding + 8 * UNIT * abs(rate * part.offset)

    kinds = [Jumps(*lattice.jump, times, log_body(lattice)) for lattice, times in lattices]
    out_p, out_q = (
        sum(times * getattr(lattice, name) for lattice, times in lattices)
        for name in ("outside_p", "outside_q")
    )
    inside = max(1 - out_p, 0.0), max(1 - out_q, 0.0)
    under = None if below is None else [Jumps(*low.jump, times, 0.0) for low, times in below]
    return bound_remainder(kinds, rate, slack, inside=inside, below=under)


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
