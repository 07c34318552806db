"""Per-record weight gradients of convolutions in one, two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from apiece.training.clipping.contributions import (
    KEEP,
    Contribution,
    Products,
    Rows,
    Squares,
    at_a_time,
    may_keep,
    row_squares,
)

_CELLS = 1 << 18  # entries of patches at a time: they stay in a processor's second-level cache
_GRADIENTS = 1 << 19  # entries of per-record gradients at a time from a grouped convolution
_CONVOLVE: list[Any] = [nn.functional.conv1d, nn.functional.conv2d, nn.functional.conv3d]
_GRAM_SHARE = 0.5  # of the gradients' multiplications, below which Gram matrices are quicker
_LANES = 8  # channels a group below which oneDNN's blocked layouts are mostly padding


class Kernel(NamedTuple):
    """A convolution's arithmetic: the weight's shape (O, C/G, *kernel), and how it moves."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


def convolution(kernel: Kernel, inputs: torch.Tensor, outputs: torch.Tensor) -> Contribution:
    """Return the weight's contribution from the input and the gradient of the output.

    Per-record gradients that fit in memory are kept: their weighted sum is then a by-product, and
    all in all as many products are made as in plain back-propagation. Those that do not fit are
    never held together: norms come in slices, the sum from one convolution; nor are those of many
    channels at few places, which are far larger than all that they are made of.
    """
    use = Convolution(kernel, inputs.contiguous(), outputs.contiguous())
    if use.gram_share <= _GRAM_SHARE:
        return use
    fits = may_keep(outputs.shape[0] * math.prod(kernel.shape), KEEP)
    return Rows(use.per_record()) if fits else use


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Convolution(Contribution):
    """The weight of a convolution; inputs: (B, C, *), outputs: (B, O, *places), both contiguous."""

    kernel: Kernel
    inputs: torch.Tensor
    outputs: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, O, C/G, *kernel)."""
        return (len(self.outputs), *self.kernel.shape)

    @property
    def gram_share(self) -> float:
        """What Gram matrices over places cost, of what the gradients themselves do."""
        places, into = self.outputs[0, 0].numel(), math.prod(self.kernel.shape[1:])
        out = self.kernel.shape[0] // self.kernel.groups
        return float(places * (into + out) / (into * out))

    def _products(self, start: int, end: int) -> Products:
        """Return some records as gradients (b·G, L, O/G) times patches (b·G, L, C/G·K)."""
        outputs, conv = self.outputs[start:end], self.kernel
        left = outputs.reshape(outputs.shape[0] * conv.groups, outputs.shape[1] // conv.groups, -1)
        ends = [n for n in reversed(conv.padding) for _ in range(2)]
        padded = nn.functional.pad(self.inputs[start:end], ends)
        batch, channels, *_ = padded.shape
        first, second, *steps = padded.stride()
        each = channels // conv.groups
        # a view (B, G, *places, C/G, *kernel): what each weight meets at each place
        size = (batch, conv.groups, *outputs.shape[2:], each, *conv.shape[2:])
        taps = [s * d for s, d in zip(steps, conv.dilation, strict=True)]
        moves = [s * d for s, d in zip(steps, conv.stride, strict=True)]
        stride = (first, second * each, *moves, second, *taps)
        view = padded.as_strided(size, stride, padded.storage_offset())
        return Products(left.mT, view.reshape(left.shape[0], left.shape[2], -1))

    def _over(
        self, function: Callable[[int, int], torch.Tensor], width: int
    ) -> Iterator[torch.Tensor]:
        total, width = self.outputs.shape[0], max(1, width)
        return (function(s, min(s + width, total)) for s in range(0, total, width))

    @property
    def _records(self) -> int:
        """How many records' patches are made at a time."""
        cells = self.outputs[0, 0].numel() * math.prod(self.kernel.shape[1:])
        return at_a_time(self.inputs, _CELLS) // (cells * self.kernel.groups)

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return squared norms by the cheaper of Gram matrices and gradients, in slices."""
        return self._of_groups(Products.squares)

    def sizes(self) -> torch.Tensor:
        """Return Σ_t ‖left_t‖‖right_t‖ over places, (B,)."""
        return self._of_groups(Products.sizes)

    def _of_groups(self, function: Callable[[Products], torch.Tensor]) -> torch.Tensor:
        """Return what a function of products comes to over each record's groups, (B,)."""

        def some(start: int, end: int) -> torch.Tensor:
            return function(self._products(start, end)).view(end - start, -1).sum(1)

        return torch.cat(tuple(self._over(some, self._records)))

    def per_record(self) -> torch.Tensor:
        """Return (B, O, C/G, *kernel)."""
        result, start = self.outputs.new_empty(len(self.outputs), *self.kernel.shape), 0
        for piece in self.pieces():
            result[start : start + len(piece)] = piece
            start += len(piece)
        return result

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the same, some records at a time, by the quickest of three ways."""
        conv, outputs = self.kernel, self.outputs
        width, on_cpu = _GRADIENTS // math.prod(conv.shape), outputs.device.type == "cpu"
        if on_cpu and conv.groups > 1 and conv.shape[1] == 1:  # a channel is an image of its own
            return self._over(self._by_channel, width)
        by_onednn = on_cpu and outputs.dtype == torch.float32
        by_onednn = by_onednn and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        if by_onednn and min(conv.shape[1], outputs.shape[1] // conv.groups) >= _LANES:
            return self._over(self._grouped, width)
        return self._over(self._gradients, self._records)

    def _gradients(self, start: int, end: int) -> torch.Tensor:
        rows = self._products(start, end).per_record()
        return rows.view(end - start, *self.kernel.shape)

    def _grouped(self, start: int, end: int) -> torch.Tensor:
        """Return the gradients of some records as those of one image with a group a record."""
        inputs, outputs, conv = self.inputs[start:end], self.outputs[start:end], self.kernel
        count = end - start
        all_records = conv._replace(
            shape=(count * outputs.shape[1], *conv.shape[1:]), groups=count * conv.groups
        )
        result = _weight_gradient(
            all_records,
            outputs.reshape(1, -1, *outputs.shape[2:]),
            inputs.reshape(1, -1, *inputs.shape[2:]),
        )
        return result.view(count, *conv.shape)

    def _by_channel(self, start: int, end: int) -> torch.Tensor:
        """Return the same where a group has one channel: the output's gradient as a long kernel.

        The step between its entries is the layer's stride, and it moves by the layer's dilation.
        """
        inputs, outputs, conv = self.inputs[start:end], self.outputs[start:end], self.kernel
        result: torch.Tensor = _CONVOLVE[outputs.dim() - 3](
            inputs.reshape(1, -1, *inputs.shape[2:]),
            outputs.reshape(-1, 1, *outputs.shape[2:]),
            None,
            conv.dilation,
            conv.padding,
            conv.stride,
            inputs.shape[0] * inputs.shape[1],
        )
        for axis, size in enumerate(conv.shape[2:]):  # what a stride leaves over at the end
            result = result.narrow(axis + 2, 0, size)
        return result.reshape(end - start, *conv.shape)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weight gradient of the scaled output gradients: one convolution."""
        scaled = self.outputs * weights.view(-1, *([1] * (self.outputs.dim() - 1)))
        return _weight_gradient(self.kernel, scaled, self.inputs)


def _weight_gradient(conv: Kernel, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return what autograd gives a convolution's weight."""
    steps = (conv.stride, conv.padding, conv.dilation, False, (0,) * len(conv.padding), conv.groups)
    weight = outputs.new_empty(conv.shape)  # of which only the shape counts
    _, gradient, _ = torch.ops.aten.convolution_backward(
        outputs, inputs, weight, None, *steps, [False, True, False]
    )
    assert isinstance(gradient, torch.Tensor)
    return gradient
