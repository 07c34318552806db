"""Per-record weight gradients of convolutions in one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from apiece.training.contributions import Contribution, Rows, blank, cancellation, dot

Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
_CELLS = 1 << 17  # entries of patches at a time: they stay in the second-level cache
_KEEP = 1 << 25  # entries of per-record gradients that are kept rather than made again


def convolution(module: Conv, inputs: torch.Tensor, outputs: torch.Tensor) -> Contribution:
    """Return the weight's contribution from the input and the gradient of the output.

    Per-record gradients that fit in memory are kept: their weighted sum is then a by-product, and
    all in all as many products are made as in plain back-propagation. Those that do not fit are
    never held together: norms come in slices, the sum from one convolution.
    """
    padded = pad(module, inputs)
    use = Convolution(module, padded, outputs.contiguous())
    if outputs.shape[0] * module.weight.numel() <= _KEEP:
        return Rows(use.per_record())
    return use


def pad(module: Conv, inputs: torch.Tensor) -> torch.Tensor:
    """Return the input with the module's padding made explicit."""
    ends = module._reversed_padding_repeated_twice
    if not any(ends):
        return inputs
    if module.padding_mode == "zeros":
        return nn.functional.pad(inputs, ends)
    return nn.functional.pad(inputs, ends, mode=module.padding_mode)


def patches(module: Conv, padded: torch.Tensor, places: torch.Size) -> torch.Tensor:
    """Return a view (B, G, C/G, *kernel, *places): what each weight meets at each place."""
    batch, channels, *_ = padded.shape
    first, second, *steps = padded.stride()
    groups = module.groups
    size = (batch, groups, channels // groups, *module.kernel_size, *places)
    taps = [s * d for s, d in zip(steps, module.dilation, strict=True)]
    moves = [s * d for s, d in zip(steps, module.stride, strict=True)]
    stride = (first, second * (channels // groups), second, *taps, *moves)
    return padded.as_strided(size, stride, padded.storage_offset())


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """The weight of a convolution; padded: (B, C, *), outputs: (B, O, *places), contiguous."""

    module: Any
    padded: torch.Tensor
    outputs: torch.Tensor

    @property
    def ghost_is_cheaper(self) -> bool:
        """Whether Gram matrices over places cost less than the gradients themselves."""
        places = self.outputs[0, 0].numel()
        into = self.module.weight[0].numel()
        out = self.module.weight.shape[0] // self.module.groups
        return bool(places * (into + out) <= into * out)

    def _matrices(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return gradients (b·G, O/G, L) and patches (b·G, C/G·K, L) of some records."""
        outputs, groups = self.outputs[start:end], self.module.groups
        left = outputs.reshape(outputs.shape[0] * groups, outputs.shape[1] // groups, -1)
        view = patches(self.module, self.padded[start:end], self.outputs.shape[2:])
        return left, view.reshape(left.shape[0], -1, left.shape[2])

    def _over(self, function: Callable[[int, int], torch.Tensor], cells: int) -> torch.Tensor:
        total, width = self.outputs.shape[0], max(1, _CELLS // max(cells, 1))
        parts = [function(s, min(s + width, total)) for s in range(0, total, width)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def squares(self) -> torch.Tensor:
        """Return squared norms by the cheaper of Gram matrices and gradients, in slices."""
        places = self.outputs[0, 0].numel()
        cells = places * self.module.weight[0].numel() * self.module.groups
        function = self._ghost if self.ghost_is_cheaper else self._instantiated
        return self._over(function, cells)

    def _ghost(self, start: int, end: int) -> torch.Tensor:
        left, right = self._matrices(start, end)
        gram = (left.mT @ left).mul_(right.mT @ right).flatten(1).sum(1)
        return (gram + cancellation(left.mT, right.mT)).view(end - start, -1).sum(1)

    def _instantiated(self, start: int, end: int) -> torch.Tensor:
        flat = self._gradients(start, end).flatten(1)
        return dot(flat, flat)

    def _gradients(self, start: int, end: int) -> torch.Tensor:
        left, right = self._matrices(start, end)
        return (left @ right.mT).view(end - start, *self.module.weight.shape)

    def per_record(self) -> torch.Tensor:
        """Return (B, O, C/G, *kernel)."""
        places = self.outputs[0, 0].numel()
        return self._over(
            self._gradients, places * self.module.weight[0].numel() * self.module.groups
        )

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the weight gradient of the scaled output gradients: one convolution."""
        module, dims = self.module, self.outputs.dim() - 2
        scaled = self.outputs * weights.view(-1, 1, *([1] * dims))
        _, gradient, _ = torch.ops.aten.convolution_backward(
            scaled,
            self.padded,
            module.weight.detach().to(scaled.dtype),
            None,
            module.stride,
            [0] * dims,
            module.dilation,
            False,
            [0] * dims,
            module.groups,
            [False, True, False],
        )
        assert isinstance(gradient, torch.Tensor)
        return gradient

    def without(self, bad: torch.Tensor) -> Convolution:
        """Return this with the records at `bad` set to zero."""
        return replace(self, padded=blank(self.padded, bad), outputs=blank(self.outputs, bad))
