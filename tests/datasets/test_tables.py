"""Tables, schemas and encoding: nothing is learned from rows, nothing is silently mended."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import (
    PACKAGED,
    Categorical,
    Feature,
    Numeric,
    Schema,
    encode,
    encode_labels,
    load,
    packaged_schema,
    read_header,
    read_schema,
    read_table,
    template,
)
from apiece.datasets.packaged import matching
from apiece.errors import DataError, OptionError

DATA = Path(__file__).parents[2] / "src" / "apiece" / "datasets" / "data"


# Sizes and label shares as the data sets' publishers state them.
@pytest.mark.parametrize(
    ("name", "rows", "rare", "share"),
    [
        ("adult", 48842, ">50K", 0.2393),
        ("german", 1000, "bad", 0.3),
        ("credit_default", 30000, 1, 0.2212),
    ],
)
def test_packaged_tables_are_the_published_ones(
    name: str, rows: int, rare: object, share: float
) -> None:
    frame = load(name)
    assert len(frame) == rows
    assert float((frame[PACKAGED[name].label] == rare).mean()) == pytest.approx(share, abs=5e-5)


def test_adult_keeps_its_original_split() -> None:
    assert load("adult")["split"].value_counts().to_dict() == {"train": 32561, "test": 16281}


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_schemas_hold_every_row(name: str) -> None:
    """Declared ranges and categories come from documentation; here they meet the rows."""
    frame, schema, label = load(name), packaged_schema(name), PACKAGED[name].label
    assert set(schema.columns) == set(frame.columns) - {"split"}
    columns = schema.features(but={label})
    encoded = encode(frame, columns)
    assert not encoded.faulty.any()
    assert np.abs(encoded.features).max() <= 1
    start = 0
    for column, kind in columns.items():
        width = 1 if isinstance(kind, Numeric) else len(kind.values)
        width += bool(kind.missing)
        if isinstance(kind, Categorical):
            block = encoded.features[:, start : start + width]
            assert (block.sum(axis=1) == 1).all(), f"{column} has an undeclared value"
        else:
            assert frame[column].between(kind.lower, kind.upper).all(), column
        start += width
    encode_labels(frame, label, schema.classes(label))


def test_packaged_data_are_small() -> None:
    assert sum(path.stat().st_size for path in DATA.iterdir()) < 2_000_000


def test_unknown_packaged_name() -> None:
    with pytest.raises(OptionError, match="did you mean 'adult'"):
        load("adlt")


ROWS = st.lists(
    st.tuples(
        st.one_of(st.floats(allow_nan=True), st.just("?"), st.just("x")),
        st.sampled_from(["a", "b", "c", "", "?"]),
    ),
    min_size=2,
    max_size=8,
)
COLUMNS: dict[str, Feature] = {
    "x": Numeric(-5.0, 10.0, missing=("?",)),
    "y": Categorical(("a", "b"), missing=("?", "")),
}


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS)
def test_a_row_s_features_do_not_depend_on_other_rows(rows: list[tuple[object, str]]) -> None:
    frame = pd.DataFrame(rows, columns=["x", "y"]).astype({"x": object})
    together = encode(frame, COLUMNS).features
    alone = [encode(frame.iloc[[i]], COLUMNS).features[0] for i in range(len(frame))]
    np.testing.assert_array_equal(together, np.array(alone))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(ROWS)
def test_features_are_bounded_or_the_row_is_faulty(rows: list[tuple[object, str]]) -> None:
    frame = pd.DataFrame(rows, columns=["x", "y"]).astype({"x": object})
    encoded = encode(frame, COLUMNS)
    sound = encoded.features[~encoded.faulty]
    assert (np.abs(sound) <= 1).all()
    assert np.isnan(encoded.features[encoded.faulty]).all()


def test_encoding_by_hand() -> None:
    frame = pd.DataFrame({"x": ["10", "?", "nan", "99"], "y": ["a", "c", "b", ""]})
    encoded = encode(frame, COLUMNS)
    assert encoded.names == ("x", "x=(missing)", "y=a", "y=b", "y=(missing)")
    assert encoded.faulty.tolist() == [False, False, True, False]
    expected = [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [np.nan] * 5, [1, 0, 0, 0, 1]]
    np.testing.assert_array_equal(encoded.features, np.array(expected, dtype=np.float32))


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "csv.gz"])
def test_all_formats_encode_alike(suffix: str, tmp_path: Path) -> None:
    frame = load("german").head(50)
    path = tmp_path / f"g.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if suffix == "tsv" else ",")
    columns = packaged_schema("german").features(but={"risk"})
    expected = encode(frame, columns).features
    np.testing.assert_array_equal(encode(read_table(path), columns).features, expected)
    assert list(read_header(path)) == list(frame.columns)


def test_a_category_called_na_is_not_missing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("y\nNA\na\n")
    frame = read_table(tmp_path / "t.csv")
    encoded = encode(frame, {"y": Categorical(("NA", "a"))})
    assert encoded.features.tolist() == [[1, 0], [0, 1]]


def test_whole_numbers_match_however_written() -> None:
    labels = encode_labels(pd.DataFrame({"y": [1.0, 2.0, 1.0]}), "y", ("1", "2"))
    assert labels.tolist() == [0, 1, 0]
    assert encode_labels(pd.DataFrame({"y": ["01", "1"]}), "y", ("01", "1")).tolist() == [0, 1]


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
    "no values": ('[columns.a]\nkind = "categorical"\n', "at least one value"),
}


@pytest.mark.parametrize("case", BAD_SCHEMAS)
def test_bad_schemas_are_refused(case: str, tmp_path: Path) -> None:
    text, words = BAD_SCHEMAS[case]
    (tmp_path / "s.toml").write_text(text)
    with pytest.raises(DataError, match=r"s\.toml") as caught:
        read_schema(tmp_path / "s.toml")
    assert words in str(caught.value)


def test_schemas_survive_the_round_trip() -> None:
    for name in PACKAGED:
        schema = packaged_schema(name)
        assert Schema.from_dict(schema.to_dict(), name) == schema


@pytest.mark.parametrize(
    "change", [str.upper, lambda c: c.replace("_", "-"), lambda c: c.replace("_", ".")]
)
def test_a_packaged_schema_fits_other_spellings(change: Callable[[str], str]) -> None:
    names = [change(c) for c in load("adult").columns]
    found = matching([*names, "consent_epsilon"], change("income"))
    assert found is not None
    assert found[0].name == "adult"
    assert found[1][change("hours_per_week")] == "hours_per_week"


def test_no_packaged_schema_fits_by_chance() -> None:
    assert matching(["age", "income"], "income") is None
    assert matching(list(load("adult").columns), "education") is None


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_template_holds_no_value_of_any_row(suffix: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"secret col": ["tell-tale-1"] * 3, "n": [987654321] * 3, "y": ["zz"] * 3})
    path = tmp_path / f"t.{suffix}"
    frame.to_csv(path, index=False) if suffix == "csv" else frame.to_parquet(path)
    text = template("t", read_header(path), label="y", but=["budget"])
    assert set(tomllib.loads(text)["columns"]) == {"secret col", "n", "y"}
    for value in ("tell-tale-1", "987654321", "zz"):
        assert value not in text


def test_the_template_proposes_an_empty_cell_as_missing() -> None:
    header = {"n": "int64", "c": None, "s": "string", "b": "bool", "d": "timestamp[ns]", "y": None}
    columns = tomllib.loads(template("t", header, label="y", but=[]))["columns"]
    assert all(columns[name]["missing"] == [""] for name in header if name != "y")
    assert "missing" not in columns["y"]
    assert columns["d"]["kind"] == "date"
    skipped = {"columns": {**columns, "c": {"kind": "skip", "missing": [""]}}}
    for name, ends in (("n", (0, 9)), ("d", ("2000-01-01", "2020-01-01"))):
        skipped["columns"][name] |= dict(zip(("lower", "upper"), ends, strict=True))
    skipped["columns"]["y"]["values"] = ["no", "yes"]
    assert "c" not in Schema.from_dict(skipped, "t").features(but={"y"})


def test_an_unfilled_template_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(template("t", {"n": None, "y": None}, label="y", but=[]))
    with pytest.raises(DataError, match="kind"):
        read_schema(tmp_path / "s.toml")
