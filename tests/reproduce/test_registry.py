"""Experiments are found by their files, and only those are run."""

from pathlib import Path

import pytest

from apiece.errors import DataError, OptionError
from apiece.reproduce import find, load
from sample_experiments import TEXT, folder

ROOT = Path(__file__).parents[2]


def test_files_with_an_experiment_are_found(tmp_path: Path) -> None:
    assert list(find(folder(tmp_path) / "experiments")) == ["half-a-number"]
    with pytest.raises(DataError, match="repository"):
        find(tmp_path / "nowhere")


def test_an_experiment_is_loaded_by_its_name(tmp_path: Path) -> None:
    there = folder(tmp_path) / "experiments"
    assert load(there, "half-a-number").shows == "Table 0"
    with pytest.raises(OptionError, match="half-a-number"):
        load(there, "half-a-numbr")
    (there / "other.py").write_text(TEXT)
    with pytest.raises(DataError, match="half-a-number"):
        load(there, "other")


def test_every_experiment_of_the_repository_is_loaded_and_has_units() -> None:
    names = list(find(ROOT / "experiments"))
    assert len(names) >= 2
    for name in names:
        experiment = load(ROOT / "experiments", name)
        assert experiment.wanted(1, 0.1)
        assert experiment.cost
