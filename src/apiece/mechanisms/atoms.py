"""Finitely many outcomes: what an accountant needs to know of a discrete mechanism."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from apiece._types import Floats
from apiece.numerics import after_coin


class Atoms(NamedTuple):
    """A pair (P, Q) on points: where the likelihood ratio is what, and how much mass is there.

    Attributes:
        log_ratio: log(P/Q), increasing and finite, one entry a point.
        mass: Of each point, under Q; under P it is mass·e^log_ratio.
        only_p: Mass of P where Q has none.
        only_q: Mass of Q where P has none.
        outside_p: Bound on the mass under P of points that are left out.
        outside_q: The same under Q.
        error: Bound on the relative error of every mass above, under P and Q, and on the absolute
            one of every log-ratio.

    Example:
        >>> Atoms(np.array([0.0]), np.array([1.0])).only_p
        0.0
    """

    log_ratio: Floats
    mass: Floats
    only_p: float = 0.0
    only_q: float = 0.0
    outside_p: float = 0.0
    outside_q: float = 0.0
    error: float = 0.0


class Discrete(Protocol):
    """A mechanism on finitely many outcomes; every accountant takes it by its atoms."""

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without."""


def gathered(log_ratio: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Return the atoms in increasing order, equal log-ratios counted together."""
    values, index = np.unique(log_ratio, return_inverse=True)
    return values, np.bincount(index, mass, values.size).astype(np.float64)


def behind_coin(atoms: Atoms, probability: float) -> Atoms:
    """Return the atoms of ((1 − q)Q + qP, Q): a ratio r becomes 1 − q + q·r under the same Q.

    Args:
        atoms: Those of (P, Q).
        probability: The coin's q, in (0, 1].

    Example:
        >>> coined = behind_coin(Atoms(np.log([0.5, 1.5]), np.array([0.5, 0.5])), 0.5)
        >>> np.exp(coined.log_ratio).round(6).tolist(), coined.mass.tolist()
        ([0.75, 1.25], [0.5, 0.5])
    """
    if probability == 1:
        return atoms
    log_ratio, mass = after_coin(atoms.log_ratio, probability), atoms.mass
    if atoms.only_q > 0:
        log_ratio = np.append(after_coin(-np.inf, probability), log_ratio)
        mass = np.append(atoms.only_q, mass)
    outside_p = (1 - probability) * atoms.outside_q + probability * atoms.outside_p
    return Atoms(
        *gathered(log_ratio, mass),
        only_p=probability * atoms.only_p,
        outside_p=outside_p,
        outside_q=atoms.outside_q,
        error=atoms.error + 2.0**-50 * (1 + float(np.abs(log_ratio).max(initial=0.0))),
    )
