"""Batch norms become group norms: which ones, with what parameters, and what is refused."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from apiece import Budgets, Scale, Trainer, assign
from apiece.errors import InputError, UnsupportedError
from apiece.training import clip_and_sum, replace_batch_norm


class Block(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleDict({"norm": norm})
        self.again = norm  # the same module in a second place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.again(self.inner["norm"](x))


@pytest.mark.parametrize(
    ("norm", "groups"),
    [
        (nn.BatchNorm1d(24), 1),
        (nn.BatchNorm2d(1), 1),
        (nn.BatchNorm2d(7), 1),
        (nn.BatchNorm2d(24), 12),
        (nn.BatchNorm2d(64), 32),
        (nn.BatchNorm3d(96), 32),
        (nn.SyncBatchNorm(16), 8),
        (nn.BatchNorm2d(24, affine=False, eps=0.1), 12),
    ],
)
def test_each_class_and_its_groups(norm: nn.Module, groups: int) -> None:
    model = nn.Sequential(norm)
    replaced = replace_batch_norm(model)
    new = model[0]
    assert replaced == {"0": new}
    assert type(new) is nn.GroupNorm
    assert (new.num_groups, new.num_channels, new.eps) == (groups, norm.num_features, norm.eps)
    assert new.weight is norm.weight
    assert new.bias is norm.bias
    assert list(new.buffers()) == []


def test_nothing_else_changes_and_optimizers_keep_their_parameters() -> None:
    norm = nn.BatchNorm2d(8)
    norm.weight.requires_grad_(False)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Block(norm), nn.InstanceNorm2d(8), nn.LayerNorm(4))
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    others = [model[0], model[2], model[3]]
    replaced = replace_batch_norm(model)
    assert sorted(replaced) == ["1.again", "1.inner.norm"]
    assert model[1].again is model[1].inner["norm"]
    assert not model[1].again.training
    assert not model[1].again.weight.requires_grad
    assert [model[0], model[2], model[3]] == others
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert held == {id(p) for p in model.parameters()}
    assert replace_batch_norm(model) == {}


def test_records_no_longer_meet() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5),
        nn.BatchNorm1d(5), nn.Linear(5, 2),
    )  # fmt: skip
    inputs, targets = torch.randn(9, 2, 5, 5), torch.randint(0, 2, (9,))
    model(inputs)
    loss = nn.CrossEntropyLoss(reduction="none")
    with pytest.raises(UnsupportedError, match=r"call apiece\.training\.replace_batch_norm\("):
        clip_and_sum(model, loss, inputs, targets, 1.0)
    replace_batch_norm(model)
    alone = torch.cat([model(record[None]) for record in inputs])
    torch.testing.assert_close(model(inputs), alone)
    assert alone.std(0).min() > 0.01  # not one of them is constant
    budgets = Budgets([1.0] * 9, 1e-3)
    plan = assign(budgets, Scale(), steps=2, expected_batch_size=3, clip_norm=1.0)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    run = Trainer(model, sgd, loss, plan, (inputs, targets), seed=0, method="proved")
    run.fit()


class Own(nn.BatchNorm2d):
    pass


def hooked() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda *_: None)
    return norm


def parametrized() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return norm


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (lambda: Own(4), "derived from batch norm"),
        (lambda: nn.LazyBatchNorm2d(), "no channels before its first forward"),
        (hooked, "has hooks or parametrizations"),
        (parametrized, "ParametrizedBatchNorm2d is derived|hooks or parametrizations"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_replaced_is_refused_and_nothing_changes(norm, words: str) -> None:  # type: ignore[no-untyped-def]
    model = nn.Sequential(nn.BatchNorm2d(4), norm())
    with pytest.raises(UnsupportedError, match=words):
        replace_batch_norm(model)
    assert type(model[0]) is nn.BatchNorm2d


def test_a_batch_norm_itself_and_bad_groups() -> None:
    with pytest.raises(UnsupportedError, match=r"put it into an nn\.Sequential"):
        replace_batch_norm(nn.BatchNorm2d(4))
    with pytest.raises(InputError, match="groups"):
        replace_batch_norm(nn.Sequential(), groups=0)
