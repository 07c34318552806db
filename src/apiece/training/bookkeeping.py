"""Clipping by book-keeping: one forward, one backward, no per-record gradient that can be spared.

The backward pass runs to the outputs of the layers only, so that it makes no parameter gradient.
Norms come from activations and output gradients; the clipped sum from the very same tensors with
the records weighted, at the price of the parameter gradients that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap

from apiece.training import attention, records, recurrent
from apiece.training.chain import chain_of, walk
from apiece.training.chain import contributions as of_uses
from apiece.training.clipped import ClippedSum, clip_factors
from apiece.training.contributions import Contribution, Rows, join
from apiece.training.dense import clip_dense, is_dense
from apiece.training.functional import vectorised
from apiece.training.kernels import remembering, row_squares
from apiece.training.pooling import fast_pooling
from apiece.training.records import Batch, Parameters
from apiece.training.tape import Call, NotBookable, recording, units_of

Check = Callable[[Parameters, torch.Tensor, dict[str, Contribution]], None]


def clip_batch(batch: Batch, *, check: Check | None = None) -> ClippedSum:
    """Return the clipped sum of one batch; raise `NotBookable` where another path must be taken.

    check: called with the parameters, the losses, whose graph is then kept, and contributions.
    """
    layers = chain_of(batch) if check is None else None
    if layers is not None:
        losses, uses = walk(layers, batch)
        with torch.no_grad():
            if is_dense(uses):
                return clip_dense(uses, batch, losses)
            return _clip(of_uses(uses, batch), batch, losses)
    with recording(units_of(batch.model)) as tape, torch.enable_grad(), fast_pooling(batch.model):
        losses = batch.losses()
    with torch.autocast(losses.device.type, enabled=False):
        named = contributions(tape.calls, batch, losses, keep=check is not None)
        if check is not None:
            check(batch.parameters, losses, named)
        with torch.no_grad():
            return _clip(named, batch, losses.detach())


def contributions(
    calls: list[Call], batch: Batch, losses: torch.Tensor, *, keep: bool
) -> dict[str, Contribution]:
    """Return each parameter's contribution, by name, from one backward pass."""
    if not losses.requires_grad:
        return {}
    edges = [edge for call in calls for edge in call.edges]
    if not edges:
        return {}
    ones = torch.ones_like(losses)
    found = list(torch.autograd.grad(losses, edges, ones, allow_unused=True, retain_graph=keep))
    names = {id(p): name for name, p in batch.parameters.items()}
    parts: dict[str, list[Contribution]] = {}
    with torch.no_grad():
        for call in calls:
            call.check()
            gradients: list[torch.Tensor | None] = [found.pop(0) for _ in call.edges]
            if all(g is None for g in gradients):
                continue
            for parameter, part in _of_call(call, gradients, len(batch)):
                parts.setdefault(names[id(parameter)], []).append(part)
        return {name: join(several) for name, several in parts.items()}


def _of_call(
    call: Call, gradients: list[torch.Tensor | None], size: int
) -> list[tuple[nn.Parameter, Contribution]]:
    module, rule = call.unit.module, call.unit.rule
    if attention.is_plain(module, call.args, call.kwargs) and gradients[1:] in ([], [None]):
        return _run_again(attention.contributions, call, gradients, size)
    if recurrent.is_plain(module, call.args, call.kwargs):
        return _run_again(recurrent.contributions, call, gradients, size)
    if rule is None:
        return [(p, Rows(rows)) for p, rows in _by_vmap(call, gradients, size)]
    (gradient,) = gradients
    assert gradient is not None
    inputs, outputs = call.args, gradient
    if inputs[0].shape[:1] != (size,) or outputs.shape[:1] != (size,):
        raise NotBookable(f"{call.unit.path}: the first dimension is not the records")
    wide = torch.promote_types(outputs.dtype, torch.float32)
    first = inputs[0].detach()
    first = first.to(wide) if first.is_floating_point() else first
    found = rule(module, (first,), outputs.to(wide))
    return [(getattr(module, name), part) for name, part in found.items()]


def _run_again(
    function: Callable[..., Any], call: Call, gradients: list[torch.Tensor | None], size: int
) -> list[tuple[nn.Parameter, Contribution]]:
    """Return contributions from a module whose inner values have to be made once more."""
    first = call.args[0].detach()
    if first.shape[0] != size:
        raise NotBookable(f"{call.unit.path}: the first dimension is not the records")
    wide = torch.promote_types(first.dtype, torch.float32)
    given = [None if g is None else g.to(wide) for g in gradients]
    found, again = function(call.unit.module, first.to(wide), call.kwargs, given)
    made = call.outputs[0]
    coarse = torch.finfo(made.dtype).eps > 1e-4
    rtol, atol = (3e-2, 1e-2) if coarse else (1e-3, 1e-5)
    if not torch.allclose(made.to(wide), again, rtol=rtol, atol=atol, equal_nan=True):
        raise NotBookable(f"{call.unit.path}: gives another output when run again")
    own: list[tuple[nn.Parameter, Contribution]] = found
    return own


def _by_vmap(
    call: Call, gradients: list[torch.Tensor | None], size: int
) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Return per-record gradients of a module without a rule, by running it again per record."""
    module, tree = call.unit.module, (call.args, call.kwargs)
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    given = [t.detach() for t in records.leaves(tree)]
    tensors = enumerate(records.leaves(call.outputs))
    made = {k: t for k, t in tensors if t.requires_grad}
    wanted = {k: g for k, g in zip(made, gradients, strict=True) if g is not None}
    if any(t.shape[:1] != (size,) for t in [*given, *wanted.values()]):
        raise NotBookable(f"{call.unit.path}: the first dimension is not the records")

    def one(
        values: dict[str, torch.Tensor], some: list[torch.Tensor], back: dict[int, torch.Tensor]
    ) -> tuple[Any, Any]:
        args, kwargs = records.fill(tree, [t.unsqueeze(0) for t in some])

        def run(values: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
            out = records.leaves(functional_call(module, values, args, kwargs))
            return {k: out[k].squeeze(0) for k in wanted}

        again, *pull = vjp(run, values)
        return pull[0](back)[0], again

    values = {name: p.detach() for name, p in own.items()}
    try:
        with vectorised(module):
            each = vmap(one, in_dims=(None, 0, 0), randomness="different")
            rows, again = each(values, given, wanted)
    except (RuntimeError, ValueError) as error:
        raise NotBookable(f"{call.unit.path}: {error}") from None
    for k, new in again.items():
        if not torch.allclose(made[k], new, rtol=1e-3, atol=1e-5, equal_nan=True):
            raise NotBookable(f"{call.unit.path}: gives another output when run again")
    return [(own[name], rows[name]) for name in own]


def _clip(named: dict[str, Contribution], batch: Batch, losses: torch.Tensor) -> ClippedSum:
    if named:
        of_rows = remembering(row_squares)
        norms = torch.stack([part.squares(of_rows) for part in named.values()]).sum(0).sqrt_()
    else:
        norms = torch.zeros_like(losses)
    factors = clip_factors(norms, batch.clip_norms)
    if not math.isfinite(float(norms.sum())):
        bad = ~torch.isfinite(norms)
        named = {name: part.without(bad) for name, part in named.items()}
    sums = {}
    for name, parameter in batch.parameters.items():
        part = named.get(name)
        total = torch.zeros_like(parameter) if part is None else part.weighted(factors)
        sums[name] = total if total.dtype == parameter.dtype else total.to(parameter.dtype)
    return ClippedSum(sums, norms, losses, batch.clip_norms)
