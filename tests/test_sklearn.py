"""apiece.sklearn: what scikit-learn asks of an estimator, but for what privacy forbids."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

import apiece.sklearn
from apiece.sklearn import Numeric, PrivateClassifier, PrivateRegressor

# NaN cells are declared, as the checks put some in; other rows are noise to them.
GIVEN: dict[str, Any] = {
    "columns": Numeric(-3, 3, missing=("",)),
    "epsilon": 50.0,
    "delta": 1e-5,
    "steps": 30,
    "strategy": "uniform",
}
CLASSES = "the classes are declared, not read from y, where one person's alone could be seen"
WEIGHTS = "a weight is a factor on the loss, whose gradient is clipped: above 1 it is refused"
EXPECTED_OF_ALL = {
    "check_sample_weights_list": WEIGHTS,
    "check_sample_weights_not_overwritten": WEIGHTS,
    "check_sample_weight_equivalence_on_dense_data": WEIGHTS,
}
EXPECTED = EXPECTED_OF_ALL | {
    "check_class_weight_classifiers": WEIGHTS,
    "check_classifiers_classes": CLASSES,
    "check_decision_proba_consistency": CLASSES,
    "check_classifiers_train": CLASSES,
    "check_dtype_object": CLASSES,
}
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class ClassesOfTheCheck(PrivateClassifier):
    """Declares the classes that each check brings, which nobody should do with people's rows."""

    def fit(self, X: Any, y: Any, **budgets: Any) -> PrivateClassifier:
        given, self.classes = self.classes, np.unique(y)
        try:
            return super().fit(X, y, **budgets)
        finally:
            self.classes = given


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        (PrivateClassifier([0, 1, 2], **GIVEN), EXPECTED),
        (PrivateRegressor(Numeric(-3, 3), **GIVEN), EXPECTED_OF_ALL),
    ],
    ids=["classifier", "regressor"],
)
def test_scikit_learn_s_checks(estimator: Any, expected: dict[str, str]) -> None:
    """All pass but those expected to fail, and those do fail."""
    found = check_estimator(
        estimator, expected_failed_checks=expected, on_skip=None, on_fail="raise"
    )
    failed = {each["check_name"] for each in found if each["status"] == "xfail"}
    assert failed == set(expected)


FEW = {"check_dtype_object", "check_classifiers_classes", "check_no_attributes_set_in_init"}
FEW |= {"check_fit2d_1feature", "check_estimators_overwrite_params", "check_n_features_in"}
FEW |= {
    "check_decision_proba_consistency",
    "check_estimators_unfitted",
    "check_parameters_default_constructible",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*sorted(FEW), pytest.param("check_classifiers_train", marks=pytest.mark.slow)]
)
def test_with_the_classes_of_each_check(name: str) -> None:
    """What is expected to fail passes where the check's own classes are declared."""
    estimator = ClassesOfTheCheck(**GIVEN)
    found = [
        (each, check)
        for each, check in estimator_checks_generator(estimator)
        if check.func.__name__ == name
    ]
    assert found
    for each, check in found:
        check(each)


def test_the_public_names() -> None:
    assert set(apiece.sklearn.__all__) == {
        "Account", "Categorical", "Date", "Numeric", "PrivateClassifier",
        "PrivateImageClassifier", "PrivateRegressor", "Schema", "Skip", "Spending",
    }  # fmt: skip
    assert all(hasattr(apiece.sklearn, name) for name in apiece.sklearn.__all__)


def test_without_scikit_learn_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import apiece.sklearn"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "pip install scikit-learn" in found.stderr.splitlines()[-1]
