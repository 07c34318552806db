"""`PrivateClassifier(method="pate")`: a student behind scikit-learn's fit and predict."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

from apiece.errors import InputError
from apiece.sklearn import Account, Numeric, PrivateClassifier

RANDOM = np.random.default_rng(0)
X = RANDOM.random((600, 2))
Y = np.where(X[:, 0] > 0.5, "yes", "no")
EPSILON = np.repeat([2.0, 6.0], 300)
MODEL = PrivateClassifier(
    ["no", "yes"], Numeric(0, 1), delta=1e-4, method="pate", public=RANDOM.random((80, 2)),
    teachers=20, questions=40, steps=30, random_state=0,
)  # fmt: skip


def test_a_student_learns_and_promises_are_kept() -> None:
    model = clone(MODEL).fit(X, Y, epsilon=EPSILON)
    assert model.score(X, Y) > 0.8
    assert [p.epsilon for p in model.promises_] == [2.0, 6.0]
    assert all(0.99 * p.epsilon <= p.epsilon_spent <= p.epsilon for p in model.promises_)
    assert model.plan_.strategy == "weight"
    assert model.plan_.unit == "record"


@pytest.mark.parametrize("strategy", ["uniform", "upsample", "weight"])
def test_tables_strategies_checks_and_persons(strategy: str) -> None:
    frame, public = (pd.DataFrame(rows, columns=["a", "b"]) for rows in (X, MODEL.public))
    model = clone(MODEL).set_params(
        public=public, strategy=strategy, threshold=0.5, semi_supervised=True, steps=5
    )
    model.fit(frame, Y, epsilon=4.0, people=np.arange(600) // 2)
    assert model.plan_.unit == "person"
    assert model.plan_.records == 300
    assert [stage.steps for stage in model.plan_.stages] == [40, 40]


def test_what_several_fits_spend_adds_up() -> None:
    account = Account()
    model = clone(MODEL).set_params(account=account, steps=3)
    cross_val_score(model, X, Y, cv=3, params={"epsilon": EPSILON})
    strict, _ = account.together()
    assert len(account) == 3
    assert strict.epsilon_spent > 3


@pytest.mark.filterwarnings("ignore::apiece.errors.StewardWarning")
def test_a_row_that_cannot_be_read_teaches_nothing() -> None:
    model = clone(MODEL).set_params(steps=10)
    holes = X.copy()
    holes[7] = np.nan
    assert np.isfinite(model.fit(holes, Y, epsilon=EPSILON).predict_proba(X)).all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"teachers": None}, "teachers: missing"),
        ({"public": None}, "public: missing"),
        ({"method": "pat"}, "did you mean 'pate'"),
        ({"method": "dp-sgd"}, "teachers: is for PATE; give method='pate' too"),
        ({"method": "dp-sgd", "teachers": None}, "public: is for PATE"),
        ({"teachers": 601}, "there are 600 records"),
        ({"questions": 81}, "80 inputs for 81 questions"),
        ({"strategy": "scale"}, "unknown name 'scale'"),
        ({"rows_per_person": 3}, "rows_per_person: is for DP-SGD"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"threshold": 1.5}, "threshold"),
    ],
)
def test_bad_parameters_are_one_clear_line(change: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        clone(MODEL).set_params(**change).fit(X, Y, epsilon=EPSILON)
    assert "\n" not in str(error.value)


def test_public_rows_have_the_columns_of_x() -> None:
    with pytest.raises(ValueError, match="1 features"):
        clone(MODEL).set_params(public=X[:80, :1]).fit(X, Y, epsilon=EPSILON)
