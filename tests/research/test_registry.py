"""Experiments are found by their files, and only those are run."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import DataError, OptionError
from research import EXPERIMENTS, RESULTS
from research.data import DATA_SETS
from research.experiments import kaiser_2026_data as data
from research.registry import find_experiments, load_experiment
from research.store import Store
from sample_experiments import TEXT, folder


def test_files_with_an_experiment_are_found(tmp_path: Path) -> None:
    assert list(find_experiments(folder(tmp_path) / "experiments")) == ["half-a-number"]
    with pytest.raises(DataError, match="no experiments"):
        find_experiments(tmp_path / "nowhere")


def test_an_experiment_is_loaded_by_its_name(tmp_path: Path) -> None:
    there = folder(tmp_path) / "experiments"
    assert load_experiment(there, "half-a-number").shows == "Table 0"
    with pytest.raises(OptionError, match="half-a-number"):
        load_experiment(there, "half-a-numbr")
    (there / "other.py").write_text(TEXT)
    with pytest.raises(DataError, match="half-a-number"):
        load_experiment(there, "other")


def test_every_experiment_of_the_repository_is_loaded_and_has_units() -> None:
    names = list(find_experiments(EXPERIMENTS))
    assert len(names) >= 2
    for name in names:
        experiment = load_experiment(EXPERIMENTS, name)
        assert experiment.list_units(1, 0.1)
        assert experiment.cost
        stored = [outcome.unit for outcome in Store(RESULTS).load(name)]
        units = [*experiment.list_units(None, 1.0), *stored]
        assert set(experiment.data_of(units)) <= set(experiment.needs) <= set(DATA_SETS)


def test_data_that_a_user_brings_is_read_from_its_files(tmp_path: Path) -> None:
    before, data.DATA = data.DATA, tmp_path  # type: ignore[attr-defined]
    try:
        with pytest.raises(DataError, match="isolet"):
            data.isolet()
        (tmp_path / "isolet").mkdir()
        rows = [[0.5] * 617 + [26.0], [-1.0] * 617 + [1.0]]
        np.savetxt(tmp_path / "isolet" / "isolet1+2+3+4.data", rows, delimiter=", ")
        found = data.isolet()
        assert found.inputs.shape == (2, 617)
        assert found.targets.tolist() == [25, 0]
        (tmp_path / "medmnist").mkdir()
        pixels, labels = np.full((6, 28, 28), 255, np.uint8), np.arange(6)[:, None] % 2
        np.savez(tmp_path / "medmnist" / "organ.npz", train_images=pixels, train_labels=labels)
        found = data.medical("organ", 2, 2)
        assert found.inputs.shape == (4, 784)
        assert sorted(found.targets.tolist()) == [0, 0, 1, 1]
    finally:
        data.DATA = before  # type: ignore[attr-defined]
