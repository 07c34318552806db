"""Prepared: everything checked, a verified plan a strategy, and nothing written."""

from pathlib import Path

import numpy as np
import pytest

from apiece.errors import BudgetError, DataError, StateError, UnsupportedError
from apiece.jobs import prepare
from apiece.jobs.prepared import prepare_again

from .small import job

SCHEDULES = {
    "noise_schedule": {"points": [[0, 2], [1, 1]], "between": "hold"},
    "learning_rate_schedule": {"points": [[0, 1], [3, 0.5]]},
}


def test_a_plan_a_strategy_that_holds_and_no_file(tmp_path: Path) -> None:
    one = job(tmp_path, strategies=["scale", "uniform"], seeds=2)
    found = prepare(one, out=tmp_path / "run")
    assert list(found.plans) == ["scale", "uniform"]
    assert all(plan.verify().ok for plan in found.plans.values())
    assert all(plan.unit == "record" for plan in found.plans.values())
    assert found.steps == 2 * (3 + 3)
    assert not found.resumed
    assert not (tmp_path / "run").exists()
    assert repr(found).count("p01") == 0


def test_a_used_folder_and_an_unused_one_are_refused_each_where_it_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is left untouched"):
        prepare(job(tmp_path), out=tmp_path)
    with pytest.raises(StateError, match="is no interrupted run"):
        prepare_again(tmp_path)


def test_what_is_asked_of_a_plan_is_in_it(tmp_path: Path) -> None:
    found = prepare(
        job(tmp_path, person="who", **SCHEDULES),
        out=tmp_path / "run",
    )  # fmt: skip
    (plan,) = found.plans.values()
    assert plan.unit == "person"
    assert plan.learning_rate is not None
    assert len({stage.noise_stddev for stage in plan.stages}) == 2
    assert plan.verify().ok


def test_a_strategy_whose_output_is_several_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"averages the outputs of .* choose sample"):
        prepare(job(tmp_path, strategy="adapdp", steps=6), out=tmp_path / "run")
    with pytest.raises(UnsupportedError, match=r"strategy hybrid: needs bounds .* choose sample"):
        prepare(job(tmp_path, strategy="hybrid", steps=6), out=tmp_path / "run")


def test_no_limit_is_the_cap_and_the_plan_says_so(tmp_path: Path) -> None:
    def change(frame):
        return frame.assign(budget=np.where(frame.index % 2, "no limit", "1"))

    found = prepare(job(tmp_path, change, no_limit_cap=4.0), out=tmp_path / "run")
    assert found.people.budgets.epsilon.max() == 4.0
    assert any("4" in note for note in found.plans["scale"].notes)
    with pytest.raises(BudgetError):
        prepare(job(tmp_path, change), out=tmp_path / "run")


def test_counts_about_people_are_in_the_private_notes_alone(tmp_path: Path) -> None:
    def change(frame):
        return frame.assign(age=np.where(np.isin(frame.index, [0, 1, 2]), "x", frame["age"]))

    found = prepare(job(tmp_path, change), out=tmp_path / "run")
    notes = " ".join(found.private_notes)
    assert "2 of 45 training records have a NaN" in notes
    assert "1 of 15 test records have a NaN, infinite or unreadable number and are not" in notes
    by_person = prepare(job(tmp_path, change, person="who"), out=tmp_path / "run")
    assert "2 of 45 training rows" in " ".join(by_person.private_notes)
