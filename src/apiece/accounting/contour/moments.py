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
# Cells of u in which the loss is bounded, of all panels together; the number of panels divides it.
_CELLS = 64


@lru_cache(maxsize=32)
def gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """Return distances from the ends ∓1 of the nodes below and above 0, and their weights.

    `count` is even.
    """
    # For a node at 1 − t, with P_k(1 − t) by the recurrence of its differences, in which nothing
    # cancels near the ends: distances and weights are right to a few hundred units there too. The
    # weight is taken from P', by which an error of its node counts once, not `count` times.
    # The start, Olver's expansion in the zeros of J₀ (DLMF 18.16(ii)), is off by 1e-8 at most, so
    # that two of Newton's steps suffice; the first of them gives the nodes of the weights.
    zero = _bessel_zeros(count // 2) / (count + 0.5)
    curvature = zero / np.tan(zero) - 1
    correction = curvature / (8 * zero * (count + 0.5) ** 2)
    angle = zero + correction
    t = 2 * np.sin(angle / 2) ** 2
    for _ in range(2):
        # P_{k−1}, P_k and P_k − P_{k−1} at 1 − t, from k = 1 up to k = count.
        previous = np.ones_like(t)
        value = 1 - t
        fall = -t
        for k in range(1, count):
            # (k + 1)·(P_{k+1} − P_k) = k·(P_k − P_{k−1}) − (2k + 1)·t·P_k.
            drop = (2 * k + 1) * t * value
            fall = (k * fall - drop) / (k + 1)
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
    # 1/(8β) with β = (s − 1/4)π for the s-th zero (DLMF 10.21.19).
    eighth = 1 / (8 * np.pi * (np.arange(count) + 0.75))
    zero = 1 / (8 * eighth) + eighth
    zero -= 124 / 3 * eighth**3
    zero += 120928 / 15 * eighth**5
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


class Cells(NamedTuple):
    """Cells of u by their ends, and L at both."""

    low: Floats
    low_loss: Floats
    high: Floats
    high_loss: Floats


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

        `count` is the number of nodes, a multiple of twice the number of panels.
        """
        border = _place_borders(z, q, low, high, panels)
        # (K, panels, 1), against the rule's nodes on the last axis.
        low_border = border[:, :-1, None]
        high_border = border[:, 1:, None]
        end_distance, weight = gauss_legendre(count // panels)
        half = (high_border - low_border) / 2
        # Each node is placed from its nearer end, since the rule knows that distance to all digits.
        lower_nodes = low_border + half * end_distance
        # These come from the upper end down, and are turned round to ascend.
        upper_nodes = np.flip(high_border - half * end_distance, axis=2)
        node = np.concatenate([lower_nodes, upper_nodes], axis=2)
        node = node.reshape(z.size, -1)
        weights = np.concatenate([weight, weight[::-1]])
        log_weight = np.log(weights / math.sqrt(2 * math.pi))
        log_measure = np.log(half) + log_weight
        log_base = log_measure.reshape(z.size, -1) - node**2 / 2
        # A panel's cells begin at even shares of it; the last edge of all is the window's end.
        cell_share = np.linspace(0.0, 1.0, _CELLS // panels + 1)[:-1]
        cell = low_border + (high_border - low_border) * cell_share
        edge = np.append(cell.reshape(z.size, -1), high, axis=1)
        ratio = loss_at(node, z, q)
        largest_u = np.maximum(np.abs(low), np.abs(high))
        loss_error = _bound_loss_error(ratio, node, largest_u, z, q)
        edge_ratio = loss_at(edge, z, q)
        return cls(z, q, 1, node, log_base, ratio, edge, edge_ratio, loss_error, panels)

    def reverse(self) -> Steps:
        """Return the same steps in the add direction."""
        return replace(self, sign=-self.sign)

    def largest_loss(self, times: Floats) -> Floats:
        """Return a bound on the total loss: in the add direction −log(1 − q) a step."""
        log_tails = np.log1p(-self.q)
        largest = -times * log_tails * (1 + 4 * UNIT)
        if self.sign < 0:
            return np.asarray(largest)
        # In the remove direction L grows with u without end.
        return np.full_like(largest, np.inf)

    @property
    def cells(self) -> Cells:
        """The cells of u, (K, cells)."""
        low = self.edge[:, :-1]
        low_loss = self.edge_ratio[:, :-1]
        high = self.edge[:, 1:]
        high_loss = self.edge_ratio[:, 1:]
        return Cells(low, low_loss, high, high_loss)

    def order(self, tilt: Floats) -> Floats:
        """Return the order o of r that belongs to λ: λ itself, or 1 − λ in the add direction."""
        return np.asarray(tilt if self.sign > 0 else 1 - tilt)

    def weights(self, order: Floats) -> Weights:
        """Return the law tilted to `order`, (K, 1)."""
        exponent = self.log_base + order * self.ratio
        # The largest term is factored out, so that no order overflows.
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
        # A node is made from the ends of its window: its place is off by units of all three. In
        # the integral that costs the place's error times |u|, the slope of log φ.
        node_size = np.abs(self.node)
        lowest = self.edge[:, :1]
        highest = self.edge[:, -1:]
        size = node_size + np.abs(lowest) + np.abs(highest)
        shift = 4 * UNIT * (weights.share * node_size * size)
        rounding = np.abs(order) * phase + shift.sum(axis=1, keepdims=True)
        log_size = np.abs(weights.log_total)
        # The sum loses a unit a node, and each exponent some units of its own size.
        rounding += UNIT * (32 + log_size + self.node.shape[1])
        quadrature = self._bound_quadrature(order, largest, weights.log_total)
        return rounding + quadrature + _RULE, phase

    def _bound_quadrature(self, order: Floats, largest: Floats, log_total: Floats) -> Floats:
        """Return the quadrature's error relative to M(order), each panel's least over ellipses."""
        # (K, panels + 1): the edges of cells at which panels begin, and the last one.
        border = self.edge[:, :: _CELLS // self.panels]
        panel_width = np.diff(border, axis=1)
        half = np.maximum(panel_width / 2, 1e-12)[:, :, None]
        theta = self._choose_angles(border, half, largest)
        height = theta * self.z[:, :, None]
        # log of the ellipse's parameter: its imaginary half-axis is `height`.
        log_parameter = np.arcsinh(height / half)
        beyond = half * (np.cosh(log_parameter) - 1)
        log_most = self._bound_on_ellipses(order, largest, theta, beyond)
        # Trefethen 2013, Theorem 19.3: 64/15·max·ϱ^{−2n}/(1 − ϱ^{−2}) on an interval of length 2.
        nodes = self.node.shape[1] // self.panels
        log_complement = np.log(-np.expm1(-2 * log_parameter))
        log_error = log_most - 2 * nodes * log_parameter - log_complement
        best = log_error.min(axis=2) - log_total
        # 1/√(2π) is what φ has before its exponential, which alone is bounded above.
        factor = 64 / 15 / math.sqrt(2 * math.pi)
        scale = factor * half[:, :, 0]
        # Cut before it overflows: a relative error of e^700 leaves a bound as empty as ∞ does.
        error = scale * np.exp(np.minimum(best, 700.0))
        return np.asarray(error.sum(axis=1, keepdims=True))

    def _bound_on_ellipses(
        self, order: Floats, largest: Floats, theta: Floats, beyond: Floats
    ) -> Floats:
        """Return bounds on log |√(2π)·φ·r^s| on an ellipse around each panel, s = order + iy.

        They hold for |y| ≤ `largest`. The ellipse of the angle θ, (K, panels, angles), has the
        imaginary half-axis θz, and its ends lie `beyond` those of the panel.
        """
        height = theta * self.z[:, :, None]
        y = largest[:, :, None]
        down = np.maximum(-order, 0.0)[:, :, None]
        # Where q is small, by p as above; else by the angle of r, which is at most θ, and by
        # |r| ≥ cos(θ/2)·(its value on the real line), as of any two numbers at that angle.
        by_share = self.q[:, :, None] < 0.5
        half_tangent = np.tan(theta / 2)
        share_power = y * np.tan(theta) + 2 * down * half_tangent**2
        power = np.where(by_share, share_power, 0.0)
        cell_order = order[:, :, None, None]
        log_body = self._bound_exponent(cell_order, power[..., None], beyond)
        log_most = log_body + height**2 / 2
        log_cosine = np.log(np.cos(theta / 2))
        angle_power = y * theta - down * log_cosine
        log_most += np.where(by_share, 0.0, angle_power)
        return log_most

    def _choose_angles(self, border: Floats, half: Floats, largest: Floats) -> Floats:
        """Return some angles θ for each panel, (K, panels, 3), of which one is likely the best."""
        # Where e^{y·p·θ} and the rule's e^{2n·arcsinh(θz/half)} grow alike.
        # p rises with u, so that it is largest at each panel's upper border.
        high = border[:, 1:]
        high_loss = loss_at(high, self.z, self.q)
        rho = high / self.z - 0.5 / self.z**2
        share = self.q * np.exp(rho - high_loss)
        growth = np.maximum(largest * np.where(self.q < 0.5, share, 1.0), 1e-9)
        ratio = half[:, :, 0] / self.z
        nodes = self.node.shape[1] // self.panels
        # In θ both have one slope where y·p = 2n/√((half/z)² + θ²).
        square = (2 * nodes / (ratio * growth)) ** 2 - 1
        theta = ratio * np.sqrt(np.maximum(square, 0.0))
        theta = np.clip(theta, 1e-3, np.minimum(_WIDEST, _HEIGHT / self.z))
        return np.asarray(theta[:, :, None] * _ANGLE_SHARES)

    def _bound_exponent(self, order: Floats, power: Floats, beyond: Floats) -> Floats:
        """Return upper bounds on −u²/2 + order·L + power·p over panels and `beyond` their ends.

        The bounds are (K, panels, angles); so are the arguments, the first two with a dimension
        for cells.
        """
        # (K, panels, angles, cells of a panel).
        shape = (self.z.size, self.panels, 1, _CELLS // self.panels)
        cells = Cells(*(ends.reshape(shape) for ends in self.cells))
        low_border = cells.low[..., :1]
        low_border_loss = cells.low_loss[..., :1]
        high_border = cells.high[..., -1:]
        high_border_loss = cells.high_loss[..., -1:]
        z = self.z[:, :, None, None]
        q = self.q[:, :, None, None]
        lowest = low_border - beyond[..., None]
        highest = high_border + beyond[..., None]
        # log r − log(1 − q) bounds p, where the coin is known to show tails often enough.
        # From q = 1/2 on the power is 0 and this bound is not used, so that q may be cut there.
        minus_log_tails = -np.log1p(-np.minimum(q, 0.5))

        def bound_cells(cells: Cells) -> Floats:
            """Bound the exponent on cells of u, in which L rises from `low_loss` to `high_loss`."""
            nearest = np.maximum(np.maximum(cells.low, -cells.high), 0.0)
            # Both terms at their own largest, or as one multiple of L plus a constant.
            by_order = np.maximum(order * cells.low_loss, order * cells.high_loss)
            share = np.minimum(1.0, np.maximum(cells.high_loss + minus_log_tails, 0.0))
            split = by_order + power * share
            slope = order + power
            by_slope = np.maximum(slope * cells.low_loss, slope * cells.high_loss)
            joint = by_slope + power * minus_log_tails
            exponent = np.minimum(split, joint) - nearest**2 / 2
            return np.asarray(exponent.max(axis=3))

        # The ellipse around a panel reaches beyond it: one cell more on either side.
        lowest_loss = loss_at(lowest, z, q)
        highest_loss = loss_at(highest, z, q)
        inside = bound_cells(cells)
        below = bound_cells(Cells(lowest, lowest_loss, low_border, low_border_loss))
        above = bound_cells(Cells(high_border, high_border_loss, highest, highest_loss))
        return np.maximum(np.maximum(below, above), inside) + 1e-9

    def slabs(self, order: Floats, log_most: Floats) -> tuple[Floats, Floats]:
        """Return masses and widths of uniform laws of the loss that the tilted law contains.

        `log_most` is an upper bound on log M(order).
        """
        # The density of the loss is bounded from below in each cell, then made unimodal, and is
        # then a mixture of nested uniform ones.
        # A density that is lowered still bounds from below, and the slabs lose what it loses.
        mode, level = _make_unimodal(self._bound_density(order, log_most))
        # The slab of each level reaches over all cells that are as high.
        cell = np.arange(_CELLS)
        # (K, levels) ascending; what follows is (K, levels, cells).
        height = np.sort(level, axis=1)
        slab_height = height[:, :, None]
        is_lower = level[:, None, :] < slab_height
        cut_below = is_lower & (cell < mode)[:, None, :]
        cut_above = is_lower & (cell > mode)[:, None, :]
        low_edge = cut_below.sum(axis=2)
        high_edge = _CELLS - cut_above.sum(axis=2)
        high = np.take_along_axis(self.edge_ratio, high_edge, axis=1)
        low = np.take_along_axis(self.edge_ratio, low_edge, axis=1)
        # Rounded down: narrower slabs let the characteristic function fall later.
        end_sizes = np.abs(high) + np.abs(low)
        width = high - low - 64 * UNIT * end_sizes
        width = np.maximum(width, 0.0) * (1 - 1e-9)
        # A slab's mass is its width times the rise of the density over the level below.
        return np.diff(height, axis=1, prepend=0.0) * width, width

    def _bound_density(self, order: Floats, log_most: Floats) -> Floats:
        """Return lower bounds on the density of the tilted loss in each cell, (K, cells)."""
        cells = self.cells
        farthest = np.maximum(np.abs(cells.low), np.abs(cells.high))
        log_power = np.minimum(order * cells.low_loss, order * cells.high_loss)
        # The loss rises with u by at most p/z, p = q·e^ρ/r at the upper end; log of that times r.
        log_slope = np.log(self.q / self.z)
        log_rise = log_slope + cells.high / self.z
        log_rise = log_rise - 0.5 / self.z**2
        log_level = log_power - farthest**2 / 2 - log_most
        log_level = log_level - log_rise + cells.high_loss
        level = np.exp(log_level)
        level *= (1 - 1e-9) / math.sqrt(2 * math.pi)
        return np.asarray(level)


def _make_unimodal(level: Floats) -> tuple[Floats, Floats]:
    """Return the cell of each row's mode, (K, 1), and the rows, lowered so that they fall from it.

    Each is lowered to its running minima outward from the mode.
    """
    mode = level.argmax(axis=1, keepdims=True)
    cell = np.arange(level.shape[1])
    up_to_mode = np.where(cell <= mode, level, np.inf)
    from_mode = np.where(cell >= mode, level, np.inf)
    down_from_mode = np.minimum.accumulate(np.flip(up_to_mode, axis=1), axis=1)
    rising = np.flip(down_from_mode, axis=1)
    falling = np.minimum.accumulate(from_mode, axis=1)
    return mode, np.where(cell <= mode, rising, falling)


def _place_borders(z: Floats, q: Floats, low: Floats, high: Floats, panels: int) -> Floats:
    """Return the borders of panels: closer where losses are about to rise, and where they do."""
    if panels == 1:
        return np.append(low, high, axis=1)
    u = low + (high - low) * np.linspace(0.0, 1.0, 257)
    rho = u / z - 0.5 / z**2
    rise = np.logaddexp(0.0, rho + np.log(q) + _EARLY)
    loss = loss_at(u, z, q)
    # Rises from 0 to 1 over the window: what all measures, in their shares, have up to each u.
    position = np.zeros_like(u)
    for share, measure in zip(_BORDER_SHARES, (u, rise, loss), strict=True):
        start = measure[:, :1]
        span = measure[:, -1:] - start
        position += share * (measure - start) / span
    quantiles = np.linspace(0.0, 1.0, panels + 1)
    rows = [np.interp(quantiles, *row) for row in zip(position, u, strict=True)]
    border = np.stack(rows)
    border[:, 0] = low[:, 0]
    border[:, -1] = high[:, 0]
    return border


def _bound_loss_error(
    ratio: Floats, node: Floats, largest_u: Floats, z: Floats, q: Floats
) -> Floats:
    """Return bounds on the rounding errors of L = `ratio` at nodes of a window.

    `largest_u` is the largest |u| of the window.
    """
    # p = q·e^ρ/r is the derivative of L in ρ; and 1 − e^{−L} = x/(1 + x) is what a relative
    # error of x = q·(e^ρ − 1) moves L by.
    inverse = np.exp(-ratio)
    rho = node / z - 0.5 / z**2
    share = q * np.exp(rho - ratio)
    largest_rho = largest_u / z + 0.5 / z**2
    sizes = np.abs(ratio) + np.abs(1 - inverse)
    sizes = sizes + 2 * share * largest_rho + UNIT
    return np.asarray(4 * UNIT * sizes)


def loss_at(u: Floats, z: Floats, q: Floats) -> Floats:
    """Return L at u."""
    rho = u / z - 0.5 / z**2
    return np.asarray(np.log1p(q * np.expm1(rho)))


def locate_loss(loss: Floats, z: Floats, q: Floats) -> Floats:
    """Return the u at which the loss is L."""
    rho = np.log((np.expm1(loss) + q) / q)
    return np.asarray(z * (rho + 0.5 / z**2))


def log_modulus(slabs: tuple[Floats, Floats], frequency: Floats) -> Floats:
    """Return an upper bound on log |M(o + iy)/M(o)| for all |y| from each `frequency` on."""
    # M(o) as it was bounded from above for the slabs. A uniform law of width w has the
    # characteristic function sin v/v, v = yw/2, up to a phase.
    mass, width = slabs
    half_width = (width / 2)[:, None, :]
    half_phase = frequency[:, :, None] * half_width
    # What lies in no slab counts in full: |M(o + iy)/M(o)| ≤ 1 − Σ mass·(1 − |sin v|/v).
    # |sin v|/v ≤ 1 − v²/6 + v⁴/120, which falls to .2396 at v² = 7.04, above all that follows.
    square = np.minimum(half_phase**2, 7.04)
    missing = np.einsum("ijk,ik->ij", square * (1 / 6 - square / 120), mass)
    # Rounded down, and below 1, so that the bound is from above and its logarithm finite.
    missing = np.minimum(missing * (1 - 1e-9), 1 - 1e-9)
    return np.asarray(np.log1p(-missing))


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

    The third array stands for the share of δ that the steps within their windows make: all of it.
    `count` is the number of nodes. The windows reach `reach` standard deviations beyond both means.
    """
    # All that lies above the windows is told apart outright.
    z, q, times, _, reach = columns
    steps = Steps.of(z, q, -reach, reach + 1 / z, count)
    highest = steps.edge[:, -1:]
    p_mass, q_mass = _upper_tails(steps, highest)
    p_jump = times * p_mass * (1 + _TAIL_ERROR)
    q_jump = times * q_mass * (1 + _TAIL_ERROR)
    zero = np.zeros_like(p_jump)
    outside = _lower_tails(times, reach)
    # Nothing is known of how jumps are taken back: a bound of ∞, and any rate.
    remainder = Remainder(outside, (zero, p_jump), (zero, q_jump), zero + 1, zero + np.inf)
    return steps, remainder, zero + 1


def discretise_cut_windows(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return `discretise_windows` with windows that end a little above ε(δ); above are jumps.

    The third array is about the share of δ that the steps within their windows make.
    """
    z, q, times, delta, reach = columns
    coarse = Steps.of(z, q, -reach, reach + 1 / z, _COARSE)
    no_width = np.zeros((1, 1))
    points = [Points.of(coarse.ratio, no_width, coarse.log_base, times)]
    epsilon = estimate_epsilon(points, delta)
    fall, rate = find_slightest_fall(points, epsilon, delta)
    loss = MARGIN * epsilon + fall
    high = np.minimum(locate_loss(loss, z, q), reach + 1 / z)
    steps = Steps.of(z, q, -reach, high, count, _PANELS)

    outside = _lower_tails(times, reach)
    inside = np.maximum(1 - outside, 0.0)
    # Rounded down: every jump's loss is surely above it.
    jump_loss = loss_at(high, z, q) * (1 - _TAIL_ERROR) - _TAIL_ERROR
    # A bound from above on log E_Q[r^{−θ}] within the window: what the other steps take back.
    law = steps.weights(-rate)
    error, _ = steps.error(-rate, np.zeros_like(rate), law)
    log_body = law.log_total + np.log1p(error)
    jumps = Jumps(*_upper_tails(steps, high), jump_loss, times, log_body)
    remainder = bound_remainder(
        [jumps], rate, _TAIL_ERROR, inside=(inside, inside), outside=outside
    )
    p_low = remainder.p[0]
    q_high = remainder.q[1]
    by_jumps = p_low - np.exp(epsilon) * q_high
    return steps, remainder, np.clip(1 - by_jumps / delta, _LEAST_SHARE, 1.0)


def _lower_tails(times: Floats, reach: Floats) -> Floats:
    """Return a bound on the chance that some step's outcome lies below its window."""
    return np.asarray(times * tail(reach) * (1 + _TAIL_ERROR))


def _upper_tails(steps: Steps, high: Floats) -> tuple[Floats, Floats]:
    """Return the P- and the Q-mass of one step above u = `high`."""
    q_mass = tail(high)
    shifted = tail(high - 1 / steps.z)
    return (1 - steps.q) * q_mass + steps.q * shifted, q_mass
