"""Gaussian noise on the sum of several rows of one owner, each of which joins by its own coin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.errors import InputError
from apiece.numerics.rounding import UNIT

# Shifts of a mixture, at most.
_MOST = 256


@dataclass(frozen=True, slots=True, init=False)
class MixtureOfGaussians:
    """A sum plus Gaussian noise, to which an owner adds one of several amounts by secret coins.

    Args:
        noise_multiplier: z, the noise's standard deviation, in the unit of the shifts.
        shifts: The amounts s_j; positive, finite.
        chances: Their chances c_j; positive, summing to at most 1 (within 1e-12).

    Raises:
        InputError: For values outside these bounds, lengths that differ, no shift, or more than
            256 shifts.

    Guarantee:
        The pair is Σ_j c_j·N(s_j, z²) against N(0, z²), where s_0 = 0 has what the chances leave.
        It dominates one step of a sum of vectors to which the owner's rows r in a random set S add
        Σ_{r in S} x_r with ‖x_r‖ ≤ C_r, if S has the law of the coins that gave the chances of the
        sums of C_r (by Kahane's inequality; proof in docs/mathematics.md).

    References:
        Choquette-Choo et al. 2024 (mixtures of Gaussians); Kahane 1985 (the inequality).

    Example:
        >>> from apiece.mechanisms.mixture import MixtureOfGaussians
        >>> MixtureOfGaussians(2.0, [1.0, 2.0], [0.18, 0.01]).shifts
        (1.0, 2.0)
    """

    noise_multiplier: float
    shifts: tuple[float, ...]
    chances: tuple[float, ...]

    def __init__(
        self, noise_multiplier: float, shifts: npt.ArrayLike, chances: npt.ArrayLike
    ) -> None:
        # Equal shifts are counted together, in ascending order.
        s = _check.positive_array("shifts", shifts)
        c = _check.positive_array("chances", chances)
        if s.ndim != 1 or s.shape != c.shape or not 1 <= s.size <= _MOST:
            raise InputError(
                f"shifts, chances: shapes {s.shape} and {c.shape}; give as many chances as shifts, "
                f"1 to {_MOST}"
            )
        total = float(c.sum())
        if not total <= 1 + 1e-12:
            raise InputError(f"chances: they sum to {total!r}; must be at most 1")
        distinct, index = np.unique(s, return_inverse=True)
        put = object.__setattr__
        put(self, "noise_multiplier", _check.positive("noise_multiplier", noise_multiplier))
        put(self, "shifts", tuple(distinct.tolist()))
        put(self, "chances", tuple(np.bincount(index, c).tolist()))

    @classmethod
    def of_rows(
        cls, noise_stddev: float, clip_norms: Sequence[float], probabilities: Sequence[float]
    ) -> MixtureOfGaussians | None:
        """Return one step's mechanism of an owner whose rows join by independent coins.

        Args:
            noise_stddev: Standard deviation of the noise on the sum.
            clip_norms: Each row's bound.
            probabilities: Each row's chance to join.

        Returns:
            The mixture over all sums of clip norms; None where no row can join.

        Raises:
            InputError: For bounds that are not positive, chances outside [0, 1], lengths that
                differ, and 256 rows or more whose bounds have more than 256 sums.

        Guarantee:
            The mixture dominates the step. It is the step's own pair, but for more than 256 sums:
            then each of n bounds is rounded up to a multiple of 1/(256 − n) of their sum.

        Example:
            >>> from apiece.mechanisms.mixture import MixtureOfGaussians
            >>> MixtureOfGaussians.of_rows(2.0, [1.0, 1.0], [0.1, 0.1]).shifts
            (1.0, 2.0)
        """
        norms = _check.positive_array("clip_norms", clip_norms)
        if norms.shape != (len(probabilities),):
            raise InputError(
                f"clip_norms, probabilities: shapes {norms.shape} and ({len(probabilities)},); "
                "give one of each a row"
            )
        chances = [_check.probability("probabilities", chance) for chance in probabilities]
        law = _law_of_sums(norms.tolist(), chances)
        # A sum of 0 is no shift.
        if len(law) > _MOST + 1:
            if norms.size >= _MOST:
                raise InputError(
                    f"clip_norms: {norms.size} rows of one owner with more than {_MOST} sums; let "
                    "an owner have fewer rows, or rows of one bound"
                )
            # Rounded up, n bounds come to at most (256 − n) + n units in all.
            unit = float(norms.sum()) / (_MOST - norms.size)
            units = np.ceil(norms / unit)
            # No bound is rounded down.
            unit = max(unit, float((norms / units).max()))
            unit_law = _law_of_sums(units.tolist(), chances)
            law = {total * unit: mass for total, mass in unit_law.items()}
        law.pop(0.0, None)
        if not law:
            return None
        # Where hardly anything is left of 1, the rounding of sums and products matters to what is
        # left; raised by what it can be, the chances dominate the step.
        sum_chances = np.array(list(law.values()))
        if norms.size > 1 and sum_chances.sum() > 0.5:
            sum_chances *= 1 + 4 * norms.size * UNIT
        return cls(noise_stddev, list(law), sum_chances)


def _law_of_sums(amounts: list[float], chances: list[float]) -> dict[float, float]:
    """Return the law of the sum of those amounts whose coins, of these chances, show heads."""
    # Stops with more than 256 sums once there are so many.
    law = {0.0: 1.0}
    for amount, chance in zip(amounts, chances, strict=True):
        longer: dict[float, float] = {}
        for total, mass in law.items():
            tails = (total, mass * (1 - chance))
            heads = (total + amount, mass * chance)
            for new_total, part in (tails, heads):
                if part > 0:
                    longer[new_total] = longer.get(new_total, 0.0) + part
        law = longer
        # As many sums are too many anyway, and their number may double with each row.
        if len(law) > _MOST + 1:
            break
    return law
