"""Public schemas: what declares no column is refused, and the rest survives its file."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w

from apiece.datasets import (
    Boolean,
    Categorical,
    Date,
    Numeric,
    Schema,
    Skip,
    Text,
    packaged_schema,
    read_schema,
)
from apiece.datasets.packaged import PACKAGED
from apiece.datasets.schema import Column
from apiece.errors import DataError
from refusals import refused

BAD_SCHEMAS: dict[str, tuple[str, str]] = {
    "not toml": ("[columns", "cannot be read"),
    "empty": ("", "columns"),
    "no kind": ("[columns.a]\n", "kind is missing"),
    "unfilled kind": ('[columns.a]\nkind = "?"\n', "kind"),
    "misspelled kind": ('[columns.a]\nkind = "numerc"\n', "did you mean 'numeric'"),
    "misspelled key": ('[columns.a]\nkind = "numeric"\nlowr = 1\nupper = 2\n', "'lower'"),
    "unfilled range": ('[columns.a]\nkind = "numeric"\nlower = "?"\nupper = "?"\n', "not a number"),
    "range reversed": ('[columns.a]\nkind = "numeric"\nlower = 2\nupper = 1\n', "less than"),
    "range nan": ('[columns.a]\nkind = "numeric"\nlower = nan\nupper = 1\n', "finite"),
    "no upper": ('[columns.a]\nkind = "numeric"\nlower = 1\n', "upper is missing"),
    "value twice": ('[columns.a]\nkind = "categorical"\nvalues = ["x", "x"]\n', "twice"),
    "marker twice": (
        '[columns.a]\nkind = "categorical"\nvalues=["x"]\nmissing = ["", ""]\n',
        "twice",
    ),
    "no marker": ('[columns.a]\nkind = "numeric"\nlower=0\nupper=1\nmissing = 3\n', "a list"),
    "no lower": ('[columns.a]\nkind = "date"\nupper = 2000-01-01\n', "lower is missing"),
    "an odd key at the top": (
        'people = 3\n[columns.a]\nkind = "skip"\n',
        "'people': no part of a schema",
    ),
    "no person": ('person = ""\n[columns.a]\nkind = "skip"\n', "the name of a column"),
    "no rows": ('rows_per_person = 0\n[columns.a]\nkind = "skip"\n', "rows_per_person"),
    "odd mark": ('decimal = ";"\n[columns.a]\nkind = "skip"\n', "must be '.' or ','"),
    "value of another type twice": (
        '[columns.a]\nkind = "categorical"\nvalues = ["1", 1]\n',
        "twice",
    ),
    "no values": ('[columns.a]\nkind = "categorical"\n', "at least one value"),
}


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_bad_schemas_are_refused(case: str, tmp_path: Path) -> None:
    text, words = BAD_SCHEMAS[case]
    (tmp_path / "s.toml").write_text(text)
    with refused(DataError, "s.toml") as caught:
        read_schema(tmp_path / "s.toml")
    assert words in str(caught.value)


def test_schemas_survive_the_round_trip() -> None:
    for name in PACKAGED:
        schema = packaged_schema(name)
        assert Schema.from_dict(schema.to_dict(), name) == schema
    columns: dict[str, Column] = {
        "n": Numeric(values=range(3), missing=(-99,)),
        "d": Date(format="%d.%m.%Y", values=["2024-01-31"]),
        "b": Boolean(values=(True, False)),
        "t": Text(values=["01", "1"], missing=("",)),
        "c": Categorical([True, 7, 0.5, "x"]),
        "s": Skip(),
    }
    schema = Schema(columns, name="all", person="id", rows_per_person=3, decimal=",")
    again = Schema.from_dict(tomllib.loads(tomli_w.dumps(schema.to_dict())), "all")
    assert again == schema
    values = again.columns["c"].values  # type: ignore[union-attr]
    assert [type(value) for value in values] == [bool, int, float, str]


def test_what_was_written_before_is_written_still() -> None:
    """A run's files hold declarations of columns; what is new and says nothing is left out."""
    columns: dict[str, Column] = {"n": Numeric(0, 1), "d": Date("2000-01-01", "2001-01-01")}
    written = Schema(columns).to_dict()
    assert written == {
        "columns": {
            "n": {"kind": "numeric", "lower": 0.0, "upper": 1.0, "scale": "linear", "missing": []},
            "d": {
                "kind": "date",
                "lower": "2000-01-01",
                "upper": "2001-01-01",
                "format": "%Y-%m-%d",
                "missing": [],
            },
        }
    }


def test_training_reads_categories_as_texts_and_truths_as_categories() -> None:
    schema = Schema({"c": Categorical([1, 0.5, True]), "b": Boolean(missing=True), "t": Text()})
    assert schema.features(but=set()) == {
        "c": Categorical(("1", "0.5", "True")),
        "b": Categorical(("False", "True"), missing=True),
    }
    assert schema.classes("c") == ("1", "0.5", "True")
    with pytest.raises(DataError, match="at least 2 values"):
        schema.target("t")


def test_ids_of_persons_are_no_feature() -> None:
    schema = Schema({"id": Categorical(("a", "b")), "n": Numeric(0, 1)}, person="id")
    assert list(schema.features(but=set())) == ["n"]


@pytest.mark.parametrize("column", [Numeric(), Date(), Numeric(values=(1, 2))])
def test_training_needs_a_range(column: Column) -> None:
    schema = Schema({"n": column, "m": Numeric(0, 1)}, name="s")
    with pytest.raises(DataError, match="schema s, column 'n': lower and upper are missing"):
        schema.features(but=set())
    assert list(schema.features(but={"n"})) == ["m"]
    with pytest.raises(DataError, match="lower and upper are missing"):
        schema.target("n")


def test_more_is_declared_in_place_of_what_was() -> None:
    schema = Schema({"n": Numeric(0, 1), "m": Numeric(0, 1)}, name="s", person="id")
    more = schema.declare({"n": Numeric(0, 9), "t": Text()}, rows_per_person=2)
    columns = {"n": Numeric(0, 9), "m": Numeric(0, 1), "t": Text()}
    assert more == Schema(columns, name="s", person="id", rows_per_person=2)
    assert schema.declare() == schema


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Schema("people"), "must map names to declarations"),  # type: ignore[arg-type]
        (lambda: Schema({"n": (0, 1)}), "declares no column"),  # type: ignore[dict-item]
        (lambda: Schema({3: Text()}), "declares no column"),  # type: ignore[dict-item]
        (lambda: Schema({}, person=""), "name of a column"),
        (lambda: Schema({}, decimal=";"), "must be"),
    ],
)
def test_schemas_are_checked_from_python(make: Callable[[], Schema], words: str) -> None:
    with pytest.raises(DataError, match=words):
        make()


@pytest.mark.parametrize("kind", ["numeric", "date", "categorical"])
def test_missing_is_true_or_a_list_of_markers(kind: str) -> None:
    ends = {"numeric": (0, 9), "date": ("2000-01-01", "2001-01-01")}.get(kind, ())
    column = {"kind": kind} | dict(zip(("lower", "upper"), ends, strict=False))
    column |= {"values": ["a"]} if kind == "categorical" else {}
    for given, found in ((True, ("",)), (False, ()), (["", "?"], ("", "?"))):
        schema = Schema.from_dict({"columns": {"x": column | {"missing": given}}}, "s")
        assert schema.columns["x"].missing == found  # type: ignore[union-attr]
        assert Schema.from_dict(schema.to_dict(), "s") == schema


PAY = Numeric(0.0, 9.0)
KINDS: dict[str, Column] = {
    "pay": PAY,
    "gaps": Numeric(0.0, 9.0, missing=("?",)),
    "town": Categorical(("north", "south")),
    "one": Categorical(("only",)),
    "note": Skip(),
}


def test_features_are_what_is_neither_skipped_nor_used_otherwise() -> None:
    schema = Schema(KINDS, name="s")
    assert list(schema.features(but={"town", "one"})) == ["pay", "gaps"]
    with pytest.raises(DataError, match="schema s: it declares no feature column"):
        schema.features(but=set(KINDS))


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("none", r"not declared in schema s; add \[columns.none\]"),
        ("gaps", "a row without a number to predict teaches nothing"),
        ("one", "at least 2 values"),
        ("note", "at least 2 values"),
    ],
)
def test_columns_that_cannot_be_learned(label: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Schema(KINDS, name="s").target(label)
    with pytest.raises(DataError, match=said):
        Schema(KINDS, name="s").classes(label)


def test_a_label_is_classes_or_the_range_of_a_number() -> None:
    schema = Schema(KINDS, name="s")
    assert schema.target("pay") is PAY
    assert schema.classes("town") == ("north", "south")
    with pytest.raises(DataError, match="one class cannot be learned"):
        schema.classes("pay")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Numeric(-1.0, 1.0, "log"), "amounts from 0 up"),
        (lambda: Numeric(0.0, 1.0, "lg"), "did you mean 'log'"),  # type: ignore[arg-type]
        (lambda: Numeric(0.0, float("inf")), "upper"),
        (lambda: Categorical(("a",), missing=("a",)), "none of them a missing marker"),
        (lambda: Numeric(lower=0.0), "upper"),
        (lambda: Date("2000-01-01"), "upper is missing"),
        (lambda: Categorical("ab"), "must be a list"),
        (lambda: Categorical([float("nan")]), "neither a text nor a number"),
        (lambda: Text(values=[b"a"]), "neither a text nor a number"),
        (lambda: Numeric(0.0, 1.0, missing="?"), "missing = '\\?': must be a list"),
    ],
)
def test_declarations_are_checked_from_python_too(make: Callable[[], Column], said: str) -> None:
    with pytest.raises(DataError, match=said):
        make()
