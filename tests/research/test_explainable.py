"""What the benchmarks of the explainable estimators hand to each contender."""

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("sklearn")

from apiece.datasets import Categorical, Numeric
from apiece.datasets.pairs import count_features
from research.benchmarks.explainable_regression import Amounts, encode_categories, score
from research.benchmarks.pairs import declare_knots

COLUMNS = {"age": Numeric(0, 100), "town": Categorical(("Bonn", "Köln", "Trier"))}
ROWS = pd.DataFrame({"age": [-5.0, 50.0, 130.0], "town": ["Bonn", "Köln", "Trier"]})
TABLE = Amounts(ROWS, np.array([1.0, 4.0, 20.0]), COLUMNS, Numeric(0, 10))


def test_amounts_are_scaled_by_their_declared_range_and_clipped_to_it() -> None:
    np.testing.assert_allclose(TABLE.scale(), [-0.8, -0.2, 1.0])
    np.testing.assert_allclose(TABLE.unscale(np.array([-0.8, -0.2, 7.0])), [1.0, 4.0, 10.0])


@pytest.mark.parametrize(
    ("categories", "features"), [("every value", 4), ("all but the first", 3), ("none", 1)]
)
def test_features_lie_within_the_bounds_that_diffprivlib_is_given(
    categories: str, features: int
) -> None:
    found, lower, upper = encode_categories(TABLE, categories)
    assert found.shape == (3, features)
    assert ((found >= lower) & (found <= upper)).all()
    np.testing.assert_allclose(found[:, 0], [-1.0, 0.0, 1.0])
    if categories == "all but the first":
        np.testing.assert_allclose(found[:, 1:], [[0, 0], [1, 0], [0, 1]])


def test_a_mean_explains_nothing() -> None:
    y = np.array([1.0, 2.0, 6.0])
    assert score(y, np.full(3, 3.0)) == pytest.approx({"r2": 0.0, "rmse": (14 / 3) ** 0.5})


def test_knots_are_declared_for_the_numbers_of_pairs_alone() -> None:
    columns = {**COLUMNS, "weeks": Numeric(0, 52)}
    declared = declare_knots(columns, [("age", "town")], 4)
    assert declared["weeks"] == columns["weeks"]
    assert count_features(declared, [("age", "town")]) == (4 + 3 + 1) + 4 * 3
