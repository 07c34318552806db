"""Dead leaves: images that a random process draws, with edges and scales as in photographs."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apiece import _check


def dead_leaves(
    count: int, side: int, *, channels: int = 3, leaves: int = 60, generator: torch.Generator
) -> Tensor:
    """Return images (count, channels, side, side) in [0, 1] of discs that hide one another.

    Radii have density r⁻³ between a sixteenth and a half of the side, places and colours are
    uniform. No number in them comes from anybody's image, so learning from them is free.

    Args:
        count: How many images.
        side: Pixels of a side.
        channels: Of colour.
        leaves: Discs an image.
        generator: Of the process.

    Raises:
        InputError: For what is no count.

    References:
        Lee, Mumford and Huang 2001; Baradad et al. 2021, who learn features from them.

    Example:
        >>> dead_leaves(2, 8, generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 8, 8])
    """
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
    """Return `count` random patches (count, channels, size, size) of images.

    Args:
        images: (n, channels, side, side).
        size: Pixels of a patch's side.
        count: How many.
        generator: Which.

    Example:
        >>> source = torch.Generator().manual_seed(0)
        >>> patches_of(torch.ones(2, 3, 8, 8), 6, 5, generator=source).shape
        torch.Size([5, 3, 6, 6])
    """
    record = torch.randint(len(images), (count,), generator=generator)
    room = images.shape[2] - size + 1
    corner = torch.randint(room, (count, 2), generator=generator)
    offset = torch.arange(size)
    rows = (corner[:, :1] + offset)[:, :, None]
    columns = (corner[:, 1:] + offset)[:, None, :]
    found: Tensor = images[record[:, None, None], :, rows, columns]
    return found.movedim(-1, 1)


def whitening(patches: Tensor, *, floor: float = 1e-2) -> tuple[Tensor, Tensor]:
    """Return the mean (d,) and the symmetric matrix (d, d) that whitens patches.

    Args:
        patches: (n, channels, size, size), of images that are nobody's.
        floor: Added to the variances, of values in [0, 1].

    Example:
        >>> source = torch.Generator().manual_seed(0)
        >>> mean, matrix = whitening(torch.rand(500, 1, 2, 2, generator=source), floor=0.0)
        >>> matrix.shape
        torch.Size([4, 4])
    """
    flat = patches.flatten(1).double()
    mean = flat.mean(dim=0)
    values, vectors = torch.linalg.eigh((flat - mean).T @ (flat - mean) / len(flat))
    matrix = vectors @ torch.diag((values.clamp_min(0) + floor).rsqrt()) @ vectors.T
    return mean.float(), matrix.float()


def unit(values: Tensor) -> Tensor:
    """Return rows at norm 1; a row of zeros stays.

    Args:
        values: (n, …).

    Example:
        >>> unit(torch.tensor([[3.0, 4.0]])).tolist()
        [[0.6000000238418579, 0.800000011920929]]
    """
    flat = values.flatten(1)
    size = flat.norm(dim=1, keepdim=True).clamp_min(math.sqrt(torch.finfo(torch.float32).tiny))
    found: Tensor = flat / size
    return found.view_as(values)
