"""Auditing one trained model, and shadow models for a table."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from apiece import cli
from apiece.audit.shadows import half_plan, table_job, train_shadows
from apiece.audit.splits import check_half_full
from apiece.audit.stacked_training import exported_model, model_confidences
from apiece.budgets import Budgets
from apiece.errors import DataError, UnsupportedError
from refusals import refused


def test_confidences_are_log_odds_and_modes_are_kept() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    model[1].eval()
    x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
    found = model_confidences(model, x, y, batch_size=7)
    p = torch.softmax(model[2](model[0](x)), 1).gather(1, y[:, None])[:, 0].detach().numpy()
    np.testing.assert_allclose(found, np.log(p / (1 - p)), rtol=1e-3, atol=1e-4)
    assert model.training
    assert not model[1].training


def test_a_model_without_classes_is_refused() -> None:
    with pytest.raises(DataError, match="logits of shape"):
        model_confidences(nn.Linear(4, 1), torch.randn(5, 4), torch.zeros(5, dtype=torch.long))


def exported(path: Path) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (torch.randn(5, 4),), dynamic_shapes=batch)
    torch.export.save(program, path)
    return model


def test_an_exported_model_says_what_the_model_says(tmp_path: Path) -> None:
    model = exported(tmp_path / "m.pt2")
    x, y = torch.randn(50, 4), torch.randint(0, 3, (50,))
    found = model_confidences(exported_model(tmp_path / "m.pt2", trusted=True), x, y, batch_size=7)
    np.testing.assert_allclose(found, model_confidences(model, x, y), rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="does not take inputs"):
        model_confidences(
            exported_model(tmp_path / "m.pt2", trusted=True), torch.randn(5, 3), y[:5]
        )


def test_files_that_are_no_model(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros(3))
    for name, words in (("a.npz", "torch.export"), ("none.pt2", "cannot be read")):
        with pytest.raises(DataError, match=words):
            exported_model(tmp_path / name, trusted=True)


def test_targets_that_are_no_classes() -> None:
    with refused(DataError, "targets"):
        model_confidences(nn.Linear(4, 2), torch.randn(3, 4), torch.tensor([0, 1, 2]))


def test_half_plan_and_table_job() -> None:
    budgets = Budgets(np.r_[np.full(21, 1.0), np.full(40, 3.0)], 1e-5, ids=np.arange(61) + 7)
    plan = half_plan(budgets, "scale", steps=4, expected_batch_size=6, clip_norm=1.0)
    assert plan.budget_groups.records.tolist() == [11, 20]
    generator = np.random.default_rng(0)
    features = generator.normal(size=(61, 5)).astype(np.float32)
    job = table_job(features, generator.integers(0, 2, 61), budgets, plan, models=6, seed=3)
    check_half_full(job.included, budgets.group_index)
    found = train_shadows(job)
    assert found.ids.tolist() == budgets.ids.tolist()
    assert set(found.groups) == {"epsilon=1", "epsilon=3"}
    with refused(DataError, 61, "features", 5, "labels"):
        table_job(features, np.zeros(5, dtype=int), budgets, plan, models=6, seed=3)


def test_a_file_that_could_run_code_is_not_opened_unless_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("load", "save"):
        monkeypatch.setattr(f"torch.export.{name}", None)  # a call of it would be a TypeError
    (tmp_path / "m.pt2").write_bytes(b"anything")
    with pytest.raises(UnsupportedError, match="can run any code"):
        exported_model(tmp_path / "m.pt2")
    np.savez(tmp_path / "x.npz", inputs=np.zeros((2, 3)), targets=np.zeros(2))
    words = ["audit", "--model", str(tmp_path / "m.pt2"), "--members", str(tmp_path / "x.npz")]
    assert cli.run([*words, "--others", str(tmp_path / "x.npz")]) == 2
    assert "--trust-model" in capsys.readouterr().err
    assert cli.run(["audit", "--canaries", "x.csv", "--trust-model"]) == 2
    assert "goes with model" in capsys.readouterr().err
