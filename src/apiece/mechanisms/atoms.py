"""Finitely many outcomes: what an accountant needs to know of a discrete mechanism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError
from apiece.numerics.rounding import UNIT, after_coin


class Atoms(NamedTuple):
    """A pair (P, Q) on points: the likelihood ratio at each point, and the mass there.

    Attributes:
        log_ratio: log(P/Q), increasing and finite, one entry a point.
        mass: Of each point, under Q; under P it is mass·e^log_ratio.
        only_p: Mass of P where Q has none.
        only_q: Mass of Q where P has none.
        outside_p: Bound on the mass under P of points that are left out.
        outside_q: Bound on the mass under Q of points that are left out.
        error: Bound on the relative error of every mass above, under P and Q, and on the absolute
            one of every log-ratio.

    Example:
        >>> import numpy as np
        >>> from apiece.mechanisms.atoms import Atoms
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


def merge_atoms(log_ratio: Floats, mass: Floats) -> tuple[Floats, Floats]:
    """Return the atoms in increasing order, equal log-ratios counted together."""
    # Equal ratios are one outcome for every test: their masses add up.
    values, index = np.unique(log_ratio, return_inverse=True)
    return values, np.bincount(index, mass, values.size).astype(np.float64)


def behind_coin(atoms: Atoms, probability: float) -> Atoms:
    """Return the atoms of ((1 − q)Q + qP, Q): a ratio r becomes 1 − q + q·r under the same Q."""
    if probability == 1:
        return atoms
    log_ratio = after_coin(atoms.log_ratio, probability)
    mass = atoms.mass
    # What only Q can show has a finite ratio behind the coin: 1 − q.
    if atoms.only_q > 0:
        # In front, since atoms ascend: log(1 − q) is the least that any ratio becomes.
        log_ratio = np.append(after_coin(-np.inf, probability), log_ratio)
        mass = np.append(atoms.only_q, mass)
    # What is left out mixes as the worlds do.
    outside_p = (1 - probability) * atoms.outside_q + probability * atoms.outside_p
    largest = float(np.abs(log_ratio).max(initial=0.0))
    return Atoms(
        *merge_atoms(log_ratio, mass),
        only_p=probability * atoms.only_p,
        outside_p=outside_p,
        outside_q=atoms.outside_q,
        error=atoms.error + 2.0**-50 * (1 + largest),
    )


# How far a sum of chances may be from 1.
_SUM_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, init=False)
class Finite:
    """A mechanism with finitely many outcomes: their chances with the record, and without it.

    An outcome that is possible in one world only costs an infinite loss there: then no finite ε
    holds at a δ below its chance. For randomized response, the exponential mechanism,
    report-noisy-max or the votes of PATE, give the pair of worlds that is worst for the record;
    that it is the worst is the caller's claim.

    Args:
        with_record: The chance of each outcome with the record, summing to 1 within 1e-9; what they
            miss is made up in proportion.
        without_record: The chance of each outcome without the record, in the order of
            `with_record`.

    Raises:
        InputError: For chances that are negative or not finite, that do not sum to 1, or that are
            not as many in both worlds.

    Example:
        >>> from apiece.mechanisms import Finite
        >>> Finite([0.75, 0.25], [0.5, 0.5]).with_record
        (0.75, 0.25)
        >>> Finite.randomized_response(1.0986122886681098, 2).with_record
        (0.75, 0.25)
    """

    with_record: tuple[float, ...]
    without_record: tuple[float, ...]

    def __init__(self, with_record: npt.ArrayLike, without_record: npt.ArrayLike) -> None:
        p = _check_chances("with_record", with_record)
        q = _check_chances("without_record", without_record)
        if p.size != q.size:
            raise InputError(
                f"with_record, without_record: {p.size} and {q.size} outcomes; give the chances of "
                "the same outcomes in both worlds"
            )
        object.__setattr__(self, "with_record", tuple(p.tolist()))
        object.__setattr__(self, "without_record", tuple(q.tolist()))

    @classmethod
    def randomized_response(cls, epsilon: float, answers: int = 2) -> Finite:
        """Return randomized response: the truth with e^ε times the chance of each other answer.

        The pair of two worlds with different true answers; the other answers are one outcome.

        Args:
            epsilon: Its pure ε, positive and finite.
            answers: How many answers there are, at least 2.

        Raises:
            InputError: For values out of bounds.
        """
        epsilon = _check.positive("epsilon", epsilon)
        answers = _check.count("answers", answers, least=2)
        lie = 1 / (np.exp(epsilon) + answers - 1)
        truth = 1 - (answers - 1) * lie
        # Outcomes: the one world's truth, the other world's, and any other answer.
        neither = [] if answers == 2 else [(answers - 2) * lie]
        return cls([truth, lie, *neither], [lie, truth, *neither])

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without."""
        p = np.array(self.with_record)
        q = np.array(self.without_record)
        in_both = (p > 0) & (q > 0)
        p_both = p[in_both]
        q_both = q[in_both]
        with np.errstate(over="ignore", divide="ignore"):
            # A difference of two logarithms is off by the rounding of both, however near to 1 the
            # ratio is.
            ratio = p_both / q_both
            # Near the ends of the range a quotient loses digits that a difference keeps.
            far = ~((ratio > 1e-300) & (ratio < 1e300))
            difference = np.log(p_both) - np.log(q_both)
            log_ratio = np.where(far, difference, np.log(ratio))
        largest = float(np.abs(log_ratio).max(initial=0.0))
        return Atoms(
            *merge_atoms(log_ratio, q_both),
            only_p=float(p[q == 0].sum()),
            only_q=float(q[p == 0].sum()),
            error=8 * UNIT * (1 + largest + p.size),
        )


def _check_chances(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return chances that sum to 1: as they are where rounding alone is between, else scaled."""
    chances = _check.probability_array(name, values)
    if chances.ndim != 1 or not chances.size:
        raise InputError(f"{name}: shape {chances.shape}; give one chance an outcome")
    total = float(chances.sum())
    if not abs(total - 1) <= _SUM_TOLERANCE:
        raise InputError(
            f"{name}: sums to {total!r}; chances must sum to 1 within {_SUM_TOLERANCE}"
        )
    # Chances that miss 1 by rounding alone stay as they are, so that equal inputs stay equal.
    exact = abs(total - 1) <= chances.size * UNIT * 2
    return np.asarray(chances if exact else chances / total)
