"""Layers of libraries that are not imported here, known by where their class comes from."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import nn
from torch.nn import functional

from apiece.training.clipping.rules.contributions import Rows
from apiece.training.clipping.rules.linear import dense
from apiece.training.clipping.rules.normalisers import layer_norm
from apiece.training.clipping.rules.rule import (
    Contributions,
    LayerRule,
    LayerUse,
    NotBookable,
    own_weight_and_bias,
    same_output,
)


def transposed_linear(module: Any, use: LayerUse) -> Contributions:
    """Return what a linear layer whose weight is (in, out) gives: GPT-2's `Conv1D`."""
    return dense(module, use.input, use.gradient, use.gradient)


def scaled_rms(module: Any, use: LayerUse) -> Contributions:
    """Return the contribution of y = weight·x/rms(x), and look whether the layer gave that."""
    shape = module.weight.shape
    normal = functional.rms_norm(use.input, shape, eps=module.variance_epsilon)
    assert use.output is not None  # the rule remakes
    same_output(use.path, use.output[:1], normal[:1] * module.weight)
    each = (use.gradient * normal).reshape(len(normal), -1, *shape).sum(1)
    return {"weight": Rows(each)}


def layer_norm_of_a_kind(module: Any, use: LayerUse) -> Contributions:
    """Return what a layer norm gives over the last dimension, or over channels that come first."""
    assert use.output is not None  # the rule remakes
    for axis in (-1, 1):
        given, out, back = (t.movedim(axis, -1) for t in (use.input, use.output, use.gradient))
        if given.shape[-1:] != module.normalized_shape:
            continue
        again = functional.layer_norm(
            given[:1], module.normalized_shape, module.weight, module.bias, module.eps
        )
        with contextlib.suppress(
            NotBookable
        ):  # a class does with all records what it does with one
            same_output(use.path, out[:1], again)
            return layer_norm(module, LayerUse(use.path, given, [back], use.kwargs))
    raise NotBookable(f"{use.path}: does not normalise over its last dimension, nor channels")


def _is_a_layer_norm(module: Any) -> bool:
    return own_weight_and_bias(module) and len(module.normalized_shape) == 1


def _is_transposed(module: Any) -> bool:
    return own_weight_and_bias(module) and module.weight.dim() == 2


def _is_scaled_rms(module: Any) -> bool:
    only = {name for name, p in module._parameters.items() if p is not None} == {"weight"}
    return only and isinstance(getattr(module, "variance_epsilon", None), float)


TRANSPOSED_LINEAR = LayerRule(transposed_linear, suits=_is_transposed, positions=True)
LAYER_NORM_OF_A_KIND = LayerRule(layer_norm_of_a_kind, suits=_is_a_layer_norm, remakes=True)
SCALED_RMS = LayerRule(scaled_rms, suits=_is_scaled_rms, remakes=True, positions=True)


def rule_by_name(kind: type[Any]) -> LayerRule | None:
    """Return the rule of a class of transformers, timm or torchvision, None for others.

    Args:
        kind: The layer's class, which nobody has subclassed.

    Example:
        >>> rule_by_name(nn.Linear) is None
        True
    """
    library = kind.__module__.partition(".")[0]
    if library in ("timm", "torchvision") and issubclass(kind, nn.LayerNorm):
        return LAYER_NORM_OF_A_KIND
    if library != "transformers":
        return None
    if kind.__name__ == "Conv1D":
        return TRANSPOSED_LINEAR
    return SCALED_RMS if kind.__name__.endswith(("RMSNorm", "T5LayerNorm")) else None
