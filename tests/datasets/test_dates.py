"""Dates: the format is declared, each cell is read by itself, and what is none is faulty."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import Date, Schema
from apiece.datasets.encode import encode
from apiece.datasets.tables import read_table
from apiece.errors import DataError

BORN = Date("1900-01-01", "2000-01-01")


def feature(cells: Any, kind: Date = BORN) -> list[float]:
    return [float(v) for v in encode(pd.DataFrame({"born": cells}), {"born": kind}).features[:, 0]]


def test_days_are_scaled_to_the_declared_range() -> None:
    found = feature(["1900-01-01", "2000-01-01", "1950-01-01", "1066-10-14", "2024-02-29"])
    assert found[:2] == [-1, 1]
    assert found[3:] == [-1, 1]  # clipped
    assert found[2] == pytest.approx(0, abs=1e-4)


def test_times_of_day_and_zones_count() -> None:
    kind = Date("2024-01-01", "2024-01-02", "%Y-%m-%d %H:%M:%S%z")
    found = feature(["2024-01-01 12:00:00+0000", "2024-01-01 18:00:00+0600"], kind)
    assert found == [0, 0]


@pytest.mark.parametrize(
    "cell",
    ["", "01.05.1990", "1990-13-01", "1990-02-30", "90-05-01", "nan", "0", "١٩٩٠-05-01x", "1990"],
)
def test_what_is_no_such_date_makes_its_row_faulty_and_no_other(cell: str) -> None:
    frame = pd.DataFrame({"born": ["1990-05-01", cell, "1990-05-01"]})
    encoded = encode(frame, {"born": BORN})
    assert encoded.faulty.tolist() == [False, True, False]
    assert encoded.unread == {"born": 1}


def test_a_declared_marker_is_a_feature_of_its_own() -> None:
    kind = Date("1900-01-01", "2000-01-01", missing=("", "?"))
    encoded = encode(pd.DataFrame({"born": ["", "?", "2000-01-01"]}), {"born": kind})
    assert encoded.names == ("born", "born=(missing)")
    assert encoded.features.tolist() == [[0, 1], [0, 1], [1, 0]]


@settings(derandomize=True, max_examples=100, deadline=None)
@given(st.dates(), st.sampled_from(["%d.%m.%Y", "%Y%m%d", "%m/%d/%Y", "%Y-%j", "%Y-%m-%d"]))
def test_every_date_is_read_in_every_format(day: datetime.date, form: str) -> None:
    written = day.strftime(form.replace("%Y", f"{day.year:04d}"))
    kind = Date("0001-01-01", "9999-12-31", form)
    low, high = kind.days
    wanted = 2 * ((day - datetime.date(1970, 1, 1)).days - low) / (high - low) - 1
    assert feature([written], kind) == [pytest.approx(wanted, abs=1e-6)]


@pytest.mark.parametrize("kind", ["dates", "times", "times with a zone", "texts"])
def test_a_file_s_own_dates_need_no_format(kind: str, tmp_path: Path) -> None:
    days = [datetime.date(1950, 1, 1), datetime.date(2000, 1, 1), None]
    cells = {
        "dates": days,
        "times": pd.to_datetime(pd.Series(days)),
        "times with a zone": pd.to_datetime(pd.Series(days)).dt.tz_localize("UTC"),
        "texts": [None if d is None else d.isoformat() for d in days],
    }[kind]
    pd.DataFrame({"born": cells}).to_parquet(tmp_path / "t.parquet")
    odd = BORN if kind == "texts" else Date("1900-01-01", "2000-01-01", "%d.%m.%Y")
    encoded = encode(read_table(tmp_path / "t.parquet"), {"born": odd})
    assert encoded.faulty.tolist() == [False, False, True]
    assert encoded.features[1].tolist() == [1]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"lower": 1900}, "is no date"),
        ({"lower": "1.1.1900"}, "is no date"),
        ({"lower": datetime.datetime(1900, 1, 1, 12)}, "is no date"),
        ({"lower": "2000-01-01"}, "must be before"),
        ({"format": "%d.%m.%y"}, "four digits"),
        ({"format": "%d.%m.%%Y"}, "four digits"),
        ({"format": 7}, "four digits"),
        ({"format": "%d %B %Y"}, "%B is not taken"),
        ({"format": "%x %Y"}, "%x is not taken"),
        ({"format": "%Y%"}, "is not taken"),
        ({"upper": None}, "upper is missing"),
        ({"scale": "log"}, "unknown name 'scale'"),
    ],
)
def test_what_declares_no_dates_is_refused(declared: dict[str, Any], message: str) -> None:
    column = {"kind": "date", "lower": "1900-01-01", "upper": "2000-01-01", **declared}
    with pytest.raises(DataError, match=message):
        Schema.from_dict({"columns": {"born": column}}, "s")


def test_a_schema_comes_back_as_json_types() -> None:
    schema = Schema({"born": Date("1900-01-01", "2000-01-01", "%d.%m.%Y", ("",))}, name="s")
    again = Schema.from_dict(schema.to_dict(), "s")
    assert again == schema
    assert np.isfinite(again.features(but=set())["born"].days).all()  # type: ignore[union-attr]
