"""MLflow is told what the plan and the clock say; with MLflow itself where it is installed."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

from apiece import Budgets, Sample, Trainer, assign
from apiece.adapters.mlflow import MLflow
from apiece.errors import InputError, UnsupportedError
from apiece.training import Progress

BUDGETS = Budgets.from_groups([("strict", 1.0, 10), ("weak <5>", 3.0, 30)], 40, 1e-3)
PLAN = assign(BUDGETS, Sample(), steps=6, expected_batch_size=8, clip_norm=1.0, method="rdp")


@pytest.fixture
def told(monkeypatch):
    """Return what a stand-in for MLflow was told."""
    params: dict[str, object] = {}
    metrics: list[tuple[int, dict[str, float]]] = []
    fake = types.ModuleType("mlflow")
    fake.log_params = params.update
    fake.log_metrics = lambda values, step: metrics.append((step, dict(values)))
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    return params, metrics


def run(seed, **options):
    torch.manual_seed(seed)
    model = nn.Linear(3, 2)
    data = torch.randn(40, 3), torch.randint(0, 2, (40,))
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = nn.CrossEntropyLoss(reduction="none")
    Trainer(model, sgd, loss, PLAN, data, callbacks=[MLflow(PLAN, **options)], seed=seed).fit()


def test_what_is_told_does_not_depend_on_records(told):
    params, metrics = told
    for seed in (0, 1):
        run(seed, every=4)
    assert params["apiece/steps"] == 6
    assert params["asked/strict"] == "epsilon 1, delta 0.001"
    assert params["asked/weak _5_"] == "epsilon 3, delta 0.001"
    assert [step for step, _ in metrics] == [4, 6, 4, 6]
    first, second = ([{**m, "seconds a step": 0} for _, m in metrics[k : k + 2]] for k in (0, 2))
    assert first == second
    assert 0.99 < metrics[1][1]["planned epsilon/strict"] <= 1


def test_bad_intervals_and_a_missing_package(told, monkeypatch):
    with pytest.raises(InputError, match="every"):
        MLflow(PLAN, every=0)
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(UnsupportedError, match="mlflow"):
        MLflow(PLAN)


@pytest.mark.filterwarnings("ignore")
def test_with_mlflow(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    with mlflow.start_run() as active:
        MLflow(PLAN, every=3)(Progress(step=3, steps=6, stage=0, seconds=0.1, learning_rate=0.2))
    found = mlflow.get_run(active.info.run_id).data
    assert found.params["apiece/strategy"] == "sample"
    assert found.metrics["learning rate"] == np.float64(0.2)
