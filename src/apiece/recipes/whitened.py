"""Features whose channels are whitened as those of dead leaves are."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from apiece.recipes.features import Transform, normalised
from apiece.recipes.leaves import dead_leaves, unit, whitening

LEAVES, FLOOR = 1000, 0.1  # images, and what is added to variances, as a share of their mean


def whitened(features: Tensor, like: tuple[Tensor, Tensor]) -> Tensor:
    """Return features with a mean taken off and channels mixed by a matrix, then at norm 1.

    A linear head under noise learns first along the directions in which features vary most; in
    whitened ones no direction has to wait. Neither mean nor matrix is the data's: `leaf_whitening`
    takes both from a random process, so that this costs nothing.

    Args:
        features: (n, channels, places, places).
        like: Mean (channels,) and matrix (channels, channels).

    Example:
        >>> features = torch.rand(2, 3, 4, 4)
        >>> norms = whitened(features, (torch.zeros(3), torch.eye(3))).flatten(1).norm(dim=1)
        >>> torch.allclose(norms, torch.ones(2))
        True
    """
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
    """Return mean and whitening matrix of the channels that dead leaves have.

    Args:
        transform: Of images, one that can be hashed.
        side: Pixels of a side.
        colours: Channels of the images.
        groups: By which channels are normalised first.
        share: Power of the matrix in [0, 1]: at 1 the leaves' covariance is undone.
        power: Of each value, as in `normalised`.

    Example:
        >>> from apiece.recipes.features import Pixels
        >>> mean, matrix = leaf_whitening(Pixels(), 8, 3, 1)
        >>> mean.shape, matrix.shape
        (torch.Size([3]), torch.Size([3, 3]))
    """
    source = torch.Generator().manual_seed(1)
    leaves = dead_leaves(LEAVES, side, channels=colours, generator=source)
    rows = normalised(transform(leaves), groups, power).movedim(1, -1).flatten(0, 2)
    mean, matrix = whitening(rows[:, :, None, None], floor=FLOOR * float(rows.var(dim=0).mean()))
    values, vectors = torch.linalg.eigh(matrix)
    return mean, vectors @ torch.diag(values**share) @ vectors.T
