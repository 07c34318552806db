"""Pure ε: where no loss is larger than some number, that is an upper bound at every δ.

All log-ratios of a composition lie between two numbers, which add up, and which a coin brings
nearer to 0. The lower one is 1 − q or more behind any coin, whatever is behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds
from apiece.mechanisms import (
    Gaussian,
    Laplace,
    Mechanism,
    NormalForm,
    Sampled,
    atoms_of,
    flatten,
)
from apiece.numerics import UNIT, after_coin


@dataclass(frozen=True, slots=True)
class PureProfile:
    """What holds of any mechanism none of whose losses exceeds `most`: (most, 0)-DP, no more."""

    most: float

    def delta(self, epsilon: Floats) -> Bounds:
        """Return 0 from the largest loss on, at most 1 below."""
        return Bounds(np.zeros(epsilon.shape), np.where(epsilon >= self.most, 0.0, 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Return 0 and the largest loss."""
        return Bounds(np.zeros(delta.shape), np.full(delta.shape, self.most))


def pure(steps: NormalForm) -> PureProfile | None:
    """Return the profile of pure ε of a composition, None where its losses have no bound."""
    for step, _ in steps:  # asked of each of a plan's thousands of mechanisms
        if isinstance(step.mechanism if isinstance(step, Sampled) else step, Gaussian):
            return None
    least, most = _log_ratios(steps)
    largest = max(-least, most)
    return PureProfile(largest) if largest < math.inf else None


def _log_ratios(steps: NormalForm) -> tuple[float, float]:
    """Return numbers between which all log-ratios of a composition lie, rounded outward."""
    each = [(_of_step(step), times) for step, times in steps]
    least, most = (sum(times * ends[end] for ends, times in each) for end in (0, 1))
    exact = len(each) == 1 and each[0][1] == 1
    return _outward(least, most, 0 if exact else 16 + len(each))


def _of_step(step: Mechanism) -> tuple[float, float]:
    match step:
        case Laplace(scale):
            end = 1 / scale
            if not (end == math.inf or Fraction(end) * Fraction(scale) >= 1):
                end = math.nextafter(end, math.inf)  # the quotient was rounded down
            return -end, end
        case Sampled(inner, q):
            least, most = (float(after_coin(end, q)) for end in _log_ratios(flatten(inner)))
            return _outward(least, most, 16)
    atoms = atoms_of(step)
    if atoms is None or atoms.outside_p or atoms.outside_q:
        return -math.inf, math.inf
    least, most = float(atoms.log_ratio.min(initial=0.0)), float(atoms.log_ratio.max(initial=0.0))
    return (
        -math.inf if atoms.only_q else least - atoms.error,
        math.inf if atoms.only_p else most + atoms.error,
    )


def _outward(least: float, most: float, operations: int) -> tuple[float, float]:
    """Allow for the rounding of some operations; 0 stays 0."""
    return least * (1 + operations * UNIT), most * (1 + operations * UNIT)
