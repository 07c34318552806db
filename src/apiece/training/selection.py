"""Which path a model takes, found out on its first batch and remembered for as long as it lives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable

import torch
from torch import nn

from apiece.training import functional
from apiece.training.ambient import attempt, trial
from apiece.training.bookkeeping import Check, clip_batch
from apiece.training.chain import chain_of
from apiece.training.clipped import ClippedSum, add_up
from apiece.training.contributions import Contribution
from apiece.training.mixing import check_loss, check_mixing
from apiece.training.pace import records_at_a_time
from apiece.training.precision import is_coarse, wide
from apiece.training.records import Batch, Parameters
from apiece.training.tape import NotBookable

State = tuple[bool | str, ...]  # training mode, autocast, the names of the trained parameters

_chosen: weakref.WeakKeyDictionary[nn.Module, dict[State, str]] = weakref.WeakKeyDictionary()


def chosen(model: nn.Module) -> list[tuple[State, str]]:
    """Return which path the model took, in which state: what a resumed run must take again."""
    return list(_chosen.get(_inner(model), {}).items())


def choose(model: nn.Module, paths: Iterable[tuple[Iterable[bool | str], str]]) -> None:
    """Let the model take the paths that `chosen` gave, without trying them."""
    known = {tuple(state): path for state, path in paths if path in _PATHS}
    _chosen.setdefault(_inner(model), {}).update(known)


def clip_by(method: str, batch: Batch) -> ClippedSum:
    """Return the clipped sum of one batch by `method`; "auto" chooses, and checks its choice.

    The first batch of a model is clipped by book-keeping and compared with autograd: Σ w·gradient
    must be the same both ways for weights w that differ from record to record. That fails where a
    parameter is used outside the layers that were recorded, or where records mix.

    What is tried leaves torch's generators alone: the sum is the one that the path taken gives
    when it is taken without a trial, dropout included.
    """
    if method != "auto":
        return _PATHS[method](batch)
    known = _chosen.setdefault(batch.model, {})
    device = batch.clip_norms.device
    state: State = (batch.model.training, torch.is_autocast_enabled(device.type), *batch.parameters)
    if state in known:
        try:
            with attempt([device]):
                return _PATHS[known[state]](batch)
        except NotBookable:
            return functional.clip_vectorised(batch)
    with trial([device]):
        check_mixing(batch.model, batch.inputs, len(batch))
        check_loss(batch)
    clipped, path = _first(batch, device)
    if bool(torch.isfinite(clipped.norms).all()):  # else not a batch to judge by
        known[state] = path
    return clipped


def _first(batch: Batch, device: torch.device) -> tuple[ClippedSum, str]:
    """Return the clipped sum by the first path that can be taken, and its name."""
    try:
        with attempt([device]):
            return _book_keeping(batch, checked=True), "book-keeping"
    except NotBookable:
        pass
    try:
        with attempt([device]):
            return functional.clip_vectorised(batch), "functional"
    except RuntimeError:  # vmap cannot run every model
        return functional.clip_one_by_one(batch), "loop"


def _inner(model: nn.Module) -> nn.Module:
    """Return the module inside torch.compile's wrapper, which is what is run."""
    return model._modules.get("_orig_mod") or model


def _book_keeping(batch: Batch, *, checked: bool = False) -> ClippedSum:
    size = sum(p.numel() for p in batch.parameters.values())
    width = records_at_a_time(batch.model, size, batch.inputs, len(batch))
    check = _against_autograd(batch) if checked else None
    if check is not None and chain_of(batch) is not None:  # walked without a graph to check
        with trial([batch.clip_norms.device]):
            clip_batch(next(batch.parts(width)), check=check)
        check = None
    if width >= len(batch):
        return clip_batch(batch, check=check)
    parts = enumerate(batch.parts(width))
    return add_up(clip_batch(part, check=None if k else check) for k, part in parts)


_PATHS = {
    "book-keeping": _book_keeping,
    "functional": functional.clip_vectorised,
    "loop": functional.clip_one_by_one,
}


def _against_autograd(batch: Batch) -> Check:
    """Return the comparison with autograd, as close as the precision of the batch allows."""
    coarse = is_coarse(batch.parameters.values(), batch.clip_norms.device)
    return functools.partial(_compare, 0.1 if coarse else 2e-3)


def _compare(
    tolerance: float,
    parameters: Parameters,
    losses: torch.Tensor,
    named: dict[str, Contribution],
) -> None:
    """Raise `NotBookable` unless the contributions are all there is to the gradient."""
    weights = 0.5 + torch.remainder(torch.arange(losses.numel(), device=losses.device) * 0.618, 1)
    weights = weights.to(losses.dtype)
    true = torch.autograd.grad(
        losses, list(parameters.values()), weights, allow_unused=True, materialize_grads=True
    )
    off, scale = 0.0, 0.0
    with torch.no_grad():
        for name, wanted in zip(parameters, true, strict=True):
            part = named.get(name)
            wanted = wanted.to_dense() if wanted.is_sparse else wanted
            mine = torch.zeros_like(wanted, dtype=wide(wanted.dtype))
            if part is not None:
                mine = part.weighted(weights.to(mine.dtype)).view(mine.shape)
            off = max(off, float((mine - wanted).abs().max()))
            scale = max(scale, float(wanted.abs().max()))
    if scale < torch.inf and not off <= scale * tolerance:
        raise NotBookable("some parameter is used outside the layers that were recorded")
