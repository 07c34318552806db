"""Self-attention by book-keeping: its two projections are linear layers with an output gradient.

`MultiheadAttention` is one module to the hooks. What they do not see, the values between the
projections, is made once more from the input; the gradient there then costs one small backward.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Contribution, Rows, products

_KNOWN = {"key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal"}


def is_plain(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is self-attention, records first, without dropout or extra keys."""
    if type(module) is not nn.MultiheadAttention or len(args) != 3 or not kwargs.keys() <= _KNOWN:
        return False
    mask, padding = kwargs.get("attn_mask"), kwargs.get("key_padding_mask")
    return (
        args[0] is args[1] is args[2]
        and args[0].dim() == 3
        and module.batch_first
        and module._qkv_same_embed_dim
        and module.bias_k is None
        and not module.add_zero_attn
        and not (module.training and module.dropout > 0)
        and not (module._forward_pre_hooks or module._forward_hooks)
        and (mask is None or mask.dim() == 2)
        and (padding is None or padding.dim() == 2)
    )


def contributions(
    module: nn.MultiheadAttention,
    values: torch.Tensor,
    kwargs: dict[str, Any],
    gradients: list[torch.Tensor | None],
) -> tuple[list[tuple[nn.Parameter, Contribution]], torch.Tensor]:
    """Return each parameter's contribution, and the output made again, to be compared.

    values: the input (B, T, E); gradients: of the output, (B, T, E), in single precision or more.
    """
    gradient = gradients[0]
    assert gradient is not None
    own, last = module._parameters, module.out_proj._parameters
    weight, shift = own["in_proj_weight"], own["in_proj_bias"]
    out, out_shift = last["weight"], last["bias"]
    assert weight is not None
    assert out is not None
    wide = values.dtype
    with torch.no_grad():
        bias = None if shift is None else shift.to(wide)
        projected = nn.functional.linear(values, weight.to(wide), bias)
    projected.requires_grad_()
    with torch.enable_grad():
        between = _attend(projected, module.num_heads, _mask(kwargs, wide))
    back = gradient @ out.detach().to(wide)
    (inner,) = torch.autograd.grad(between, [projected], back)
    between = between.detach()
    found: list[tuple[nn.Parameter | None, Contribution]] = [
        (weight, products(inner, values)),
        (shift, Rows(inner.sum(1))),
        (out, products(gradient, between)),
        (out_shift, Rows(gradient.sum(1))),
    ]
    bias = None if out_shift is None else out_shift.detach().to(wide)
    again = nn.functional.linear(between, out.detach().to(wide), bias)
    return [(p, part) for p, part in found if p is not None and p.requires_grad], again


def _attend(projected: torch.Tensor, heads: int, mask: torch.Tensor | None) -> torch.Tensor:
    batch, length, _ = projected.shape
    query, key, value = projected.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
    seen = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return seen.transpose(1, 2).reshape(batch, length, -1)


def _mask(kwargs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor | None:
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
