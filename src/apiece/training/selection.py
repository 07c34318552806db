"""Which path a model takes, found out on its first batch and remembered for as long as it lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from apiece.training import functional
from apiece.training.bookkeeping import clip_batch
from apiece.training.clipped import ClippedSum
from apiece.training.contributions import Contribution
from apiece.training.mixing import check_mixing
from apiece.training.tape import NotBookable

LossFunction = Callable[[Any, Any], torch.Tensor]
Parameters: TypeAlias = dict[str, nn.Parameter]
_CELLS = 1 << 26  # entries of per-record gradients at a time on the functional path
_chosen: weakref.WeakKeyDictionary[nn.Module, dict[Any, str]] = weakref.WeakKeyDictionary()


def clip_by(
    method: str,
    model: nn.Module,
    parameters: Parameters,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norms: torch.Tensor,
) -> ClippedSum:
    """Return the clipped sum of one batch by `method`; "auto" chooses, and checks its choice.

    The first batch of a model is clipped by book-keeping and compared with autograd: Σ w·gradient
    must be the same both ways for weights w that differ from record to record. That fails where a
    parameter is used outside the layers that were recorded, or where records mix.
    """
    given = (parameters, loss_fn, inputs, targets, clip_norms)
    if method != "auto":
        return _by_name(method, model, *given)
    known = _chosen.setdefault(model, {})
    state = (model.training, torch.is_autocast_enabled(clip_norms.device.type), *parameters)
    if state in known:
        try:
            return _by_name(known[state], model, *given)
        except NotBookable:
            return _by_name("functional", model, *given)
    check_mixing(model, inputs, int(clip_norms.numel()))
    try:
        clipped = clip_batch(model, *given, check=_against_autograd(parameters))
        known[state] = "book-keeping"
    except NotBookable:
        try:
            clipped = _by_name("functional", model, *given)
            known[state] = "functional"
        except RuntimeError:  # vmap cannot run every model
            clipped = _by_name("loop", model, *given)
            known[state] = "loop"
    if not bool(torch.isfinite(clipped.norms).all()):
        del known[state]  # not a batch to judge by
    return clipped


def _by_name(
    method: str,
    model: nn.Module,
    parameters: Parameters,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norms: torch.Tensor,
) -> ClippedSum:
    if method == "book-keeping":
        return clip_batch(model, parameters, loss_fn, inputs, targets, clip_norms)
    each = functional.one_by_one if method == "loop" else functional.per_record
    width = max(1, _CELLS // sum(p.numel() for p in parameters.values()))
    return functional.clip_in_parts(
        each, model, dict(parameters), loss_fn, inputs, targets, clip_norms, width
    )


def _against_autograd(
    parameters: Parameters,
) -> Callable[[torch.Tensor, dict[str, Contribution]], None]:
    """Return a check that the contributions are all there is to the gradient."""

    def check(losses: torch.Tensor, named: dict[str, Contribution]) -> None:
        size = losses.numel()
        weights = 0.5 + torch.remainder(torch.arange(size, device=losses.device) * 0.618034, 1)
        weights = weights.to(losses.dtype)
        true = torch.autograd.grad(losses, list(parameters.values()), weights, allow_unused=True)
        off, scale = torch.zeros(()), torch.zeros(())
        with torch.no_grad():
            gradients: list[torch.Tensor | None] = list(true)
            for name, gradient in zip(parameters, gradients, strict=True):
                part = named.get(name)
                mine = torch.zeros_like(parameters[name], dtype=torch.float32)
                if part is not None:
                    dtype = _dtype(part)
                    mine = part.weighted(weights.to(dtype)).view(mine.shape)
                wanted = torch.zeros_like(mine) if gradient is None else gradient.to(mine.dtype)
                off = torch.maximum(off, (mine - wanted).abs().max().cpu())
                scale = torch.maximum(scale, wanted.abs().max().cpu())
        coarse = any(p.element_size() < 4 for p in parameters.values()) or _half()
        if not bool(torch.isfinite(scale)):
            return
        if not bool(off <= scale * (0.1 if coarse else 2e-3)):
            raise NotBookable("some parameter is used outside the layers that were recorded")

    return check


def _half() -> bool:
    return torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")


def _dtype(part: Contribution) -> torch.dtype:
    for name in ("gradients", "left", "outputs"):
        if hasattr(part, name):
            return getattr(part, name).dtype  # type: ignore[no-any-return]
    raise AssertionError(type(part))
