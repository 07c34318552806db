"""A whole number plus discrete Laplace noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece.errors import RangeError
from apiece.mechanisms.atoms import Atoms, gathered

_MOST = 10**6
_LARGEST_LOSS = 600.0


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """A count plus discrete Laplace noise, seen from one record: P(X = x) ∝ e^{−|x|/scale}.

    Pure ε = sensitivity/scale. The law is log-concave, so the largest move is the worst; for a
    vector of counts compose one mechanism a coordinate. The continuous Laplace mechanism does not
    cover this one: at some ε its δ is smaller.

    Args:
        scale: In units of the count, positive, finite.
        sensitivity: By how much one record can move the count, a whole number of at least 1.

    Raises:
        InputError: For values out of bounds.
        RangeError: For a sensitivity above 10⁶ or above 600·scale.

    References:
        Ghosh, Roughgarden, Sundararajan 2012 (the geometric mechanism).

    Example:
        >>> DiscreteLaplace(2.0)
        DiscreteLaplace(scale=2.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        scale = _check.positive("scale", self.scale)
        sensitivity = _check.count("sensitivity", self.sensitivity)
        if not (sensitivity <= _MOST and sensitivity / scale <= _LARGEST_LOSS):
            raise RangeError(
                f"sensitivity = {sensitivity} at scale = {scale:g}: past the numerical range; must "
                f"be at most {_MOST} and {_LARGEST_LOSS:g} times the scale; use more noise"
            )
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "sensitivity", sensitivity)

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without.

        Up to 0 and from the sensitivity on the ratio is constant; between them it has a step a
        number.
        """
        shift, decay = self.sensitivity, 1 / self.scale
        total = 1 + math.exp(-decay)
        between = np.arange(1, shift)
        inside = np.exp(-between * decay) * (-math.expm1(-decay) / total)
        log_ratio = np.linspace(-shift * decay, shift * decay, shift + 1, dtype=np.float64)
        mass = np.concatenate(([1 / total], inside, [math.exp(-shift * decay) / total]))
        return Atoms(*gathered(log_ratio, mass), error=2.0**-49 * (1 + shift * decay))
