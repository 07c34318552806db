"""Find the module, or the loss, in which one record reaches another."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.independence.draws import Draws
from apiece.training.clipping.records import Batch


def blame(batch: Batch, place: int, room: float) -> InputError:
    """Return the error for a batch in which record `place` gives something else than alone.

    It is `UnsupportedError` with the path of the first module whose output for the record depends
    on the others, `InputError` where only the loss does.
    """
    size = len(batch)
    index = torch.tensor([place], device=batch.clip_norms.device)
    one = records.select(batch.inputs, index), records.select(batch.targets, index)
    draws = Draws()
    with torch.no_grad():
        with draws.first():
            alone, own = _outputs(batch, *one)
        with draws.again():
            company, losses = _outputs(batch, batch.inputs, batch.targets)
    for (path, out), (_, together) in zip(alone, company, strict=False):
        if _differ(out, together, place, size, room):
            return UnsupportedError(
                f"model.{path}: the output for one record depends on the other records in the "
                "batch, or on those before; use a layer that keeps records apart (GroupNorm "
                "instead of batch statistics), with the records in the first dimension"
            )
    if not _near(own[0], losses[place], room):
        return InputError(
            "loss_fn: the loss of a record depends on the other records in the batch; return each "
            "record's own loss, without a mean over the batch or a division by its size"
        )
    return UnsupportedError(
        f"model: the gradient that {type(batch.model).__name__} gives for one record depends on "
        "the other records in the batch, on their order, or on an earlier run; look for backward "
        "passes or hooks that use the whole batch, and for values that a forward keeps"
    )


Output = tuple[str, torch.Tensor]


def _outputs(batch: Batch, inputs: Any, targets: Any) -> tuple[list[Output], torch.Tensor]:
    """Return every module's first tensor, in order, and the losses."""
    found: list[Output] = []
    handles = []
    for path, module in batch.model.named_modules():

        def hook(_module: nn.Module, _args: Any, out: Any, path: str = path) -> None:
            tensors = records.leaves(out)
            if tensors:
                found.append((path or type(_module).__name__, tensors[0].detach().clone()))

        handles.append(module.register_forward_hook(hook))
    try:
        losses = batch.loss_fn(records.call(batch.model, inputs), targets)
    finally:
        for handle in handles:
            handle.remove()
    return found, losses


def _differ(
    alone: torch.Tensor, together: torch.Tensor, place: int, size: int, room: float
) -> bool:
    """Whether the record's part of an output is another; its dimension is where shapes differ."""
    if alone.dim() != together.dim() or size == 1:
        return False
    where = [
        d
        for d, (one, all_) in enumerate(zip(alone.shape, together.shape, strict=True))
        if (one, all_) == (1, size)
    ]
    if len(where) != 1:
        return False
    return not _near(alone.select(where[0], 0), together.select(where[0], place), room)


def _near(one: torch.Tensor, other: torch.Tensor, room: float) -> bool:
    a, b = one.double(), other.double()
    scale = float(torch.nan_to_num(a, posinf=0.0, neginf=0.0).abs().max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=room, atol=room * scale, equal_nan=True)
