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

# Images of dead leaves from which channels are whitened.
LEAVES = 1000

# The term added to the channels' variances there, as a share of their mean.
FLOOR = 0.1

# Channels of a leaf network's layers, and the sizes and strides of their kernels.
WIDTHS = (64, 96, 160)
KERNEL_SIZES = (4, 4, 3)
STRIDES = (2, 2, 1)

# Numbers in an output of the network's head, on which its loss is.
_OUTPUTS = 64


def draw_dead_leaves(
    count: int, side: int, *, channels: int = 3, leaves: int = 60, generator: torch.Generator
) -> Tensor:
    """Return images (count, channels, side, side) in [0, 1] of discs that hide one another."""
    # Radii have density r⁻³ between a sixteenth and a half of the side, places and colours are
    # uniform. No number in them comes from anybody's image, so learning from them is free. Sources:
    # Lee, Mumford and Huang 2001; Baradad et al. 2021, who learn features from them.
    for name, value in (("count", count), ("side", side), ("leaves", leaves)):
        _check.count(name, value)
    pixel = torch.arange(side, dtype=torch.float32)
    # The background: one colour an image.
    images = torch.rand(count, channels, 1, 1, generator=generator).repeat(1, 1, side, side)
    # At least a pixel.
    low = max(side / 16, 1.0)
    high = max(side / 2, 1.0)
    for _ in range(leaves):
        # By inversion: of density r⁻³, 1/r² is uniform.
        coins = torch.rand(count, 1, 1, generator=generator)
        radius = (high**-2 + coins * (low**-2 - high**-2)).rsqrt()
        centre = torch.rand(count, 2, 1, generator=generator) * side
        along = (pixel - centre[:, 0])[:, None, :] ** 2
        down = (pixel - centre[:, 1])[:, :, None] ** 2
        # (n, 1, side, side): pixels that the disc covers.
        inside = (along + down < radius**2)[:, None]
        colour = torch.rand(count, channels, 1, 1, generator=generator)
        # The latest leaf hides those below it.
        images = torch.where(inside, colour, images)
    return images


def draw_patches(images: Tensor, size: int, count: int, *, generator: torch.Generator) -> Tensor:
    """Return `count` random patches (count, channels, size, size) of images."""
    image = torch.randint(len(images), (count,), generator=generator)
    # Places where a patch's upper left corner may lie, along a side.
    corners = images.shape[2] - size + 1
    corner = torch.randint(corners, (count, 2), generator=generator)
    offset = torch.arange(size)
    rows = (corner[:, :1] + offset)[:, :, None]
    columns = (corner[:, 1:] + offset)[:, None, :]
    # (n, size, size, channels): separated indices put their axes first.
    patches: Tensor = images[image[:, None, None], :, rows, columns]
    return patches.movedim(-1, 1)


def compute_whitening(patches: Tensor, *, floor: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and the symmetric matrix (d, d) that whitens patches (n, …).

    floor: added to the variances, of values in [0, 1].
    """
    flat = patches.flatten(1).double()
    mean = flat.mean(dim=0)
    # (d, d), in double precision.
    covariance = (flat - mean).T @ (flat - mean) / len(flat)
    variances, directions = torch.linalg.eigh(covariance)
    # 1/√(variance + floor) along each direction: the floor keeps weak directions from being blown
    # up.
    scales = (variances.clamp_min(0) + floor).rsqrt()
    matrix = directions @ torch.diag(scales) @ directions.T
    return mean.float(), matrix.float()


def scale_to_unit(values: Tensor) -> Tensor:
    """Return rows (n, …) at norm 1; a row of zeros stays."""
    # Below it a norm's squares underflow.
    least_norm = math.sqrt(torch.finfo(torch.float32).tiny)
    return nn.functional.normalize(values.flatten(1), dim=1, eps=least_norm).view_as(values)


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
    """The image itself as features: for a head that turns and mirrors, or to compare with."""

    def __call__(self, images: Tensor) -> Tensor:
        """Return the images."""
        return images


@dataclass(frozen=True, slots=True)
class LeafPatches:
    """The likeness of each place of an image to patches that a random process drew."""

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
        filters, mean, matrix = make_patch_filters(self)
        # Centring a patch, whitening it and comparing it are linear: one convolution makes all.
        centred = torch.cat([matrix @ filters.T, matrix], dim=1).T
        bias = -centred @ mean
        # The kernel less its mean centres every patch that it meets.
        centred = centred - centred.mean(dim=1, keepdim=True)
        kernels = centred.view(-1, self.colours, self.size, self.size)
        pool = nn.AdaptiveAvgPool2d(self.places)
        features = []
        for batch in torch.split(images, part):
            # (n, filters + d, …): likenesses, and the whitened patch itself.
            outputs = nn.functional.conv2d(batch, kernels, bias)
            responses, white = outputs.split_with_sizes([self.filters, len(mean)], dim=1)
            # By the whitened patch's norm, so that a response is a cosine.
            responses = responses / white.norm(dim=1, keepdim=True).clamp_min(1e-6)
            positive = pool((responses - self.threshold).clamp_min(0))
            negative = pool((-responses - self.threshold).clamp_min(0))
            features.append(torch.cat([positive, negative], dim=1))
        return torch.cat(features)


@functools.lru_cache(maxsize=8)
def make_patch_filters(transform: LeafPatches) -> tuple[Tensor, Tensor, Tensor]:
    """Return filters (filters, d), the patches' mean (d,) and the whitening matrix (d, d)."""
    generator = torch.Generator().manual_seed(transform.seed)
    images = draw_dead_leaves(1000, transform.side, channels=transform.colours, generator=generator)
    patches = draw_patches(images, transform.size, 40_000, generator=generator).flatten(1)
    # Each patch less its own mean, so that filters tell of form and not of brightness.
    patches = patches - patches.mean(dim=1, keepdim=True)
    mean, matrix = compute_whitening(patches[:, None, None, :])
    chosen = torch.randint(len(patches), (transform.filters,), generator=generator)
    return scale_to_unit((patches[chosen] - mean) @ matrix), mean, matrix


def normalise(features: Tensor, groups: int, power: float = 1.0) -> Tensor:
    """Return features with each group of channels at mean 0 and variance 1, then at norm 1.

    power: of the size of each value, applied first, while its sign stays: below 1, few strong
    responses no longer outweigh many weak ones.
    """
    # A record is normalised by its own values alone, so this is no statistic of the data. Sources:
    # Wu and He 2018; Tramèr and Boneh 2021 on scattering features; Perronnin, Sánchez and Mensink
    # 2010 for the power.
    channels = features.shape[1]
    if not 1 <= groups <= channels or channels % groups:
        raise InputError(f"groups = {groups}: must divide the {channels} channels")
    if power != 1:
        features = features.sign() * features.abs() ** power
    return scale_to_unit(nn.functional.group_norm(features, groups))


def apply_transform(
    transform: Transform, pixels: NDArray[np.uint8], cache: str | Path | None = None
) -> Tensor:
    """Return the transform of images of bytes, scaled to [0, 1].

    cache: a folder in which features are stored in half precision, under a hash of transform and
    images, and read another time. They are data about people as the images are.
    """
    # Some images at a time, which bounds the memory and changes nothing.
    parts = (pixels[start : start + 1024] for start in range(0, len(pixels), 1024))
    if cache is None:
        return torch.cat([transform(_scale_bytes(part)) for part in parts])
    # The name says which images and which transform: another of either has another file.
    digest = hashlib.blake2b(np.ascontiguousarray(pixels).tobytes(), digest_size=12)
    digest.update(repr(transform).encode())
    path = Path(cache) / f"features-{digest.hexdigest()}.npy"
    if not path.exists():
        features = torch.cat([transform(_scale_bytes(part)).half() for part in parts])
        with writing(path, STATE) as file:
            np.save(file, features.numpy())
    return torch.from_numpy(np.load(path, allow_pickle=False)).float()


def _scale_bytes(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels.astype(np.float32) / 255)


def make_views(
    pixels: NDArray[np.uint8], *, mirrored: bool = False, turn: float = 0.0
) -> list[NDArray[np.uint8]]:
    """Return the images, and each of them mirrored and turned, always in the same order.

    turn: degrees by which each also comes turned, either way; corners from outside repeat the
    border.
    """
    # Features that are averaged over these are nearly the same for all of them, so that a head has
    # not to learn from people that a mirrored or turned image shows the same.
    views = [pixels] + [turn_images(pixels, angle) for angle in (-turn, turn) if angle]
    if not mirrored:
        return views
    return views + [view[..., ::-1] for view in views]


def turn_images(pixels: NDArray[np.uint8], degrees: float) -> NDArray[np.uint8]:
    """Return images turned against the clock, between pixels by the four nearest."""
    values = pixels.astype(np.float32)
    turned = ndimage.rotate(values, degrees, axes=(3, 2), reshape=False, order=1, mode="nearest")
    rounded: NDArray[np.uint8] = np.rint(turned).astype(np.uint8)
    return rounded


def whiten(features: Tensor, whitening: tuple[Tensor, Tensor]) -> Tensor:
    """Return features less a mean, with channels mixed by a matrix, then at norm 1."""
    # A linear head under noise learns first along the directions in which features vary most; in
    # whitened ones no direction has to wait. Neither mean nor matrix is the data's:
    # `compute_leaf_whitening` takes both from a random process, so that this costs nothing.
    mean, matrix = whitening
    parts = []
    for part in torch.split(features, 2048):
        mixed = torch.einsum("cd,ndhw->nchw", matrix, part - mean[:, None, None])
        parts.append(scale_to_unit(mixed))
    return torch.cat(parts)


@functools.lru_cache(maxsize=4)
def compute_leaf_whitening(
    transform: Transform,
    side: int,
    colours: int,
    groups: int,
    share: float = 1.0,
    power: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return mean and whitening matrix of the channels that dead leaves have.

    share: power of the matrix in [0, 1]; at 1 the leaves' covariance is undone.
    """
    generator = torch.Generator().manual_seed(1)
    # From a process of which the generator is public: the statistics are nobody's.
    leaves = draw_dead_leaves(LEAVES, side, channels=colours, generator=generator)
    # (n·places², channels): each place is a sample.
    rows = normalise(transform(leaves), groups, power).movedim(1, -1).flatten(0, 2)
    floor = FLOOR * float(rows.var(dim=0).mean())
    mean, matrix = compute_whitening(rows[:, :, None, None], floor=floor)
    # The matrix to the power `share`, in its own directions.
    values, vectors = torch.linalg.eigh(matrix)
    return mean, vectors @ torch.diag(values**share) @ vectors.T


def soft_bins(values: Tensor, count: int) -> Tensor:
    """Return the nearness of each number to each of `count` knots, spread evenly over [-1, 1].

    A number lies between two knots and is shared between them, 1 in all; a linear head on the
    shares is a line through chosen heights at the knots. Knots come from the declared range alone.

    Args:
        values: (n, columns), in [-1, 1] as `encode` makes them; a number outside counts as the
            nearer end.
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
    # In units of the distance between two knots.
    positions = (values.clamp(-1, 1) + 1) * (count - 1) / 2
    # (n, columns, count): distance to each knot, in steps.
    distances = (positions[..., None] - torch.arange(count)).abs()
    shares: Tensor = (1 - distances).clamp_min(0)
    return shares.flatten(1)


@dataclass(frozen=True, slots=True)
class LeafNetwork:
    """Activations of a small convolutional network that was trained on a random process alone.

    It learns to tell images of dead leaves apart under crops, mirroring and changes of colour: two
    views of an image come close, all others spread. Its normalisation is that of dead leaves too.
    The features are the activations of its last two layers, averaged over `places` by `places`
    regions. A record's features depend on that record alone, and on a seed that is no secret.

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
        layers = train_network(self)
        pool = nn.AdaptiveAvgPool2d(self.places)
        features = []
        for batch in torch.split(images, part):
            # Two layers, then the third on top of them.
            hidden = layers[:2](batch)
            output = layers[2](hidden)
            features.append(torch.cat([pool(hidden), pool(output)], dim=1))
        return torch.cat(features)


@functools.lru_cache(maxsize=4)
@torch.enable_grad()  # features are computed without gradients, and the first use trains
def train_network(transform: LeafNetwork) -> nn.Sequential:
    """Return the three layers of a network, trained, in evaluation mode."""
    generator = torch.Generator().manual_seed(transform.seed)
    # torch's global stream is put back afterwards.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(transform.seed)
        layers = nn.Sequential()
        shapes = zip((transform.colours, *WIDTHS), WIDTHS, KERNEL_SIZES, STRIDES, strict=False)
        # Without a bias, which the normalisation after it would take off.
        for inputs, outputs, size, stride in shapes:
            convolution = nn.Conv2d(inputs, outputs, size, stride, padding=1, bias=False)
            layers.append(nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU()))
        width = WIDTHS[-1]
        head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, _OUTPUTS))
    model = nn.Sequential(layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, transform.steps)
    for _ in range(transform.steps):
        leaves = draw_dead_leaves(
            transform.batch, transform.side, channels=transform.colours, generator=generator
        )
        # Two views of each image: those of one image are to come close.
        views = torch.cat([draw_view(leaves, generator), draw_view(leaves, generator)])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            values = model(views.contiguous(memory_format=torch.channels_last))
        loss = compute_spread_loss(*values.float().chunk(2))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    return layers.eval().requires_grad_(False)


def draw_view(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random crop of each image, perhaps mirrored, its colours changed."""

    def draw(*shape: int) -> Tensor:
        return torch.rand(len(images), *shape, generator=generator)

    # The crop's side is 40 to 100 % of the image's, and the crop lies anywhere in it.
    size = 0.4 + 0.6 * draw()
    # In coordinates of [-1, 1] a crop of half side `size` fits where its centre is within 1 − size.
    centre = (2 * draw(2) - 1) * (1 - size)[:, None]
    mirror = 2 * (draw() < 0.5) - 1
    affine = torch.zeros(len(images), 2, 3)
    # Rows of the inverse map: where each pixel of the crop is taken from.
    affine[:, 0, 0] = size * mirror
    affine[:, 1, 1] = size
    affine[:, :, 2] = centre
    grid = nn.functional.affine_grid(affine, list(images.shape), align_corners=False)
    crop = nn.functional.grid_sample(images, grid, align_corners=False, padding_mode="reflection")
    # One in five comes in shades of grey.
    grey = crop.mean(dim=1, keepdim=True)
    crop = torch.where(draw(1, 1, 1) < 0.2, grey, crop)
    # Contrast by 50 to 150 %, and a shift of each colour by 20 % of the range at most.
    middle = crop.mean(dim=(2, 3), keepdim=True)
    contrast = 0.5 + draw(1, 1, 1)
    shift = 0.4 * draw(images.shape[1], 1, 1) - 0.2
    view: Tensor = middle + (crop - middle) * contrast + shift
    return view.clamp(0, 1)


def compute_spread_loss(left: Tensor, right: Tensor) -> Tensor:
    """Return the distance of two views' outputs (n, d), plus the crowding among all of them."""
    # Source: Wang and Isola 2020, alignment and uniformity.
    # Of norm 1: only directions count.
    views = [nn.functional.normalize(outputs, dim=1) for outputs in (left, right)]
    alignment = (views[0] - views[1]).square().sum(dim=1).mean()
    crowding = []
    for view in views:
        # log of the mean of exp(−2·distance²) over all pairs: small where views spread evenly.
        likeness = torch.pdist(view).square().mul(-2).exp()
        crowding.append(likeness.mean().log())
    return alignment + sum(crowding) / 2
