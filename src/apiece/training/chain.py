"""Chains: one known layer after another, walked by hand, without hooks and without a graph.

For a small model most of a step is not arithmetic: autograd's nodes, hooks and dispatch. A
`Sequential` of linear layers and plain activations needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from apiece.training.contributions import Contribution, join
from apiece.training.kernels import linear
from apiece.training.records import Batch, check_losses
from apiece.training.rules import RULES, rule_for

_aten = torch.ops.aten
_of_linear = RULES[nn.Linear]
_FORWARD: dict[type[nn.Module], Callable[[torch.Tensor], torch.Tensor]] = {
    nn.ReLU: torch.relu,
    nn.Tanh: torch.tanh,
    nn.Sigmoid: torch.sigmoid,
}
_BACKWARD: dict[type[nn.Module], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    nn.ReLU: lambda gradient, out: _aten.threshold_backward(gradient, out, 0),
    nn.Tanh: _aten.tanh_backward,
    nn.Sigmoid: _aten.sigmoid_backward,
}


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
    return kind in _FORWARD


def walk(layers: list[nn.Module], batch: Batch) -> tuple[torch.Tensor, dict[str, Contribution]]:
    """Return the losses (B,) and each parameter's contribution, by name."""
    with torch.no_grad():
        trail, out = _forward(layers, batch.inputs.detach())
    out.requires_grad_()
    with torch.enable_grad():
        losses = check_losses(batch.loss_fn(out, batch.targets), len(batch), batch.loss_fn)
    if not losses.requires_grad:
        return losses, {}
    (gradient,) = torch.autograd.grad(losses, [out], torch.ones_like(losses))
    names = {id(p): name for name, p in batch.parameters.items()}
    parts: dict[str, list[Contribution]] = {}
    with torch.no_grad():
        for place in range(len(layers) - 1, -1, -1):
            layer, kept = layers[place], trail[place]
            if not isinstance(layer, nn.Linear):
                gradient = _BACKWARD[type(layer)](gradient, kept)
                continue
            for name, part in _of_linear(layer, (kept,), gradient).items():
                parts.setdefault(names[id(layer._parameters[name])], []).append(part)
            if place:
                gradient = linear(gradient, layer.weight.t())
    return losses, {name: join(several) for name, several in parts.items()}


def _forward(
    layers: list[nn.Module], values: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return, for each layer, what its backward needs, and the output of the last one."""
    trail = []
    for layer in layers:
        if isinstance(layer, nn.Linear):
            trail.append(values)
            values = linear(values, layer.weight, layer.bias)
        else:
            values = _FORWARD[type(layer)](values)
            trail.append(values)
    return trail, values
