"""Per-record weight gradients of convolutions in one, two and three dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn

from apiece.training.clipping.contributions import (
    KEEP,
    Contribution,
    Slices,
    blank,
    gram_sum,
    made_again,
    term_sizes,
)
from apiece.training.clipping.kernels import Squares, may_keep, row_squares

_CELLS = 1 << 18  # entries of patches at a time: they stay in the second-level cache
_GRADIENTS = 1 << 19  # entries of per-record gradients at a time from a grouped convolution
_CONVOLVE: dict[int, Any] = {
    3: nn.functional.conv1d,
    4: nn.functional.conv2d,
    5: nn.functional.conv3d,
}  # by how many dimensions a batch has
_FEW_PLACES = 0.5  # of the gradients' multiplications, below which Gram matrices are quicker
_LANES = 8  # channels a group below which oneDNN's blocked layouts are mostly padding


class Kernel(NamedTuple):
    """A convolution's arithmetic: the weight's shape (O, C/G, *kernel), and how it moves."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @property
    def numel(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @property
    def entering(self) -> int:
        """How many weights each output has."""
        return math.prod(self.shape[1:])


def convolution(kernel: Kernel, inputs: torch.Tensor, outputs: torch.Tensor) -> Contribution:
    """Return the weight's contribution from the input and the gradient of the output.

    Per-record gradients that fit in memory are kept: their weighted sum is then a by-product, and
    all in all as many products are made as in plain back-propagation. Those that do not fit are
    never held together: norms come in slices, the sum from one convolution; nor are those of many
    channels at few places, which are far larger than all that they are made of.
    """
    use = Convolution(kernel, inputs.contiguous(), outputs.contiguous())
    if use.gram_share <= _FEW_PLACES:
        return use
    fits = may_keep(outputs.shape[0] * kernel.numel, KEEP)
    return Slices(use.slices()) if fits else use


def patches(kernel: Kernel, padded: torch.Tensor, places: torch.Size) -> torch.Tensor:
    """Return a view (B, G, *places, C/G, *kernel): what each weight meets at each place."""
    batch, channels, *_ = padded.shape
    first, second, *steps = padded.stride()
    groups = kernel.groups
    size = (batch, groups, *places, channels // groups, *kernel.shape[2:])
    taps = [s * d for s, d in zip(steps, kernel.dilation, strict=True)]
    moves = [s * d for s, d in zip(steps, kernel.stride, strict=True)]
    stride = (first, second * (channels // groups), *moves, second, *taps)
    return padded.as_strided(size, stride, padded.storage_offset())


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Convolution:
    """The weight of a convolution; inputs: (B, C, *), outputs: (B, O, *places), both contiguous."""

    kernel: Kernel
    inputs: torch.Tensor
    outputs: torch.Tensor

    @property
    def gram_share(self) -> float:
        """What Gram matrices over places cost, of what the gradients themselves do."""
        places = self.outputs[0, 0].numel()
        into = self.kernel.entering
        out = self.kernel.shape[0] // self.kernel.groups
        return float(places * (into + out) / (into * out))

    @property
    def by_onednn(self) -> bool:
        """Whether oneDNN may make the gradients, all records as groups of one convolution."""
        return (
            self.outputs.device.type == "cpu"
            and self.outputs.dtype == torch.float32
            and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
            and self.outputs.shape[1] // self.kernel.groups >= _LANES
        )

    @property
    def is_depthwise(self) -> bool:
        """Whether a group has one channel, on a processor: each is then an image of its own."""
        groups = self.kernel.groups
        one = groups > 1 and self.kernel.shape[1] == 1
        return one and self.outputs.device.type == "cpu"

    @property
    def columns_fill_lanes(self) -> bool:
        """Whether a few channels are many with a kernel's columns as channels of their own."""
        return self.outputs.dim() == 4 and math.prod(self.kernel.shape[1::2]) >= _LANES // 2

    def matrices(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradients (b·G, O/G, L) and patches (b·G, L, C/G·K) of some records."""
        outputs, groups = self.outputs[start:end], self.kernel.groups
        left = outputs.reshape(outputs.shape[0] * groups, outputs.shape[1] // groups, -1)
        ends = [n for n in reversed(self.kernel.padding) for _ in range(2)]
        padded = nn.functional.pad(self.inputs[start:end], ends)
        view = patches(self.kernel, padded, self.outputs.shape[2:])
        return left, view.reshape(left.shape[0], left.shape[2], -1)

    def _over(
        self, function: Callable[[int, int], torch.Tensor], width: int
    ) -> Iterator[torch.Tensor]:
        total, width = self.outputs.shape[0], max(1, width)
        return (function(s, min(s + width, total)) for s in range(0, total, width))

    @property
    def _records(self) -> int:
        """How many records' patches are made at a time."""
        places = self.outputs[0, 0].numel()
        return _CELLS // (places * self.kernel.entering * self.kernel.groups)

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return squared norms by the cheaper of Gram matrices and gradients, in slices."""
        function = self._ghost if self.gram_share <= 1 else self._instantiated
        return torch.cat(tuple(self._over(function, self._records)))

    def _ghost(self, start: int, end: int) -> torch.Tensor:
        left, right = self.matrices(start, end)
        widths = left.shape[1], right.shape[2]
        squares = gram_sum(left.mT @ left, right @ right.mT, *widths)
        return squares.view(end - start, -1).sum(1)

    def _instantiated(self, start: int, end: int) -> torch.Tensor:
        left, right = self.matrices(start, end)
        squares = made_again(row_squares(left @ right), left.mT, right)
        return squares.view(end - start, -1).sum(1)

    def sizes(self) -> torch.Tensor:
        """Return Σ_t ‖left_t‖‖right_t‖ over places, (B,)."""
        return torch.cat(tuple(self._over(self._sizes, self._records)))

    def _sizes(self, start: int, end: int) -> torch.Tensor:
        left, right = self.matrices(start, end)
        return term_sizes(left.mT, right).view(end - start, -1).sum(1)

    def per_record(self) -> torch.Tensor:
        """Return (B, O, C/G, *kernel)."""
        return torch.cat(self.slices())

    def slices(self) -> tuple[torch.Tensor, ...]:
        """Return the same, some records a tensor."""
        return tuple(self.pieces())

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the same, some records at a time."""
        width = _GRADIENTS // self.kernel.numel
        if self.is_depthwise:
            return self._over(self._by_channel, width)
        if self.by_onednn and self.kernel.shape[1] >= _LANES:
            return self._over(self._grouped, width)
        if self.by_onednn and self.columns_fill_lanes:
            return self._over(self._by_columns, min(width, 8 * self._records))
        return self._over(self._gradients, self._records)

    def _gradients(self, start: int, end: int) -> torch.Tensor:
        left, right = self.matrices(start, end)
        return (left @ right).view(end - start, *self.kernel.shape)

    def _grouped(self, start: int, end: int) -> torch.Tensor:
        """Return the gradients of some records as those of one image with a group a record."""
        inputs, outputs = self.inputs[start:end], self.outputs[start:end]
        count = end - start
        shape = (count * outputs.shape[1], *self.kernel.shape[1:])
        found = _weight_gradient(
            outputs.reshape(1, -1, *outputs.shape[2:]),
            inputs.reshape(1, -1, *inputs.shape[2:]),
            outputs.new_empty(shape),
            self.kernel.stride,
            self.kernel.padding,
            self.kernel.dilation,
            count * self.kernel.groups,
        )
        return found.view(count, *self.kernel.shape)

    def _by_channel(self, start: int, end: int) -> torch.Tensor:
        """Return the same where a group has one channel: the output's gradient as a long kernel.

        The step between its entries is the layer's stride, and it moves by the layer's dilation.
        """
        conv, outputs, count = self.kernel, self.outputs[start:end], end - start
        inputs = self.inputs[start:end]
        found: torch.Tensor = _CONVOLVE[outputs.dim()](
            inputs.reshape(1, -1, *inputs.shape[2:]),
            outputs.reshape(-1, 1, *outputs.shape[2:]),
            None,
            conv.dilation,
            self.kernel.padding,
            conv.stride,
            inputs.shape[0] * inputs.shape[1],
        )
        for axis, size in enumerate(conv.shape[2:]):  # what a stride leaves over at the end
            found = found.narrow(axis + 2, 0, size)
        return found.reshape(count, *conv.shape)

    def _by_columns(self, start: int, end: int) -> torch.Tensor:
        """Return the same, with what each column of the kernel meets as a channel.

        That is a copy of the input for each column, where patches are one for each weight.
        """
        conv, outputs, count = self.kernel, self.outputs[start:end], end - start
        ends = [n for n in reversed(self.kernel.padding) for _ in range(2)]
        padded = nn.functional.pad(self.inputs[start:end], ends)
        (out, channels, high, wide), (_, _, height, places) = conv.shape, outputs.shape
        first, second, down, along = padded.stride()
        size = (count, padded.shape[1], wide, padded.shape[2], places)
        stride = (first, second, along * conv.dilation[1], down, along * conv.stride[1])
        columns = padded.as_strided(size, stride).reshape(1, -1, padded.shape[2], places)
        found = _weight_gradient(
            outputs.reshape(1, -1, height, places),
            columns,
            outputs.new_empty(count * out, channels * wide, high, 1),
            (conv.stride[0], 1),
            (0, 0),
            (conv.dilation[0], 1),
            count * conv.groups,
        )
        return found.view(count, out, channels, wide, high).transpose(3, 4).contiguous()

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weight gradient of the scaled output gradients: one convolution."""
        scaled = self.outputs * weights.view(-1, *([1] * (self.outputs.dim() - 1)))
        conv = self.kernel
        weight = scaled.new_empty(conv.shape)
        return _weight_gradient(
            scaled,
            self.inputs,
            weight,
            conv.stride,
            self.kernel.padding,
            conv.dilation,
            conv.groups,
        )

    def without(self, bad: torch.Tensor) -> Convolution:
        """Return this with the records at `bad` set to zero."""
        return replace(self, inputs=blank(self.inputs, bad), outputs=blank(self.outputs, bad))


def _weight_gradient(
    outputs: torch.Tensor,
    inputs: torch.Tensor,
    weight: torch.Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> torch.Tensor:
    """Return what autograd gives a convolution's weight; of `weight` only the shape counts."""
    steps = (stride, padding, dilation, False, (0,) * len(padding), groups)
    _, gradient, _ = torch.ops.aten.convolution_backward(
        outputs, inputs, weight, None, *steps, [False, True, False]
    )
    assert isinstance(gradient, torch.Tensor)
    return gradient
