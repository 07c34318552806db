"""A network whose answer does not change when an image is turned by quarters or mirrored."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TurnedConvolution(nn.Module):
    """A convolution with each filter turned by quarters and mirrored, and the largest reply kept.

    Turning or mirroring the input turns or mirrors the output, and does nothing else to it, where
    stride and padding fit the side: (side + 2·padding − size) is a multiple of the stride.

    Args:
        before: Channels that come in.
        after: Filters, each in its eight forms.
        size: Of a filter's side.
        stride: Between places.
        padding: With zeros.

    References:
        Cohen and Welling 2016, lifting and pooling over the group; Hölzl et al. 2023 with private
        training.

    Example:
        >>> TurnedConvolution(1, 4, 3)(torch.rand(2, 1, 8, 8)).shape
        torch.Size([2, 4, 8, 8])
    """

    def __init__(
        self, before: int, after: int, size: int, *, stride: int = 1, padding: int = 1
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.Conv2d(before, after, size).weight.detach().clone())
        self.bias = nn.Parameter(torch.zeros(after))
        self.stride, self.padding = stride, padding

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, after, places, places).

        Args:
            x: (n, before, side, side).
        """
        sides = (self.weight, self.weight.flip(3))
        forms = torch.cat([torch.rot90(w, turn, (2, 3)) for w in sides for turn in range(4)])
        replies = nn.functional.conv2d(x, forms, stride=self.stride, padding=self.padding)
        best: Tensor = replies.view(len(x), 8, -1, *replies.shape[2:]).amax(dim=1)
        return best + self.bias[:, None, None]


def equivariant_cnn(shape: tuple[int, int, int], classes: int, *, width: int = 24) -> nn.Module:
    """Return two turned convolutions, the mean over places, and a linear layer.

    Outputs are the same for an image, its quarter turns and its mirror images, where these only
    move the features: so for "pixels". Channels of wavelets have directions, which turns exchange.

    Args:
        shape: Of one record's features: channels, and an even number of places twice.
        classes: How many there are.
        width: Channels after the first convolution; twice as many after the second.

    Example:
        >>> equivariant_cnn((3, 16, 16), 10)(torch.ones(2, 3, 16, 16)).shape
        torch.Size([2, 10])
    """
    return nn.Sequential(
        TurnedConvolution(shape[0], width, 5, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        TurnedConvolution(width, 2 * width, 3), nn.Tanh(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, classes),
    )  # fmt: skip
