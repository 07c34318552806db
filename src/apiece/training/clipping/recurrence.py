"""The recurrence of torch's recurrent layers: all steps of a direction as one operator, and back.

Row i of what either operator gives is made of row i of what it takes along the records, and of the
weights. Neither sums over rows: the gradients of the weights are products of gates' gradients and
states at all steps, which stand in the graph as those of any linear layer do.

Gates are blocks of H values along the last axis. An LSTM has four (enter, forget, new, leave), a
plain RNN one. A GRU is given three (reset, update, new); inside it has four, since the reset gate
multiplies what the state gives the new one: reset, update, new by the state, new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.library import custom_op

Tensor = torch.Tensor
aten = torch.ops.aten
# Blocks of gates that a weight has, by a layer's mode in torch's words.
_BLOCKS = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


def _open_steps(lengths: Tensor | None, steps: int) -> Tensor | None:
    """Return whether each record has an entry at each step, (B, T, 1); None where all have."""
    if lengths is None:
        return None
    # (T,) against (B, 1): open as long as the step's number is below the record's length.
    return (torch.arange(steps, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(2)


def _in_time(steps: int, reverse: bool) -> range:
    """Return the steps in the order in which a direction takes them."""
    return range(steps - 1, -1, -1) if reverse else range(steps)


def _before_steps(first: Tensor, states: Tensor, reverse: bool) -> Tensor:
    """Return the state that each step starts from: `first` at the first one."""
    first = first.unsqueeze(1)
    if reverse:
        return torch.cat([states[:, 1:], first], 1)
    return torch.cat([first, states[:, :-1]], 1)


# ---------------------------------------------------------------- forward


@custom_op("apiece::recurrence", mutates_args=())
def recur(
    gates: Tensor,
    state: Tensor,
    cell: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    projection: Tensor | None,
    lengths: Tensor | None,
    mode: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what one direction of a layer gives for the gates that its input has made.

    Args:
        gates: (B, T, gates·H).
        state: (B, P) before the first step; P is H without a projection.
        cell: (B, H), of an LSTM.
        weight: (gates·H, P), by which the state enters the gates.
        bias: (gates·H,), of a GRU, whose reset gate multiplies its last block.
        projection: (P, H), which makes an LSTM's states smaller.
        lengths: (B,), after which a record keeps its state; None where all are T long.
        mode: A layer's, in torch's words.
        reverse: Whether the last step comes first.

    Returns:
        States (B, T, P), activations of the gates (B, T, 4·H), cells (B, T, H), states before the
        projection (B, T, H), and the last state (B, P) and cell (B, H). What a mode does not have
        is zero wide.
    """
    # All steps of all records are written into these; views of them serve as the states of a step.
    outputs = _make_outputs(gates, state, cell, projection, mode)
    states, activations, cells, hidden, last, last_cell = outputs
    is_open = _open_steps(lengths, gates.shape[1])
    order = _in_time(gates.shape[1], reverse)
    if mode == "LSTM":
        # c' = σ(forget)·c + σ(enter)·tanh(new) and h' = σ(leave)·tanh(c'), step by step and in
        # place.
        assert cell is not None
        activations.copy_(gates)
        before_projection = states if projection is None else hidden
        blocks = activations.chunk(4, 2)
        for step in order:
            activations[:, step].addmm_(state, weight.t())
            enter, forget, new, leave = (block[:, step] for block in blocks)
            following_cell = torch.mul(forget.sigmoid_(), cell, out=cells[:, step])
            following_cell.addcmul_(enter.sigmoid_(), new.tanh_())
            leaving = before_projection[:, step]
            torch.mul(leave.sigmoid_(), following_cell.tanh(), out=leaving)
            if projection is not None:
                torch.mm(leaving, projection.t(), out=states[:, step])
            cell = _keep_ended(following_cell, cell, is_open, step)
            state = _keep_ended(states[:, step], state, is_open, step)
        last_cell.copy_(cell)
    elif mode == "GRU":
        # h' = (1 − update)·n + update·h with n = tanh(new + reset·new_by_state), as torch has it.
        _place_gates_of_gru(activations, gates, bias)
        size = state.shape[1]
        blocks = activations.chunk(4, 2)
        for step in order:
            activations[:, step, : 3 * size].addmm_(state, weight.t())
            activations[:, step, : 2 * size].sigmoid_()
            reset, update, new_by_state, new = (block[:, step] for block in blocks)
            new.addcmul_(reset, new_by_state).tanh_()
            following = torch.lerp(new, state, update, out=states[:, step])
            state = _keep_ended(following, state, is_open, step)
    else:
        # h' = f(gate + W·h), with f = tanh or relu.
        states.copy_(gates)
        for step in order:
            following = states[:, step].addmm_(state, weight.t())
            following = following.relu_() if mode == "RNN_RELU" else following.tanh_()
            state = _keep_ended(following, state, is_open, step)
    last.copy_(state)
    return states, activations, cells, hidden, last, last_cell


def _keep_ended(following: Tensor, state: Tensor, is_open: Tensor | None, step: int) -> Tensor:
    """Write into a step's states those of records that have ended, or not begun; return them."""
    # In place: the next step and the backward read the states from the same memory.
    if is_open is not None:
        following.copy_(torch.where(is_open[:, step], following, state))
    return following


def _place_gates_of_gru(activations: Tensor, gates: Tensor, bias: Tensor | None) -> None:
    """Write a GRU's gates into its four blocks, of which a state enters the first three."""
    # With H values a gate: the state enters the first 3·H, and the new gate begins at 2·H of what
    # is given.
    by_state = activations.shape[2] // 4 * 3
    before_new = by_state // 3 * 2
    activations[..., :before_new] = gates[..., :before_new]
    activations[..., before_new:by_state] = 0
    activations[..., by_state:] = gates[..., before_new:]
    if bias is not None:
        activations[..., :by_state] += bias


def _make_outputs(
    gates: Tensor, state: Tensor, cell: Tensor | None, projection: Tensor | None, mode: str
) -> list[Tensor]:
    """Return what `recur` gives, not filled."""
    batch, steps, width = gates.shape
    size = 0 if cell is None else cell.shape[1]
    # A GRU is given three gates and keeps four; a plain RNN's activations are its states.
    activations = {"LSTM": width, "GRU": width // 3 * 4}.get(mode, 0)
    widths = [state.shape[1], activations, size, 0 if projection is None else size]
    of_steps = [gates.new_empty(batch, steps, columns) for columns in widths]
    return [*of_steps, gates.new_empty(batch, state.shape[1]), gates.new_empty(batch, size)]


@recur.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    gates, state, cell, _, _, projection, _, mode, _ = args
    return tuple(_make_outputs(gates, state, cell, projection, mode))


# ---------------------------------------------------------------- backward


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Slopes:
    """What the gradient of a step's state is multiplied by on its way back, all (B, T, ·).

    gates: by block, dstate/dgate; of an LSTM's first three dcell/dgate. kept: how much goes to the
    state before past the gates; None for nothing. to_cell: dstate/dcell, of an LSTM. forget:
    dcell/d(cell before).
    """

    gates: Tensor
    kept: Tensor | None
    to_cell: Tensor | None = None
    forget: Tensor | None = None

    def masked(self, is_open: Tensor) -> _Slopes:
        """Return them with a record's state going past the steps at which it has no entry."""
        # Selected, not multiplied: what is beyond a record may be infinite.
        if self.to_cell is None or self.forget is None:
            # Past a record's end nothing goes to gates, and all of the state's gradient to the
            # state before.
            gates = torch.where(is_open, self.gates, 0)
            kept = 0 if self.kept is None else self.kept
            return _Slopes(gates, torch.where(is_open, kept, self.gates.new_ones(())))
        # Likewise, and all of the cell's gradient to the cell before.
        return _Slopes(
            torch.where(is_open, self.gates, 0),
            (~is_open).to(self.gates.dtype),
            torch.where(is_open, self.to_cell, 0),
            torch.where(is_open, self.forget, 1),
        )


def _slopes_of_lstm(activations: Tensor, cells: Tensor, previous: Tensor) -> _Slopes:
    """Return the slopes of an LSTM. previous: the cells that steps start from."""
    enter, forget, new, leave = activations.chunk(4, 2)
    tanh_cells = cells.tanh()
    # dcell/dgate of the first three, and dstate/dgate of the last: in each the slope of the gate's
    # own function is a factor.
    by_gate = [
        aten.sigmoid_backward(new, enter),
        aten.sigmoid_backward(previous, forget),
        aten.tanh_backward(enter, new),
        aten.sigmoid_backward(tanh_cells, leave),
    ]
    return _Slopes(torch.cat(by_gate, 2), None, aten.tanh_backward(leave, tanh_cells), forget)


def _slopes_of_gru(activations: Tensor, previous: Tensor) -> _Slopes:
    """Return the slopes of a GRU. previous: the states that steps start from."""
    reset, update, new_by_state, new = activations.chunk(4, 2)
    to_new = aten.tanh_backward(1 - update, new)
    # With n the new state: dh'/dn = 1 − update, dh'/dupdate = h − n, dn/d(pre-activation) = 1 − n².
    by_gate = [
        aten.sigmoid_backward(to_new * new_by_state, reset),
        aten.sigmoid_backward(previous - new, update),
        to_new * reset,
        to_new,
    ]
    return _Slopes(torch.cat(by_gate, 2), update)


@custom_op("apiece::recurrence_backward", mutates_args=())
def recur_backward(
    grad_states: Tensor | None,
    grad_last: Tensor | None,
    grad_last_cell: Tensor | None,
    previous: Tensor,
    cell: Tensor | None,
    states: Tensor,
    activations: Tensor,
    cells: Tensor,
    weight: Tensor,
    projection: Tensor | None,
    lengths: Tensor | None,
    mode: str,
    reverse: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of the gates at all steps, and of what the direction starts from.

    previous: (B, T, P), the state that each step starts from. Others are as in `recur`.

    Returns:
        Gradients of the gates (B, T, gates·H) before their functions, of a GRU's four; of the first
        state (B, P) and cell (B, H); and of what the projection gives (B, T, P), if there is one.
    """
    steps = states.shape[1]
    match mode:
        case "LSTM":
            assert cell is not None
            # For each mode the slopes at all steps at once: only the gradient itself goes step by
            # step.
            slopes = _slopes_of_lstm(activations, cells, _before_steps(cell, cells, reverse))
        case "GRU":
            slopes = _slopes_of_gru(activations, previous)
        case "RNN_RELU":
            slopes = _Slopes((states > 0).to(states.dtype), None)
        case _:
            slopes = _Slopes(1 - states.square(), None)
    is_open = _open_steps(lengths, steps)
    if is_open is not None:
        slopes = slopes.masked(is_open)
    # H values a gate.
    size = weight.shape[0] // _BLOCKS[mode]
    # The slopes become the gates' gradients in place: what follows them is written over them.
    of_gates = slopes.gates
    # (B, T, gates, H), a view of `of_gates`, so that writing into it fills what is returned.
    blocks = of_gates.view(*of_gates.shape[:2], -1, size)
    by_state = of_gates[..., : weight.shape[0]]
    grad = torch.zeros_like(previous[:, 0]) if grad_last is None else grad_last
    grad_cell = torch.zeros_like(cells[:, 0]) if grad_last_cell is None else grad_last_cell
    of_output = previous.new_empty(*previous.shape[:2], _projected_width(previous, projection))
    # Back in time: the gradient of a step's state is what later steps and the outputs give it.
    for step in reversed(_in_time(steps, reverse)):
        if grad_states is not None:
            grad = grad + grad_states[:, step]
        if slopes.to_cell is None or slopes.forget is None:
            blocks[:, step].mul_(grad.unsqueeze(1))
        else:
            of_leaving = grad
            if projection is not None:
                of_output[:, step] = grad
                if is_open is not None:
                    of_output[:, step].masked_fill_(~is_open[:, step], 0)
                of_leaving = grad @ projection
            # The cell's gradient: what comes from later cells, and what comes through this step's
            # state.
            grad_cell = torch.addcmul(grad_cell, of_leaving, slopes.to_cell[:, step])
            blocks[:, step, :3].mul_(grad_cell.unsqueeze(1))
            blocks[:, step, 3].mul_(of_leaving)
            # The gradient of the cell before: through the forget gate; for an ended record all of
            # it.
            grad_cell = grad_cell * slopes.forget[:, step]
        if slopes.kept is None:
            grad = by_state[:, step] @ weight
        else:
            grad = torch.addmm(grad * slopes.kept[:, step], by_state[:, step], weight)
    return of_gates, grad.clone(), grad_cell.clone(), of_output


def _projected_width(previous: Tensor, projection: Tensor | None) -> int:
    """Return how wide the gradient of what a projection gives is."""
    return 0 if projection is None else previous.shape[2]


@recur_backward.register_fake
def _(*args: Any) -> tuple[Tensor, ...]:
    _, _, _, previous, _, states, activations, cells, _, projection, *_ = args
    batch, steps, width = previous.shape
    gates = activations.shape[2] or states.shape[2]
    return (
        previous.new_empty(batch, steps, gates),
        previous.new_empty(batch, width),
        previous.new_empty(batch, cells.shape[2]),
        previous.new_empty(batch, steps, _projected_width(previous, projection)),
    )


# ---------------------------------------------------------------- as autograd has it


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, state, cell, weight, bias, projection, lengths, ctx.mode, ctx.reverse = inputs
    # No gradient comes through these: they serve the backward alone.
    states, activations, cells, hidden, _, _ = output
    ctx.mark_non_differentiable(activations, cells, hidden)
    ctx.set_materialize_grads(False)
    ctx.has_bias = bias is not None
    ctx.save_for_backward(
        state, cell, weight, projection, lengths, states, activations, cells, hidden
    )


def _differentiate(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients of what `recur` takes, of weights as products that the graph shows."""
    state, cell, weight, projection, lengths, states, activations, cells, hidden = ctx.saved_tensors
    grad_states, _, _, _, grad_last, grad_last_cell = grads
    # The state each step began with: the weight's gradient is a product of it and the gates'
    # gradients.
    previous = _before_steps(state, states, ctx.reverse)
    of_gates, grad_state, grad_cell, of_output = recur_backward(
        grad_states, grad_last, grad_last_cell, previous, cell, states, activations, cells,
        weight, projection, lengths, ctx.mode, ctx.reverse,
    )  # fmt: skip
    by_input = by_state = of_gates
    # Of the four blocks the input enters all but new_by_state, and the state all but new.
    if ctx.mode == "GRU":
        size = state.shape[1]
        by_state = of_gates[..., : 3 * size]
        by_input = torch.cat([of_gates[..., : 2 * size], of_gates[..., 3 * size :]], 2)
    # Products over (B·T): the records are summed in plain `mm`s of the graph, where a rule finds
    # them.
    return (
        by_input,
        grad_state,
        None if cell is None else grad_cell,
        by_state.flatten(0, 1).t() @ previous.flatten(0, 1),
        by_state.sum((0, 1)) if ctx.has_bias else None,
        None if projection is None else of_output.flatten(0, 1).t() @ hidden.flatten(0, 1),
        None,
        None,
        None,
    )


recur.register_autograd(_differentiate, setup_context=_keep_for_backward)
