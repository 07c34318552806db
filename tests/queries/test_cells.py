"""One cell at a time: what is stored becomes text in one way."""

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from apiece.queries.sources import convert_to_texts, text_of, write_texts


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("a", "a"), (7, "7"), (np.int8(7), "7"), (7.0, "7"), (-0.0, "0"), (0.5, "0.5"),
        (2.0**53, "9007199254740992.0"), (True, "true"), (np.bool_(False), "false"),
        (float("nan"), None), (float("inf"), "inf"), (10**400, None), (None, None), (pd.NA, None),
        (pd.NaT, None), (Decimal("7.00"), "7"), (Decimal("1E+2"), "100"), (Decimal("sNaN"), None),
        (Decimal("1" * 38), "1" * 38),
        (Decimal("1E+999999"), None), (date(2024, 2, 29), "2024-02-29"),
        (datetime(2024, 2, 29, 1, 2, 3), "2024-02-29 01:02:03"),
        (datetime(2024, 2, 29, tzinfo=UTC), "2024-02-29 00:00:00"),
        (pd.Timestamp("2024-02-29", tz="Asia/Tokyo"), "2024-02-28 15:00:00"),
        (pd.Timestamp("0001-01-01").tz_localize("Asia/Tokyo"), None),
        (b"a", None), ([1], None), (object(), None),
    ],
)  # fmt: skip
def test_cells_as_text(cell: object, text: str | None) -> None:
    assert text_of(cell) == text


@pytest.mark.parametrize("cells", [[], [float("nan")] * 3, [0.5, None], [True, False]])
def test_a_column_is_text_whatever_its_cells_hold(cells: list[object]) -> None:
    column = write_texts(cells)
    assert column.type == pa.large_string()
    assert column.to_pylist() == [text_of(cell) for cell in cells]
    stored = pa.chunked_array([pa.array(cells, pa.bool_() if True in cells else pa.float64())])
    assert convert_to_texts(stored).equals(column)
