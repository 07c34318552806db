"""Tables that records look up: each looked-up row gets the gradient of its place."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import lookups
from apiece.training.clipping.rules.rule import (
    Contributions,
    Gradients,
    LayerRule,
    LayerUse,
    own_weight_and_bias,
)


def embedding(module: nn.Embedding, use: LayerUse) -> Contributions:
    """Return the gradients of the places, padding left out."""
    index = use.input.reshape(use.input.shape[0], -1)
    left = use.gradient.reshape(*index.shape, -1)
    if module.padding_idx is not None:
        left = left * (index != module.padding_idx).unsqueeze(2)
    return {"weight": lookups(index, left, module.num_embeddings)}


def bag(module: nn.EmbeddingBag, use: LayerUse) -> Contributions:
    """Return the bag's gradient for each of its places, divided among them where it is a mean."""
    outputs = use.gradient
    index, counted = _places(module, use, outputs.dtype)
    if module.padding_idx is not None:
        counted = counted * (index != module.padding_idx)
    if module.mode == "mean":
        counted = counted / counted.sum(1, keepdim=True).clamp(min=1)
    left = outputs.unsqueeze(1) * counted.unsqueeze(2)
    return {"weight": lookups(index, left, module.num_embeddings)}


def _places(
    module: nn.EmbeddingBag, use: LayerUse, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the places of each bag and what each counts, (B, T): zero where there is none."""
    index, given = use.input, use.kwargs
    offsets, weights = (*use.others, None, None)[:2]
    offsets = given.get("offsets") if offsets is None else offsets
    weights = given.get("per_sample_weights") if weights is None else weights
    weights = torch.ones_like(index, dtype=dtype) if weights is None else weights.to(dtype)
    if offsets is None:
        return index, weights
    ends = offsets[1:] if module.include_last_offset else offsets.new_tensor([len(index)])
    starts = offsets[:-1] if module.include_last_offset else offsets
    counts = (ends if module.include_last_offset else torch.cat([offsets[1:], ends])) - starts
    turn = torch.arange(max(int(counts.max()), 1), device=index.device)
    there = turn < counts.unsqueeze(1)
    where = (starts.unsqueeze(1) + turn).clamp(max=max(len(index) - 1, 0))
    if not len(index):  # every bag is empty
        return where, torch.zeros_like(where, dtype=dtype)
    return index[where], weights[where] * there


def _is_plain(module: nn.Embedding | nn.EmbeddingBag) -> bool:
    """Whether rows are looked up as they are, and added or averaged."""
    return (
        own_weight_and_bias(module)
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and getattr(module, "mode", "") != "max"
    )


def _is_a_bag(module: nn.EmbeddingBag, args: Any, kwargs: Any, _gradients: Gradients) -> bool:
    """Whether a call is as torch has it: a mean has no weights."""
    return kwargs.keys() <= {"offsets", "per_sample_weights"} and 1 <= len(args) <= 3


EMBEDDING = LayerRule(embedding, suits=_is_plain, positions=True)
BAG = LayerRule(bag, suits=_is_plain, takes=_is_a_bag, more=True)
