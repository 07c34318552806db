"""Honest input of every kind: taken, or refused in one line that says what to do."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, UnsupportedError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer, clip_and_sum, sources

N = 12
CPU = torch.device("cpu")
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


class Made(Dataset):
    """Items by a function of their number."""

    def __init__(self, make):
        self.make = make

    def __len__(self):
        return N

    def __getitem__(self, i):
        return self.make(i)


class Averaged(nn.Module):
    """A linear layer of the mean of a sequence."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x.mean(1) if x.dim() > 2 else x)


def trained(make):
    budgets = Budgets(np.ones(N), 1e-5)
    stage = Stage(2, float(N), 1.0, np.array([1.0]), np.array([1.0]))
    plan = Plan("t", 1.0, budgets.groups, (stage,)).bind(budgets)
    torch.manual_seed(0)
    model = Averaged()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Trainer(model, optimizer, CROSS_ENTROPY, plan, Made(make), seed=0).fit()
    return model


def of_length(count):
    return torch.arange(3.0 * count).view(count, 3) / 10


def test_items_of_several_lengths_are_trained_on_by_length():
    """As if a collate function had padded nothing, and each record were alone."""
    model = trained(lambda i: (of_length(2 + i % 3), i % 2))
    mean = trained(lambda i: (of_length(2 + i % 3).mean(0), i % 2))
    torch.testing.assert_close(model.linear.weight, mean.linear.weight, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("others", [1.0, np.float64(1.0), np.int32(1), True, torch.tensor(1.0)])
def test_no_record_changes_how_another_is_read(others):
    """Torch's own collate makes floats of all integers where one is a float, and of others none."""
    source = sources.Items(Made(lambda i: (torch.ones(3), i if i else others)), N)
    groups = list(source.read_alike(np.arange(4), CPU))
    assert sorted(np.concatenate([places for places, *_ in groups]).tolist()) == [0, 1, 2, 3]
    (targets,) = [t for places, _, t in groups if 1 in places]
    assert targets.dtype == torch.int64
    assert targets.tolist() == [1, 2, 3]


def test_records_of_one_form_are_read_together():
    source = sources.Items(Made(lambda i: ({"x": np.full(2, i), "z": [i, 2.0]}, i)), N)
    ((places, inputs, targets),) = source.read_alike(np.array([4, 2]), CPU)
    assert places.tolist() == [0, 1]
    assert inputs["x"].tolist() == [[4, 4], [2, 2]]
    assert targets.tolist() == [4, 2]


NO_TENSOR = {
    "no target": lambda i: (torch.ones(3), None),
    "no mask": lambda i: {"x": torch.ones(3), "mask": None, "labels": 1},
    "an object": lambda i: (object(), 1),
    "an array of text": lambda i: (np.array(["a", "b"]), 1),
    "one item among others": lambda i: (torch.ones(3), None if i == N - 1 else 1),
}


@pytest.mark.parametrize("name", NO_TENSOR)
def test_an_item_of_which_no_tensor_is_made(name):
    words = r"dataset: an item holds a .*; give tensors, arrays of numbers or numbers"
    with pytest.raises(DataError, match=words):
        trained(NO_TENSOR[name])


@pytest.mark.parametrize("targets", [["a", "b"], ("a", "b"), np.ones(2), [1, 2]])
@pytest.mark.parametrize("method", ["auto", "alone"])
def test_targets_that_are_no_tensor(targets, method):
    with pytest.raises(InputError, match=r"targets: .*give a tensor"):
        clip_and_sum(nn.Linear(3, 1), CROSS_ENTROPY, torch.ones(2, 3), targets, 1.0, method=method)


def test_a_text_for_each_item_is_refused():
    with pytest.raises(InputError, match=r"targets: .*give a tensor"):
        trained(lambda i: (torch.ones(3), "yes" if i % 2 else "no"))


@pytest.mark.parametrize("method", ["auto", "alone"])
def test_targets_that_are_missing(method):
    model, inputs = nn.Linear(3, 2), torch.ones(4, 3)
    with pytest.raises(InputError, match=r"targets: None, and model or loss_fn stops.*a tensor"):
        clip_and_sum(model, CROSS_ENTROPY, inputs, None, 1.0, method=method)
    own = clip_and_sum(model, lambda o, _: o.sum(1), inputs, None, 1.0, method=method)
    assert len(own) == 4


class Squeezed(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x).squeeze()


def squared(outputs, targets):
    return (outputs - targets).square()


SQUEEZED = {
    "in the model": (Squeezed(), squared),
    "in the loss": (nn.Linear(3, 1), lambda o, t: (o.squeeze() - t.squeeze()).square()),
    "of the losses": (nn.Linear(3, 1), lambda o, t: (o - t.unsqueeze(1)).square().squeeze()),
    "of all axes": (nn.Linear(3, 1), lambda o, t: (o.squeeze() - t).square().squeeze()),
}


@pytest.mark.parametrize("name", SQUEEZED)
@pytest.mark.parametrize("size", [1, 4])
def test_a_squeeze_without_an_axis(name, size):
    model, loss = SQUEEZED[name]
    inputs, targets = torch.ones(size, 3), torch.zeros(size)
    assert len(clip_and_sum(model, loss, inputs, targets, 1.0, method="proved")) == size
    if name == "in the model":  # a number and one target make one loss
        return
    with pytest.raises(InputError, match=r"squeeze\(\) without an axis drops.*squeeze\(-1\)"):
        clip_and_sum(model, loss, inputs, targets, 1.0, method="alone")


def test_outputs_and_targets_that_broadcast_to_pairs():
    with pytest.raises(InputError, match=r"broadcast to every pair of records: use .*squeeze"):
        clip_and_sum(nn.Linear(3, 1), squared, torch.ones(4, 3), torch.ones(4), 1.0)


@pytest.mark.parametrize("method", ["auto", "proved", "alone"])
def test_no_setting_of_torch_takes_gradients_away(method):
    torch.manual_seed(0)
    model, inputs, targets = nn.Linear(3, 1), torch.randn(4, 3), torch.zeros(4)
    given = nn.Sequential(model, nn.Flatten(0)), squared, inputs, targets, 1e6
    plain = clip_and_sum(*given, method=method).gradients
    fresh = [nn.Sequential(model, nn.Flatten(0)) for _ in range(3)]
    with torch.inference_mode():
        copied = inputs.clone()
        inside = clip_and_sum(fresh[0], *given[1:], method=method).gradients
        beside = clip_and_sum(fresh[1], squared, copied, targets, 1e6, method=method).gradients
    with torch.no_grad():
        without = clip_and_sum(fresh[2], *given[1:], method=method).gradients
    for other in (inside, beside, without):
        for name, value in plain.items():
            torch.testing.assert_close(other[name], value, rtol=1e-6, atol=1e-7)
            assert bool(value.any())


def kinds():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    pair = torch.complex(x, -x)
    return {
        "of a batch of one": x[:1], "an empty batch": x[:0], "a conjugate's part": pair.conj().imag,
        "that requires gradients": x.clone().requires_grad_(),
        "every other": x.repeat(1, 2)[:, ::2],
        "one row for all": x[:1].expand(4, 3), "records backwards": x.flip(0),
    }  # fmt: skip


@pytest.mark.parametrize("name", kinds())
@pytest.mark.parametrize("method", ["proved", "alone"])
def test_inputs_of_every_kind(name, method):
    inputs, model = kinds()[name], nn.Linear(3, 1)
    clipped = clip_and_sum(
        model, lambda o, t: o[:, 0], inputs, torch.ones(len(inputs)), 1e6, method=method
    )
    wanted = inputs.detach().sum(0, keepdim=True)
    torch.testing.assert_close(clipped.gradients["weight"], wanted, rtol=1e-5, atol=1e-6)


def test_nothing_is_computed_without_values():
    loss = lambda o, t: o[:, 0]  # noqa: E731
    with pytest.raises(UnsupportedError, match="device meta"):
        clip_and_sum(nn.Linear(3, 1), loss, torch.ones(4, 3, device="meta"), None, 1.0)
    with pytest.raises(InputError, match=r"model.weight: is on the device meta"):
        clip_and_sum(nn.Linear(3, 1, device="meta"), loss, torch.ones(4, 3), None, 1.0)


@pytest.mark.parametrize("bad", [lambda o: [][0], lambda o: o.sum(3)])
def test_an_index_that_is_no_label_is_told_as_it_is(bad):
    with pytest.raises(IndexError):
        clip_and_sum(nn.Linear(3, 1), lambda o, t: bad(o), torch.ones(4, 3), None, 1.0)
