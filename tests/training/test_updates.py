"""Optimizers and learning rates: which are taken, what they do, and that a resume is exact."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from apiece.budgets import Budgets
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.plan import Plan, Schedule
from apiece.plan.parts import Stage
from apiece.training import Trainer

LOSS = nn.CrossEntropyLoss(reduction="none")
INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(5))
DATA = (INPUTS, (INPUTS[:, 0] > 0).long())


def plan(steps=8, *, stages=1, schedule=None, combine="continue"):
    budgets = Budgets(np.ones(40), 1e-5)
    stage = Stage(steps, 20.0, 0.5, np.array([0.5]), np.array([1.0]))
    made = Plan("t", 1.0, budgets.groups, (stage,) * stages, combine=combine)
    return dataclasses.replace(made, learning_rate=schedule).bind(budgets)


OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), foreach=False),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}
SCHEDULERS = {
    "none": lambda o: None,
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3, gamma=0.1),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 8),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=9),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


def parts(make):
    torch.manual_seed(1)
    model = nn.Linear(4, 2)
    return model, make(model.parameters())


def flat(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def check_resume(folder, make, schedule, the_plan):
    """A run stopped after five steps and resumed is the run that went on, and has made changes."""
    given = parts(make)
    run = Trainer(
        *given, LOSS, the_plan, DATA, seed=0, scheduler=schedule(given[1]), checkpoint=folder
    )
    before = flat(run)
    run.fit(5)
    model, optimizer = parts(make)
    again = Trainer.resume(
        folder, model, optimizer, LOSS, the_plan, DATA, scheduler=schedule(optimizer)
    )
    run._keeper._folder = None
    rates: list[list[float]] = [[], []]
    for trainer, seen in ((run, rates[0]), (again, rates[1])):
        trainer._loop.callbacks = (lambda p, seen=seen: seen.append(p.learning_rate),)
        trainer.fit()
    assert torch.equal(flat(run), flat(again))
    assert rates[0] == rates[1]
    assert not torch.equal(before, flat(run))
    return rates[0]


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_optimizers_resume_exactly(tmp_path, make):
    check_resume(tmp_path, make, SCHEDULERS["CosineAnnealingLR"], plan())


@pytest.mark.parametrize("schedule", SCHEDULERS.values(), ids=SCHEDULERS)
def test_schedulers_resume_exactly(tmp_path, schedule):
    check_resume(tmp_path, OPTIMIZERS["momentum"], schedule, plan())


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_plan_s_learning_rate_is_followed_and_resumed(tmp_path, make):
    schedule = Schedule(((0, 0.0), (4, 1.0), (8, 0.5)))
    rates = check_resume(tmp_path, make, SCHEDULERS["none"], plan(schedule=schedule))
    first = float(parts(make)[1].param_groups[0]["lr"])
    assert rates == pytest.approx([first * schedule.at(step) for step in (5, 6, 7)])


def test_a_plan_s_schedule_is_torch_s_lambda():
    schedule = Schedule(((0, 1.0), (8, 0.1)), "cosine")
    ours = Trainer(*parts(OPTIMIZERS["Adam"]), LOSS, plan(schedule=schedule), DATA, seed=0)
    model, optimizer = parts(OPTIMIZERS["Adam"])
    theirs = Trainer(
        model,
        optimizer,
        LOSS,
        plan(),
        DATA,
        seed=0,
        scheduler=lr_scheduler.LambdaLR(optimizer, schedule.at),
    )
    ours.fit()
    theirs.fit()
    torch.testing.assert_close(flat(ours), flat(theirs))


def test_each_averaged_model_has_the_whole_schedule():
    schedule = Schedule(((0, 1.0), (3, 0.25)))
    two = plan(3, stages=2, schedule=schedule, combine="average")
    seen = []
    given = parts(OPTIMIZERS["Adagrad"])
    run = Trainer(*given, LOSS, two, DATA, seed=0, callbacks=[seen.append])
    run.fit()
    assert [p.learning_rate for p in seen] == pytest.approx([0.1, 0.075, 0.05] * 2)


def test_each_averaged_model_has_the_whole_scheduler():
    model, optimizer = parts(OPTIMIZERS["momentum"])
    scheduler = lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    seen = []
    two = plan(3, stages=2, combine="average")
    run = Trainer(
        model, optimizer, LOSS, two, DATA, seed=0, scheduler=scheduler, callbacks=[seen.append]
    )
    run.fit()
    assert [p.learning_rate for p in seen] == pytest.approx([0.1, 0.1, 0.01] * 2)


def test_what_would_see_more_than_noisy_gradients_is_refused():
    model, optimizer = parts(OPTIMIZERS["momentum"])
    curvature = torch.optim.LBFGS(model.parameters())
    with pytest.raises(UnsupportedError, match=r"LBFGS\.step needs 'closure'"):
        Trainer(model, curvature, LOSS, plan(), DATA, seed=0)
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(UnsupportedError, match=r"ReduceLROnPlateau\.step needs 'metrics'"):
        Trainer(model, optimizer, LOSS, plan(), DATA, seed=0, scheduler=plateau)
    step = lr_scheduler.StepLR(optimizer, 2)
    scheduled = plan(schedule=Schedule(((0, 1.0),)))
    with pytest.raises(InputError, match="a learning-rate schedule of its own"):
        Trainer(model, optimizer, LOSS, scheduled, DATA, seed=0, scheduler=step)


def test_a_resume_with_another_optimizer_or_scheduler_is_refused(tmp_path):
    model, optimizer = parts(OPTIMIZERS["Adam"])
    scheduler = lr_scheduler.StepLR(optimizer, 2)
    given = (LOSS, plan(), DATA)
    Trainer(model, optimizer, *given, seed=0, scheduler=scheduler, checkpoint=tmp_path).fit(2)
    with pytest.raises(StateError, match="its scheduler is not"):
        Trainer.resume(tmp_path, *parts(OPTIMIZERS["Adam"]), *given)
    model, _ = parts(OPTIMIZERS["Adam"])
    grouped = [{"params": [p]} for p in model.parameters()]
    optimizer = torch.optim.Adam(grouped, lr=0.01)
    with pytest.raises(StateError, match="its scheduler is not"):
        Trainer.resume(
            tmp_path, model, optimizer, *given, scheduler=lr_scheduler.StepLR(optimizer, 2)
        )
    model, optimizer = parts(lambda p: torch.optim.Adam(p, lr=0.01))
    with pytest.raises(StateError, match="its optimizer is not"):
        Trainer.resume(
            tmp_path, model, optimizer, *given, scheduler=lr_scheduler.StepLR(optimizer, 2)
        )


def test_a_state_that_could_not_be_loaded_safely_is_not_written(tmp_path):
    class Odd(lr_scheduler.StepLR):
        def state_dict(self):
            return super().state_dict() | {"odd": Path("x")}

    model, optimizer = parts(OPTIMIZERS["Adam"])
    run = Trainer(
        model,
        optimizer,
        LOSS,
        plan(),
        DATA,
        seed=0,
        scheduler=Odd(optimizer, 2),
        checkpoint=tmp_path,
    )
    with pytest.raises(UnsupportedError, match="cannot be loaded safely"):
        run.fit()
    assert not (tmp_path / "state.pt").exists()


TOO_SHORT = {
    "OneCycleLR": (
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=5),
        "update 6 of 8",
    ),
    "SequentialLR": (
        lambda o: lr_scheduler.SequentialLR(
            o,
            [lr_scheduler.ConstantLR(o), lr_scheduler.OneCycleLR(o, 0.2, total_steps=4)],
            [2],
        ),
        "of 8",
    ),
    "a list": (lambda o: lr_scheduler.LambdaLR(o, lambda k: [1.0, 0.5, 0.2][k]), "update 3 of 8"),
    "below 0": (lambda o: lr_scheduler.LambdaLR(o, lambda k: 1 - k / 4), "gives update 6 of 8"),
    "nan": (
        lambda o: lr_scheduler.LambdaLR(o, lambda k: float("nan") if k == 5 else 1.0),
        "the learning rate nan",
    ),
}


@pytest.mark.parametrize("name", TOO_SHORT)
def test_a_scheduler_that_ends_before_the_plan_is_refused_before_a_step(name):
    """The run dry leaves scheduler, optimizer and parameters as they were."""
    make, said = TOO_SHORT[name]
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)
    rates = [dict(group, params=None) for group in optimizer.param_groups]
    with pytest.raises(InputError, match=said):
        Trainer(model, optimizer, LOSS, plan(), DATA, seed=0, scheduler=scheduler)
    assert [dict(group, params=None) for group in optimizer.param_groups] == rates
    assert scheduler.last_epoch == 0


@pytest.mark.parametrize("total", [8, 9])
def test_a_scheduler_of_the_plans_length_is_taken(total):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=total)
    Trainer(model, optimizer, LOSS, plan(), DATA, seed=0, scheduler=scheduler).fit()
    assert scheduler.last_epoch == 8


def test_a_filtered_run_is_refused_for_its_steps_not_for_more():
    from apiece.filters import GaussianFilter
    from apiece.training import FilteredTrainer

    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=5)
    accounts = GaussianFilter(np.full(40, 8.0), 1e-5)
    trainer = FilteredTrainer(
        model, optimizer, LOSS, accounts, DATA, clip_norm=1.0, noise_stddev=20.0, seed=0,
        scheduler=scheduler,
    )  # fmt: skip
    trainer.fit(3)
    with pytest.raises(InputError, match="OneCycleLR fails after update 3 of 4"):
        trainer.fit(4)
    trainer.fit(2)
    assert trainer.step_number == 5


def test_a_scheduler_begins_again_with_each_averaged_stage():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.2, total_steps=8)
    stages = plan(stages=2, combine="average")
    Trainer(model, optimizer, LOSS, stages, DATA, seed=0, scheduler=scheduler).fit()
