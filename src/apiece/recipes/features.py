"""From images to features that no private data has shaped, at norm 1."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor, nn

from apiece import _check
from apiece._files import STATE, writing
from apiece.errors import InputError
from apiece.recipes.leaves import dead_leaves, patches_of, require_shape, unit, whitening


class Transform(Protocol):
    """Maps images (n, c, side, side) in [0, 1] to features, a record at a time."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return (n, channels, places, places)."""

    def __hash__(self) -> int:
        """Return the same for equal transforms."""


@dataclass(frozen=True, slots=True)
class Pixels:
    """The image as it is: for a head that turns and mirrors, or to compare with."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images."""
        return images


@dataclass(frozen=True, slots=True)
class LeafPatches:
    """How like each place of an image is to patches that a random process drew."""

    # Filters are whitened patches of dead leaves; mean and covariance are those of dead leaves too.
    # The responses above a threshold, of both signs, are averaged over `places` by `places`
    # regions. A record's features depend on that record alone, and on a seed that is no secret.
    # threshold: of a response, where a patch and its match have norm 1 each. Sources:
    # Coates and Ng 2012, whose patches are the data's own; Baradad et al. 2021 for dead leaves.

    side: int
    colours: int = 3
    filters: int = 256
    size: int = 6
    places: int = 3
    threshold: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("side", "colours", "filters", "size", "places"):
            _check.count(name, getattr(self, name))

    @torch.no_grad()
    def __call__(self, images: Tensor, *, part: int = 32) -> Tensor:
        """Return features (n, 2 · filters, places, places), `part` images at a time."""
        require_shape(images, self.colours, self.side)
        filters, mean, matrix = patch_filters(self)
        # centring a patch, whitening it and comparing it are linear: one convolution makes all
        centred = torch.cat([matrix @ filters.T, matrix], dim=1).T
        bias = -centred @ mean
        centred = centred - centred.mean(dim=1, keepdim=True)
        kernels = centred.view(-1, self.colours, self.size, self.size)
        pool = nn.AdaptiveAvgPool2d(self.places)
        made = []
        for few in torch.split(images, part):
            replies, white = nn.functional.conv2d(few, kernels, bias).split_with_sizes(
                [self.filters, len(mean)], dim=1
            )
            replies = replies / white.norm(dim=1, keepdim=True).clamp_min(1e-6)
            both = [pool((sign * replies - self.threshold).clamp_min(0)) for sign in (1, -1)]
            made.append(torch.cat(both, dim=1))
        return torch.cat(made)


@functools.lru_cache(maxsize=8)
def patch_filters(of: LeafPatches) -> tuple[Tensor, Tensor, Tensor]:
    """Return filters (filters, d), the patches' mean (d,) and the whitening matrix (d, d)."""
    source = torch.Generator().manual_seed(of.seed)
    images = dead_leaves(1000, of.side, channels=of.colours, generator=source)
    patches = patches_of(images, of.size, 40_000, generator=source).flatten(1)
    patches = patches - patches.mean(dim=1, keepdim=True)
    mean, matrix = whitening(patches[:, None, None, :])
    chosen = torch.randint(len(patches), (of.filters,), generator=source)
    return unit((patches[chosen] - mean) @ matrix), mean, matrix


def normalised(features: Tensor, groups: int, power: float = 1.0) -> Tensor:
    """Return features with each group of channels at mean 0 and variance 1, then at norm 1."""
    # A record is normalised by its own values alone, so this is no statistic of the data. power: to
    # which the size of each value is raised first, its sign kept: below 1 few strong replies no
    # longer outweigh many weak ones. Sources: Wu and He 2018; Tramèr and Boneh 2021 on scattering
    # features; Perronnin, Sánchez and Mensink 2010 for the power.
    channels = features.shape[1]
    if not 1 <= groups <= channels or channels % groups:
        raise InputError(f"groups = {groups}: must divide the {channels} channels")
    if power != 1:
        features = features.sign() * features.abs() ** power
    return unit(nn.functional.group_norm(features, groups))


def transformed(
    transform: Transform, pixels: NDArray[np.uint8], cache: str | Path | None = None
) -> Tensor:
    """Return the transform of images of bytes, scaled to [0, 1]."""
    # cache: a folder where features are kept in half precision, under a hash of transform and
    # images, and read another time. They are data about people as the images are.
    parts = (pixels[start : start + 1024] for start in range(0, len(pixels), 1024))
    if cache is None:
        return torch.cat([transform(_scaled(part)) for part in parts])
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=12)
    digest.update(repr(transform).encode())
    path = Path(cache) / f"features-{digest.hexdigest()}.npy"
    if not path.exists():
        made = torch.cat([transform(_scaled(part)).half() for part in parts])
        with writing(path, STATE) as file:
            np.save(file, made.numpy())
    return torch.from_numpy(np.load(path, allow_pickle=False)).float()


def _scaled(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255)


def views(
    pixels: NDArray[np.uint8], *, mirrored: bool = False, turn: float = 0.0
) -> list[NDArray[np.uint8]]:
    """Return the images, and each of them mirrored and turned, always in the same order."""
    # Features that are averaged over these are nearly the same for all of them, so that a head has
    # not to learn from people that a mirrored or turned image shows the same. turn: degrees by
    # which each also comes turned, either way; corners that come from outside repeat the border.
    made = [pixels] + [turned(pixels, angle) for angle in (-turn, turn) if angle]
    return made + [view[..., ::-1] for view in made if mirrored]


def turned(pixels: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    """Return images turned against the clock, between pixels by the four nearest."""
    values = pixels.astype(np.float32)
    near = ndimage.rotate(values, degrees, axes=(3, 2), reshape=False, order=1, mode="nearest")
    made: NDArray[np.uint8] = np.rint(near).astype(np.uint8)
    return made


LEAVES, FLOOR = 1000, 0.1  # images, and what is added to variances, as a share of their mean


def whitened(features: Tensor, like: tuple[Tensor, Tensor]) -> Tensor:
    """Return features with a mean taken off and channels mixed by a matrix, then at norm 1."""
    # A linear head under noise learns first along the directions in which features vary most; in
    # whitened ones no direction has to wait. Neither mean nor matrix is the data's:
    # `leaf_whitening` takes both from a random process, so that this costs nothing.
    mean, matrix = like
    parts = [
        unit(torch.einsum("cd,ndhw->nchw", matrix, few - mean[:, None, None]))
        for few in torch.split(features, 2048)
    ]
    return torch.cat(parts)


@functools.lru_cache(maxsize=4)
def leaf_whitening(
    transform: Transform,
    side: int,
    colours: int,
    groups: int,
    share: float = 1.0,
    power: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return mean and whitening matrix of the channels that dead leaves have."""
    # share: power of the matrix in [0, 1]; at 1 the leaves' covariance is undone.
    source = torch.Generator().manual_seed(1)
    leaves = dead_leaves(LEAVES, side, channels=colours, generator=source)
    rows = normalised(transform(leaves), groups, power).movedim(1, -1).flatten(0, 2)
    mean, matrix = whitening(rows[:, :, None, None], floor=FLOOR * float(rows.var(dim=0).mean()))
    values, vectors = torch.linalg.eigh(matrix)
    return mean, vectors @ torch.diag(values**share) @ vectors.T


def soft_bins(values: Tensor, count: int) -> Tensor:
    """Return how near each number is to each of `count` knots, spread evenly over [-1, 1].

    A number lies between two knots and is shared between them, 1 in all; a linear head on the
    shares is a line through chosen heights at the knots. Knots come from the declared range alone.

    Args:
        values: (n, columns), in [-1, 1] as `encode` makes them; what lies outside counts as the
            end.
        count: Knots, at least 2.

    Returns:
        (n, columns · count), of each column its shares in order.

    Raises:
        InputError: For fewer than two knots.

    References:
        Hastie and Tibshirani 1990 §2: linear splines, one a column.

    Example:
        >>> soft_bins(torch.tensor([[-1.0], [0.5]]), 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    """
    _check.count("count", count, least=2)
    place = (values.clamp(-1, 1) + 1) * (count - 1) / 2
    shares: Tensor = (1 - (place[..., None] - torch.arange(count)).abs()).clamp_min(0)
    return shares.flatten(1)
