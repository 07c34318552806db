"""Recurrent layers by book-keeping: LSTM, GRU and RNN unrolled, two linear maps at each time.

A fused layer shows neither its hidden states nor the gradients of its gates. Unrolled once more
with zeros added to what the two weights put out, the gradients of those zeros are the output
gradients of two linear layers over time, and those have cheap norms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Rows, products
from apiece.training.clipping.rules.rule import (
    Contributions,
    Gradients,
    LayerRule,
    LayerUse,
    same_output,
    trains,
)

_GATES: dict[type[nn.Module], int] = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Way:
    """One layer in one direction: what went into its two maps, and the zeros added after them."""

    suffix: str
    inputs: torch.Tensor
    hidden: torch.Tensor
    of_inputs: torch.Tensor
    of_hidden: torch.Tensor


def recurrent(module: nn.RNNBase, use: LayerUse) -> Contributions:
    """Return the contributions of every layer's two maps.

    use.input: (B, T, I); use.gradients: of the output and the last states, None where unused;
    use.others: the records' lengths, where they differ.
    """
    there = None
    if use.others:
        there = torch.arange(use.input.shape[1], device=use.input.device) < use.others[0][:, None]
    with torch.enable_grad():
        outputs, uses = _unrolled(module, use.input, there)
    zeros = [zero for each in uses for zero in (each.of_inputs, each.of_hidden)]
    pairs = [(o, g) for o, g in zip(outputs, use.gradients, strict=True) if g is not None]
    made, given = [o for o, _ in pairs], [g for _, g in pairs]
    back = iter(torch.autograd.grad(made, zeros, given))
    if use.output is not None:
        same_output(use.path, use.output, outputs[0].detach())
    found: Contributions = {}
    for each in uses:
        for kind, right in (("ih", each.inputs), ("hh", each.hidden)):
            left = next(back)
            if trains(module, f"weight_{kind}{each.suffix}"):
                found[f"weight_{kind}{each.suffix}"] = products(left, right.detach())
            if trains(module, f"bias_{kind}{each.suffix}"):
                found[f"bias_{kind}{each.suffix}"] = Rows(left.sum(1))
    return found


def _unrolled(
    module: nn.RNNBase, values: torch.Tensor, there: torch.Tensor | None
) -> tuple[list[torch.Tensor], list[_Way]]:
    uses: list[_Way] = []
    last: list[tuple[torch.Tensor, torch.Tensor]] = []
    for layer in range(module.num_layers):
        sides = []
        for side in ("", "_reverse")[: 1 + module.bidirectional]:
            own = module, f"_l{layer}{side}"
            out, state, use = _one_way(*own, values, there, backwards=bool(side))
            sides.append(out)
            last.append(state)
            uses.append(use)
        values = torch.cat(sides, 2)
    hidden = torch.stack([h for h, _ in last])
    if not isinstance(module, nn.LSTM):
        return [values, hidden], uses
    return [values, hidden, torch.stack([c for _, c in last])], uses


def _one_way(
    module: nn.RNNBase,
    suffix: str,
    values: torch.Tensor,
    there: torch.Tensor | None,
    *,
    backwards: bool,
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], _Way]:
    """Run one layer in one direction; a state stands still where its record is not `there`."""

    def own(name: str) -> Any:
        found = module._parameters.get(name + suffix)
        return None if found is None else found.detach().to(values.dtype)

    batch, length, _ = values.shape
    width = _GATES[type(module)] * module.hidden_size
    of_inputs = values.new_zeros(batch, length, width, requires_grad=True)
    of_hidden = values.new_zeros(batch, length, width, requires_grad=True)
    shown = nn.functional.linear(values, own("weight_ih"), own("bias_ih")) + of_inputs
    weight, bias = own("weight_hh"), own("bias_hh")
    hidden = cell = values.new_zeros(batch, module.hidden_size)
    before: list[torch.Tensor] = [hidden] * length
    after: list[torch.Tensor] = [hidden] * length
    for time in range(length - 1, -1, -1) if backwards else range(length):
        before[time] = hidden
        kept = nn.functional.linear(hidden, weight, bias) + of_hidden[:, time]
        last = hidden, cell
        hidden, cell = _cell(module, shown[:, time], kept, hidden, cell)
        after[time] = hidden
        if there is not None:
            now = there[:, time].unsqueeze(1)
            after[time] = hidden.where(now, hidden.new_zeros(()))
            hidden, cell = hidden.where(now, last[0]), cell.where(now, last[1])
    use = _Way(suffix, values, torch.stack(before, 1), of_inputs, of_hidden)
    return torch.stack(after, 1), (hidden, cell), use


def _cell(
    module: nn.RNNBase,
    shown: torch.Tensor,
    kept: torch.Tensor,
    hidden: torch.Tensor,
    cell: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next hidden state and cell, from what the input and the past put in."""
    if isinstance(module, nn.LSTM):
        into, forget, new, out = (shown + kept).chunk(4, 1)
        cell = forget.sigmoid() * cell + into.sigmoid() * new.tanh()
        return out.sigmoid() * cell.tanh(), cell
    if isinstance(module, nn.GRU):
        (reset, update, new), (reset_, update_, new_) = shown.chunk(3, 1), kept.chunk(3, 1)
        stay = (update + update_).sigmoid()
        new = (new + (reset + reset_).sigmoid() * new_).tanh()
        return (1 - stay) * new + stay * hidden, cell
    total = shown + kept
    return (total.relu() if module.nonlinearity == "relu" else total.tanh()), cell


def _suits(module: nn.RNNBase) -> bool:
    """Whether nothing is projected or dropped between layers."""
    return module.proj_size == 0 and not (
        module.training and module.dropout > 0 and module.num_layers > 1
    )


def _takes(module: Any, args: Any, kwargs: dict[str, Any], _gradients: Gradients) -> bool:
    """Whether a call is of padded sequences, records first, or of packed ones, from zero states."""
    if len(args) != 1 or kwargs:
        return False
    if isinstance(args[0], nn.utils.rnn.PackedSequence):
        return True
    return isinstance(args[0], torch.Tensor) and args[0].dim() == 3 and module.batch_first


RECURRENT = LayerRule(recurrent, _suits, _takes, remakes=True, packs=True)
