"""A pair on a lattice of log-ratios ℓ_k = offset + k·h: one vector.

Q-masses q_k, with P-masses e^{ℓ_k}·q_k; composing pairs is convolving vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from apiece._types import Floats


class Jump(NamedTuple):
    """P- and Q-mass of log-ratios above `loss`, which are on no lattice."""

    p: float
    q: float
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class Lattice:
    """Q-masses at log-ratios offset + k·step, and the P- and Q-mass told apart outright.

    rounding bounds the relative error of each cell's P- and Q-mass, and of those of `jump`.
    """

    step: float
    offset: float
    mass: Floats
    outside_p: float
    outside_q: float
    rounding: float
    jump: Jump
