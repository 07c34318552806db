"""One rule a layer: from its inputs and output gradients to its parameters' contributions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import (
    Contribution,
    Lookups,
    Outer,
    Rows,
    products,
)
from apiece.training.clipping.rules.convolution import convolution

Contributions = dict[str, Contribution]
Rule = Callable[[Any, tuple[torch.Tensor, ...], torch.Tensor], Contributions]


def _linear(
    module: nn.Linear, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    found: Contributions = {}
    (right,) = inputs
    own, shift = module._parameters["weight"], module._parameters["bias"]
    if outputs.dim() == 2:
        weight: Contribution = Outer(outputs, right)
        bias = outputs
    else:
        left = outputs.flatten(1, -2)
        weight, bias = products(left, right.flatten(1, -2)), left.sum(1)
    if own is not None and own.requires_grad:
        found["weight"] = weight
    if shift is not None and shift.requires_grad:
        found["bias"] = Rows(bias)
    return found


def _convolution(
    module: Any, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    found: Contributions = {}
    if module.weight.requires_grad:
        found["weight"] = convolution(module, inputs[0], outputs)
    if module.bias is not None and module.bias.requires_grad:
        found["bias"] = Rows(outputs.flatten(2).sum(2))
    return found


def _embedding(
    module: nn.Embedding, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    index = inputs[0].reshape(inputs[0].shape[0], -1)
    left = outputs.reshape(*index.shape, -1)
    if module.padding_idx is not None:
        left = left * (index != module.padding_idx).unsqueeze(2)
    return {"weight": Lookups(index, left, module.num_embeddings)}


def _embedding_bag(
    module: nn.EmbeddingBag, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    index = inputs[0]
    counted = torch.ones_like(index, dtype=outputs.dtype)
    if module.padding_idx is not None:
        counted = (index != module.padding_idx).to(outputs.dtype)
    if module.mode == "mean":
        counted = counted / counted.sum(1, keepdim=True).clamp(min=1)
    left = outputs.unsqueeze(1) * counted.unsqueeze(2)
    return {"weight": Lookups(index, left, module.num_embeddings)}


def _scale_and_shift(
    module: Any, normal: torch.Tensor, outputs: torch.Tensor, *, channels: bool
) -> Contributions:
    """Return contributions of y = weight·normal + bias, per channel or per trailing shape."""

    def to_parameter(values: torch.Tensor) -> torch.Tensor:
        if channels:
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        shape = module.weight.shape
        return values.reshape(values.shape[0], -1, *shape).sum(1)

    found: Contributions = {}
    if module.weight is not None and module.weight.requires_grad:
        found["weight"] = Rows(to_parameter(outputs * normal))
    bias = getattr(module, "bias", None)
    if bias is not None and bias.requires_grad:
        found["bias"] = Rows(to_parameter(outputs))
    return found


def _layer_norm(
    module: nn.LayerNorm, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    normal = nn.functional.layer_norm(inputs[0], module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normal, outputs, channels=False)


def _rms_norm(
    module: nn.RMSNorm, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    normal = nn.functional.rms_norm(inputs[0], module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normal, outputs, channels=False)


def _group_norm(
    module: nn.GroupNorm, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    normal = nn.functional.group_norm(inputs[0], module.num_groups, eps=module.eps)
    return _scale_and_shift(module, normal, outputs, channels=True)


def _instance_norm(
    module: Any, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor
) -> Contributions:
    normal = nn.functional.instance_norm(inputs[0], eps=module.eps)
    return _scale_and_shift(module, normal, outputs, channels=True)


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.Embedding: _embedding,
    nn.EmbeddingBag: _embedding_bag,
    nn.LayerNorm: _layer_norm,
    nn.RMSNorm: _rms_norm,
    nn.GroupNorm: _group_norm,
    nn.InstanceNorm1d: _instance_norm,
    nn.InstanceNorm2d: _instance_norm,
    nn.InstanceNorm3d: _instance_norm,
}


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule of a layer that is exactly what the rule is about, else None."""
    rule = RULES.get(type(module))
    if rule is None or "forward" in module.__dict__:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    for name, parameter in module._parameters.items():
        if parameter is not None and name not in ("weight", "bias"):
            return None
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and (
        module.max_norm is not None
        or module.scale_grad_by_freq
        or getattr(module, "mode", "") == "max"
    ):
        return None
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats:
        return None
    return rule
