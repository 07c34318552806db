"""Cells follow from what is declared; rules hold of every row; nothing follows from rows."""

import datetime

import numpy as np
import pandas as pd
import pytest

from apiece.datasets import Boolean, Categorical, Date, Numeric, Schema, Skip, Text
from apiece.errors import DataError, InputError
from apiece.synthesis.domain import Domain

SCHEMA = Schema(
    {
        "age": Numeric(0, 100),
        "rate": Numeric(0.0, 1.5, missing=True),
        "income": Numeric(0, 1_000_000, scale="log"),
        "town": Categorical(("A", "B"), missing=("?",)),
        "married": Boolean(),
        "day": Date("2000-01-01", "2001-12-31"),
        "code": Numeric(values=(1, 2, 5)),
        "note": Text(),
        "other": Skip(),
        "id": Text(),
    },
    person="id",
)


def make_frame(rows=300, seed=0):
    g = np.random.default_rng(seed)
    first = datetime.date(2000, 1, 1)
    return pd.DataFrame(
        {
            "age": g.integers(0, 101, rows),
            "rate": np.where(g.random(rows) < 0.2, np.nan, g.random(rows) * 1.5),
            "income": np.exp(g.random(rows) * 13),
            "town": g.choice(["A", "B", "?"], rows),
            "married": g.random(rows) < 0.5,
            "day": [first + datetime.timedelta(days=int(d)) for d in g.integers(0, 731, rows)],
            "code": g.choice([1, 2, 5], rows),
            "note": "x",
            "other": 1,
            "id": np.arange(rows),
        }
    )


def test_cells_there_and_back() -> None:
    domain = Domain.from_schema(SCHEMA, bins={"age": 10, "rate": [0.5, 1.0], "income": 8})
    assert domain.names == ("age", "rate", "income", "town", "married", "day", "code")
    assert domain.sizes == (10, 4, 8, 3, 2, 16, 3)
    frame = make_frame()
    codes, faulty = domain.encode(frame)
    assert not faulty.any()
    decoded = domain.decode(codes, np.random.default_rng(1))
    again, faulty = domain.encode(decoded)
    assert not faulty.any()
    np.testing.assert_array_equal(again, codes)
    assert decoded["age"].dtype == "int64"
    assert decoded["age"].between(0, 100).all()
    assert set(decoded["married"]) == {True, False}
    assert isinstance(decoded["day"][0], datetime.date)


def test_labels_say_what_a_cell_holds() -> None:
    domain = Domain.from_schema(Schema({"age": Numeric(0, 9), "x": Numeric(0, 1.5)}), bins=2)
    assert domain.columns[0].labels == ("0 to 4", "5 to 9") or domain.columns[0].labels == (
        "0 to 3",
        "4 to 9",
    )
    assert domain.columns[1].labels == ("0 to 0.75", "0.75 to 1.5")


RULES = ["age < 18 and married = true", "age >= 97 and town = A", "rate > 0.7 and rate is missing"]


def test_a_rule_cuts_bins_and_holds_of_every_row() -> None:
    domain = Domain.from_schema(SCHEMA, bins=7, rules=RULES[:2])
    assert 18.0 in domain.columns[0].edges
    assert 97.0 in domain.columns[0].edges
    frame = make_frame()
    _, faulty = domain.encode(frame)
    broken = (frame["age"] < 18) & frame["married"] | (frame["age"] >= 97) & (frame["town"] == "A")
    np.testing.assert_array_equal(faulty, broken)


@pytest.mark.parametrize("operator", ["<", "<=", ">", ">="])
@pytest.mark.parametrize("value", ["0", "50", "99.5", "100"])
def test_thresholds_are_exact(operator, value) -> None:
    domain = Domain.from_schema(SCHEMA, bins=7, rules=[f"age {operator} {value} and town = A"])
    frame = make_frame()
    _, faulty = domain.encode(frame)
    age = frame["age"]
    meant = {
        "<": age < float(value), "<=": age <= float(value),
        ">": age > float(value), ">=": age >= float(value),
    }[operator]  # fmt: skip
    np.testing.assert_array_equal(faulty, meant & (frame["town"] == "A"))


def test_cells_of_a_row_follow_from_that_row_alone() -> None:
    """200 pairs of neighbouring tables: the domain is one, and so are all other rows' cells."""
    frame = make_frame(240)
    # Cells that nobody should have: unreadable, out of range, undeclared.
    frame = frame.astype(object)
    frame.loc[3, "age"] = "old"
    frame.loc[5, "age"] = 1e9
    frame.loc[7, "town"] = "C"
    frame.loc[9, "rate"] = "inf"
    domain = Domain.from_schema(SCHEMA, rules=RULES[:2])
    codes, faulty = domain.encode(frame)
    for row in range(200):
        neighbour = frame.drop(index=row)
        public = Domain.from_schema(SCHEMA, rules=RULES[:2])
        assert public.to_dict() == domain.to_dict()
        if row % 10 == 0 or row < 12:
            others, others_faulty = domain.encode(neighbour)
            keep = np.arange(len(frame)) != row
            np.testing.assert_array_equal(others, codes[keep])
            np.testing.assert_array_equal(others_faulty, faulty[keep])
    assert faulty[[3, 7, 9]].all()


@pytest.mark.parametrize(
    ("rules", "bins", "message"),
    [
        (["age 18"], 8, "no condition"),
        (["height < 3"], 8, "no column 'height'"),
        (["age = 18"], 8, "has bins"),
        (["town = C"], 8, "no declared value"),
        (["age is missing"], 8, "may be missing"),
        (["age >= 0"], 8, "leave no row possible"),
        (["town < 3"], 8, "compares numbers"),
        (["age < x and town = A"], 8, "no value of its kind"),
        ([], {"age": [5, 3]}, "must rise"),
        ([], {"town": 3}, "no column of numbers"),
        ([], 0, "bins of"),
    ],
)
def test_refusals(rules, bins, message) -> None:
    with pytest.raises(InputError, match=message):
        Domain.from_schema(SCHEMA, bins=bins, rules=rules)


def test_a_range_or_values_are_needed() -> None:
    with pytest.raises(DataError, match="lower and upper are missing"):
        Domain.from_schema(Schema({"age": Numeric()}))
    with pytest.raises(DataError, match="no column to synthesize"):
        Domain.from_schema(Schema({"note": Text()}))
