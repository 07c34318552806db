"""How close together the two bounds on an answer should lie, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece._types import Bounds, Floats, Mask
from apiece.errors import InputError

_LEAST_DELTA = 1e-45  # no smaller one is resolved


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Settings of the numerical evaluators; none of them affects whether a bound holds.

    gap: the relative gap (upper − lower)/upper aimed at in ε and in δ. floor: below this ε the gap
    aimed at is gap·floor, absolute, and below a quarter of it floor/50. truncation: the share of δ
    that may be lost to each tail. wrap: the share of the tilted mass that may fall outside a
    transform on either side. points: the longest transform, or half of it at hard settings; where
    it would have to be longer, the bounds stay valid but lie further apart than `gap`.

    Raises:
        InputError: For values outside (0, 1), or fewer than 1024 points.

    Example:
        >>> Accuracy(gap=1e-2).points
        1048576
    """

    gap: float = 9e-4
    floor: float = 0.01
    truncation: float = 1e-5
    wrap: float = 1e-10
    points: int = 2**20

    def __post_init__(self) -> None:
        for name in ("gap", "floor", "truncation", "wrap"):
            value = _check.positive(name, getattr(self, name))
            if not value < 1:
                raise InputError(f"{name} = {value!r}: must be in (0, 1); give a small number")
            object.__setattr__(self, name, value)
        object.__setattr__(self, "points", _check.count("points", self.points, least=1024))

    def wanted(self, upper: Floats) -> Floats:
        """Return how far below each upper bound on ε the lower one may lie."""
        wanted = self.gap * np.maximum(upper, self.floor)
        return np.where(upper < self.floor / 4, self.floor / 50, wanted)

    def reached(self, bounds: Bounds) -> Mask:
        """Return where bounds on ε are as close as is wanted; nowhere that the upper one is ∞."""
        lower, upper = bounds
        return np.asarray(upper - lower <= np.minimum(self.wanted(upper), 1e300))

    def resolved(self, bounds: Bounds) -> Mask:
        """Return where bounds on δ are as close as is wanted, or nothing is left to resolve.

        About as close as ε is, which log δ follows: to `gap` of log(1/δ), relative.
        """
        lower, upper = bounds
        with np.errstate(divide="ignore"):
            wanted = self.gap * upper * np.maximum(1.0, -np.log(upper))
        return np.asarray((upper - lower <= wanted) | (upper <= _LEAST_DELTA))


DEFAULT = Accuracy()
