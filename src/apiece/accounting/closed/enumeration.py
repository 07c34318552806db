"""Discrete mechanisms: a profile is a sum over atoms, none of its terms negative.

Compositions are enumerated as long as they have few distinct losses; beyond, the lattice takes
them (`lattice.pairs.discrete_pair`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from apiece._types import Floats
from apiece.accounting.bounds import Bounds, invert
from apiece.mechanisms import Atoms, NormalForm, atoms_of
from apiece.numerics import UNIT

_AT_ONCE = 1 << 20  # numbers in an array
_MOST = 1 << 16  # distinct losses that are enumerated
_LEAST_MASS = 1e-40  # masses below it in both worlds are left out
_SAME = 2.0**-44  # losses nearer than this, relative to the largest, are one


@dataclass(frozen=True, eq=False)
class DiscreteProfile:
    """The profile of a pair on atoms, exact up to rounding and what they leave out."""

    atoms: Atoms

    def delta(self, epsilon: Floats) -> Bounds:
        """Bound the larger of both directions."""
        atoms = self.atoms
        there = atoms.mass * np.exp(atoms.log_ratio)
        remove = _excess(atoms.log_ratio, there, atoms.error, epsilon)
        add = _excess(-atoms.log_ratio, atoms.mass, atoms.error, epsilon)
        lower = np.maximum(remove.lower + atoms.only_p, add.lower + atoms.only_q)
        upper = np.maximum(
            remove.upper + atoms.only_p + atoms.outside_p,
            add.upper + atoms.only_q + atoms.outside_q,
        )
        slack = 4 * UNIT
        return Bounds(lower * (1 - slack), np.minimum(upper * (1 + slack), 1.0))

    def epsilon(self, delta: Floats) -> Bounds:
        """Bound ε(δ) by inverting the sum."""
        return invert(self.delta, delta)


def _excess(loss: Floats, mass: Floats, error: float, epsilon: Floats) -> Bounds:
    """Bound Σ mass·(1 − e^{ε − ℓ})₊ over atoms with losses ℓ, both known to `error`."""
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
    return Bounds(low, high)


def enumerated(steps: NormalForm) -> DiscreteProfile | None:
    """Return the profile of discrete steps; None where one is not discrete, or atoms are many."""
    parts = [(atoms_of(step), times) for step, times in steps]
    known = [(atoms, times) for atoms, times in parts if atoms is not None]
    atoms = _composed(known) if len(known) == len(parts) else None
    return None if atoms is None else DiscreteProfile(atoms)


def _composed(parts: Sequence[tuple[Atoms, int]]) -> Atoms | None:
    """Return the atoms of a composition of pairs, each so many times; None where they are many."""
    total: Atoms | None = None
    for atoms, times in parts:
        power = _power(atoms, times)
        total = power if total is None or power is None else _product(total, power)
        if total is None:
            return None
    return total


def _power(atoms: Atoms, times: int) -> Atoms | None:
    """Return the atoms of `times` equal steps, by squaring."""
    result, base = None, atoms
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


def _product(one: Atoms, other: Atoms) -> Atoms | None:
    if one.mass.size * other.mass.size > _AT_ONCE:
        return None
    loss = np.add.outer(one.log_ratio, other.log_ratio).ravel()
    mass = np.multiply.outer(one.mass, other.mass).ravel()
    faint = mass * np.exp(np.maximum(loss, 0.0)) < _LEAST_MASS
    kept = loss[~faint]
    grid = _SAME * float(np.abs(kept).max(initial=1.0))
    number, index = np.unique(np.round(kept / grid), return_inverse=True)
    if number.size > _MOST:
        return None
    rounding = UNIT * (8 + math.log2(1 + mass.size) + mass.size / max(number.size, 1))
    return Atoms(
        np.asarray(number * grid, dtype=np.float64),
        np.bincount(index, mass[~faint], number.size).astype(np.float64),
        only_p=_either(one.only_p, other.only_p),
        only_q=_either(one.only_q, other.only_q),
        outside_p=one.outside_p + other.outside_p + _LEAST_MASS * int(faint.sum()),
        outside_q=one.outside_q + other.outside_q + _LEAST_MASS * int(faint.sum()),
        error=one.error + other.error + grid + rounding,
    )


def _either(first: float, second: float) -> float:
    """Return the chance of either of two independent events."""
    return first + (1 - first) * second
