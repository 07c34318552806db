"""The equivariant head: turns and mirrors change nothing, other moves do, and clipping is exact."""

import pytest
import torch
from torch import nn

from apiece.recipes.recipe import TurnedConvolution, make_equivariant_cnn
from apiece.training import clip_and_sum

TURNS = [(turn, mirror) for turn in range(4) for mirror in (False, True)]


def turned(x: torch.Tensor, turn: int, mirror: bool) -> torch.Tensor:
    x = torch.rot90(x, turn, (2, 3))
    return x.flip(3) if mirror else x


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(5, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def seeded(make: type, *args: int) -> nn.Module:
    torch.manual_seed(1)
    return make(*args)


@pytest.mark.parametrize(("turn", "mirror"), TURNS)
def test_a_turn_moves_the_replies_and_leaves_the_answer(
    images: torch.Tensor, turn: int, mirror: bool
) -> None:
    layer, head = seeded(TurnedConvolution, 3, 4, 3), seeded(make_equivariant_cnn, (3, 12, 12), 10)
    moved = turned(images, turn, mirror)
    assert torch.allclose(layer(moved), turned(layer(images), turn, mirror), atol=1e-6)
    assert torch.allclose(head(moved), head(images), atol=1e-6)


def test_other_changes_are_seen(images: torch.Tensor) -> None:
    head = seeded(make_equivariant_cnn, (3, 12, 12), 10)
    assert not torch.allclose(head(images.roll(3, 3)), head(images), atol=1e-4)
    assert not torch.allclose(head(images[:, [1, 0, 2]]), head(images), atol=1e-4)
    plain = nn.Conv2d(3, 4, 3, padding=1)  # what is not turned does not follow a turn
    assert not torch.allclose(plain(turned(images, 1, False)), turned(plain(images), 1, False))


@pytest.mark.parametrize("bound", [0.05, 10.0])
def test_each_record_is_clipped_by_its_own_gradient(images: torch.Tensor, bound: float) -> None:
    head, labels = seeded(make_equivariant_cnn, (3, 12, 12), 10), torch.arange(5)
    loss = nn.CrossEntropyLoss(reduction="none")
    total = {name: torch.zeros_like(p) for name, p in head.named_parameters()}
    for x, y in zip(images, labels, strict=True):
        own = torch.autograd.grad(loss(head(x[None]), y[None]).sum(), list(head.parameters()))
        size = torch.cat([g.flatten() for g in own]).norm()
        for name, gradient in zip(total, own, strict=True):
            total[name] += gradient * min(1.0, bound / float(size))
    clipped = clip_and_sum(head, loss, images, labels, torch.full((5,), bound))
    for name, value in clipped.gradients.items():
        assert torch.allclose(value, total[name], rtol=1e-3, atol=1e-6 * bound)
