"""A sum plus Laplace noise."""

from __future__ import annotations

from dataclasses import dataclass

from apiece import _check


@dataclass(frozen=True, slots=True)
class Laplace:
    """A sum over records plus Laplace noise, seen from one record. Pure ε = 1/noise_multiplier.

    Args:
        noise_multiplier: The Laplace scale over the record's ℓ1 bound; positive, finite.

    Raises:
        InputError: Where it is not.

    Example:
        >>> Laplace(2.0)
        Laplace(noise_multiplier=2.0)
    """

    noise_multiplier: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "noise_multiplier", _check.positive("noise_multiplier", self.noise_multiplier)
        )
