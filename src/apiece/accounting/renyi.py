"""Rényi accounting: divergences add up under composition; the best order is sought.

Divergences of single steps, at integer and fractional orders alike, are the larger of the two
directions of add/remove. They are rounded up by a factor 1 + 1e-11, which covers the quadrature and
the rounding (tests compare with 40 digits).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Bounds, Floats
from apiece.accounting.selection import selected_divergences
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import (
    Allocated,
    Concentrated,
    DiscreteGaussian,
    Gaussian,
    Laplace,
    Mechanism,
    Sampled,
    Selected,
)
from apiece.mechanisms.algebra import NormalForm, atoms_of, flatten
from apiece.mechanisms.atoms import Atoms
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.roots import Places

# Covers the quadrature's error and the rounding of a divergence.
_ROUND_UP = 1 + 1e-11
# In standard deviations of the noise; the tail beyond is below 1e-20.
_REACH = 9.5
# Nodes at once, at most.
_AT_ONCE = 1 << 20
# Nodes for one order, at most; beyond, sampling is ignored, which is an upper bound.
_MOST_NODES = 1 << 15


def gaussian(noise_multiplier: npt.ArrayLike, orders: npt.ArrayLike) -> Floats:
    """Return α/(2z²), of N(1, z²) against N(0, z²). Source: Mironov 2017, Prop. 7."""
    z = np.asarray(noise_multiplier, float)
    alpha = np.asarray(orders, float)
    return np.asarray(alpha / (2 * z * z) * _ROUND_UP)


def laplace(noise_multiplier: npt.ArrayLike, orders: npt.ArrayLike) -> Floats:
    """Return the divergence of Lap(1, b) against Lap(0, b). Source: Mironov 2017, Prop. 6."""
    b = np.asarray(noise_multiplier, float)
    alpha = np.asarray(orders, float)
    # The two terms of the moment, from below 0 and from above 1, with what lies between in both.
    span = 2 * alpha - 1
    log_near = np.log(alpha / span) + (alpha - 1) / b
    log_far = np.log((alpha - 1) / span) - alpha / b
    exact = np.logaddexp(log_near, log_far) / (alpha - 1)
    # At orders near 1 or with much noise the logarithm is of a number near 1: allow for that.
    upper = exact * _ROUND_UP + 1e-15 / (alpha - 1)
    # Losses are at most 1/b, and so is every divergence.
    return np.asarray(np.minimum(upper, 1 / b))


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
    divergence = np.array(gaussian(z, alpha), ndmin=1).ravel()
    flat_z = np.ravel(z)
    flat_q = np.ravel(q)
    flat_alpha = np.ravel(alpha)
    step = np.minimum(0.5, flat_z / 3)
    # The integrand's bulk lies between 0 and α/z, in units of u.
    needed = np.ceil((flat_alpha / flat_z + 2 * _REACH) / step) + 1
    nodes = np.minimum(needed, _MOST_NODES + 1).astype(int)
    sampled = np.flatnonzero((flat_q < 1) & (nodes <= _MOST_NODES))
    # The longest first, so that those at once are of about one length.
    sampled = sampled[np.argsort(-nodes[sampled], kind="stable")]
    start = 0
    while start < sampled.size:
        longest = int(nodes[sampled[start]])
        part = sampled[start : start + max(1, _AT_ONCE // longest)]
        divergence[part] = _integrate(
            flat_z[part], flat_q[part], flat_alpha[part], step[part], longest
        )
        start += part.size
    return divergence.reshape(z.shape)


def sampled_laplace(noise_multiplier: float, probability: float, orders: npt.ArrayLike) -> Floats:
    """Return the divergence of (1−q)Lap(0, b) + qLap(1, b) and Lap(0, b), the larger direction."""
    # Remove is E_Q[r^α], add is E_Q[r^{1−α}], each over α − 1 in the exponent; r = 1 + u with
    # E_Q[u] = 0, so both are 1 + E[(1 + u)^β − 1 − βu], whose terms are never negative. u has two
    # atoms and, between them, a density smooth in x, integrated by Gauss–Legendre with 16 nodes on
    # panels over which neither the log-ratio nor the log of the integrand moves by more than 2 and
    # 4: the nearest singularity is π away, which leaves an error below 1e-20 of the whole. Where
    # that takes more than 2¹⁵ nodes, sampling is ignored, which is an upper bound.
    alpha = np.asarray(orders, float)
    unsampled = laplace(noise_multiplier, alpha)
    values = []
    for order in alpha.ravel():
        remove = _log_laplace_moment(noise_multiplier, probability, order)
        add = _log_laplace_moment(noise_multiplier, probability, 1 - order)
        values.append(max(remove, add) / (order - 1) * _ROUND_UP)
    # Of a value and NaN, `fmin` takes the value.
    return np.asarray(np.fmin(np.reshape(values, alpha.shape), unsampled))


def discrete(atoms: Atoms, orders: npt.ArrayLike) -> Floats:
    """Return the larger divergence of a discrete pair; ∞ where one world has more outcomes."""
    # E_Q[r^α] as a sum over atoms, none of which may be left out.
    alpha = np.asarray(orders, float)
    if atoms.only_p > 0 or atoms.only_q > 0:
        return np.full(alpha.shape, np.inf)
    # One row for either direction: E_Q[r^α] for remove, E_Q[r^{1−α}] for add.
    powers = np.stack([alpha, 1 - alpha])[..., None]
    log_terms = np.log(atoms.mass) + powers * atoms.log_ratio
    log_moment = np.logaddexp.reduce(log_terms, axis=-1).max(axis=0)
    rounding = (atoms.error + 2.0**-50) * (1 + alpha)
    value = (log_moment + rounding) / (alpha - 1)
    return np.asarray(np.maximum(value, 0.0) * _ROUND_UP)


def mixture(step: MixtureOfGaussians, orders: npt.ArrayLike) -> Floats:
    """Return an upper bound on the divergence of Σ c_j·N(s_j, z²) and N(0, z²), s_0 = 0."""
    # r^α and r^{1−α} are convex in the ratio r, which is a mean of those of single Gaussians. Under
    # Q both moments of the latter are e^{α(α − 1)s²/(2z²)}.
    alpha = np.asarray(orders, float)
    shifts = np.array(step.shifts) / step.noise_multiplier
    chances = np.array(step.chances)
    exponent = (alpha * (alpha - 1))[..., None] * shifts**2 / 2
    log_terms = np.log(chances) + _log_expm1(exponent)
    log_growth = np.logaddexp.reduce(log_terms, axis=-1)
    return np.asarray(np.logaddexp(0.0, log_growth) / (alpha - 1) * _ROUND_UP)


def behind_coin(divergence: Floats, probability: float, orders: Floats) -> Floats:
    """Return an upper bound on the divergence of a step behind a coin, from that of the step."""
    # E_Q[(1 − q + q·r)^α] ≤ 1 − q + q·E_Q[r^α], by convexity, and so with 1 − α for α.
    log_growth = math.log(probability) + _log_expm1((orders - 1) * divergence)
    with np.errstate(invalid="ignore"):
        amplified = np.logaddexp(0.0, log_growth) / (orders - 1) * _ROUND_UP
    return np.asarray(np.fmin(amplified, divergence))


def _log_expm1(x: Floats) -> Floats:
    """Return log(e^x − 1) for x ≥ 0, −∞ at 0."""
    # From 30 on, x itself is an upper bound, and off by 1e-13 at most.
    with np.errstate(divide="ignore"):
        near = np.log(np.expm1(np.minimum(x, 30.0)))
        return np.asarray(np.where(x < 30, near, x))


def _log_laplace_moment(b: float, q: float, power: float) -> float:
    """Return log E_Q[r^power] for one coin before a Laplace step; NaN where that takes too long."""
    # ρ = (2x − 1)/b moves by 2/b over [0, 1], the log of the integrand by (2|β| + 1)/b.
    for_ratio = 1 / b
    for_integrand = (2 * abs(power) + 1) / (4 * b)
    panels = math.ceil(max(for_ratio, for_integrand))
    if 16 * panels > _MOST_NODES:
        return math.nan
    nodes, weights = np.polynomial.legendre.leggauss(16)
    position = np.arange(panels)[:, None] + (nodes + 1) / 2
    x = (position / panels).ravel()
    # Half a panel's width, 1/(2·panels), times the density e^{−x/b}/(2b) of [0, 1].
    log_weight = np.log(np.tile(weights, panels) / (4 * b * panels))
    log_density_mass = log_weight - x / b
    # The two atoms, at the ends, hold half of the mass each under Q and under P₁.
    end = 1 / b
    rho = np.concatenate(([-end], (2 * x - 1) / b, [end]))
    log_half = math.log(0.5)
    log_mass = np.concatenate(([log_half], log_density_mass, [-end + log_half]))
    log_terms = _log_excess_any_power(q * np.expm1(rho), power) + log_mass
    return float(np.logaddexp(0.0, np.logaddexp.reduce(log_terms)))


def _log_excess_any_power(r: Floats, power: float) -> Floats:
    """Return log((1 + r)^β − 1 − βr) for r > −1 and β > 1 or β < 0."""
    log_power = power * np.log1p(r)
    with np.errstate(divide="ignore", over="ignore"):
        excess = np.expm1(np.minimum(log_power, 50.0)) - power * r
        small = np.log(np.maximum(excess, 0.0))
        # The power factored out, where it may overflow.
        subtracted = -(1 + power * r) * np.exp(-log_power)
        large = log_power + np.log1p(subtracted)
    plain = np.where(log_power < 50, small, large)
    # Near 0 the terms cancel: the binomial series has none of the first two.
    by_series = np.abs(r) * max(abs(power), 1.0) < 0.1
    return np.where(by_series, _log_series(r, np.array(power)), plain)


def _integrate(z: Floats, q: Floats, alpha: Floats, step: Floats, nodes: int) -> Floats:
    """Return divergences behind a coin, one an entry, by the trapezoidal rule."""
    z = z[:, None]
    q = q[:, None]
    alpha = alpha[:, None]
    step = step[:, None]
    u = step * np.arange(nodes) - _REACH
    w = u / z - 0.5 / z**2
    with np.errstate(divide="ignore"):
        log_integrand = _log_excess_power(w, q, alpha) - 0.5 * u * u
    peak = log_integrand.max(axis=1, keepdims=True)
    # Where the integrand is 0 everywhere there is nothing to factor out.
    peak = np.where(np.isfinite(peak), peak, 0.0)
    sums = np.exp(log_integrand - peak).sum(axis=1)
    width = step[:, 0]
    total = sums * width / math.sqrt(2 * math.pi)
    with np.errstate(divide="ignore"):
        log_excess = np.log(total) + peak[:, 0]
    # log(1 + excess), which keeps the digits of a small one.
    log_moment = np.logaddexp(0.0, log_excess)
    return np.asarray(log_moment / (alpha[:, 0] - 1) * _ROUND_UP)


def _log_excess_power(w: Floats, q: Floats, alpha: Floats) -> Floats:
    """Return log((1 + r)^α − 1 − αr) for r = q(e^w − 1), to nearly full relative precision."""
    r = q * np.expm1(np.minimum(w, 40.0))
    # Past the range of e^w: log(q·e^w + 1 − q), by its larger term.
    smaller_term = (1 - q) / q * np.exp(-np.maximum(w, 40.0))
    far = np.log(q) + w + np.log1p(smaller_term)
    log_ratio = np.where(w < 40, np.log1p(r), far)
    power = alpha * log_ratio
    # r large: factor the power out; r negative: no overflow; r small: the binomial series.
    positive_log = np.maximum(log_ratio, 0.0)
    # With ℓ = log(1 + r), (1 + αr)·(1 + r)^{−α} is e^{−αℓ} + α·(1 − e^{−ℓ})·e^{(1−α)ℓ}.
    scaled_power = np.exp((1 - alpha) * positive_log)
    linear = alpha * np.expm1(-positive_log) * scaled_power
    subtracted = np.exp(-alpha * positive_log) - linear
    with np.errstate(divide="ignore"):
        large = power + np.log1p(-np.minimum(subtracted, 1.0))
    excess = np.expm1(np.minimum(power, 0.0)) - alpha * r
    negative = np.log(np.maximum(excess, 0.0))
    plain = np.where(r > 0, large, negative)
    return np.where(np.abs(r) * alpha < 0.1, _log_series(r, alpha), plain)


def _log_series(r: Floats, alpha: Floats) -> Floats:
    """Return log of Σ_{k ≥ 2} C(α, k)·r^k for |αr| < 0.1."""
    r = np.clip(r, -0.1, 0.1)
    # Over its first term, by Horner's scheme.
    total = np.ones(np.broadcast(r, alpha).shape)
    for k in range(14, 2, -1):
        total = 1 + total * (alpha - k + 1) / k * r
    leading = alpha * (alpha - 1) / 2 * r * r
    return np.asarray(np.log(leading * np.maximum(total, 0.0)))


# An upper bound on δ never goes below it.
_SMALLEST = 1e-300
# Spacing of the orders tried first, in log(α − 1).
_SPACING = 0.1
# How far around the best order closer ones are tried, in log(α − 1), and how many.
_CLOSER = ((0.1, 16), (0.0133, 12))
# Factor by which δ(0) at the first orders may be off.
_CLOSE = 2.0
# Not far beyond, α and α − 1 are the same double.
_LARGEST_ORDER = 1e15


def epsilon_at(divergence: Floats, orders: Floats, delta: Floats) -> Floats:
    """Return the ε that order α with divergence R gives at δ; any order is a valid upper bound."""
    # ε = R + log((α − 1)/α) − (log δ + log α)/(α − 1), and 0 where total variation, at most √(1 −
    # e^{−R}), is below δ. Source: Canonne, Kamath, Steinke 2020, Prop. 12 (equally Asoodeh et al.
    # 2020); Bretagnolle and Huber 1979.
    excess = orders - 1
    log_delta = np.log(delta)
    log_odds = (log_delta + np.log(orders)) / excess
    epsilon = divergence + np.log1p(-1 / orders) - log_odds
    rounding = 1e-15 * (1 + np.abs(log_delta) / excess)
    epsilon = np.maximum(epsilon + rounding, 0.0)
    square = -np.expm1(-divergence)
    variation = np.sqrt(square) * (1 + 1e-12)
    return np.where(variation <= delta, 0.0, epsilon)


def delta_at(divergence: Floats, orders: Floats, epsilon: Floats) -> Floats:
    """Return the δ that order α with divergence R gives at ε ≥ 0; sources as `epsilon_at`."""
    excess = divergence - epsilon + np.log1p(-1 / orders)
    exponent = (orders - 1) * excess - np.log(orders)
    rounding = 1e-15 * (orders - 1) * (1 + epsilon + divergence)
    delta = np.exp(np.minimum(exponent + rounding, 0.0)) * (1 + 1e-12)
    square = -np.expm1(-divergence)
    variation = np.sqrt(square) * (1 + 1e-12)
    return np.maximum(np.minimum(delta, variation), _SMALLEST)


# Numbers of orders, each among those around the order of the number before it.
_Path: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RenyiProfile:
    """An upper bound on a profile from Rényi divergences at many orders; the lower bound is 0."""

    # ε has a sharp least value at the order where the divergence takes off. So orders are tried far
    # apart first; then around the best one, for each value asked, closer and closer. Orders tried
    # stay in `_divergences`, by the path of best orders that leads to them, and an answer never
    # depends on what was asked before.

    steps: NormalForm
    orders: Floats
    _divergences: dict[tuple[int, ...], tuple[Floats, Floats]] = field(
        default_factory=dict, repr=False
    )

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) by the best order."""
        upper = self._minimise(delta_at, epsilon)
        return Bounds(np.zeros(upper.shape), np.minimum(upper, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by the best order; 0 where δ(0), whose best order is another, is at most δ."""
        upper = self._minimise(epsilon_at, delta)
        zero = np.zeros(1)
        # Orders closer by lower δ(0) by far less than this, so that most need not look for them.
        orders, divergence = self.divergences(())
        advantage = delta_at(divergence, orders, zero)
        if (advantage <= _CLOSE * delta.max(initial=0.0)).any():
            upper = np.where(self.delta(zero).upper <= delta, 0.0, upper)
        return Bounds(np.zeros(upper.shape), upper)

    def _minimise(self, ask: Callable[[Floats, Floats, Floats], Floats], values: Floats) -> Floats:
        """Return the least bound at each value."""
        smallest = np.full(values.shape, np.inf)
        # Groups of values whose best order is next to one order, and the path to that.
        everyone = np.arange(values.size)
        waiting: list[tuple[_Path, Places]] = [((), everyone)]
        while waiting:
            path, members = waiting.pop()
            orders, divergence = self.divergences(path)
            bounds = ask(divergence, orders, values[members, None])
            smallest[members] = np.minimum(smallest[members], bounds.min(axis=1))
            if len(path) < len(_CLOSER):
                best = bounds.argmin(axis=1)
                numbers = np.unique(best).tolist()
                waiting += [((*path, k), members[best == k]) for k in numbers]
        return smallest

    def divergences(self, path: tuple[int, ...]) -> tuple[Floats, Floats]:
        """Return the orders around the one that a path leads to, and their divergences.

        A path is the number of an order among the first ones, then among those around it, ….
        """
        if path not in self._divergences:
            orders = self.orders
            if path:
                width, count = _CLOSER[len(path) - 1]
                farther, _ = self.divergences(path[:-1])
                middle = math.log(farther[path[-1]] - 1)
                orders = 1 + np.exp(middle + np.linspace(-width, width, count))
            self._divergences[path] = (orders, _add_divergences(self.steps, orders))
        return self._divergences[path]


def divergence(mechanism: Mechanism, orders: npt.ArrayLike) -> Floats:
    """Return Rényi divergences of `mechanism`, the larger of both directions."""
    alpha = np.asarray(orders, dtype=np.float64)
    valid = (alpha > 1) & np.isfinite(alpha)
    if not valid.all():
        raise InputError(
            f"orders from {alpha.min()!s} to {alpha.max()!s}: must be above 1 and finite"
        )
    return _add_divergences(flatten(mechanism), alpha)


def _add_divergences(steps: NormalForm, orders: Floats) -> Floats:
    """Return the divergences of a composition: those of its steps add up."""
    total = np.zeros(orders.shape)
    for step, times in steps:
        total = total + times * _step_divergence(step, orders)
    return total


def _step_divergence(step: Mechanism, orders: Floats) -> Floats:
    """Return an upper bound on the divergence of one step; raise where none is known."""
    match step:
        case Gaussian(noise_multiplier):
            return gaussian(noise_multiplier, orders)
        case Laplace(scale):
            return laplace(scale, orders)
        case Sampled(Gaussian(noise_multiplier), probability):
            return sampled_gaussian(noise_multiplier, probability, orders)
        case Sampled(Laplace(scale), probability):
            return sampled_laplace(scale, probability, orders)
        case Selected(mechanisms, runs):
            steps = [flatten(mechanism) for mechanism in mechanisms]
            divergences = [partial(_add_divergences, part) for part in steps]
            profiles = [renyi(part) for part in steps]
            return selected_divergences(divergences, profiles, runs, orders)
        case DiscreteGaussian(scale, sensitivity):
            # No more than without rounding (Canonne, Kamath, Steinke 2020, Proposition 5).
            return gaussian(scale / sensitivity, orders)
        case Allocated(noise_multiplier):
            # Its ratio is a mean of those of plain Gaussians, so that its moments are no larger.
            return gaussian(noise_multiplier, orders)
        case MixtureOfGaussians():
            return mixture(step, orders)
        case Concentrated(rho):
            return np.asarray(rho * orders * _ROUND_UP)
        case _ if (atoms := atoms_of(step)) is not None and not atoms.outside_p:
            return discrete(atoms, orders)
        case Sampled(inner, probability):
            return behind_coin(_add_divergences(flatten(inner), orders), probability, orders)
        case _:
            raise UnsupportedError(f"method 'rdp': no Rényi divergence of {step!r} is known")


def renyi(steps: NormalForm) -> RenyiProfile:
    """Return an upper bound on the profile of at least one step; raise as `divergence` does."""
    largest_order = max(_largest_order(step) for step, _ in steps)
    high = min(2 + 2 * largest_order, _LARGEST_ORDER)
    low = min(1e-3, high * 1e-5)
    count = math.ceil(math.log(high / low) / _SPACING) + 1
    orders = 1 + np.geomspace(low, high, count)
    profile = RenyiProfile(steps, orders)
    # Raises where a step has no divergence.
    profile.divergences(())
    return profile


def _largest_order(step: Mechanism) -> float:
    """Return about the largest order that can be the best one, for δ down to 1e-30."""
    # A Gaussian's best order is about z·√(2·log(1/δ)), and √(2·log 1e30) is 11.8. With bounded
    # losses it is log(1/δ) over their size, and log 1e30 is 69. Behind a coin, the divergence takes
    # off at about z²·log(1/q).
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
            steps = [step for mechanism in mechanisms for step, _ in flatten(mechanism)]
            return max(_largest_order(step) for step in steps)
        case DiscreteGaussian(scale, sensitivity):
            return 12 * scale / sensitivity
        case Allocated(z):
            return 12 * z
        case Concentrated(rho):
            # That of a Gaussian with this ρ.
            return 12 / math.sqrt(2 * rho)
        case MixtureOfGaussians(z, shifts, chances):
            orders = []
            for shift, chance in zip(shifts, chances, strict=True):
                # As of a Gaussian behind a coin, with this shift for its sensitivity.
                noise = z / shift
                hidden = -(noise**2) * math.log(chance)
                orders.append(max(12 * z / shift, hidden))
            return max(orders)
        case _ if (atoms := atoms_of(step)) is not None:
            largest = float(np.abs(atoms.log_ratio).max(initial=0.0))
            return 70 / min(max(largest, 1e-6), 1.0)
        case Sampled(inner, q):
            inner_steps = flatten(inner)
            order = max(_largest_order(part) for part, _ in inner_steps)
            # As far as the coin still hides most of a moment.
            while order < _LARGEST_ORDER:
                divergence = float(_add_divergences(inner_steps, np.array([1 + order]))[0])
                moment = order * divergence
                if not moment < 40 - math.log(q):
                    break
                order *= 2
            return order
        case _:
            return 1.0
