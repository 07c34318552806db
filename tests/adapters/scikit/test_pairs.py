"""Pairs of columns in additive models: a surface beside the curves, at the same norm."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from apiece.adapters.fitting import encode_for_prediction
from apiece.datasets import Boolean, Categorical, Date, Numeric, Skip
from apiece.datasets.encode import encode
from apiece.datasets.pairs import append_pairs, count_features, locate_features
from apiece.errors import DataError, InputError
from apiece.jobs import Run, load_model
from apiece.reporting import report
from apiece.sklearn import PrivateClassifier, PrivateRegressor

COLUMNS = {
    "age": Numeric(0, 100, missing=True),
    "pay": Numeric(0, 1e5, scale="log"),
    "town": Categorical(("A", "B", "C")),
    "id": Skip(),
}
PAIRS = [("age", "pay"), ("town", "age")]
# Columns of each kind, with and without gaps.
KINDS = {
    "line": Numeric(-1, 1, missing=True),
    "curve": Numeric(0, 10, knots=4, missing=("?", "none")),
    "log": Numeric(0, 1e6, scale="log", knots=7),
    "city": Categorical(("a", "b", 3), missing=True),
    "day": Date("2000-01-01", "2020-01-01", knots=3, missing=True),
}
KIND_PAIRS = [
    ("curve", "log"), ("curve", "city"), ("city", "day"), ("day", "line"), ("log", "line"),
]  # fmt: skip
# Cells as a table that nobody cleaned has them.
CELLS = st.one_of(
    st.floats(allow_nan=True, allow_infinity=True),
    st.integers(-(10**12), 10**12),
    st.sampled_from(["a", "b", "3", "?", "none", "", "1e308", "-1e308", "2010-05-05", "1999"]),
    st.dates(),
    st.none(),
    st.booleans(),
)


def table(rows=2500, seed=0):
    """Return rows whose class says whether age and pay are both low or both high."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, rows).round(1),
            "pay": np.expm1(rng.uniform(0, np.log(1e5), rows)).round(2),
            "town": rng.choice(["A", "B", "C"], rows),
            "id": np.arange(rows),
        }
    )
    is_high = np.log1p(frame["pay"]) > np.log(1e5) / 2
    y = np.where((frame["age"] > 50) == is_high, "yes", "no")
    frame.loc[rng.random(rows) < 0.05, "age"] = np.nan
    return frame, y


def classifier(**options):
    options = {"epsilon": 10.0, "steps": 100, "curves": 4, "pairs": PAIRS} | options
    return PrivateClassifier(["no", "yes"], COLUMNS, random_state=1, **options)


@pytest.fixture(scope="module")
def model():
    frame, y = table()
    return classifier().fit(frame, y), frame, y


# Curves have nothing to learn here, as the warning says.
@pytest.mark.filterwarnings("ignore::apiece.errors.IdleParameterWarning")
def test_a_pair_learns_what_curves_cannot(model):
    paired, _, _ = model
    frame, y = table(1500, seed=9)
    curves = classifier(pairs=None).fit(*table())
    assert curves.score(frame, y) < 0.62
    assert paired.score(frame, y) > 0.75


@pytest.mark.filterwarnings("ignore::apiece.errors.IdleParameterWarning")
def test_a_regression_learns_a_product():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (2500, 2))
    y = X[:, 0] * X[:, 1]
    options = {"epsilon": 10.0, "steps": 100, "curves": 3, "random_state": 0}
    paired = PrivateRegressor(Numeric(-1, 1), Numeric(-1, 1), pairs=[(0, 1)], **options).fit(X, y)
    alone = PrivateRegressor(Numeric(-1, 1), Numeric(-1, 1), **options).fit(X, y)
    assert paired.pairs_ == (("x0", "x1"),)
    assert alone.score(X, y) < 0.1
    assert paired.score(X, y) > 0.5


@given(st.lists(st.tuples(*[CELLS] * len(KINDS)), min_size=1, max_size=12))
@settings(max_examples=150, deadline=None)
def test_features_of_a_pair_have_a_norm_of_one_at_most(rows):
    """As those of each column have, whatever is in the cells."""
    frame = pd.DataFrame(rows, columns=list(KINDS), dtype=object)
    encoded = encode(frame, KINDS)
    features = append_pairs(encoded.features, KINDS, KIND_PAIRS).astype(float)
    assert features.shape[1] == count_features(KINDS, KIND_PAIRS)
    assert (np.isnan(features).all(axis=1) == encoded.faulty).all()
    assert (np.isnan(features).any(axis=1) == encoded.faulty).all()
    features = features[~encoded.faulty]
    blocks = [features[:, part] for part in locate_features(KINDS).values()]
    ends = [count_features(KINDS, KIND_PAIRS[:count]) for count in range(len(KIND_PAIRS) + 1)]
    blocks += [features[:, start:stop] for start, stop in pairwise(ends)]
    for block in blocks:
        assert (np.linalg.norm(block, axis=1) <= 1 + 1e-6).all()
    bound = len(KINDS) + len(KIND_PAIRS)
    assert (np.square(features).sum(axis=1) <= bound + 1e-5).all()


@pytest.mark.parametrize(
    "extreme", [[1e308, -1e308, "C"], [np.nan, 1e5, "C"], [-1.0, 1e300, "Z"], [100.0, np.inf, "B"]]
)
@pytest.mark.filterwarnings("ignore::apiece.errors.StewardWarning")
def test_a_row_moves_a_model_of_pairs_by_the_clip_norm_at_most(extreme):
    """Of two fits by one step and the same noise, one row differs in its cells and its class."""
    frame, y = table(400)
    settings = {"steps": 1, "batch_size": 400, "learning_rate": 2.0, "strategy": "uniform"}
    parameters = []
    for change in (False, True):
        people, labels = frame.copy(), y.copy()
        people.loc[3, ["age", "pay", "town"]] = extreme if change else [50.0, 10.0, "A"]
        labels[3] = "yes" if change else "no"
        fit = classifier(epsilon=1.0, **settings).fit(people, labels)
        parameters.append(list(fit.network_.parameters()))
    first, second = parameters
    gap = sum(float((a - b).detach().square().sum()) for a, b in zip(first, second, strict=True))
    assert 0 < gap**0.5 <= 2.0 * 2 * fit.plan_.clip_norm / 400 * (1 + 1e-4)


@pytest.mark.filterwarnings("ignore::apiece.errors.IdleParameterWarning")
def test_the_plan_is_that_of_a_fit_without_pairs(model):
    paired, frame, y = model
    alone = classifier(pairs=None).fit(frame, y)
    assert paired.plan_.to_json() == alone.plan_.to_json()
    assert paired.promises_ == alone.promises_


def test_products_are_those_of_the_two_columns():
    frame = pd.DataFrame({"n": [2.5, 10.0], "town": ["B", "Z"]})
    columns = {"n": Numeric(0, 10, knots=3), "town": Categorical(("A", "B"))}
    features = encode_for_prediction(frame.iloc[:1], columns, [("n", "town")])
    np.testing.assert_array_equal(features, [[0.5, 0.5, 0, 0, 1, 0, 0.5, 0, 0.5, 0, 0]])
    unread = append_pairs(encode(frame.iloc[1:], columns).features, columns, [("n", "town")])
    np.testing.assert_array_equal(unread[0, 5:], np.zeros(6))


def test_a_prediction_is_the_sum_of_effects_and_surfaces(model):
    """Read from the table of effects with pandas and bilinear weights alone."""
    fit, frame, _ = model
    effects = fit.effects()
    assert list(effects.columns) == ["column", "value", "second_value", "log odds of yes", "noise"]
    parts = dict(list(effects.groupby("column")))
    assert list(parts) == ["age", "age × pay", "pay", "town", "town × age"]
    bins = {}
    for name in ("age", "pay", "town"):
        labels = parts[name]["value"]
        cells = frame[name]
        shares = pd.DataFrame(0.0, index=frame.index, columns=labels)
        if name == "town":
            knots = None
        else:
            knots = labels[labels != "(missing)"].astype(float).to_numpy()
        if knots is None:
            shares = pd.get_dummies(cells).astype(float)[labels]
        else:
            move = np.log1p if name == "pay" else np.asarray
            for position, label in enumerate(labels[labels != "(missing)"]):
                height = np.eye(len(knots))[position]
                shares[label] = np.interp(move(cells), move(knots), height)
            if "(missing)" in shares:
                shares["(missing)"] = cells.isna().astype(float)
            shares = shares.fillna(0.0)
        bins[name] = shares.to_numpy()
    total = sum(bins[name] @ parts[name]["log odds of yes"] for name in bins)
    for first, second in PAIRS:
        part = parts[f"{first} × {second}"]
        surface = part["log odds of yes"].to_numpy()
        surface = surface.reshape(bins[first].shape[1], bins[second].shape[1])
        total += np.einsum("np,pq,nq->n", bins[first], surface, bins[second])
    offset = fit.decision_function(frame) - total
    np.testing.assert_allclose(offset, offset[0], atol=2e-3)


def test_a_surface_has_mean_zero_and_a_band(model):
    surface = model[0].effects([("age", "pay")])
    assert len(surface) == 5 * 4  # four knots each, and missing ages
    shown = surface[surface["value"] != "(missing)"]
    assert shown["log odds of yes"].mean() == pytest.approx(0, abs=1e-6)
    noise = surface["noise"].unique()
    assert noise == model[0].effects(["age"])["noise"].unique()
    corner = surface.set_index(["value", "second_value"])["log odds of yes"]
    low, high = corner.index[0], corner.index[15]
    assert corner[low] > 2 * noise[0]
    assert corner[high] > 2 * noise[0]
    assert corner[low[0], high[1]] < -2 * noise[0]


@pytest.mark.filterwarnings("ignore::apiece.errors.IdleParameterWarning")
def test_the_band_of_a_surface_is_the_noise_of_training():
    frame, _ = table(1500)
    y = np.where(np.random.default_rng(3).random(1500) < 0.5, "yes", "no")
    values = []
    for seed in range(20):
        model = PrivateClassifier(
            ("no", "yes"), {"town": COLUMNS["town"], "sex": Categorical(("f", "m"))},
            pairs=[("town", "sex")], epsilon=0.3, steps=30, learning_rate=0.3, random_state=seed,
        )  # fmt: skip
        people = frame[["town"]].assign(sex=np.where(frame["id"] % 2, "f", "m"))
        surface = model.fit(people, y).effects([("town", "sex")])
        values.append(surface["log odds of yes"])
    # Six values with mean zero have five sixths of the variance of six numbers.
    deviation = np.sqrt(np.var(values, axis=0, ddof=1).sum() / 5)
    # Four standard errors of 1/√190 each, and a tenth more for the rows that a step draws.
    assert 0.65 < deviation / surface["noise"].iloc[0] < 1.4


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("age", "twon")], "'twon'; did you mean 'town'"),
        ([("age", "id")], "'id' is declared and not used"),
        ([("age", "age")], "'age' is paired with itself"),
        ([("age", "town"), ("town", "age")], "'town' and 'age' are named twice"),
        ([("age", "town"), ("age", "town")], "are named twice"),
        ([("age",)], "is no pair"),
        (["ab"], "'ab' is no pair"),
        ([("age", "town", "pay")], "is no pair"),
        ("age", "give a sequence of pairs"),
        (3, "give a sequence of pairs"),
        ([(0, 1)], "unknown name 0"),
        ([(True, "age")], "unknown name True"),
    ],
)
def test_other_pairs_are_refused(pairs, message):
    with pytest.raises(InputError, match=message) as refusal:
        classifier(pairs=pairs).fit(*table(200))
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("position", [2, -1, True, 0.0, "1"])
def test_positions_are_those_of_an_array(position):
    model = PrivateClassifier(
        ["no", "yes"], Numeric(0, 1, knots=2), pairs=[(0, position)], epsilon=1.0
    )
    with pytest.raises(InputError, match="pairs"):
        model.fit(np.zeros((50, 2)), ["no", "yes"] * 25)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"curves": 0}, "'age' is a straight line .* give curves=8"),
        ({"curves": None, "epsilon": 0.05}, "'age' is a straight line .* give curves=8"),
        ({"curves": None, "search": {"steps": [5, 9]}}, "give curves=8"),
        ({"hidden": (3,)}, "hidden layers"),
        ({"method": "pate", "public": table(20)[0], "teachers": 5}, "PATE"),
    ],
)
@pytest.mark.filterwarnings("ignore::apiece.errors.StewardWarning")
def test_pairs_without_curves_and_sums_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        classifier(**options).fit(*table(300))


def test_pairs_of_categories_need_no_curves():
    frame, y = table(400)
    columns = {"town": COLUMNS["town"], "odd": Boolean()}
    people = frame[["town"]].assign(odd=frame["id"] % 2 == 1)
    options = {"epsilon": 2.0, "steps": 5, "curves": 0, "pairs": [("odd", "town")]}
    surface = PrivateClassifier(["no", "yes"], columns, **options).fit(people, y).effects()
    assert (surface["column"] == "odd × town").sum() == 6


def test_a_search_trains_pairs():
    frame, y = table(400)
    model = classifier(search={"steps": [5, 6]}).fit(frame, y)
    assert len(model.effects([("town", "age")])) == 3 * 5


def test_a_clone_has_the_pairs_and_a_refit_its_own(model):
    fit, frame, y = model
    cloned = clone(fit)
    assert cloned.get_params()["pairs"] == PAIRS
    again = cloned.fit(frame, y)
    np.testing.assert_array_equal(again.predict_proba(frame), fit.predict_proba(frame))
    chances = again.predict_proba(frame)
    again.set_params(pairs=None)  # what is fitted stays
    np.testing.assert_array_equal(again.predict_proba(frame), chances)
    again.set_params(steps=5).fit(frame, y)
    assert again.pairs_ == ()
    assert "second_value" not in again.effects()


def test_pairs_survive_saving(model, tmp_path):
    fit, frame, y = model
    folder = fit.save(tmp_path / "out", frame, y)
    again = PrivateClassifier.load(folder)
    assert again.pairs_ == tuple(PAIRS)
    assert again.get_params()["pairs"] == tuple(PAIRS)
    np.testing.assert_array_equal(again.predict_proba(frame), fit.predict_proba(frame))
    pd.testing.assert_frame_equal(again.effects(), fit.effects())
    chances = load_model(folder / "model.pt").probabilities(frame)
    np.testing.assert_allclose(chances, fit.predict_proba(frame), atol=1e-5)
    assert Run.load(folder).estimator["pairs"] == [list(pair) for pair in PAIRS]
    assert fit.statement()["data"]["pairs"] == [list(pair) for pair in PAIRS]
    assert again.set_params(steps=5).fit(frame, y, epsilon=2.0).pairs_ == tuple(PAIRS)


def test_a_model_of_other_pairs_than_its_statement_is_refused(model, tmp_path):
    import torch

    folder = model[0].save(tmp_path / "out")
    content = torch.load(folder / "model.pt", weights_only=True)
    # As many features, of other products.
    torch.save(content | {"pairs": [["pay", "age"], ["town", "age"]]}, folder / "model.pt")
    with pytest.raises(DataError, match="pairs"):
        load_model(folder / "model.pt")


def test_papers_of_a_model_without_pairs_have_no_entry():
    frame, y = table(300)
    fit = classifier(pairs=None, steps=5).fit(frame, y)
    assert "pairs" not in fit.statement()["data"]
    assert "pairs" not in fit.run_.estimator


def test_a_report_is_made(model):
    fit, frame, y = model
    assert "logistic regression" in fit.report(frame, y).html
    assert report(fit, edition="internal").html


def test_a_figure_has_a_panel_for_each_pair_and_output(model):
    figure = model[0].plot_effects(["age", ("age", "pay")])
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    band = 2 * model[0].effects(["age"])["noise"].iloc[0]
    assert titles == ["age", f"age × pay, ±{band:.2g}"]
    frame, _ = table(400)
    three = PrivateClassifier(
        ["A", "B", "C"], COLUMNS, epsilon=8.0, steps=5, curves=3, pairs=PAIRS[:1]
    ).fit(frame, frame["town"])
    figure = three.plot_effects([("age", "pay")])
    titles = [panel.get_title() for panel in figure.axes if panel.get_title()]
    assert [title.splitlines()[1] for title in titles] == ["A", "B", "C"]
    figure.canvas.draw()
    three.plot_effects().canvas.draw()


def test_a_pair_is_asked_for_as_it_was_named(model):
    with pytest.raises(InputError, match="pair"):
        model[0].effects([("pay", "age")])
    pd.testing.assert_frame_equal(model[0].effects([["age", "pay"]]), model[0].effects(PAIRS[:1]))


def test_a_refused_fit_leaves_the_fitted_model(model):
    fit, frame, y = model
    again = clone(fit).set_params(steps=5).fit(frame, y)
    chances = again.predict_proba(frame)
    for change in ({"pairs": [("age", "town")], "curves": 0}, {"pairs": None, "epsilon": -1.0}):
        with pytest.raises(InputError):
            again.set_params(**change).fit(frame, y)
        np.testing.assert_array_equal(again.predict_proba(frame), chances)


def test_a_column_in_a_pair_is_not_made_monotone(model):
    with pytest.raises(InputError, match="fit without this pair"):
        model[0].make_monotone("age")
    with pytest.raises(AttributeError, match="no straight line"):
        model[0].coef_  # noqa: B018
