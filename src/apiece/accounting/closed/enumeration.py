"""Discrete mechanisms: a profile is a sum over atoms, none of its terms negative.

Compositions, and coins before them, are enumerated as long as they have few distinct losses;
beyond, the lattice takes them (`lattice.pairs.discrete_pair`). Both worlds' masses are carried, so
that one that is too small for a double in one world keeps its digits in the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, invert
from apiece.mechanisms import Atoms, Mechanism, NormalForm, Sampled, atoms_of, flatten
from apiece.numerics import UNIT, after_coin

_AT_ONCE = 1 << 20  # numbers in an array
_MOST = 1 << 16  # distinct losses that are enumerated
_LEAST_MASS = 1e-40  # masses below it in both worlds are left out
_SAME = 2.0**-44  # losses nearer than this, relative to the largest, are one


class Outcomes(NamedTuple):
    """A pair (P, Q) as `Atoms`, each outcome's loss with its mass in both worlds."""

    loss: Floats
    p: Floats
    q: Floats
    only_p: float
    only_q: float
    outside_p: float
    outside_q: float
    error: float

    @classmethod
    def of(cls, atoms: Atoms) -> Outcomes:
        """Return the outcomes of one step."""
        root = np.exp(atoms.log_ratio / 2)  # its square may be past the range where a mass is tiny
        return cls(atoms.log_ratio, atoms.mass * root * root, atoms.mass, *atoms[2:])

    def behind(self, coin: float) -> Outcomes:
        """Return those of ((1 − q)Q + qP, Q); an outcome of Q alone then has a finite loss."""
        loss = after_coin(np.append(self.loss, -np.inf), coin)
        q = np.append(self.q, self.only_q)
        p = (1 - coin) * q + coin * np.append(self.p, 0.0)
        rounding = 2.0**-50 * (1 + float(np.abs(loss).max()))
        outside_p = (1 - coin) * self.outside_q + coin * self.outside_p
        masses = coin * self.only_p, 0.0, outside_p, self.outside_q
        return Outcomes(loss, p, q, *masses, self.error + rounding)


@dataclass(frozen=True, eq=False)
class DiscreteProfile:
    """The profile of a pair on atoms, exact up to rounding and what they leave out."""

    outcomes: Outcomes

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""
        loss, p, q, only_p, only_q, outside_p, outside_q, error = self.outcomes
        remove = _excess(loss, p, only_p, error, epsilon)
        add = _excess(-loss, q, only_q, error, epsilon)
        lower = np.maximum(remove.lower, add.lower)
        upper = np.maximum(remove.upper + outside_p, add.upper + outside_q)
        slack = 4 * UNIT
        return Bounds(lower * (1 - slack), np.minimum(upper * (1 + slack), 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the sum."""
        return invert(self.delta, delta)


def _excess(loss: Floats, mass: Floats, only: float, error: float, epsilon: Floats) -> Bounds:
    """Bound `only` + Σ mass·(1 − e^{ε − ℓ})₊ over atoms with losses ℓ, all known to `error`."""
    low, high = np.empty(epsilon.size), np.empty(epsilon.size)
    rows = max(_AT_ONCE // max(loss.size, 1), 1)
    for start in range(0, epsilon.size, rows):
        part = slice(start, start + rows)
        gap = epsilon[part, None] - loss
        spread = error + 4 * UNIT * (1 + np.abs(epsilon[part]))
        value = np.where(gap < 0, -np.expm1(np.minimum(gap, 0.0)) * mass, 0.0).sum(axis=1)
        near = np.where(gap < spread[:, None], mass, 0.0).sum(axis=1)
        slack = (error + loss.size * UNIT) * value + 2 * spread * near
        low[part], high[part] = np.maximum(value - slack, 0.0), value + slack
    return Bounds(low + only * max(1 - error, 0.0), high + only * (1 + error))


def enumerated(steps: NormalForm) -> DiscreteProfile | None:
    """Return the profile of discrete steps; None where one is not discrete, or atoms are many."""
    outcomes = _composed(steps)
    return None if outcomes is None else DiscreteProfile(outcomes)


def _composed(steps: NormalForm) -> Outcomes | None:
    """Return the outcomes of a composition; None where a step is not discrete, or they are many."""
    total: Outcomes | None = None
    for step, times in steps:
        one = _of_step(step)
        power = None if one is None else _power(one, times)
        total = power if total is None or power is None else _product(total, power)
        if total is None:
            return None
    return total


def _of_step(step: Mechanism) -> Outcomes | None:
    atoms = atoms_of(step)
    if atoms is not None:
        return Outcomes.of(atoms)
    match step:
        case Sampled(inner, probability):
            whole = _composed(flatten(inner))
            return None if whole is None else _gathered(whole.behind(probability))
    return None


def _power(outcomes: Outcomes, times: int) -> Outcomes | None:
    """Return the outcomes of `times` equal steps, by squaring."""
    result, base = None, outcomes
    while True:
        if times & 1:
            result = base if result is None else _product(result, base)
            if result is None:
                return None
        times >>= 1
        if not times:
            return result
        squared = _product(base, base)
        if squared is None:
            return None
        base = squared


def _product(one: Outcomes, other: Outcomes) -> Outcomes | None:
    if one.loss.size * other.loss.size > _AT_ONCE:
        return None
    return _gathered(
        Outcomes(
            np.add.outer(one.loss, other.loss).ravel(),
            np.multiply.outer(one.p, other.p).ravel(),
            np.multiply.outer(one.q, other.q).ravel(),
            only_p=_either(one.only_p, other.only_p),
            only_q=_either(one.only_q, other.only_q),
            outside_p=one.outside_p + other.outside_p,
            outside_q=one.outside_q + other.outside_q,
            error=one.error + other.error + 8 * UNIT,
        )
    )


def _gathered(outcomes: Outcomes) -> Outcomes | None:
    """Return outcomes with nearly equal losses counted together; None where they are many."""
    loss, p, q = outcomes[:3]
    faint = np.maximum(p, q) < _LEAST_MASS
    lost = _LEAST_MASS * int(faint.sum())
    kept = loss[~faint]
    grid = _SAME * float(np.abs(kept).max(initial=1.0))
    number, index = np.unique(np.round(kept / grid), return_inverse=True)
    if number.size > _MOST:
        return None
    p, q = (np.bincount(index, m[~faint], number.size).astype(np.float64) for m in (p, q))
    return outcomes._replace(
        loss=np.asarray(number * grid, dtype=np.float64),
        p=p,
        q=q,
        outside_p=outcomes.outside_p + lost,
        outside_q=outcomes.outside_q + lost,
        error=outcomes.error + grid + UNIT * kept.size,
    )


def _either(first: float, second: float) -> float:
    """Return the chance of either of two independent events, to the relative error of both."""
    return first + (1 - first) * second
