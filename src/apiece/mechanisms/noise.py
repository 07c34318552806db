"""A sum plus Gaussian noise."""

import math
from dataclasses import dataclass

import numpy as np

from apiece import _check
from apiece.errors import RangeError
from apiece.mechanisms.atoms import Atoms, merge_atoms


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A sum over records plus Gaussian noise, seen from one record.

    Args:
        noise_multiplier: z, the standard deviation of the noise over the record's ℓ2 bound;
            positive, finite.

    Raises:
        InputError: For another noise multiplier.

    Guarantee:
        1/z-GDP under add/remove: the pair is N(1, z²) against N(0, z²).

    References:
        Dwork and Roth 2014, App. A; Kaiser et al. 2026, Def. 2.

    Example:
        >>> from apiece import Gaussian
        >>> Gaussian(1.5)
        Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        _check.put(self, noise_multiplier=_check.positive)


@dataclass(frozen=True, slots=True)
class Laplace:
    """A sum over records plus Laplace noise, seen from one record.

    Args:
        scale: Of the noise, in units of the record's ℓ1 bound; positive, finite.

    Raises:
        InputError: For another scale.

    Guarantee:
        (1/scale, 0)-DP under add/remove.

    Example:
        >>> from apiece import Laplace
        >>> Laplace(2.0)
        Laplace(scale=2.0)
    """

    scale: float

    def __post_init__(self) -> None:
        _check.put(self, scale=_check.positive)


# Numbers that a law on the integers may span, and largest absolute loss.
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
        >>> from apiece.mechanisms import DiscreteLaplace
        >>> DiscreteLaplace(2.0)
        DiscreteLaplace(scale=2.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _check.put(self, scale=_check.positive, sensitivity=_check.count)
        scale = self.scale
        sensitivity = self.sensitivity
        if not (sensitivity <= _MOST and sensitivity / scale <= _LARGEST_LOSS):
            raise RangeError(
                f"sensitivity = {sensitivity} at scale = {scale:g}: past the numerical range; must "
                f"be at most {_MOST} and {_LARGEST_LOSS:g} times the scale; use more noise"
            )

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without.

        Up to 0 and from the sensitivity on the ratio is constant; between them it has a step a
        number.
        """
        shift = self.sensitivity
        # In nats a number.
        decay = 1 / self.scale
        largest = shift * decay
        # P(X ≤ 0) is 1/(1 + e^{−decay}), and P(X = x) that times (1 − e^{−decay})·e^{−decay·x}.
        total = 1 + math.exp(-decay)
        between = np.arange(1, shift)
        step_mass = -math.expm1(-decay) / total
        inner_mass = np.exp(-between * decay) * step_mass
        # One mass up to 0, one for each number between, and one from the sensitivity on.
        log_ratio = np.linspace(-largest, largest, shift + 1, dtype=np.float64)
        top_mass = math.exp(-largest) / total
        mass = np.concatenate(([1 / total], inner_mass, [top_mass]))
        return Atoms(*merge_atoms(log_ratio, mass), error=2.0**-49 * (1 + largest))


# Standard deviations; the tails beyond are below 1e-62.
_REACH = 17.0


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
        >>> from apiece.mechanisms import DiscreteGaussian
        >>> DiscreteGaussian(2.0)
        DiscreteGaussian(scale=2.0, sensitivity=1)
    """

    scale: float
    sensitivity: int = 1

    def __post_init__(self) -> None:
        _check.put(self, scale=_check.positive, sensitivity=_check.count)
        scale = self.scale
        sensitivity = self.sensitivity
        reach = _REACH * scale + sensitivity + 1
        if not (reach <= _MOST and reach * sensitivity / scale**2 <= _LARGEST_LOSS):
            raise RangeError(
                f"scale = {scale:g} at sensitivity = {sensitivity}: past the numerical range; the "
                f"noise may span {_MOST} numbers and losses up to {_LARGEST_LOSS:g}"
            )

    def atoms(self) -> Atoms:
        """Return the pair of the world with the record and the world without, cut in the tails.

        A discrete Gaussian's tails are below the normal bound e^{−x²/(2·scale²)} a side.
        """
        shift = self.sensitivity
        variance = self.scale**2
        reach = math.ceil(_REACH * self.scale)
        # Wide enough for both worlds: around 0 and around the shift.
        x = np.arange(-reach, reach + shift + 1, dtype=np.float64)
        weight = np.exp(-(x**2) / (2 * variance))
        mass = weight / weight.sum()
        # The first number beyond the reach, on either side.
        exponent = -((reach + 1) ** 2) / (2 * variance)
        # Both sides.
        tail = 2 * math.exp(exponent)
        # Of the exponent, by which rounding grows.
        largest = (reach + shift) ** 2 / (2 * variance)
        # (x² − (x − shift)²)/(2·scale²).
        log_ratio = (2 * x * shift - shift**2) / (2 * variance)
        return Atoms(
            log_ratio,
            mass,
            outside_p=tail,
            outside_q=tail,
            error=2.0**-50 * (4 + 2 * largest) + tail,
        )
