"""What `plan --compare` says was measured is what the experiment stored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apiece.assignment.gains import measured_gain, predicted_gain, relative_noise
from apiece.errors import InputError
from refusals import refused
from research import RESULTS
from research.experiment import Outcome
from research.experiments import when_it_pays
from research.store import Store

ROOT = Path(__file__).parents[2]
NAME = "when-it-pays"
PACKAGED = ROOT / "src" / "apiece" / "assignment" / "gains.json"


def stored() -> tuple[Any, list[Outcome]]:
    return when_it_pays, Store(RESULTS).load(NAME)


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
    if predicted_gain(0.1, 0.1, 10) is None:
        pytest.skip('the stored predictor errs no less than "no gain"')
    points = [predicted_gain(0.1, own, 10).points for own in (0.02, 0.05, 0.1, 0.3)]  # type: ignore[union-attr]
    assert points == sorted(points, reverse=True)
    assert points[2] == 0
    with refused(InputError, "classes"):
        predicted_gain(0.1, 0.05, 1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -0.1])
def test_noise_is_positive_and_finite(bad: float) -> None:
    with refused(InputError, "noise_over_signal"):
        relative_noise(bad, 10, 10)
    with refused(InputError, "own"):
        predicted_gain(0.1, bad, 10)


def test_the_packaged_table_and_the_page_are_of_the_stored_results() -> None:
    made, done = stored()
    packaged = json.loads(PACKAGED.read_text())
    assert made.by_noise(done) == packaged["rows"]
    page = (ROOT / "docs" / "results" / f"{NAME}.md").read_text()
    assert made.end_of_page(done, predictor=False) in page.partition(f"{made.MARK}\n\n")[2]


@pytest.mark.slow
def test_the_packaged_predictor_is_of_the_stored_results() -> None:
    made, done = stored()
    packaged = json.loads(PACKAGED.read_text())["curve"]
    page = (ROOT / "docs" / "results" / f"{NAME}.md").read_text()
    assert f"{made.end_of_page(done)}\n" == page.partition(f"{made.MARK}\n\n")[2]
    assert (made.for_plans(done)["curve"] is None) == (packaged is None)
    if packaged is not None:
        known = np.array([[np.log(0.1)], [np.log(0.05)], [2.0], [0.0]])
        (points,) = made.curve(made.fitted(done, by_size=False), known, by_size=False)
        told = predicted_gain(0.1, 0.05, 2)
        assert told is not None
        assert told.points == pytest.approx(points, abs=0.02)
