"""Tables that records look up: each looked-up row gets the gradient of its place."""

from __future__ import annotations

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Lookups
from apiece.training.clipping.rules.rule import (
    Contributions,
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
    return {"weight": Lookups(index, left, module.num_embeddings)}


def bag(module: nn.EmbeddingBag, use: LayerUse) -> Contributions:
    """Return the bag's gradient for each of its places, divided among them where it is a mean."""
    index, outputs = use.input, use.gradient
    counted = torch.ones_like(index, dtype=outputs.dtype)
    if module.padding_idx is not None:
        counted = (index != module.padding_idx).to(outputs.dtype)
    if module.mode == "mean":
        counted = counted / counted.sum(1, keepdim=True).clamp(min=1)
    left = outputs.unsqueeze(1) * counted.unsqueeze(2)
    return {"weight": Lookups(index, left, module.num_embeddings)}


def _is_plain(module: nn.Embedding | nn.EmbeddingBag) -> bool:
    """Whether rows are looked up as they are, and added or averaged."""
    return (
        own_weight_and_bias(module)
        and module.max_norm is None
        and not module.scale_grad_by_freq
        and getattr(module, "mode", "") != "max"
    )


EMBEDDING = LayerRule(embedding, suits=_is_plain, positions=True)
BAG = LayerRule(bag, suits=_is_plain)
