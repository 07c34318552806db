"""Heterogeneous Gaussian noise: one attribute protected more, at the same total promise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.errors import DataError, VerificationError, unknown
from apiece.mechanisms import Gaussian


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BoundedSum:
    """A sum of records, no entry of any of which exceeded `bounds`; made by `clip_and_sum`.

    The sum itself is private until noise is added, so the repr does not show it.

    Attributes:
        total: (d,), the sum.
        bounds: Bound on the absolute value of each entry of one record.

    Example:
        >>> from apiece.sensitivity import HeterogeneousNoise
        >>> noise = HeterogeneousNoise((1.0, 1.0), (2.0, 2.0), ("age", "income"))
        >>> noise.clip_and_sum([[0.5, 9.0], [0.5, 1.0]]).total.tolist()
        [1.0, 2.0]
    """

    total: Floats = field(repr=False)
    bounds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeterogeneousNoise:
    """Independent Gaussian noise on the attributes of a sum, a deviation of its own for each.

    Args:
        bounds: cⱼ, the largest |contribution| of one record to attribute j's sum.
        stddev: Sⱼ, the noise's standard deviation there.
        attributes: Their names.

    Raises:
        InputError: For bounds or deviations that are not positive and finite.
        DataError: For another number of them than of attributes.

    Guarantee:
        The sum of clipped records plus N(0, diag(S²)) is, under add/remove of a record, as private
        as one `Gaussian` mechanism of noise multiplier z with 1/z² = Σⱼ (cⱼ/Sⱼ)²: `mechanism`.
        Under add/remove of attribute j alone of one record (the value given, or left out and
        counted as 0) it is as private as noise multiplier Sⱼ/cⱼ: `mechanism_for`. Both are met with
        equality by a record at its bounds. The proof is in docs/mathematics.md.

    Example:
        >>> from apiece.sensitivity import HeterogeneousNoise
        >>> noise = HeterogeneousNoise.allocate(
        ...     {"age": 1.0, "income": 1.0}, {"age": 1.0, "income": 3.0}, noise_multiplier=2.0)
        >>> [round(s, 6) for s in noise.stddev]
        [2.309401, 4.0]
    """

    bounds: tuple[float, ...]
    stddev: tuple[float, ...]
    attributes: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("bounds", "stddev"):
            values = _check.positive_array(name, getattr(self, name))
            if values.shape != (len(self.attributes),):
                raise DataError(f"{name}: shape {values.shape}; give one for each attribute")
            object.__setattr__(self, name, tuple(values.tolist()))

    @classmethod
    def allocate(
        cls,
        bounds: Mapping[str, float],
        protection: Mapping[str, float],
        *,
        noise_multiplier: float,
    ) -> HeterogeneousNoise:
        """Return the noise that protects each attribute in proportion, at one total promise.

        1/zⱼ² = (1/vⱼ)/Σₖ(1/vₖ) · 1/z² and Sⱼ = cⱼ zⱼ: twice the protection vⱼ halves attribute j's
        own squared loss.

        Args:
            bounds: Attribute → cⱼ, the largest |contribution| of one record.
            protection: Attribute → vⱼ > 0; public, never from people's data (`query.design`).
            noise_multiplier: z: the total promise is that of `Gaussian(noise_multiplier)`.

        Raises:
            DataError: Where the two name different attributes.
            InputError: For values that are not positive and finite.
            VerificationError: Where the promise does not hold.

        Guarantee:
            Rounded up; that the total is kept is verified exactly, in rational arithmetic.
        """
        names = tuple(bounds)
        if set(protection) != set(names):
            unpaired = sorted(set(protection) ^ set(names), key=str)[0]
            raise DataError(
                f"bounds, protection: {unpaired!r} is in only one of them; give the same attributes"
            )
        c = _check.positive_array("bounds", [bounds[name] for name in names])
        v = _check.positive_array("protection", [protection[name] for name in names])
        z = _check.positive("noise_multiplier", noise_multiplier)
        # In units of the least protection, so that 1/v neither over- nor underflows.
        inverse = v.min() / v
        # 2⁻⁴⁸ is many times the rounding error of the line: deviations are rounded up.
        # zⱼ/z: its inverse square is attribute j's share of the total.
        ratio = np.sqrt(inverse.sum() / inverse)
        stddev = c * z * ratio * (1 + 2**-48)
        noise = cls(tuple(c.tolist()), tuple(stddev.tolist()), names)
        # Floats are fractions, so that this comparison is exact.
        if not noise._squared_distance() * Fraction(z) ** 2 <= 1:
            raise VerificationError(f"noise: the total exceeds that of multiplier {z!r}")
        return noise

    @property
    def mechanism(self) -> Gaussian:
        """The mechanism of a record that joins or leaves; computed from the deviations."""
        squared = self._squared_distance()
        # A start, rounded to the nearest; the exact product below has the last word.
        z = math.sqrt(float(1 / squared))
        # Rounded down: a smaller noise multiplier promises less.
        while Fraction(z) ** 2 * squared > 1:
            z = math.nextafter(z, 0.0)
        return Gaussian(z)

    def mechanism_for(self, attribute: str) -> Gaussian:
        """Return the mechanism of one attribute of a record that is given or left out.

        Args:
            attribute: One of `attributes`.

        Raises:
            OptionError: For another.
        """
        if attribute not in self.attributes:
            raise unknown("attribute", attribute, self.attributes)
        j = self.attributes.index(attribute)
        # Rounded down: a smaller noise multiplier promises less.
        noise_multiplier = self.stddev[j] / self.bounds[j]
        return Gaussian(math.nextafter(noise_multiplier, 0.0))

    def clip_and_sum(self, records: npt.ArrayLike) -> BoundedSum:
        """Return the sum of `records`, each entry clipped to ±its bound.

        A record with a NaN or infinite entry contributes nothing.

        Args:
            records: (n, d).

        Raises:
            DataError: For another shape.
        """
        rows = np.asarray(records, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.bounds):
            raise DataError(f"records: shape {rows.shape}; give (n, {len(self.bounds)})")
        # Left out by selection: no factor takes NaN or ∞ out of a sum.
        finite = np.isfinite(rows).all(axis=1, keepdims=True)
        bounds = np.array(self.bounds)
        clipped = np.clip(np.where(finite, rows, 0.0), -bounds, bounds)
        return BoundedSum(clipped.sum(axis=0), self.bounds)

    def add_noise(self, bounded: BoundedSum, *, generator: np.random.Generator) -> Floats:
        """Return the noisy sum, (d,); of the sums here only this one may be published.

        Args:
            bounded: A sum made by `clip_and_sum` of this noise.
            generator: The source of the noise.

        Raises:
            DataError: For the sum of another noise.
        """
        # The bounds say by which clipping a sum was made; one of other bounds would be sensitive
        # otherwise.
        if getattr(bounded, "bounds", None) != self.bounds:
            raise DataError("add_noise: give what this noise's clip_and_sum returned")
        return np.asarray(bounded.total + generator.normal(0.0, self.stddev))

    def _squared_distance(self) -> Fraction:
        """Return Σⱼ (cⱼ/Sⱼ)², exactly."""
        pairs = zip(self.bounds, self.stddev, strict=True)
        return sum(((Fraction(c) / Fraction(s)) ** 2 for c, s in pairs), start=Fraction(0))
