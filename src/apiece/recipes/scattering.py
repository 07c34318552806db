"""Wavelet scattering of images: features that are fixed before any record is seen."""

import functools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from apiece import _check
from apiece._types import Floats
from apiece.errors import InputError
from apiece.recipes.features import require_shape

Filters = tuple[list[Tensor], list[list[Tensor]]]  # φ by resolution; ψ by scale and resolution
_PI = 3.1415  # as kymatio writes it in the filters' norm: features stay those of published results


@dataclass(frozen=True, slots=True)
class Scattering:
    """The scattering transform of square images, channel by channel, to the second order.

    Wavelets, moduli and averages of fixed shape: no number in them comes from the data, so that
    features cost no privacy. A record's features depend on that record alone.

    Args:
        side: Pixels of a side.
        scales: J; features are averages over 2^J by 2^J pixels.
        angles: L, how many orientations there are.

    Raises:
        InputError: For numbers that are no counts, or a side shorter than 2^J.

    References:
        Bruna and Mallat 2013; Andreux et al. 2020, with whose kymatio it agrees; Tramèr and Boneh
        2021, who put private models on it.

    Example:
        >>> from apiece.recipes import Scattering
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

    @torch.no_grad()
    def __call__(self, images: Tensor, *, part: int = 32) -> Tensor:
        """Return features (n, c · channels, places, places) of images (n, c, side, side).

        Args:
            images: In the range [0, 1] of a byte's public scale, or any other fixed one.
            part: How many are transformed at a time; no part of the result.

        Raises:
            InputError: For images of another shape.
        """
        require_shape(images, "c", self.side)
        if not len(images):
            return images.new_zeros(0, images.shape[1] * self.channels, self.places, self.places)
        return torch.cat([self._features(few).flatten(1, 2) for few in torch.split(images, part)])

    def _features(self, images: Tensor) -> Tensor:
        """Return (n, c, channels, places, places): |…|x ∗ ψ₁| ∗ ψ₂| ∗ φ over all rising scales."""
        (low, wavelets), scales = _filters(self.side, self.scales, self.angles), self.scales
        # the padded side mirrors the image at its borders
        padded, period = _padded(self.side, scales), 2 * (self.side - 1)
        index = (torch.arange(padded) - (padded - self.side) // 2) % period
        mirror = torch.minimum(index, period - index)
        spectrum = torch.fft.fft2(images[..., mirror[:, None], mirror])

        def averaged(of: Tensor, scale: int) -> Tensor:
            """Return the average over 2^J pixels; a margin of one place has seen the padding."""
            spread = _subsampled(of * low[scale], 1 << scales - scale)
            made: Tensor = torch.fft.ifft2(spread).real[..., 1:-1, 1:-1]
            return made

        def modulus(of: Tensor, scale: int, resolution: int) -> Tensor:
            """Return the spectrum of |signal ∗ ψ| at each angle, on the grid that `scale` needs."""
            bands = of[..., None, :, :] * wavelets[scale][resolution]
            signal = torch.fft.ifft2(_subsampled(bands, 1 << scale - resolution))
            made: Tensor = torch.fft.fft2(signal.abs())
            return made

        zeroth, first, second = averaged(spectrum, 0)[:, :, None], [], []
        for one in range(scales):
            bands = modulus(spectrum, one, 0)
            first.append(averaged(bands, one))
            for angle in range(self.angles):  # one at a time, which bounds the memory
                band = bands[:, :, angle]
                rising = range(one + 1, scales)
                second += [averaged(modulus(band, two, one), two) for two in rising]
        return torch.cat([zeroth, *first, *second], dim=2)


def _padded(side: int, scales: int) -> int:
    """Return the side with padding: whole multiples of 2^J, at least one on either end."""
    return ((side >> scales) + 2) << scales


def _subsampled(spectrum: Tensor, step: int) -> Tensor:
    """Return the spectrum of every `step`-th pixel: subsampling folds frequencies."""
    if step == 1:
        return spectrum
    *others, side, _ = spectrum.shape
    rows = spectrum.reshape(*others, step, side // step, side).mean(dim=-3)
    return rows.reshape(*rows.shape[:-1], step, side // step).mean(dim=-2)


@functools.lru_cache(maxsize=8)
def _filters(side: int, scales: int, angles: int) -> Filters:
    """Return the filters' spectra, which are real, at the resolutions where each is applied."""
    size = _padded(side, scales)

    def spectra(spatial: Floats, resolutions: int) -> list[Tensor]:
        whole = np.fft.fft2(spatial).real
        return [torch.from_numpy(_cropped(whole, r)).float() for r in range(resolutions)]

    low = spectra(_gabor(size, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0), scales)
    wavelets = []
    for scale in range(scales):
        turns = [(int(angles / 2 - 1) - k) * np.pi / angles for k in range(angles)]
        each = [spectra(_morlet(size, scale, turn, 4.0 / angles), scale + 1) for turn in turns]
        wavelets.append([torch.stack(of) for of in zip(*each, strict=True)])
    return low, wavelets


def _morlet(size: int, scale: int, turn: float, slant: float) -> Floats:
    """Return a Morlet wavelet: a Gabor function less its envelope, so that its sum is 0."""
    width, frequency = 0.8 * 2**scale, 0.75 * np.pi / 2**scale
    wave = _gabor(size, width, turn, frequency, slant)
    envelope = _gabor(size, width, turn, 0.0, slant)
    morlet: Floats = wave - wave.sum() / envelope.sum() * envelope
    return morlet


def _gabor(size: int, width: float, turn: float, frequency: float, slant: float) -> Floats:
    """Return a plane wave under a Gaussian of this width, wrapped around a square of this size."""
    at = np.arange(-2 * size, 3 * size)
    along = at[:, None] * np.cos(turn) + at * np.sin(turn)
    across = at * np.cos(turn) - at[:, None] * np.sin(turn)
    decay = (along**2 + (slant * across) ** 2) / (2 * width**2)
    wave = np.exp(1j * frequency * along - decay)
    folded = wave.reshape(5, size, 5, size).sum(axis=(0, 2))
    gabor: Floats = folded / (2 * _PI * width**2 / slant)
    return gabor


def _cropped(spectrum: Floats, resolution: int) -> Floats:
    """Return a filter's spectrum on a grid coarser by 2^resolution, without what would alias."""
    size = spectrum.shape[0]
    coarse = size >> resolution
    kept = np.ones(size, dtype=bool)
    kept[coarse // 2 : coarse // 2 + size - coarse] = False
    masked = spectrum * kept[:, None] * kept
    cropped: Floats = masked.reshape(2**resolution, coarse, 2**resolution, coarse).sum(axis=(0, 2))
    return cropped
