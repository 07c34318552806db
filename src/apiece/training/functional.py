"""Per-record gradients of any model by torch.func: the path that needs to know no layer."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from apiece.training import records
from apiece.training.clipped import ClippedSum, clip_factors

Gradients = dict[str, torch.Tensor]
LossFunction = Callable[[Any, Any], torch.Tensor]


@contextlib.contextmanager
def vectorised(module: nn.Module) -> Iterator[None]:
    """Choose kernels that vmap can vectorise: attention in plain products, cells unfused."""
    recurrent = any(isinstance(m, nn.RNNBase) for m in module.modules())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="TF32 acceleration")
        fused = torch.backends.mkldnn.flags(enabled=False) if recurrent else None
        with sdpa_kernel(SDPBackend.MATH), fused or contextlib.nullcontext():
            yield


def per_record(
    model: nn.Module, parameters: Gradients, loss_fn: LossFunction, inputs: Any, targets: Any
) -> tuple[Gradients, torch.Tensor]:
    """Return each record's gradients, name → (B, *shape), and losses (B,), in one vmap."""

    def loss_of_one(values: Gradients, one: Any, target: Any) -> tuple[torch.Tensor, torch.Tensor]:
        args, kwargs = records.arguments(records.lift(one))
        outputs = functional_call(model, values, args, kwargs)
        losses = records.check_losses(loss_fn(outputs, records.lift(target)), 1, loss_fn)
        return losses[0], losses[0].detach()

    values = {name: p.detach() for name, p in parameters.items()}
    each = vmap(grad(loss_of_one, has_aux=True), in_dims=(None, 0, 0), randomness="different")
    with vectorised(model):
        gradients, losses = each(values, inputs, targets)
    return gradients, losses


def one_by_one(
    model: nn.Module, parameters: Gradients, loss_fn: LossFunction, inputs: Any, targets: Any
) -> tuple[Gradients, torch.Tensor]:
    """Return the same as `per_record` by a plain loop, for models that vmap cannot run."""
    rows: list[tuple[torch.Tensor, ...]] = []
    losses: list[torch.Tensor] = []
    size = records.count(inputs, targets)
    tensors = list(parameters.values())
    for i in range(size):
        one = slice(i, i + 1)
        outputs = records.call(model, records.select(inputs, one))
        loss = loss_fn(outputs, records.select(targets, one))
        loss = records.check_losses(loss, 1, loss_fn)[0]
        found = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        rows.append(found)
        losses.append(loss.detach())
    stacked = [torch.stack(column) for column in zip(*rows, strict=True)]
    return dict(zip(parameters, stacked, strict=True)), torch.stack(losses)


def clip_in_parts(
    each: Callable[..., tuple[Gradients, torch.Tensor]],
    model: nn.Module,
    parameters: Gradients,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norms: torch.Tensor,
    width: int,
) -> ClippedSum:
    """Return the clipped sum by per-record gradients of `width` records at a time."""
    total: ClippedSum | None = None
    for start in range(0, clip_norms.numel(), width):
        part = slice(start, start + width)
        some = records.select(inputs, part), records.select(targets, part)
        gradients, losses = each(model, parameters, loss_fn, *some)
        clipped = clip_each(gradients, losses, clip_norms[part])
        total = clipped if total is None else total + clipped
    assert total is not None
    return total


def clip_each(gradients: Gradients, losses: torch.Tensor, clip_norms: torch.Tensor) -> ClippedSum:
    """Return the sum of per-record gradients (B, *shape), each clipped at its own bound."""
    squares = [squared_norms(g) for g in gradients.values()]
    norms = torch.stack(squares).sum(0).sqrt()
    factors = clip_factors(norms, clip_norms)
    good = torch.isfinite(norms)
    sums = {name: weighted_sum(g, factors, good) for name, g in gradients.items()}
    return ClippedSum(sums, norms.detach(), losses, clip_norms)


def squared_norms(gradients: torch.Tensor) -> torch.Tensor:
    """Return (B,) squared norms of (B, ...) in at least single precision."""
    wide = gradients.to(torch.float64 if gradients.dtype == torch.float64 else torch.float32)
    return wide.flatten(1).square().sum(1)


def weighted_sum(
    gradients: torch.Tensor, factors: torch.Tensor, good: torch.Tensor
) -> torch.Tensor:
    """Return Σ factor·gradient over the good records; what is not finite never enters."""
    flat = gradients.flatten(1)
    if not bool(good.all()):
        flat = flat[good]
        factors = factors[good]
    return (factors.to(flat.dtype) @ flat).view(gradients.shape[1:])
