"""A coin before a whole composition: profiles that dominate, composed as discrete distributions.

With one coin of probability π before a run whose symmetrised profile is δ, both directions of
add/remove have at most δ_π(ε) = π·δ(log(1 + (e^ε − 1)/π)) for ε ≥ 0. Several such runs are
composed through the discrete pair whose profile interpolates δ_π, linear in e^ε ("connect the
dots"). Upper bounds only.

Source: Balle, Barthe, Gaboardi 2018, Theorem 2 (for the direction (Q, (1−π)Q + πP): with
s = 1 − (1−π)e^ε ≤ π its profile is s·δ(log(πe^ε/s)), at a level at least as high); Doroshenko et
al. 2022 (Connect the dots), for the pair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from apiece.accounting.bounds import Bounds, Floats, Profile
from apiece.errors import RangeError
from apiece.mechanisms import Composed, Mechanism, Repeated, Sampled

_POINTS = 2048  # of one side of the longest lattice
_BEYOND = 1e-17  # δ where a lattice ends; what is left counts as lost
_LONGEST = 300.0
_SLACK = 1 + 1e-10  # outweighs the rounding of sums of at most 1e6 positive terms
_LEAST = 1e-15  # smallest δ that is answered


def is_nested(step: Mechanism) -> bool:
    """Whether `step`, from a flattened mechanism, is a coin before a composition."""
    return isinstance(step, Sampled) and isinstance(step.mechanism, (Repeated, Composed, Sampled))


def profile(steps: tuple[tuple[Mechanism, int], ...]) -> Profile:
    """Return an upper bound on the profile of flattened steps, some of them nested.

    Raises `RangeError` where losses or δ are past the numerical range.
    """
    plain = [Repeated(step, times) for step, times in steps if not is_nested(step)]
    parts = [_Part(_inner(Composed(*plain)), 1.0)] if plain else []
    for step, times in steps:
        if is_nested(step):
            assert isinstance(step, Sampled)
            parts += [_Part(_inner(step.mechanism), step.probability)] * times
    return _composed(tuple(parts))


@lru_cache(maxsize=64)
def _inner(mechanism: Mechanism) -> Profile:
    from apiece.accounting import pld

    return pld.profile(mechanism)


@dataclass(frozen=True, slots=True)
class _Part:
    """One run, of symmetrised profile `inner`, behind one coin."""

    inner: Profile
    probability: float

    def delta(self, epsilon: Floats) -> Floats:
        """Return an upper bound on δ at any real ε, negative ones by the mirror."""
        size = np.abs(epsilon)
        level = _level(size, self.probability)
        high = np.minimum(self.probability * self.inner.delta(level).upper * (1 + 1e-14), 1.0)
        mirror = -np.expm1(-size) + np.exp(-size) * high
        return np.asarray(np.where(epsilon < 0, np.minimum(mirror + 1e-16, 1.0), high))

    def reach(self) -> float:
        """Return an ε beyond which δ is negligible."""
        inner = float(self.inner.epsilon(np.array([_BEYOND])).upper[0])
        if not inner < _LONGEST:
            raise RangeError(f"losses up to {inner:g} before a coin: past the numerical range")
        return math.log1p(self.probability * math.expm1(inner))


def _level(epsilon: Floats, probability: float) -> Floats:
    """Return log(1 + (e^ε − 1)/π), not above the exact value."""
    return np.asarray(np.log1p(np.expm1(epsilon) / probability) * (1 - 1e-15))


@dataclass(frozen=True, slots=True, eq=False)
class ComposedPairs:
    """A discrete pair on a lattice of losses: masses under P, and what has no finite loss."""

    start: float
    step: float
    mass: Floats
    lost: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound δ(ε) from above: Σ over losses ℓ > ε of (1 − e^(ε−ℓ))·p(ℓ), and the lost mass."""
        losses = self.start + self.step * np.arange(self.mass.size)
        after = np.append(np.cumsum(self.mass[::-1])[::-1], 0.0)
        shrunk = self.mass * np.exp(-np.maximum(losses, -_LONGEST))
        weighted = np.append(np.cumsum(shrunk[::-1])[::-1], 0.0)
        first = np.searchsorted(losses, epsilon, side="right")
        value = after[first] * _SLACK - np.exp(epsilon) * weighted[first] / _SLACK
        # between lattice points δ is linear in e^ε, which this formula is
        upper = np.clip(value + self.lost * _SLACK + 1e-18, 0.0, 1.0)
        return Bounds(np.zeros_like(upper), upper)

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) from above, by bisection; ∞ below 1e-15."""
        low = np.zeros(delta.shape)
        high = np.full(delta.shape, max(self.start + self.step * self.mass.size, self.step))
        reached = (self.delta(high).upper <= delta) & (delta >= _LEAST)
        for _ in range(60):
            middle = (low + high) / 2
            keeps = self.delta(middle).upper <= delta
            low, high = np.where(keeps, low, middle), np.where(keeps, middle, high)
        at_zero = self.delta(np.zeros(delta.shape)).upper <= delta
        upper = np.where(at_zero, 0.0, high)
        return Bounds(np.zeros(delta.shape), np.where(reached | at_zero, upper, np.inf))


def _composed(parts: tuple[_Part, ...]) -> ComposedPairs:
    reaches = [part.reach() for part in parts]
    step = max(*reaches, 1e-6) / _POINTS if len(reaches) > 1 else max(reaches[0], 1e-6) / _POINTS
    mass, kept, start = np.ones(1), 1.0, 0
    for part, reach in zip(parts, reaches, strict=True):
        count = math.ceil(reach / step)
        own, lost = _connect(np.arange(-count, count + 1, dtype=np.float64) * step, part)
        # direct, not by FFT: all terms are positive, so every sum keeps its digits
        mass, kept, start = np.convolve(mass, own), kept * (1 - lost), start - count
    return ComposedPairs(step * start, step, mass, max(0.0, 1 - kept) + 1e-18)


def _connect(losses: Floats, part: _Part) -> tuple[Floats, float]:
    """Return masses under P at `losses`, and the mass without finite loss.

    The largest convex function below the bounds is still an upper bound, since the exact profile
    is convex in e^ε. Its slopes are masses under Q, times e^ℓ masses under P.
    """
    x = np.concatenate(([0.0], np.exp(losses)))
    y = np.concatenate(([1.0], np.minimum.accumulate(part.delta(losses))))
    hull = _lower_hull(x, y)
    slope = np.append(np.diff(y[hull]) / np.diff(x[hull]), 0.0)
    mass = np.zeros(losses.size)
    mass[hull[1:] - 1] = np.maximum(np.diff(slope), 0.0) * x[hull[1:]]
    return mass, float(y[-1])


def _lower_hull(x: Floats, y: Floats) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """Return the indices of the vertices of the lower convex hull; x ascending."""
    hull: list[int] = []
    for i in range(x.size):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.array(hull, dtype=np.intp)
