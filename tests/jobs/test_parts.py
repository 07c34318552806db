"""Each setting of a job: what it is out of the box, and what is refused by name."""

from typing import Any

import pytest

from apiece.errors import InputError
from apiece.jobs.config import (
    PARTS,
    TUNED,
    BudgetColumns,
    Comparison,
    Data,
    Pate,
    RunSettings,
    SearchSettings,
    Training,
)
from apiece.jobs.settings import settings_of

BAD: list[tuple[Any, dict[str, Any], str]] = [
    (Data, {"source": 3}, "source = 3: must be a text"),
    (Data, {"source": "t.csv", "test_share": 1}, "test_share = 1"),
    (Data, {"source": "t.csv", "decimal": ";"}, "decimal = ';'"),
    (Data, {"source": "adult", "separator": ";"}, "are for CSV files"),
    (Data, {"source": "t.parquet", "encoding": "latin-1"}, "are for CSV files"),
    (Data, {"source": "t.csv", "person": "p", "ids": "i"}, "one of --ids and --person"),
    (Data, {"source": "t.csv", "people": "people.csv"}, "give --person too"),
    (
        Data,
        {"source": "t.pq", "person": "p", "people": "who.parquet", "decimal": ","},
        "leave them out for t.pq and who.parquet",
    ),
    (BudgetColumns, {}, "give the column of budgets"),
    (BudgetColumns, {"epsilon": "e", "groups": [{"name": "a", "epsilon": 1, "share": 1}]}, "one"),
    (BudgetColumns, {"groups": [{"name": "a"}]}, "must have just name, epsilon and share"),
    (BudgetColumns, {"epsilon": "e", "delta": 1}, "delta = 1"),
    (BudgetColumns, {"epsilon": "e", "delta": [1e-5]}, "delta = [1e-05]"),
    (BudgetColumns, {"epsilon": "e", "delta": float("nan")}, "delta = nan"),
    (BudgetColumns, {"epsilon": "e", "no_limit_cap": 0}, "no_limit_cap = 0"),
    (BudgetColumns, {"epsilon": "e", "levels": 1}, "levels = 1: give names and numbers"),
    (BudgetColumns, {"epsilon": "e", "levels": [1, 0]}, "levels = 0"),
    (BudgetColumns, {"epsilon": "e", "levels": [1, float("nan")]}, "levels = nan"),
    (BudgetColumns, {"epsilon": "e", "levels": [2, 1, 2.0]}, "given twice"),
    (BudgetColumns, {"epsilon": "e", "delta": "d", "levels": [1]}, "and one δ for all"),
    (RunSettings, {"purpose": 3}, "purpose = 3: must be a text"),
    (Training, {"strategy": "sampel"}, "did you mean 'sample'"),
    (Training, {"strategy": ["sample"]}, "strategy = ['sample']: must be a text"),
    (Training, {"steps": True}, "steps = True"),
    (Training, {"steps": None}, "steps = None"),
    (Training, {"batch_size": "many"}, "batch_size = 'many'"),
    (Training, {"hidden": 8}, "hidden = 8: must be a list"),
    (Training, {"hidden": [0]}, "hidden = 0"),
    (Training, {"momentum": 1}, "momentum = 1"),
    (Training, {"rows_per_person": 0}, "rows_per_person = 0"),
    (Training, {"rows_per_person": "most"}, "or all"),
    (Training, {"rows_per_person": True}, "rows_per_person = True"),
    (Training, {"noise_schedule": {"points": [[0, 2], [3, 1]]}}, "noise_schedule: between"),
    (Training, {"noise": "corelated"}, "did you mean 'correlated'"),
    (Training, {"noise": "correlated", "separation": 0}, "separation = 0"),
    (Training, {"noise": "correlated", "bands": 0}, "bands = 0"),
    (Training, {"noise": "correlated", "buffers": 1.5}, "buffers = 1.5"),
    (Training, {"method": "pat"}, "did you mean 'pate'"),
    (Training, {"method": 3}, "method = 3: must be a text"),
    (Pate, {"teachers": 0}, "teachers = 0"),
    (Pate, {"questions": 2.5}, "questions = 2.5"),
    (Pate, {"answers": True}, "answers = True"),
    (Pate, {"threshold": 1}, "threshold = 1"),
    (Pate, {"threshold": float("nan")}, "threshold = nan"),
    (Pate, {"public_share": 0}, "public_share = 0"),
    (Pate, {"public": 3}, "public = 3: must be a text"),
    (Pate, {"semi_supervised": "yes"}, "must be true or false"),
    (SearchSettings, {"space": {"steps": []}}, "must be a list of values"),
    (SearchSettings, {"space": {"steps": [9]}, "runs": 1}, "above 1"),
    (SearchSettings, {"space": {"steps": [9]}, "score_noise": 0}, "score_noise = 0"),
    (SearchSettings, {"validation": "public.csv"}, "space is missing"),
    (Comparison, {"seeds": 0}, "seeds = 0"),
    (Comparison, {"strategies": ["uniform", "scael"]}, "did you mean 'scale'"),
    (Comparison, {"settings": {"scale": 3}}, "must be tables"),
    (Comparison, {"settings": {"scale": {"hidden": [3]}}}, "unknown name 'hidden'"),
    (Comparison, {"settings": {"scale": {"steps": 0}}}, "steps = 0"),
    (RunSettings, {"seed": -1}, "seed = -1"),
    (RunSettings, {"valid_until": "31.12.2030"}, "must be a day, as 2026-01-31"),
    (RunSettings, {"scope": "querier"}, "scope"),
    (RunSettings, {"ledger": "sqlite:///l.db"}, "give --ledger URL and --analysis NAME"),
    (RunSettings, {"ledger": "sqlite:///l.db", "analysis": "m", "seed": 0}, "leave the seed out"),
]


@pytest.mark.parametrize(("part", "values", "words"), BAD, ids=lambda v: str(v)[:40])
def test_a_bad_setting_is_refused_in_one_line(part: Any, values: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        part(**values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_setting_that_has_bounds_is_tried() -> None:
    """A setting that takes more than a text is among the bad ones above."""
    tried = {name for _, values, _ in BAD for name in values}
    texts = {
        "label",
        "schema",
        "split",
        "ids",
        "out",
        "controller",
        "contact",
        "learning_rate_schedule",
    }
    texts |= {"clip_norm", "learning_rate"}  # as batch_size
    assert {n for p in PARTS.values() for n, _ in settings_of(p)} <= tried | texts


def test_lists_become_tuples_and_nothing_can_be_changed() -> None:
    training = Training(hidden=[4, 2])  # type: ignore[arg-type]
    assert training.hidden == (4, 2)
    with pytest.raises(AttributeError):
        training.steps = 3  # type: ignore[misc]
    assert hash(training)


def test_what_is_left_out_is_as_the_method_has_it() -> None:
    assert (Training().strategy, Training().batch_size) == ("sample", None)
    assert (Training(method="pate").strategy, Training(method="pate").batch_size) == ("weight", 32)
    assert Training(method="pate", strategy="upsample", batch_size=7).batch_size == 7
    assert Pate().question_count == 200


def test_an_address_is_not_printed() -> None:
    assert "people.db" not in repr(RunSettings(ledger="sqlite:///people.db", analysis="m"))


def test_what_a_strategy_may_have_of_its_own() -> None:
    assert TUNED == ("batch_size", "steps", "clip_norm", "learning_rate", "momentum")
