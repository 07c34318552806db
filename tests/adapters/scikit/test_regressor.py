"""PrivateRegressor: a number in a declared range."""

import numpy as np
import pytest
from sklearn.model_selection import KFold, cross_val_score

from apiece.errors import InputError
from apiece.sklearn import Numeric, PrivateRegressor
from sample_estimators import COLUMNS, ROWS, features, people, regressor

PAY = people()["pay"]
EPSILON = np.where(np.arange(ROWS) % 2, 2.0, 4.0)


def test_it_learns_at_each_record_s_own_budget() -> None:
    model = regressor().fit(features(), PAY, epsilon=EPSILON)
    assert model.score(features(), PAY) > 0.7
    assert [p.epsilon for p in model.promises_] == [2.0, 4.0]
    assert all(p.epsilon_spent <= p.epsilon for p in model.promises_)


@pytest.mark.filterwarnings(
    "ignore:model. until step:UserWarning"
)  # so fast that it learns nothing
def test_what_is_predicted_lies_in_the_declared_range() -> None:
    """Whatever is asked for, and whatever the rows were."""
    model = regressor(epsilon=4.0, learning_rate=5.0).fit(features(), 100 * PAY)
    found = model.predict(features())
    assert found.min() >= 0
    assert found.max() <= 300


def test_a_target_outside_the_range_counts_as_its_end() -> None:
    far, end = PAY.copy(), PAY.copy()
    far[3], end[3] = 1e30, 300.0
    first, second = (
        regressor(epsilon=1.0).fit(features(), y).predict(features()) for y in (far, end)
    )
    assert (first == second).all()


def test_a_long_tail_is_learned_on_its_logarithm() -> None:
    amount = np.expm1(PAY / 60)
    scores = {}
    for scale in ("linear", "log"):
        model = regressor(epsilon=4.0).set_params(target=Numeric(0, 150, scale=scale))
        found = model.fit(features(), amount).predict(features())
        scores[scale] = float(np.abs(np.log1p(found) - np.log1p(amount)).mean())
    assert scores["log"] < scores["linear"]


@pytest.mark.parametrize("target", [None, (0, 300), 300, "auto"])
def test_the_range_is_declared(target: object) -> None:
    with pytest.raises(InputError, match="target=Numeric"):
        PrivateRegressor(target, COLUMNS, epsilon=1.0).fit(features(), PAY)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_target_that_is_no_number_is_refused(value: float) -> None:
    y = PAY.copy()
    y[3] = value
    with pytest.raises(InputError, match="NaN or infinity"):
        regressor(epsilon=1.0).fit(features(), y)


def test_scikit_learn_s_tools_take_it() -> None:
    scores = cross_val_score(regressor(), features(), PAY, params={"epsilon": EPSILON}, cv=KFold(2))
    assert scores.min() > 0.5
