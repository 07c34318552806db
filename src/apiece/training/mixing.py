"""Find the module, or the loss, in which one record reaches another."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from apiece.errors import InputError, UnsupportedError
from apiece.training import records
from apiece.training.records import Batch


def check_mixing(model: nn.Module, inputs: Any, size: int) -> None:
    """Run record 0 beside two different others; its outputs must be the same both times.

    Does nothing for fewer than three records. Raises `UnsupportedError` with the path of the first
    module whose output for record 0 depends on the other record. Dropout draws the same both times.
    """
    if size < 3:
        return
    first = _outputs_of_record_0(model, records.select(inputs, [0, 1]))
    second = _outputs_of_record_0(model, records.select(inputs, [0, size - 1]))
    for (path, one), (_, other) in zip(first, second, strict=False):
        if one.shape == other.shape and not torch.allclose(
            one.float(), other.float(), rtol=1e-2, atol=1e-4, equal_nan=True
        ):
            raise UnsupportedError(
                f"model.{path}: the output for one record depends on the other records in the "
                "batch; use a layer that keeps records apart (GroupNorm instead of batch "
                "statistics), with the records in the first dimension"
            )


def check_loss(batch: Batch) -> None:
    """Compute record 0's loss beside another record and alone; it must be the same.

    Does nothing for a single record, and for models whose output is not one tensor. Raises
    `InputError` where the loss takes a mean over the batch, divides by its size, or the like.
    """
    if len(batch) < 2:
        return
    two = next(batch.parts(2))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        outputs = records.call(batch.model, two.inputs)
        if not isinstance(outputs, torch.Tensor) or outputs.shape[:1] != (2,):
            return
        pair = batch.loss_fn(outputs, two.targets)
        alone = batch.loss_fn(outputs[:1], records.select(two.targets, slice(0, 1)))
    shapes = [tuple(getattr(losses, "shape", ())) for losses in (pair, alone)]
    if shapes != [(2,), (1,)]:
        return  # said with the size of the whole batch, where that is computed
    if not torch.allclose(pair[:1].float(), alone.float(), rtol=1e-3, atol=1e-5, equal_nan=True):
        raise InputError(
            "loss_fn: the loss of a record depends on the other records in the batch; return each "
            "record's own loss, without a mean over the batch or a division by its size"
        )


def _outputs_of_record_0(model: nn.Module, pair: Any) -> list[tuple[str, torch.Tensor]]:
    found: list[tuple[str, torch.Tensor]] = []
    handles = []
    for path, module in model.named_modules():

        def hook(_module: nn.Module, _args: Any, out: Any, path: str = path) -> None:
            tensors = records.leaves(out)
            if tensors and tensors[0].shape[:1] == (2,):
                found.append((path or type(_module).__name__, tensors[0][0].detach().clone()))

        handles.append(module.register_forward_hook(hook))
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            records.call(model, pair)
    finally:
        for handle in handles:
            handle.remove()
    return found
