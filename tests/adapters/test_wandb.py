"""Weights & Biases is told what the plan and the clock say; with wandb itself where installed."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from apiece import Budgets, Sample, Trainer, assign
from apiece.adapters.wandb import WandB
from apiece.errors import InputError, UnsupportedError

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=6, expected_batch_size=8, clip_norm=1.0, method="rdp")
PAGE = (Path(__file__).parents[2] / "docs" / "own-loop.md").read_text()


class OpenRun:
    """A stand-in for an open run: what it was told."""

    def __init__(self):
        self.config, self.rows = {}, []

    def log(self, row, *, step):
        self.rows.append((step, dict(row)))


@pytest.fixture
def opened(monkeypatch):
    fake = types.ModuleType("wandb")
    fake.run = OpenRun()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return fake


def run(seed, **options):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    Trainer(model, sgd, loss, PLAN, data, callbacks=[WandB(PLAN, **options)], seed=seed).fit()


def test_what_is_told_does_not_depend_on_records(opened):
    for seed in (0, 1):
        run(seed, every=4)
    told, rows = opened.run.config, opened.run.rows
    assert told["apiece/steps"] == 6
    assert told["asked/weak"] == "epsilon 3, delta 0.001"
    assert [step for step, _ in rows] == [4, 6, 4, 6]
    first, second = ([{**row, "seconds a step": 0} for _, row in rows[k : k + 2]] for k in (0, 2))
    assert first == second
    assert 0.99 < rows[1][1]["planned ε/strict"] <= 1


def test_no_run_a_bad_interval_and_a_missing_package(opened, monkeypatch):
    with pytest.raises(InputError, match="every"):
        WandB(PLAN, every=0)
    opened.run = None
    with pytest.raises(InputError, match=r"call wandb\.init"):
        WandB(PLAN)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UnsupportedError, match="wandb"):
        WandB(PLAN)


# What the page shows, with the tools themselves.


def read_block(words):
    (block,) = [b for b in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) if words in b]
    return block


def train(callbacks):
    """As on the page."""
    from apiece import make_private

    torch.manual_seed(0)
    model = nn.Linear(5, 2)
    data = TensorDataset(torch.randn(200, 5), torch.randint(0, 2, (200,)))
    asked = Budgets([1.0] * 100 + [3.0] * 100, 1e-5)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    settings = {"epochs": 2, "clip_norm": 1, "callbacks": callbacks}
    loader = DataLoader(data, 20)
    make_private(model, optimizer, nn.CrossEntropyLoss(), loader, asked, **settings).fit()


@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_as_on_the_page(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    seen = []
    update = wandb.sdk.wandb_run.Run.log
    monkeypatch.setattr(
        wandb.sdk.wandb_run.Run,
        "log",
        lambda self, row, step=None: (seen.append((step, row)), update(self, row, step=step)),
    )
    exec(read_block("wandb.init"), {"train": train})
    assert [step for step, _ in seen] == [10, 20]
    (file,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    stored = file.read_bytes()
    assert b"planned" in stored
    assert b"asked/epsilon=3" in stored
    assert b"loss" not in b"".join(str(row).encode() for _, row in seen)


@pytest.mark.filterwarnings("ignore")
def test_mlflow_as_on_the_page(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.chdir(tmp_path)
    exec(read_block("mlflow.start_run"), {"train": train})
    (stored,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert stored.data.params["apiece/steps"] == "20"
    assert 0.9 < stored.data.metrics["planned epsilon/epsilon_1"] <= np.float64(1)


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_as_on_the_page(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from apiece.training import TensorBoard

    monkeypatch.chdir(tmp_path)
    exec(read_block("tensorboard --logdir"), {"train": train, "TensorBoard": TensorBoard})
    events = EventAccumulator("runs/first").Reload()
    assert "planned ε/epsilon=1" in events.Tags()["scalars"]
    assert [entry.step for entry in events.Scalars("learning rate")] == [10, 20]
