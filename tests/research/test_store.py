"""Results are kept one by one; what is there is not run again; nothing is half-written."""

from pathlib import Path

import pytest

from apiece.errors import DataError
from research.experiment import Folders, Outcome
from research.machine import describe_machine
from research.registry import load_experiment
from research.store import Store, missing_units, run_units
from sample_experiments import folder


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    there = folder(tmp_path)
    experiment = load_experiment(there / "experiments", "half-a-number")
    place, store = Folders(there / "data", there / "work"), Store(there / "results")
    units = experiment.list_units(None, 1.0)
    place.work.mkdir()
    (place.work / "stop").touch()
    with pytest.raises(KeyboardInterrupt):
        run_units(experiment, units, store, place)
    assert [one.result for one in store.load(experiment.name)] == [0.0]
    (place.work / "stop").unlink()
    seen = []
    done = run_units(experiment, units, store, place, progress=seen.append)
    assert [one.result for one in done] == [0.0, 0.5, 1.0]
    assert [unit["seed"] for unit in seen] == [1, 2]
    assert (place.work / "log").read_text() == "0 1 1 2 "
    run_units(experiment, units, store, place)
    assert (place.work / "log").read_text() == "0 1 1 2 "
    run_units(experiment, units[:1], store, place, again=True)
    assert (place.work / "log").read_text() == "0 1 1 2 0 "
    assert len(store.load(experiment.name)) == 3


def test_missing_data_is_said_before_anything_runs(tmp_path: Path) -> None:
    there = folder(tmp_path)
    experiment = load_experiment(there / "experiments", "half-a-number")
    (there / "data" / "there").rmdir()
    with pytest.raises(DataError, match="no folder there"):
        run_units(experiment, [{"seed": 0}], Store(there), Folders(there / "data", there / "work"))
    assert not (there / "work").exists()


@pytest.mark.parametrize("text", ["", "{}", '{"experiment": "b", "units": []}',
                                  '{"experiment": "a", "units": [{"unit": {}}]}'])  # fmt: skip
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    Store(tmp_path).path("a").write_text(text)
    with pytest.raises(DataError, match="no results of a"):
        Store(tmp_path).load("a")


def test_results_come_back_as_they_were(tmp_path: Path) -> None:
    done = [Outcome({"seed": 0, "on": "x"}, {"a": [1.5, None]}, None, "m", "2026-01-01")]
    Store(tmp_path).save("a", done)
    assert Store(tmp_path).load("a") == done
    with pytest.raises(ValueError, match="JSON"):
        Store(tmp_path).save("a", [Outcome({}, float("nan"), 1.0, "", "")])
    assert Store(tmp_path).load("a") == done
    assert missing_units([{"on": "x", "seed": 0}], done) == []


def test_the_machine_is_named_without_a_host() -> None:
    import platform

    assert describe_machine()
    assert platform.node() not in describe_machine() or not platform.node()
