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

from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import DataError
from apiece.jobs import Run, load_model, statement_schema
from apiece.jobs.model import TabularModel, build_network, to_bytes
from apiece.jobs.results import statement_of
from apiece.jobs.statement import Bound, seal
from apiece.jobs.trained import Level
from apiece.training.charging import weights_digest
from sample_runs import sample_run

LEVELS = (Level("ε = 1", 1.0, 1e-3), Level("ε = 3", 3.0, 1e-3))
RUNS: dict[str, Run] = {
    "an experiment": sample_run(),
    "a release": replace(
        sample_run(), seed=None, finished="2026-01-31", purpose="to see", levels=LEVELS,
        no_limit_cap=3.0, analysis="first", versions={"python": "3.11.7"},
    ),
    "of public numbers": replace(
        sample_run(), data=replace(sample_run().data, packaged=True, simulated_budgets=True),
        levels=(*LEVELS, Level("ε = 5", 5.0, 1e-3)),
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


def test_the_gaussian_of_a_level_is_said_where_the_plan_is_of_public_numbers() -> None:
    """It follows from who chose what: the same levels, other budgets, and another μ."""
    told = statement_of(RUNS["of public numbers"])["guarantee"]
    plan = RUNS["of public numbers"].kept.plan
    assert [level["gaussian"] and level["gaussian"]["mu"] for level in told["levels"]] == [
        plan.gaussian(0).mu, plan.gaussian(1).mu, None,
    ]  # fmt: skip
    assert told["levels"][0]["gaussian"]["slack"] == pytest.approx(1e-4)
    released = RUNS["a release"]
    kept = replace(released.kept, plan=replace(released.kept.plan, counts="released"))
    others = tuple(kept if each is released.kept else each for each in released.strategies)
    again = statement_of(replace(released, strategies=others))["guarantee"]
    assert [level["gaussian"] for level in again["levels"]] == [
        level["gaussian"] for level in told["levels"][:2]
    ]
    assert again["composition"] == told["composition"]
    withheld = statement_of(released)["guarantee"]
    assert [level["gaussian"] for level in withheld["levels"]] == [None, None]
    assert "withheld" in withheld["composition"]
    assert "withheld" not in told["composition"]


def test_an_experiment_promises_nothing_to_who_knows_the_seed() -> None:
    statement = statement_of(RUNS["an experiment"])
    assert statement["mechanism"]["randomness"] == "seed"
    assert any("must not be released" in text for text in statement["assumptions"])
    assert "0" not in [str(value) for value in statement["mechanism"].values()]  # nor which


NETWORK = build_network(1, 2, (), torch.Generator())
COLUMNS = {"x": Numeric(0.0, 1.0)}
BOUND = replace(
    RUNS["a release"],
    data=replace(RUNS["a release"].data, columns=Schema(COLUMNS).to_dict()["columns"]),
    bound=Bound.of(NETWORK.state_dict(), {}, None, None),
)


def stored(tmp_path: Path, statement: Any) -> Path:
    model = TabularModel(NETWORK, COLUMNS, "y", Categorical(("a", "b")), statement)
    (tmp_path / "model.pt").write_bytes(to_bytes(model))
    return tmp_path / "model.pt"


def test_a_model_carries_it(tmp_path: Path) -> None:
    statement = statement_of(BOUND)
    jsonschema.validate(statement, statement_schema())
    assert load_model(stored(tmp_path, statement)).statement == statement
    assert load_model(stored(tmp_path, None)).statement is None


def resealed(said: Any, /, **changes: Any) -> Any:
    return seal({k: v for k, v in (said | changes).items() if k != "digest"})


CHANGES: dict[str, Any] = {
    "an epsilon": lambda s: s | {"guarantee": s["guarantee"] | {"levels": []}},
    "for release": lambda s: s | {"for_release": not s["for_release"]},
    "a word": lambda s: s | {"covered": ["everything"]},
    "other weights": lambda s: resealed(s, bound_to=s["bound_to"] | {"weights": "0" * 64}),
    "bound to nothing": lambda s: resealed(s, bound_to=None),
    "an old format": lambda s: resealed(s, statement="apiece privacy statement 1"),
    "no digest": lambda s: {k: v for k, v in s.items() if k != "digest"},
    "another label": lambda s: resealed(s, data=s["data"] | {"label": "z"}),
    "classes in another order": lambda s: resealed(s, data=s["data"] | {"classes": ["b", "a"]}),
    "another range": lambda s: resealed(s, data=s["data"] | {"columns": {
        "x": {"kind": "numeric", "lower": 0.0, "upper": 2.0}}}),
    "a hidden layer": lambda s: resealed(s, mechanism=s["mechanism"] | {"hidden": [3]}),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_statement_of_another_model_or_changed_is_refused(change: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load_model(stored(tmp_path, change(statement_of(BOUND))))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("at", [(0, 0), (1, 0)])
@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_a_weight_that_was_changed_is_refused(
    at: tuple[int, int], name: str, tmp_path: Path
) -> None:
    path = stored(tmp_path, statement_of(BOUND))
    content = torch.load(path, weights_only=True)
    flat = content["state"][name].view(-1)
    flat[at[0]] = torch.nextafter(flat[at[0]], torch.tensor(torch.inf))
    torch.save(content, path)
    with pytest.raises(DataError, match="weights is not what its statement is bound to"):
        load_model(path)


def test_a_digest_is_of_names_types_shapes_and_bytes() -> None:
    state = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3])}
    others = [
        {"a": state["a"], "c": state["b"]}, {"a": state["a"].double(), "b": state["b"]},
        {"a": state["a"].view(1, 2), "b": state["b"]}, {"a": -state["a"], "b": state["b"]},
        {"a": state["a"].flip(0), "b": state["b"]}, {"a": state["a"]},
        {"a": state["a"], "b": state["b"].int()}, {"a": torch.tensor([1.0, -0.0]), "b": state["b"]},
        {"a": torch.tensor([1.0, 0.0]), "b": state["b"]},
    ]  # fmt: skip
    assert len({weights_digest(each) for each in (state, *others)}) == 1 + len(others)
    assert weights_digest(dict(reversed(state.items()))) == weights_digest(state)


def test_what_it_is_bound_to_confirms_no_guess_without_the_salt() -> None:
    """Two releases of one run differ in all that is keyed; the same folder gives the same."""
    one, two = (
        statement_of(replace(BOUND, bound=Bound.of(NETWORK.state_dict(), {}, None, None)))
        for _ in range(2)
    )
    assert one["bound_to"]["weights"] == two["bound_to"]["weights"]
    assert one["bound_to"]["plan"] != two["bound_to"]["plan"]
    assert one["bound_to"]["run"] != two["bound_to"]["run"]
    assert statement_of(BOUND) == statement_of(BOUND)
    salts = {Bound.of({}, {}, seed, None).salt for seed in (0, 0, 1)}
    assert len(salts) == 2


@pytest.mark.parametrize("text", ["[1]", "{", '{"a": NaN}', '{"a": 1, "a": 2}', "3"])
def test_what_is_no_statement_is_refused(text: str, tmp_path: Path) -> None:
    path = stored(tmp_path, None)
    content = torch.load(path, weights_only=True)
    torch.save({**content, "statement": text}, path)
    with pytest.raises(DataError):
        load_model(path)
