"""Self-attention by book-keeping: its two projections are linear layers with an output gradient.

`MultiheadAttention` is one module to the hooks. What they do not see, the values between the
projections, is made once more from the input; the gradient there then costs one small backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from apiece.training.clipping.rules.contributions import Rows, products
from apiece.training.clipping.rules.rule import (
    Contributions,
    Gradients,
    LayerRule,
    LayerUse,
    same_output,
    trains,
)

_KNOWN = {"key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal"}


def attention(module: nn.MultiheadAttention, use: LayerUse) -> Contributions:
    """Return the contributions of the two projections.

    use.input: (B, T, E); use.gradient: of the output, (B, T, E), in single precision or more.
    """
    values, gradient = use.input, use.gradient
    wide = values.dtype

    def own(of: nn.Module, name: str) -> Any:
        found = of._parameters.get(name)
        return None if found is None else found.detach().to(wide)

    last = module.out_proj
    with torch.no_grad():
        projected = functional.linear(
            values, own(module, "in_proj_weight"), own(module, "in_proj_bias")
        )
    projected.requires_grad_()
    with torch.enable_grad():
        between = _attend(projected, module.num_heads, _mask(use.kwargs, wide))
    (inner,) = torch.autograd.grad(between, [projected], gradient @ own(last, "weight"))
    between = between.detach()
    if use.output is not None:
        again = functional.linear(between, own(last, "weight"), own(last, "bias"))
        same_output(use.path, use.output, again)
    found: Contributions = {}
    if trains(module, "in_proj_weight"):
        found["in_proj_weight"] = products(inner, values)
    if trains(module, "in_proj_bias"):
        found["in_proj_bias"] = Rows(inner.sum(1))
    if trains(last, "weight"):
        found["out_proj.weight"] = products(gradient, between)
    if trains(last, "bias"):
        found["out_proj.bias"] = Rows(gradient.sum(1))
    return found


def _attend(projected: torch.Tensor, heads: int, mask: torch.Tensor | None) -> torch.Tensor:
    batch, length, _ = projected.shape
    query, key, value = projected.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return seen.transpose(1, 2).reshape(batch, length, -1)


def _mask(kwargs: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Return what is added to the scores, broadcastable to (B, heads, T, T)."""
    total: torch.Tensor | None = None
    for name, shape in (("attn_mask", (1, 1)), ("key_padding_mask", None)):
        mask = kwargs.get(name)
        if mask is None:
            continue
        if mask.dtype == torch.bool:  # True: not to be seen
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)
        mask = mask.to(dtype).view(*shape, *mask.shape) if shape else mask[:, None, None].to(dtype)
        total = mask if total is None else total + mask
    return total


def _suits(module: nn.MultiheadAttention) -> bool:
    """Whether records come first, and nothing is dropped or added to the keys."""
    return (
        module.batch_first
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and not (module.training and module.dropout > 0)
    )


def _is_of_itself(_module: Any, args: Any, kwargs: dict[str, Any], gradients: Gradients) -> bool:
    """Whether a call is self-attention, whose weights nothing depends on."""
    if len(args) != 3 or not kwargs.keys() <= _KNOWN:
        return False
    mask, padding = kwargs.get("attn_mask"), kwargs.get("key_padding_mask")
    return (
        args[0] is args[1] is args[2]
        and args[0].dim() == 3
        and gradients[0] is not None
        and not any(g is not None for g in gradients[1:])
        and (mask is None or mask.dim() == 2)
        and (padding is None or padding.dim() == 2)
    )


ATTENTION = LayerRule(attention, _suits, _is_of_itself, remakes=True)
