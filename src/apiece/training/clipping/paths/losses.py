"""Losses and their gradients with respect to the outputs, by hand where the loss is well known."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from apiece.training.clipping.records import LossFunction, check_losses

_aten: Any = torch.ops.aten


def with_gradient(
    loss_fn: LossFunction, outputs: torch.Tensor, targets: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the losses (B,) and Σ losses' gradient for `outputs` (B, ...), None if it has none.

    Call it without autograd. The gradient may be a tensor that the loss keeps. Raises
    `InputError` for a loss that was reduced.
    """
    if _is_plain(loss_fn, outputs, targets):
        return _cross_entropy(outputs, targets, loss_fn)
    outputs.requires_grad_()
    with torch.enable_grad():
        losses = check_losses(loss_fn(outputs, targets), len(outputs), loss_fn)
    if not losses.requires_grad:
        return losses, None
    (gradient,) = torch.autograd.grad(losses, [outputs], torch.ones_like(losses))
    return losses.detach(), gradient


def _is_plain(loss_fn: Any, outputs: torch.Tensor, targets: Any) -> bool:
    """Whether this is nn.CrossEntropyLoss(reduction="none") of scores (B, C) and classes (B,)."""
    return (
        type(loss_fn) is nn.CrossEntropyLoss
        and loss_fn.reduction == "none"
        and loss_fn.label_smoothing == 0
        and loss_fn.weight is None
        and not (loss_fn._forward_hooks or loss_fn._forward_pre_hooks)
        and "forward" not in loss_fn.__dict__
        and outputs.dim() == 2
        and isinstance(targets, torch.Tensor)
        and targets.shape == outputs.shape[:1]
        and targets.dtype == torch.int64
    )


def _cross_entropy(
    outputs: torch.Tensor, targets: torch.Tensor, loss: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what autograd does, to the bit, by the same four kernels."""
    chances = torch.log_softmax(outputs, 1)
    common = (targets, None, 0, loss.ignore_index)
    losses, total = _aten.nll_loss_forward.default(chances, *common)
    ones = torch.ones_like(losses)
    gradient = _aten.nll_loss_backward.default(ones, chances, *common, total)
    return losses, _aten._log_softmax_backward_data.default(gradient, chances, 1, outputs.dtype)
