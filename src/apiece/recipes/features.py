"""Features of images that no private data has shaped, at norm 1.

Dead leaves are images that a random process draws, with edges and scales as in photographs: what
is learned from them is learned from nobody.
"""

import functools
import hashlib
import math
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


def dead_leaves(
    count: int, side: int, *, channels: int = 3, leaves: int = 60, generator: torch.Generator
) -> Tensor:
    """Return images (count, channels, side, side) in [0, 1] of discs that hide one another."""
    # Radii have density r⁻³ between a sixteenth and a half of the side, places and colours are
    # uniform. No number in them comes from anybody's image, so learning from them is free. Sources:
    # Lee, Mumford and Huang 2001; Baradad et al. 2021, who learn features from them.
    for name, value in (("count", count), ("side", side), ("leaves", leaves)):
        _check.count(name, value)
    at = torch.arange(side, dtype=torch.float32)
    images = torch.rand(count, channels, 1, 1, generator=generator).repeat(1, 1, side, side)
    low, high = max(side / 16, 1.0), max(side / 2, 1.0)
    for _ in range(leaves):
        coins = torch.rand(count, 1, 1, generator=generator)
        radius = (high**-2 + coins * (low**-2 - high**-2)).rsqrt()
        place = torch.rand(count, 2, 1, generator=generator) * side
        far = (at - place[:, 0])[:, None, :] ** 2 + (at - place[:, 1])[:, :, None] ** 2
        colour = torch.rand(count, channels, 1, 1, generator=generator)
        images = torch.where((far < radius**2)[:, None], colour, images)
    return images


def patches_of(images: Tensor, size: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Return `count` random patches (count, channels, size, size) of images."""
    record = torch.randint(len(images), (count,), generator=generator)
    room = images.shape[2] - size + 1
    corner = torch.randint(room, (count, 2), generator=generator)
    offset = torch.arange(size)
    rows = (corner[:, :1] + offset)[:, :, None]
    columns = (corner[:, 1:] + offset)[:, None, :]
    result: Tensor = images[record[:, None, None], :, rows, columns]
    return result.movedim(-1, 1)


def whitening(patches: Tensor, *, floor: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and the symmetric matrix (d, d) that whitens patches (n, …)."""
    # floor: added to the variances, of values in [0, 1].
    flat = patches.flatten(1).double()
    mean = flat.mean(dim=0)
    values, vectors = torch.linalg.eigh((flat - mean).T @ (flat - mean) / len(flat))
    matrix = vectors @ torch.diag((values.clamp_min(0) + floor).rsqrt()) @ vectors.T
    return mean.float(), matrix.float()


def unit(values: Tensor) -> Tensor:
    """Return rows (n, …) at norm 1; a row of zeros stays."""
    least = math.sqrt(torch.finfo(torch.float32).tiny)
    return nn.functional.normalize(values.flatten(1), dim=1, eps=least).view_as(values)


def require_shape(images: Tensor, colours: int | str, side: int) -> None:
    """Raise `InputError` unless images are (n, colours, side, side); "c" stands for any number."""
    fits = images.ndim == 4 and images.shape[2:] == (side, side)
    if not fits or colours not in ("c", images.shape[1]):
        raise InputError(
            f"images of shape {tuple(images.shape)}: must be (n, {colours}, {side}, {side})"
        )


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
        >>> import torch
        >>> from apiece.recipes import soft_bins
        >>> soft_bins(torch.tensor([[-1.0], [0.5]]), 3).tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]]
    """
    _check.count("count", count, least=2)
    place = (values.clamp(-1, 1) + 1) * (count - 1) / 2
    shares: Tensor = (1 - (place[..., None] - torch.arange(count)).abs()).clamp_min(0)
    return shares.flatten(1)


WIDTHS = (64, 96, 160)
KERNELS = ((4, 4, 3), (2, 2, 1))  # sizes and strides


@dataclass(frozen=True, slots=True)
class LeafNetwork:
    """Replies of a small convolutional network that was trained on a random process alone.

    It learns to tell images of dead leaves apart under crops, mirroring and changes of colour: two
    views of an image come close, all others spread. Its normalisation is that of dead leaves too.
    The features are the replies of its last two layers, averaged over `places` by `places` regions.
    A record's features depend on that record alone, and on a seed that is no secret.

    The first use trains it, which takes minutes; the same seed gives the same network on the same
    machine with as many threads. Sources: Tang et al. 2023 for private training after a random
    process; Baradad et al. 2021 for features from dead leaves; Wang and Isola 2020 for the loss.
    """

    side: int
    colours: int = 3
    steps: int = 800
    batch: int = 256
    places: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("side", "colours", "steps", "batch", "places"):
            _check.count(name, getattr(self, name))
        if self.side < 8 or self.batch < 2:
            raise InputError(f"side = {self.side}, batch = {self.batch}: at least 8 and 2")

    @torch.no_grad()
    def __call__(self, images: Tensor, *, part: int = 256) -> Tensor:
        """Return features (n, 256, places, places), `part` images at a time."""
        require_shape(images, self.colours, self.side)
        layers = trained(self)
        pool = nn.AdaptiveAvgPool2d(self.places)
        made = []
        for few in torch.split(images, part):
            middle = layers[:2](few)
            made.append(torch.cat([pool(middle), pool(layers[2](middle))], dim=1))
        return torch.cat(made)


@functools.lru_cache(maxsize=4)
@torch.enable_grad()  # features are asked for without
def trained(of: LeafNetwork) -> nn.Sequential:
    """Return the three layers of a network, trained, in evaluation mode."""
    source = torch.Generator().manual_seed(of.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(of.seed)
        layers = nn.Sequential()
        shapes = zip((of.colours, *WIDTHS), WIDTHS, *KERNELS, strict=False)
        for before, after, size, stride in shapes:
            convolution = nn.Conv2d(before, after, size, stride, padding=1, bias=False)
            layers.append(nn.Sequential(convolution, nn.BatchNorm2d(after), nn.ReLU()))
        head = nn.Sequential(
            nn.Linear(WIDTHS[-1], WIDTHS[-1]), nn.ReLU(), nn.Linear(WIDTHS[-1], 64)
        )
    whole = nn.Sequential(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    optimizer = torch.optim.Adam(whole.parameters(), lr=1e-3)
    pace = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, of.steps)
    for _ in range(of.steps):
        leaves = dead_leaves(of.batch, of.side, channels=of.colours, generator=source)
        both = torch.cat([view(leaves, source), view(leaves, source)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            outputs = whole(both.contiguous(memory_format=torch.channels_last))
        loss = spread_loss(*outputs.float().chunk(2))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        pace.step()
    return layers.eval().requires_grad_(False)


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image, perhaps mirrored, its colours changed."""

    def coins(*shape: int) -> Tensor:
        return torch.rand(len(images), *shape, generator=generator)

    size = 0.4 + 0.6 * coins()
    where = (2 * coins(2) - 1) * (1 - size)[:, None]
    turn = torch.zeros(len(images), 2, 3)
    turn[:, 0, 0], turn[:, 1, 1] = size * (2 * (coins() < 0.5) - 1), size
    turn[:, :, 2] = where
    grid = nn.functional.affine_grid(turn, list(images.shape), align_corners=False)
    seen = nn.functional.grid_sample(images, grid, align_corners=False, padding_mode="reflection")
    grey = seen.mean(dim=1, keepdim=True)
    seen = torch.where(coins(1, 1, 1) < 0.2, grey, seen)
    middle = seen.mean(dim=(2, 3), keepdim=True)
    gain, shift = 0.5 + coins(1, 1, 1), 0.4 * coins(images.shape[1], 1, 1) - 0.2
    changed: Tensor = middle + (seen - middle) * gain + shift
    return changed.clamp(0, 1)


def spread_loss(first: Tensor, second: Tensor) -> Tensor:
    """Return the distance of two views' outputs (n, d), plus how crowded all of them are."""
    # Source: Wang and Isola 2020, alignment and uniformity.
    one, two = (nn.functional.normalize(each, dim=1) for each in (first, second))
    near = (one - two).square().sum(dim=1).mean()
    crowds = [torch.pdist(each).square().mul(-2).exp().mean().log() for each in (one, two)]
    return near + sum(crowds) / 2
