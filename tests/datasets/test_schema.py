"""Public schemas: what declares no column is refused, and the rest survives its file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from apiece.datasets import Categorical, Numeric, Schema, Skip, packaged_schema, read_schema
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
        (lambda: Numeric(0.0, 1.0, missing="?"), "missing = '\\?': must be a list"),
    ],
)
def test_declarations_are_checked_from_python_too(make: Callable[[], Column], said: str) -> None:
    with pytest.raises(DataError, match=said):
        make()
