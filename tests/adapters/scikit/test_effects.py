"""Additive models: curves of columns, what each adds to a prediction, and monotone ones."""

import datetime

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.datasets import Categorical, Date, Numeric
from apiece.datasets.encode import encode, label_knots
from apiece.errors import DataError, InputError
from apiece.plan import Schedule
from apiece.sklearn import PrivateClassifier, PrivateRegressor

COLUMNS = {
    "age": Numeric(0, 100, missing=True),
    "pay": Numeric(0, 1e5, scale="log", knots=5),
    "town": Categorical(("A", "B", "C")),
    "since": Date("2000-01-01", "2010-01-01"),
}
DECAY = Schedule(((0, 1.0), (60, 0.0)))


def table(rows=3000, seed=0):
    """Return rows whose class depends on age by a hump, on pay by its logarithm."""
    rng = np.random.default_rng(seed)
    days = rng.integers(0, 3650, rows)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(0, 100, rows).round(1),
            "pay": np.expm1(rng.uniform(0, np.log(1e5), rows)).round(2),
            "town": rng.choice(["A", "B", "C"], rows),
            "since": [datetime.date(2000, 1, 1) + datetime.timedelta(days=int(d)) for d in days],
        }
    )
    frame.loc[rng.random(rows) < 0.05, "age"] = np.nan
    score = 3 - np.abs(frame["age"].fillna(50) - 50) / 12 + (frame["town"] == "B")
    return frame, np.where(score + rng.normal(0, 0.3, rows) > 1, "yes", "no")


def fitted(curves=9, labels=("no", "yes"), **options):
    frame, y = table()
    options = {"epsilon": 8.0, "steps": 60, "learning_rate_schedule": DECAY} | options
    model = PrivateClassifier(labels, COLUMNS, curves=curves, random_state=1, **options)
    return model.fit(frame, y), frame, y


@pytest.fixture(scope="module")
def model():
    return fitted()


def test_curves_learn_what_a_straight_line_cannot(model):
    curved, frame, y = model
    straight, _, _ = fitted(curves=0)
    assert curved.score(frame, y) > straight.score(frame, y) + 0.1


def test_a_prediction_is_the_sum_of_effects(model):
    """Read from the table of effects with pandas and np.interp alone."""
    fit, frame, _ = model
    effects = fit.effects()
    (output,) = set(effects.columns) - {"column", "value", "noise"}
    assert output == "log odds of yes"
    total = np.zeros(len(frame))
    for name, part in effects.groupby("column"):
        values = part.set_index("value")[output]
        cells = frame[name]
        if name == "town":
            total += cells.map(values).to_numpy()
            continue
        points = values.drop("(missing)", errors="ignore")
        if name == "since":
            origin = pd.Timestamp("2000-01-01")
            knots = (pd.to_datetime(points.index) - origin).days.to_numpy(float)
            numbers = (pd.to_datetime(cells) - origin).dt.days.to_numpy(float)
            # Labels name whole days, and knots lie within them.
            knots = np.linspace(knots[0], knots[-1], len(knots))
        else:
            knots, numbers = points.index.astype(float).to_numpy(), cells.to_numpy(float)
        if name == "pay":
            knots, numbers = np.log1p(knots), np.log1p(numbers)
        added = np.interp(numbers, knots, points)
        total += np.where(cells.isna(), values.get("(missing)", 0.0), added)
    probability = fit.predict_proba(frame)[:, 1]
    log_odds = np.log(probability) - np.log1p(-probability)
    offset = log_odds - total
    np.testing.assert_allclose(offset, offset[0], atol=2e-3)


def test_effects_have_mean_zero_but_for_missing_cells(model):
    effects = model[0].effects()
    shown = effects[effects["value"] != "(missing)"]
    means = shown.groupby("column")["log odds of yes"].mean()
    np.testing.assert_allclose(means, 0, atol=1e-6)
    assert (effects["value"] == "(missing)").sum() == 1  # of age, the only one with gaps


# There is nothing to learn here, as the warning says.
@pytest.mark.filterwarnings("ignore::apiece.errors.IdleParameterWarning")
def test_the_band_is_the_noise_of_training():
    """From seed to seed an effect varies by its noise, if steps are too few to correct any."""
    frame, _ = table(2000)
    y = np.where(np.random.default_rng(3).random(2000) < 0.5, "yes", "no")
    values = []
    for seed in range(20):
        model = PrivateClassifier(
            ("no", "yes"), {"town": COLUMNS["town"]}, epsilon=0.3, steps=30, learning_rate=0.3,
            random_state=seed,
        )  # fmt: skip
        effects = model.fit(frame[["town"]], y).effects()
        values.append(effects["log odds of yes"])
    # Values with mean zero have two thirds of the variance of three numbers: 38 degrees of freedom.
    deviation = np.sqrt(np.var(values, axis=0, ddof=1).sum() / 2)
    noise = effects["noise"].iloc[0]
    # Four standard errors of 1/√76 each; a tenth more for the rows that a step draws.
    assert 0.54 < deviation / noise < 1.56


def test_a_monotone_copy(model):
    fit, frame, _ = model
    before = fit.effects(["pay"])["log odds of yes"].to_numpy()
    for increasing in (True, False):
        copied = fit.make_monotone("pay", increasing=increasing)
        steps = np.diff(copied.effects(["pay"])["log odds of yes"])
        assert (steps >= -1e-6 if increasing else steps <= 1e-6).all()
        one = frame.iloc[[0] * 200].assign(pay=np.linspace(0, 1e5, 200))
        chances = copied.predict_proba(one)[:, 1]
        rises = np.diff(chances if increasing else -chances)
        assert (rises >= -1e-6).all()
        others = copied.effects(["age", "town", "since"])
        pd.testing.assert_frame_equal(others, fit.effects(["age", "town", "since"]))
        assert copied.statement()["mechanism"] == fit.statement()["mechanism"]
    np.testing.assert_array_equal(fit.effects(["pay"])["log odds of yes"], before)


def test_a_monotone_straight_line():
    frame, _ = table()
    target = frame["pay"].to_numpy() / 1e5
    model = PrivateRegressor(
        Numeric(0, 1), {"pay": Numeric(0, 1e5)}, epsilon=8.0, steps=60, curves=0, random_state=0
    ).fit(frame[["pay"]], target)
    rise = model.effects()["effect"]
    assert rise.iloc[-1] - rise.iloc[0] == pytest.approx(1.0, abs=0.3)  # in the target's unit
    assert model.make_monotone("pay").effects()["effect"].tolist() == pytest.approx(rise.tolist())
    fallen = model.make_monotone("pay", increasing=False)
    assert fallen.effects()["effect"].tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_three_classes_have_a_score_each():
    frame, _ = table()
    y = np.where(frame["town"] == "C", "c", np.where(frame["town"] == "A", "a", "b"))
    model = PrivateClassifier(["a", "b", "c"], COLUMNS, epsilon=8.0, steps=60, random_state=0)
    effects = model.fit(frame, y).effects(["town"]).set_index("value")
    assert effects[["a", "b", "c"]].idxmax(axis=1).tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(effects[["a", "b", "c"]].sum(axis=1), 0, atol=1e-6)
    with pytest.raises(InputError, match="3 classes"):
        model.make_monotone("age")


def test_what_is_no_sum_has_no_effects():
    frame, y = table()
    model = PrivateClassifier(["no", "yes"], COLUMNS, epsilon=8.0, steps=5, hidden=(4,))
    model.fit(frame, y)
    with pytest.raises(InputError, match="hidden"):
        model.effects()


def test_other_columns_and_categories_are_refused(model):
    fit = model[0]
    with pytest.raises(InputError, match="'agee'"):
        fit.effects(["agee"])
    with pytest.raises(InputError, match="'town'"):
        fit.make_monotone("town")


def test_a_schedule_is_not_searched():
    frame, y = table(300)
    model = PrivateClassifier(
        ["no", "yes"], COLUMNS, epsilon=8.0, learning_rate_schedule=DECAY, search={"steps": [5, 9]}
    )
    with pytest.raises(InputError, match="learning_rate_schedule"):
        model.fit(frame, y)


def test_curves_and_schedule_survive_saving(model, tmp_path):
    fit, frame, _ = model
    fit.save(tmp_path / "out")
    again = PrivateClassifier.load(tmp_path / "out")
    np.testing.assert_array_equal(again.predict_proba(frame), fit.predict_proba(frame))
    pd.testing.assert_frame_equal(again.effects(), fit.effects())
    assert again.learning_rate_schedule == DECAY
    monotone = fit.make_monotone("age")
    monotone.save(tmp_path / "monotone")
    loaded = PrivateClassifier.load(tmp_path / "monotone")
    np.testing.assert_array_equal(loaded.predict_proba(frame), monotone.predict_proba(frame))


def test_figures_have_a_panel_for_each_column(model):
    figure = model[0].plot_effects(["age", "pay", "town"])
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["age", "pay", "town"]


@given(
    st.lists(st.floats(-10, 110), min_size=1, max_size=20),
    st.integers(2, 40),
    st.sampled_from(["linear", "log"]),
)
@settings(max_examples=60, deadline=None)
def test_shares_of_knots_interpolate(cells, knots, scale):
    """A curve through any heights is what np.interp draws through them, on the scale."""
    kind = Numeric(0, 100, scale=scale, knots=knots)
    features = encode(pd.DataFrame({"x": cells}), {"x": kind}).features.astype(float)
    heights = np.random.default_rng(knots).normal(size=knots)
    positions = np.array([float(label) for label in label_knots(kind)])
    numbers = np.clip(cells, 0, 100)
    if scale == "log":
        positions, numbers = np.log1p(positions), np.log1p(numbers)
    np.testing.assert_allclose(
        features @ heights, np.interp(numbers, positions, heights), atol=2e-5 * knots
    )
    np.testing.assert_allclose(features.sum(axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("knots", [1, -1, 2.5, "many"])
def test_other_numbers_of_knots_are_refused(knots):
    with pytest.raises(DataError, match="knots"):
        Numeric(0, 1, knots=knots)
    with pytest.raises(DataError, match="knots"):
        Date("2000-01-01", "2001-01-01", knots=knots)
    with pytest.raises(DataError, match="curves"):
        fitted(curves=knots)
