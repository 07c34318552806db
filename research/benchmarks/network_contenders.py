"""What networks.py times: each makes the gradients of one step of a network.

A contender takes (model, losses, inputs, targets) and returns a step that gives gradients by the
parameter's name; the bound is 1 for every record.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from apiece.training import clip_and_sum

Losses = Callable[[Any, torch.Tensor], torch.Tensor]
Step = Callable[[], dict[str, torch.Tensor]]


def run(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def taken(own: dict[str, nn.Parameter]) -> dict[str, torch.Tensor]:
    """Return the gradients, which are left with nobody: memory is then every contender's own."""
    found = {name: p.grad for name, p in own.items() if p.grad is not None}
    for parameter in own.values():
        parameter.grad = None
    return found


def plain(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    own = trained(model)

    def step() -> dict[str, torch.Tensor]:
        losses(run(model, inputs), targets).mean().backward()
        return taken(own)

    return step


def channels_last(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    if isinstance(inputs, dict) or inputs.dim() != 4:
        raise ValueError("no pictures")
    layout: Any = torch.channels_last
    model = copy.deepcopy(model).to(memory_format=layout)
    return plain(model, losses, inputs.contiguous(memory_format=layout), targets)


def compiled(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    model = copy.deepcopy(model)
    fast = torch.compile(lambda: losses(run(model, inputs), targets).mean())
    own = trained(model)

    def step() -> dict[str, torch.Tensor]:
        fast().backward()
        return taken(own)

    return step


def apiece(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    return lambda: dict(clip_and_sum(model, losses, inputs, targets, 1.0).gradients)


def apiece_compiled(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    def step() -> dict[str, torch.Tensor]:
        return dict(clip_and_sum(model, losses, inputs, targets, 1.0, compiled=True).gradients)

    return step


def opacus_hooks(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModule

    model = copy.deepcopy(model)
    wrapped = GradSampleModule(model, loss_reduction="sum")
    own = trained(model)

    def step() -> dict[str, torch.Tensor]:
        losses(run(wrapped, inputs), targets).sum().backward()
        rows = {name: p.grad_sample for name, p in own.items() if p.grad_sample is not None}
        norms = torch.stack([g.flatten(1).square().sum(1) for g in rows.values()]).sum(0).sqrt()
        factors = (1.0 / norms).clamp(max=1)
        sums = {name: torch.einsum("i,i...", factors, g) for name, g in rows.items()}
        for parameter in own.values():
            parameter.grad_sample = None
            parameter.grad = None
        return sums

    return step


def opacus_ghost(model: nn.Module, losses: Losses, inputs: Any, targets: torch.Tensor) -> Step:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model = copy.deepcopy(model)
    wrapped = GradSampleModuleFastGradientClipping(model, loss_reduction="sum", max_grad_norm=1.0)
    own = trained(model)

    def step() -> dict[str, torch.Tensor]:
        each = losses(run(wrapped, inputs), targets)
        each.sum().backward(retain_graph=True)
        model.zero_grad()
        factors = (1.0 / wrapped.get_norm_sample()).clamp(max=1)
        wrapped.disable_hooks()
        (each * factors).sum().backward()
        wrapped.enable_hooks()
        return taken(own)

    return step


CONTENDERS: dict[str, Callable[[nn.Module, Losses, Any, torch.Tensor], Step]] = {
    "plain": plain,
    "plain, channels last": channels_last,
    "plain, compiled": compiled,
    "apiece": apiece,
    "apiece, compiled": apiece_compiled,
    "opacus, hooks": opacus_hooks,
    "opacus, ghost": opacus_ghost,
}
