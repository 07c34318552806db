"""Levels counted from a file are the groups of the same budgets read at once, and plan the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece import Budgets, assign
from apiece.assignment import Rounds, assign_levels
from apiece.budgets import BudgetLevels
from apiece.errors import BudgetError, DataError, InputError, UnsupportedError


def people(seed: int, size: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    columns: dict[str, object] = {"consent": rng.choice([0.5, 1.0, 2.5], size)}
    if seed % 2:
        columns["delta"] = rng.choice([1e-6, 1e-5], size)
    if seed % 3 == 2:
        columns["bound"] = rng.choice([0.0, 0.25, 1.0], size)
    if seed % 4 == 3:
        columns["consent"] = pd.Series(columns["consent"]).astype(str)
    return pd.DataFrame(columns)


@pytest.mark.parametrize("seed", range(8))
def test_levels_are_the_groups(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "apiece.budgets.groups.ROWS", 7
    )  # so that rows of a level lie in many parts
    frame = people(seed, 100)
    frame.to_parquet(tmp_path / "p.parquet")
    asked = {
        "epsilon": "consent",
        "delta": "delta" if "delta" in frame else 1e-5,
        "excess": "bound" if "bound" in frame else None,
    }
    whole = Budgets.from_frame(tmp_path / "p.parquet", **asked)
    found = BudgetLevels.from_parquet(tmp_path / "p.parquet", **asked)
    assert found.groups.same_as(whole.groups)
    assert found.groups.name.tolist() == whole.groups.name.tolist()
    assert len(found) == 100


@pytest.mark.parametrize("strategy", ["uniform", "scale", "sample", "threshold"])
def test_the_plan_is_that_of_the_records(strategy: str) -> None:
    budgets = Budgets.from_groups([("a", 1.0, 0.5), ("b", 3.0, 0.5)], 400, 1e-4)
    settings = {"steps": 20, "expected_batch_size": 40, "clip_norm": 1.0}
    plan = assign_levels(BudgetLevels(budgets.groups), strategy, **settings)  # type: ignore[arg-type]
    assert plan.to_json() == assign(budgets, strategy, **settings).to_json()  # type: ignore[arg-type]
    assert plan.bind(budgets).group_index.tolist() == budgets.group_index.tolist()


def test_a_cap_merges_levels() -> None:
    budgets = Budgets([1.0, 5.0, 9.0, 5.0], 1e-5)
    found = BudgetLevels(budgets.groups).at_most(5.0)
    assert found.groups.same_as(budgets.at_most(5.0).groups)
    with pytest.raises(BudgetError):
        BudgetLevels(budgets.groups).at_most(0.0)


def test_what_needs_each_record_is_refused() -> None:
    found = BudgetLevels(Budgets([1.0, 2.0], 1e-5).groups)
    settings = {"steps": 4, "expected_batch_size": 1, "clip_norm": 1.0}
    with pytest.raises(UnsupportedError, match="needs Budgets"):
        assign_levels(found, Rounds(charging="joined"), **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="give BudgetLevels"):
        assign_levels(Budgets([1.0], 1e-5), "scale", **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("cell", [0.0, -1.0, np.nan, np.inf])
def test_a_cell_that_is_no_budget_is_refused(cell: float, tmp_path: Path) -> None:
    pd.DataFrame({"consent": [1.0, cell]}).to_parquet(tmp_path / "p.parquet")
    with pytest.raises(BudgetError, match="epsilon column 'consent' ="):
        BudgetLevels.from_parquet(tmp_path / "p.parquet", epsilon="consent", delta=1e-5)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.parquet").write_text("consent\n1\n")
    with pytest.raises(DataError, match="cannot be read"):
        BudgetLevels.from_parquet(tmp_path / "p.parquet", epsilon="consent", delta=1e-5)
    pd.DataFrame({"consent": [1.0]}).iloc[:0].to_parquet(tmp_path / "p.parquet")
    with pytest.raises(DataError, match="no rows"):
        BudgetLevels.from_parquet(tmp_path / "p.parquet", epsilon="consent", delta=1e-5)
    with pytest.raises(DataError, match="no column 'asked'"):
        BudgetLevels.from_parquet(tmp_path / "p.parquet", epsilon="asked", delta=1e-5)
