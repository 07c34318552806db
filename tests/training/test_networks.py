"""Networks of torchvision and timm: proved, and their sums exact to one record at a time."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from apiece.training import clip_and_sum
from apiece.training.clipping.cache import proof_of

CLASSES = 4
pytest.importorskip("torchvision", reason="torchvision is not installed")
pytest.importorskip("timm", reason="timm is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
]


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(8, 16, 1), CNBlockConfig(16, None, 1)], num_classes=CLASSES)


def resnet() -> nn.Module:
    from torchvision.models import resnet18

    return resnet18(num_classes=CLASSES, norm_layer=lambda size: nn.GroupNorm(4, size))


def attention() -> nn.Module:
    from timm.models import VisionTransformer

    return VisionTransformer(
        img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=CLASSES
    )


def mixer() -> nn.Module:
    from timm.models import MlpMixer

    return MlpMixer(num_classes=CLASSES, img_size=16, patch_size=4, num_blocks=1, embed_dim=16)


@pytest.mark.parametrize("make", [convnext, resnet, attention, mixer])
def test_the_sum_is_that_of_a_loop_in_double_precision(make) -> None:
    torch.manual_seed(0)
    side = 32 if make in (convnext, resnet) else 16
    model, inputs = make().eval(), torch.randn(5, 3, side, side)
    targets = torch.randint(0, CLASSES, (5,))
    total = clip_and_sum(model, nn.CrossEntropyLoss(reduction="none"), inputs, targets, 0.1)
    assert proof_of(model).proved
    double = copy.deepcopy(model).double()
    parameters = dict(double.named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for k, norm in enumerate(total.norms.tolist()):
        loss = cross_entropy(double(inputs[k : k + 1].double()), targets[k : k + 1])
        gradients = torch.autograd.grad(loss, list(parameters.values()))
        exact = float(sum(g.square().sum() for g in gradients)) ** 0.5
        assert norm == pytest.approx(exact, rel=1e-4)
        for own, gradient in zip(sums.values(), gradients, strict=True):
            own += gradient * min(1.0, 0.1 / exact)
    for name, own in sums.items():
        torch.testing.assert_close(total.gradients[name].double(), own, rtol=1e-3, atol=1e-5)
