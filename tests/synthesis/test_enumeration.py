"""Every transcript of small tables, with its probability in both worlds: nobody is over."""

import itertools

import numpy as np
import pytest
from scipy.stats import norm

from apiece.accounting.slack import gaussian_of_bounded_range
from apiece.synthesis import weights
from apiece.synthesis.rounds import Settings
from apiece.synthesis.weights import Account
from tests.synthesis.worlds import (
    EqualRows,
    FineRows,
    FreeChoices,
    MeanNoise,
    Recorder,
    World,
    log_mass,
)

# Mass of transcripts that are not looked at, at most.
FORGOTTEN = 1e-2
# Standard deviations to which noise is looked at.
REACH = 3


def outputs_near(sums_of_worlds, bits):
    """All outputs of a measurement within reach of both worlds' sums."""
    low = np.floor(np.minimum(*sums_of_worlds) - REACH * 2**bits).astype(int)
    high = np.ceil(np.maximum(*sums_of_worlds) + REACH * 2**bits).astype(int)
    return itertools.product(*[range(a, b + 1) for a, b in zip(low, high, strict=True)])


def hockey_stick(log_p, log_q, mu, epsilon):
    """∫ (p·f₀ − e^ε·q·f₁)₊ of two normal densities at distance μ."""
    threshold = epsilon - (log_p - log_q)
    p = np.exp(log_p)
    if mu == 0:
        return max(p - np.exp(epsilon + log_q), 0.0)
    power = norm.cdf(mu / 2 - threshold / mu)
    return p * (power - np.exp(threshold) * norm.cdf(-mu / 2 - threshold / mu))


class Tree:
    """All transcripts of a table and its neighbour, and δ of both directions."""

    def __init__(self, world, neighbour, epsilon):
        self.worlds = (world, neighbour)
        self.epsilon = epsilon
        self.delta = np.zeros(2)
        self.mass = np.zeros(2)
        self.rounds = 0

    def explore(self):
        dry = [Recorder(), Recorder()]
        starts = [w.start(r) for w, r in zip(self.worlds, dry, strict=True)]
        for start in starts:
            start.begin()
        columns = [
            list(outputs_near((a.sums, b.sums), a.bits))
            for a, b in zip(dry[0].events, dry[1].events, strict=True)
        ]
        for outputs in itertools.product(*columns):
            recorders = [Recorder(script=[np.array(o) for o in outputs]) for _ in range(2)]
            logs = np.zeros(2)
            runs = []
            for k, world in enumerate(self.worlds):
                rounds = world.start(recorders[k])
                state = rounds.begin()
                logs[k] = sum(log_mass(e) for e in recorders[k].events)
                runs.append((state, rounds.account.spending))
            self._branch(runs, logs)

    def _branch(self, runs, logs):
        """Go on from a transcript with the probabilities of the two worlds."""
        if logs.max() < np.log(1e-6):
            return
        state = runs[0][0]
        assert state.noise_stddev == runs[1][0].noise_stddev
        candidates = len(self.worlds[0].settings.workload)
        for position in range(candidates):
            dry = []
            after = []
            for world, (state, spent) in zip(self.worlds, runs, strict=True):
                recorder = Recorder(script=[position])
                rounds = world.start(recorder, spent)
                after.append((rounds.advance(state), rounds))
                dry.append(recorder)
            choice, measured = (r.events for r in dry)
            chosen = logs + [e[0].log_probabilities[position] for e in (choice, measured)]
            events = [r.events[1] for r in dry]
            if after[0][0].finished:
                difference = events[0].sums - events[1].sums
                mu = float(np.sqrt((difference**2).sum())) / 2 ** events[0].bits
                self.mass += np.exp(chosen)
                self.delta += [
                    hockey_stick(chosen[0], chosen[1], mu, self.epsilon),
                    hockey_stick(chosen[1], chosen[0], mu, self.epsilon),
                ]
                continue
            self.rounds += 1
            for output in outputs_near((events[0].sums, events[1].sums), events[0].bits):
                runs_after = []
                logs_after = np.zeros(2)
                for k, (world, (state, spent)) in enumerate(zip(self.worlds, runs, strict=True)):
                    recorder = Recorder(script=[position, np.array(output)])
                    rounds = world.start(recorder, spent)
                    following = rounds.advance(state)
                    logs_after[k] = chosen[k] + log_mass(recorder.events[1])
                    runs_after.append((following, rounds.account.spending))
                self._branch(runs_after, logs_after)


EPSILON = np.array([2.0, 4.0])
DELTA = np.array([0.05, 0.05])
GROUP = np.array([0, 1, 0, 1])
# Two columns of one cell, whose scores move with the number of people: a deep tree of transcripts.
COUNTS = np.zeros((4, 2), np.int32)
# A column of two cells: choices that move with what people are.
CELLS = np.array([[0, 0], [1, 0], [1, 0], [0, 0]], np.int32)


def make_world(codes, sizes, *, choice_share, rows=FineRows, account=Account, importance=2, bits=0):
    settings = Settings(
        {(0,): 1, (1,): importance}, rounds=3, choice_share=choice_share, grid_bits=bits
    )
    return World(codes, GROUP, EPSILON, DELTA, settings, sizes, rows, account)


def deep(**changes):
    return make_world(COUNTS, (1, 1), **({"choice_share": 0.5} | changes))


def wide(**twin):
    return make_world(CELLS, (2, 1), choice_share=0.3, **twin)


@pytest.fixture(autouse=True)
def remember_ranges(monkeypatch):
    """Compute the cost of a choice once."""
    known = {}

    def compute(eta):
        key = np.asarray(eta).tobytes()
        if key not in known:
            known[key] = gaussian_of_bounded_range(eta)
        return known[key]

    monkeypatch.setattr(weights, "gaussian_of_bounded_range", compute)


def explore(table, person):
    tree = Tree(table, table.without([person]), EPSILON[GROUP[person]])
    tree.explore()
    assert (tree.mass > 1 - FORGOTTEN).all()
    assert (tree.mass < 1 + 1e-9).all()
    return tree


@pytest.mark.parametrize("person", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_nobody_is_over(person) -> None:
    tree = explore(deep(), person)
    assert tree.rounds > 0, "some transcripts have a round before the last"
    assert (tree.delta <= DELTA[0]).all(), tree.delta
    assert (tree.delta >= 0.1 * DELTA[0]).all(), "the bound is not an empty one"


@pytest.mark.slow
@pytest.mark.parametrize("person", [0, 1])
def test_nobody_is_over_with_cells(person) -> None:
    tree = explore(wide(), person)
    assert (tree.delta <= DELTA[0]).all(), tree.delta


# Choices tell most where scores move by what a column weighs, and all in one direction.
FREE = {"account": FreeChoices, "choice_share": 0.95, "importance": 50, "bits": 1}


@pytest.mark.parametrize(
    "twin",
    [
        FREE,
        pytest.param({"rows": EqualRows}, marks=pytest.mark.slow),
        pytest.param({"account": MeanNoise}, marks=pytest.mark.slow),
    ],
)
def test_broken_twins_are_over(twin) -> None:
    """For the strictest person: choices that are free, equal weights, noise of the mean budget."""
    tree = explore(deep(**twin), 0)
    assert tree.delta.max() > DELTA[0], tree.delta
