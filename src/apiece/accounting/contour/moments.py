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
    about_epsilon,
    remainder,
    slightest_fall,
)
from apiece.numerics.normal import tail
from apiece.numerics.rounding import UNIT

_RULE = 2**14 * UNIT  # relative accuracy of the rule's nodes and weights
_WIDEST = 1.2  # angle θ at which the integrand is bounded
_SHARES = np.array((1.0, 0.6, 0.3))  # of the angle that seems best, which are tried
_BORDERS = (0.3, 0.3, 0.4)  # shares of u, of the rise of losses to come, and of losses in borders
_EARLY = 6.0  # nats before q·e^ρ = 1, from where on losses are about to rise
_HEIGHT = 4.0  # largest a
_SLABS = 64


@lru_cache(maxsize=32)
def gauss_legendre(count: int) -> tuple[Floats, Floats]:
    """Return distances from the ends ∓1 of the nodes below and above 0, and their weights."""
    # count: even. For a node at 1 − t, with P_k(1 − t) by the recurrence of its differences, in
    # which nothing cancels near the ends: distances and weights are right to a few hundred units
    # there too. The weight is taken from P', by which an error of its node counts once, not `count`
    # times.
    # off by 1e-8 at most, so that two steps of Newton's suffice; the first gives the weights' nodes
    zero = _bessel_zeros(count // 2) / (count + 0.5)
    place = zero + (zero / np.tan(zero) - 1) / (8 * zero * (count + 0.5) ** 2)
    t = 2 * np.sin(place / 2) ** 2
    for _ in range(2):
        before, value = np.ones_like(t), 1 - t
        fall = -t
        for k in range(1, count):
            fall = (k * fall - (2 * k + 1) * t * value) / (k + 1)
            before, value = value, value + fall
        at, slope = t, count * (before - (1 - t) * value)
        t = at + value * at * (2 - at) / slope
    return t, 2 * at * (2 - at) / slope**2


_FIRST_ZEROS = (2.404825557695773, 5.520078110286311, 8.653727912911013, 11.791534439014281)


def _bessel_zeros(count: int) -> Floats:
    """Return the first zeros of J₀, to 2e-9; McMahon's expansion but for the first of them."""
    eighth = 1 / (8 * np.pi * (np.arange(count) + 0.75))
    zero = 1 / (8 * eighth) + eighth - 124 / 3 * eighth**3 + 120928 / 15 * eighth**5
    zero -= 401743168 / 105 * eighth**7
    zero[:4] = _FIRST_ZEROS[:count]
    return np.asarray(zero)


def nodes_needed(z: Floats, length: Floats, log_error: Floats, angle: float) -> Floats:
    """Return how many nodes resolve a window of u of some length about to an error."""
    height = np.minimum(angle * z, _HEIGHT)
    return np.asarray((height**2 - log_error) / (2 * np.arcsinh(2 * height / length)))


class Weights(NamedTuple):
    """The tilted law on the nodes: shares, log M(o), mean and variance of the loss."""

    share: Floats
    log_total: Floats
    mean: Floats
    variance: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """One step each of K mechanisms, in the remove or the add direction, on the nodes of a rule."""

    # All arrays are (K, 1), or (K, nodes), or (K, cells + 1) for `edge`, ascending u, and the
    # losses there. sign: 1 in the remove direction, where losses are L, −1 in the other, where
    # losses are −L and the second measure is P. wrong: bounds on the rounding errors of L. panels:
    # each has as many nodes, and as many cells, equally spaced.

    z: Floats
    q: Floats
    sign: int
    node: Floats
    log_base: Floats
    ratio: Floats
    edge: Floats
    edge_ratio: Floats
    wrong: Floats
    panels: int

    @classmethod
    def of(
        cls, z: Floats, q: Floats, low: Floats, high: Floats, count: int, panels: int = 1
    ) -> Steps:
        """Return the steps in the remove direction, of (K, 1) arrays, on windows of u."""
        # count: of nodes, so many times the number of panels.
        border = _borders(z, q, low, high, panels)
        left, right = border[:, :-1, None], border[:, 1:, None]
        end, weight = gauss_legendre(count // panels)
        half = (right - left) / 2
        node = np.concatenate([left + half * end, (right - half * end)[:, :, ::-1]], axis=2)
        node = node.reshape(z.size, -1)
        log_weight = np.log(np.concatenate([weight, weight[::-1]]) / math.sqrt(2 * math.pi))
        log_base = (np.log(half) + log_weight).reshape(z.size, -1) - node**2 / 2
        cell = left + (right - left) * np.linspace(0.0, 1.0, _SLABS // panels + 1)[:-1]
        edge = np.append(cell.reshape(z.size, -1), high, axis=1)
        ratio = loss_at(node, z, q)
        inverse = np.exp(-ratio)
        share = q * np.exp(node / z - 0.5 / z**2 - ratio)
        inner = np.maximum(np.abs(low), np.abs(high)) / z + 0.5 / z**2
        wrong = 4 * UNIT * (np.abs(ratio) + np.abs(1 - inverse) + 2 * share * inner + UNIT)
        return cls(z, q, 1, node, log_base, ratio, edge, loss_at(edge, z, q), wrong, panels)

    def reversed(self) -> Steps:
        """Return the same steps in the add direction."""
        return replace(self, sign=-self.sign)

    def largest(self, times: Floats) -> Floats:
        """Return a bound on the total loss: in the add direction −log(1 − q) a step."""
        most = -times * np.log1p(-self.q) * (1 + 4 * UNIT)
        return np.asarray(most if self.sign < 0 else np.full_like(most, np.inf))

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
        """Return e and f: M at order + iy has an error of at most (e + |y|·f)·M(order)."""
        # For |y| ≤ `largest`; quadrature and rounding, that of each node's place and loss counted.
        phase = (weights.share * self.wrong).sum(axis=1, keepdims=True)
        size = np.abs(self.node) + np.abs(self.edge[:, :1]) + np.abs(self.edge[:, -1:])
        shift = 4 * UNIT * (weights.share * np.abs(self.node) * size)
        rounding = np.abs(order) * phase + shift.sum(axis=1, keepdims=True)
        rounding += UNIT * (32 + np.abs(weights.log_total) + self.node.shape[1])
        return rounding + self._quadrature(order, largest, weights.log_total) + _RULE, phase

    def _quadrature(self, order: Floats, largest: Floats, log_total: Floats) -> Floats:
        """Return the quadrature's error relative to M(order), each panel's least over ellipses."""
        border = self.edge[:, :: _SLABS // self.panels]
        half = np.maximum(np.diff(border, axis=1) / 2, 1e-12)[:, :, None]
        theta = self._angles(border, half, largest)
        height = theta * self.z[:, :, None]
        grow = np.arcsinh(height / half)
        y, down = largest[:, :, None], np.maximum(-order, 0.0)[:, :, None]
        by_share = self.q[:, :, None] < 0.5
        power = np.where(by_share, y * np.tan(theta) + 2 * down * np.tan(theta / 2) ** 2, 0.0)
        beyond = half * (np.cosh(grow) - 1)
        log_most = self._largest(order[:, :, None, None], power[..., None], beyond) + height**2 / 2
        log_most += np.where(by_share, 0.0, y * theta - down * np.log(np.cos(theta / 2)))
        nodes = self.node.shape[1] // self.panels
        log_error = log_most - 2 * nodes * grow - np.log(-np.expm1(-2 * grow))
        best = log_error.min(axis=2) - log_total
        scale = 64 / 15 / math.sqrt(2 * math.pi) * half[:, :, 0]
        return np.asarray((scale * np.exp(np.minimum(best, 700.0))).sum(axis=1, keepdims=True))

    def _angles(self, border: Floats, half: Floats, largest: Floats) -> Floats:
        """Return some angles θ for each panel, (K, panels, 3), of which one is likely the best."""
        # Where e^{y·p·θ} and the rule's e^{2n·arcsinh(θz/half)} grow alike.
        right = border[:, 1:]
        share = self.q * np.exp(right / self.z - 0.5 / self.z**2 - loss_at(right, self.z, self.q))
        fast = np.maximum(largest * np.where(self.q < 0.5, share, 1.0), 1e-9)
        ratio = half[:, :, 0] / self.z
        nodes = self.node.shape[1] // self.panels
        theta = ratio * np.sqrt(np.maximum((2 * nodes / (ratio * fast)) ** 2 - 1, 0.0))
        theta = np.clip(theta, 1e-3, np.minimum(_WIDEST, _HEIGHT / self.z))
        return np.asarray(theta[:, :, None] * _SHARES)

    def _largest(self, order: Floats, power: Floats, beyond: Floats) -> Floats:
        """Return upper bounds on −u²/2 + order·L + power·p over panels and `beyond` their ends."""
        # (K, panels, angles); the arguments too, the first two with a dimension for cells.
        shape = (self.z.size, self.panels, 1, _SLABS // self.panels)
        cells = [values[:, :-1].reshape(shape) for values in (self.edge, self.edge_ratio)]
        cells += [values[:, 1:].reshape(shape) for values in (self.edge, self.edge_ratio)]
        first, first_ratio = (values[..., :1] for values in cells[:2])
        last, last_ratio = (values[..., -1:] for values in cells[2:])
        z, q = self.z[:, :, None, None], self.q[:, :, None, None]
        before, after = first - beyond[..., None], last + beyond[..., None]
        spare = -np.log1p(-np.minimum(q, 0.5))  # of log r − log(1 − q), where that bounds p

        def most(low: Floats, low_ratio: Floats, high: Floats, high_ratio: Floats) -> Floats:
            nearest = np.maximum(np.maximum(low, -high), 0.0)
            own = np.maximum(order * low_ratio, order * high_ratio)
            split = own + power * np.minimum(1.0, np.maximum(high_ratio + spare, 0.0))
            whole = order + power
            joint = np.maximum(whole * low_ratio, whole * high_ratio) + power * spare
            return np.asarray((np.minimum(split, joint) - nearest**2 / 2).max(axis=3))

        inside = most(*cells)
        left = most(before, loss_at(before, z, q), first, first_ratio)
        right = most(last, last_ratio, after, loss_at(after, z, q))
        return np.maximum(np.maximum(left, right), inside) + 1e-9

    def slabs(self, order: Floats, log_most: Floats) -> tuple[Floats, Floats]:
        """Return masses and widths of uniform laws of the loss that the tilted law contains."""
        # log_most: an upper bound on log M(order). The density of the loss is bounded from below in
        # each cell, then made unimodal, and is then a mixture of nested uniform ones.
        left, right = self.edge[:, :-1], self.edge[:, 1:]
        farthest = np.maximum(np.abs(left), np.abs(right))
        ratio = np.minimum(order * self.edge_ratio[:, :-1], order * self.edge_ratio[:, 1:])
        # the loss rises with u by at most p/z, p = q·e^ρ/r at the right end
        steepest = np.log(self.q / self.z) + right / self.z - 0.5 / self.z**2
        level = np.exp(ratio - farthest**2 / 2 - log_most - steepest + self.edge_ratio[:, 1:])
        level *= (1 - 1e-9) / math.sqrt(2 * math.pi)
        mode = level.argmax(axis=1, keepdims=True)
        place = np.arange(_SLABS)
        rising = np.minimum.accumulate(np.where(place <= mode, level, np.inf)[:, ::-1], axis=1)
        falling = np.minimum.accumulate(np.where(place >= mode, level, np.inf), axis=1)
        level = np.where(place <= mode, rising[:, ::-1], falling)
        # the slab of each level reaches over all cells that are as high
        height = np.sort(level, axis=1)
        begin = (level[:, None, :] < height[:, :, None]) & (place < mode)[:, None, :]
        after = (level[:, None, :] < height[:, :, None]) & (place > mode)[:, None, :]
        first, last = begin.sum(axis=2), _SLABS - after.sum(axis=2)
        high, low = (np.take_along_axis(self.edge_ratio, k, axis=1) for k in (last, first))
        width = high - low - 64 * UNIT * (np.abs(high) + np.abs(low))
        width = np.maximum(width, 0.0) * (1 - 1e-9)
        return np.diff(height, axis=1, prepend=0.0) * width, width


def _borders(z: Floats, q: Floats, low: Floats, high: Floats, panels: int) -> Floats:
    """Return the borders of panels: closer where losses are about to rise, and where they do."""
    if panels == 1:
        return np.append(low, high, axis=1)
    fine = low + (high - low) * np.linspace(0.0, 1.0, 257)
    rise = np.logaddexp(0.0, fine / z - 0.5 / z**2 + np.log(q) + _EARLY)
    place = np.zeros_like(fine)
    for share, each in zip(_BORDERS, (fine, rise, loss_at(fine, z, q)), strict=True):
        place += share * (each - each[:, :1]) / (each[:, -1:] - each[:, :1])
    evenly = np.linspace(0.0, 1.0, panels + 1)
    border = np.stack([np.interp(evenly, *row) for row in zip(place, fine, strict=True)])
    border[:, 0], border[:, -1] = low[:, 0], high[:, 0]
    return border


def loss_at(u: Floats, z: Floats, q: Floats) -> Floats:
    """Return L at u."""
    return np.asarray(np.log1p(q * np.expm1(u / z - 0.5 / z**2)))


def place_of(loss: Floats, z: Floats, q: Floats) -> Floats:
    """Return the u at which the loss is L."""
    return np.asarray(z * (np.log((np.expm1(loss) + q) / q) + 0.5 / z**2))


def log_modulus(slabs: tuple[Floats, Floats], frequency: Floats) -> Floats:
    """Return an upper bound on log |M(o + iy)/M(o)| for all |y| from each `frequency` on."""
    # M(o) as it was bounded from above for the slabs.
    mass, width = slabs
    phase = np.minimum((frequency[:, :, None] * (width / 2)[:, None, :]) ** 2, 7.04)
    # |sin v|/v ≤ 1 − v²/6 + v⁴/120, which falls to .2396 at v² = 7.04, above all that follows
    lost = np.einsum("ijk,ik->ij", phase * (1 / 6 - phase / 120), mass)
    return np.asarray(np.log1p(-np.minimum(lost * (1 - 1e-9), 1 - 1e-9)))


OUTSIDE = 1e-6
"""Share of δ that may be told apart outright, on either side."""
_COARSE = 112  # nodes for estimates
_PANELS = 32  # of a window that is cut
_LEAST_SHARE = 0.05  # of δ, that what is no jump is taken for
_SLACK = 1e-12  # relative error of normal tails


def whole(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return the steps of (K, 1) columns (z, q, T, δ, reach), what is outside, and 1."""
    # count: of nodes. The windows reach so many standard deviations beyond both means; all that
    # lies above them is told apart outright.
    z, q, times, _, reach = columns
    steps = Steps.of(z, q, -reach, reach + 1 / z, count)
    p, q = (times * tail * (1 + _SLACK) for tail in _tails(steps, steps.edge[:, -1:]))
    none = np.zeros_like(p)
    outside = _below(times, reach)
    return steps, Remainder(outside, (none, p), (none, q), none + 1, none + np.inf), none + 1


def cut(columns: Floats, count: int) -> tuple[Steps, Remainder, Floats]:
    """Return the same with windows that end a little above ε(δ); all above is called jumps."""
    # The third is about the share of δ that the steps within their windows make.
    z, q, times, delta, reach = columns
    coarse = Steps.of(z, q, -reach, reach + 1 / z, _COARSE)
    points = [Points.of(coarse.ratio, np.zeros((1, 1)), coarse.log_base, times)]
    epsilon = about_epsilon(points, delta)
    fall, rate = slightest_fall(points, epsilon, delta)
    loss = MARGIN * epsilon + fall
    high = np.minimum(place_of(loss, z, q), reach + 1 / z)
    steps = Steps.of(z, q, -reach, high, count, _PANELS)

    outside = _below(times, reach)
    inside = np.maximum(1 - outside, 0.0)
    beyond = loss_at(high, z, q) * (1 - _SLACK) - _SLACK
    law = steps.weights(-rate)
    body = law.log_total + np.log1p(steps.error(-rate, np.zeros_like(rate), law)[0])
    jumps = Jumps(*_tails(steps, high), beyond, times, body)
    rest = remainder([jumps], rate, _SLACK, inside=(inside, inside), outside=outside)
    rare = rest.p[0] - np.exp(epsilon) * rest.q[1]
    return steps, rest, np.clip(1 - rare / delta, _LEAST_SHARE, 1.0)


def _below(times: Floats, reach: Floats) -> Floats:
    """Return a bound on the chance that some step's outcome lies below its window."""
    return np.asarray(times * tail(reach) * (1 + _SLACK))


def _tails(steps: Steps, high: Floats) -> tuple[Floats, Floats]:
    """Return the P- and the Q-mass of one step above u = `high`."""
    above = tail(high)
    return (1 - steps.q) * above + steps.q * tail(high - 1 / steps.z), above
