"""Callbacks: what they show is the plan's and the clock's, and they leave the run alone."""

import io
import sys

import pytest
import torch
from rich.console import Console
from torch import nn

from apiece import Budgets, Sample, assign
from apiece.errors import UnsupportedError
from apiece.training import Evaluation, Progress, ProgressBar, TensorBoard, Trainer

BUDGETS = Budgets.from_groups(
    [("strict", 1.0, 10), ("middle", 2.0, 10), ("weak", 3.0, 20)], 40, 1e-3
)
LOSS = nn.CrossEntropyLoss(reduction="none")
INPUTS = torch.randn(40, 4, generator=torch.Generator().manual_seed(5))
DATA = (INPUTS, (INPUTS[:, 0] > 0).long())


def plan(strategy=None):
    return assign(
        BUDGETS, strategy or Sample(), steps=6, expected_batch_size=8, clip_norm=1.0, method="rdp"
    )


def trainer(the_plan, model=None, data=DATA, **options):
    torch.manual_seed(1)
    model = model or nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return Trainer(model, optimizer, LOSS, the_plan, data, seed=0, **options)


def at(step, steps=6):
    return Progress(step, steps, 0, 0.01, 0.3)


def shown(the_plan, data):
    """Return what the bar says at each step of a run."""
    texts = []
    console = Console(file=io.StringIO(), force_terminal=True, width=160)
    with ProgressBar(the_plan, console=console) as bar:

        def listen(progress):
            bar(progress)
            task = bar._bar.tasks[0]
            texts.append((task.completed, task.total, task.description))

        trainer(the_plan, data=data, callbacks=[listen]).fit()
    assert "6/6" in console.file.getvalue()
    return texts


def test_the_bar_shows_what_was_planned_whatever_the_records_are():
    the_plan = plan()
    seen = shown(the_plan, DATA)
    assert [(done, total) for done, total, _ in seen] == [(k, 6) for k in range(1, 7)]
    assert seen[-1][2] == "planned ε 1 of 1 (strict), ε 3 of 3 (weak)"
    assert 0.99 < the_plan.epsilon_spent[0] < 1
    nothing = (torch.zeros(40, 4), torch.zeros(40, dtype=torch.long))
    assert shown(the_plan, nothing) == seen


def test_evaluation_leaves_modes_and_parameters_alone():
    the_plan = plan()
    plain = trainer(the_plan)
    plain.fit()
    run = trainer(the_plan)
    run.model[1].eval()  # frozen by its owner

    def evaluate(model):
        assert not any(m.training for m in model.modules())
        assert not torch.is_grad_enabled()
        torch.rand(3)
        return float((model(INPUTS).argmax(1) == DATA[1]).float().mean())

    check = Evaluation(run.model, evaluate, every=4)
    run._loop.callbacks = (check,)
    run.fit()
    assert [step for step, _ in check.history] == [4, 6]
    assert [m.training for m in run.model] == [True, False, True]
    again = trainer(the_plan)
    again._loop.callbacks = (Evaluation(again.model, evaluate, every=1),)
    again.fit()
    pairs = zip(plain.model.parameters(), again.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def test_tensorboard_writes_public_values(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = TensorBoard(tmp_path, plan(), every=4)
    for step in range(1, 7):
        board(at(step))
    events = EventAccumulator(str(tmp_path)).Reload()
    spent = events.Scalars("planned ε/strict")
    assert [entry.step for entry in spent] == [4, 6]
    assert spent[-1].value == pytest.approx(plan().epsilon_spent[0])
    assert set(events.Tags()["scalars"]) == {
        "learning rate", "seconds a step", "stage", "planned ε/strict", "planned ε/weak",
    }  # fmt: skip


def test_without_tensorboard_the_error_names_the_extra(tmp_path, monkeypatch):
    for name in ("tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UnsupportedError, match="pip install tensorboard"):
        TensorBoard(tmp_path, plan())
