"""Numbers as soft bins, so that a linear head can follow curves."""

from __future__ import annotations

import torch
from torch import Tensor

from apiece import _check


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
