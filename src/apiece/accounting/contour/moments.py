"""Moments of complex order of one sampled Gaussian step, for many mechanisms at once.

With u = x/z standard normal under Q, ρ = u/z − 1/(2z²), r = 1 − q + q·e^ρ and L = log r, all work
is with

    M(o + iy) = ∫ φ(u)·r(u)^{o+iy} du   over a window of u,

by Gauss–Legendre quadrature. In the complex plane, at u + iv with |v| ≤ a = θz < πz/2 and with
p = q·e^ρ/r, the share of P₁ in P, the integrand is at most φ(u)·e^{a²/2}·r^o times
e^{p·(|y|·tan θ + 2·max(−o, 0)·tan²(θ/2))}, p ≤ 1 and p ≤ −log(1 − p) = log r − log(1 − q). So the
error decreases geometrically with the number of nodes (Trefethen 2013, Theorem 19.3), at a known
rate. Where losses are large and y is, the window is cut into panels, each with nodes of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from apiece._types import Floats
from apiece.accounting.truncation import (
    MARGIN,
    Jumps,
    Points,
    Remainder,
    bound_remainder,
    estimate_epsilon,
    find_slightest_fall,
)
from apiece.numerics.normal import tail
from apiece.numerics.rounding import UNIT

# Relative accuracy of the rule's nodes and weights.
_RULE = 2**14 * UNIT
# Largest angle θ at which the integrand is bounded.
_WIDEST = 1.2
# Shares of the angle that seems best, which are tried.
_ANGLE_SHARES = np.array((1.0, 0.6, 0.3))
# Shares of u, of the rise of losses to come, and of losses in the places of borders.
_BORDER_SHARES = (0.3, 0.3, 0.4)
# Nats before q·e^ρ = 1, from where on losses are about to rise.
_EARLY = 6.0
# Largest a = θz.
_HEIGHT = 4.0
# Cells of u, of all panels together, in which the loss is bounded.
_SLABS = 64


@lru_cache(maxsize=32)
def gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """Return distances from the ends ∓1 of the nodes below and above 0, and their weights.

    `count` is even.
    """
    # For a node at 1 − t, with P_k(1 − t) by the recurrence of its differences, in which nothing
    # cancels near the ends: distances and weights are right to a few hundred units there too. The
    # weight is taken from P', by which an error of its node counts once, not `count` times.
    # The start is off by 1e-8 at most, so that two of Newton's steps suffice; the first of them
    # gives the nodes of the weights.
    zero = _bessel_zeros(count // 2) / (count + 0.5)
    correction = (zero / np.tan(zero) - 1) / (8 * zero * (count + 0.5) ** 2)
    angle = zero + correction
    t = 2 * np.sin(angle / 2) ** 2
    for _ in range(2):
        # P_{k−1}, P_k and P_k − P_{k−1} at 1 − t, from k = 1 up to k = count.
        previous = np.ones_like(t)
        value = 1 - t
        fall = -t
        for k in range(1, count):
            fall = (k * fall - (2 * k + 1) * t * value) / (k + 1)
            previous = value
            value = value + fall
        node = t
        # (1 − x²)·P' = count·(P_{count−1} − x·P_count), with 1 − x² = t·(2 − t).
        slope = count * (previous - (1 - t) * value)
        t = node + value * node * (2 - node) / slope
    return t, 2 * node * (2 - node) / slope**2


_FIRST_ZEROS = (2.404825557695773, 5.520078110286311, 8.653727912911013, 11.791534439014281)


def _bessel_zeros(count: int) -> Floats:
    """Return the first zeros of J₀, to 2e-9; McMahon's expansion but for the first of them."""
    eighth = 1 / (8 * np.pi * (np.arange(count) + 0.75))
    zero = 1 / (8 * eighth) + eighth - 124 / 3 * eighth**3 + 120928 / 15 * eighth**5
    zero -= 401743168 / 105 * eighth**7
    zero[:4] = _FIRST_ZEROS[:count]
    return np.asarray(zero)


def estimate_node_count(z: Floats, length: Floats, log_error: Floats, angle: float) -> Floats:
    """Return about how many nodes resolve a window of u of some length to an error."""
    height = np.minimum(angle * z, _HEIGHT)
    rate = 2 * np.arcsinh(2 * height / length)
    return np.asarray((height**2 - log_error) / rate)


class Weights(NamedTuple):
    """The tilted law on the nodes: shares, log M(o), mean and variance of the loss."""

    share: Floats
    log_total: Floats
    mean: Floats
    variance: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One step each of K mechanisms, in the remove or the add direction, on the nodes of a rule."""

    # All arrays are (K, 1), or (K, nodes), or (K, cells + 1) for edges.

    z: Floats
    q: Floats
    # 1 in the remove direction, where losses are L; −1 in the other, where losses are −L and the
    # second measure is P.
    sign: int
    # u of each node, and the log of its weight times φ(u).
    node: Floats
    log_base: Floats
    # L at each node.
    ratio: Floats
    # u at the borders of cells, ascending, and L there.
    edge: Floats
    edge_ratio: Floats
    # Bounds on the rounding errors of L.
    loss_error: Floats
    # How many; each has as many nodes, and as many cells, equally spaced.
    panels: int

    @classmethod
    def of(
        cls, z: Floats, q: Floats, low: Floats, high: Floats, count: int, panels: int = 1
    ) -> Steps:
        """Return the steps in the remove direction, of (K, 1) arrays, on windows of u.

        `count` is the number of nodes, a multiple of the number of panels.
        """
        border = _place_borders(z, q, low, high, panels)
        left = border[:, :-1, None]
        right = border[:, 1:, None]
        end, weight = gauss_legendre(count // panels)
        half = (right - left) / 2
        lower_nodes = left + half * end
        upper_nodes = right - half * end
        node = np.concatenate([lower_nodes, upper_nodes[:, :, ::-1]], axis=2)
        node = node.reshape(z.size, -1)
        weights = np.concatenate([weight, weight[::-1]])
        log_weight = np.log(weights / math.sqrt(2 * math.pi))
        log_base = (np.log(half) + log_weight).reshape(z.size, -1) - node**2 / 2
        cell_share = np.linspace(0.0, 1.0, _SLABS // panels + 1)[:-1]
        cell = left + (right - left) * cell_share
        edge = np.append(cell.reshape(z.size, -1), high, axis=1)
        ratio = loss_at(node, z, q)
        # p = q·e^ρ/r is the derivative of L in ρ; and 1 − e^{−L} = x/(1 + x) is what a relative
        # error of x = q·(e^ρ − 1) moves L by.
        inverse = np.exp(-ratio)
        share = q * np.exp(node / z - 0.5 / z**2 - ratio)
        largest_rho = np.maximum(np.abs(low), np.abs(high)) / z + 0.5 / z**2
        sizes = np.abs(ratio) + np.abs(1 - inverse) + 2 * share * largest_rho + UNIT
        loss_error = 4 * UNIT * sizes
        edge_ratio = loss_at(edge, z, q)
        return cls(z, q, 1, node, log_base, ratio, edge, edge_ratio, loss_error, panels)

    def reverse(self) -> Steps:
        """Return the same steps in the add direction."""
        return replace(self, sign=-self.sign)

    def largest_loss(self, times: Floats) -> Floats:
        """Return a bound on the total loss: in the add direction −log(1 − q) a step."""
        largest = -times * np.log1p(-self.q) * (1 + 4 * UNIT)
        return np.asarray(largest if self.sign < 0 else np.full_like(largest, np.inf))

    def order(self, tilt: Floats) -> Floats:
        """Return the order o of r that belongs to λ: λ itself, or 1 − λ in the add direction."""
        return np.asarray(tilt if self.sign > 0 else 1 - tilt)

    def weights(self, order: Floats) -> Weights:
        """Return the law tilted to `order`, (K, 1)."""
        exponent = self.log_base + order * self.ratio
        top = exponent.max(axis=1, keepdims=True)
        share = np.exp(exponent - top)
        total = share.sum(axis=1, keepdims=True)
        share /= total
        mean = (share * self.ratio).sum(axis=1, keepdims=True)
        variance = (share * (self.ratio - mean) ** 2).sum(axis=1, keepdims=True)
        return Weights(share, top + np.log(total), self.sign * mean, variance)

    def error(self, order: Floats, largest: Floats, weights: Weights) -> tuple[Floats, Floats]:
        """Return e and f: M at order + iy has an error of at most (e + |y|·f)·M(order).

        It holds for |y| ≤ `largest`, and covers quadrature and rounding, that of each node's place
        and loss counted.
        """
        phase = (weights.share * self.loss_error).sum(axis=1, keepdims=True)
        size = np.abs(self.node) + np.abs(self.edge[:, :1]) + np.abs(self.edge[:, -1:])
        shift = 4 * UNIT * (weights.share * np.abs(self.node) * size)
        rounding = np.abs(order) * phase + shift.sum(axis=1, keepdims=True)
        rounding += UNIT * (32 + np.abs(weights.log_total) + self.node.shape[1])
        quadrature = self._quadrature(order, largest, weights.log_total)
        return rounding + quadrature + _RULE, phase

    def _quadrature(self, order: Floats, largest: Floats, log_total: Floats) -> Floats:
        """Return the quadrature's error relative to M(order), each panel's least over ellipses."""
        border = self.edge[:, :: _SLABS // self.panels]
        half = np.maximum(np.diff(border, axis=1) / 2, 1e-12)[:, :, None]
        theta = self._choose_angles(border, half, largest)
        height = theta * self.z[:, :, None]
        # log of the ellipse's parameter: its imaginary half-axis is `height`.
        log_parameter = np.arcsinh(height / half)
        y = largest[:, :, None]
        down = np.maximum(-order, 0.0)[:, :, None]
        # Where q is small, by p as above; else by the angle of r, which is at most θ, and by
        # |r| ≥ cos(θ/2)·(its value on the real line), as of any two numbers at that angle.
        by_share = self.q[:, :, None] < 0.5
        power = np.where(by_share, y * np.tan(theta) + 2 * down * np.tan(theta / 2) ** 2, 0.0)
        beyond = half * (np.cosh(log_parameter) - 1)
        log_body = self._bound_exponent(order[:, :, None, None], power[..., None], beyond)
        log_most = log_body + height**2 / 2
        log_most += np.where(by_share, 0.0, y * theta - down * np.log(np.cos(theta / 2)))
        # Trefethen 2013, Theorem 19.3: 64/15·max·ϱ^{−2n}/(1 − ϱ^{−2}) on an interval of length 2.
        nodes = self.node.shape[1] // self.panels
        log_error = log_most - 2 * nodes * log_parameter - np.log(-np.expm1(-2 * log_parameter))
        best = log_error.min(axis=2) - log_total
        scale = 64 / 15 / math.sqrt(2 * math.pi) * half[:, :, 0]
        error = scale * np.exp(np.minimum(best, 700.0))
        return np.asarray(error.sum(axis=1, keepdims=True))

    def _choose_angles(self, border: Floats, half: Floats, largest: Floats) -> Floats:
        """Return some angles θ for each panel, (K, panels, 3), of which one is likely the best."""
        # Where e^{y·p·θ} and the rule's e^{2n·arcsinh(θz/half)} grow alike.
        right = border[:, 1:]
        right_loss = loss_at(right, self.z, self.q)
        share = self.q * np.exp(right / self.z - 0.5 / self.z**2 - right_loss)
        growth = np.maximum(largest * np.where(self.q < 0.5, share, 1.0), 1e-9)
        ratio = half[:, :, 0] / self.z
        nodes = self.node.shape[1] // self.panels
        square = (2 * nodes / (ratio * growth)) ** 2 - 1
        theta = ratio * np.sqrt(np.maximum(square, 0.0))
        theta = np.clip(theta, 1e-3, np.minimum(_WIDEST, _HEIGHT / self.z))
        return np.asarray(theta[:, :, None] * _ANGLE_SHARES)

    def _bound_exponent(self, order: Floats, power: Floats, beyond: Floats) -> Floats:
        """Return upper bounds on −u²/2 + order·L + power·p over panels and `beyond` their ends.

        The bounds are (K, panels, angles); so are the arguments, the first two with a dimension
        for cells.
        """
        shape = (self.z.size, self.panels, 1, _SLABS // self.panels)
        left = self.edge[:, :-1].reshape(shape)
        left_loss = self.edge_ratio[:, :-1].reshape(shape)
        right = self.edge[:, 1:].reshape(shape)
        right_loss = self.edge_ratio[:, 1:].reshape(shape)
        first = left[..., :1]
        first_loss = left_loss[..., :1]
        last = right[..., -1:]
        last_loss = right_loss[..., -1:]
        z = self.z[:, :, None, None]
        q = self.q[:, :, None, None]
        lowest = first - beyond[..., None]
        highest = last + beyond[..., None]
        # log r − log(1 − q) bounds p, where the coin is known to show tails often enough.
        minus_log_tails = -np.log1p(-np.minimum(q, 0.5))

        def bound_cells(low: Floats, low_loss: Floats, high: Floats, high_loss: Floats) -> Floats:
            """Bound the exponent on cells of u, in which L rises from `low_loss` to `high_loss`."""
            nearest = np.maximum(np.maximum(low, -high), 0.0)
            # Both terms at their own largest, or as one multiple of L plus a constant.
            by_order = np.maximum(order * low_loss, order * high_loss)
            share = np.minimum(1.0, np.maximum(high_loss + minus_log_tails, 0.0))
            split = by_order + power * share
            slope = order + power
            joint = np.maximum(slope * low_loss, slope * high_loss) + power * minus_log_tails
            return np.asarray((np.minimum(split, joint) - nearest**2 / 2).max(axis=3))

        inside = bound_cells(left, left_loss, right, right_loss)
        below = bound_cells(lowest, loss_at(lowest, z, q), first, first_loss)
        above = bound_cells(last, last_loss, highest, loss_at(highest, z, q))
        return np.maximum(np.maximum(below, above), inside) + 1e-9

    def slabs(self, order: Floats, log_most: Floats) -> tuple[Floats, Floats]:
        """Return masses and widths of uniform laws of the loss that the tilted law contains.

        `log_most` is an upper bound on log M(order).
        """
        # The density of the loss is bounded from below in each cell, then made unimodal, and is
        # then a mixture of nested uniform ones.
        left = self.edge[:, :-1]
        right = self.edge[:, 1:]
        right_loss = self.edge_ratio[:, 1:]
        farthest = np.maximum(np.abs(left), np.abs(right))
        ratio = np.minimum(order * self.edge_ratio[:, :-1], order * right_loss)
        # The loss rises with u by at most p/z, p = q·e^ρ/r at the right end; log of that times r.
        steepest = np.log(self.q / self.z) + right / self.z - 0.5 / self.z**2
        level = np.exp(ratio - farthest**2 / 2 - log_most - steepest + right_loss)
        level *= (1 - 1e-9) / math.sqrt(2 * math.pi)
        # Lowered to its running minima outward from the mode, it is unimodal.
        mode = level.argmax(axis=1, keepdims=True)
        cell = np.arange(_SLABS)
        up_to_mode = np.where(cell <= mode, level, np.inf)
        rising = np.minimum.accumulate(up_to_mode[:, ::-1], axis=1)[:, ::-1]
        falling = np.minimum.accumulate(np.where(cell >= mode, level, np.inf), axis=1)
        level = np.where(cell <= mode, rising, falling)
        # The slab of each level reaches over all cells that are as high.
        height = np.sort(level, axis=1)
        lower = level[:, None, :] < height[:, :, None]
        before = lower & (cell < mode)[:, None, :]
        after = lower & (cell > mode)[:, None, :]
        first = before.sum(axis=2)
        last = _SLABS - after.sum(axis=2)
        high = np.take_along_axis(self.edge_ratio, last, axis=1)
        low = np.take_along_axis(self.edge_ratio, first, axis=1)
        # Rounded down: narrower slabs let the characteristic function fall later.
        width = high - low - 64 * UNIT * (np.abs(high) + np.abs(low))
        width = np.maximum(width, 0.0) * (1 - 1e-9)
        return np.diff(height, axis=1, prepend=0.0) * width, width


def _place_borders(z: Floats, q: Floats, low: Floats, high: Floats, panels: int) -> Floats:
    """Return the borders of panels: closer where losses are about to rise, and where they do."""
    if panels == 1:
        return np.append(low, high, axis=1)
    u = low + (high - low) * np.linspace(0.0, 1.0, 257)
    rise = np.logaddexp(0.0, u / z - 0.5 / z**2 + np.log(q) + _EARLY)
    loss = loss_at(u, z, q)
    position = np.zeros_like(u)
    for share, measure in zip(_BORDER_SHARES, (u, rise, loss), strict=True):
        first = measure[:, :1]
        position += share * (measure - first) / (measure[:, -1:] - first)
    evenly = np.linspace(0.0, 1.0, panels + 1)
    border = np.stack([np.interp(evenly, *row) for row in zip(position, u, strict=True)])
    border[:, 0] = low[:, 0]
    border[:, -1] = high[:, 0]
    return border


def loss_at(u: Floats, z: Floats, q: Floats) -> Floats:
    """Return L at u."""
    return np.asarray(np.log1p(q * np.expm1(u / z - 0.5 / z**2)))


def locate_loss(loss: Floats, z: Floats, q: Floats) -> Floats:
    """Return the u at which the loss is L."""
    rho = np.log((np.expm1(loss) + q) / q)
    return np.asarray(z * (rho + 0.5 / z**2))


def log_modulus(slabs: tuple[Floats, Floats], frequency: Floats) -> Floats:
    """Return an upper bound on log |M(o + iy)/M(o)| for all |y| from each `frequency` on."""
    # M(o) as it was bounded from above for the slabs. A uniform law of width w has the
    # characteristic function sin v/v, v = yw/2, up to a phase.
    mass, width = slabs
    half_phase = frequency[:, :, None] * (width / 2)[:, None, :]
    # |sin v|/v ≤ 1 − v²/6 + v⁴/120, which falls to .2396 at v² = 7.04, above all that follows.
    square = np.minimum(half_phase**2, 7.04)
    missing = np.einsum("ijk,ik->ij", square * (1 / 6 - square / 120), mass)
    return np.asarray(np.log1p(-np.minimum(missing * (1 - 1e-9), 1 - 1e-9)))


OUTSIDE = 1e-6
"""Share of δ that may be told apart outright, on either side."""
# Nodes for estimates.
_COARSE = 112
# Panels of a window that is cut.
_PANELS = 32
# Share of δ, at least, that what is no jump is taken for.
_LEAST_SHARE = 0.05
# Relative error of normal tails.
_TAIL_ERROR = 1e-12


def discretise_windows(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return the steps of (K, 1) columns (z, q, T, δ, reach), what is outside, and 1.

    `count` is the number of nodes. The windows reach `reach` standard deviations beyond both means.
    """
    # All that lies above the windows is told apart outright.
    z, q, times, _, reach = columns
    steps = Steps.of(z, q, -reach, reach + 1 / z, count)
    p_mass, q_mass = _upper_tails(steps, steps.edge[:, -1:])
    p_jump = times * p_mass * (1 + _TAIL_ERROR)
    q_jump = times * q_mass * (1 + _TAIL_ERROR)
    none = np.zeros_like(p_jump)
    outside = _lower_tails(times, reach)
    remainder = Remainder(outside, (none, p_jump), (none, q_jump), none + 1, none + np.inf)
    return steps, remainder, none + 1


def discretise_cut_windows(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return `discretise_windows` with windows that end a little above ε(δ); above are jumps.

    The third array is about the share of δ that the steps within their windows make.
    """
    z, q, times, delta, reach = columns
    coarse = Steps.of(z, q, -reach, reach + 1 / z, _COARSE)
    points = [Points.of(coarse.ratio, np.zeros((1, 1)), coarse.log_base, times)]
    epsilon = estimate_epsilon(points, delta)
    fall, rate = find_slightest_fall(points, epsilon, delta)
    loss = MARGIN * epsilon + fall
    high = np.minimum(locate_loss(loss, z, q), reach + 1 / z)
    steps = Steps.of(z, q, -reach, high, count, _PANELS)

    outside = _lower_tails(times, reach)
    inside = np.maximum(1 - outside, 0.0)
    # Rounded down: every jump's loss is surely above it.
    jump_loss = loss_at(high, z, q) * (1 - _TAIL_ERROR) - _TAIL_ERROR
    law = steps.weights(-rate)
    error, _ = steps.error(-rate, np.zeros_like(rate), law)
    log_body = law.log_total + np.log1p(error)
    jumps = Jumps(*_upper_tails(steps, high), jump_loss, times, log_body)
    remainder = bound_remainder(
        [jumps], rate, _TAIL_ERROR, inside=(inside, inside), outside=outside
    )
    by_jumps = remainder.p[0] - np.exp(epsilon) * remainder.q[1]
    return steps, remainder, np.clip(1 - by_jumps / delta, _LEAST_SHARE, 1.0)


def _lower_tails(times: Floats, reach: Floats) -> Floats:
    """Return a bound on the chance that some step's outcome lies below its window."""
    return np.asarray(times * tail(reach) * (1 + _TAIL_ERROR))


def _upper_tails(steps: Steps, high: Floats) -> tuple[Floats, Floats]:
    """Return the P- and the Q-mass of one step above u = `high`."""
    q_mass = tail(high)
    shifted = tail(high - 1 / steps.z)
    return (1 - steps.q) * q_mass + steps.q * shifted, q_mass
