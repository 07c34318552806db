"""A whole number plus discrete Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece.errors import RangeError
from apiece.mechanisms.atoms import Atoms

_REACH = 17.0  # standard deviations; the tails beyond are below 1e-62
_MOST = 10**6
_LARGEST_LOSS = 600.0


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """A count plus discrete Gaussian noise, seen from one record: P(X = x) ∝ e^{−x²/(2·scale²)}.

    The law is log-concave, so the largest move is the worst; for a vector of counts compose one
    mechanism a coordinate. The continuous Gaussian mechanism does not cover this one: at some ε its
    δ is smaller.

    Args:
        scale: In units of the count, positive, finite; nearly the standard deviation unless small.
        sensitivity: By how much one record can move the count, a whole number of at least 1.

    Raises:
        InputError: For values out of bounds.
        RangeError: Where the noise spans more than 10⁶ numbers or losses are past the numerical
            range.

    References:
        Canonne, Kamath, Steinke 2020.

    Example:
        >>> DiscreteGaussian(2.0)
        DiscreteGaussian(scale=2.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        scale = _check.positive("scale", self.scale)
        sensitivity = _check.count("sensitivity", self.sensitivity)
        reach = _REACH * scale + sensitivity + 1
        if not (reach <= _MOST and reach * sensitivity / scale**2 <= _LARGEST_LOSS):
            raise RangeError(
                f"scale = {scale:g} at sensitivity = {sensitivity}: past the numerical range; the "
                f"noise may span {_MOST} numbers and losses up to {_LARGEST_LOSS:g}"
            )
        object.__setattr__(self, "scale", scale)
        object.__setattr__(self, "sensitivity", sensitivity)

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without, cut in the tails.

        A discrete Gaussian's tails are below the normal bound e^{−x²/(2·scale²)} a side.
        """
        shift, variance = self.sensitivity, self.scale**2
        reach = math.ceil(_REACH * self.scale)
        x = np.arange(-reach, reach + shift + 1, dtype=np.float64)
        weight = np.exp(-(x**2) / (2 * variance))
        mass = weight / weight.sum()
        tail = 2 * math.exp(-((reach + 1) ** 2) / (2 * variance))
        largest = (reach + shift) ** 2 / (2 * variance)
        return Atoms(
            (2 * x * shift - shift**2) / (2 * variance),
            mass,
            outside_p=tail,
            outside_q=tail,
            error=2.0**-50 * (4 + 2 * largest) + tail,
        )
