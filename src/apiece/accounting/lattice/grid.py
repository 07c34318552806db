"""How finely the privacy-loss distribution is computed, in one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from apiece import _check
from apiece.errors import InputError

UNIT = 2.0**-53
"""Relative size of one floating-point rounding."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Settings of the numerical accountant; none of them affects soundness.

    gap: the relative gap (upper − lower)/upper aimed at in ε. floor: below this ε the gap aimed at
    is gap·floor, absolute, and below a quarter of it floor/50. truncation: the share of δ that may
    be lost to each tail. wrap: the share of the tilted mass that may fall outside a transform on
    either side. points: the longest transform, or half of it at hard settings; where it would have
    to be longer, the bounds stay valid but lie further apart than `gap`.

    Raises `InputError` for values outside (0, 1), or fewer than 1024 points.

    >>> Grid(gap=1e-2).points
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


DEFAULT = Grid()
