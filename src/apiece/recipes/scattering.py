"""Wavelet scattering of images: features that are fixed before any record is seen."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apiece import _check
from apiece.errors import InputError
from apiece.recipes._images import require_shape


@dataclass(frozen=True, slots=True)
class Scattering:
    """The scattering transform of square images, channel by channel.

    Wavelets, moduli and averages of fixed shape: no number in them comes from the data, so that
    features cost no privacy. A record's features depend on that record alone.

    Args:
        side: Pixels of a side.
        scales: J; features are averages over 2^J by 2^J pixels.
        angles: L, how many orientations there are.

    Raises:
        InputError: For numbers that are no counts, or a side shorter than 2^J.
        ModuleNotFoundError: On use, where the `recipes` extra is not installed.

    References:
        Bruna and Mallat 2013; Andreux et al. 2020, whose kymatio computes it; Tramèr and Boneh
        2021, who put private models on it.

    Example:
        >>> Scattering(28).channels, Scattering(28).places
        (81, 7)
    """

    side: int
    scales: int = 2
    angles: int = 8

    def __post_init__(self) -> None:
        for name in ("side", "scales", "angles"):
            _check.count(name, getattr(self, name))
        if self.places < 1:
            raise InputError(
                f"scales = {self.scales}: 2^{self.scales} exceeds side = {self.side}; take fewer"
            )

    @property
    def channels(self) -> int:
        """Features at each place, of one channel of the image."""
        first = self.scales * self.angles
        return 1 + first + self.angles**2 * self.scales * (self.scales - 1) // 2

    @property
    def places(self) -> int:
        """Places along a side."""
        return self.side >> self.scales

    def __call__(self, images: Tensor, *, part: int = 256) -> Tensor:
        """Return features (n, c · channels, places, places) of images (n, c, side, side).

        Args:
            images: In the range [0, 1] of a byte's public scale, or any other fixed one.
            part: How many are transformed at a time; no part of the result.

        Raises:
            InputError: For images of another shape.
        """
        require_shape(images, "c", self.side)
        transform = self._transform()
        with torch.no_grad():
            found = [transform(few.contiguous()).flatten(1, 2) for few in torch.split(images, part)]
        return torch.cat(found) if found else images.new_zeros(0)

    def _transform(self) -> Any:
        # kymatio.torch also loads the transform of volumes, which SciPy 1.15 and later break.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
        return ScatteringTorch2D(J=self.scales, shape=(self.side, self.side), L=self.angles)
