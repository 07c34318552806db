"""PrivateClassifier: each record's own budget through scikit-learn's tools."""

import pickle

import numpy as np
import pytest
import sklearn
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer

from apiece.errors import InputError
from apiece.plan import BoundPlan
from apiece.sklearn import PrivateClassifier
from sample_estimators import COLUMNS, ROWS, classifier, features, people

LABELS = people()["label"]
EPSILON = np.where(np.arange(ROWS) % 2, 1.0, 3.0)


@pytest.fixture(scope="module")
def fitted() -> PrivateClassifier:
    return classifier().fit(features(), LABELS, epsilon=EPSILON)


def test_it_learns_at_each_record_s_own_budget(fitted: PrivateClassifier) -> None:
    assert fitted.score(features(), LABELS) > 0.85
    assert [group.epsilon for group in fitted.plan_.groups] == [1.0, 3.0]
    assert [p.records for p in fitted.promises_] == [ROWS // 2, ROWS // 2]
    assert all(0 < p.epsilon_spent <= p.epsilon for p in fitted.promises_)
    assert fitted.plan_.verify().ok


def test_probabilities_are_of_the_sorted_classes(fitted: PrivateClassifier) -> None:
    found = fitted.predict_proba(features())
    assert fitted.classes_.tolist() == ["old", "young"]
    assert np.allclose(found.sum(axis=1), 1)
    assert (fitted.classes_[found.argmax(axis=1)] == fitted.predict(features())).all()


@pytest.mark.parametrize("classes", [None, ["old"], ["old", "old"], []])
def test_classes_are_declared(classes: object) -> None:
    with pytest.raises(InputError, match="classes"):
        PrivateClassifier(classes, COLUMNS).fit(features(), LABELS, epsilon=1.0)


def test_a_class_that_nobody_has_is_a_class_all_the_same() -> None:
    """Which classes there are does not depend on the rows."""
    model = classifier(epsilon=1.0).set_params(classes=["young", "old", "new"])
    alike = model.fit(features(), np.full(ROWS, "old"))
    assert alike.predict_proba(features()).shape == (ROWS, 3)
    assert alike.score(features(), np.full(ROWS, "old")) > 0.9


def test_a_budget_is_asked_for() -> None:
    with pytest.raises(InputError, match="epsilon: missing"):
        classifier().fit(features(), LABELS)


def test_nothing_of_anybody_is_kept_or_printed(fitted: PrivateClassifier) -> None:
    marks = np.array([f"person 7310429-{i}" for i in range(ROWS)])
    model = classifier(epsilon=1.0).fit(features(), LABELS, people=marks)
    kept = pickle.dumps(model)
    assert b"7310429" not in kept
    assert "7310429" not in repr(model) + str(vars(model)) + str(model._repr_mimebundle_())
    assert not isinstance(model.plan_, BoundPlan)
    assert pickle.loads(kept).predict(features()).tolist() == model.predict(features()).tolist()


def test_a_person_s_rows_are_one_record() -> None:
    ids = np.arange(ROWS) // 2
    model = classifier(epsilon=1.0).fit(features(), LABELS, people=ids)
    assert (model.plan_.records, model.plan_.unit) == (ROWS // 2, "person")


def test_a_pipeline_passes_budgets_on() -> None:
    pipe = make_pipeline(FunctionTransformer(), classifier())
    pipe.fit(features(), LABELS, privateclassifier__epsilon=EPSILON)
    assert len(pipe[-1].plan_.groups) == 2


@pytest.mark.parametrize("ask", [True, False])
def test_metadata_is_routed(ask: bool) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        model = classifier()
        if ask:
            model.set_fit_request(epsilon=True, people=True)
        found = cross_validate(
            Pipeline([("as it is", FunctionTransformer()), ("model", model)]),
            features(),
            LABELS,
            params={"epsilon": EPSILON, "people": np.arange(ROWS)},
            cv=KFold(2),
            return_estimator=True,
            error_score="raise",
        )
        assert [pipe[-1].plan_.records for pipe in found["estimator"]] == [ROWS // 2] * 2
        model.set_fit_request(epsilon="price")
        Pipeline([("model", model)]).fit(features(), LABELS, price=EPSILON)


def test_a_search_fits_each_candidate_at_the_records_budgets() -> None:
    found = GridSearchCV(classifier(), {"learning_rate": [0.5, 2.0]}, cv=KFold(2), refit=False)
    found.fit(features(), LABELS, epsilon=EPSILON)
    assert len(found.cv_results_["params"]) == 2
    assert (found.cv_results_["mean_test_score"] > 0.7).all()


def test_what_is_not_fitted_predicts_nothing() -> None:
    for ask in ("predict", "predict_proba"):
        with pytest.raises(NotFittedError):
            getattr(classifier(), ask)(features())
    with pytest.raises(NotFittedError):
        _ = classifier().promises_


def test_it_is_as_good_as_without_privacy_where_budgets_are_large() -> None:
    X = features()[["age"]].to_numpy() / 100
    model = PrivateClassifier(
        ["young", "old"], classifier().columns["age"], epsilon=100.0, random_state=0
    )
    with pytest.warns(UserWarning, match="a promise is weak"):
        private = model.fit(100 * X, LABELS).score(100 * X, LABELS)
    assert private > LogisticRegression().fit(X, LABELS).score(X, LABELS) - 0.03
