"""A sum plus Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

from apiece import _check


@dataclass(frozen=True, slots=True)
class Gaussian:
    """A sum over records plus Gaussian noise, seen from one record.

    Args:
        noise_multiplier: Standard deviation of the noise over the record's ℓ2 bound; positive,
            finite.

    Raises:
        InputError: Where it is not.

    References:
        Dwork and Roth 2014, App. A; Kaiser et al. 2026, Def. 2.

    Example:
        >>> Gaussian(1.5)
        Gaussian(noise_multiplier=1.5)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "noise_multiplier", _check.positive("noise_multiplier", self.noise_multiplier)
        )
