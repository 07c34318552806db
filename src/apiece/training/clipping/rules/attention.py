"""Self-attention by book-keeping: its two projections are linear layers with an output gradient.

`MultiheadAttention` is one module to the hooks, and one function to torch. Where it only attends,
that function is written out here, so that the projections are seen as they run. Where it gives
its weights too, what is between the projections is made once more from the input; the gradient
there then costs one small backward.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Projection:
    """A linear layer as it ran: what went in, (B, T, I), and what came out, (B, T, O)."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    values: torch.Tensor
    out: torch.Tensor


def written_out(
    module: nn.MultiheadAttention, args: Any, kwargs: Mapping[str, Any]
) -> tuple[Projection, Projection] | None:
    """Return the two projections of a module's call of `multi_head_attention_forward`, run here.

    The second one's output is the function's, records first. None where it is not self-attention
    with plain masks, gives its weights, or has further keys.
    """
    masks = {name: kwargs.get(name) for name in ("attn_mask", "key_padding_mask")}
    if len(args) != 13 or not _suits(module) or kwargs.get("need_weights", True):
        return None
    query, key, value, *_ = args
    if (
        not (query is key is value and query.dim() == 3)
        or query.is_nested
        or args[5] is not module.in_proj_weight
        or args[11] is not module.out_proj.weight
        or any(m is not None and (m.dim() != 2 or m.requires_grad) for m in masks.values())
    ):
        return None
    values, last = query.transpose(0, 1), module.out_proj
    projected = functional.linear(values, module.in_proj_weight, module.in_proj_bias)
    chance = module.dropout if kwargs.get("training", True) else 0.0
    between = _attend(projected, module.num_heads, _mask(masks, projected.dtype), chance)
    # in torch's layout, places first, in whose order a dropout behind this draws
    between = between.transpose(0, 1).contiguous()
    out = functional.linear(between, last.weight, last.bias).transpose(0, 1)
    return (
        Projection(module.in_proj_weight, module.in_proj_bias, values, projected),
        Projection(last.weight, last.bias, between.transpose(0, 1), out),
    )


def _attend(
    projected: torch.Tensor, heads: int, mask: torch.Tensor | None, chance: float = 0.0
) -> torch.Tensor:
    batch, length, _ = projected.shape
    query, key, value = projected.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(query, key, value, mask, chance)
    return seen.transpose(1, 2).flatten(2)


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
    """Whether records come first, and nothing is added to the keys."""
    return (
        module.batch_first
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
    )


def _is_of_itself(module: Any, args: Any, kwargs: dict[str, Any], gradients: Gradients) -> bool:
    """Whether a call is self-attention without dropout, whose weights nothing depends on."""
    if len(args) != 3 or not kwargs.keys() <= _KNOWN or (module.training and module.dropout > 0):
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
