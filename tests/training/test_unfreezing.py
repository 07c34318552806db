"""Gradual unfreezing: each step trains what the schedule says, and nothing else moves."""

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets
from apiece.errors import InputError, StateError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer
from apiece.training.updates import Unfreezing

SIZE, BOUND = 12, 0.1
SCHEDULE = {0: ["2"], 3: ["2", "1"], 5: [""]}
HELD = [["2"]] * 3 + [["1", "2"]] * 2 + [["0", "1", "2"]] * 2


def layers():
    torch.manual_seed(0)
    parts = nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3)
    return nn.Sequential(*parts)


def data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(SIZE, 4, generator=generator), torch.arange(SIZE) % 3


def plan(noise=1e-9, steps=7, combine="last"):
    budgets = Budgets(np.ones(SIZE), 1e-5)
    stage = Stage(steps, float(SIZE), noise, np.ones(1), np.full(1, BOUND))
    made = Plan("t", 1.0, budgets.groups, (stage,))
    return made.bind(budgets)


def trainer(model, optimizer=None, *, schedule=None, **options):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), 0.05)
    loss = nn.CrossEntropyLoss(reduction="none")
    return Trainer(
        model, optimizer, loss, options.pop("plan", plan()), data(), unfreeze=schedule or SCHEDULE,
        **options,
    )  # fmt: skip


def moved(model, before):
    now = model.state_dict()
    return sorted({name.split(".")[0] for name in now if not torch.equal(now[name], before[name])})


@pytest.mark.parametrize("noise", [1e-9, 3.0])
def test_each_step_moves_what_it_trains_and_nothing_else(noise):
    model = layers()
    run = trainer(model, seed=0, plan=plan(noise))
    for held in HELD:
        before = {name: value.clone() for name, value in model.state_dict().items()}
        run.step()
        assert moved(model, before) == held


class Kept(torch.optim.SGD):
    """Keeps the gradients, and moves nothing."""

    def step(self, closure=None):
        self.last = [
            p.grad.double() for g in self.param_groups for p in g["params"] if p.grad is not None
        ]


@pytest.mark.parametrize("step", [0, 4, 6])
def test_nobody_moves_the_sum_by_more_than_their_bound_in_any_stage(step):
    def update(included):
        model = layers()
        optimizer = Kept(model.parameters(), 1.0)
        run = trainer(model, optimizer, seed=0, included=included)
        for _ in range(step + 1):
            run.step()
        return torch.cat([g.flatten() for g in optimizer.last]) * SIZE

    everyone = update(np.ones(SIZE, bool))
    most = 0.0
    for person in (0, 5, 11):
        less = update(np.arange(SIZE) != person)
        most = max(most, float((everyone - less).norm()) / BOUND)
    assert 0.999 < most < 1.001  # clipped over what is trained, and to the bound


def test_a_stopped_run_goes_on_in_its_stage(tmp_path):
    whole = layers()
    trainer(whole, seed=0, plan=plan(0.5)).fit()
    model = layers()
    stopped = trainer(model, seed=0, plan=plan(0.5), checkpoint=tmp_path)
    for _ in range(4):
        stopped.step()
    stopped.save()
    again = layers()
    optimizer = torch.optim.AdamW(again.parameters(), 0.05)
    loss = nn.CrossEntropyLoss(reduction="none")
    resumed = Trainer.resume(tmp_path, again, optimizer, loss, plan(0.5), data(), unfreeze=SCHEDULE)
    resumed.fit()
    for name, value in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], value), name


def test_what_others_freeze_meanwhile_stops_the_run():
    model = layers()
    run = trainer(model, seed=0)
    run.step()
    model[0].weight.requires_grad_(True)
    with pytest.raises(StateError, match="trainable"):
        run.step()


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({1: ["2"]}, "begins at step 1"),
        ({0: ["3"]}, "begins with '3'"),
        ({0: ["2.w"]}, "begins with '2.w'"),
        ({0: []}, "trains no parameter"),
        ({0: "2"}, "is one name"),
        ({-1: ["2"], 0: ["2"]}, "unfreeze"),
    ],
)
def test_schedules_that_make_no_sense(schedule, words):
    with pytest.raises(InputError, match=words):
        Unfreezing(layers(), schedule)


def test_the_optimizer_must_hold_whatever_is_ever_trained():
    model = layers()
    with pytest.raises(InputError, match="does not hold"):
        trainer(model, torch.optim.SGD(model[2].parameters(), 0.1), seed=0)
    only = torch.optim.SGD(model[2].parameters(), 0.1)
    trainer(model, only, schedule={0: ["2"]}, seed=0).step()
