"""Per-record gradient norms as a function of the inputs, to be differentiated once more."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn

from apiece.training.clipping.ambient import widen
from apiece.training.clipping.cache import ENGINES
from apiece.training.clipping.contributions import Contribution, Outer, Products, flatten_rows
from apiece.training.clipping.engine import AloneEngine, arguments_of, pad_to_two
from apiece.training.clipping.front import batch_without_bounds
from apiece.training.clipping.records import LossFunction, Tree

# Operators whose outputs, and those of their backward, autograd differentiates as what they are.
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
    model: nn.Module, loss_fn: LossFunction, inputs: Tree, targets: Tree
) -> torch.Tensor | None:
    """Return ‖∇_θ ℓ_i‖², (B,), as a function of the inputs; None where that is not known to hold.

    It is None where records are not proved to stay apart, and for operators with an output that
    autograd does not differentiate.

    The norms come from what the graph's products are made of (ghost norms: Goodfellow 2015; Li et
    al. 2022). They leave no room for round-off: nothing may be clipped by them.

    Args:
        model: As in `clip_and_sum`.
        loss_fn: One loss a record.
        inputs: Of at least one record; requiring gradients, if the result is to be differentiated.
        targets: As `inputs`.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece.sensitivity.smooth import smooth_squares
        >>> model = nn.Linear(2, 1, bias=False)
        >>> summed = lambda outputs, _: outputs.sum(1)
        >>> smooth_squares(model, summed, torch.ones(3, 2), torch.ones(3)).tolist()
        [2.0, 2.0, 2.0]
    """
    rows = batch_without_bounds(model, loss_fn, inputs, targets)
    # The engine of DP-SGD has proved that records stay apart, or runs them one by one.
    engine = ENGINES.find(rows)
    if isinstance(engine, AloneEngine) or not _is_smooth(engine.program.module):
        return None
    # Engines are captured for two records or more: a single one is padded by another.
    batch = pad_to_two(rows)
    _, contributions = engine.program.run(arguments_of(engine, batch))
    parameter = next(iter(batch.parameters.values()))
    squares = torch.zeros(len(batch), dtype=widen(parameter.dtype), device=parameter.device)
    # One after the other, and no operator in place: autograd takes them back to the inputs.
    for part in contributions.values():
        squares = squares + _squares(part)
    # Without what was padded.
    return squares[: len(rows)]


def _is_smooth(module: fx.GraphModule) -> bool:
    """Return whether a graph has no operators but those of `_SMOOTH`."""
    # slow to import, and there by now
    from apiece.training.clipping.table import name_of

    calls = (node for node in module.graph.nodes if node.op == "call_function")
    return all(name_of(node) in _SMOOTH for node in calls if node.target is not operator.getitem)


def _squares(part: Contribution) -> torch.Tensor:
    """Return squared norms (B,) without room for round-off, whose gradient would be of no use."""
    # As `Contribution.squares`, without what is added against round-off.
    match part:
        # ‖l·rᵀ‖² = ‖l‖²·‖r‖².
        case Outer(left, right):
            left_squares = left.square().sum(1)
            return left_squares * right.square().sum(1)
        # ‖L·Rᵀ‖² is the inner product of both Gram matrices.
        case Products(left, right) if part.ghost_is_cheaper:
            left_gram = left @ left.mT
            return (left_gram * (right @ right.mT)).sum((1, 2))
    return flatten_rows(part.per_record()).square().sum(1)
