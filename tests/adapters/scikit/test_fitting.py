"""What comes of a fit: bounded by each record's clip norm, repeatable by a seed, noted first."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from apiece.errors import InputError, StewardWarning
from apiece.sklearn import Account, Numeric, PrivateClassifier, PrivateRegressor
from sample_estimators import COLUMNS, ROWS, classifier, features, people, regressor

RATE = 2.0


def parameters(model: PrivateClassifier | PrivateRegressor) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.network_.parameters()])


def moved(first: object, second: object) -> float:
    """How far apart the parameters of two fitted estimators are."""
    return float((parameters(first) - parameters(second)).norm())  # type: ignore[arg-type]


STRANGE = {
    "far": (1e30, "Bonn"),
    "infinite": (-np.inf, "Köln"),
    "missing": (np.nan, ""),
    "unknown": (50.0, "a city that nobody declared"),
}


@pytest.mark.filterwarnings("ignore::apiece.errors.StewardWarning")
@pytest.mark.parametrize("row", STRANGE.values(), ids=STRANGE)
def test_a_record_moves_the_model_by_its_clip_norm_at_most(row: tuple[float, str]) -> None:
    """Same coins and noise: the sums of a step differ by twice the clip norm."""
    labels = people()["label"]
    model = {"steps": 1, "batch_size": ROWS, "learning_rate": RATE, "strategy": "uniform"}
    other, label = features().copy(), labels.copy()
    other.loc[3] = row
    label[3] = "young" if label[3] == "old" else "old"
    first = classifier(epsilon=1.0, **model).fit(features(), labels)
    second = classifier(epsilon=1.0, **model).fit(other, label)
    assert 0 < moved(first, second) <= RATE * 2 * first.plan_.clip_norm / ROWS * (1 + 1e-4)


@pytest.mark.filterwarnings("ignore:20 records")
def test_a_person_moves_the_model_by_the_clip_norm_whatever_they_hold() -> None:
    ids = np.arange(ROWS) // 20
    other = features().copy()
    other.loc[ids == 4, "age"] = 1e30
    first, second = (
        classifier(
            epsilon=1.0, steps=1, batch_size=20, learning_rate=RATE, strategy="uniform"
        ).fit(frame, people()["label"], people=ids)
        for frame in (features(), other)
    )  # fmt: skip
    assert 0 < moved(first, second) <= RATE * 2 * first.plan_.clip_norm / 20 * (1 + 1e-4)


@pytest.mark.filterwarnings("ignore::apiece.errors.StewardWarning")
def test_a_faulty_row_takes_nothing_from_its_person_s_others() -> None:
    """Without noise to speak of: half of everybody's rows are faulty, and the others teach."""
    frame, labels = features().copy(), people()["label"]
    order = np.argsort(frame["age"].to_numpy(), kind="stable")
    frame, labels = frame.iloc[order].reset_index(drop=True), labels.iloc[order].to_numpy()
    frame.loc[::2, "age"] = np.nan
    model = classifier(epsilon=4.0, batch_size=200).fit(frame, labels, people=np.arange(ROWS) // 2)
    good = frame["age"].notna().to_numpy()
    assert model.plan_.records == ROWS // 2
    assert model.score(frame[good], labels[good]) > 0.8


@pytest.mark.filterwarnings("ignore::apiece.errors.FittedStepWarning")
def test_what_learns_before_the_estimator_breaks_this() -> None:
    """The control: a scaler that learns lets one record move everybody's features."""
    X, y = np.random.default_rng(0).normal(size=(200, 2)), np.tile([0, 1], 100)
    far = X.copy()
    far[0] = 1e6
    gap = {}
    for name, scaler in (("learns", StandardScaler()), ("does not", FunctionTransformer())):
        fitted = [
            make_pipeline(
                scaler,
                PrivateClassifier(
                    [0, 1], Numeric(-3, 3), epsilon=1.0, steps=1, batch_size=200,
                    learning_rate=RATE, strategy="uniform", random_state=0, delta=1e-4,
                ),
            ).fit(each, y)[-1]
            for each in (X, far)
        ]  # fmt: skip
        gap[name] = moved(*fitted)
    assert gap["does not"] <= RATE * 2 / 200 * (1 + 1e-4) < gap["learns"]


def test_a_seed_repeats_a_fit_and_its_absence_does_not() -> None:
    labels = people()["label"]
    model = classifier(epsilon=1.0)
    first, again = (parameters(model.fit(features(), labels)) for _ in range(2))
    assert torch.equal(first, again)
    drawn = [
        parameters(classifier(epsilon=1.0, random_state=seed).fit(features(), labels))
        for seed in (None, None, np.random.RandomState(0))
    ]
    assert not torch.equal(drawn[0], drawn[1])


@pytest.mark.parametrize("account", [[], "fits", Account])
def test_an_account_is_one(account: object) -> None:
    with pytest.raises(InputError, match=r"give an apiece\.sklearn\.Account"):
        regressor(epsilon=1.0, account=account).fit(features(), people()["pay"])


def test_a_fit_is_noted_before_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("apiece.training.trainer.Trainer.fit", interrupted)
    account = Account()
    with pytest.raises(KeyboardInterrupt):
        classifier(epsilon=1.0, account=account).fit(features(), people()["label"])
    assert len(account) == 1


def test_a_fit_that_is_refused_costs_nothing() -> None:
    account = Account()
    model = classifier(epsilon=1.0, account=account)
    for wrong in (people()["label"].replace("old", "ancient"), people()["label"][:-1]):
        with pytest.raises(ValueError):
            model.fit(features(), wrong)
    assert len(account) == 0


def test_columns_at_prediction_are_those_of_the_fit() -> None:
    model = classifier(epsilon=1.0).fit(features(), people()["label"])
    for wrong in (features()[["age"]], features()[["city", "age"]], pd.DataFrame({"x": [1.0]})):
        with pytest.raises(ValueError, match="feature names"):
            model.predict(wrong)


def _spoilt() -> pd.DataFrame:
    frame = features().copy()
    frame.loc[:4, "age"] = np.nan
    frame.loc[7, "age"] = np.inf
    frame["city"] = frame["city"].astype(object)
    frame.loc[9, "city"] = "Rome"  # of no declared value, which is no fault
    return frame


@pytest.mark.parametrize("make", [classifier, regressor])
@pytest.mark.parametrize("persons", [False, True])
def test_rows_that_contribute_nothing_are_counted_for_who_fits(make, persons):
    model, target = make(steps=2), people()["label" if make is classifier else "pay"]
    whose = np.arange(ROWS) // 2 if persons else None
    with pytest.warns(StewardWarning, match=r"X: 6 of 400 rows .* \(6 in 'age'\)") as seen:
        model.fit(_spoilt(), target, epsilon=2.0, people=whose)
    (warning,) = [w for w in seen if w.category is StewardWarning]
    assert warning.filename == __file__
    assert "6 of 400" not in repr(model)
    assert "6 of 400" not in repr(model.plan_)


def test_without_such_rows_or_with_a_marker_for_them_nothing_is_said(recwarn):
    classifier(steps=2).fit(features(), people()["label"], epsilon=2.0)
    frame = features().copy()
    frame.loc[:4, "age"] = np.nan
    columns = {**COLUMNS, "age": Numeric(0, 100, missing=[""])}
    marked = classifier(steps=2).set_params(columns=columns)
    marked.fit(frame, people()["label"], epsilon=2.0)
    assert not [w for w in recwarn if w.category is StewardWarning]
