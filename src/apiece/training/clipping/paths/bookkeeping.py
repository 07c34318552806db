"""Clipping by book-keeping: one forward, one backward, no per-record gradient that can be spared.

The backward pass runs to the outputs of the layers only, so that it makes no parameter gradient.
Norms come from activations and output gradients; the clipped sum from the very same tensors with
the records weighted, at the price of the parameter gradients that were left out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, vjp, vmap
from torch.utils.checkpoint import CheckpointError

from apiece.training.clipping import records
from apiece.training.clipping.clipped import ClippedSum, add_up, clip_factors
from apiece.training.clipping.paths import beside
from apiece.training.clipping.paths.chain import chain_of, walk
from apiece.training.clipping.paths.chain import contributions as of_uses
from apiece.training.clipping.paths.complete import missed
from apiece.training.clipping.paths.dense import clip_dense, is_dense
from apiece.training.clipping.paths.functional import places_of, vectorised
from apiece.training.clipping.paths.meeting import Use, nodes
from apiece.training.clipping.paths.pace import most_at_a_time, records_at_a_time
from apiece.training.clipping.paths.pooling import fast_pooling
from apiece.training.clipping.paths.shared import parts_of_uses
from apiece.training.clipping.paths.tape import Call, Tape, recording
from apiece.training.clipping.precision import single, wide
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.contributions import Contribution, Rows, join
from apiece.training.clipping.rules.joined import Joined, Persons
from apiece.training.clipping.rules.keeping import keeping
from apiece.training.clipping.rules.kernels import remembering, row_squares
from apiece.training.clipping.rules.rule import (
    LayerRule,
    LayerUse,
    NotBookable,
    same_output,
)

Gradients = list[torch.Tensor | None]
Passed = tuple[Call, Gradients]  # a call, and the gradients of its outputs
Part = tuple[torch.Tensor, Contribution]  # of a parameter


def clip_in_parts(batch: Batch) -> ClippedSum:
    """Return the clipped sum of a batch, a part at a time; raise what `clip_batch` raises."""
    return add_up(clip_batch(part) for part in parts_of(batch))


def parts_of(batch: Batch) -> Iterator[Batch]:
    """Yield the parts in which book-keeping takes a batch."""
    width = records_at_a_time(batch.model, batch.inputs, len(batch))
    return iter([batch]) if width >= len(batch) else batch.parts(width)


def most_together(batch: Batch) -> int:
    """Return how many records book-keeping runs together at most, in a batch of any size."""
    return most_at_a_time(batch.model, batch.inputs)


def clip_batch(batch: Batch) -> ClippedSum:
    """Return the clipped sum of one batch; raise `NotBookable` where another path must be taken."""
    layers = chain_of(batch)
    if layers is not None:
        with torch.no_grad():
            losses, uses = walk(layers, batch)
            if is_dense(uses):
                return clip_dense(uses, batch, losses)
            return _clip(of_uses(uses, batch), batch, losses)
    with recording(batch.model, len(batch)) as tape, torch.enable_grad(), fast_pooling(batch.model):
        losses = batch.losses()
    _refuse_the_unseen(tape, losses, batch)
    passed, met = _backward(tape, losses)
    with torch.no_grad():
        apart = _without_rule(passed, len(batch))
        seen = [(use.shared, use.gives(g)) for use, g in met if use.as_it_ran]
    with single(losses.device), torch.no_grad(), keeping():
        while met:  # what a use holds is let go of with what it gives
            use, gradient = met.popleft()
            if not use.as_it_ran:
                seen.append((use.shared, use.gives(gradient)))
        trained = {id(p): p for p in batch.parameters.values()}
        apart += parts_of_uses(tape, seen, trained)
        return _clip(_contributions(passed, apart, batch), batch, losses.detach())


def _refuse_the_unseen(tape: Tape, losses: torch.Tensor, batch: Batch) -> None:
    """Raise `NotBookable` where a parameter is used in a way that was not noted."""
    names = {id(p): name for name, p in batch.parameters.items()}
    at = missed(nodes([losses]), tape.stops(), names)
    if at is None:
        shared, stops = tape.behind_shared()
        at = missed(shared, stops, names.keys() - tape.follow.roots.keys())
    if at is not None:
        raise NotBookable(f"{names[at]}: is used where it cannot be followed")


def _backward(
    tape: Tape, losses: torch.Tensor
) -> tuple[deque[Passed], deque[tuple[Use, torch.Tensor]]]:
    """Return the calls, and uses of what is shared, on which losses depend, with gradients."""
    edges = tape.edges
    if not edges or not losses.requires_grad:
        return deque(), deque()
    ones = torch.ones_like(losses)
    try:
        every: Gradients = [*torch.autograd.grad(losses, edges, ones, allow_unused=True)]
    except CheckpointError:
        raise NotBookable(
            "a part under torch.utils.checkpoint uses parameters that no layer holds"
        ) from None
    found = iter(every)
    passed: deque[Passed] = deque()
    while tape.calls:  # what a call holds is let go of with its part of the sum
        call = tape.calls.popleft()
        call.check()
        gradients: Gradients = [next(found) for _ in call.edges]
        if any(g is not None for g in gradients):
            passed.append((call, gradients))
    pairs = zip(tape.follow.uses, found, strict=True)
    met = deque((use, gradient) for use, gradient in pairs if gradient is not None)
    tape.follow.uses.clear()
    for use, _ in met:
        use.check()
    return passed, met


def _contributions(
    passed: deque[Passed], apart: list[Part], batch: Batch
) -> dict[str, Contribution]:
    """Return each parameter's contribution, by name; `apart` holds those that no rule gives.

    Empties both, so that no call's tensors are kept longer than its contribution is made of.
    """
    found = apart
    while passed:
        found += _by_rule(*passed.popleft(), len(batch))
    names = {id(p): name for name, p in batch.parameters.items()}
    parts: dict[str, list[Contribution]] = {}
    for parameter, part in found:
        parts.setdefault(names[id(parameter)], []).append(part)
    found.clear()
    return {name: join(parts.pop(name)) for name in list(parts)}


def _without_rule(passed: deque[Passed], size: int) -> list[Part]:
    """Return the contributions of modules without a rule, run as they ran: autocast included."""
    found: list[Part] = []
    for call, gradients in passed:
        if _rule_of(call, gradients) is None:
            rows = _by_vmap(call, gradients, size)
            found += [(p, Rows(each.to(wide(each.dtype)))) for p, each in rows]
    return found


def _rule_of(call: Call, gradients: Gradients) -> LayerRule | None:
    rule = call.unit.rule
    given = call.unit.module, call.args, call.kwargs, gradients
    return rule if rule is not None and rule.takes(*given) else None


def _by_rule(call: Call, gradients: Gradients, size: int) -> list[Part]:
    rule = _rule_of(call, gradients)
    if rule is None:
        return []
    first, others = call.args[0], call.args[1:]
    output = records.leaves(call.outputs)[0] if rule.remakes else None
    if call.packing is not None:
        first, output = (
            call.packing.padded(t) for t in (first.data, records.leaves(call.outputs)[0])
        )
        of_rows, *states = gradients
        gradients = [None if of_rows is None else call.packing.padded(of_rows), *states]
        others = (call.packing.lengths.to(first.device),)
    first, back = first.detach(), [g for g in gradients if g is not None]
    if rule.positions and first.dim() and first.shape[0] > size:  # several rows for each record
        first, output, *gradients = [_rows(t, size) for t in (first, output, *gradients)]
        back = [g for g in gradients if g is not None]
    if first is None or (first.shape[:1] != (size,) and not rule.more):
        raise NotBookable(f"{call.unit.path}: the first dimension is not the records")
    if not rule.remakes and back[0].shape[:1] != (size,):
        raise NotBookable(f"{call.unit.path}: the first dimension is not the records")
    exact = wide(back[0].dtype)
    use = LayerUse(
        call.unit.path,
        first.to(exact) if first.is_floating_point() else first,
        [None if g is None else g.to(exact) for g in gradients],
        call.kwargs,
        output,
        others,
    )
    found = rule.gives(call.unit.module, use)
    return [(call.unit.module.get_parameter(name), part) for name, part in found.items()]


def _rows(tensor: torch.Tensor | None, size: int) -> torch.Tensor | None:
    """Return (B, k, ...) of (B·k, ...), and others as they are."""
    if tensor is None or tensor.shape[0] % size:
        return tensor
    return tensor.reshape(size, -1, *tensor.shape[1:])


def _by_vmap(
    call: Call, gradients: Gradients, size: int
) -> list[tuple[nn.Parameter, torch.Tensor]]:
    """Return per-record gradients of a module without a rule, by running it again per record."""
    module, tree = call.unit.module, (call.args, call.kwargs)
    own = {name: p for name, p in module.named_parameters() if p.requires_grad}
    places = places_of(module, own)
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
            everywhere = {place: values[name] for place, name in places.items()}
            again = functional_call(module, everywhere, args, kwargs, tie_weights=False)
            out = records.leaves(again)
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
        same_output(call.unit.path, made[k], new)
    return [(own[name], rows[name]) for name in own]


def _clip(named: dict[str, Contribution], batch: Batch, losses: torch.Tensor) -> ClippedSum:
    owner, bounds = batch.owner, batch.clip_norms
    together, shapes = beside.together(named)
    named.clear()  # what a contribution holds is let go of with its sum
    held: dict[str, Contribution | Joined] = dict(together)
    if owner is not None:
        persons = Persons(owner)
        held = {name: Joined(part, persons) for name, part in together.items()}
    if held:
        of_rows = remembering(row_squares)
        norms = torch.stack([part.squares(of_rows) for part in held.values()]).sum(0).sqrt_()
    else:
        norms = torch.zeros_like(bounds, dtype=wide(losses.dtype))
    factors = clip_factors(norms, bounds)
    if not math.isfinite(float(norms.sum())):
        bad = ~torch.isfinite(norms)
        held = {name: part.without(bad) for name, part in held.items()}
    together.clear()
    sums = {name: held.pop(name).weighted(factors) for name in list(held)}
    if shapes:
        sums |= beside.apart(sums.pop(beside.ALL), shapes)
    for name, parameter in batch.parameters.items():
        if name not in sums:
            sums[name] = torch.zeros_like(parameter, dtype=wide(parameter.dtype))
    return ClippedSum({name: sums[name] for name in batch.parameters}, norms, losses, bounds)
