"""Rare large losses, taken out of a composition: what they add to δ(ε), and from where on.

Where losses have heavy tails no exponential tilt makes δ(ε) large against round-off. So a step's
loss is cut at c, and a composition splits into disjoint events: no loss exceeds c, which is
composed as ever; or some loss does, a jump (J), and then the total exceeds ε all but surely if c
is above ε by more than the other steps ever take back. With L the total loss,

    P(J) − e^ε·Q(J) ≤ sup over A ⊂ J of P(A) − e^ε·Q(A) ≤ P(J) − e^ε·Q(J) + e^ε·Q(J, L ≤ ε),
    Q(J, L ≤ ε) ≤ Σ_steps Q(loss > c)·e^{θ(ε − c)}·Π E_Q[r^{−θ}]      for every θ > 0.

In the add direction, where losses are −L, J adds at most Q(J, L ≤ −ε) and at least 0.

Everything is for K compositions at once: numbers are (K, 1), or floats for one composition. The
lower half of this file only estimates from where on a loss is best called a jump: a poor estimate
widens the bounds and never breaks them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from apiece._types import Bounds, Floats, Mask, Reals
from apiece.numerics.roots import narrowed
from apiece.numerics.rounding import UNIT

MARGIN = 1.02
"""By which jumps begin above the largest ε expected."""
Number: TypeAlias = Any  # a float, or one (K, 1)

_SURELY = 25.0  # e^{−this}: chance that a jump is taken back, where it is not known what matters
_SHARE = 1e-5  # of δ that jumps taken back may add to an upper bound
_RATES = np.geomspace(1e-4, 1e10, 43)
_EXCESS = np.geomspace(1e-5, 1e9, 43)  # orders above 1
_FALLS = np.linspace(0.02, 1.0, 33)
_ROUNDS = 14  # of bisection


class Remainder(NamedTuple):
    """What no window holds: events told apart outright, and jumps J."""

    # outside: a bound on the probability of the former, in both worlds. p, q: that of the latter in
    # the two worlds, each (low, high). log_fall: log of a bound on Q(J, L ≤ 0), which grows as
    # e^{rate·ε}.

    outside: Number
    p: tuple[Number, Number]
    q: tuple[Number, Number]
    rate: Number
    log_fall: Number

    def bounds(self, epsilon: Reals, *, reverse: bool) -> Bounds:
        """Bound what all this adds to δ(ε); the upper bound is convex in e^ε where below P(J)."""
        slack = 8 * UNIT
        with np.errstate(over="ignore", invalid="ignore"):
            back = np.exp(self.log_fall + self.rate * (-epsilon if reverse else epsilon))
            if reverse:
                return Bounds(np.zeros(back.shape), np.minimum(back, self.q[1]) + self.outside)
            grow = np.exp(epsilon)
            low = self.p[0] - grow * (self.q[1] * (1 + slack))
            high = self.p[1] - grow * (self.q[0] * (1 - slack) - back)
        # past the range of e^ε, P(J) alone
        high = np.minimum(np.where(np.isfinite(high), high, np.inf), self.p[1])
        return Bounds(np.maximum(low, 0.0), high + self.outside)


class Jumps(NamedTuple):
    """One kind of step: P- and Q-chance of a loss above `loss`, and how many steps there are."""

    # log_body: a bound on log E_Q[r^{−rate}] over all other losses.

    p: Number
    q: Number
    loss: Number
    times: Number
    log_body: Number


def remainder(
    kinds: Sequence[Jumps],
    rate: Number,
    slack: float,
    *,
    inside: tuple[Number, Number] = (1.0, 1.0),
    outside: Number = 0.0,
    below: Sequence[Jumps] | None = None,
) -> Remainder:
    """Return what the jumps of all kinds of steps add to δ."""
    # rate: the θ of the bound; any positive number gives one. slack: relative error of all chances.
    # inside: of both worlds, the probability at least of what is not told apart outright, without
    # which J is meant. below: the jumps of a dominated composition, where they are others.
    under = kinds if below is None else below
    q_any = sum(kind.times * kind.q for kind in kinds)
    with np.errstate(divide="ignore"):
        log_fall = np.log(q_any * (1 + slack))
        cuts = [np.where(kind.q > 0, kind.loss, np.inf) for kind in kinds]
        log_fall = log_fall - rate * np.min(np.broadcast_arrays(*cuts), axis=0)
        for kind in kinds:
            rest = np.log(kind.q * (1 + slack)) - rate * np.where(kind.q > 0, kind.loss, 0.0)
            log_fall += np.maximum(kind.times * np.logaddexp(kind.log_body, rest), 0.0)
    p_low, q_low = (
        share * _some([(each[world], each.times) for each in of], 1 - slack)
        for share, world, of in ((inside[0], 0, under), (inside[1], 1, kinds))
    )
    p_high, q_high, q_under = (
        _some([(each[world], each.times) for each in of], 1 + slack)
        for world, of in ((0, kinds), (1, kinds), (1, under))
    )
    q_both = (q_low, np.maximum(q_high, q_under))
    return Remainder(outside, (p_low, p_high), q_both, rate, log_fall + 1e-9)


def _some(chances: Sequence[tuple[Number, Number]], factor: float) -> Number:
    """Return 1 − Π(1 − p·factor)^times, rounded in the direction of the factor."""
    with np.errstate(divide="ignore"):
        spared = sum(times * np.log1p(-np.minimum(p * factor, 1.0)) for p, times in chances)
    rounding = (8 + len(chances)) * UNIT
    return np.minimum(-np.expm1(spared) * (1 + np.copysign(rounding, factor - 1)), 1.0)


class Points(NamedTuple):
    """One step's losses as weighted points, ascending: (K, n), and `times` (K, 1)."""

    # width: over how much each point's losses are spread. log_q: of the Q-mass. above: the P- and
    # the Q-mass from each point on, (K, n + 1).

    ratio: Floats
    width: Floats
    log_q: Floats
    times: Floats
    above: tuple[Floats, Floats]

    @classmethod
    def of(cls, ratio: Floats, width: Floats, log_q: Floats, times: Floats) -> Points:
        """Return points with the masses above each of them."""
        none = np.zeros((ratio.shape[0], 1))
        masses = np.exp(log_q + ratio), np.exp(log_q)
        p, q = (np.append(np.cumsum(m[:, ::-1], axis=1)[:, ::-1], none, axis=1) for m in masses)
        return cls(ratio, width, log_q, times, (p, q))

    def tilted(self, orders: Floats) -> Floats:
        """Return the log of each point's share of E_Q[r^λ], for each order λ; (K, orders, n)."""
        order, width = orders[:, None], self.width[:, None, :]
        # spread evenly; exact at orders 0 and 1, since the mean of each point is
        excess = np.abs(order * (order - 1)) * width**2 / 24
        exponent = self.log_q[:, None, :] + order * self.ratio[:, None, :]
        return np.asarray(exponent + np.minimum(np.abs(order) * width / 2, excess))

    def log_moments(self, orders: Floats) -> Floats:
        """Return log E_Q[r^λ] of all steps, for each order λ; (K, orders)."""
        exponent = self.tilted(orders)
        top = exponent.max(axis=2)
        total = np.exp(exponent - top[:, :, None]).sum(axis=2)
        return np.asarray(self.times * (top + np.log(total)))


def log_conversion(excess: Number) -> Number:
    """Return log max over ℓ of e^{−λℓ}(e^ℓ − 1), λ = 1 + excess: from moments to δ."""
    # So δ(ε) ≤ E_Q[r^λ]·e^{this − (λ − 1)ε}.
    return excess * np.log1p(-1 / (1 + excess)) - np.log1p(excess)


def about_epsilon(parts: Sequence[Points], delta: Floats) -> Floats:
    """Return about ε(δ), (K, 1), from the chance of jumps and the moments of what is none."""
    constant = log_conversion(_EXCESS)
    bodies = []
    for part in parts:
        exponent = part.tilted(1 + _EXCESS)
        top = exponent.max(axis=2, keepdims=True)
        sums = np.cumsum(np.exp(exponent - top), axis=2)
        body = np.where(sums > 1e-290, top + np.log(np.maximum(sums, 1e-290)), np.inf)
        bodies.append(part.times[:, :, None] * body)
    whole = sum(body[:, :, -1] for body in bodies) + constant
    high = ((whole - np.log(delta)) / _EXCESS).min(axis=1, keepdims=True)
    fall = slightest_fall(parts, high, delta)[0]

    def beyond(log_epsilon: Floats) -> Mask:
        epsilon = np.exp(log_epsilon)
        moment = constant - _EXCESS * epsilon
        for part, body in zip(parts, bodies, strict=True):
            last = np.maximum((part.ratio <= epsilon + fall).sum(axis=1) - 1, 0)
            moment = moment + body[np.arange(last.size), :, last]
        bound = np.exp(np.minimum(moment.min(axis=1, keepdims=True), 0.0))
        return np.asarray(~(_chance(parts, epsilon + fall, 0) + bound > delta))

    high, _ = narrowed(beyond, np.log(np.maximum(high, 1e-9)), np.log(1e-9), rounds=_ROUNDS)
    return np.asarray(np.exp(high))


def slightest_fall(
    parts: Sequence[Points], epsilon: Floats, delta: Floats
) -> tuple[Floats, Floats]:
    """Return how far losses above a jump hardly ever fall, and the rate of that bound; (K, 1)."""
    # So little that it matters to the bound on δ = δ(ε) by jumps from ε plus it on.
    moments = np.maximum(sum(part.log_moments(-_RATES) for part in parts), 0.0)
    most = ((_SURELY + moments) / _RATES).min(axis=1, keepdims=True)
    falls = most * _FALLS
    surely = falls[:, :, None] * _RATES - moments[:, None, :]
    jumps = np.maximum(_chance(parts, epsilon + falls, 1), 1e-300)
    needed = np.log(jumps) + epsilon - np.log(_SHARE * delta)
    enough = surely.max(axis=2) >= np.minimum(needed, _SURELY)
    first = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    row = np.arange(first.size)
    rate = _RATES[surely[row, first].argmax(axis=1)]
    return falls[row, first][:, None], rate[:, None]


def _chance(parts: Sequence[Points], loss: Floats, world: int) -> Floats:
    """Return about the chance in P (0) or Q (1) that a step's loss exceeds each `loss`, (K, m)."""
    total = np.zeros(loss.shape)
    row = np.arange(loss.shape[0])[:, None]
    for part in parts:
        below = (part.ratio[:, None, :] <= loss[:, :, None]).sum(axis=2)
        total += part.times * part.above[world][row, below]
    return total
