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

# Spectra of the low-pass filter φ by resolution, and of the wavelets ψ by scale and resolution.
Filters = tuple[list[Tensor], list[list[Tensor]]]

# π as kymatio writes it in the filters' norm: features stay those of published results.
_PI = 3.1415


@dataclass(frozen=True, slots=True)
class Scattering:
    """The scattering transform of square images, channel by channel, to the second order.

    Wavelets, moduli and averages of fixed shape: no number in them comes from the data, so that
    features cost no privacy. A record's features depend on that record alone.

    Args:
        side: Pixels of a side.
        scales: J; features are averages over 2^J by 2^J pixels.
        angles: L, the number of orientations.

    Raises:
        InputError: For numbers that are no counts, or a side shorter than 2^J.

    References:
        Bruna and Mallat 2013; Andreux et al. 2020, with whose kymatio it agrees; Tramèr and Boneh
        2021, who put private models on it.

    Example:
        >>> from apiece.recipes.scattering import Scattering
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
        first_order = self.scales * self.angles
        # Pairs of a scale and a coarser one, each at all angles.
        second_order = self.angles**2 * self.scales * (self.scales - 1) // 2
        return 1 + first_order + second_order

    @property
    def places(self) -> int:
        """Places along a side."""
        return self.side >> self.scales

    @torch.no_grad()
    def __call__(self, images: Tensor, *, part: int = 32) -> Tensor:
        """Return features (n, c · channels, places, places) of images (n, c, side, side).

        Args:
            images: In the range [0, 1] of a byte's public scale, or any other fixed one.
            part: Images transformed at a time, which bounds the memory; no part of the result.

        Raises:
            InputError: For images of another shape.
        """
        require_shape(images, "c", self.side)
        if not len(images):
            return images.new_zeros(0, images.shape[1] * self.channels, self.places, self.places)
        parts = torch.split(images, part)
        return torch.cat([self._compute_features(part).flatten(1, 2) for part in parts])

    def _compute_features(self, images: Tensor) -> Tensor:
        """Return (n, c, channels, places, places): |…|x ∗ ψ₁| ∗ ψ₂| ∗ φ over all rising scales."""
        low, wavelets = _make_filters(self.side, self.scales, self.angles)
        scales = self.scales
        # All convolutions are products of spectra, on a torus that the padding makes harmless.
        spectrum = torch.fft.fft2(self._pad(images))

        def average(signal: Tensor, scale: int) -> Tensor:
            """Return the average over 2^J pixels, without the margin that the padding reaches."""
            # φ passes no frequency that sampling at 2^J pixels would fold.
            coarse = _subsample(signal * low[scale], 1 << scales - scale)
            places: Tensor = torch.fft.ifft2(coarse).real[..., 1:-1, 1:-1]
            return places

        def compute_modulus(signal: Tensor, scale: int, resolution: int) -> Tensor:
            """Return the spectrum of |signal ∗ ψ| at each angle, on the grid that `scale` needs."""
            # (n, c, angles, …): one band a direction.
            bands = signal[..., None, :, :] * wavelets[scale][resolution]
            coarse = torch.fft.ifft2(_subsample(bands, 1 << scale - resolution))
            modulus: Tensor = torch.fft.fft2(coarse.abs())
            return modulus

        # A channel axis for the average of the image itself.
        zeroth_order = average(spectrum, 0)[:, :, None]
        first_order = []
        second_order = []
        for scale in range(scales):
            bands = compute_modulus(spectrum, scale, 0)
            first_order.append(average(bands, scale))
            for angle in range(self.angles):  # one at a time, which bounds the memory
                band = bands[:, :, angle]
                # Only coarser scales: a modulus has hardly anything at finer ones.
                for coarser in range(scale + 1, scales):
                    modulus = compute_modulus(band, coarser, scale)
                    second_order.append(average(modulus, coarser))
        return torch.cat([zeroth_order, *first_order, *second_order], dim=2)

    def _pad(self, images: Tensor) -> Tensor:
        """Return images that are mirrored at their borders up to the padded side."""
        padded = _pad_side(self.side, self.scales)
        # Mirrored without repeating the border's pixels: the period is twice the side less two.
        period = 2 * (self.side - 1)
        index = (torch.arange(padded) - (padded - self.side) // 2) % period
        mirror = torch.minimum(index, period - index)
        return images[..., mirror[:, None], mirror]


def _pad_side(side: int, scales: int) -> int:
    """Return the side with padding: whole multiples of 2^J, at least one on either end."""
    return ((side >> scales) + 2) << scales


def _subsample(spectrum: Tensor, step: int) -> Tensor:
    """Return the spectrum of every `step`-th pixel: subsampling folds frequencies."""
    if step == 1:
        return spectrum
    *batch, side, _ = spectrum.shape
    # Every step-th pixel has the mean of the frequencies that fall together.
    rows = spectrum.reshape(*batch, step, side // step, side).mean(dim=-3)
    return rows.reshape(*rows.shape[:-1], step, side // step).mean(dim=-2)


@functools.lru_cache(maxsize=8)
def _make_filters(side: int, scales: int, angles: int) -> Filters:
    """Return the filters' spectra, which are real, at the resolutions where each is applied."""
    size = _pad_side(side, scales)

    def compute_spectra(filter_: Floats, resolutions: int) -> list[Tensor]:
        # Filters are Hermitian about the origin of the torus, so that their spectra are real.
        spectrum = np.fft.fft2(filter_).real
        crops = [_crop(spectrum, resolution) for resolution in range(resolutions)]
        return [torch.from_numpy(crop).float() for crop in crops]

    # Width .8 at the finest scale, doubled at each coarser one.
    low_width = 0.8 * 2 ** (scales - 1)
    low = compute_spectra(_make_gabor(size, low_width, 0.0, 0.0, 1.0), scales)
    # Angles in kymatio's order, from its first one downwards.
    first_turn = int(angles / 2 - 1)
    turns = [(first_turn - k) * np.pi / angles for k in range(angles)]
    slant = 4.0 / angles
    wavelets = []
    for scale in range(scales):
        spectra = []
        for turn in turns:
            morlet = _make_morlet(size, scale, turn, slant)
            spectra.append(compute_spectra(morlet, scale + 1))
        # From angle and resolution to resolution alone: all angles in one tensor.
        wavelets.append([torch.stack(by_angle) for by_angle in zip(*spectra, strict=True)])
    return low, wavelets


def _make_morlet(size: int, scale: int, turn: float, slant: float) -> Floats:
    """Return a Morlet wavelet: a Gabor function less its envelope, so that its sum is 0."""
    width = 0.8 * 2**scale
    frequency = 0.75 * np.pi / 2**scale
    wave = _make_gabor(size, width, turn, frequency, slant)
    # The envelope at the wave's own sum, so that the difference has mean 0.
    envelope = _make_gabor(size, width, turn, 0.0, slant)
    morlet: Floats = wave - wave.sum() / envelope.sum() * envelope
    return morlet


def _make_gabor(size: int, width: float, turn: float, frequency: float, slant: float) -> Floats:
    """Return a plane wave under a Gaussian of this width, wrapped around a square of this size.

    turn: of the wave's direction, in radians; slant: the Gaussian's width along over across it.
    """
    # Five periods: beyond two on either side the Gaussian adds nothing.
    pixel = np.arange(-2 * size, 3 * size)
    cosine = np.cos(turn)
    sine = np.sin(turn)
    # Coordinates along the wave and across it.
    along = pixel[:, None] * cosine + pixel * sine
    across = pixel * cosine - pixel[:, None] * sine
    decay = (along**2 + (slant * across) ** 2) / (2 * width**2)
    wave = np.exp(1j * frequency * along - decay)
    # Wrapped: the five periods are added up on one.
    wrapped = wave.reshape(5, size, 5, size).sum(axis=(0, 2))
    gabor: Floats = wrapped / (2 * _PI * width**2 / slant)
    return gabor


def _crop(spectrum: Floats, resolution: int) -> Floats:
    """Return a filter's spectrum on a grid coarser by 2^resolution, without aliases."""
    size = spectrum.shape[0]
    factor = 2**resolution
    coarse = size >> resolution
    passes = np.ones(size, dtype=bool)
    # Frequencies that the coarser grid cannot hold.
    passes[coarse // 2 : coarse // 2 + size - coarse] = False
    masked = spectrum * passes[:, None] * passes
    folded = masked.reshape(factor, coarse, factor, coarse)
    cropped: Floats = folded.sum(axis=(0, 2))
    return cropped
