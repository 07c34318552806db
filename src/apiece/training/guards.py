"""What a model must be for a record's gradient to be its own: nothing may mix records."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError

LEAST_BOUND = 1e-12  # far above where squares in single precision underflow, and norms with them
_OF_BATCHES = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that take gradients, by name, each shared one once.

    Raises `InputError` where there is none.
    """
    found = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise InputError(
            f"model: {type(model).__name__} has no trainable parameter; set requires_grad on some"
        )
    return found


def check_modules(model: nn.Module) -> None:
    """Refuse layers that let one record reach another's gradient, or the buffers.

    Raises `UnsupportedError` with the module's path and what to use instead.
    """
    if not any(isinstance(module, _OF_BATCHES) and module.training for module in model.modules()):
        return
    for path, module in model.named_modules():
        if not module.training:
            continue
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            raise UnsupportedError(
                f"model.{path}: {type(module).__name__} in training mode mixes the records of a "
                "batch; use GroupNorm (or LayerNorm), or put this module in eval() mode"
            )
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
            raise UnsupportedError(
                f"model.{path}: {type(module).__name__} keeps running statistics of the records "
                "without noise; construct it with track_running_stats=False"
            )


class Buffers:
    """A model's buffers: what a forward pass keeps of its records would be released in them."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (f"{path}.{name}".lstrip("."), module._buffers, name)
            for path, module in model.named_modules()
            for name in module._buffers
        ]

    def _versions(self) -> list[tuple[torch.Tensor | None, int]]:
        found = [held.get(name) for _, held, name in self._places]
        return [(b, 0 if b is None else b._version) for b in found]

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Raise `UnsupportedError` if a buffer, such as a running statistic, changes meanwhile."""
        before = self._versions()
        yield
        for place, (old, was), (new, now) in zip(
            self._places, before, self._versions(), strict=True
        ):
            if old is not new or was != now:
                raise UnsupportedError(
                    f"model.{place[0]}: the forward pass changes this buffer, and so keeps "
                    "something of the records without clipping and noise; put its module in "
                    "eval() mode or take it out, and start again from a model that has not run"
                )


def bounds(clip_norms: torch.Tensor | float, size: int, device: torch.device) -> torch.Tensor:
    """Return `clip_norms` as (size,) doubles, each checked to be positive and finite."""
    given = torch.as_tensor(clip_norms, dtype=torch.float64, device=device)
    if given.dim() == 0:
        given = given.expand(size)
    if given.shape != (size,):
        raise InputError(
            f"clip_norms: shape {tuple(given.shape)} for {size} records; give one bound a record"
        )
    if size == 0:
        return given
    low, high = torch.aminmax(given)
    if not (low.item() >= LEAST_BOUND and high.item() < torch.inf):  # NaN fails both
        good = (given >= LEAST_BOUND) & (given < torch.inf)
        where = int((~good).nonzero()[0])
        raise InputError(
            f"clip_norms[{where}] = {float(given[where])!r}: must be in [{LEAST_BOUND:g}, "
            "inf); give every record such a bound, scaling the loss if gradients are as small"
        )
    return given


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel, whose own reduction is not used."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        inner: nn.Module = model.module
        return inner
    return model
