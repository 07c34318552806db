"""Rényi accounting: divergences add up under composition; the best order is sought.

Divergences of single steps, at integer and fractional orders alike, are the larger of the two
directions of add/remove. They are rounded up by a factor 1 + 1e-11, which covers the quadrature and
the rounding (tests compare with 40 digits).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats
from apiece.accounting.selection import divergences
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import (
    Allocated,
    Atoms,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    MixtureOfGaussians,
    Sampled,
    Selected,
    flatten,
)
from apiece.mechanisms.algebra import NormalForm, atoms_of

_ROUND_UP = 1 + 1e-11
_REACH = 9.5  # in standard deviations of the noise; the tail beyond is below 1e-20
_AT_ONCE = 1 << 20  # at most this many nodes at once
_MOST_NODES = 1 << 15  # for one order; beyond, sampling is ignored, which is an upper bound


def gaussian(noise_multiplier: npt.ArrayLike, orders: npt.ArrayLike) -> Floats:
    """Return α/(2z²), of N(1, z²) against N(0, z²). Source: Mironov 2017, Prop. 7."""
    z, alpha = np.asarray(noise_multiplier, float), np.asarray(orders, float)
    return np.asarray(alpha / (2 * z * z) * _ROUND_UP)


def laplace(noise_multiplier: npt.ArrayLike, orders: npt.ArrayLike) -> Floats:
    """Return the divergence of Lap(1, b) against Lap(0, b). Source: Mironov 2017, Prop. 6."""
    b, alpha = np.asarray(noise_multiplier, float), np.asarray(orders, float)
    up = np.log(alpha / (2 * alpha - 1)) + (alpha - 1) / b
    down = np.log((alpha - 1) / (2 * alpha - 1)) - alpha / b
    exact = np.logaddexp(up, down) / (alpha - 1)
    # At orders near 1 or with much noise the logarithm is of a number near 1: allow for that.
    return np.asarray(np.minimum(exact * _ROUND_UP + 1e-15 / (alpha - 1), 1 / b))


def sampled_gaussian(
    noise_multiplier: npt.ArrayLike, probability: npt.ArrayLike, orders: npt.ArrayLike
) -> Floats:
    """Return D_α((1−q)N(0, z²) + qN(1, z²) ‖ N(0, z²)), broadcast over z, q ≤ 1 and α > 1."""
    # This direction is the larger one (Mironov, Talwar, Zhang 2019, Theorem 5). With r = q(e^w −
    # 1), w = x/z² − 1/(2z²), the moment is 1 + E[(1 + r)^α − 1 − αr] because E[r] = 0; the
    # integrand is never negative, so small divergences keep all their digits. The trapezoidal rule
    # converges exponentially: in u = x/z the integrand is analytic for |Im u| < πz, and a step of
    # min(1/2, z/3) leaves an error of at most (4 + 4αq)·e^{−48} of the moment (docs/mathematics.md,
    # section 8). Where that takes more than 2¹⁵ nodes (z below about 0.01) the value without
    # sampling is returned, an upper bound.
    z, q, alpha = np.broadcast_arrays(
        np.asarray(noise_multiplier, float),
        np.asarray(probability, float),
        np.asarray(orders, float),
    )
    out = np.array(gaussian(z, alpha), ndmin=1).ravel()
    flat_z, flat_q, flat_alpha = (np.ravel(a) for a in (z, q, alpha))
    step = np.minimum(0.5, flat_z / 3)
    wanted = np.ceil((flat_alpha / flat_z + 2 * _REACH) / step) + 1
    nodes = np.minimum(wanted, _MOST_NODES + 1).astype(int)
    coined = np.flatnonzero((flat_q < 1) & (nodes <= _MOST_NODES))
    coined = coined[np.argsort(-nodes[coined], kind="stable")]  # longest first
    start = 0
    while start < coined.size:
        longest = int(nodes[coined[start]])
        part = coined[start : start + max(1, _AT_ONCE // longest)]
        out[part] = _by_quadrature(
            flat_z[part], flat_q[part], flat_alpha[part], step[part], longest
        )
        start += part.size
    return out.reshape(z.shape)


def sampled_laplace(noise_multiplier: float, probability: float, orders: npt.ArrayLike) -> Floats:
    """Return the divergence of (1−q)Lap(0, b) + qLap(1, b) and Lap(0, b), the larger direction."""
    # Remove is E_Q[r^α], add is E_Q[r^{1−α}], each over α − 1 in the exponent; r = 1 + u with
    # E_Q[u] = 0, so both are 1 + E[(1 + u)^β − 1 − βu], whose terms are never negative. u has two
    # atoms and, between them, a density smooth in x, integrated by Gauss–Legendre with 16 nodes on
    # panels over which neither the log-ratio nor the log of the integrand moves by more than 2 and
    # 4: the nearest singularity is π away, which leaves an error below 1e-20 of the whole. Where
    # that takes more than 2¹⁵ nodes, sampling is ignored, which is an upper bound.
    alpha = np.asarray(orders, float)
    whole = laplace(noise_multiplier, alpha)
    values = [
        max(_laplace_excess(noise_multiplier, probability, b) for b in (order, 1 - order))
        / (order - 1)
        * _ROUND_UP
        for order in alpha.ravel()
    ]
    return np.asarray(np.fmin(np.reshape(values, alpha.shape), whole))


def discrete(atoms: Atoms, orders: npt.ArrayLike) -> Floats:
    """Return the larger divergence of a discrete pair; ∞ where one world has more outcomes."""
    # E_Q[r^α] as a sum over atoms, none of which may be left out.
    alpha = np.asarray(orders, float)
    if atoms.only_p > 0 or atoms.only_q > 0:
        return np.full(alpha.shape, np.inf)
    powers = np.stack([alpha, 1 - alpha])[..., None]
    moment = np.logaddexp.reduce(np.log(atoms.mass) + powers * atoms.log_ratio, axis=-1)
    rounding = (atoms.error + 2.0**-50) * (1 + alpha)
    return np.asarray(np.maximum((moment.max(axis=0) + rounding) / (alpha - 1), 0.0) * _ROUND_UP)


def mixture(step: MixtureOfGaussians, orders: npt.ArrayLike) -> Floats:
    """Return an upper bound on the divergence of Σ c_j·N(s_j, z²) and N(0, z²), s_0 = 0."""
    # r^α and r^{1−α} are convex in the ratio r, which is a mean of those of single Gaussians. Under
    # Q both moments of the latter are e^{α(α − 1)s²/(2z²)}.
    alpha = np.asarray(orders, float)
    shifts, chances = np.array(step.shifts) / step.noise_multiplier, np.array(step.chances)
    exponent = (alpha * (alpha - 1))[..., None] * shifts**2 / 2
    grown = np.logaddexp.reduce(np.log(chances) + _log_expm1(exponent), axis=-1)
    return np.asarray(np.logaddexp(0.0, grown) / (alpha - 1) * _ROUND_UP)


def behind_coin(divergence: Floats, probability: float, orders: Floats) -> Floats:
    """Return an upper bound on the divergence of a step behind a coin, from that of the step."""
    # E_Q[(1 − q + q·r)^α] ≤ 1 − q + q·E_Q[r^α], by convexity, and so with 1 − α for α.
    grown = math.log(probability) + _log_expm1((orders - 1) * divergence)
    with np.errstate(invalid="ignore"):
        amplified = np.logaddexp(0.0, grown) / (orders - 1) * _ROUND_UP
    return np.asarray(np.fmin(amplified, divergence))


def _log_expm1(x: Floats) -> Floats:
    """Return log(e^x − 1) for x ≥ 0, −∞ at 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(x < 30, np.log(np.expm1(np.minimum(x, 30.0))), x))


def _laplace_excess(b: float, q: float, power: float) -> float:
    """Return log E_Q[r^power] for one coin before a Laplace step; NaN where that takes too long."""
    panels = math.ceil(max(1 / b, (2 * abs(power) + 1) / (4 * b)))
    if 16 * panels > _MOST_NODES:
        return math.nan
    nodes, weights = np.polynomial.legendre.leggauss(16)
    x = ((np.arange(panels)[:, None] + (nodes + 1) / 2) / panels).ravel()
    log_mass = np.log(np.tile(weights, panels) / (4 * b * panels)) - x / b
    rho = np.concatenate(([-1 / b], (2 * x - 1) / b, [1 / b]))
    log_mass = np.concatenate(([math.log(0.5)], log_mass, [-1 / b + math.log(0.5)]))
    values = _log_excess_any_power(q * np.expm1(rho), power) + log_mass
    return float(np.logaddexp(0.0, np.logaddexp.reduce(values)))


def _log_excess_any_power(r: Floats, power: float) -> Floats:
    """Return log((1 + r)^β − 1 − βr) for r > −1 and β > 1 or β < 0."""
    log_power = power * np.log1p(r)
    with np.errstate(divide="ignore", over="ignore"):
        small = np.log(np.maximum(np.expm1(np.minimum(log_power, 50.0)) - power * r, 0.0))
        large = log_power + np.log1p(-(1 + power * r) * np.exp(-log_power))
    plain = np.where(log_power < 50, small, large)
    return np.where(np.abs(r) * max(abs(power), 1.0) < 0.1, _log_series(r, np.array(power)), plain)


def _by_quadrature(z: Floats, q: Floats, alpha: Floats, step: Floats, nodes: int) -> Floats:
    z, q, alpha, step = (a[:, None] for a in (z, q, alpha, step))
    u = step * np.arange(nodes) - _REACH
    with np.errstate(divide="ignore"):
        values = _log_excess_power(u / z - 0.5 / z**2, q, alpha) - 0.5 * u * u
    peak = values.max(axis=1, keepdims=True)
    peak = np.where(np.isfinite(peak), peak, 0.0)
    total = np.exp(values - peak).sum(axis=1) * step[:, 0] / math.sqrt(2 * math.pi)
    with np.errstate(divide="ignore"):
        log_excess = np.log(total) + peak[:, 0]
    return np.asarray(np.logaddexp(0.0, log_excess) / (alpha[:, 0] - 1) * _ROUND_UP)


def _log_excess_power(w: Floats, q: Floats, alpha: Floats) -> Floats:
    """Return log((1 + r)^α − 1 − αr) for r = q(e^w − 1), to nearly full relative precision."""
    r = q * np.expm1(np.minimum(w, 40.0))
    far = np.log(q) + w + np.log1p((1 - q) / q * np.exp(-np.maximum(w, 40.0)))
    log_ratio = np.where(w < 40, np.log1p(r), far)
    power = alpha * log_ratio
    # r large: factor the power out; r negative: no overflow; r small: the binomial series.
    up = np.maximum(log_ratio, 0.0)
    rest = np.exp(-alpha * up) - alpha * np.expm1(-up) * np.exp((1 - alpha) * up)
    with np.errstate(divide="ignore"):
        large = power + np.log1p(-np.minimum(rest, 1.0))
    negative = np.log(np.maximum(np.expm1(np.minimum(power, 0.0)) - alpha * r, 0.0))
    return np.where(
        np.abs(r) * alpha < 0.1, _log_series(r, alpha), np.where(r > 0, large, negative)
    )


def _log_series(r: Floats, alpha: Floats) -> Floats:
    """Return log of Σ_{k ≥ 2} C(α, k)·r^k for |αr| < 0.1."""
    r = np.clip(r, -0.1, 0.1)
    total = np.ones(np.broadcast(r, alpha).shape)
    for k in range(14, 2, -1):
        total = 1 + total * (alpha - k + 1) / k * r
    return np.asarray(np.log(alpha * (alpha - 1) / 2 * r * r * np.maximum(total, 0.0)))


_SMALLEST = 1e-300
_SPACING = 0.1  # of the orders tried first, of log(α − 1)
_CLOSER = ((0.1, 16), (0.0133, 12))  # how far around the best, and how many orders
_CLOSE = 2.0
_LARGEST_ORDER = 1e15


def epsilon_at(divergence: Floats, orders: Floats, delta: Floats) -> Floats:
    """Return the ε that order α with divergence R gives at δ; any order is a valid upper bound."""
    # ε = R + log((α − 1)/α) − (log δ + log α)/(α − 1), and 0 where total variation, at most √(1 −
    # e^{−R}), is below δ. Source: Canonne, Kamath, Steinke 2020, Prop. 12 (equally Asoodeh et al.
    # 2020); Bretagnolle and Huber 1979.
    least = orders - 1
    epsilon = divergence + np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / least
    epsilon = np.maximum(epsilon + 1e-15 * (1 + np.abs(np.log(delta)) / least), 0.0)
    return np.where(np.sqrt(-np.expm1(-divergence)) * (1 + 1e-12) <= delta, 0.0, epsilon)


def delta_at(divergence: Floats, orders: Floats, epsilon: Floats) -> Floats:
    """Return the δ that order α with divergence R gives at ε ≥ 0; sources as `epsilon_at`."""
    exponent = (orders - 1) * (divergence - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    rounding = 1e-15 * (orders - 1) * (1 + epsilon + divergence)
    delta = np.exp(np.minimum(exponent + rounding, 0.0)) * (1 + 1e-12)
    variation = np.sqrt(-np.expm1(-divergence)) * (1 + 1e-12)
    return np.maximum(np.minimum(delta, variation), _SMALLEST)


@dataclass(frozen=True, eq=False)
class RenyiProfile:
    """An upper bound on a profile from Rényi divergences at many orders; the lower bound is 0."""

    # ε has a sharp least value at the order where the divergence takes off. So orders are tried far
    # apart first; then around the best one, for each value asked, closer and closer. Orders tried
    # are kept, and an answer never depends on what was asked before.

    steps: NormalForm
    orders: Floats
    _tried: dict[tuple[int, ...], tuple[Floats, Floats]] = field(default_factory=dict, repr=False)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the best order."""
        upper = self._least(delta_at, epsilon)
        return Bounds(np.zeros(upper.shape), np.minimum(upper, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the best order; 0 where δ(0), whose best order is another, is at most δ."""
        upper, nothing = self._least(epsilon_at, delta), np.zeros(1)
        # orders closer by lower δ(0) by far less than this, so that most need not look for them
        orders, divergence = self.at(())
        if (delta_at(divergence, orders, nothing) <= _CLOSE * delta.max(initial=0.0)).any():
            upper = np.where(self.delta(nothing).upper <= delta, 0.0, upper)
        return Bounds(np.zeros(upper.shape), upper)

    def _least(self, ask: Callable[[Floats, Floats, Floats], Floats], values: Floats) -> Floats:
        """Return the least bound at each value."""
        least = np.full(values.shape, np.inf)
        waiting: list[tuple[tuple[int, ...], npt.NDArray[np.intp]]] = [((), np.arange(values.size))]
        while waiting:
            place, members = waiting.pop()
            orders, divergence = self.at(place)
            bounds = ask(divergence, orders, values[members, None])
            least[members] = np.minimum(least[members], bounds.min(axis=1))
            if len(place) < len(_CLOSER):
                best = bounds.argmin(axis=1)
                waiting += [((*place, int(k)), members[best == k]) for k in np.unique(best)]
        return least

    def at(self, place: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the orders around the one at a place, and their divergences."""
        if place not in self._tried:
            orders = self.orders
            if place:
                width, count = _CLOSER[len(place) - 1]
                middle = math.log(self.at(place[:-1])[0][place[-1]] - 1)
                orders = 1 + np.exp(middle + np.linspace(-width, width, count))
            self._tried[place] = orders, _total(self.steps, orders)
        return self._tried[place]


def divergence(mechanism: Mechanism, orders: npt.ArrayLike) -> Floats:
    """Return Rényi divergences of `mechanism`, the larger of both directions."""
    alpha = np.asarray(orders, dtype=np.float64)
    if not (alpha > 1).all() or not np.isfinite(alpha).all():
        raise InputError(
            f"orders from {alpha.min()!s} to {alpha.max()!s}: must be above 1 and finite"
        )
    return _total(flatten(mechanism), alpha)


def _total(steps: NormalForm, orders: Floats) -> Floats:
    total = np.zeros(orders.shape)
    for step, times in steps:
        total = total + times * _step(step, orders)
    return total


def _step(step: Mechanism, orders: Floats) -> Floats:
    match step:
        case Gaussian(noise_multiplier):
            return gaussian(noise_multiplier, orders)
        case Laplace(noise_multiplier):
            return laplace(noise_multiplier, orders)
        case Sampled(Gaussian(noise_multiplier), probability):
            return sampled_gaussian(noise_multiplier, probability, orders)
        case Sampled(Laplace(noise_multiplier), probability):
            return sampled_laplace(noise_multiplier, probability, orders)
        case Selected(mechanisms, runs):
            steps = [flatten(mechanism) for mechanism in mechanisms]
            each = [partial(_total, one) for one in steps]
            return divergences(each, [renyi(one) for one in steps], runs, orders)
        case DiscreteGaussian(scale, sensitivity):
            # No more than without rounding (Canonne, Kamath, Steinke 2020, Proposition 5).
            return gaussian(scale / sensitivity, orders)
        case Allocated(noise_multiplier):
            # Its ratio is a mean of those of plain Gaussians, so that its moments are no larger.
            return gaussian(noise_multiplier, orders)
        case MixtureOfGaussians():
            return mixture(step, orders)
        case _ if (atoms := atoms_of(step)) is not None and not atoms.outside_p:
            return discrete(atoms, orders)
        case Sampled(inner, probability):
            return behind_coin(_total(flatten(inner), orders), probability, orders)
        case _:
            raise UnsupportedError(f"method 'rdp': no Rényi divergence of {step!r} is known")


def renyi(steps: NormalForm) -> RenyiProfile:
    """Return an upper bound on the profile of at least one step; raise as `divergence` does."""
    high = min(2 + 2 * max(_largest_order(step) for step, _ in steps), _LARGEST_ORDER)
    low = min(1e-3, high * 1e-5)
    orders = 1 + np.geomspace(low, high, math.ceil(math.log(high / low) / _SPACING) + 1)
    profile = RenyiProfile(steps, orders)
    profile.at(())  # raises where a step has no divergence
    return profile


def _largest_order(step: Mechanism) -> float:
    """Return about the largest order that can be the best one, for δ down to 1e-30."""
    match step:
        case Gaussian(z):
            return 12 * z
        case Laplace(z):
            return 70 * max(z, 1.0)
        case Sampled(Laplace(z), q):
            return max(70 * max(z, 1.0), -z * math.log(q))
        case Sampled(Gaussian(z), q):
            return max(12 * z, -z * z * math.log(q))
        case Selected(mechanisms):
            return max(_largest_order(one) for part in mechanisms for one, _ in flatten(part))
        case DiscreteGaussian(scale, sensitivity):
            return 12 * scale / sensitivity
        case Allocated(z):
            return 12 * z
        case MixtureOfGaussians(z, shifts, chances):
            each = zip(shifts, chances, strict=True)
            return max(max(12 * z / s, -((z / s) ** 2) * math.log(c)) for s, c in each)
        case _ if (atoms := atoms_of(step)) is not None:
            largest = float(np.abs(atoms.log_ratio).max(initial=0.0))
            return 70 / min(max(largest, 1e-6), 1.0)
        case Sampled(inner, q):
            steps = flatten(inner)
            order = max(_largest_order(one) for one, _ in steps)
            # As far as the coin still hides most of a moment.
            while order < _LARGEST_ORDER:
                moment = order * float(_total(steps, np.array([1 + order]))[0])
                if not moment < 40 - math.log(q):
                    break
                order *= 2
            return order
        case _:
            return 1.0
