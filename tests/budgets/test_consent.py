"""Consent in words: declared names are read, each row by itself, and name the groups of a plan."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, Plan, assign
from apiece.budgets import BudgetLevels
from apiece.budgets.levels import Levels
from apiece.datasets.tables import Dialect
from apiece.errors import BudgetError, InputError
from apiece.jobs import read_job
from apiece.jobs.config import job_from_dict
from refusals import refused

FORM = {"high": 8.0, "low": 1.0, "medium": 3.0}
SOME = {"steps": 3, "expected_batch_size": 20, "clip_norm": 1.0}


def forms(*words: object) -> pd.DataFrame:
    return pd.DataFrame({"consent": pd.Series(words, dtype=object)})


def read(*words: object, levels: object = None, **how: object) -> Budgets:
    given = FORM if levels is None else levels
    return Budgets.from_frame(
        forms(*words),
        epsilon="consent",
        delta=1e-5,
        levels=given,
        **how,  # type: ignore[arg-type]
    )


def test_levels_are_in_order_however_they_are_given() -> None:
    assert list(Levels(FORM).items()) == [("low", 1.0), ("medium", 3.0), ("high", 8.0)]
    assert Levels("high=8,low=1, medium = 3") == Levels(FORM) == Levels(Levels(FORM))
    assert Levels("8,1") == Levels([1, 8]) == {"1": 1.0, "8": 8.0}
    assert Levels({"no: I mean it": 0.1, "8": 8}).titles == ("no: I mean it", "ε = 8")
    assert Levels("0.1,0.30000000000000004").titles == ("ε = 0.1", "ε = 0.30000000000000004")


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ({}, "give at least one"),
        ("", "levels: '' is not name=epsilon"),
        ("low=1,low=2", "'low' is empty, has control characters or is given twice"),
        ({" ": 1.0}, "is empty"),
        ({"a\nb": 1.0}, "control characters"),
        ("low=1,high=1.0", "each with an epsilon of its own"),
        ("low=much", "'low=much' is not name=epsilon, as in low=1"),
        ({"low": 0.0}, r"level low = 0.0: must be in \(0, inf\)"),
        ({"low": float("inf")}, "level low = inf"),
        ([1, "high"], "levels = 'high': not a number"),
        (3, "levels = 3: give names and numbers, as in low=1,high=8"),
    ],
)
def test_what_are_no_levels(offered: object, said: str) -> None:
    with pytest.raises(BudgetError, match=said):
        Levels(offered)  # type: ignore[arg-type]


def test_words_are_budgets_and_name_the_groups() -> None:
    budgets = read("low", "high", " low ", "medium")
    assert budgets.epsilon.tolist() == [1.0, 8.0, 1.0, 3.0]
    assert budgets.groups.name.tolist() == ["low", "medium", "high"]
    same = Budgets(["low", "high", "low", "medium"], 1e-5, levels=FORM)
    assert same.labels.tolist() == budgets.labels.tolist()  # type: ignore[union-attr]
    assert Budgets("high", 1e-5, levels=FORM).groups.name.tolist() == ["high"]
    capped = budgets.at_most(2.0)
    assert dict(zip(capped.groups.name, capped.groups.epsilon, strict=True)) == {
        "low": 1.0, "medium": 2.0, "high": 2.0,
    }  # fmt: skip
    with pytest.raises(InputError, match="levels are the labels"):
        Budgets(["low"], 1e-5, labels=["a"], levels=FORM)


def test_a_level_that_nobody_chose_has_no_group() -> None:
    """It stands among what is declared; a plan is made of records, and a group has some."""
    assert read("low", "low").groups.name.tolist() == ["low"]


def test_numbers_on_offer_are_read_as_numbers() -> None:
    offered = [1, 2.5]
    assert read("1.0", 2.5, "1", levels=offered).groups.name.tolist() == ["ε = 1", "ε = 2.5"]
    budgets = read("2,50", levels=offered, dialect=Dialect(decimal=","))
    assert budgets.epsilon.tolist() == [2.5]
    with refused(BudgetError, 1, 2, "declared", 2.5):
        read("1", "2", levels=offered)
    with pytest.raises(BudgetError, match="2 of 2 rows"):
        read("1", 8.0)  # the form has words, not numbers


def test_no_limit_is_a_level_or_one_that_is_named() -> None:
    assert read("No limit", "low", no_limit_cap=8).groups.name.tolist() == ["low", "high"]
    assert read("no limit", levels={"no limit": 5}).groups.name.tolist() == ["no limit"]
    with pytest.raises(BudgetError, match="1 of 1 rows name no declared level"):
        read("no limit")
    with refused(BudgetError, "no_limit_cap", 7):
        read("low", no_limit_cap=7)


def test_words_that_are_not_declared_are_counted_and_not_shown() -> None:
    rows = ["low"] * 5 + ["secret-word"] * 3 + [None, "", "LOW", float("nan")]
    with pytest.raises(BudgetError) as caught:
        read(*rows)
    assert str(caught.value) == (
        "epsilon column 'consent': 7 of 12 rows name no declared level (3 of them empty, 1 of them "
        "but for their case); declared: low, medium, high; mend or leave out these rows, or "
        "declare all that people could choose"
    )
    with pytest.raises(BudgetError, match="high, of which 'medium' is the nearest; mend"):
        read("low", "mediun", "mediun", "much")
    with pytest.raises(BudgetError, match=r"the words on the consent form, as in levels={'low'"):
        Budgets.from_frame(forms("low"), epsilon="consent", delta=1e-5)
    with refused(BudgetError, "epsilon", 1, 2, "level"):
        Budgets(["low", "much"], 1e-5, levels=FORM)
    with pytest.raises(BudgetError, match="declare what they stand for, as in levels="):
        Budgets(["low", "high"], 1e-5)
    with pytest.raises(BudgetError, match="declare what they stand for"):
        Budgets(forms("low", "high")["consent"], 1e-5)


CELLS = st.sampled_from(["low", "medium", "high", " low", "Low", "much", "", None, "8", "no limit"])


def one(cell: object) -> float | None:
    try:
        return float(read(cell).epsilon[0])
    except BudgetError:
        return None


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(CELLS, min_size=1, max_size=6))
def test_no_row_changes_how_another_is_read(cells: list[object]) -> None:
    """A law: all rows are read together as each is alone, or the table is refused for some."""
    alone = [one(cell) for cell in cells]
    if None in alone:
        with pytest.raises(BudgetError, match=f"{alone.count(None)} of {len(cells)} rows"):
            read(*cells)
    else:
        assert read(*cells).epsilon.tolist() == alone


def test_a_person_s_rows_name_one_level() -> None:
    frame = forms("low", "high", "low").assign(who=["ann", "bob", "ann"])
    how = {"epsilon": "consent", "delta": 1e-5, "person": "who", "levels": FORM}
    budgets = Budgets.from_frame(frame, **how)  # type: ignore[arg-type]
    assert budgets.labels.tolist() == ["low", "high"]  # type: ignore[union-attr]
    with pytest.raises(InputError, match="rows of one person differ"):
        Budgets.from_frame(frame.assign(who="ann"), **how)  # type: ignore[arg-type]


def test_a_file_counted_by_level_is_the_same_groups(tmp_path: Path) -> None:
    frame = forms(*["low"] * 5, *["high"] * 4, *["medium"] * 3).assign(delta=[1e-5, 1e-6] * 6)
    frame.to_parquet(tmp_path / "p.parquet")
    for delta in (1e-5, "delta"):
        how = {"epsilon": "consent", "delta": delta, "levels": "low=1,medium=3,high=8"}
        whole = Budgets.from_frame(tmp_path / "p.parquet", **how)  # type: ignore[arg-type]
        found = BudgetLevels.from_parquet(tmp_path / "p.parquet", **how)  # type: ignore[arg-type]
        for budgets, levels in ((whole, found), (whole.at_most(3.0), found.at_most(3.0))):
            assert levels.groups.same_as(budgets.groups)
            assert levels.groups.name.tolist() == budgets.groups.name.tolist()
    assert found.groups.name[0] == "low delta=1e-06"
    how["levels"] = "low=1,medium=3"
    with refused(BudgetError, "p.parquet", "consent", 4, 12):
        BudgetLevels.from_parquet(tmp_path / "p.parquet", **how)  # type: ignore[arg-type]


def test_names_go_through_a_plan_and_its_json() -> None:
    budgets = read(*np.resize(["low", "high"], 40))
    plan = assign(budgets, "sample", **SOME)  # type: ignore[arg-type]
    assert [group.name for group in plan.groups] == ["low", "high"]
    again = Plan.from_json(plan.to_json())
    assert [group.name for group in again.groups] == ["low", "high"]
    assert "epsilon=" not in json.dumps([group["name"] for group in plan.to_dict()["groups"]])


@pytest.mark.parametrize("levels", [FORM, [8, 1, 3.5], "low=1,high=8"])
def test_levels_survive_a_config_and_a_run_folder_s(levels: object, tmp_path: Path) -> None:
    import tomli_w

    sections = {
        "data": {"source": "a.csv"},
        "budgets": {"epsilon": "consent", "delta": 1e-5, "levels": levels},
    }
    job = job_from_dict(sections, name="j", changes={})
    (tmp_path / "j.toml").write_text(tomli_w.dumps(job.to_dict()))
    again = read_job(tmp_path / "j.toml")
    assert again.budgets.levels == job.budgets.levels == Levels(levels)  # type: ignore[arg-type]
    assert again.to_dict() == job.to_dict() == json.loads(json.dumps(job.to_dict()))
