"""The template of a schema: from the header alone, and refused until it is filled in."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import Schema, read_schema
from apiece.datasets.schema import write_template
from apiece.datasets.tables import read_header
from apiece.errors import DataError
from refusals import refused


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_template_holds_no_value_of_any_row(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"secret col": ["tell-tale-1"] * 3, "n": [987654321] * 3, "y": ["zz"] * 3})
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    text = write_template("t", read_header(path), label="y", but=["budget"])
    assert set(tomllib.loads(text)["columns"]) == {"secret col", "n", "y"}
    for value in ("tell-tale-1", "987654321", "zz"):
        assert value not in text


def test_the_template_proposes_an_empty_cell_as_missing() -> None:
    header = {"n": "int64", "c": None, "s": "string", "b": "bool", "d": "timestamp[ns]", "y": None}
    columns = tomllib.loads(write_template("t", header, label="y", but=[]))["columns"]
    assert all(columns[name]["missing"] is True for name in header if name != "y")
    assert "missing" not in columns["y"]
    assert columns["d"]["kind"] == "date"
    skipped = {"columns": {**columns, "c": {"kind": "skip", "missing": True}}}
    for name, ends in (("n", (0, 9)), ("d", ("2000-01-01", "2020-01-01"))):
        skipped["columns"][name] |= dict(zip(("lower", "upper"), ends, strict=True))
    skipped["columns"]["y"]["values"] = ["no", "yes"]
    assert "c" not in Schema.from_dict(skipped, "t").features(but={"y"})


def test_an_unfilled_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(write_template("t", {"n": None, "y": None}, label="y", but=[]))
    with refused(DataError, "kind"):
        read_schema(tmp_path / "s.toml")


@settings(derandomize=True, max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=6), min_size=1, max_size=4, unique=True))
def test_any_names_of_columns_come_back(names: list[str]) -> None:
    text = write_template("t", dict.fromkeys(names), label=names[0], but=[])
    assert list(tomllib.loads(text)["columns"]) == names


@pytest.mark.parametrize("person", ["id", "the id", 'a "b"\n[columns.x]'])
def test_the_person_s_column_is_named(person: str) -> None:
    header = {person: None, "y": None}
    schema = tomllib.loads(write_template("t", header, label="y", but=[person], person=person))
    assert schema["person"] == person
    assert list(schema["columns"]) == ["y"]


def test_what_has_another_use_is_left_out() -> None:
    header = {"id": "int64", "age": "float", "old": "bool", "y": None}
    columns = tomllib.loads(write_template("t", header, label="y", but=["id"]))["columns"]
    assert {name: each["kind"] for name, each in columns.items()} == {
        "age": "numeric",
        "old": "categorical",
        "y": "categorical",
    }
    assert columns["old"]["values"] == ["True", "False"]
