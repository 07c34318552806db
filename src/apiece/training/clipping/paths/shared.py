"""What the parameters behind shared tensors give each record, from the uses of those tensors."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from apiece.training.clipping.paths.functional import vectorised
from apiece.training.clipping.paths.tape import SharedCall, Tape
from apiece.training.clipping.precision import wide
from apiece.training.clipping.rules.contributions import Contribution, Rows
from apiece.training.clipping.rules.rule import LayerUse, NotBookable

Part = tuple[torch.Tensor, Contribution]  # of a parameter


def parts_of_uses(
    tape: Tape, given: Iterable[tuple[torch.Tensor, Contribution]], trained: dict[int, nn.Parameter]
) -> list[Part]:
    """Return what each parameter gets by the uses of what is shared.

    given: shared tensors, and what their uses make of them. What was computed from parameters by
    layers is taken back through them, once for each record.
    """
    found: list[Part] = []
    computed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for shared, part in given:
        if id(shared) in trained:
            found.append((shared, part))
        else:
            computed.append((shared, part.per_record()))
    if not computed:
        return found
    roots = list(tape.follow.roots.values())
    outputs = [call.output for call in tape.shared]
    first = {id(call.output) for call in tape.shared if not call.given.requires_grad}
    back = _back_to([*roots, *outputs], computed, first)
    of_roots, of_outputs = back[: len(roots)], back[len(roots) :]
    found += [(p, Rows(g)) for p, g in zip(roots, of_roots, strict=True) if g is not None]
    for call, gradient in zip(tape.shared, of_outputs, strict=True):
        if gradient is not None:
            found += _by_rule(call, gradient)
    return found


def _back_to(
    to: list[torch.Tensor], computed: list[tuple[torch.Tensor, torch.Tensor]], first: set[int]
) -> list[torch.Tensor | None]:
    """Return the gradients, (B, ...), of tensors from which others were computed.

    first: the ids of those that were computed from no other; at them a gradient stays as it is.
    """
    further = [pair for pair in computed if id(pair[0]) not in first]
    found: list[torch.Tensor | None] = [None] * len(to)
    if further:
        with torch.enable_grad():
            found = _taken_back(further, to)
    places = {id(tensor): k for k, tensor in enumerate(to)}
    for shared, gradient in computed:
        if id(shared) in first:
            before = found[places[id(shared)]]
            found[places[id(shared)]] = gradient if before is None else before + gradient
    return found


def _taken_back(
    computed: list[tuple[torch.Tensor, torch.Tensor]], to: list[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Return the gradients, (B, ...), of tensors from which others were computed."""
    outputs = [shared for shared, _ in computed]
    gradients = [g.to(shared.dtype) for shared, g in computed]
    found: list[torch.Tensor | None] = []
    try:
        with vectorised():
            found += torch.autograd.grad(
                outputs, to, gradients, allow_unused=True, is_grads_batched=True
            )
    except RuntimeError as error:
        raise NotBookable(f"what all records share cannot be taken back: {error}") from None
    return [None if g is None else g.to(wide(g.dtype)) for g in found]


def _by_rule(call: SharedCall, gradient: torch.Tensor) -> list[Part]:
    """Return what a layer gives for an input that all records share; gradient: (B, *output)."""
    unit, size = call.unit, len(gradient)
    rule, given, output = unit.rule, call.given.detach(), call.output.detach()
    single = given.dim() > 1 and given.shape[0] == 1
    if rule is None or not (rule.positions or single):
        raise NotBookable(f"{unit.path}: the first dimension is not the records")
    given, output = (t.expand(size, *t.shape[1:] if single else t.shape) for t in (given, output))
    exact = gradient.squeeze(1) if single else gradient
    if not rule.takes(unit.module, (given,), {}, [exact]):
        raise NotBookable(f"{unit.path}: the first dimension is not the records")
    if given.is_floating_point():
        given = given.to(exact.dtype)
    parts = rule.gives(unit.module, LayerUse(unit.path, given, [exact], {}, output))
    return [(unit.module.get_parameter(name), part) for name, part in parts.items()]
