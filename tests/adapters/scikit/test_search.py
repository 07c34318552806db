"""The estimators' search: settings chosen among random runs, under the promise of one fit."""

import json

import numpy as np
import pytest
from jsonschema import validate

from apiece import report
from apiece.datasets import Numeric
from apiece.errors import InputError
from apiece.jobs import Search, statement_schema
from apiece.jobs import model as model_of_table
from apiece.sklearn import PrivateClassifier

GENERATOR = np.random.default_rng(3)
X = GENERATOR.uniform(size=(1500, 2))
Y = np.where(X[:, 0] > 0.5, "high", "low")
LEARNS, NOTHING = 2.0, 1e-12  # a network with a hidden layer starts at random, and stays there
SPACE = {"learning_rate": (NOTHING, LEARNS)}


def fitted(**how):
    model = PrivateClassifier(
        ["high", "low"], Numeric(0, 1), strategy="scale", steps=8, batch_size=1500,
        delta=1e-4, hidden=(4,), random_state=3, **how,
    )  # fmt: skip
    return model.fit(X, Y, epsilon=np.repeat([2.0, 4.0], 750))


def searched(**how):
    """Return an estimator that searched, and the learning rate of each of its runs."""
    rates, fit_network = [], model_of_table.fit_network

    def noted(plan, rows, target, targets, training, **rest):
        rates.append(training.learning_rate)
        return fit_network(plan, rows, target, targets, training, **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_of_table, "fit_network", noted)
        return fitted(**how), rates


@pytest.fixture(scope="module")
def found():
    return searched(search=Search(SPACE, runs=6, score_noise=30.0))


@pytest.fixture(scope="module")
def model(found):
    return found[0]


def test_the_best_is_kept_within_everyones_budget(found):
    model, rates = found
    assert rates[0] == rates[-1] == NOTHING, "another seed is needed"
    assert model.run_.kept.settings["learning_rate"] == LEARNS
    assert model.score(X, Y) > 0.85
    assert all(promise.epsilon_spent <= promise.epsilon for promise in model.promises_)
    assert model.plan_.selection.runs.mean == 6
    assert "best of a random number" in model.plan_.notes[-1]
    assert model.plan_.noise_stddev > fitted().plan_.noise_stddev


@pytest.mark.parametrize("winner", [LEARNS, NOTHING])
def test_public_rows_choose_at_no_cost(winner, found):
    """Public rows with the right labels choose what learned, and with wrong ones what did not."""
    rows = np.random.default_rng(4).uniform(size=(400, 2))
    labels = np.where((rows[:, 0] > 0.5) == (winner == LEARNS), "high", "low")
    model, rates = searched(search=Search(SPACE, runs=6, validation=(rows, labels)))
    assert rates == found[1]
    assert model.run_.kept.settings["learning_rate"] == winner
    assert model.plan_.selection.score_noise is None
    assert model.plan_.noise_stddev < found[0].plan_.noise_stddev
    assert all(promise.epsilon_spent <= promise.epsilon for promise in model.promises_)
    assert "chosen on public rows" in model.plan_.notes[-1]


def test_pages_say_that_the_choosing_is_inside(model):
    said, plain = model.statement(), fitted().statement()
    assert "6 on average; the promise holds with the choosing inside" in said["guarantee"]["of"]
    assert said["mechanism"]["runs_on_average"] == 6
    validate(said, statement_schema())
    pages = [model.report(edition=edition).html for edition in ("internal", "public")]
    pages.append(report(model.plan_).html)
    for page in pages:
        assert "best of a random number of runs, 6 on average" in " ".join(page.split())
    words = json.dumps([said, pages])
    for wrong in ("chosen without looking", "settings from no look", "models trained"):
        assert wrong not in words
    assert "chosen without looking" in plain["guarantee"]["of"]
    assert "runs_on_average" not in plain["mechanism"]


@pytest.mark.parametrize(
    "space", [{}, {"hidden": [3]}, {"steps": []}, {"steps": [0]}, {"steps": 9}]
)
def test_bad_spaces_are_refused(space):
    with pytest.raises(InputError):
        Search(space)
