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
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Precision
from apiece.accounting.contour.moments import Steps, Weights, log_modulus
from apiece.accounting.truncation import Remainder, log_conversion, sum_following
from apiece.numerics.roots import Places
from apiece.numerics.rounding import UNIT

_Complexes: TypeAlias = npt.NDArray[np.complex128]
# A pair (λ', log a), for a bound a·e^{(1 − λ')ε} that holds at every ε.
_Exponential: TypeAlias = tuple[Floats, Floats]

# Frequencies, in units of 1/(standard deviation), from which on the integrand is bounded.
_FREQUENCIES = np.geomspace(3.0, 4000.0, 26)
# Share of δ that may be left out beyond the last point.
_TOO_MUCH = 1e-3
# Share of the gap aimed at in ε that smoothing may take.
_SMOOTH = 0.4
# Number of points at which an integral ends soon enough, so that nothing is smoothed.
_SOON = 400
# Of a contour that is smoothed: λ − 1, over the λ − 1 that is best without smoothing.
_SMOOTH_TILT = 0.7
# The same of the larger λ that bounds its aliases.
_ALIAS_TILT = 1.1
# Larger λ that are tried for the bound on aliases: how far above λ, in √(2·nats)/deviation.
_ALIAS_DISTANCES = (0.4, 1.0)
# How far from the root, in units of the bounds' width there, ends of ε are looked for.
_CLOSER = (1.1, 2.0, 8.0, 32.0)


@dataclass(frozen=True, slots=True, eq=False)
class Contour:
    """K integrals for δ(ε); all (K, 1), or (K, points)."""

    # δ(ε) = e^{log_scale + (1 − λ)ε}·(Re Σ term·e^{−iyε} ± error) − aliases + what is in no window,
    # with terms from below and from above.

    sign: int
    tilt: Floats
    log_scale: Floats
    y: Floats
    terms: tuple[_Complexes, _Complexes]
    error: Floats
    # Σ|term| and Σ|term|·y, by which rounding grows.
    size: Floats
    sway: Floats
    aliases: tuple[_Exponential, _Exponential]
    """Bounds on the aliases at ε + mW, for all m > 0 and for all m < 0."""
    remainder: Remainder
    # How many points it takes, or would take; ∞ where no number is enough.
    points: Floats
    # The largest total loss, past which δ is 0.
    largest_loss: Floats

    def rows(self, rows: Places | slice) -> Contour:
        """Return some of the integrals."""
        values = {
            column.name: _take_rows(getattr(self, column.name), rows) for column in fields(self)
        }
        return replace(self, **values)

    def _scale(self, epsilon: Floats) -> Floats:
        """Return e^{TK + (1 − λ)ε}, the factor before the sum of the terms."""
        exponent = self.log_scale + (1 - self.tilt) * epsilon
        return np.asarray(np.exp(exponent))

    def _turns(self, epsilon: Floats) -> _Complexes:
        """Return e^{−iyε} for (K, 1) ε: powers of the first, each a product of two before it."""
        turns = np.ones(self.y.shape, dtype=np.complex128)
        points = self.y.shape[1]
        spacing = self.y[:, 1:2]
        power = np.exp(-1j * spacing * epsilon)
        size = 1
        # The first `size` powers times the one that follows them are the next so many.
        while size < points:
            count = min(size, points - size)
            following = turns[:, size : size + count]
            np.multiply(turns[:, :count], power, out=following)
            power = power * power
            size += count
        return turns

    def estimate(self, epsilon: Floats) -> tuple[Floats, Floats]:
        """Return about δ(ε) and minus its derivative; (K, 1)."""
        turns = self._turns(epsilon)
        turned = self.terms[1] * turns
        # Minus the derivative of e^{(1−λ)ε}·Re(term·e^{−iyε}), but for the scale.
        tilt_slope = (self.tilt - 1) * turned.real
        slope = _sum_points(tilt_slope - self.y * turned.imag)
        jumps = self.remainder.bounds(epsilon, reverse=self.sign < 0).lower
        # P(J) − e^ε·Q(J) falls by e^ε·Q(J), which is P(J) less its value.
        fall = np.where(jumps > 0, self.remainder.p[0] - jumps, 0.0)
        scale = self._scale(epsilon)
        return scale * _sum_points(turned.real) + jumps, scale * slope + fall

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε), (K, 1)."""
        turns = self._turns(epsilon)
        below, above = self.terms
        sums = _sum_points((above * turns).real)
        lower = sums if below is above else _sum_points((below * turns).real)
        return self._bound_delta(lower, sums, epsilon)

    def deltas(self, low: Floats, step: Floats, root: int) -> tuple[Floats, Bounds]:
        """Return root² evenly spaced ε and bounds on δ there, (K, root²)."""
        # e^{−iyε} at ε = low + step·(root·i + j) is a product of a coarse and a fine turn, so that
        # the sums are products of small matrices.
        # Coarse turns are (K, root, points) and fine ones (K, points, root): their product sums
        # over the points and leaves (K, root, root).
        fine_phase = (self.y * step)[:, :, None]
        fine = np.exp(-1j * fine_phase * np.arange(root))
        starts = low + step * (root * np.arange(root))
        coarse_y = -1j * self.y[:, None]
        coarse = np.exp(coarse_y * starts[:, :, None])
        shape = (low.size, -1)

        def sum_turned(term: _Complexes) -> Floats:
            """Return Re Σ term·e^{−iyε} at every ε."""
            turned = (term[:, None] * coarse) @ fine
            return np.asarray(turned.real.reshape(shape))

        below, above = map(sum_turned, self.terms)
        epsilon = low + step * np.arange(root**2)
        return epsilon, self._bound_delta(below, above, epsilon)

    def _bound_delta(self, below: Floats, above: Floats, epsilon: Floats) -> Bounds:
        """Bound δ(ε), given the sums of the terms from below and from above at ε."""
        scale = self._scale(epsilon)
        turn_error = self.sway * self._turn_error(np.abs(epsilon))
        # The turns and the sum over points are off by some units of Σ|term| and of Σ|term|·y.
        error = self.error + UNIT * (32 * self.size + turn_error)
        # An exponential is off by its exponent's error, which grows with the parts of that.
        tilt_exponent = (1 - self.tilt) * epsilon
        sizes = np.abs(self.log_scale) + np.abs(tilt_exponent)
        rounding = 1 + 16 * UNIT * (4 + sizes)
        (upper_tilt, upper_log), (lower_tilt, lower_log) = self.aliases
        upper_alias = np.exp(upper_log + (1 - upper_tilt) * epsilon)
        lower_alias = np.exp(lower_log + (1 - lower_tilt) * epsilon)
        alias = upper_alias + lower_alias
        low, high = self.remainder.bounds(epsilon, reverse=self.sign < 0)
        # The sum exceeds δ by the aliases, which are positive: only the lower bound gives them up.
        lower = scale * (below - error) / rounding - alias * (1 + 1e-9) + low
        upper = scale * (above + error) * rounding + high
        # From the largest total loss on δ is 0, whatever the sums say.
        possible = epsilon < self.largest_loss
        lower = np.where(possible, lower, 0.0)
        upper = np.where(possible, upper, 0.0)
        return Bounds(lower, upper * (1 + 4 * UNIT))

    def _turn_error(self, size: Floats) -> Floats:
        """Return the error of e^{−iyε} over y, in units: that of the k-th power grows with k."""
        points = self.y.shape[1]
        step = self.y[:, 1:2] if points > 1 else 1.0
        return np.asarray(16 * (size + 1 / step))

    def epsilon(self, delta: Floats, guess: Floats) -> Bounds:
        """Return ε at which bounds on δ(ε) were evaluated and found above and below `delta`."""
        # The root is only where to look: an end is accepted where δ was evaluated and compared.
        root = self._find_root(delta, guess)
        _, fall = self.estimate(root)
        lower, upper = self.delta(root)
        above = np.full(root.shape, np.inf)
        below = np.zeros(root.shape)
        # A little beyond where the tangents of both bounds meet δ, or else farther.
        for factor in _CLOSER:
            rounding = 1e-14 * np.abs(root)
            high = root + factor * np.maximum(upper - delta, 0.0) / fall + rounding
            low = root - factor * np.maximum(delta - lower, 0.0) / fall - rounding
            high = np.maximum(high, 0.0)
            low = np.maximum(low, 0.0)
            holds = (self.delta(high).upper <= delta) & np.isinf(above)
            fails = (self.delta(low).lower > delta) & (below == 0)
            above = np.where(holds, high, above)
            below = np.where(fails, low, below)
            # No ε is negative, so that a lower end of 0 needs no evidence.
            has_lower = (below > 0) | (low == 0)
            if (np.isfinite(above) & has_lower).all():
                break
        return Bounds(np.fmin(below, self.largest_loss), np.fmin(above, self.largest_loss))

    def _find_root(self, delta: Floats, guess: Floats) -> Floats:
        """Return about the ε with δ(ε) = δ, by Newton's method on log δ."""
        root = guess
        done = np.zeros(guess.shape, dtype=bool)
        for _ in range(8):
            value, fall = self.estimate(root)
            # Newton's step from a poor guess may be far too long, and is cut.
            farthest = 0.5 * np.abs(root) + 1.0
            newton_step = np.log(value / delta) * value / fall
            step = np.clip(newton_step, -farthest, farthest)
            root = np.where(done, root, root + step)
            # Negated, so that a search that has become NaN is done too.
            done |= ~(np.abs(step) > 1e-10 * np.abs(root))
            if done.all():
                break
        return root


def _take_rows(value: object, rows: Places | slice) -> Any:
    """Return some rows of an array, or of each in a tuple; what is no array as it is."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if not isinstance(value, tuple):
        return value
    parts = [_take_rows(part, rows) for part in value]
    return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)


@dataclass(frozen=True, slots=True)
class Aim:
    """How closely an integral is to be made."""

    # Of a contour, at most.
    points: int
    # Log of the relative error of δ aimed at, for each of its causes.
    log_error: float = math.log(1e-8)
    # The precision of which some may go to smoothing; None for no smoothing.
    smooth: Precision | None = None


def build_contour(
    steps: Steps, times: Floats, delta: Floats, remainder: Remainder, share: Floats, aim: Aim
) -> tuple[Contour, Floats]:
    """Return the integrals around δ, and about the ε that belong to it.

    `share` is about the share of δ that the steps within their windows make.
    """
    # Jumps make the other part of δ: the contour has to meet this one.
    body = share * delta
    best, law = _find_tilts(steps, times, body)
    # ε of the Rényi conversion at the best order.
    excess = best - 1
    log_moment = times * law.log_total
    guess = (log_moment - np.log(body) + log_conversion(excess)) / excess
    tilt = best
    if aim.smooth is not None:
        # Where one loss in many makes δ, aliases of two are far less so: less tilt will do.
        tilt = 1 + _SMOOTH_TILT * (best - 1)
        law = steps.weights(steps.order(tilt))
    # Of the tilted total loss. If it is normal, aliases fall by some nats at the λ' that lies
    # √(2·nats)/deviation above λ.
    spread = np.sqrt(times * law.variance)
    log_scale = times * law.log_total
    root_nats = math.sqrt(-2 * aim.log_error)
    larger = [tilt + distance * root_nats / spread for distance in _ALIAS_DISTANCES]
    if aim.smooth is not None:
        larger.append(1 + _ALIAS_TILT * (best - 1))
    period, aliases = _choose_period(steps, times, body, tilt, larger, spread, guess, aim.log_error)
    step = 2 * math.pi / period
    # Log of the sum of the terms that δ is at the guess: δ without e^{log_scale + (1 − λ)ε}.
    log_value = np.log(body) - log_scale + (tilt - 1) * guess
    variance, end, missing = _choose_end(steps, times, tilt, law, log_value, guess, step, aim)

    # Integrals that leave out too much, or take too many points, get one point and an error of ∞.
    too_much = missing > _TOO_MUCH * np.exp(log_value)
    needed = np.where(too_much, np.inf, np.ceil(end / step))
    missing = np.where(needed <= aim.points, missing, np.inf)
    points = np.where(needed <= aim.points, needed, 1.0)
    sums = _make_sums(steps, times, tilt, law, step, points, variance, aim)
    integrals = Contour(
        steps.sign,
        tilt,
        log_scale,
        sums.y,
        sums.terms,
        error=sums.error + missing,
        size=sums.size,
        sway=sums.sway,
        aliases=aliases,
        remainder=remainder,
        points=needed,
        largest_loss=steps.largest_loss(times),
    )
    return integrals, guess


class _Sums(NamedTuple):
    """The trapezoidal sums of K integrals: all (K, 1), or (K, points)."""

    y: Floats
    terms: tuple[_Complexes, _Complexes]
    """From below and from above."""
    error: Floats
    """By how much the sum of the terms is off at most, without its turns at an ε."""
    size: Floats
    """Σ|term|."""
    sway: Floats
    """Σ|term|·y."""


def _make_sums(
    steps: Steps,
    times: Floats,
    tilt: Floats,
    law: Weights,
    step: Floats,
    points: Floats,
    variance: Floats,
    aim: Aim,
) -> _Sums:
    """Return the sums over y = 0, step, 2·step, …, so many `points` beyond the first.

    `law` is the one tilted by `tilt`, and `variance` that of what smooths.
    """
    # (K, points): rows that need fewer points than the longest have zeros beyond their own.
    number = np.arange(int(points.max()) + 1)
    y = step * number
    within = number <= points
    error, phase = steps.error(steps.order(tilt), step * points, law)
    # e^{±iyL} at y = k·step is the k-th power of one turn a node, (K, nodes).
    turn = np.exp(1j * step * steps.sign * steps.ratio)
    psi = _sum_powers(turn, law.share, points[:, 0])
    # T is an integer, so that each branch of the logarithm gives the same power of Ψ.
    log_psi = times * np.log(psi)
    s = tilt + 1j * y
    # log of the characteristic function of the smoothing X, of mean 1 in e^X; and what takes the
    # smoothed δ to its lower bound, s(s − 1) times its density's factor.
    damping = variance * s * (s - 1) / 2
    wide = s * (s - 1) * _density_factor(variance)
    # The trapezoidal rule: twice the real part of the points with y > 0, once that of y = 0.
    term = np.where(number == 0, 0.5, 1.0) * within * step / math.pi
    term = term * np.exp(log_psi + damping) / (s * (s - 1))
    # Relative errors of the terms: of Ψ to the power T by quadrature, places of nodes and powers
    # of turns; of the exponent; and of the scale.
    moment_error = error + y * phase
    psi_error = (moment_error + 8 * UNIT * number) / np.abs(psi)
    relative = times * np.log1p(psi_error)
    exponent_sizes = 16 + points + 8 * np.abs(log_psi)
    exponent_sizes = exponent_sizes + 16 * np.abs(damping)
    relative += UNIT * exponent_sizes
    relative += 32 * UNIT * times * (1 + np.abs(law.log_total))
    # The terms from below are term·(1 − wide): this is at least the modulus of either.
    modulus = np.abs(term) * (1 + np.abs(wide))
    term_error = _sum_points(np.where(modulus > 0, modulus * np.expm1(relative), 0.0))
    terms = (term, term) if aim.smooth is None else (term * (1 - wide), term)
    return _Sums(y, terms, term_error, _sum_points(modulus), _sum_points(modulus * y))


def _density_factor(variance: Floats) -> Floats:
    """Return v·e^{v/8}: the factor at the density of smoothed losses in what smoothing adds."""
    return np.asarray(variance * np.exp(variance / 8))


def _find_tilts(steps: Steps, times: Floats, delta: Floats) -> tuple[Floats, Weights]:
    """Return the λ of the best Rényi conversion: (λ − 1)K' − K + log λ + log δ = 0."""
    # The left side rises with λ. Newton's method in log(λ − 1), within a bracket.
    low = np.full(times.shape, math.log(1e-6))
    high = np.full(times.shape, math.log(1e7))
    # The variance of r under Q is q²·(e^{1/z²} − 1) a step: were losses normal with it, λ − 1 would
    # be the start.
    log_growth = np.minimum(1 / steps.z**2, 50.0)
    variance = np.expm1(log_growth) * steps.q**2 * times
    base = -np.log(delta)
    log_x = np.log(np.sqrt(2 * base / variance))
    done = np.zeros(log_x.shape, dtype=bool)
    for _ in range(10):
        # A step out of the bracket is replaced by the bracket's middle.
        usable = done | (log_x > low) & (log_x < high)
        log_x = np.where(usable, log_x, (low + high) / 2)
        x = np.exp(log_x)
        law = steps.weights(steps.order(1 + x))
        # The tilted law's KL divergence from the first world, of one step.
        divergence = x * law.mean - law.log_total
        value = times * divergence + np.log1p(x) - base
        slope = x * (times * x * law.variance + 1 / (1 + x))
        too_low = value < 0
        low = np.where(too_low, log_x, low)
        high = np.where(too_low, high, log_x)
        # Nearly quadratic in x: Newton on the logarithm of its square root.
        square = np.maximum(value + base, 1e-300)
        step = (np.log(base) - np.log(square)) * square / slope
        log_x = np.where(done, log_x, log_x + step)
        done |= np.abs(step) < 0.01
        if done.all():
            break
    usable = done | (log_x > low) & (log_x < high)
    x = np.exp(np.where(usable, log_x, (low + high) / 2))
    return 1 + x, steps.weights(steps.order(1 + x))


def _sum_points(values: Floats) -> Floats:
    """Return sums over the second axis, in an order that does not depend on what is beside."""
    return np.cumsum(values, axis=1)[:, -1:]


def _choose_period(
    steps: Steps,
    times: Floats,
    delta: Floats,
    tilt: Floats,
    larger: Sequence[Floats],
    spread: Floats,
    guess: Floats,
    log_error: float,
) -> tuple[Floats, tuple[_Exponential, _Exponential]]:
    """Return W, and bounds on the aliases from above and from below.

    `larger` holds larger λ, of which the best is taken to bound those from above.
    """
    period = np.full(tilt.shape, np.inf)
    best = tilt + 1
    log_best = np.full(tilt.shape, np.inf)
    for larger_tilt in larger:
        excess = larger_tilt - tilt
        order = steps.order(larger_tilt)
        law = steps.weights(order)
        error, _ = steps.error(order, np.zeros_like(tilt), law)
        # Chernoff: δ(ε) ≤ e^{log_most + (1 − λ')ε} at every ε.
        # M(λ') is rounded up by its quadrature's error, since Chernoff needs an upper bound.
        log_moment = times * (law.log_total + np.log1p(error))
        log_most = log_moment + log_conversion(larger_tilt - 1)
        log_alias = log_most + (1 - larger_tilt) * guess
        needed = (log_alias - np.log(delta) - log_error) / excess
        better = needed < period
        period = np.where(better, needed, period)
        best = np.where(better, larger_tilt, best)
        log_best = np.where(better, log_most, log_best)
    # Aliases from below, where δ ≤ 1: W is also so long that they fall by the error wanted.
    needed_below = (-np.log(delta) - log_error) / (tilt - 1)
    period = np.maximum(period, needed_below)
    period = np.maximum(period, 4 * spread)
    # Both are geometric series in the number of periods.
    shrink = np.exp((tilt - best) * period)
    back = np.exp((1 - tilt) * period)
    above = (best, log_best + np.log(shrink / (1 - shrink)))
    below = (np.ones_like(tilt), np.log(back / (1 - back)))
    return period, (above, below)


def _choose_end(
    steps: Steps,
    times: Floats,
    tilt: Floats,
    law: Weights,
    log_value: Floats,
    guess: Floats,
    step: Floats,
    aim: Aim,
) -> tuple[Floats, Floats, Floats]:
    """Return the variance of what smooths, and `_find_end`; none is smoothed that ends soon."""
    order = steps.order(tilt)
    # In units of one over the deviation of the tilted total loss, as of a normal law.
    spread = np.sqrt(times * law.variance)
    frequency: Floats = _FREQUENCIES / spread
    error, _ = steps.error(order, np.zeros_like(spread), law)
    relative_error = error + 64 * UNIT * (1 + np.abs(law.log_total))
    log_most = law.log_total + np.log1p(relative_error)
    slabs = steps.slabs(order, log_most)
    # Slabs bound the modulus over the upper bound on M(λ); here it is taken over M(λ) itself.
    log_bound = times * (log_modulus(slabs, frequency) + log_most - law.log_total)
    log_least = aim.log_error + log_value
    unsmoothed = np.zeros_like(spread)
    end, missing = _find_end(frequency, log_bound, log_least, unsmoothed)
    if aim.smooth is None:
        return unsmoothed, end, missing
    # Smoothing widens the bounds: an integral that ends soon by itself does without.
    soon = (missing <= np.exp(log_least)) & (end <= _SOON * step)
    # With the density λ times the slope of δ, the bounds lie λ·v apart in ε.
    largest_variance = _SMOOTH * aim.smooth.wanted(guess) / tilt
    variance = np.where(soon, 0.0, largest_variance)
    # Re s(s − 1) = λ(λ − 1) − y².
    log_bound = log_bound - variance * (frequency**2 + tilt * (1 - tilt)) / 2
    return variance, *_find_end(frequency, log_bound, log_least, variance)


def _find_end(
    frequency: Floats, log_bound: Floats, log_least: Floats, variance: Floats
) -> tuple[Floats, Floats]:
    """Return the y up to which the integrand is worth it, and a bound on all that follows.

    `log_bound` bounds the log of its modulus but for 1/|s(s − 1)|, from each frequency on.
    """
    # The rule's sum of a falling function beyond y is at most its integral from y on. The modulus
    # has |s(s − 1)| ≥ y² below it, and twice the real part over 2π gives 1/π.
    # ∫ (1/y² + c) dy from a to b is (b − a)/(a·b)·(1 + c·a·b), where c is the density's factor.
    bound = np.exp(log_bound) / frequency / math.pi
    low = frequency[:, :-1]
    high = frequency[:, 1:]
    widening = 1 + _density_factor(variance) * low * high
    # The bound falls with y: over a piece it is at most what it is at the lower end.
    low_bound = bound[:, :-1]
    piece = np.diff(frequency, axis=1) / high * low_bound * widening
    # Beyond the last frequency Y, ∫ dy/y² is 1/Y, and ∫ v·e^{−vy²/2} dy at most e^{−vY²/2}/Y.
    end_bound = bound[:, -1:]
    smoothing = (variance > 0) * np.exp(variance / 8)
    beyond = end_bound * (1 + smoothing)
    piece = np.append(piece, beyond, axis=1)
    missing = sum_following(piece) * (1 + 1e-9)
    enough = missing <= np.exp(log_least)
    # The first frequency beyond which little enough follows, or the last of all.
    last_number = frequency.shape[1] - 1
    first_enough = enough.argmax(axis=1)
    number = np.where(enough.any(axis=1), first_enough, last_number)[:, None]
    end = np.take_along_axis(frequency, number, axis=1)
    return end, np.take_along_axis(missing, number, axis=1)


def _sum_powers(base: _Complexes, share: Floats, points: Floats) -> _Complexes:
    """Return Σ_k share_k·base_k^j for j = 0, 1, …; beyond each row's own `points` 1."""
    # Rows in order of decreasing length, so that those still open are the first ones.
    rows = np.argsort(-points, kind="stable")
    number = np.arange(int(points.max()) + 1)
    open_rows = np.searchsorted(-points[rows], -number, side="right")
    base = base[rows]
    current = share[rows].astype(np.complex128)
    sums = np.ones((rows.size, number.size), dtype=np.complex128)
    for j, count in enumerate(open_rows):
        sums[:count, j] = current[:count].sum(axis=1)
        current[:count] *= base[:count]
    back = np.empty_like(rows)
    back[rows] = np.arange(rows.size)
    return sums[back]
