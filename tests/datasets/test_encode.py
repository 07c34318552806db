"""Encoding: nothing is learned from rows, nothing is silently mended."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import Categorical, Date, Numeric
from apiece.datasets.encode import (
    Encoded,
    encode,
    encode_labels,
    encode_numbers,
    name_features,
    scale,
    unscale,
)
from apiece.datasets.schema import Feature
from apiece.datasets.tables import read_table
from apiece.errors import DataError

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


GAPS: dict[str, Feature] = {
    "x": Numeric(-5.0, 10.0, missing=True),
    "day": Date("2000-01-01", "2020-01-01", missing=True),
    "y": Categorical(("a", "b"), missing=True),
}
WITH_GAPS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.just(float("nan")), st.floats(-20, 20)),
        st.sampled_from([None, "2001-05-06", "2019-01-01", pd.NaT]),
        st.sampled_from([None, "a", "b", "c", float("nan")]),
    ),
    min_size=2,
    max_size=8,
)


def hold_gaps(encoded_by: Callable[..., Encoded], rows: list[tuple[object, ...]]) -> None:
    """Check that a gap is an indicator and the middle of the scale, whatever the other rows say."""
    frame = pd.DataFrame(rows, columns=list(GAPS)).astype(object)
    encoded, empty = encoded_by(frame, GAPS), frame.isna().to_numpy()
    assert not encoded.faulty.any()
    place = {name: k for k, name in enumerate(encoded.names)}
    indicators = encoded.features[:, [place[f"{name}=(missing)"] for name in GAPS]]
    np.testing.assert_array_equal(indicators, empty)
    assert (encoded.features[:, [place["x"], place["day"]]][empty[:, :2]] == 0).all()
    alone = [encoded_by(frame.iloc[[i]], GAPS).features[0] for i in range(len(frame))]
    np.testing.assert_array_equal(encoded.features, np.array(alone))


@settings(derandomize=True, max_examples=50, deadline=None)
@given(WITH_GAPS)
def test_gaps_are_an_indicator_and_a_number_that_no_row_has_a_say_in(
    rows: list[tuple[object, ...]],
) -> None:
    hold_gaps(encode, rows)


def test_a_fill_that_is_learned_from_rows_is_caught() -> None:
    """The planted break: the mean of the numbers that there are, in place of the middle."""

    def learned(frame: pd.DataFrame, columns: dict[str, Feature]) -> Encoded:
        encoded, given = encode(frame, columns), pd.to_numeric(frame["x"])
        encoded.features[given.isna().to_numpy(), 0] = scale(given.fillna(0), GAPS["x"]).mean()  # type: ignore[arg-type]
        return encoded

    rows = [(1.0, None, "a"), (None, "2001-05-06", None), (4.0, None, None)]
    hold_gaps(encode, rows)
    with pytest.raises(AssertionError):
        hold_gaps(learned, rows)


def test_gaps_in_a_file_are_those_of_a_frame(tmp_path: Path) -> None:
    frame = pd.DataFrame({"x": [1.0, None], "day": ["2001-05-06", None], "y": [None, "b"]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    expected = encode(frame, GAPS).features
    for name in ("t.csv", "t.parquet"):
        found = encode(read_table(tmp_path / name), GAPS)
        np.testing.assert_array_equal(found.features, expected)


def test_encoding_by_hand() -> None:
    frame = pd.DataFrame({"x": ["10", "?", "nan", "99"], "y": ["a", "c", "b", ""]})
    encoded = encode(frame, COLUMNS)
    assert encoded.names == ("x", "x=(missing)", "y=a", "y=b", "y=(missing)")
    assert encoded.faulty.tolist() == [False, False, True, False]
    expected = [[1, 0, 1, 0, 0], [0, 1, 0, 0, 0], [np.nan] * 5, [1, 0, 0, 0, 1]]
    np.testing.assert_array_equal(encoded.features, np.array(expected, dtype=np.float32))


def test_whole_numbers_match_however_written() -> None:
    labels = encode_labels(pd.DataFrame({"y": [1.0, 2.0, 1.0]}), "y", ("1", "2"))
    assert labels.tolist() == [0, 1, 0]
    assert encode_labels(pd.DataFrame({"y": ["01", "1"]}), "y", ("01", "1")).tolist() == [0, 1]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.floats(0, 1e6), st.floats(1e-3, 1e6), st.sampled_from(["linear", "log"]), st.floats(0, 1))
def test_what_is_scaled_comes_back(lower: float, width: float, scale_: str, at: float) -> None:
    kind = Numeric(lower, lower + width, scale_)  # type: ignore[arg-type]
    value = np.array([kind.lower + at * (kind.upper - kind.lower)])
    there = scale(value, kind)
    assert (np.abs(there) <= 1).all()
    assert unscale(there, kind) == pytest.approx(value, rel=1e-9, abs=1e-9 * width)
    outside = np.array([lower - 1, lower + 2 * width])
    assert scale(outside, kind).tolist() == [-1, 1]
    assert unscale(np.array([-7.0, 7.0]), kind) == pytest.approx([kind.lower, kind.upper])


def test_there_is_a_name_for_each_feature() -> None:
    assert name_features(COLUMNS) == ("x", "x=(missing)", "y=a", "y=b", "y=(missing)")
    frame = pd.DataFrame({"x": ["1"], "y": ["a"]})
    assert encode(frame, COLUMNS).features.shape == (1, 5)


def test_counts_of_what_was_read_otherwise_than_meant() -> None:
    frame = pd.DataFrame({"x": ["11", "-6", "inf", "?", "z"], "y": ["a", "q", "?", "", "b"]})
    found = encode(frame, COLUMNS)
    assert found.unread == {"x": 2, "y": 1}
    assert found.outside == {"x": 3}
    with pytest.raises(DataError, match="'x'"):
        encode(frame[["y"]], COLUMNS)


@pytest.mark.parametrize(("cell", "said"), [("Yes", "case matters"), ("maybe", "mend the row")])
def test_a_label_that_is_not_declared_is_refused_by_its_row(cell: str, said: str) -> None:
    frame = pd.DataFrame({"y": ["no", "yes", cell, cell]})
    with pytest.raises(DataError, match=rf"row 3 = '{cell}'.*2 such rows.*{said}"):
        encode_labels(frame, "y", ("no", "yes"))


def test_numbers_to_predict_are_all_numbers() -> None:
    frame = pd.DataFrame({"pay": ["1,5", "-2"]})
    assert encode_numbers(frame, "pay", decimal=",").tolist() == [1.5, -2]
    for bad in ("x", "inf", "nan", ""):
        with pytest.raises(DataError, match=r"row 2 .*no finite number \(1 such"):
            encode_numbers(pd.DataFrame({"pay": ["1", bad]}), "pay")
