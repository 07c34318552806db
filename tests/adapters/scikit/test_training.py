"""A recipe gives a verified plan, chosen by public numbers alone."""

import numpy as np
import pytest

from apiece.adapters.fitting import Recipe, batch_size
from apiece.budgets import Budgets
from apiece.errors import InputError, UnsupportedError


def recipe(**changes: object) -> Recipe:
    given = {
        "strategy": "sample", "batch_size": None, "steps": 5, "clip_norm": 1.0,
        "learning_rate": 1.0, "hidden": (), "rows_per_person": None,
    }  # fmt: skip
    return Recipe(**{**given, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("records", [1, 300, 2048, 10**6])
def test_a_batch_is_never_larger_than_all(records: int) -> None:
    assert 0 < batch_size(records) <= records


def test_the_plan_is_verified_and_of_all_steps() -> None:
    budgets = Budgets(np.repeat([1.0, 2.0], 300), 1e-5)
    plan = recipe().plan(budgets)
    assert plan.verify(budgets).ok
    assert plan.steps == 5


def test_several_models_in_one_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="an estimator has one"):
        recipe(strategy="adapdp", steps=10).plan(Budgets(np.repeat([1.0, 2.0], 300), 1e-5))


def test_doubts_about_budgets_are_said() -> None:
    with pytest.warns(UserWarning, match="expect nothing useful of fewer than 100"):
        recipe().plan(Budgets(np.ones(50), 1e-5))


@pytest.mark.parametrize(
    "wrong",
    [{"steps": 0}, {"batch_size": 1e9}, {"clip_norm": np.nan}, {"strategy": "sampel"}],
)
def test_settings_out_of_bounds_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InputError):
        recipe(**wrong).plan(Budgets(np.ones(200), 1e-5))
