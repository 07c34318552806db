"""The table of layer rules: every kind of layer that is clipped without torch.func."""

from __future__ import annotations

from torch import nn

from apiece.training.clipping.rules.attention import ATTENTION
from apiece.training.clipping.rules.convolution import CONVOLUTION
from apiece.training.clipping.rules.embedding import BAG, EMBEDDING
from apiece.training.clipping.rules.linear import LINEAR
from apiece.training.clipping.rules.named import rule_by_name
from apiece.training.clipping.rules.normalisers import (
    BATCH_NORM,
    GROUP_NORM,
    INSTANCE_NORM,
    LAYER_NORM,
    RMS_NORM,
)
from apiece.training.clipping.rules.recurrent import RECURRENT
from apiece.training.clipping.rules.rule import LayerRule

RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: LINEAR,
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Conv3d: CONVOLUTION,
    nn.Embedding: EMBEDDING,
    nn.EmbeddingBag: BAG,
    nn.LayerNorm: LAYER_NORM,
    nn.RMSNorm: RMS_NORM,
    nn.GroupNorm: GROUP_NORM,
    nn.BatchNorm1d: BATCH_NORM,
    nn.BatchNorm2d: BATCH_NORM,
    nn.BatchNorm3d: BATCH_NORM,
    nn.InstanceNorm1d: INSTANCE_NORM,
    nn.InstanceNorm2d: INSTANCE_NORM,
    nn.InstanceNorm3d: INSTANCE_NORM,
    nn.MultiheadAttention: ATTENTION,
    nn.LSTM: RECURRENT,
    nn.GRU: RECURRENT,
    nn.RNN: RECURRENT,
}


def rule_for(module: nn.Module) -> LayerRule | None:
    """Return the rule of a layer that is exactly what the rule is about, else None.

    A subclass, a layer with a forward or hooks of its own, and one with parameters that the rule
    does not know have none.

    Args:
        module: A layer.

    Example:
        >>> rule_for(nn.Linear(2, 1)) is RULES[nn.Linear], rule_for(nn.ReLU()) is None
        (True, True)
    """
    rule = RULES.get(type(module)) or rule_by_name(type(module))
    if rule is None or "forward" in module.__dict__:
        return None
    if module._forward_hooks or module._forward_pre_hooks:
        return None
    return rule if rule.suits(module) else None
