"""What a trainer is given wrongly is said in one line and does not train."""

import dataclasses
import itertools
import shutil

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import DataError, InputError, SlowPathWarning, StateError, UnsupportedError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer

from .items import INPUTS, TARGETS, Items, N, changed

LOSS = nn.CrossEntropyLoss(reduction="none")


def plan(size=N, steps=4):
    budgets = Budgets(np.ones(size), 1e-5)
    stage = Stage(steps, float(size), 1.0, np.array([1.0]), np.array([1.0]))
    return Plan("t", 1.0, budgets.groups, (stage,)).bind(budgets)


def parts():
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def run(loss=LOSS, data=(INPUTS, TARGETS), the_plan=None, **options):
    trainer = Trainer(*parts(), loss, the_plan or plan(), data, seed=0, **options)
    before = trainer.model.weight.detach().clone()
    try:
        trainer.fit()
    except InputError:
        assert torch.equal(before, trainer.model.weight)
        raise
    return trainer


REDUCED = {
    "mean": (nn.CrossEntropyLoss(), "its reduction is 'mean'"),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), "its reduction is 'sum'"),
    "a column": (lambda o, t: LOSS(o, t).unsqueeze(1), r"returned \(B, 1\) for B records"),
}


@pytest.mark.parametrize("case", REDUCED)
def test_a_loss_that_was_reduced(case):
    loss, message = REDUCED[case]
    with pytest.raises(InputError, match=message):
        run(loss)


SHARED = {
    "a mean for everyone": (lambda o, t: LOSS(o, t).mean().expand(len(t)), "mean over the records"),
    "a share of the mean": (lambda o, t: LOSS(o, t) / len(t), "number of records"),
}


@pytest.mark.parametrize(
    "case", ["a mean for everyone", pytest.param("a share of the mean", marks=pytest.mark.slow)]
)
def test_a_loss_that_others_have_a_part_in_is_each_record_s_own(case):
    loss, message = SHARED[case]
    with pytest.raises(UnsupportedError, match=message):
        run(loss, method="proved")
    whole, plain = (run(of, the_plan=plan(steps=2)) for of in (loss, LOSS))
    torch.testing.assert_close(whole.model.weight, plain.model.weight, rtol=1e-5, atol=1e-7)


def test_shapes_and_counts():
    with pytest.raises(InputError, match="one record per first dimension"):
        run(data=(INPUTS, TARGETS[:-1]))
    with pytest.raises(InputError, match="30 records, but the plan is for 29"):
        run(the_plan=plan(N - 1))
    with pytest.raises(
        DataError, match="a list_iterator; Poisson sampling reads records by position"
    ):
        run(data=iter([(INPUTS[0], 0)]))


def test_a_model_without_trainable_parameters():
    model = nn.Linear(4, 2).requires_grad_(False)
    other = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with pytest.raises(InputError, match="no trainable parameter"):
        Trainer(model, optimizer, LOSS, plan(), (INPUTS, TARGETS), seed=0)


@pytest.mark.parametrize("record", [0, 17, N - 1])
@pytest.mark.parametrize("make", [lambda x: (x, TARGETS), Items], ids=["tensors", "items"])
def test_data_that_change_between_save_and_resume(tmp_path, make, record):
    Trainer(*parts(), LOSS, plan(), make(INPUTS), seed=0, checkpoint=tmp_path).fit(2)
    Trainer.resume(tmp_path, *parts(), LOSS, plan(), make(INPUTS)).step()
    with pytest.raises(StateError, match="its data is not the one given here"):
        Trainer.resume(tmp_path, *parts(), LOSS, plan(), make(changed(record)))


def test_random_transforms_are_resumed_bit_by_bit(tmp_path):
    """Torch's generator is set for each step, so an augmentation is drawn again as it was."""

    def data():
        return Items(INPUTS, transform=lambda x: x + torch.randn(4))

    whole = Trainer(*parts(), LOSS, plan(), data(), seed=0, checkpoint=tmp_path / "whole")
    whole.fit(2)
    # The run that ends first deletes its folder's key: each has a folder of its own.
    shutil.copytree(tmp_path / "whole", tmp_path / "again")
    again = Trainer.resume(tmp_path / "again", *parts(), LOSS, plan(), data())
    for trainer, _ in itertools.product((whole, again), range(2)):
        trainer.step()
    assert torch.equal(whole.model.weight, again.model.weight)


class Observing(nn.Module):
    """Keeps the range of what it sees, as an observer for quantisation does."""

    def __init__(self, *, in_place):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.linear, self.in_place = nn.Linear(4, 2), in_place

    def forward(self, x):
        if self.training:
            highest = torch.maximum(self.seen, x.detach().max())
            if self.in_place:
                self.seen.copy_(highest)
            else:
                self.seen = highest
        return self.linear(x)


@pytest.mark.parametrize("in_place", [True, False])
def test_a_model_that_keeps_something_of_its_records(in_place):
    model = nn.Sequential(Observing(in_place=in_place))
    before = model[0].linear.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Trainer(model, optimizer, LOSS, plan(steps=1), (INPUTS, TARGETS), seed=0)
    with pytest.warns(SlowPathWarning, match=r"seen: changes in a forward|writes into"):
        run.fit()
    assert not torch.equal(before, model[0].linear.weight)
    assert not model[0].seen.any()  # each record had a copy
    model.eval()
    Trainer(model, optimizer, LOSS, plan(steps=1), (INPUTS, TARGETS), seed=0).fit()


def test_a_gradient_that_was_left_on_a_frozen_parameter_is_not_applied():
    model, optimizer = parts()
    LOSS(model(INPUTS), TARGETS).mean().backward()
    model.bias.requires_grad_(False)
    before = model.bias.detach().clone()
    Trainer(model, optimizer, LOSS, plan(), (INPUTS, TARGETS), seed=0).fit()
    assert torch.equal(before, model.bias)


def test_a_plan_from_released_counts_takes_the_records_that_it_found():
    budgets = Budgets(np.ones(N), 1e-5)
    kept = budgets.consents.select(np.arange(N - 2))
    some = {"group_index": np.zeros(N - 2, int), "consents": kept}
    found = dataclasses.replace(plan(), counts="released", **some)
    run(data=(INPUTS[2:], TARGETS[2:]), the_plan=found)
    with pytest.raises(InputError, match="30 records, but the plan is for 28"):
        run(the_plan=found)


class Words(nn.Module):
    def __init__(self, bags):
        super().__init__()
        self.table = (nn.EmbeddingBag if bags else nn.Embedding)(7, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.table(x).reshape(len(x), -1, 4).mean(1))


def picked(outputs, targets):
    return -outputs.log_softmax(1).gather(1, targets.unsqueeze(1)).squeeze(1)


def hot(outputs, targets):
    return -(outputs.log_softmax(1) * nn.functional.one_hot(targets, 2)).sum(1)


def shifted(outputs, targets):
    return LOSS(outputs, targets - 1)


WORDS = torch.arange(2 * N).view(N, 2) % 7
OUTSIDE = {
    "a label": (INPUTS, TARGETS, LOSS, r"targets: values outside 0 to 1, or -100"),
    "a label that is picked": (INPUTS, TARGETS, picked, "targets: values outside 0 to 1,"),
    "a label that is hot": (INPUTS, TARGETS, hot, "targets: values outside 0 to 1,"),
    "a label that is computed": (INPUTS, TARGETS + 1, shifted, "inputs, targets: a label or an"),
    "a token": (WORDS, TARGETS, LOSS, "inputs: values outside 0 to 6, which is what embedding"),
    "a token of a bag": (WORDS, TARGETS, LOSS, "inputs: values outside 0 to 6, which is what _emb"),
}


@pytest.mark.parametrize("case", OUTSIDE)
@pytest.mark.parametrize("method", ["auto", "alone"])
def test_a_value_beyond_the_classes_or_the_table_is_refused_untold(case, method):
    inputs, targets, loss, message = OUTSIDE[case]
    inputs, targets = inputs.clone(), targets.clone()
    (inputs if "token" in case else targets)[3] = 9173
    model = Words("bag" in case) if "token" in case else nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    trainer = Trainer(model, optimizer, loss, plan(), (inputs, targets), seed=0, method=method)
    with pytest.raises(DataError, match=message if method == "auto" else "inputs, targets") as told:
        trainer.fit()
    assert "9173" not in str(told.value)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_label_that_is_to_be_ignored_is_none_of_the_classes():
    run(data=(INPUTS, TARGETS.index_fill(0, torch.tensor([3]), -100)))


def test_a_bad_label_of_a_record_not_drawn_is_found_before_the_first_release():
    targets, few = TARGETS.clone(), np.zeros(N, dtype=bool)
    targets[3], few[:2] = 2, True
    with pytest.raises(DataError, match="targets: values outside 0 to 1"):
        run(data=(INPUTS, targets), included=few)
