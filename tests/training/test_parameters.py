"""Parameters and inputs of uncommon kinds: supported, or refused in one line with the remedy."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.filters import GaussianFilter
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import FilteredTrainer, Trainer, clip_and_sum

N = 12
INPUTS = torch.randn(N, 4, generator=torch.Generator().manual_seed(5))
TARGETS = (INPUTS[:, 0] > 0).long()
LOSS = nn.CrossEntropyLoss(reduction="none")


def plan():
    budgets = Budgets(np.ones(N), 1e-5)
    stage = Stage(4, float(N), 1.0, np.array([1.0]), np.array([1.0]))
    return Plan("t", 1.0, budgets.groups, (stage,)).bind(budgets)


def planned(model, optimizer, inputs=INPUTS):
    return Trainer(model, optimizer, LOSS, plan(), (inputs, TARGETS), seed=0)


def filtered(model, optimizer, inputs=INPUTS):
    people = GaussianFilter([5.0] * N, 1e-5)
    options = {"clip_norm": 1.0, "noise_stddev": 2.0, "seed": 0}
    return FilteredTrainer(model, optimizer, LOSS, people, (inputs, TARGETS), **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


CHANGES = {
    "frozen": (lambda model: model[0].bias.requires_grad_(False), "'0.bias' is no longer"),
    "unfrozen": (lambda model: model[1].bias.requires_grad_(True), "'1.bias' is trainable now"),
    "replaced": (
        lambda model: setattr(model[0], "weight", nn.Parameter(torch.ones(3, 4))),
        "'0.weight' is another tensor now",
    ),
    "another layer": (lambda model: model.append(nn.Linear(2, 2)), "'2.bias' is trainable now"),
    "a layer less": (lambda model: model.pop(0), "no longer trainable"),
}


@pytest.mark.parametrize("make", [planned, filtered])
@pytest.mark.parametrize("name", CHANGES)
def test_parameters_stay_those_that_the_trainer_was_made_with(make, name):
    change, told = CHANGES[name]
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    model[1].bias.requires_grad_(False)
    trainer = make(model, torch.optim.SGD(model.parameters(), lr=0.1))
    trainer.step()
    change(model)
    before = flat(model)
    with pytest.raises(StateError, match=told):
        trainer.step()
    assert torch.equal(before, flat(model))


@pytest.mark.parametrize("make", [planned, filtered])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_models_of_other_precisions_are_trained(make, dtype):
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    model.to(dtype)
    before = flat(model)
    make(model, torch.optim.SGD(model.parameters(), lr=0.1), INPUTS.to(dtype)).fit(2)
    assert flat(model).dtype == dtype
    assert not torch.equal(before, flat(model))


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))

    def forward(self, x):
        return (x * self.phase).abs()


class Parts(nn.Module):
    """The remedy: two real parts."""

    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(4, 2))

    def forward(self, x):
        return (x * torch.view_as_complex(self.phase)).abs()


def test_complex_parameters():
    with pytest.raises(UnsupportedError, match=r"'phase' is complex64.*two real parts"):
        clip_and_sum(Wave(), LOSS, INPUTS, TARGETS, 1.0)
    assert clip_and_sum(Parts(), LOSS, INPUTS, TARGETS, 1.0).gradients["phase"].norm() > 0
    with pytest.raises(InputError, match="type complex64; a loss must be real"):
        clip_and_sum(Parts(), lambda o, _: o[:, 0] * 1j, INPUTS, TARGETS, 1.0, method="alone")
    with pytest.raises(InputError, match="type int64"):
        clip_and_sum(Parts(), lambda _, t: t, INPUTS, TARGETS, 1.0)


def test_inputs_that_are_not_rows():
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 4), torch.ones(2, 4)])
    nested = torch.nested.nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)
    model = nn.LSTM(4, 3, batch_first=True)
    for given, told in [
        (packed, "PackedSequence.*padded tensors"),
        ({"input": packed}, "PackedSequence"),
        ((INPUTS, [packed]), "PackedSequence"),
        (INPUTS.to_sparse(), "sparse_coo.*to_dense"),
        (nested, "nested"),
    ]:
        with pytest.raises(UnsupportedError, match=told):
            clip_and_sum(model, LOSS, given, TARGETS, 1.0)
    with pytest.raises(UnsupportedError, match="targets"):
        clip_and_sum(model, LOSS, INPUTS, TARGETS.to_sparse(), 1.0)


class Words(nn.Module):
    def __init__(self, *, sparse, by_hand=False):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(5, 3, sparse=sparse)
        self.bag, self.by_hand = nn.EmbeddingBag(5, 2, mode="sum", sparse=sparse), by_hand

    def forward(self, x):
        if not self.by_hand:
            return torch.cat([self.table(x).sum(1), self.bag(x)], 1)
        found = nn.functional.embedding(x, self.table.weight, sparse=self.table.sparse)
        return torch.cat([found.sum(1), self.bag(x)], 1)


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("method", ["auto", "alone"])
def test_sparse_embeddings_are_summed_densely(method, by_hand):
    words = torch.randint(0, 5, (N, 4), generator=torch.Generator().manual_seed(0))
    sums = [
        clip_and_sum(
            Words(sparse=sparse, by_hand=by_hand), LOSS, words, TARGETS, 0.1, method=method
        )
        for sparse in (True, False)
    ]
    for name, value in sums[1].gradients.items():
        torch.testing.assert_close(sums[0].gradients[name], value)
    model = Words(sparse=True)
    with pytest.raises(UnsupportedError, match=r"SparseAdam.*use Adam"):
        planned(model, torch.optim.SparseAdam(model.parameters()))
