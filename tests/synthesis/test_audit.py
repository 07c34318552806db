"""An audit by planted rows: whole syntheses with and without a person, told apart.

The model is fixed so that the planted row raises one score and lowers the other, as is worst for
the exponential mechanism; noise and choices are the exact ones of a release.
"""

import numpy as np
import pytest

from apiece import audit
from apiece.synthesis import weights as weights_module
from apiece.synthesis.marginals import Rows
from apiece.synthesis.rounds import Settings
from apiece.synthesis.weights import Account, Weights
from tests.synthesis import worlds
from tests.synthesis.worlds import FreeChoices, MeanNoise, World, log_ratio

# Syntheses with the person, and as many without.
RUNS = 600
EPSILON = np.array([4.0, 8.0])
DELTA = np.array([0.02, 0.02])
GROUP = np.array([0, 1, 1, 0, 1, 1])


class EqualPlainRows(Rows):
    """A broken twin: every person adds with weight 1, and is charged for their own."""

    def steps_of(self, weight, step):
        return super().steps_of(np.ones(weight.shape), step)


class BalancedModel:
    """A model that holds the first column empty, and the second of twice as many people."""

    def __init__(self, total):
        self.potentials = {(0,): None, (1,): None}
        self.zeros = {}
        self.total = total

    def expect(self, clique):
        return np.array([0.0 if clique == (0,) else 2 * self.total])


def make_world(rows=Rows, account=Account):
    settings = Settings({(0,): 1, (1,): 1}, rounds=4, choice_share=0.5)
    codes = np.zeros((len(GROUP), 2), np.int32)
    return World(codes, GROUP, EPSILON, DELTA, settings, (1, 1), rows, account)


@pytest.fixture
def fixed_model(monkeypatch):
    total = float(Weights.from_budgets(EPSILON, DELTA).weight[GROUP].sum())
    monkeypatch.setattr(worlds, "fit_columns", lambda *_: BalancedModel(total))
    known = {}
    plain = weights_module.gaussian_of_bounded_range

    def compute(eta):
        key = np.asarray(eta).tobytes()
        if key not in known:
            known[key] = plain(eta)
        return known[key]

    monkeypatch.setattr(weights_module, "gaussian_of_bounded_range", compute)


def bound(table):
    """The ε that the audit is sure of, for the first person, who asked for the least."""
    neighbour = table.without([0])
    inside = [log_ratio(table, neighbour, seed) for seed in range(RUNS)]
    outside = [-log_ratio(neighbour, table, seed) for seed in range(RUNS, 2 * RUNS)]
    return audit.lower_bound(inside, outside, delta=float(DELTA[0]), method="gdp").epsilon


@pytest.mark.slow
def test_the_audit_finds_no_more_than_was_asked(fixed_model) -> None:
    found = bound(make_world())
    assert found <= EPSILON[0]
    assert found > 0.4 * EPSILON[0], "the audit sees something"


@pytest.mark.slow
@pytest.mark.parametrize(
    "twin", [{"account": FreeChoices}, {"rows": EqualPlainRows}, {"account": MeanNoise}]
)
def test_the_audit_catches_broken_twins(fixed_model, twin) -> None:
    assert bound(make_world(**twin)) > EPSILON[0]
