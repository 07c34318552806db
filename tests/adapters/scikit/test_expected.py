"""What users of scikit-learn expect: decision_function, coef_, weights, a word on pipelines."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from apiece.errors import FittedStepWarning, InputError
from apiece.sklearn import Numeric, PrivateClassifier, PrivateRegressor
from sample_estimators import ROWS, classifier, features, people, regressor

LABELS = people()["label"]
LINES = {"age": Numeric(0, 100), "height": Numeric(100, 220)}


def lines() -> pd.DataFrame:
    height = np.random.default_rng(1).uniform(100, 220, ROWS)
    return features()[["age"]].assign(height=height)


def test_the_decision_is_the_log_odds() -> None:
    model = classifier(epsilon=4.0).fit(features(), LABELS)
    probability = model.predict_proba(features())
    odds = np.log(probability[:, 1] / probability[:, 0])
    np.testing.assert_allclose(model.decision_function(features()), odds, atol=1e-9)


def test_of_three_classes_it_is_a_score_each() -> None:
    model = classifier(epsilon=4.0).set_params(classes=["old", "young", "unborn"])
    scores = model.fit(features(), LABELS).decision_function(features())
    assert scores.shape == (ROWS, 3)
    assert (model.classes_[scores.argmax(axis=1)] == model.predict(features())).all()


def test_coefficients_are_in_the_units_of_the_columns() -> None:
    model = PrivateClassifier(
        ["young", "old"], LINES, epsilon=8.0, curves=0, delta=1e-4, random_state=0
    ).fit(lines(), LABELS)
    decision = lines().to_numpy() @ model.coef_[0] + model.intercept_[0]
    np.testing.assert_allclose(model.decision_function(lines()), decision, atol=1e-6)
    amount = PrivateRegressor(
        Numeric(0, 300), LINES, epsilon=8.0, curves=0, delta=1e-4, random_state=0
    ).fit(lines(), people()["pay"])
    predicted = lines().to_numpy() @ amount.coef_ + amount.intercept_
    np.testing.assert_allclose(amount.predict(lines()), np.clip(predicted, 0, 300), atol=1e-4)


def test_there_are_no_coefficients_of_categories_curves_and_layers() -> None:
    models = [classifier(epsilon=4.0).fit(features(), LABELS)]
    for settings in ({"curves": 4}, {"hidden": (2,)}):
        options = {"epsilon": 4.0, "steps": 5, "delta": 1e-4} | settings
        models.append(PrivateClassifier(["young", "old"], LINES, **options).fit(lines(), LABELS))
    for model in models:
        assert not hasattr(model, "coef_")
        assert not hasattr(model, "intercept_")


def test_a_row_of_weight_zero_teaches_nothing() -> None:
    """Without noise to speak of: wrong labels of weight 0 leave the model as good."""
    wrong = np.arange(ROWS) % 3 != 0
    y = LABELS.where(~wrong, LABELS.map({"old": "young", "young": "old"}))
    weights = pd.Series(np.where(wrong, 0.0, 1.0))
    unweighted = classifier(epsilon=10.0).fit(features(), y)
    weighted = classifier(epsilon=10.0).fit(features(), y, sample_weight=weights)
    assert unweighted.score(features(), LABELS) < 0.3
    assert weighted.score(features(), LABELS) > 0.8
    pay = people()["pay"].where(~wrong, 0.0)
    amount = regressor(epsilon=10.0).fit(features(), pay, sample_weight=weights)
    assert amount.score(features(), people()["pay"]) > 0.6


@pytest.mark.parametrize("weight", [0.0, 0.01, 1.0])
def test_a_weighted_row_moves_the_model_by_the_clip_norm_at_most(weight: float) -> None:
    y = LABELS.copy()
    y[3] = "old" if y[3] == "young" else "young"
    weights = np.ones(ROWS)
    weights[3] = weight
    settings = {"steps": 1, "batch_size": ROWS, "learning_rate": 2.0, "strategy": "uniform"}
    gap = 0.0
    fits = [classifier(epsilon=1.0, **settings) for _ in range(2)]
    fits[0].fit(features(), LABELS, sample_weight=weights)
    fits[1].fit(features(), y, sample_weight=weights)
    first, second = (list(model.network_.parameters()) for model in fits)
    gap = sum(float((a - b).detach().square().sum()) for a, b in zip(first, second, strict=True))
    bound = 2.0 * 2 * fits[0].plan_.clip_norm / ROWS * (1 + 1e-4)
    assert gap**0.5 <= bound * (weight > 0) * max(weight * 10, 0.1)


def test_the_weight_of_a_class_moves_its_share() -> None:
    shares = []
    for weights in (None, {"old": 0.1}):
        model = classifier(epsilon=10.0, class_weight=weights).fit(features(), LABELS)
        shares.append((model.predict(features()) == "old").mean())
    assert shares[1] < shares[0] - 0.1


@pytest.mark.parametrize(
    ("weights", "message"),
    [([1.5] * ROWS, "not in"), ([0.0] * ROWS, "zero"), ([-0.1] * ROWS, "not in"), ([1.0], "shape")],
)
def test_weights_that_are_no_factors_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        classifier(epsilon=1.0).fit(features(), LABELS, sample_weight=weights)


@pytest.mark.parametrize("weights", ["balanced", {"old": 2.0}, {"ancient": 0.5}, [1.0, 0.5]])
def test_weights_of_classes_are_declared(weights: object) -> None:
    with pytest.raises(InputError, match="class_weight"):
        classifier(epsilon=1.0, class_weight=weights).fit(features(), LABELS)


@pytest.mark.parametrize(
    ("step", "warns"),
    [
        (StandardScaler(), True),
        (FunctionTransformer(), False),
        (Normalizer(), False),
        ("passthrough", False),
        (ColumnTransformer([("a", FunctionTransformer(), [0]), ("b", "passthrough", [1])]), False),
        (ColumnTransformer([("a", StandardScaler(), [0]), ("b", "passthrough", [1])]), True),
    ],
)
def test_a_step_that_learned_is_named(step: object, warns: bool) -> None:
    model = PrivateClassifier(["young", "old"], Numeric(-3, 3), epsilon=1.0, steps=2, delta=1e-4)
    pipeline = make_pipeline(step, model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipeline.fit(lines().to_numpy(), LABELS.to_numpy())
    found = [entry for entry in caught if entry.category is FittedStepWarning]
    assert len(found) == warns


def test_defaults_depend_on_public_numbers_alone() -> None:
    """Other rows and labels, and the same counts and budgets: the same settings."""
    settings = []
    for labels in (LABELS, LABELS[::-1].reset_index(drop=True)):
        model = classifier(epsilon=2.0, random_state=None).fit(features(), labels)
        settings.append((model.curves_, model.run_.kept.settings, model.plan_.to_json()))
    assert settings[0][:2] == settings[1][:2]
    assert settings[0][2] == settings[1][2]


def test_the_chosen_rate_leaves_the_noise_that_it_is_chosen_for() -> None:
    model = classifier(epsilon=1.0).fit(features(), LABELS)
    noise = model.effects(["age"])["noise"].iloc[0]
    assert noise == pytest.approx(0.3 * 2**0.5)  # of log odds: a difference of two weights
    exact = classifier(epsilon=10.0, steps=5, batch_size=ROWS, strategy="uniform").fit(
        features(), LABELS
    )
    assert exact.effects(["age"])["noise"].iloc[0] <= noise * (1 + 1e-9)
    strict = classifier(epsilon=0.1).fit(features(), LABELS)
    assert exact.curves_ > strict.curves_ == 0
