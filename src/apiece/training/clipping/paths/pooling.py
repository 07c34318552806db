"""Max pooling in the memory layout in which PyTorch's kernel is vectorised, on a processor.

With the channels last it takes a fifth to a half of the time, copies included, and gives the same
values and gradients to the bit, ties and NaN included.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from apiece.training.clipping.guards import modules_of

_CHANNELS = 8  # below, the copies cost what is gained


class _ChannelsLast(TorchFunctionMode):
    """Runs `functional.max_pool2d` on plain batches of images by way of channels-last copies."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not nn.functional.max_pool2d or not args or not _is_plain(args[0]):
            return func(*args, **kwargs)
        images, *rest = args
        images = images.contiguous(memory_format=torch.channels_last)
        if images.requires_grad:
            images.register_hook(torch.Tensor.contiguous)  # the layers before are as they were
        return func(images, *rest, **kwargs).contiguous()


def _is_plain(images: Any) -> bool:
    return (
        type(images) is torch.Tensor
        and images.dim() == 4
        and images.device.type == "cpu"
        and images.dtype == torch.float32
        and images.shape[1] >= _CHANNELS
        and images.is_contiguous()
    )


def fast_pooling(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which the model's max pooling layers run in the faster layout."""
    pools = any(isinstance(module, nn.MaxPool2d) for _, module in modules_of(model))
    return _ChannelsLast() if pools else contextlib.nullcontext()
