"""Bounds on ε(δ) of many sampled Gaussian compositions at once, by a contour integral.

With L the total loss, any real ε and any λ > 1, on the contour s = λ + iy,

    δ(ε) = E_Q[(e^L − e^ε)₊] = 1/(2πi) ∫ M(s)^T·e^{(1−s)ε}/(s(s − 1)) ds,   M(s) = E_Q[r^s],

and the add direction is the same with M(1 − s). The trapezoidal rule of spacing 2π/W gives exactly

    Σ_m e^{(λ−1)mW}·δ(ε + mW)

(Poisson's summation formula): all other terms are positive, so it is an upper bound, and Chernoff's
inequality on them makes it a lower one. At a λ where the tilted mean lies near ε the integrand
falls like a normal density, so that some ten points suffice. What is left out beyond them is
bounded through uniform laws that one step's tilted loss contains (`moments.Steps.slabs`).

Characteristic functions: Zhu, Dong, Wang 2022 (AFA); the tilt: Alghamdi et al. 2023 (SPA).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.accounting.bounds import Bounds
from apiece.accounting.contour.moments import Steps, Weights, log_modulus
from apiece.accounting.truncation import Remainder, log_conversion
from apiece.numerics import UNIT

_LOG_ERROR = math.log(1e-8)  # relative error of δ aimed at, for each of its causes
_FREQUENCIES = np.geomspace(3.0, 400.0, 18)
_TOO_MUCH = 1e-3  # of δ, that may be left out
_CLOSER = (1.1, 2.0, 8.0, 32.0)


@dataclass(frozen=True, slots=True, eq=False)
class Contour:
    """K integrals for δ(ε); all (K, 1), or (K, points).

    δ(ε) = e^{log_scale + (1 − λ)ε}·(Re Σ term·e^{−iyε} ± error) − aliases + what is in no window.
    size: Σ|term|. sway: Σ|term|·y. points: how many it takes, or would take; ∞
    where the integrand falls too slowly for any number.
    """

    sign: int
    tilt: Floats
    log_scale: Floats
    y: Floats
    term: npt.NDArray[np.complex128]
    error: Floats
    size: Floats
    sway: Floats
    aliases: tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
    """Pairs (λ', log a): the aliases are at most Σ a·e^{(1 − λ')ε}."""
    rest: Remainder
    points: Floats

    def _scale(self, epsilon: Floats) -> Floats:
        return np.asarray(np.exp(self.log_scale + (1 - self.tilt) * epsilon))

    def estimate(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """Return about δ(ε) and minus its derivative."""
        turned = self.term * np.exp(-1j * self.y * epsilon)
        slope = _total((self.tilt - 1) * turned.real - self.y * turned.imag)
        jumps = self.rest.bounds(epsilon, reverse=self.sign < 0).lower
        fall = np.where(jumps > 0, self.rest.p[0] - jumps, 0.0)
        scale = self._scale(epsilon)
        return scale * _total(turned.real) + jumps, scale * slope + fall

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε)."""
        return self._around(_total((self.term * np.exp(-1j * self.y * epsilon)).real), epsilon)

    def deltas(self, low: Floats, step: Floats, root: int) -> tuple[Floats, Bounds]:
        """Return root² evenly spaced ε and bounds on δ there, (K, root²)."""
        fine = np.exp(-1j * (self.y * step)[:, :, None] * np.arange(root))
        start = low + step * (root * np.arange(root))
        coarse = self.term[:, None] * np.exp(-1j * self.y[:, None] * start[:, :, None])
        value = (coarse @ fine).real.reshape(low.size, -1)
        epsilon = low + step * np.arange(root**2)
        return epsilon, self._around(value, epsilon)

    def _around(self, value: Floats, epsilon: Floats) -> Bounds:
        """Bound δ(ε), given the sum at ε."""
        scale = self._scale(epsilon)
        error = self.error + UNIT * (32 * self.size + 16 * self.sway * np.abs(epsilon))
        sizes = np.abs(self.log_scale) + np.abs((1 - self.tilt) * epsilon)
        rounding = 1 + 16 * UNIT * (4 + sizes)
        (more, log_a), (less, log_b) = self.aliases
        alias = np.exp(log_a + (1 - more) * epsilon) + np.exp(log_b + (1 - less) * epsilon)
        low, high = self.rest.bounds(epsilon, reverse=self.sign < 0)
        lower = scale * (value - error) / rounding - alias * (1 + 1e-9) + low
        upper = scale * (value + error) * rounding + high
        return Bounds(lower, upper * (1 + 4 * UNIT))

    def epsilon(self, delta: Floats, guess: Floats) -> Bounds:
        """Return ε at which bounds on δ(ε) were evaluated and found above and below `delta`."""
        at, done = guess, np.zeros(guess.shape, dtype=bool)
        for _ in range(8):
            value, fall = self.estimate(at)
            farthest = 0.5 * np.abs(at) + 1.0
            step = np.clip(np.log(value / delta) * value / fall, -farthest, farthest)
            at = np.where(done, at, at + step)
            done |= ~(np.abs(step) > 1e-10 * np.abs(at))
            if done.all():
                break
        value, fall = self.estimate(at)
        lower, upper = self.delta(at)
        above, below = np.full(at.shape, np.inf), np.zeros(at.shape)
        for factor in _CLOSER:
            rounding = 1e-14 * np.abs(at)
            high = at + factor * np.maximum(upper - delta, 0.0) / fall + rounding
            low = at - factor * np.maximum(delta - lower, 0.0) / fall - rounding
            high, low = np.maximum(high, 0.0), np.maximum(low, 0.0)
            holds = (self.delta(high).upper <= delta) & np.isinf(above)
            fails = (self.delta(low).lower > delta) & (below == 0)
            above, below = np.where(holds, high, above), np.where(fails, low, below)
            if (np.isfinite(above) & ((below > 0) | (low == 0))).all():
                break
        return Bounds(below, above)


def contour(
    steps: Steps, times: Floats, delta: Floats, outside: Remainder, share: Floats, most: int
) -> tuple[Contour, Floats]:
    """Return the integrals around δ, and about the ε that belong to it.

    share: about which share of δ the steps within their windows make. most: points of a contour.
    """
    tilt, law = _tilts(steps, times, share * delta)
    order, spread = steps.order(tilt), np.sqrt(times * law.variance)
    log_scale = times * law.log_total
    guess = (log_scale - np.log(share * delta) + log_conversion(tilt - 1)) / (tilt - 1)
    period, aliases = _period(steps, times, share * delta, tilt, spread, guess)
    log_value = np.log(share * delta) - log_scale + (tilt - 1) * guess
    end, rest = _end(steps, times, order, law, spread, log_value)

    step = 2 * math.pi / period
    needed = np.where(rest > _TOO_MUCH * np.exp(log_value), np.inf, np.ceil(end / step))
    rest = np.where(needed <= most, rest, np.inf)
    points = np.where(needed <= most, needed, 1.0)
    number = np.arange(int(points.max()) + 1)
    y, used = step * number, number <= points
    error, phase = steps.error(order, step * points, law)
    psi = _powers(np.exp(1j * step * steps.sign * steps.ratio), law.share, points[:, 0])
    log_psi, s = np.log(psi), tilt + 1j * y
    term = np.where(number == 0, 0.5, 1.0) * used * step / math.pi
    term = term * np.exp(times * log_psi) / (s * (s - 1))
    relative = times * np.log1p((error + y * phase + 8 * UNIT * number) / np.abs(psi))
    relative += UNIT * (16 + points + 8 * np.abs(times * log_psi))
    relative += 32 * UNIT * times * (1 + np.abs(law.log_total))
    modulus = np.abs(term)
    wrong = _total(np.where(modulus > 0, modulus * np.expm1(relative), 0.0))
    sizes = (wrong + rest, _total(modulus), _total(modulus * y))
    return Contour(steps.sign, tilt, log_scale, y, term, *sizes, aliases, outside, needed), guess


def _tilts(steps: Steps, times: Floats, delta: Floats) -> tuple[Floats, Weights]:
    """Return the λ of the best Rényi conversion: (λ − 1)K' − K + log λ + log δ = 0."""
    low, high = np.full(times.shape, math.log(1e-6)), np.full(times.shape, math.log(1e7))
    variance = np.expm1(np.minimum(1 / steps.z**2, 50.0)) * steps.q**2 * times
    base = -np.log(delta)
    at = np.log(np.sqrt(2 * base / variance))
    done = np.zeros(at.shape, dtype=bool)
    for _ in range(10):
        at = np.where(done | (at > low) & (at < high), at, (low + high) / 2)
        x = np.exp(at)
        law = steps.weights(steps.order(1 + x))
        value = times * (x * law.mean - law.log_total) + np.log1p(x) - base
        slope = x * (times * x * law.variance + 1 / (1 + x))
        low, high = np.where(value < 0, at, low), np.where(value < 0, high, at)
        # nearly quadratic in x: Newton on the logarithm of its square root
        whole = np.maximum(value + base, 1e-300)
        step = (np.log(base) - np.log(whole)) * whole / slope
        at = np.where(done, at, at + step)
        done |= np.abs(step) < 0.01
        if done.all():
            break
    x = np.exp(np.where(done | (at > low) & (at < high), at, (low + high) / 2))
    return 1 + x, steps.weights(steps.order(1 + x))


def _total(values: Floats) -> Floats:
    """Return row sums, in an order that does not depend on how many zeros follow."""
    return np.cumsum(values, axis=1)[:, -1:]


def _period(
    steps: Steps, times: Floats, delta: Floats, tilt: Floats, spread: Floats, guess: Floats
) -> tuple[Floats, tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
    """Return W, and bounds on the aliases from above and from below."""
    period = np.full(tilt.shape, np.inf)
    best, log_best = tilt + 1, np.full(tilt.shape, np.inf)
    for share in (0.4, 1.0):
        more = share * math.sqrt(-2 * _LOG_ERROR) / spread
        other = tilt + more
        order = steps.order(other)
        there = steps.weights(order)
        error = steps.error(order, np.zeros_like(tilt), there)[0]
        log_most = times * (there.log_total + np.log1p(error)) + log_conversion(other - 1)
        wide = (log_most + (1 - other) * guess - np.log(delta) - _LOG_ERROR) / more
        better = wide < period
        period, best = np.where(better, wide, period), np.where(better, other, best)
        log_best = np.where(better, log_most, log_best)
    period = np.maximum(period, (-np.log(delta) - _LOG_ERROR) / (tilt - 1))
    period = np.maximum(period, 4 * spread)
    shrink, back = np.exp((tilt - best) * period), np.exp((1 - tilt) * period)
    above = (best, log_best + np.log(shrink / (1 - shrink)))
    return period, (above, (np.ones_like(tilt), np.log(back / (1 - back))))


def _end(
    steps: Steps, times: Floats, order: Floats, law: Weights, spread: Floats, log_value: Floats
) -> tuple[Floats, Floats]:
    """Return the y up to which the integrand is worth it, and a bound on all that follows."""
    frequency: Floats = _FREQUENCIES / spread
    error = steps.error(order, np.zeros_like(spread), law)[0]
    log_most = law.log_total + np.log1p(error + 64 * UNIT * (1 + np.abs(law.log_total)))
    slabs = steps.slabs(order, log_most)
    log_bound = times * (log_modulus(slabs, frequency) + log_most - law.log_total)
    bound = np.exp(log_bound) / frequency / math.pi
    left = np.diff(frequency, axis=1) / frequency[:, 1:] * bound[:, :-1]
    left = np.append(left, bound[:, -1:], axis=1)
    left = np.cumsum(left[:, ::-1], axis=1)[:, ::-1] * (1 + 1e-9)
    enough = left <= np.exp(_LOG_ERROR + log_value)
    first = np.where(enough.any(axis=1), enough.argmax(axis=1), frequency.shape[1] - 1)[:, None]
    return np.take_along_axis(frequency, first, axis=1), np.take_along_axis(left, first, axis=1)


def _powers(
    base: npt.NDArray[np.complex128], share: Floats, points: Floats
) -> npt.NDArray[np.complex128]:
    """Return Σ_k share_k·base_k^j for j = 0, 1, …; beyond each row's own `points` 1."""
    rows = np.argsort(-points, kind="stable")
    number = np.arange(int(points.max()) + 1)
    alive = np.searchsorted(-points[rows], -number, side="right")
    base, current = base[rows], share[rows].astype(np.complex128)
    out = np.ones((rows.size, number.size), dtype=np.complex128)
    for j, n in enumerate(alive):
        out[:n, j] = current[:n].sum(axis=1)
        current[:n] *= base[:n]
    back = np.empty_like(rows)
    back[rows] = np.arange(rows.size)
    return out[back]
