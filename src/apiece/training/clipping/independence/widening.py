"""A model, its loss and a batch in double precision for a moment, and how exact a batch can be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from apiece.training.clipping import records
from apiece.training.clipping.precision import is_coarse
from apiece.training.clipping.records import Batch

_LARGEST = 1 << 27  # parameters up to which a copy in double precision is made


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two computations of the same may be apart, relative to a typical record's size.

    gross: beyond this a loss is another whatever double precision says. floor: for losses that are
    all but zero. share: for gradients that are, relative to their bounds, or to 1 if less.
    """

    relative: float
    gross: float
    floor: float
    share: float


def as_it_is(batch: Batch) -> Tolerance:
    """Return the tolerance for the types that the batch is computed in."""
    device = batch.clip_norms.device
    floats = [t for t in _tensors(batch) if t.is_floating_point() or t.is_complex()]
    if all(t.dtype in (torch.float64, torch.complex128) for t in floats):
        return Tolerance(1e-6, 1e-3, 1e-8, 1e-7)
    if is_coarse(floats, device):
        return Tolerance(0.1, 0.5, 1e-3, 1e-3)
    return Tolerance(1e-3, 0.03, 1e-5, 1e-5)


@contextlib.contextmanager
def widened(batch: Batch) -> Iterator[Batch | None]:
    """Give the batch with the parameters and buffers of model and loss in double precision.

    None where it is so already, or too large to be copied. Everything is put back afterwards.
    """
    size = sum(p.numel() for p in batch.model.parameters())
    if size > _LARGEST or as_it_is(batch).relative <= 1e-6 or batch.clip_norms.device.type == "mps":
        yield None
        return
    roots = [m for m in (batch.model, batch.loss_fn) if isinstance(m, nn.Module)]
    names = {id(p): name for name, p in batch.parameters.items()}
    memo: dict[int, torch.Tensor] = {}
    places: list[tuple[nn.Module, str, torch.Tensor]] = [
        (module, name, tensor)
        for root in roots
        for module in root.modules()
        for held in (module._parameters, module._buffers)
        for name, tensor in held.items()
        if tensor is not None and tensor.is_floating_point()
    ]
    before = torch.get_default_dtype()
    staying: Any = _StayingWide()  # type: ignore[no-untyped-call]
    try:
        for module, name, tensor in places:
            if id(tensor) not in memo:
                memo[id(tensor)] = _double(tensor)
            setattr(module, name, memo[id(tensor)])
        torch.set_default_dtype(torch.float64)
        parameters: Any = {names[key]: memo[key] for key in names}
        wide = replace(
            batch,
            parameters=parameters,
            inputs=records.tree_map(_double, batch.inputs),
            targets=records.tree_map(_double, batch.targets),
        )
        with torch.autocast(batch.clip_norms.device.type, enabled=False), staying:
            yield wide
    finally:
        torch.set_default_dtype(before)
        for module, name, tensor in places:
            setattr(module, name, tensor)


def _double(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    wide = tensor.detach().double()
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(wide, requires_grad=tensor.requires_grad)
    return wide


class _StayingWide(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Leaves doubles as they are where a model turns them into a narrower type."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64:
            wanted = kwargs.get("dtype")
            if wanted is not None and wanted.is_floating_point:
                kwargs = {**kwargs, "dtype": torch.float64}
        return func(*args, **kwargs)


def _tensors(batch: Batch) -> list[torch.Tensor]:
    own = [*batch.parameters.values(), *records.leaves(batch.inputs)]
    return own + records.leaves(batch.targets)
