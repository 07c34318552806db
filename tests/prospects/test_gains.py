"""What `plan --compare` says was measured is what the experiment stored."""

import json

import numpy as np
import pytest

from apiece.errors import InputError
from apiece.prospects import gains as reader
from apiece.prospects.gains import explain_missing, measured_gain, predicted_gain, relative_noise
from refusals import refused
from research import RESULTS
from research.conformal import Interval, make_interval
from research.experiment import Outcome
from research.experiments import gain_prediction, when_it_pays
from research.store import Store

PACKAGED = gain_prediction.PACKAGED


def stored() -> tuple[list[Outcome], list[Outcome]]:
    """The cells of the predictor, and those where it was not fitted."""
    store = Store(RESULTS)
    return store.load(gain_prediction.NAME), store.load(gain_prediction.BEYOND)


def test_noise_of_a_training_is_that_of_its_steps_added_up() -> None:
    steps, parameters, signal = 50, 400, 12.0
    noise = np.random.default_rng(0).normal(0, 3.0, (200, steps, parameters)).sum(axis=1)
    norms = np.linalg.norm(noise, axis=1) / (steps * signal)
    error = norms.std() / len(norms) ** 0.5
    assert abs(norms.mean() - relative_noise(3.0 / signal, steps, parameters)) < 5 * error
    with refused(InputError, "parameters"):
        relative_noise(0.1, 10, 0)


def test_what_was_not_measured_is_not_told() -> None:
    assert measured_gain(100.0) is None
    low, high = measured_gain(0.05).noise  # type: ignore[union-attr]
    assert low <= 0.05 < high


def test_less_noise_is_predicted_to_gain_and_more_to_lose() -> None:
    found = [predicted_gain(0.1, own, 10) for own in (0.02, 0.05, 0.1, 0.3)]
    points = [gain.points for gain in found if gain is not None]
    assert len(points) == 4
    assert points == sorted(points, reverse=True)
    assert points[2] == 0
    with refused(InputError, "classes"):
        predicted_gain(0.1, 0.05, 1)


@pytest.mark.parametrize("strategy", ["sample", "scale", "threshold"])
def test_an_interval_is_around_its_points_and_wider_where_more_is_gained(strategy: str) -> None:
    found = [predicted_gain(0.3, own, 10, strategy=strategy) for own in (0.2, 0.1, 0.05)]
    widths = []
    for gain in found:
        assert gain is not None
        assert gain.low < gain.points < gain.high
        assert (gain.level, gain.data_sets) == (gain_prediction.LEVEL, 7)
        widths.append(gain.high - gain.low)
    assert widths == sorted(widths)


def test_an_interval_promises_no_chance_for_plans_that_it_was_not_made_from() -> None:
    gain = predicted_gain(0.1, 0.05, 10, strategy="scale, correlated")
    assert gain is not None
    assert gain.level is None
    assert 0 < gain.inside <= gain.trainings < 50


def test_what_was_not_tried_or_did_not_hold_has_no_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert predicted_gain(0.1, 0.05, 10, strategy="hybrid") is None
    assert "not measured" in explain_missing("hybrid")
    results = json.loads(PACKAGED.read_text())
    del results["reach"]["sample"]
    results["errors"]["sample"] |= {"of the curve": 5.5, "of no gain": 4.5, "inside": 7}
    monkeypatch.setattr(reader, "_read_results", lambda: results)
    assert predicted_gain(0.1, 0.05, 10) is None
    assert "erred by 5.5 points and “no gain” by 4.5" in explain_missing("sample")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -0.1])
def test_noise_is_positive_and_finite(bad: float) -> None:
    with refused(InputError, "noise_over_signal"):
        relative_noise(bad, 10, 10)
    with refused(InputError, "own"):
        predicted_gain(0.1, bad, 10)


def test_the_packaged_rows_and_the_tables_of_the_page_are_of_the_stored_results() -> None:
    done, _ = stored()
    packaged = json.loads(PACKAGED.read_text())
    assert gain_prediction.by_noise(done) == packaged["rows"]
    page = gain_prediction.PAGE.read_text()
    for table in when_it_pays.summaries(done):
        assert table.markdown() in page


def test_what_beyond_is_told_of_is_stored() -> None:
    _, beyond = stored()
    errors = json.loads(PACKAGED.read_text())["errors"]
    correlated = [one for one in beyond if one.unit["kind"] == "correlated"]
    assert len(correlated) == errors["scale, correlated"]["trainings"]


@pytest.mark.slow
def test_page_and_packaged_predictor_are_of_the_stored_results() -> None:
    done, beyond = stored()
    page = gain_prediction.PAGE.read_text()
    assert page == gain_prediction.fill_page(page, gain_prediction.make_parts(done, beyond))
    made = gain_prediction.for_plans(done, beyond)
    packaged = json.loads(PACKAGED.read_text())
    assert made["reach"].keys() == packaged["reach"].keys()
    for strategy, reach in made["reach"].items():
        assert reach == pytest.approx(packaged["reach"][strategy], rel=1e-3)
    curves = gain_prediction.Curves(done)
    known = np.array([[np.log(0.1)], [np.log(0.05)], [2.0]])
    interval = curves.interval("sample")
    low, high = (float(np.sinh(end[0])) for end in interval.ends(known))
    told = predicted_gain(0.1, 0.05, 2)
    assert told is not None
    points = float(gain_prediction.follow(curves.without(frozenset()), known)[0])
    assert (told.low, told.points, told.high) == pytest.approx((low, points, high), abs=0.03)


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no part “tables”"):
        gain_prediction.fill_page("# A page\n", {"tables": ""})


def plant(draws: np.random.Generator) -> list[Outcome]:
    """Cells of seven data sets whose gains follow one curve, each data set by a factor of its own.

    The factor of the last is as far off as that of any other.
    """
    outcomes = []
    for position in range(8):
        factor = float(np.exp(0.7 * draws.normal()))
        for _ in range(int(draws.integers(4, 10))):
            noise, less = np.exp(draws.uniform(-5.0, -0.5)), draws.uniform(0.3, 0.9)
            names = {"uniform": 1.0, "sample": less, "scale": 1.02 * less, "threshold": less**0.5}
            heights = {name: 40 * factor / (1 + noise * part / 0.2) for name, part in names.items()}
            scale = 16 / 250**0.5  # the inverse of `relative_noise` at these parameters
            result = {
                name: {
                    "accuracy": (height + 0.2 * draws.normal(size=5)).tolist(),
                    "held out": height,
                    "noise over signal": noise * names[name] * scale,
                }
                for name, height in heights.items()
            }
            unit = {"data": f"planted {position}", "model": "linear", "share": 0.5}
            whole = {"classes": 10, "features": 25, **result}
            outcomes.append(Outcome(unit, whole, 1.0, "", "2026-01-02"))
    return outcomes


@pytest.mark.slow
def test_the_curves_interval_holds_its_level_on_a_planted_data_set_to_come() -> None:
    """Negative control: errors of one curve pooled over cells, which miss the level."""
    draws = np.random.default_rng(5)
    inside = []
    naive = []
    for _ in range(40):
        cells = plant(draws)
        further = frozenset({7})
        curves = gain_prediction.Curves(cells)
        groups = curves.groups("sample")
        interval = make_interval(groups, curves.fit, gain_prediction.LEVEL, without=further)
        inside.append(interval.share_inside(groups[7]))
        rule = curves.fit(further)
        errors = np.concatenate([abs(own.values - rule(own.known)) for own in groups[:7]])
        reach = float(np.quantile(errors, gain_prediction.LEVEL))
        naive.append(Interval((rule,), reach).share_inside(groups[7]))
    error = float(np.std(inside)) / len(inside) ** 0.5
    assert np.mean(inside) > gain_prediction.LEVEL - 3 * error
    assert np.mean(naive) < gain_prediction.LEVEL
