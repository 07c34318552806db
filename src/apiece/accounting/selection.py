"""Selection: what the best of a random number of runs costs, from the profile of one run.

Write q, q′ for the densities of one run's output in two neighbouring worlds, F(y) for the chance
of an output that is no better than y, and f(t) = E[t^K]. Outputs are ordered by their scores, ties
by a coin, so that F is continuous. The best of K runs has the density A = q·f′(F): the best is y
where one run is y and the K − 1 others are no better.

Let G(u) be the greatest power of a test with u false positives. "Better than y" is a test, so that
u = 1 − F(y) and u′ = 1 − F′(y) have u′ ≤ G(u) ≤ a·u + b on every line (a, b) = (e^x, δ(x)), for
any real x. With h(u) = log f′(1) − log f′(1 − u), which grows with u, A and A′ have

    f′(F)/f′(F′) = e^{h(u′) − h(u)} ≤ e^{C(v)} for u ≤ v,   C(v) = sup_{u ≤ v} h(G(u)) − h(u).

**Hockey-stick.** (A − e^ε·A′)₊ ≤ f′(F)·(q − e^{ε − C(u)}·q′)₊ at each y. As f′(F) is f′(0) and
the integral of f″ up to F, and C does not fall with v,

    δ_A(ε) ≤ f′(0)·δ(ε − C(1)) + ∫ f″(1 − v)·min(δ(ε − C(v)), v) dv,

since outputs with u ≤ v have chance v, and what (q − e^x·q′)₊ is over any outputs is at most δ(x).
On a grid of v each factor is taken at the end where it is larger, so that a sum replaces the
integral. With one v and one line this is Theorem 6 of Koskela, Redberg and Wang 2024.

**Rényi.** E_{A′}[(A/A′)^α] ≤ e^{(α−1)·D_α}·sup_u f′(1 − u)^α·f′(1 − G(u))^{1−α}. With lines from
Rényi divergences this is Theorems 2 and 6 of Papernot and Steinke 2022.

**Suprema.** On one line h(a·u + b) − h(u) is monotone in u for both laws, and the Rényi exponent
rises and then falls; so both have closed forms. For any one line they are upper bounds, and the
least over lines is taken.

**Several mechanisms.** Where each run draws one of several at random and says which, both worlds'
outputs are mixtures with the same weights: δ and the moments of a run are at most the largest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from apiece._types import Bounds, Floats
from apiece.accounting.bounds import Inverted, Profile, evaluate_ascending
from apiece.mechanisms import Runs

# Covers the rounding of a few operations, and of E[K] by its rate.
_UP = 1 + 1e-9
# ε at which the profile of a run is looked at.
_NODES = np.concatenate(([0.0], np.geomspace(1e-4, 60.0, 900)))
# A δ from which on no larger ε is looked at.
_NOTHING = 1e-25
# Levels v, falling.
_LEVELS = np.concatenate((np.geomspace(1.0, 1e-12, 240), [0.0]))


def _lines(nodes: Floats, delta: Floats) -> tuple[Floats, Floats]:
    """Return (a, b) of lines above the greatest power of one run, from its δ at nodes ≥ 0."""
    # By the mirrored test, G(u) ≤ 1 − e^{−x}(1 − δ(x) − u); and G is at most 1.
    mirrored = np.exp(-nodes)
    slope = np.concatenate((np.exp(nodes), mirrored, [0.0]))
    offset = np.concatenate((delta, 1 - mirrored * (1 - delta), [1.0]))
    return slope, np.minimum(offset * _UP, 1.0)


def _follow_profile(profile: Profile) -> tuple[Floats, Floats]:
    """Return nodes of ε, and δ there from above, up to where nothing is left of it."""

    def is_enough(_: Floats, delta: Bounds) -> bool:
        return float(delta.upper[-1]) <= _NOTHING

    nodes, bounds = evaluate_ascending(profile.delta, _NODES, is_enough)
    return nodes, bounds.upper


def _continue_profile(delta: Floats, size: int) -> Floats:
    """Return δ at `size` nodes: beyond where it was followed it is at most what it was there."""
    return np.pad(delta, (0, size - delta.size), mode="edge")


def on_chords(nodes: Floats, delta: Floats, epsilon: Floats) -> Floats:
    """Return an upper bound on a profile at ε ≥ 0 from upper bounds at ascending nodes from 0 on.

    A profile is convex in e^ε, so that it lies below the chords that are straight in e^ε. In ε it
    is concave between the losses of a mechanism with few outcomes, and lies above its chords.
    """
    number = np.searchsorted(nodes, epsilon, side="right")
    end = np.clip(number, 1, nodes.size - 1)
    low = nodes[end - 1]
    high = nodes[end]
    # Past the last node the profile is at most what it is there.
    epsilon = np.minimum(epsilon, high)
    # Both weights are quotients of differences of exponentials, so that neither loses digits.
    high_weight = np.expm1(epsilon - low) / np.expm1(high - low)
    low_weight = np.expm1(epsilon - high) / np.expm1(low - high)
    low_part = delta[end - 1] * low_weight
    high_part = delta[end] * high_weight
    return np.asarray(low_part + high_part)


@dataclass(frozen=True, eq=False)
class SelectedProfile(Inverted):
    """An upper bound on the profile of the best of some runs, by hockey-sticks; the lower is 0."""

    # 0 and rising.
    nodes: Floats
    # δ of one run there, from above.
    base: Floats
    # C(v) at each level v.
    shift: Floats
    # f′(0), then what f′ rises by between levels.
    weight: Floats

    @classmethod
    def of(cls, profiles: Sequence[Profile], runs: Runs) -> SelectedProfile:
        """Return the bound for runs whose profile is one of these."""
        parts = [_follow_profile(profile) for profile in profiles]
        # All are prefixes of one list of nodes: the longest holds the others.
        nodes = max((part_nodes for part_nodes, _ in parts), key=len)
        base = np.max([_continue_profile(delta, nodes.size) for _, delta in parts], axis=0)
        slope, offset = _lines(nodes, base)
        level_decay = runs.decay(_LEVELS)
        line_decay = runs.decay(slope * _LEVELS[:, None] + offset)
        # On one line h(a·u + b) − h(u) is monotone: its supremum is at u = v or at u = 0.
        level_end = line_decay - level_decay[:, None]
        shift = np.maximum(level_end, runs.decay(offset)).min(axis=1)
        density = runs.mean * np.exp(-level_decay)
        rises = np.maximum(np.diff(density), 0.0)
        weight = np.concatenate((density[:1], rises))
        # C at the upper end of each layer, where it is larger.
        shift = np.concatenate((shift[:1], shift[:-1]))
        return cls(nodes, base, shift * _UP + 1e-12, weight * _UP)

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε)."""
        upper = np.empty(epsilon.shape)
        # Outputs with u ≤ v have chance v.
        cap = np.concatenate(([1.0], _LEVELS[:-1]))
        for start in range(0, epsilon.size, 1000):
            part = slice(start, start + 1000)
            run_delta = self._run_delta(epsilon[part, None] - self.shift)
            upper[part] = np.minimum(run_delta, cap) @ self.weight
        return Bounds(np.zeros(epsilon.shape), np.minimum(upper * _UP, 1.0))

    def _run_delta(self, x: Floats) -> Floats:
        """Return an upper bound on δ of one run, at any real x."""
        # Below 0 by mirroring: δ(−x) = 1 − e^{−x} + e^{−x}·δ(x).
        size = np.abs(x)
        delta = on_chords(self.nodes, self.base, size)
        shrink = np.exp(-size)
        mirrored = -np.expm1(-size) + shrink * delta
        return np.where(x >= 0, delta, mirrored)


def selected_divergences(
    divergences: Sequence[Callable[[Floats], Floats]],
    profiles: Sequence[Profile],
    runs: Runs,
    orders: Floats,
) -> Floats:
    """Return upper bounds on Rényi divergences of the best of some runs, from those of one run."""
    # Fewer nodes: each is a search over orders.
    nodes = _NODES[::15]
    delta = np.max([profile.delta(nodes).upper for profile in profiles], axis=0)
    slope, offset = _lines(nodes, delta)
    run = np.max([divergence(orders) for divergence in divergences], axis=0)
    log_gain = np.empty(orders.shape)
    for index, alpha in np.ndenumerate(orders):
        lowest = np.zeros(slope.shape)
        highest = np.ones(slope.shape)
        u = np.stack([lowest, highest])
        if runs.shape is not None:
            # Where the exponent is stationary, if within [0, 1].
            rise = (alpha - 1) * slope - alpha * (1 + runs.rate * offset)
            with np.errstate(divide="ignore", invalid="ignore"):
                stationary = np.nan_to_num(rise / (runs.rate * slope))
            u = np.concatenate([u, np.clip(stationary, 0.0, 1.0)[None]])
        line_decay = runs.decay(slope * u + offset)
        exponent = (alpha - 1) * line_decay - alpha * runs.decay(u)
        log_gain[index] = float(exponent.max(axis=0).min())
    gain = (math.log(runs.mean) + log_gain) / (orders - 1)
    return np.asarray((run + gain) * _UP)
