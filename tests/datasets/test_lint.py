"""What looks like a mistake in a schema is told from it and the header; sound ones pass silent."""

import pytest

from apiece.datasets import Categorical, Numeric, Schema, Skip, load
from apiece.datasets import packaged_schema as packaged
from apiece.datasets.packaged import PACKAGED
from apiece.datasets.schema import Column, lint


def said(columns: dict[str, Column], names: list[str] | None = None, **taken: str) -> list[str]:
    return lint(Schema(columns, name="s"), names or [*columns, *taken], taken=taken, records=100)


SOUND: dict[str, Column] = {"x": Numeric(0, 9), "y": Categorical(("a", "b")), "note": Skip()}


def test_nothing_is_said_of_sound_schemas() -> None:
    assert said(SOUND, e="epsilon") == []
    for name in PACKAGED:
        table, label = load(name), PACKAGED[name].label
        taken = {label: "label", "split": "split", "ID": "ids"}
        assert lint(packaged(name), list(table.columns), taken=taken, records=len(table)) == []


def test_a_person_that_only_the_schema_names() -> None:
    schema = Schema({"x": Numeric(0, 9)}, name="s", person="who")
    (line,) = lint(schema, ["x", "who"], taken={})
    assert "pass --person who" in line
    assert lint(schema, ["x", "who"], taken={"who": "person"}) == []


@pytest.mark.parametrize("name", ["id", "person", "user_id", "E-Mail", "uuid", "customer id"])
def test_names_of_ids(name: str) -> None:
    (line,) = said({name: Numeric(0, 9)})
    assert f"--ids {name}" in line


@pytest.mark.parametrize("name", ["idle", "width", "persons_in_household", "acid", "bid"])
def test_names_that_only_sound_like_ids(name: str) -> None:
    assert said({name: Numeric(0, 9)}) == []


@pytest.mark.parametrize("name", ["epsilon", "consent_epsilon", "Privacy level", "budget"])
def test_names_of_budgets(name: str) -> None:
    (line,) = said({name: Numeric(0, 9)})
    assert "looks like a budget" in line


@pytest.mark.parametrize("role", ["epsilon", "delta", "ids", "person", "split"])
def test_a_column_with_another_use_is_no_feature(role: str) -> None:
    (line,) = said({**SOUND, "e": Numeric(0, 9)}, e=role)
    assert f"it is the {role} column" in line
    assert said({**SOUND, "e": Skip()}, e=role) == []


def test_the_table_and_the_schema_name_the_same_columns() -> None:
    (line,) = said(SOUND, ["x", "y", "note", "shoe", "hat"])
    assert "not used: 'shoe', 'hat'" in line
    (line,) = said(SOUND, ["x", "note"])
    assert "declares 'y', which is not in the table" in line
    (line,) = said(SOUND, ["X", "y", "note"])
    assert line.endswith("'x', which is not in the table; it has 'X': case matters")
    assert said(SOUND, ["x", "y"]) == []  # one that is skipped may be left out


def test_names_and_values_that_differ_in_case_alone() -> None:
    (line,) = said({"Age": Numeric(0, 9), "age": Numeric(0, 9)})
    assert "'Age' and 'age' differ in case alone" in line
    (line,) = said({"y": Categorical(("Ja", "nein", "ja"))})
    assert "'Ja' and 'ja' differ in case alone" in line


@pytest.mark.parametrize("value", ["", "?", "NA", "n/a", "NaN", "null"])
def test_markers_of_missing_values_are_no_values(value: str) -> None:
    (line,) = said({"y": Categorical(("a", value))})
    assert "declare it under missing" in line
    assert said({"y": Categorical(("a",), missing=(value,))}) == []


def test_more_values_than_records() -> None:
    (line,) = said({"zip": Categorical(tuple(map(str, range(101))))})
    assert "101 declared values for 100 records" in line
