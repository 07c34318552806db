"""Norms of records' gradients that autograd can differentiate, by the proved graph."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx, nn

from apiece.training.clipping.contributions import Contribution, Lookups, Outer, Products
from apiece.training.clipping.convolution import Convolution
from apiece.training.clipping.engine import arguments_of, at_least_two, engine_for
from apiece.training.clipping.guards import fit_parameters
from apiece.training.clipping.kernels import flattened
from apiece.training.clipping.precision import wide
from apiece.training.clipping.records import Batch, LossFunction, count

# Whose outputs, and those of their backward, autograd differentiates as what they are.
_SMOOTH = {
    "sym_size", "t", "transpose", "permute", "view", "_unsafe_view", "reshape", "expand",
    "unsqueeze", "squeeze", "clone", "select", "slice", "mm", "bmm", "addmm", "baddbmm", "mul",
    "add", "sub", "rsub", "div", "neg", "sum", "mean", "pow", "exp", "log", "tanh",
    "tanh_backward", "sigmoid", "sigmoid_backward", "relu", "threshold_backward", "softplus",
    "softplus_backward", "gelu", "gelu_backward", "elu", "elu_backward", "leaky_relu",
    "leaky_relu_backward", "_log_softmax", "_log_softmax_backward_data", "_softmax",
    "_softmax_backward_data", "nll_loss_forward", "nll_loss_backward", "convolution",
    "convolution_backward", "avg_pool2d", "avg_pool2d_backward", "max_pool2d_with_indices",
    "max_pool2d_with_indices_backward", "constant_pad_nd", "ones_like", "zeros_like", "full",
    "scalar_tensor", "where",
}  # fmt: skip


def smooth_squares(
    model: nn.Module, loss_fn: LossFunction, inputs: Any, targets: Any
) -> torch.Tensor | None:
    """Return ‖∇_θ ℓ_i‖², (B,), as a function of the inputs; None where that is not known to hold.

    That is where records are not proved to stay apart, and for operators of which autograd does not
    differentiate all that they give.

    The norms come from what the graph's products are made of (ghost norms: Goodfellow 2015; Li et
    al. 2022). They have no room for round-off: nothing may be clipped by them.

    Args:
        model: As in `clip_and_sum`.
        loss_fn: As in `clip_and_sum`.
        inputs: As in `clip_and_sum`; at least one record, and requiring gradients, if the result
            is to be differentiated.
        targets: As in `clip_and_sum`.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> summed = lambda outputs, _: outputs.sum(1)
        >>> smooth_squares(model, summed, torch.ones(3, 2), torch.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """
    parameters = fit_parameters(model)
    size = count(inputs, targets)
    first = next(iter(parameters.values()))
    bounds = torch.ones(size, dtype=torch.float64, device=first.device)
    rows = Batch(model, parameters, loss_fn, inputs, targets, bounds)
    engine = engine_for(rows)
    if engine.program is None or not _is_smooth(engine.program.module):
        return None
    batch = at_least_two(rows)
    _, operands = engine.program.run(arguments_of(engine, batch))
    squares = torch.zeros(len(batch), dtype=wide(first.dtype), device=first.device)
    for part in engine.program.contributions(operands, len(batch)).values():
        squares = squares + _squares(part)
    return squares[:size]


def _is_smooth(module: fx.GraphModule) -> bool:
    from apiece.training.clipping.table import name_of  # slow to import, and there by now

    calls = (node for node in module.graph.nodes if node.op == "call_function")
    return all(name_of(node) in _SMOOTH for node in calls if node.target is not operator.getitem)


def _squares(part: Contribution) -> torch.Tensor:
    match part:
        case Outer(left, right):
            return left.square().sum(1) * right.square().sum(1)
        case Products(left, right) if part.ghost_is_cheaper:
            return (left @ left.mT * (right @ right.mT)).sum((1, 2))
        case Lookups(index, left):
            same = index.unsqueeze(1) == index.unsqueeze(2)
            return (left @ left.mT * same).sum((1, 2))
        case Convolution() if part.gram_share <= 1:
            left, right = part.matrices(0, len(part.outputs))
            squares = _squares(Products(left.mT, right))
            return squares.view(len(part.outputs), -1).sum(1)
    return flattened(part.per_record()).square().sum(1)
