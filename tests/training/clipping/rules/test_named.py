"""Layers of transformers, by classes of the same name, module and arithmetic."""

import pytest
import torch
from torch import nn

from apiece.training.clipping.rules import LayerUse, rule_for
from apiece.training.clipping.rules.named import rule_by_name
from apiece.training.clipping.rules.rule import NotBookable

from .oracle import RECORDS, frozen, hold


class Conv1D(nn.Module):
    """Hugging Face's: a linear layer with its weight the other way round."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(5, 3)), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return x @ self.weight + self.bias


class LlamaRMSNorm(nn.Module):
    """Hugging Face's."""

    __module__ = "transformers.models.llama.modeling_llama"

    def __init__(self, plus=0.0):
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.randn(5)), 1e-6
        self.plus = plus

    def forward(self, x):
        normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return (self.weight + self.plus) * normal


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)])
def test_the_transposed_linear_layer_is_the_loop(shape):
    torch.manual_seed(0)
    hold(Conv1D(), torch.randn(RECORDS, *shape))
    assert hold(frozen(Conv1D(), "bias"), torch.randn(RECORDS, *shape)).keys() == {"weight"}


@pytest.mark.parametrize("shape", [(5,), (4, 5)])
def test_the_root_mean_square_norm_is_the_loop(shape):
    torch.manual_seed(0)
    hold(LlamaRMSNorm(), torch.randn(RECORDS, *shape))


class Quick(nn.LayerNorm):
    """timm's: the same by other kernels."""

    __module__ = "timm.layers.norm"

    def forward(self, x):
        return nn.functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class LayerNorm2d(nn.LayerNorm):
    """torchvision's: over channels that come first."""

    __module__ = "torchvision.models.convnext"

    def forward(self, x):
        x = x.permute(0, 2, 3, 1)
        return super().forward(x).permute(0, 3, 1, 2)


def normal(kind):
    layer = kind(5)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 3, 5)])
def test_layer_norms_of_another_class_are_the_loop(shape):
    torch.manual_seed(0)
    hold(normal(Quick), torch.randn(RECORDS, *shape))


@pytest.mark.parametrize("shape", [(5, 2, 3), (5, 4, 5)])
def test_layer_norms_over_the_first_channels_are_the_loop(shape):
    torch.manual_seed(0)
    hold(normal(LayerNorm2d), torch.randn(RECORDS, *shape))


def test_a_norm_over_something_else_is_not_booked():
    layer, out = normal(LayerNorm2d), torch.randn(2, 4, 3)
    with pytest.raises(NotBookable, match="nor channels"):
        rule_for(layer).gives(layer, LayerUse("norm", out, [out], {}, out))


def test_a_norm_of_that_name_with_another_formula_is_not_booked():
    layer, x = LlamaRMSNorm(plus=1.0), torch.randn(2, 5)
    rule = rule_for(layer)
    use = LayerUse("norm", x, [torch.ones(2, 5)], {}, layer(x).detach())
    with pytest.raises(NotBookable, match="another output"):
        rule.gives(layer, use)


def test_other_classes_have_no_rule_by_name():
    class Mine(Conv1D):
        __module__ = "mine"

    assert rule_by_name(Mine) is None
    assert rule_by_name(nn.Linear) is None
    odd = LlamaRMSNorm()
    odd.shift = nn.Parameter(torch.zeros(5))
    assert rule_for(odd) is None
