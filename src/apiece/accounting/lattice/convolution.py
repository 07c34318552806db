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

# Largest exponent that stays within range when the tilt is undone.
_SPAN = 600.0
# A sum of products below it may have lost terms by underflow.
_UNDERFLOW = 1e-280
# The share of a tilted law up to which a point's rounding is not bounded: it counts as lost.
NEGLIGIBLE = 1e-30
"""Tilted masses below it may be wrong by a factor of two."""


class Direction(NamedTuple):
    """One direction of a lattice pair, `times` over: log masses under the second measure."""

    log_mass: Floats
    offset: float
    times: int
    # A bound on the relative error of each mass.
    rounding: float


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """δ at ε = start + k·step for one direction: within `error` of `value`, chords between."""

    start: float
    step: float
    value: Floats
    error: Floats
    # A bound on the log of the relative effect of rounded masses.
    exponent: float


def take_direction(lattice: Lattice, times: int, *, reverse: bool) -> Direction:
    """Return the remove direction of a lattice pair, or the add direction (`reverse`)."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(lattice.mass)
    if not reverse:
        return Direction(log_mass, lattice.offset, times, lattice.rounding)
    # The second measure is P, of masses p = q·e^L, and losses are −L, which ascend backwards.
    # (points,), the log-ratio of each lattice point.
    ratio = lattice.offset + lattice.step * np.arange(log_mass.size)
    log_p = (log_mass + ratio)[::-1]
    return Direction(log_p, -float(ratio[-1]), times, lattice.rounding)


class Tilted(NamedTuple):
    """w ∝ q_k·e^{λkh}, the log of its normaliser, and the largest exponent met."""

    weight: Floats
    log_total: float
    largest: float


def tilt_part(part: Direction, step: float, tilt: float) -> Tilted:
    """Return w ∝ q_k·e^{λkh}, the log of its normaliser, and the largest exponent met."""
    index = np.arange(part.log_mass.size)
    exponent = part.log_mass + tilt * step * index
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    weight /= total
    # The rounding of an exponent, of masses that are not negligible, is relative to its terms.
    highest = int(np.flatnonzero(weight > NEGLIGIBLE)[-1])
    largest = 2 * (abs(top) + abs(tilt) * step * highest) + 100
    return Tilted(weight, top + math.log(total), largest)


def moment(
    parts: Sequence[Direction], tilted: Sequence[Tilted], tilt: float
) -> tuple[float, float]:
    """Return the log of the composition's moment of order `tilt`, and what rounding does to it."""
    log_moment = 0.0
    rounding = 0.0
    for part, tilted_part in zip(parts, tilted, strict=True):
        log_moment += part.times * (tilted_part.log_total + tilt * part.offset)
        rounding += part.times * (part.rounding + 8 * UNIT * tilted_part.largest)
    return log_moment, rounding


def find_reach(tilted: list[Tilted], parts: Sequence[Direction], nats: float) -> tuple[int, int]:
    """Return lattice indices outside which the composed w has at most e^{−nats} on either side."""
    variance = 0.0
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        index = np.arange(weight.size, dtype=np.float64)
        centre = _inner_product(weight, index)
        variance += part.times * _inner_product(weight, (index - centre) ** 2)
    low = 0.0
    high = float(_last_index(parts))
    if variance <= 0:
        return int(low), int(high)
    # Chernoff: P(index ≥ x) ≤ e^{K(θ) − θx} for every θ. The best θ of a normal law is the largest
    # tried; longer tails ask for less, down to one over the lattice.
    longest = max(part.log_mass.size for part in parts)
    normal_rate = min(math.sqrt(2 * nats / variance), 50.0)
    halvings = math.ceil(math.log2(max(normal_rate * longest, 1.0)))
    count = max(4, halvings + 1)
    rates = normal_rate * 2.0 ** np.arange(1 - count, 1)
    cumulants = np.zeros((2, count))
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        cumulants += part.times * _cumulants(weight, rates)
    upper_reach, lower_reach = (cumulants + nats) / rates
    lowest = max(low, -float(lower_reach.min()))
    highest = min(high, float(upper_reach.min()))
    return math.floor(lowest), math.ceil(highest)


def _last_index(parts: Sequence[Direction]) -> int:
    """Return the index of the composition's last lattice point."""
    return sum(part.times * (part.log_mass.size - 1) for part in parts)


def _inner_product(weight: Floats, values: Floats) -> float:
    """Return Σ weight·value, without BLAS, whose threads cost more than they bring."""
    return float(np.einsum("i,i->", weight, values))


def _cumulants(weight: Floats, rates: Reals) -> Floats:
    """Return log Σ w_k e^{θk} and log Σ w_k e^{−θk} at rates θ, each twice the one before."""
    # Powers are taken from the end at which they are 1, so that none overflows.
    index = np.arange(weight.size)
    highest = weight.size - 1
    log_moments = np.full((2, rates.size), np.inf)
    # Of each row, the exponents of its powers and the index that they were counted from.
    rows = ((index - highest, highest), (-index, 0))
    for row, (shift, origin) in enumerate(rows):
        power = np.exp(rates[0] * shift)
        for j, rate in enumerate(rates):
            moment = _inner_product(weight, power)
            # Where it has underflowed, ∞ is an upper bound.
            if moment > _UNDERFLOW:
                log_moments[row, j] = math.log(moment) + rate * origin + 1e-9
            # Each rate is twice the one before.
            power = power * power
    return log_moments


def _fold(weight: Floats, size: int) -> Floats:
    """Return `weight` wrapped around to `size` entries."""
    folded = np.zeros(size)
    for start in range(0, weight.size, size):
        piece = weight[start : start + size]
        folded[: piece.size] += piece
    return folded


def quick_length(length: int) -> int:
    """Return the least number, from `length` on, that has no prime factor above 5.

    >>> quick_length(1001), quick_length(1)
    (1024, 1)
    """
    best = 1 << (length - 1).bit_length()
    fives = 1
    while fives < best:
        odd = fives
        while odd < best:
            # The least power of two with which this product of odd factors is long enough.
            quotient = -(-length // odd)
            best = min(best, odd << (quotient - 1).bit_length())
            odd *= 3
        fives *= 5
    return best


def convolve(tilted: list[Tilted], parts: Sequence[Direction], size: int) -> tuple[Floats, float]:
    """Return the cyclic composition of all parts and a bound on the error of each entry."""
    # Relative ℓ2-error of one transform, as above.
    unit = 8 * UNIT * math.log2(size)
    product: npt.NDArray[np.complex128] | None = None
    # ℓ2-errors of the transforms, over √N.
    transform_errors = []
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        folded = _fold(weight, size)
        factor = power(np.fft.rfft(folded), part.times, operator.mul)
        product = factor if product is None else product * factor
        transform_errors.append(unit * float(np.linalg.norm(folded)))
    assert product is not None
    times = sum(part.times for part in parts)
    # Twice the sum over half of the frequencies.
    modulus = np.abs(product)
    energy = 2 * float(modulus.sum())
    error = 0.0
    for part, norm in zip(parts, transform_errors, strict=True):
        # ‖f̂ − f‖₂ ≤ √N·norm; the other factors have squared ℓ2-norm at most `energy` (T ≥ 2) or N.
        relative_error = 4 * times * norm * math.sqrt(size)
        slack = math.exp(min(relative_error, 700.0))
        # With |f̂| ≤ 1, |f̂|^{2(T−1)} ≤ |f̂|^T for T ≥ 2, so that |product| bounds the square of
        # all other factors.
        if part.times > 1:
            cofactor = energy + size * 2.0 ** -min(part.times, 1000)
        else:
            cofactor = float(size)
        cofactor = min(cofactor * slack, size * slack)
        error += part.times * norm * math.sqrt(cofactor / size)
    # The rounding of the powers, and of the transform back.
    result = np.fft.irfft(product, size)
    powers_error = 8 * times * UNIT * energy / size
    inverse_error = unit * float(np.linalg.norm(result))
    error += powers_error + inverse_error
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
    """Return δ(ε) of the composition of `parts` around the ε that belongs to `tilt` > 1.

    `wrap` is the tilted mass that may be lost on either side. The lattice of ε goes on at least up
    to `until`. Raises `TooLongError` where this takes a transform of more than `points`.
    """
    tilted = [tilt_part(part, step, tilt) for part in parts]
    low, high = find_reach(tilted, parts, -math.log(wrap))
    highest = _last_index(parts)
    offset = sum(part.times * part.offset for part in parts)
    # Mass is lost on each side on which the window ends before the lattice.
    lost = wrap * ((low > 0) + (high < highest))
    # What jumps add is read off lattice points too, up to `until`.
    high = max(high, math.ceil((until - offset) / step) + 2)
    if high - low >= points:
        raise TooLongError((high - low + 1) / points)
    size = quick_length(max(high - low, 1) + 1)
    weight, noise = convolve(tilted, parts, size)
    # Index i of the composition is entry i mod N of a cyclic one.
    weight = np.roll(weight, -(low % size))
    start = step * low + offset
    # Losses are counted from the likeliest tilted one, and those left out that are so far below it
    # that the factor e^{(1−λ)ℓ} passes the range.
    centre = int(np.argmax(weight))
    skip = max(0, math.floor(centre - _SPAN / ((tilt - 1) * step)))
    position = np.arange(skip, size) - float(centre)
    value = _undo_tilt(weight[skip:], step, tilt, position)
    log_moment, exponent = moment(parts, tilted, tilt)
    scale = math.exp(log_moment + (1 - tilt) * (start + step * centre))
    tilted_error = _bound_error(parts, step, tilt, noise, lost)
    error = tilted_error * np.exp((1 - tilt) * step * position)
    error = scale * (error + 8 * size * UNIT * np.abs(value))
    # No loss is larger: δ is 0 exactly.
    largest_loss = max(highest - low - skip, 0)
    value[largest_loss:] = 0.0
    error[largest_loss:] = 0.0
    return Tail(start + step * skip, step, scale * value, error, exponent)


def _undo_tilt(weight: Floats, step: float, tilt: float, position: Reals) -> Floats:
    """Return D_j = Σ_{i>j} p_i·(1 − e^{x_j − x_i}), p_i = w_i·e^{(1−λ)x_i}, x = step·position."""
    # By D_j = e^{−h}·D_{j+1} + (1 − e^{−h})·Σ_{i>j} p_i, where nothing cancels, solved in blocks
    # over which e^{−hj} keeps within range.
    p = weight * np.exp((1 - tilt) * step * position)
    downward_sums = np.cumsum(p[:0:-1])
    above = np.append(downward_sums[::-1], 0.0)
    sums = np.empty_like(above)
    block = max(int(_SPAN / 2 / step), 1)
    end = above.size
    # D at the start of the block above.
    carried = 0.0
    while end > 0:
        start = max(end - block, 0)
        growth = np.exp(step * np.arange(end - start))
        scaled = np.flip(above[start:end] / growth)
        scaled_sums = np.flip(np.cumsum(scaled))
        from_above = carried / growth[-1] / math.exp(step)
        within = -math.expm1(-step) * scaled_sums
        sums[start:end] = growth * (within + from_above)
        carried = float(sums[start])
        end = start
    return sums


def _bound_error(
    parts: Sequence[Direction], step: float, tilt: float, noise: float, lost: float
) -> float:
    """Return the error of δ, in units of e^{TK + (1−λ)ε}.

    `noise` is the error of each entry of the transform, `lost` the tilted mass outside it.
    """
    # g ≤ e^{largest} bounds what is lost, and the sum of all g(ℓ_j) what each entry may be off.
    largest = math.exp(log_conversion(tilt - 1))
    # Σ_j g(ℓ_j) is at most the integral over h, 1/(hλ(λ − 1)), and the largest term.
    total = 1 / (step * tilt * (tilt - 1)) + largest
    lost += sum(part.times * part.log_mass.size for part in parts) * NEGLIGIBLE
    return total * noise + largest * lost


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A decreasing bound on one direction's δ(ε), linear in e^ε between lattice points."""

    start: float
    step: float
    value: Floats

    def delta(self, epsilon: Floats, left_slope: float) -> Floats:
        """Return the bound at ε; its last value to the right of the lattice.

        To its left δ rises by at most `left_slope` times as much as e^ε falls.
        """
        position = (epsilon - self.start) / self.step
        cell = np.clip(np.floor(position), 0, self.value.size - 2)
        low = cell.astype(np.intp)
        fraction = np.clip(position - low, 0, 1)
        growth = np.expm1(self.step * fraction)
        share = growth / math.expm1(self.step)
        # On the chord, which is straight in e^ε.
        low_part = self.value[low] * (1 - share)
        value = low_part + self.value[low + 1] * share
        distance = np.clip(self.start - epsilon, 0.0, 700.0)
        nearest = np.minimum(epsilon, self.start)
        # e^ε may be past the range.
        with np.errstate(over="ignore", invalid="ignore"):
            rise = np.exp(nearest) * np.expm1(distance)
        rise = np.where(distance > 0, rise, 0.0)
        return np.asarray(value + left_slope * np.minimum(rise, 1.0), dtype=np.float64)

    def epsilon(self, delta: Floats, start: float) -> Floats:
        """Return the ε at which the bound meets δ; ∞ where it is never below.

        `start` is the answer where it is below δ from the first lattice point on.
        """
        # The first lattice point at which the bound is at most δ.
        # Bounds fall along the lattice; turned round they ascend, as a search needs.
        ascending = self.value[::-1]
        crossed = ascending.size - np.searchsorted(ascending, delta, side="right")
        inside = np.clip(crossed, 1, self.value.size - 1)
        high = self.value[inside - 1]
        low = self.value[inside]
        fall = np.where(high > low, high - low, 1.0)
        # A fall may be as small as a denormal number.
        with np.errstate(over="ignore"):
            share = np.clip((high - delta) / fall, 0, 1)
        crossing = self.start + self.step * (inside - 1)
        crossing = crossing + np.log1p(share * math.expm1(self.step))
        crossing = np.where(crossed == 0, start, crossing)
        crossing = np.where(crossed == self.value.size, np.inf, crossing)
        return np.asarray(crossing, dtype=np.float64)


def above_line(tail: Tail, outside: float, rare: Remainder | None, *, reverse: bool) -> Line:
    """Return an upper bound: right at lattice points, between which δ is linear in e^ε."""
    # Masses that are off by a factor e^x change δ by as much and move ε by 2x, to the right here.
    start = tail.start + 2 * tail.exponent
    factor = math.exp(tail.exponent)
    value = (tail.value + tail.error) * factor + outside
    if rare is not None:
        epsilon = start + tail.step * np.arange(value.size)
        value += rare.bounds(epsilon, reverse=reverse).upper
    # A profile falls: an upper bound at one ε holds at every larger one.
    return Line(start, tail.step, np.minimum.accumulate(np.minimum(value, 1.0)))


def below_line(tail: Tail, certain: float, rare: Remainder | None) -> Line:
    """Return a lower bound on the same lattice; it never falls below `certain`."""
    start = tail.start - 2 * tail.exponent
    factor = math.exp(-tail.exponent)
    value = np.maximum((tail.value - tail.error) * factor, 0.0)
    value = value + certain
    if rare is not None:
        epsilon = start + tail.step * np.arange(value.size)
        added = rare.bounds(epsilon, reverse=False).lower
        # Linear in e^ε, so that chords are valid, up to the last ε at which it is positive.
        value += np.where(np.append(added[1:], 0.0) > 0, added, 0.0)
    # A profile falls: a lower bound at one ε holds at every smaller one.
    rising = np.maximum.accumulate(value[::-1])
    return Line(start, tail.step, rising[::-1])


def bound_rare_losses(
    lattices: Sequence[tuple[Lattice, int]],
    rate: float,
    below: Sequence[tuple[Lattice, int]] | None = None,
) -> Remainder | None:
    """Bound the part of δ that the jumps of dominating lattice pairs make, so many times each.

    None where no loss is cut. `rate` is the θ of the bound; `below` are the dominated lattice
    pairs, where their jumps are others.
    """
    # The moment of order −θ is that of the dominating lattices: r^{−θ} is convex, so it is no
    # smaller.
    if not any(lattice.jump.q > 0 for lattice, _ in lattices):
        return None
    dominated = below or ()
    roundings = [lattice.rounding for lattice, _ in (*lattices, *dominated)]
    slack = max(roundings) + 16 * UNIT

    def log_body(lattice: Lattice) -> float:
        """Return an upper bound on the log of a lattice's moment of order −θ."""
        part = take_direction(lattice, 1, reverse=False)
        tilted = tilt_part(part, lattice.step, -rate)
        log_moment, rounding = moment([part], [tilted], -rate)
        return log_moment + rounding + 8 * UNIT * abs(rate * part.offset)

    kinds = [Jumps(*lattice.jump, times, log_body(lattice)) for lattice, times in lattices]
    outside_p = sum(times * lattice.outside_p for lattice, times in lattices)
    outside_q = sum(times * lattice.outside_q for lattice, times in lattices)
    inside = (max(1 - outside_p, 0.0), max(1 - outside_q, 0.0))
    low_jumps = None if below is None else [Jumps(*low.jump, times, 0.0) for low, times in below]
    return bound_remainder(kinds, rate, slack, inside=inside, below=low_jumps)


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """Bounds of both directions around one δ."""

    above: tuple[Line, ...]
    below: tuple[Line, ...]

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) ≥ 0 of the larger direction."""
        # From above, ε is no smaller than where the lattice starts; from below nothing is known.
        upper = np.max([line.epsilon(delta, line.start) for line in self.above], axis=0)
        lower = np.max([line.epsilon(delta, 0.0) for line in self.below], axis=0)
        return Bounds(np.maximum(lower, 0.0), np.maximum(upper, 0.0))

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) of the larger direction."""
        # δ rises by no more than e^ε falls, as P(A) − e^ε·Q(A) does; from below it may not rise.
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
        return tightest([attempt.epsilon(delta) for attempt in self.attempts])

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the tightest of all."""
        return tightest([attempt.delta(epsilon) for attempt in self.attempts])
