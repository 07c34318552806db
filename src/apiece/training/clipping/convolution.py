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
    cells_at_a_time,
    may_keep,
    row_squares,
)

# Entries of patches at a time: they stay in a processor's second-level cache.
_CELLS = 1 << 18
# Entries of per-record gradients at a time from a grouped convolution.
_CELLS_OF_GRADIENTS = 1 << 19
# Share of the gradients' multiplications below which Gram matrices are quicker.
_GRAM_SHARE = 0.5
# Channels of a group below which oneDNN's blocked layouts are mostly padding.
_LANES = 8
# By the number of axes of an image, less one.
_CONVOLVE: list[Any] = [
    nn.functional.conv1d,
    nn.functional.conv2d,
    nn.functional.conv3d,
]


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
    result = Convolution(kernel, inputs.contiguous(), outputs.contiguous())
    if result.gram_share <= _GRAM_SHARE:
        return result
    cells = outputs.shape[0] * math.prod(kernel.shape)
    if may_keep(cells, KEEP):
        return Rows(result.per_record())
    return result


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
        # L²·(I + O) multiplications beside L·I·O, in each group
        # With L places, I = C/G·K values of a patch and O/G outputs, by group.
        places = self.outputs[0, 0].numel()
        into = self._patch
        out = self.kernel.shape[0] // self.kernel.groups
        return float(places * (into + out) / (into * out))

    @property
    def _patch(self) -> int:
        """How many values of the input one output value is made of: C/G·K."""
        return math.prod(self.kernel.shape[1:])

    def _products(self, start: int, end: int) -> Products:
        """Return some records as gradients (b·G, L, O/G) times patches (b·G, L, C/G·K)."""
        outputs = self.outputs[start:end]
        groups = self.kernel.groups
        batch, channels_out, *places = outputs.shape
        # (b, O, *places) to (b·G, O/G, L): a group of a record is a record of its own.
        gradients = outputs.reshape(batch * groups, channels_out // groups, -1)
        # The view is copied here: its entries overlap, and no product takes such strides.
        patches = self._patches(start, end, places)
        patches = patches.reshape(batch * groups, gradients.shape[2], -1)
        return Products(gradients.mT, patches)

    def _patches(self, start: int, end: int, places: list[int]) -> torch.Tensor:
        """Return a view (B, G, *places, C/G, *kernel): what each weight meets at each place."""
        # A sliding window as strides: no value is copied until the products need it.
        kernel = self.kernel
        # `pad` takes the last axis first, and both of its ends
        ends = [n for n in reversed(kernel.padding) for _ in range(2)]
        padded = nn.functional.pad(self.inputs[start:end], ends)
        batch, channels, *_ = padded.shape
        of_record, of_channel, *of_axes = padded.stride()
        channels_of_group = channels // kernel.groups
        size = (batch, kernel.groups, *places, channels_of_group, *kernel.shape[2:])
        # from one entry of the kernel to the next, and from one place to the next
        taps = [step * d for step, d in zip(of_axes, kernel.dilation, strict=True)]
        moves = [step * s for step, s in zip(of_axes, kernel.stride, strict=True)]
        stride = (of_record, of_channel * channels_of_group, *moves, of_channel, *taps)
        return padded.as_strided(size, stride, padded.storage_offset())

    def _over(
        self, function: Callable[[int, int], torch.Tensor], width: int
    ) -> Iterator[torch.Tensor]:
        """Yield `function(start, end)` over slices of `width` records."""
        total = self.outputs.shape[0]
        width = max(1, width)
        return (function(start, min(start + width, total)) for start in range(0, total, width))

    @property
    def _records(self) -> int:
        """How many records' patches are made at a time."""
        # Values of one record's patches: L places times C/G·K, in each group.
        cells = self.outputs[0, 0].numel() * self._patch
        return cells_at_a_time(self.inputs, _CELLS) // (cells * self.kernel.groups)

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return squared norms by the cheaper of Gram matrices and gradients, in slices."""
        return self._of_groups(Products.squares)

    def sizes(self) -> torch.Tensor:
        """Return Σ_t ‖left_t‖‖right_t‖ over places, (B,)."""
        return self._of_groups(Products.sizes)

    def _of_groups(self, function: Callable[[Products], torch.Tensor]) -> torch.Tensor:
        """Return what a function of products comes to over each record's groups, (B,)."""

        def of_slice(start: int, end: int) -> torch.Tensor:
            # Groups have weights of their own, so that squares and sizes simply add up.
            by_group = function(self._products(start, end))
            return by_group.view(end - start, -1).sum(1)

        return torch.cat(tuple(self._over(of_slice, self._records)))

    def per_record(self) -> torch.Tensor:
        """Return (B, O, C/G, *kernel)."""
        # filled piece by piece, so that no more than one piece is there twice
        result = self.outputs.new_empty(self.shape)
        start = 0
        for piece in self.pieces():
            result[start : start + len(piece)] = piece
            start += len(piece)
        return result

    def pieces(self) -> Iterator[torch.Tensor]:
        """Yield the gradients of some records at a time, by the quickest of three ways."""
        kernel = self.kernel
        # A slice is as large as its gradients may be; products, below, go by the size of their
        # patches.
        width = _CELLS_OF_GRADIENTS // math.prod(kernel.shape)
        # All three give the same but for round-off.
        if self.outputs.device.type == "cpu":
            if kernel.groups > 1 and kernel.shape[1] == 1:  # a channel is an image of its own
                return self._over(self._gradients_by_channel, width)
            if self._suits_onednn():
                return self._over(self._gradients_by_group, width)
        return self._over(self._gradients_by_product, self._records)

    def _suits_onednn(self) -> bool:
        """Return whether oneDNN is there, and its blocks of channels are not mostly padding."""
        if self.outputs.dtype != torch.float32:
            return False
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return False
        channels_in = self.kernel.shape[1]
        channels_out = self.outputs.shape[1] // self.kernel.groups
        return min(channels_in, channels_out) >= _LANES

    def _gradients_by_product(self, start: int, end: int) -> torch.Tensor:
        """Return the gradients of some records as products with the input's patches."""
        rows = self._products(start, end).per_record()
        return rows.view(end - start, *self.kernel.shape)

    def _gradients_by_group(self, start: int, end: int) -> torch.Tensor:
        """Return the gradients of some records as those of one image with a group a record."""
        inputs = self.inputs[start:end]
        outputs = self.outputs[start:end]
        kernel = self.kernel
        count = end - start
        # The records stand side by side as channels, each in groups of its own, which never meet.
        # (1, count·O, …): with as many groups, each record's outputs meet its inputs alone.
        channels_out = count * outputs.shape[1]
        all_records = kernel._replace(
            shape=(channels_out, *kernel.shape[1:]), groups=count * kernel.groups
        )
        result = _weight_gradient(
            all_records,
            outputs.reshape(1, -1, *outputs.shape[2:]),
            inputs.reshape(1, -1, *inputs.shape[2:]),
        )
        return result.view(count, *kernel.shape)

    def _gradients_by_channel(self, start: int, end: int) -> torch.Tensor:
        """Return the gradients of some records where a group has one channel.

        The output's gradient is then a long kernel for the input: the step between its entries is
        the layer's stride, and it moves by the layer's dilation.
        """
        inputs = self.inputs[start:end]
        outputs = self.outputs[start:end]
        kernel = self.kernel
        # Inputs (1, b·C, …), the output's gradient as b·C·(O/C) kernels: stride and dilation
        # exchange their parts.
        result: torch.Tensor = _CONVOLVE[outputs.dim() - 3](
            inputs.reshape(1, -1, *inputs.shape[2:]),
            outputs.reshape(-1, 1, *outputs.shape[2:]),
            None,
            kernel.dilation,
            kernel.padding,
            kernel.stride,
            inputs.shape[0] * inputs.shape[1],
        )
        # A stride that does not divide the input leaves places over at its end: no weight's.
        for axis, size in enumerate(kernel.shape[2:]):
            result = result.narrow(axis + 2, 0, size)
        return result.reshape(end - start, *kernel.shape)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weight gradient of the scaled output gradients: one convolution."""
        # The weights scale the outputs' gradients, since the weight's gradient is linear in them.
        ones = [1] * (self.outputs.dim() - 1)
        scaled = self.outputs * weights.view(-1, *ones)
        return _weight_gradient(self.kernel, scaled, self.inputs)


def _weight_gradient(kernel: Kernel, outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return what autograd gives a convolution's weight."""
    is_transposed = False
    output_padding = (0,) * len(kernel.padding)
    moves = (kernel.stride, kernel.padding, kernel.dilation, is_transposed, output_padding)
    weight = outputs.new_empty(kernel.shape)  # of which only the shape counts
    # of the gradients of input, weight and bias only the weight's is made
    _, gradient, _ = torch.ops.aten.convolution_backward(
        outputs, inputs, weight, None, *moves, kernel.groups, [False, True, False]
    )
    assert isinstance(gradient, torch.Tensor)
    return gradient
