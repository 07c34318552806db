"""Normalisers within a record: what is trained is a scale and a shift of the normalised values."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from apiece.training.clipping.rules.contributions import Rows
from apiece.training.clipping.rules.rule import (
    Contributions,
    LayerRule,
    LayerUse,
    own_weight_and_bias,
    trains,
)


def _scale_and_shift(
    module: nn.Module, normal: torch.Tensor, outputs: torch.Tensor, shape: torch.Size | None
) -> Contributions:
    """Return contributions of y = weight·normal + bias, per channel or per trailing shape."""

    def to_parameter(values: torch.Tensor) -> torch.Tensor:
        if shape is None:
            return values.flatten(2).sum(2) if values.dim() > 2 else values
        return values.reshape(values.shape[0], -1, *shape).sum(1)

    found: Contributions = {}
    if trains(module, "weight"):
        found["weight"] = Rows(to_parameter(outputs * normal))
    if trains(module, "bias"):
        found["bias"] = Rows(to_parameter(outputs))
    return found


def layer_norm(module: nn.LayerNorm, use: LayerUse) -> Contributions:
    """Return contributions summed over the places before the trailing shape."""
    normal = functional.layer_norm(use.input, module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normal, use.gradient, torch.Size(module.normalized_shape))


def rms_norm(module: nn.RMSNorm, use: LayerUse) -> Contributions:
    """Return contributions summed over the places before the trailing shape."""
    normal = functional.rms_norm(use.input, module.normalized_shape, eps=module.eps)
    return _scale_and_shift(module, normal, use.gradient, torch.Size(module.normalized_shape))


def group_norm(module: nn.GroupNorm, use: LayerUse) -> Contributions:
    """Return contributions summed over the places of a channel."""
    normal = functional.group_norm(use.input, module.num_groups, eps=module.eps)
    return _scale_and_shift(module, normal, use.gradient, None)


def instance_norm(module: Any, use: LayerUse) -> Contributions:
    """Return contributions summed over the places of a channel."""
    normal = functional.instance_norm(use.input, eps=module.eps)
    return _scale_and_shift(module, normal, use.gradient, None)


def batch_norm(module: Any, use: LayerUse) -> Contributions:
    """Return contributions of a layer that normalises by its running statistics."""
    mean, variance = (t.to(use.input.dtype) for t in (module.running_mean, module.running_var))
    normal = functional.batch_norm(use.input, mean, variance, eps=module.eps)
    return _scale_and_shift(module, normal, use.gradient, None)


def _keeps_still(module: Any) -> bool:
    return own_weight_and_bias(module) and not module.training and module.running_mean is not None


def _keeps_nothing(module: Any) -> bool:
    return own_weight_and_bias(module) and not module.track_running_stats


LAYER_NORM = LayerRule(layer_norm, positions=True)
RMS_NORM = LayerRule(rms_norm, positions=True)
GROUP_NORM = LayerRule(group_norm)
BATCH_NORM = LayerRule(batch_norm, suits=_keeps_still)
INSTANCE_NORM = LayerRule(instance_norm, suits=_keeps_nothing)
