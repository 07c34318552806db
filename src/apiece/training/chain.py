"""Chains: one known layer after another, walked by hand, without hooks and without a graph.

For a small model most of a step is not arithmetic: autograd's nodes, hooks, dispatch, and memory
that is not in the cache. A `Sequential` of linear layers and plain activations needs few of them:
activations go into the product before them, or in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from apiece.training.contributions import Contribution, join
from apiece.training.kernels import ACTIVATIONS, linear
from apiece.training.losses import with_gradient
from apiece.training.records import Batch
from apiece.training.rules import RULES, rule_for

_aten = torch.ops.aten
_NAMES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_BACKWARD: dict[str, tuple[Any, tuple[int, ...]]] = {
    "relu": (_aten.threshold_backward.grad_input, (0,)),
    "tanh": (_aten.tanh_backward.grad_input, ()),
    "sigmoid": (_aten.sigmoid_backward.grad_input, ()),
}


class Use(NamedTuple):
    """One use of a linear layer: its input (B, I) and the gradient of its output (B, O).

    ours: whether the gradient is nobody else's, and so may be overwritten.
    """

    layer: nn.Linear
    right: torch.Tensor
    left: torch.Tensor
    ours: bool


def chain_of(batch: Batch) -> list[nn.Module] | None:
    """Return the model's layers in order if it is a chain that can be walked, else None."""
    given, device = batch.inputs, batch.clip_norms.device.type
    if not isinstance(given, torch.Tensor) or given.dtype != torch.float32 or device != "cpu":
        return None
    if given.requires_grad or torch.is_autocast_enabled("cpu"):
        return None
    layers: list[nn.Module] = []
    return layers if given.dim() == 2 and _collect(batch.model, layers) else None


def _collect(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Add the layers of `module` to `layers`; return whether all of them are known."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return False
    kind = type(module)
    if kind is nn.Sequential:
        return all(_collect(child, layers) for child in module._modules.values() if child)
    layers.append(module)
    if kind is nn.Linear:
        single = all(p is None or p.dtype == torch.float32 for p in module._parameters.values())
        return single and rule_for(module) is not None
    return kind in _NAMES


def walk(layers: list[nn.Module], batch: Batch) -> tuple[torch.Tensor, list[Use]]:
    """Return the losses (B,) and the uses of linear layers, the last one first."""
    with torch.no_grad():
        trail, out = _forward(layers, batch.inputs.detach())
    losses, gradient = with_gradient(batch.loss_fn, out, batch.targets)
    if gradient is None:
        return losses, []
    with torch.no_grad():
        return losses, _backward(trail, gradient)


def _forward(
    layers: list[nn.Module], values: torch.Tensor
) -> tuple[list[tuple[nn.Linear | str, torch.Tensor]], torch.Tensor]:
    """Return, for each linear layer and activation, what its backward needs, and the output."""
    trail: list[tuple[nn.Linear | str, torch.Tensor]] = []
    following = [_NAMES.get(type(layer), "none") for layer in layers[1:]] + ["none"]
    joined = False
    for layer, after in zip(layers, following, strict=True):
        if isinstance(layer, nn.Linear):
            trail.append((layer, values))
            values = linear(values, layer.weight, layer.bias, after)
            joined = after != "none"
            if joined:
                trail.append((after, values))
        elif joined:  # done with the product before
            joined = False
        else:
            name = _NAMES[type(layer)]
            values = ACTIVATIONS[name](values.clone())
            trail.append((name, values))
    return trail, values


def _backward(
    trail: list[tuple[nn.Linear | str, torch.Tensor]], gradient: torch.Tensor
) -> list[Use]:
    uses: list[Use] = []
    ours = False  # the loss may have handed out a tensor of its own
    for place in range(len(trail) - 1, -1, -1):
        step, kept = trail[place]
        if isinstance(step, str):
            backward, extra = _BACKWARD[step]
            room = gradient if ours else torch.empty_like(kept)
            gradient, ours = backward(gradient, kept, *extra, grad_input=room), True
            continue
        uses.append(Use(step, kept, gradient, ours))
        if place:
            gradient, ours = linear(gradient, step.weight.t()), True
    return uses


def contributions(uses: list[Use], batch: Batch) -> dict[str, Contribution]:
    """Return each parameter's contribution, by name, whatever is shared."""
    names = {id(p): name for name, p in batch.parameters.items()}
    parts: dict[str, list[Contribution]] = {}
    for use in uses:
        for name, part in RULES[nn.Linear](use.layer, (use.right,), use.left).items():
            parts.setdefault(names[id(use.layer._parameters[name])], []).append(part)
    return {name: join(several) for name, several in parts.items()}
