"""In which precision sums that carry a guarantee are made: single or more, whatever the model's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from apiece.errors import UnsupportedError


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return `dtype`, or single precision where it has less."""
    return torch.promote_types(dtype, torch.float32)


def is_highest() -> bool:
    """Whether torch multiplies matrices of single precision in single precision."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # set one backend at a time, which this cannot put in one word
        return False


def is_coarse(parameters: Iterable[torch.Tensor], device: torch.device) -> bool:
    """Whether gradients of these parameters come with less than single precision."""
    half = any(p.dtype != wide(p.dtype) for p in parameters)
    return half or torch.is_autocast_enabled(device.type) or not is_highest()


@contextlib.contextmanager
def single(device: torch.device) -> Iterator[None]:
    """Let products of single precision be made in it: without autocast, bf16 or TF32."""
    with torch.autocast(device.type, enabled=False), contextlib.ExitStack() as settings:
        for place, name, value in _settings(device):
            settings.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, value)
        yield


def _settings(device: torch.device) -> Iterator[tuple[Any, str, Any]]:
    """Yield what must be set, to which value, for products in single precision."""
    if is_highest() and device.type != "cuda":
        return
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):  # torch before 2.9
        if device.type != "cuda":
            raise UnsupportedError(
                f"torch.get_float32_matmul_precision() = {torch.get_float32_matmul_precision()!r}: "
                'clipping needs "highest" with this version of torch; set it, or use autocast'
            )
        yield backends.cuda.matmul, "allow_tf32", False
        yield backends.cudnn, "allow_tf32", False
        return
    gpu = device.type == "cuda"
    for place in (
        (backends.cuda.matmul, backends.cudnn.conv)
        if gpu
        else (
            backends.mkldnn.matmul,
            backends.mkldnn.conv,
        )
    ):
        yield place, "fp32_precision", "ieee"
