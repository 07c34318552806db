"""Features come from declarations and from each row by itself."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator

from apiece.adapters.fitting import encode_for_prediction, read_features, read_frame
from apiece.errors import DataError, InputError
from apiece.sklearn import Categorical, Numeric, Schema, Skip

AGE = Numeric(0, 100)


def test_one_declaration_serves_all_columns() -> None:
    assert read_features(AGE, ["x0", "x1"]) == {"x0": AGE, "x1": AGE}


def test_a_schema_and_its_file_declare_the_same(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[columns.age]\nkind = "numeric"\nlower = 0\nupper = 100\n')
    wanted = {"age": AGE}
    assert read_features(path, ["age"]) == read_features(str(path), ["age"]) == wanted
    assert read_features(Schema(wanted), ["age"]) == wanted


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (None, "declare them"),
        ({"age": (0, 100)}, "declare them"),
        ([AGE], "declare them"),
        ({}, "'age', 'city' are not declared"),
        ({"age": AGE}, "'city' are not declared"),
        ({"age": AGE, "city": Skip(), "job": Skip()}, "'job' are declared, and not in X"),
        ({"age": Skip(), "city": Skip()}, "no feature column"),
    ],
)
def test_what_is_not_declared_is_refused(columns: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_features(columns, ["age", "city"])


@pytest.mark.parametrize("bounds", [(1, 1), (2, 1), (0, np.inf), (np.nan, 1)])
def test_a_range_is_one(bounds: tuple[float, float]) -> None:
    with pytest.raises(DataError):
        Numeric(*bounds)


@pytest.mark.parametrize("values", [(), ("a", "a"), ("?", "a")])
def test_categories_are_a_list_of_different_ones(values: tuple[str, ...]) -> None:
    with pytest.raises(DataError):
        Categorical(values, missing=("?",))


def test_columns_of_an_array_have_names() -> None:
    frame = read_frame(BaseEstimator(), [[1, 2], [3, 4]], reset=True)
    assert list(frame.columns) == ["x0", "x1"]
    assert encode_for_prediction(frame, read_features(Numeric(1, 3), ["x0", "x1"])).tolist() == [
        [-1, 0],
        [1, 1],
    ]


def test_a_table_of_another_kind_is_read_by_to_pandas() -> None:
    import pyarrow as pa

    table = pa.table({"age": [1.0], "city": ["Bonn"]})
    assert read_frame(BaseEstimator(), table, reset=True).to_dict("list") == {
        "age": [1.0],
        "city": ["Bonn"],
    }


@pytest.mark.filterwarnings("ignore:X. cells of no declared value:apiece.errors.StewardWarning")
def test_no_row_changes_the_features_of_another() -> None:
    columns = read_features({"age": AGE, "city": Categorical(("Bonn",))}, ["age", "city"])
    frame = pd.DataFrame({"age": [1.0, 50.0], "city": ["Bonn", "Köln"]})
    strange = pd.DataFrame({"age": [1e300, 50.0], "city": ["Rome", "Köln"]})
    assert (
        encode_for_prediction(strange, columns)[1].tolist()
        == encode_for_prediction(frame, columns)[1].tolist()
    )


@pytest.mark.parametrize("age", [np.nan, np.inf, "old", None])
def test_nothing_is_predicted_for_what_cannot_be_read(age: object) -> None:
    frame = pd.DataFrame({"age": pd.Series([1.0, age], dtype=object)})
    with pytest.raises(
        DataError, match=r"nothing can be predicted for 1 rows.*\(1 in 'age'\).*missing=True"
    ):
        encode_for_prediction(frame, {"age": AGE})
    if age in (None, "old") or age != age:
        marker = Numeric(0, 100, missing=("", "old"))
        assert encode_for_prediction(frame, {"age": marker})[1].tolist() == [0, 1]
