"""Dead leaves: images that a random process draws, with edges and scales as in photographs."""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from apiece import _check
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
    flat = values.flatten(1)
    size = flat.norm(dim=1, keepdim=True).clamp_min(math.sqrt(torch.finfo(torch.float32).tiny))
    result: Tensor = flat / size
    return result.view_as(values)


def require_shape(images: Tensor, colours: int | str, side: int) -> None:
    """Raise `InputError` unless images are (n, colours, side, side); "c" stands for any number."""
    fits = images.ndim == 4 and images.shape[2:] == (side, side)
    if not fits or colours not in ("c", images.shape[1]):
        raise InputError(
            f"images of shape {tuple(images.shape)}: must be (n, {colours}, {side}, {side})"
        )


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
