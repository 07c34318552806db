"""Bounds on ε(δ) of many sampled Gaussian compositions at once, by a contour integral.

With L the total loss, any real ε and any λ > 1, on the contour s = λ + iy,

    δ(ε) = E_Q[(e^L − e^ε)₊] = 1/(2πi) ∫ M(s)^T·e^{(1−s)ε}/(s(s − 1)) ds,   M(s) = E_Q[r^s],

and the add direction is the same with M(1 − s). The trapezoidal rule of spacing 2π/W gives exactly

    Σ_m e^{(λ−1)mW}·δ(ε + mW)

(Poisson's summation formula): all other terms are positive, so it is an upper bound, and Chernoff's
inequality on them makes it a lower one. At a λ where the tilted mean lies near ε the integrand
falls like a normal density, so that some ten points suffice. What is left out beyond them is
bounded through uniform laws that one step's tilted loss contains (`moments.Steps.slabs`).

Where one loss in many makes δ, the integrand hardly falls: most of the law lies in a narrow peak.
There e^L is multiplied by an independent e^X with mean 1, X normal with variance v, so that the
integrand falls as e^{−vy²/2}. With the density p of the smoothed loss under Q, times e^ε,

    smoothed δ − v·e^{v/8}·p ≤ δ ≤ smoothed δ:

by Jensen's inequality from above; and what a call option is worth beyond its value at once grows
with the deviation w = √v by e^ε·φ(d), d = (L − ε)/w − w/2, which is at most e^{v/8} times what it
is at the end. In the integral p is s(s − 1) times what δ is. Both hold for every L, so for aliases.

Characteristic functions: Zhu, Dong, Wang 2022 (AFA); the tilt: Alghamdi et al. 2023 (SPA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Precision
from apiece.accounting.contour.moments import Steps, Weights, log_modulus
from apiece.accounting.truncation import Remainder, log_conversion
from apiece.numerics.roots import Places
from apiece.numerics.rounding import UNIT

_FREQUENCIES = np.geomspace(3.0, 4000.0, 26)
_TOO_MUCH = 1e-3  # of δ, that may be left out
_SMOOTH, _SOON = 0.4, 400  # of the gap wanted, for smoothing; points at which nothing is smoothed
_LESS, _MORE = 0.7, 1.1  # times λ − 1: of a contour that is smoothed, and to bound its aliases
_CLOSER = (1.1, 2.0, 8.0, 32.0)


@dataclass(frozen=True, slots=True, eq=False)
class Contour:
    """K integrals for δ(ε); all (K, 1), or (K, points)."""

    # δ(ε) = e^{log_scale + (1 − λ)ε}·(Re Σ term·e^{−iyε} ± error) − aliases + what is in no window,
    # with terms from below and from above. size: Σ|term|. sway: Σ|term|·y. points: how many it
    # takes, or would take; ∞ where the integrand falls too slowly for any number. most: the largest
    # total loss, past which δ is 0.

    sign: int
    tilt: Floats
    log_scale: Floats
    y: Floats
    terms: tuple[npt.NDArray[np.complex128], npt.NDArray[np.complex128]]
    error: Floats
    size: Floats
    sway: Floats
    aliases: tuple[tuple[Floats, Floats], tuple[Floats, Floats]]
    """Pairs (λ', log a): the aliases are at most Σ a·e^{(1 − λ')ε}."""
    rest: Remainder
    points: Floats
    most: Floats

    def rows(self, some: Places | slice) -> Contour:
        """Return some of the integrals."""
        pick = partial(_picked, some=some)
        values = {each.name: pick(getattr(self, each.name)) for each in fields(self)}
        return replace(self, **values)

    def _scale(self, epsilon: Floats) -> Floats:
        return np.asarray(np.exp(self.log_scale + (1 - self.tilt) * epsilon))

    def _turns(self, epsilon: Floats) -> npt.NDArray[np.complex128]:
        """Return e^{−iyε} for (K, 1) ε: powers of the first, each a product of two before it."""
        out = np.ones(self.y.shape, dtype=np.complex128)
        last, done = np.exp(-1j * self.y[:, 1:2] * epsilon), 1
        while done < self.y.shape[1]:
            more = min(done, self.y.shape[1] - done)
            np.multiply(out[:, :more], last, out=out[:, done : done + more])
            last, done = last * last, done + more
        return out

    def estimate(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """Return about δ(ε) and minus its derivative; (K, 1)."""
        turns = self._turns(epsilon)
        turned = self.terms[1] * turns
        slope = _total((self.tilt - 1) * turned.real - self.y * turned.imag)
        jumps = self.rest.bounds(epsilon, reverse=self.sign < 0).lower
        fall = np.where(jumps > 0, self.rest.p[0] - jumps, 0.0)
        scale = self._scale(epsilon)
        return scale * _total(turned.real) + jumps, scale * slope + fall

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε), (K, 1)."""
        turns = self._turns(epsilon)
        below, above = self.terms
        sums = _total((above * turns).real)
        lower = sums if below is above else _total((below * turns).real)
        return self._around([lower, sums], epsilon)

    def deltas(self, low: Floats, step: Floats, root: int) -> tuple[Floats, Bounds]:
        """Return root² evenly spaced ε and bounds on δ there, (K, root²)."""
        fine = np.exp(-1j * (self.y * step)[:, :, None] * np.arange(root))
        start = low + step * (root * np.arange(root))
        coarse = np.exp(-1j * self.y[:, None] * start[:, :, None])
        sums = [((term[:, None] * coarse) @ fine).real for term in self.terms]
        epsilon = low + step * np.arange(root**2)
        return epsilon, self._around([each.reshape(low.size, -1) for each in sums], epsilon)

    def _around(self, sums: Sequence[Floats], epsilon: Floats) -> Bounds:
        """Bound δ(ε), given the sums of both terms at ε."""
        scale = self._scale(epsilon)
        error = self.error + UNIT * (32 * self.size + self.sway * self._wrong(np.abs(epsilon)))
        sizes = np.abs(self.log_scale) + np.abs((1 - self.tilt) * epsilon)
        rounding = 1 + 16 * UNIT * (4 + sizes)
        (more, log_a), (less, log_b) = self.aliases
        alias = np.exp(log_a + (1 - more) * epsilon) + np.exp(log_b + (1 - less) * epsilon)
        low, high = self.rest.bounds(epsilon, reverse=self.sign < 0)
        lower = scale * (sums[0] - error) / rounding - alias * (1 + 1e-9) + low
        upper = scale * (sums[1] + error) * rounding + high
        lower, upper = (np.where(epsilon < self.most, end, 0.0) for end in (lower, upper))
        return Bounds(lower, upper * (1 + 4 * UNIT))

    def _wrong(self, size: Floats) -> Floats:
        """Return what e^{−iyε} may be off by, over y, in units: each power by so many as it is."""
        step = self.y[:, 1:2] if self.y.shape[1] > 1 else 1.0
        return np.asarray(16 * (size + 1 / step))

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
        return Bounds(np.fmin(below, self.most), np.fmin(above, self.most))


def _picked(value: object, some: Places | slice) -> Any:
    """Return some rows of an array, or of each in a tuple; what is no array as it is."""
    if isinstance(value, np.ndarray):
        return value[some]
    if not isinstance(value, tuple):
        return value
    parts = [_picked(each, some) for each in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


@dataclass(frozen=True, slots=True)
class Aim:
    """How closely an integral is to be made."""

    # points: of a contour, at most. log_error: log of the relative error of δ aimed at, for each of
    # its causes. smooth: of which some may go to smoothing; None for none.

    points: int
    log_error: float = math.log(1e-8)
    smooth: Precision | None = None


def contour(
    steps: Steps, times: Floats, delta: Floats, outside: Remainder, share: Floats, aim: Aim
) -> tuple[Contour, Floats]:
    """Return the integrals around δ, and about the ε that belong to it."""
    # share: about which share of δ the steps within their windows make.
    body = share * delta
    best, law = _tilts(steps, times, body)
    guess = (times * law.log_total - np.log(body) + log_conversion(best - 1)) / (best - 1)
    tilt = best
    if aim.smooth is not None:  # where one loss in many makes δ, aliases of two are far less so
        tilt = 1 + _LESS * (best - 1)
        law = steps.weights(steps.order(tilt))
    spread, log_scale = np.sqrt(times * law.variance), times * law.log_total
    beyond = [tilt + k * math.sqrt(-2 * aim.log_error) / spread for k in (0.4, 1.0)]
    if aim.smooth is not None:
        beyond.append(1 + _MORE * (best - 1))
    period, aliases = _period(steps, times, body, tilt, beyond, spread, guess, aim.log_error)
    step = 2 * math.pi / period
    log_value = np.log(body) - log_scale + (tilt - 1) * guess
    variance, end, rest = _ends(steps, times, tilt, law, log_value, guess, step, aim)

    needed = np.where(rest > _TOO_MUCH * np.exp(log_value), np.inf, np.ceil(end / step))
    rest = np.where(needed <= aim.points, rest, np.inf)
    points = np.where(needed <= aim.points, needed, 1.0)
    number = np.arange(int(points.max()) + 1)
    y, used = step * number, number <= points
    error, phase = steps.error(steps.order(tilt), step * points, law)
    psi = _powers(np.exp(1j * step * steps.sign * steps.ratio), law.share, points[:, 0])
    log_psi, s = times * np.log(psi), tilt + 1j * y
    curb, wide = variance * s * (s - 1) / 2, s * (s - 1) * _slight(variance)
    term = np.where(number == 0, 0.5, 1.0) * used * step / math.pi
    term = term * np.exp(log_psi + curb) / (s * (s - 1))
    relative = times * np.log1p((error + y * phase + 8 * UNIT * number) / np.abs(psi))
    relative += UNIT * (16 + points + 8 * np.abs(log_psi) + 16 * np.abs(curb))
    relative += 32 * UNIT * times * (1 + np.abs(law.log_total))
    modulus = np.abs(term) * (1 + np.abs(wide))
    wrong = _total(np.where(modulus > 0, modulus * np.expm1(relative), 0.0))
    sizes = (wrong + rest, _total(modulus), _total(modulus * y))
    terms = (term, term) if aim.smooth is None else (term * (1 - wide), term)
    most = steps.largest(times)
    return Contour(
        steps.sign, tilt, log_scale, y, terms, *sizes, aliases, outside, needed, most
    ), guess


def _slight(variance: Floats) -> Floats:
    """Return the factor at the density of smoothed losses in what smoothing adds at most."""
    return np.asarray(variance * np.exp(variance / 8))


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
    """Return sums over the second axis, in an order that does not depend on what is beside."""
    return np.cumsum(values, axis=1)[:, -1:]


def _period(
    steps: Steps,
    times: Floats,
    delta: Floats,
    tilt: Floats,
    beyond: Sequence[Floats],
    spread: Floats,
    guess: Floats,
    log_error: float,
) -> tuple[Floats, tuple[tuple[Floats, Floats], tuple[Floats, Floats]]]:
    """Return W, and bounds on the aliases from above and from below."""
    # beyond: larger λ, of which the best is taken to bound those from above.
    period = np.full(tilt.shape, np.inf)
    best, log_best = tilt + 1, np.full(tilt.shape, np.inf)
    for other in beyond:
        more, order = other - tilt, steps.order(other)
        there = steps.weights(order)
        error = steps.error(order, np.zeros_like(tilt), there)[0]
        log_most = times * (there.log_total + np.log1p(error)) + log_conversion(other - 1)
        wide = (log_most + (1 - other) * guess - np.log(delta) - log_error) / more
        better = wide < period
        period, best = np.where(better, wide, period), np.where(better, other, best)
        log_best = np.where(better, log_most, log_best)
    period = np.maximum(period, (-np.log(delta) - log_error) / (tilt - 1))
    period = np.maximum(period, 4 * spread)
    shrink, back = np.exp((tilt - best) * period), np.exp((1 - tilt) * period)
    above = (best, log_best + np.log(shrink / (1 - shrink)))
    return period, (above, (np.ones_like(tilt), np.log(back / (1 - back))))


def _ends(
    steps: Steps,
    times: Floats,
    tilt: Floats,
    law: Weights,
    log_value: Floats,
    guess: Floats,
    step: Floats,
    aim: Aim,
) -> tuple[Floats, Floats, Floats]:
    """Return the variance of what smooths, and as `_end`; none is smoothed that ends soon."""
    order, spread = steps.order(tilt), np.sqrt(times * law.variance)
    frequency: Floats = _FREQUENCIES / spread
    error = steps.error(order, np.zeros_like(spread), law)[0]
    log_most = law.log_total + np.log1p(error + 64 * UNIT * (1 + np.abs(law.log_total)))
    slabs = steps.slabs(order, log_most)
    log_bound = times * (log_modulus(slabs, frequency) + log_most - law.log_total)
    log_least, none = aim.log_error + log_value, np.zeros_like(spread)
    end, rest = _end(frequency, log_bound, log_least, none)
    if aim.smooth is None:
        return none, end, rest
    slow = ~((rest <= np.exp(log_least)) & (end <= _SOON * step))
    variance = np.where(slow, _SMOOTH * aim.smooth.wanted(guess) / tilt, 0.0)
    log_bound = log_bound - variance * (frequency**2 + tilt * (1 - tilt)) / 2
    return variance, *_end(frequency, log_bound, log_least, variance)


def _end(
    frequency: Floats, log_bound: Floats, log_least: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """Return the y up to which the integrand is worth it, and a bound on all that follows."""
    # log_bound: of the log of its modulus but for 1/|s(s − 1)|, from each `frequency` on.
    bound, after = np.exp(log_bound) / frequency / math.pi, frequency[:, 1:]
    wide = 1 + _slight(variance) * frequency[:, :-1] * after
    left = np.diff(frequency, axis=1) / after * bound[:, :-1] * wide
    last = bound[:, -1:] * (1 + (variance > 0) * np.exp(variance / 8))
    left = np.append(left, last, axis=1)
    left = np.cumsum(left[:, ::-1], axis=1)[:, ::-1] * (1 + 1e-9)
    enough = left <= np.exp(log_least)
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
