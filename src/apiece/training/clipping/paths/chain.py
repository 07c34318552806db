"""Chains: one known layer after another, walked by hand, without hooks and without a graph.

For a small model most of a step is not arithmetic: autograd's nodes, hooks, dispatch, and memory
that is not in the cache. A `Sequential` of linear layers and plain activations needs few of them:
activations go into the product before them, or in place.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.functional import pad

from apiece.training.clipping.paths.losses import with_gradient
from apiece.training.clipping.precision import is_highest
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.contributions import Contribution, join
from apiece.training.clipping.rules.kernels import ACTIVATIONS, by_onednn, linear
from apiece.training.clipping.rules.linear import linear as linear_rule
from apiece.training.clipping.rules.rule import LayerUse

_aten = torch.ops.aten
_ROWS = 32  # batches that oneDNN multiplies are filled up to a multiple of this
_OF_LINEAR = ("weight", "bias")
_NAMES: dict[type[nn.Module], str] = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
_BACKWARD: dict[str, tuple[Any, tuple[int, ...]]] = {
    "relu": (_aten.threshold_backward.grad_input, (0,)),
    "tanh": (_aten.tanh_backward.grad_input, ()),
    "sigmoid": (_aten.sigmoid_backward.grad_input, ()),
}


class Link(NamedTuple):
    """One use of a linear layer: its input (B, I) and the gradient of its output (B, O).

    ours: whether the gradient is nobody else's, and so may be overwritten.
    """

    layer: nn.Linear
    right: torch.Tensor
    left: torch.Tensor
    ours: bool

    def __repr__(self) -> str:
        return "Link()"  # what it holds is data about people


def chain_of(batch: Batch) -> list[nn.Module] | None:
    """Return the model's layers in order if it is a chain that can be walked, else None."""
    given, device = batch.inputs, batch.clip_norms.device.type
    if not isinstance(given, torch.Tensor) or given.dtype != torch.float32 or device != "cpu":
        return None
    if given.requires_grad or torch.is_autocast_enabled("cpu") or not is_highest():
        return None
    layers: list[nn.Module] = []
    return layers if given.dim() == 2 and _collect(batch.model, layers) else None


def _collect(module: nn.Module, layers: list[nn.Module]) -> bool:
    """Add the layers of `module` to `layers`; return whether all of them are known."""
    if module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__:
        return False
    if module._backward_hooks or module._backward_pre_hooks:
        return False
    kind = type(module)
    if kind is nn.Sequential:
        children = [child for child in module._modules.values() if child is not None]
        return all(_collect(child, layers) for child in children)
    layers.append(module)
    if kind is nn.Linear:
        for name, held in module._parameters.items():
            if held is not None and (held.dtype != torch.float32 or name not in _OF_LINEAR):
                return False
        return True
    return kind in _NAMES


def walk(layers: list[nn.Module], batch: Batch) -> tuple[torch.Tensor, list[Link]]:
    """Return the losses (B,) and the uses of linear layers, the last one first.

    Call it without autograd: `with torch.no_grad()`.

    Behind the B records the uses may have rows of no record, whose output gradient is zero:
    oneDNN builds a kernel for each new shape, and Poisson batches have a new size at every step.
    """
    size = len(batch)
    more = -size % _ROWS if _builds_kernels(layers, size) else 0
    given = batch.inputs.detach()
    trail, out = _forward(layers, pad(given, (0, 0, 0, more)) if more else given)
    losses, gradient = with_gradient(batch.loss_fn, out[:size] if more else out, batch.targets)
    if gradient is None:
        return losses, []
    return losses, _backward(trail, pad(gradient, (0, 0, 0, more)) if more else gradient)


def _builds_kernels(layers: list[nn.Module], size: int) -> bool:
    sizes = [layer.weight.shape for layer in layers if isinstance(layer, nn.Linear)]
    return any(by_onednn(size * out * into) for out, into in sizes)


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
) -> list[Link]:
    uses: list[Link] = []
    ours = False  # the loss may have handed out a tensor of its own
    for place in range(len(trail) - 1, -1, -1):
        step, kept = trail[place]
        if isinstance(step, str):
            backward, extra = _BACKWARD[step]
            room = gradient if ours else torch.empty_like(kept)
            gradient, ours = backward(gradient, kept, *extra, grad_input=room), True
            continue
        uses.append(Link(step, kept, gradient, ours))
        if place:
            gradient, ours = linear(gradient, step.weight.t()), True
    return uses


def contributions(uses: list[Link], batch: Batch) -> dict[str, Contribution]:
    """Return each parameter's contribution, by name, whatever is shared."""
    size, names = len(batch), {id(p): name for name, p in batch.parameters.items()}
    parts: dict[str, list[Contribution]] = {}
    for use in uses:
        call = LayerUse("", use.right[:size], [use.left[:size]], {})
        for name, part in linear_rule(use.layer, call).items():
            parts.setdefault(names[id(use.layer._parameters[name])], []).append(part)
    return {name: join(several) for name, several in parts.items()}
