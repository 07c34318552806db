"""The statement: as its schema says, of what was declared, in the model and beside it."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from apiece.datasets import Categorical, Numeric
from apiece.errors import DataError
from apiece.jobs import Level, Run, load_model, statement_of, statement_schema
from apiece.jobs.model import TabularModel, build, to_bytes
from sample_runs import sample_run

LEVELS = (Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3))
RUNS: dict[str, Run] = {
    "an experiment": sample_run(),
    "a release": replace(
        sample_run(), seed=None, finished="2026-01-31", purpose="to see", levels=LEVELS,
        no_limit_cap=3.0, analysis="first", versions={"python": "3.11.7"},
    ),
    "of persons": replace(
        sample_run(), data=replace(sample_run().data, unit="person"), rows_per_person="all"
    ),
    "of a number": replace(
        sample_run(), data=replace(sample_run().data, classes=(), target_range=(0.0, 9.0))
    ),
}  # fmt: skip


def valid(statement: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(statement_schema()).is_valid(statement))


@pytest.mark.parametrize("of", RUNS)
def test_a_statement_is_as_its_schema_says(of: str) -> None:
    jsonschema.Draft202012Validator.check_schema(statement_schema())
    statement = statement_of(RUNS[of])
    jsonschema.validate(statement, statement_schema())
    assert json.loads(json.dumps(statement, allow_nan=False)) == statement
    assert statement["for_release"] == (of == "a release")


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each field that the schema names: not those of open tables."""
    for key, part in value.items() if isinstance(value, dict) else []:
        yield (*path, key)
        if key not in ("settings", "columns", "versions"):
            yield from parts(part, (*path, key))


@pytest.mark.parametrize("path", list(parts(statement_of(RUNS["a release"]))), ids=str)
def test_a_field_that_is_missing_of_another_kind_or_new_is_refused(path: tuple[Any, ...]) -> None:
    for change in ("missing", "another", "new"):
        at = spoiled = copy.deepcopy(statement_of(RUNS["a release"]))
        for key in path[:-1]:
            at = at[key]
        if change == "missing":
            del at[path[-1]]
        elif change == "another":
            at[path[-1]] = {"of": "another kind"}
        else:
            at["people"] = 3
        assert not valid(spoiled), change


def test_levels_say_what_they_promise() -> None:
    told = statement_of(RUNS["a release"])["guarantee"]
    assert [(level["epsilon"], level["right_of_1000_at_most"]) for level in told["levels"]] == [
        (1.0, 732), (3.0, 953),
    ]  # fmt: skip
    assert told["levels_declared"] is True
    assert statement_of(RUNS["an experiment"])["guarantee"]["levels"] == []


def test_an_experiment_promises_nothing_to_who_knows_the_seed() -> None:
    statement = statement_of(RUNS["an experiment"])
    assert statement["mechanism"]["randomness"] == "seed"
    assert any("must not be released" in text for text in statement["assumptions"])
    assert "0" not in [str(value) for value in statement["mechanism"].values()]  # nor which


def stored(tmp_path: Path, statement: Any) -> Path:
    network = build(1, 2, (), torch.Generator())
    target = Categorical(("a", "b"))
    model = TabularModel(network, {"x": Numeric(0.0, 1.0)}, "y", target, statement)
    (tmp_path / "model.pt").write_bytes(to_bytes(model))
    return tmp_path / "model.pt"


def test_a_model_carries_it(tmp_path: Path) -> None:
    statement = statement_of(RUNS["a release"])
    assert load_model(stored(tmp_path, statement)).statement == statement
    assert load_model(stored(tmp_path, None)).statement is None


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": NaN}', '{"a": 1, "a": 2}', "3"])
def test_what_is_no_statement_is_refused(text: str, tmp_path: Path) -> None:
    path = stored(tmp_path, None)
    content = torch.load(path, weights_only=True)
    torch.save({**content, "statement": text}, path)
    with pytest.raises(DataError):
        load_model(path)
