"""Two worlds, with and without a person, and the same transcript in both."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from scipy.stats import norm

from apiece.filters import GaussianFilter
from apiece.synthesis.marginals import Rows
from apiece.synthesis.rounds import ExactRandomness, Rounds, Settings, State
from apiece.synthesis.weights import Account, Weights


@dataclass
class Event:
    """A draw: what it was made from, and what came out."""

    sums: np.ndarray | None = None
    outputs: np.ndarray | None = None
    log_probabilities: np.ndarray | None = None
    position: int | None = None
    bits: int = 0


@dataclass
class Recorder:
    """Draws by `source`, or repeats `script`; remembers each event."""

    source: ExactRandomness | None = None
    script: list[np.ndarray | int] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add_noise(self, sums: np.ndarray, bits: int) -> np.ndarray:
        if self.script:
            outputs = np.asarray(self.script.pop(0))
        elif self.source is not None:
            outputs = self.source.add_noise(sums, bits)
        else:
            outputs = sums.copy()
        self.events.append(Event(sums=sums, outputs=outputs, bits=bits))
        return outputs

    def choose(self, scores: Sequence[int], rate: Fraction) -> int:
        logits = np.array([float(rate * (score - max(scores))) for score in scores])
        logits -= np.log(np.exp(logits).sum())
        if self.script:
            position = int(self.script.pop(0))
        elif self.source is not None:
            position = self.source.choose(scores, rate)
        else:
            position = 0
        self.events.append(Event(log_probabilities=logits, position=position))
        return position


class ColumnModel:
    """A model that a test can fit in microseconds: each column by itself."""

    def __init__(self, sizes, measurements, zeros):
        self.sizes = sizes
        self.zeros = zeros
        self.potentials = {m.clique: None for m in measurements}
        self.total = max(1.0, float(np.mean([m.values.sum() for m in measurements])))
        self._columns = {}
        for m in measurements:
            if len(m.clique) == 1:
                values = np.maximum(m.values, 0.01)
                self._columns[m.clique[0]] = values / values.sum()

    def expect(self, clique):
        array = np.ones(())
        for column in clique:
            array = np.multiply.outer(array, self._columns[column])
        return array.ravel() * self.total


def fit_columns(sizes, measurements, zeros, previous):
    return ColumnModel(sizes, measurements, zeros)


class FreeChoices(Account):
    """A broken twin: choices are made and not charged."""

    def charge_choice(self, loss_range):
        return np.ones(self.weights.weight.shape, bool)

    def divide(self, rounds, choice_share):
        _, loss_range = super().divide(rounds, choice_share)
        share = self._filter.remaining / rounds * (1 - 2**-30)
        return float((self.weights.weight / np.sqrt(share)).max() * (1 + 2**-30)), loss_range

    def _cost_choice(self, loss_range):
        return np.zeros(self.weights.weight.shape)


class FineRows(Rows):
    """Rows that add parts of a step of a measurement, so that a coarse grid loses none of them.

    Rounding what noise was added to is a post-processing, wherever the sums lie.
    """

    def steps_of(self, weight, step):
        if step < 2**-15:
            return super().steps_of(weight, step)
        return weight / self.rows_per_person / step

    def count(self, clique, steps):
        if steps.dtype.kind == "i":
            return super().count(clique, steps)
        cell = np.ravel_multi_index(self.codes[:, list(clique)].T, [self.sizes[c] for c in clique])
        return np.bincount(cell, weights=steps[self.group], minlength=self.sizes_of(clique))


class EqualRows(FineRows):
    """A broken twin: every person adds with weight 1, and is charged for their own."""

    def steps_of(self, weight, step):
        return super().steps_of(np.ones(weight.shape), step)


class MeanNoise(Account):
    """A broken twin: the noise is that of the mean budget, for all."""

    def __post_init__(self):
        super().__post_init__()
        self._filter._limit[:] = self.weights.limit.mean()
        equal = np.ones(self.weights.weight.shape)
        self.weights = Weights(
            self.weights.epsilon, self.weights.delta, self._filter._limit.copy(), equal
        )


@dataclass
class World:
    """A table, and what is public of the rounds over it."""

    codes: np.ndarray
    group: np.ndarray
    epsilon: np.ndarray
    delta: np.ndarray
    settings: Settings
    sizes: tuple[int, ...]
    rows: type[Rows] = Rows
    account: type[Account] = Account
    rows_per_person: int = 1
    template: Account | None = None

    def without(self, person_rows: Sequence[int]) -> "World":
        keep = np.setdiff1d(np.arange(len(self.group)), person_rows)
        return World(
            self.codes[keep], self.group[keep], self.epsilon, self.delta, self.settings,
            self.sizes, self.rows, self.account, self.rows_per_person,
        )  # fmt: skip

    def start(self, recorder: Recorder, spent: np.ndarray | None = None) -> Rounds:
        # A broken account starts as an honest one does: what was spent is put in as it is.
        if self.template is None:
            self.template = self.account(Weights.from_budgets(self.epsilon, self.delta))
        account = copy.deepcopy(self.template)
        if spent is not None:
            account._filter._spent[:] = spent
        rows = self.rows(self.codes, self.group, self.sizes, self.rows_per_person)
        rounds = Rounds(rows, account, self.settings, lambda _: recorder, fit_columns)
        rounds.account = account
        return rounds

    def run(self, recorder: Recorder) -> State:
        rounds = self.start(recorder)
        state = rounds.begin()
        while not state.finished:
            state = rounds.advance(state)
        return state


def log_mass(event: Event, steps: int | np.ndarray = 0) -> float:
    """log P(outputs) of rounded Gaussians around the sums of an event."""
    distance = event.outputs - event.sums
    half = 0.5 / 2**event.bits
    at = distance / 2**event.bits
    return float(np.log(norm.cdf(at + half) - norm.cdf(at - half)).sum())


def log_density(event: Event) -> float:
    """log of the Gaussian density at the outputs of an event, but for a constant."""
    distance = (event.outputs - event.sums) / 2.0**event.bits
    return float(-0.5 * (distance**2).sum())


def log_ratio(world: World, other: World, seed: int) -> float:
    """The log-likelihood ratio of a transcript that was drawn in `world`."""
    first = Recorder(ExactRandomness(seed))
    world.run(first)
    script = [e.outputs if e.position is None else e.position for e in first.events]
    second = Recorder(script=script)
    other.run(second)
    total = 0.0
    for a, b in zip(first.events, second.events, strict=True):
        if a.position is None:
            total += log_density(a) - log_density(b)
        else:
            total += a.log_probabilities[a.position] - b.log_probabilities[a.position]
    return total


def limit_of(epsilon: float, delta: float) -> float:
    return float(GaussianFilter(epsilon, delta).limit)
