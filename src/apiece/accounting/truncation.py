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
from apiece.numerics.roots import bisect
from apiece.numerics.rounding import UNIT

MARGIN = 1.02
"""Factor by which jumps begin above the largest ε expected."""
Number: TypeAlias = Any  # a float, or one (K, 1)

# Nats: a jump is taken back with a chance of e^{−this} where it is not known what matters.
_SURELY = 25.0
# Share of δ that jumps taken back may add to an upper bound.
_SHARE = 1e-5
# Orders −θ, negated, and orders λ − 1 that are tried.
_RATES = np.geomspace(1e-4, 1e10, 43)
_EXCESS_ORDERS = np.geomspace(1e-5, 1e9, 43)
# Shares of the largest fall that are tried.
_FALL_SHARES = np.linspace(0.02, 1.0, 33)
# Rounds of bisection.
_ROUNDS = 14
# A sum of shares below it has lost its digits.
_LEAST_SUM = 1e-290


class Remainder(NamedTuple):
    """What no window holds: events told apart outright, and jumps J."""

    # A bound on the probability of events told apart outright, in both worlds.
    outside: Number
    # The probability of a jump in the two worlds, each (low, high).
    p: tuple[Number, Number]
    q: tuple[Number, Number]
    # Log of a bound on Q(J, L ≤ 0), which grows as e^{rate·ε}.
    rate: Number
    log_fall: Number

    def bounds(self, epsilon: Reals, *, reverse: bool) -> Bounds:
        """Bound what all this adds to δ(ε); the upper bound is convex in e^ε where below P(J)."""
        slack = 8 * UNIT
        # In the add direction losses are −L: J adds Q(J, L ≤ −ε) at most.
        loss = -epsilon if reverse else epsilon
        with np.errstate(over="ignore", invalid="ignore"):
            # A bound on Q(J, L ≤ ε), jumps that are taken back.
            back = np.exp(self.log_fall + self.rate * loss)
            # Jumps that are taken back are no more than all jumps.
            if reverse:
                upper = np.minimum(back, self.q[1]) + self.outside
                return Bounds(np.zeros(back.shape), upper)
            grow = np.exp(epsilon)
            p_low, p_high = self.p
            q_low, q_high = self.q
            low = p_low - grow * (q_high * (1 + slack))
            high = p_high - grow * (q_low * (1 - slack) - back)
        # Past the range of e^ε, P(J) alone.
        high = np.where(np.isfinite(high), high, np.inf)
        high = np.minimum(high, p_high)
        return Bounds(np.maximum(low, 0.0), high + self.outside)


class Jumps(NamedTuple):
    """One kind of step: P- and Q-chance of a loss above `loss`, and how many steps there are."""

    p: Number
    q: Number
    loss: Number
    times: Number
    # A bound on log E_Q[r^{−rate}] over all other losses.
    log_body: Number


def bound_remainder(
    kinds: Sequence[Jumps],
    rate: Number,
    slack: float,
    *,
    inside: tuple[Number, Number] = (1.0, 1.0),
    outside: Number = 0.0,
    below: Sequence[Jumps] | None = None,
) -> Remainder:
    """Bound the part of δ that the jumps of all kinds of steps make.

    `rate` is the θ of the bound; any positive number gives one. `slack` is the relative error of
    all chances. `inside` is, for both worlds, the probability at least of what is not told apart
    outright, without which J is meant. `below` are the jumps of a dominated composition, where they
    are others.
    """
    dominated = kinds if below is None else below
    log_fall = _bound_log_fall(kinds, rate, slack)
    # Each probability is rounded in the direction of the bound that it is for: P of the dominated
    # steps enters the lower bound and P of the dominating ones the upper, Q the other way round.
    p_chances = [(kind.p, kind.times) for kind in kinds]
    q_chances = [(kind.q, kind.times) for kind in kinds]
    p_dominated = [(kind.p, kind.times) for kind in dominated]
    q_dominated = [(kind.q, kind.times) for kind in dominated]
    inside_p, inside_q = inside
    p_low = inside_p * _any_chance(p_dominated, 1 - slack)
    q_low = inside_q * _any_chance(q_chances, 1 - slack)
    p_high = _any_chance(p_chances, 1 + slack)
    q_high = np.maximum(_any_chance(q_chances, 1 + slack), _any_chance(q_dominated, 1 + slack))
    q_ends = (q_low, q_high)
    return Remainder(outside, (p_low, p_high), q_ends, rate, log_fall + 1e-9)


def _bound_log_fall(kinds: Sequence[Jumps], rate: Number, slack: float) -> Number:
    """Return the log of a bound on Q(J, L ≤ 0): Chernoff's, of the other steps' losses."""
    # A union over the step that jumps, past the least of all cuts; the moments of the others
    # multiply.
    q_any = sum(kind.times * kind.q for kind in kinds)
    with np.errstate(divide="ignore"):
        log_fall = np.log(q_any * (1 + slack))
        cuts = [np.where(kind.q > 0, kind.loss, np.inf) for kind in kinds]
        log_fall = log_fall - rate * np.min(np.broadcast_arrays(*cuts), axis=0)
        for kind in kinds:
            # A jump of another step has a loss above its cut too.
            cut = np.where(kind.q > 0, kind.loss, 0.0)
            log_jump = np.log(kind.q * (1 + slack)) - rate * cut
            log_moment = np.logaddexp(kind.log_body, log_jump)
            # The step that jumps is counted among the others too: where that would lower the bound,
            # a moment below 1, it counts as 1.
            log_fall += np.maximum(kind.times * log_moment, 0.0)
    return log_fall


def _any_chance(chances: Sequence[tuple[Number, Number]], factor: float) -> Number:
    """Return 1 − Π(1 − p·factor)^times, rounded in the direction of the factor."""
    with np.errstate(divide="ignore"):
        rounded = [(np.minimum(p * factor, 1.0), times) for p, times in chances]
        log_none = sum(times * np.log1p(-p) for p, times in rounded)
    rounding = (8 + len(chances)) * UNIT
    # Up where the factor is above 1, down where it is below.
    outward = 1 + np.copysign(rounding, factor - 1)
    return np.minimum(-np.expm1(log_none) * outward, 1.0)


class Points(NamedTuple):
    """One step's losses as weighted points, ascending: (K, n), and `times` (K, 1)."""

    ratio: Floats
    # Over how much each point's losses are spread.
    width: Floats
    # Log of the Q-mass.
    log_q: Floats
    times: Floats
    # The P- and the Q-mass from each point on, (K, n + 1).
    above: tuple[Floats, Floats]

    @classmethod
    def of(cls, ratio: Floats, width: Floats, log_q: Floats, times: Floats) -> Points:
        """Return points with the masses above each of them."""
        none = np.zeros((ratio.shape[0], 1))

        def sum_above(mass: Floats) -> Floats:
            return np.append(sum_following(mass), none, axis=1)

        p_above = sum_above(np.exp(log_q + ratio))
        q_above = sum_above(np.exp(log_q))
        return cls(ratio, width, log_q, times, (p_above, q_above))

    def log_shares(self, orders: Floats) -> Floats:
        """Return the log of each point's share of E_Q[r^λ], for each order λ; (K, orders, n)."""
        order = orders[:, None]
        width = self.width[:, None, :]
        # Spread evenly; exact at orders 0 and 1, since the mean of each point is.
        spread = np.abs(order * (order - 1)) * width**2 / 24
        largest_spread = np.abs(order) * width / 2
        ratio = self.ratio[:, None, :]
        exponent = self.log_q[:, None, :] + order * ratio
        return np.asarray(exponent + np.minimum(largest_spread, spread))

    def log_moments(self, orders: Floats) -> Floats:
        """Return log E_Q[r^λ] of all steps, for each order λ; (K, orders)."""
        exponent = self.log_shares(orders)
        top = exponent.max(axis=2)
        terms = np.exp(exponent - top[:, :, None])
        total = terms.sum(axis=2)
        return np.asarray(self.times * (top + np.log(total)))


def sum_following(values: Floats) -> Floats:
    """Return, along the second axis, the sums of each entry and all that follow it."""
    backwards = values[:, ::-1]
    return np.cumsum(backwards, axis=1)[:, ::-1]


def log_conversion(excess: Number) -> Number:
    """Return log max over ℓ of e^{−λℓ}(e^ℓ − 1), λ = 1 + excess: from moments to δ."""
    # So δ(ε) ≤ E_Q[r^λ]·e^{this − (λ − 1)ε}. The maximum, (λ − 1)^{λ−1}/λ^λ, is at e^ℓ = λ/(λ − 1).
    return excess * np.log1p(-1 / (1 + excess)) - np.log1p(excess)


def estimate_epsilon(parts: Sequence[Points], delta: Floats) -> Floats:
    """Return about ε(δ), (K, 1), from the chance of jumps and the moments of what is none."""
    constant = log_conversion(_EXCESS_ORDERS)
    # For each order, log moments of the losses up to each point, of all steps of a kind. A sum
    # that has lost its digits counts as ∞.
    bodies = []
    for part in parts:
        exponent = part.log_shares(1 + _EXCESS_ORDERS)
        top = exponent.max(axis=2, keepdims=True)
        sums = np.cumsum(np.exp(exponent - top), axis=2)
        log_sums = top + np.log(np.maximum(sums, _LEAST_SUM))
        body = np.where(sums > _LEAST_SUM, log_sums, np.inf)
        times = part.times[:, :, None]
        bodies.append(times * body)
    # The Rényi conversion of the losses uncut is an ε that is large enough.
    uncut = sum(body[:, :, -1] for body in bodies) + constant
    by_order = (uncut - np.log(delta)) / _EXCESS_ORDERS
    largest = by_order.min(axis=1, keepdims=True)
    fall, _ = find_slightest_fall(parts, largest, delta)

    def is_enough(log_epsilon: Floats) -> Mask:
        """Return where jumps above ε, and the moments below them, make at most δ."""
        epsilon = np.exp(log_epsilon)
        loss = epsilon + fall
        # (K, orders): log of the conversion's bound on δ, by the losses up to the cut alone.
        moment = constant - _EXCESS_ORDERS * epsilon
        for part, body in zip(parts, bodies, strict=True):
            count = (part.ratio <= loss).sum(axis=1)
            highest = np.maximum(count - 1, 0)
            moment = moment + body[np.arange(highest.size), :, highest]
        bound = np.exp(np.minimum(moment.min(axis=1, keepdims=True), 0.0))
        return np.asarray(~(_jump_chance(parts, loss, 0) + bound > delta))

    start = np.log(np.maximum(largest, 1e-9))
    log_epsilon, _ = bisect(is_enough, start, np.log(1e-9), rounds=_ROUNDS)
    return np.asarray(np.exp(log_epsilon))


def find_slightest_fall(
    parts: Sequence[Points], epsilon: Floats, delta: Floats
) -> tuple[Floats, Floats]:
    """Return how far losses above a jump hardly ever fall, and the rate of that bound; (K, 1)."""
    # So little that it matters to the bound on δ = δ(ε) by jumps from ε plus it on.
    moments = np.maximum(sum(part.log_moments(-_RATES) for part in parts), 0.0)
    sure_falls = (_SURELY + moments) / _RATES
    largest = sure_falls.min(axis=1, keepdims=True)
    falls = largest * _FALL_SHARES
    # Nats by which each fall is unlikely, for each rate: Chernoff's θ·fall − log E_Q[r^{−θ}].
    exponents = falls[:, :, None] * _RATES
    nats = exponents - moments[:, None, :]
    jumps = np.maximum(_jump_chance(parts, epsilon + falls, 1), 1e-300)
    needed = np.log(jumps) + epsilon - np.log(_SHARE * delta)
    enough = nats.max(axis=2) >= np.minimum(needed, _SURELY)
    # Falls ascend: the slightest that is enough, or else the largest.
    number = np.where(enough.any(axis=1), enough.argmax(axis=1), -1)
    row = np.arange(number.size)
    chosen_nats = nats[row, number]
    rate = _RATES[chosen_nats.argmax(axis=1)]
    fall = falls[row, number]
    return fall[:, None], rate[:, None]


def _jump_chance(parts: Sequence[Points], loss: Floats, world: int) -> Floats:
    """Return about the chance in P (0) or Q (1) that a step's loss exceeds each `loss`, (K, m)."""
    total = np.zeros(loss.shape)
    row = np.arange(loss.shape[0])[:, None]
    for part in parts:
        ratio = part.ratio[:, None, :]
        below = (ratio <= loss[:, :, None]).sum(axis=2)
        total += part.times * part.above[world][row, below]
    return total
