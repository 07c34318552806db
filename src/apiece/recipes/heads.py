"""What is trained on frozen features: a linear layer, or small convolutional networks."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from torch import nn

from apiece.recipes.equivariant import equivariant_cnn

Shape = tuple[int, int, int]  # channels, height, width


def linear(shape: Shape, classes: int) -> nn.Module:
    """Return a linear layer on all features, which starts from zero.

    Args:
        shape: Of one record's features.
        classes: How many there are.

    Example:
        >>> import torch
        >>> linear((81, 7, 7), 10)(torch.ones(1, 81, 7, 7)).tolist()[0][:2]
        [0.0, 0.0]
    """
    layer = nn.Linear(shape[0] * shape[1] * shape[2], classes)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return nn.Sequential(nn.Flatten(), layer)


def small_cnn(shape: Shape, classes: int, *, width: int = 32) -> nn.Module:
    """Return a convolution, pooling and two linear layers, with tanh between.

    Args:
        shape: Of one record's features, at least 4 by 4 places.
        classes: How many there are.
        width: Channels after the convolution.

    References:
        Tramèr and Boneh 2021, whose networks on scattering features it is a smaller form of.

    Example:
        >>> import torch
        >>> small_cnn((81, 7, 7), 10)(torch.ones(2, 81, 7, 7)).shape
        torch.Size([2, 10])
    """
    side = (shape[1] // 2, shape[2] // 2)
    return nn.Sequential(
        nn.Conv2d(shape[0], width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(width * side[0] * side[1], width), nn.Tanh(),
        nn.Linear(width, classes),
    )  # fmt: skip


HEADS: MappingProxyType[str, Callable[[Shape, int], nn.Module]] = MappingProxyType(
    {"linear": linear, "small-cnn": small_cnn, "equivariant-cnn": equivariant_cnn}
)
