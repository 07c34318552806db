"""Labels are held against what was declared, and an estimator is not fitted by those that fail."""

import numpy as np
import pandas as pd
import pytest

from apiece.adapters.estimators import PrivateClassifier, PrivateImageClassifier
from apiece.adapters.fitting import encode_labels, read_classes
from apiece.datasets import Numeric
from apiece.errors import DataError


@pytest.mark.parametrize("make", [list, np.array, pd.Series])
@pytest.mark.parametrize("values", [["no", "yes", "no"], [2, 5, 2], [False, True, False]])
def test_codes_are_places_among_the_classes(make, values) -> None:
    classes = np.array(read_classes([values[1], values[0]]))
    assert encode_labels([[0]] * 3, make(values), classes).tolist() == [0, 1, 0]


def test_what_was_not_declared_is_counted() -> None:
    with pytest.raises(DataError, match="y: 2 of 3 labels are no declared class"):
        encode_labels([[0]] * 3, ["a", "x", "y"], np.array(["a", "b"]))


def test_numbers_with_a_fraction_are_no_labels() -> None:
    with pytest.raises(ValueError, match="continuous"):
        encode_labels([[0]] * 3, [0.5, 1.0, 2.0], np.array([0, 1]))


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (PrivateClassifier(["a", "b"], Numeric(0, 1), epsilon=1.0), np.zeros((200, 1))),
        (PrivateImageClassifier(["a", "b"], epsilon=1.0), np.zeros((200, 1, 8, 8), np.uint8)),
    ],
)
def test_labels_that_fail_leave_nothing_fitted(model, x) -> None:
    with pytest.raises(DataError):
        model.fit(x, ["x"] * 200)
    assert not hasattr(model, "classes_")
