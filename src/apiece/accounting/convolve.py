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

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import fft

from apiece.accounting.discretise import Lattice
from apiece.accounting.grid import UNIT
from apiece.accounting.pairs import Floats

_SPAN = 600.0  # largest exponent kept when the tilt is undone
_NEGLIGIBLE = 1e-30  # tilted masses below it may be wrong by a factor of two


class Side(NamedTuple):
    """One direction of a lattice pair, `times` over: log masses under the second measure.

    rounding bounds the relative error of each mass.
    """

    log_mass: Floats
    offset: float
    times: int
    rounding: float


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """δ at ε = start + k·step for one direction: within `error` of `value`, linear in e^ε between.

    exponent: a bound on the log of the relative effect of rounded masses.
    """

    start: float
    step: float
    value: Floats
    error: Floats
    exponent: float


def side(lattice: Lattice, times: int, *, reverse: bool) -> Side:
    """Return the remove direction of a lattice pair, or the add direction (`reverse`)."""
    with np.errstate(divide="ignore"):
        log_mass = np.log(lattice.mass)
    if not reverse:
        return Side(log_mass, lattice.offset, times, lattice.rounding)
    ratio = lattice.offset + lattice.step * np.arange(log_mass.size)
    return Side((log_mass + ratio)[::-1], -float(ratio[-1]), times, lattice.rounding)


class _Tilted(NamedTuple):
    weight: Floats
    log_total: float
    largest: float


def _tilt(part: Side, step: float, tilt: float) -> _Tilted:
    """Return w ∝ q_k·e^{λkh}, the log of its normaliser, and the largest exponent met."""
    exponent = part.log_mass + tilt * step * np.arange(part.log_mass.size)
    top = float(exponent.max())
    weight = np.exp(exponent - top)
    total = float(weight.sum())
    weight /= total
    last = int(np.flatnonzero(weight > _NEGLIGIBLE)[-1])
    return _Tilted(weight, top + math.log(total), 2 * (abs(top) + tilt * step * last) + 100)


def _reach(tilted: list[_Tilted], parts: Sequence[Side], bits: float) -> tuple[int, int]:
    """Return lattice indices outside which the composed w has at most e^{−bits} on either side."""
    mean = variance = 0.0
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        index = np.arange(weight.size)
        centre = float(weight @ index)
        mean += part.times * centre
        variance += part.times * float(weight @ (index - centre) ** 2)
    low, high = 0.0, float(sum(part.times * (part.log_mass.size - 1) for part in parts))
    if variance == 0:
        return int(low), int(high)
    rate = math.sqrt(2 * bits / variance) / 8
    cumulants = np.zeros(8)
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        cumulants += part.times * _cumulants(weight, rate)
    rates = rate * np.array([1.0, 2, 4, 8])
    high = min(high, float(((cumulants[:4] + bits) / rates).min()))
    low = max(low, float(-((cumulants[4:] + bits) / rates).min()))
    return math.floor(low), math.ceil(high)


def _cumulants(weight: Floats, rate: float) -> Floats:
    """Return log Σ w_k e^{θk} at θ = rate·(1, 2, 4, 8) and −rate·(1, 2, 4, 8)."""
    index = np.arange(weight.size)
    out = np.full(8, np.inf)
    for sign, slot in ((1.0, 0), (-1.0, 4)):
        shift = index - (weight.size - 1) if sign > 0 else index
        power = np.exp(sign * rate * shift)
        for j in range(4):
            moment = float(weight @ power)
            lost = rate * 2**j * (weight.size - 1) if sign > 0 else 0.0
            if moment > 0:
                out[slot + j] = math.log(moment) + lost + 1e-12
            power = power * power
    return out


def _fold(weight: Floats, size: int) -> Floats:
    """Return `weight` wrapped around to `size` entries."""
    if weight.size > size:
        weight = np.pad(weight, (0, -weight.size % size)).reshape(-1, size).sum(axis=0)
    return np.pad(weight, (0, size - weight.size))


def _power(base: npt.NDArray[np.complex128], times: int) -> npt.NDArray[np.complex128]:
    """Return base**times by squaring; moduli at most about 1."""
    result = None
    while True:
        if times & 1:
            result = base if result is None else result * base
        times >>= 1
        if not times:
            assert result is not None
            return result
        base = base * base


def _convolve(tilted: list[_Tilted], parts: Sequence[Side], size: int) -> tuple[Floats, float]:
    """Return the cyclic composition of all parts and a bound on the error of each entry."""
    unit = 8 * UNIT * math.log2(size)
    product: npt.NDArray[np.complex128] | None = None
    spread = []
    for part, (weight, _, _) in zip(parts, tilted, strict=True):
        folded = _fold(weight, size)
        powered = _power(fft.rfft(folded), part.times)
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
    result = fft.irfft(product, size)
    error += 8 * times * UNIT * energy / size + unit * float(np.linalg.norm(result))
    return result, error


def tail(parts: Sequence[Side], step: float, tilt: float, wrap: float) -> Tail:
    """Return δ(ε) of the composition of `parts` around the ε that belongs to `tilt` > 1."""
    tilted = [_tilt(part, step, tilt) for part in parts]
    low, high = _reach(tilted, parts, -math.log(wrap))
    size = fft.next_fast_len(max(high - low, 1) + 1, real=True)
    weight, noise = _convolve(tilted, parts, size)
    weight = np.roll(weight, -(low % size))
    start = step * low + sum(part.times * part.offset for part in parts)
    centre = round(float(np.clip(weight, 0, None) @ np.arange(size)))
    skip = max(0, math.floor(centre - _SPAN / (tilt * step)))
    position = np.arange(skip, size) - float(centre)
    # D_j = Σ_{m>j} (e^{ℓ_m} − e^{ℓ_{m−1}})·B_m with B_m = Σ_{i≥m} q_i: no cancellation.
    masses = weight[skip:] * np.exp(-tilt * step * position)
    above = np.cumsum(masses[::-1])[::-1]
    rises = -math.expm1(-step) * np.exp(step * position) * above
    value = np.append(np.cumsum(rises[:0:-1])[::-1], 0.0)
    log_total = sum(part.times * t.log_total for part, t in zip(parts, tilted, strict=True))
    log_total += tilt * sum(part.times * part.offset for part in parts)
    scale = math.exp(log_total + (1 - tilt) * (start + step * centre))
    error = _error(parts, step, tilt, noise, wrap, size) * np.exp((1 - tilt) * step * position)
    error = np.minimum(scale * (error + 8 * size * UNIT * value), 1.0)
    exponent = sum(
        part.times * (part.rounding + 8 * UNIT * t.largest)
        for part, t in zip(parts, tilted, strict=True)
    )
    return Tail(start + step * skip, step, scale * value, error, exponent)


def _error(
    parts: Sequence[Side], step: float, tilt: float, noise: float, wrap: float, size: int
) -> float:
    """Return the error of δ, in units of e^{TK + (1−λ)ε}."""
    largest = math.exp((tilt - 1) * math.log1p(-1 / tilt) - math.log(tilt))
    total = 1 / (step * tilt * (tilt - 1)) + largest
    lost = 2 * wrap + sum(part.times * part.log_mass.size for part in parts) * _NEGLIGIBLE
    return total * noise + largest * lost


def chernoff(parts: Sequence[Side], step: float, tilt: float, delta: Floats) -> Floats:
    """Return an ε ≥ ε(δ) of one direction from the moment of order `tilt` > 1 alone.

    Source: Balle et al. 2020 (Rényi conversion), here with the lattice's own moments.
    """
    tilted = [_tilt(part, step, tilt) for part in parts]
    total = sum(
        part.times * (t.log_total + tilt * part.offset + part.rounding + 8 * UNIT * t.largest)
        for part, t in zip(parts, tilted, strict=True)
    )
    constant = (tilt - 1) * math.log1p(-1 / tilt) - math.log(tilt)
    return np.asarray((total + constant - np.log(delta)) / (tilt - 1))
