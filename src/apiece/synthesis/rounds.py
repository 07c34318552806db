"""The adaptive rounds: choose the marginal that the model fits worst, measure it, fit again.

AIM (McKenna, Mullins, Sheldon, Miklau 2022) with each person at their own weight. First every
column is measured. Then each round makes a choice and measures what was chosen; where the model
learned no more than noise would have taught it, the noise of the next rounds is halved and their
choices are twice as sharp. The last round spends what is left.

Every decision follows from what was released and from public numbers alone. The cost of a round in
time does not grow with the number of rounds before it, but by the size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final, Protocol

import numpy as np

from apiece._types import Floats, Integers, Json, Mask
from apiece.budgets.release import make_source
from apiece.errors import InputError
from apiece.queries.noise import BITS, draw_rounded_gaussians, make_bits
from apiece.synthesis.fitting import Model, fit_draft
from apiece.synthesis.marginals import Clique, Measurement, Rows, count_all, mask_weights
from apiece.synthesis.selection import (
    MEAN_DEVIATION,
    SCORE_BITS,
    draw_candidate,
    rate_of,
    score_candidates,
)
from apiece.synthesis.trees import model_megabytes
from apiece.synthesis.weights import Account

# Rounds that are planned for each column; fewer are made where noise is halved.
ROUNDS_PER_COLUMN: Final = 16
# The share of a round's budget that its choice takes.
CHOICE_SHARE: Final = 0.1


class Randomness(Protocol):
    """Where noise and choices come from."""

    def add_noise(self, sums: Integers, bits: int) -> Integers:
        """Return sums plus Gaussian noise of standard deviation 2^bits, rounded."""

    def choose(self, scores: Sequence[int], rate: Fraction) -> int:
        """Return a position with probability in proportion to e^(rate·score)."""


class ExactRandomness:
    """Noise and choices that are exact, from the operating system or from a seed.

    Args:
        seed: None for a release. Who knows a seed can take the noise off.
        stream: Tells one use of a seed from another.
    """

    def __init__(self, seed: int | None, stream: int = 0) -> None:
        # Noise and choices draw from seeds apart from one another.
        mixed = None if seed is None else (seed << 32) + stream
        self._bits = make_bits(mixed)
        self._below = make_source(None if mixed is None else mixed + (1 << 31))

    def add_noise(self, sums: Integers, bits: int) -> Integers:
        """Return sums plus exact Gaussian noise of standard deviation 2^24, rounded."""
        # The exact sampler knows one standard deviation, of 2^24 steps.
        assert bits == BITS
        noise = draw_rounded_gaussians(sums.size, self._bits)
        return sums + np.array(noise, dtype=np.int64)

    def choose(self, scores: Sequence[int], rate: Fraction) -> int:
        """Return a position with probability in proportion to e^(rate·score), exactly."""
        return draw_candidate(scores, rate, self._below)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is public about the rounds.

    Attributes:
        workload: Marginal → its weight, for every marginal that may be chosen.
        rounds: Planned; noise is calibrated for so many.
        model_megabytes: The size that the model may grow to, in units of 2^20 bytes.
        zeros: Marginal → 0 where a cell is possible, −∞ where it is ruled out.
        choice_share: The share of a round's budget that its choice takes.
        grid_bits: The grid of a measurement is 2^−bits of its noise.
    """

    workload: Mapping[Clique, int] = field(repr=False)
    rounds: int
    model_megabytes: float = 80.0
    zeros: Mapping[Clique, Floats] = field(default_factory=dict, repr=False)
    choice_share: float = CHOICE_SHARE
    grid_bits: int = BITS

    def __post_init__(self) -> None:
        columns = sum(len(clique) == 1 for clique in self.workload)
        if not self.rounds > columns:
            raise InputError(
                f"rounds = {self.rounds}: must be above the number of columns, {columns}, each of "
                "which is measured once before the first choice"
            )


Fit = Callable[
    [tuple[int, ...], Sequence[Measurement], Mapping[Clique, Floats], Model | None], Model
]
# From the number of a round to its source of randomness.
Source = Callable[[int], Randomness]


@dataclass(eq=False, repr=False)
class State:
    """What the rounds have released so far; all of it may be published.

    Attributes:
        round: How many rounds were made.
        noise_stddev: Of the next measurement.
        loss_range: Of the next choice, for weight 1.
        measurements: What was measured.
        model: Fitted to that.
        finished: Whether the budgets are spent.
    """

    round: int
    noise_stddev: float
    loss_range: float
    measurements: list[Measurement]
    model: Model
    finished: bool = False


class Rounds:
    """The rounds over some people's rows.

    Args:
        rows: Of those who take part.
        account: Of their budgets.
        settings: What is public.
        source: Gives each round's randomness; round 0 measures the columns.
        fit: Fits a model to what was released, as `fit_draft`.

    Guarantee:
        Each person's whole transcript is (ε, δ)-DP at their own budget, under adding or removing
        all their rows: a measurement is a Gaussian mechanism of μ = w/σ, a choice has bounded range
        η·w, both are charged before they are made, adaptively, by one Gaussian filter.

    References:
        McKenna, Mullins, Sheldon, Miklau 2022, Algorithms 1 to 3; docs/mathematics.md, section 11.
    """

    def __init__(
        self,
        rows: Rows,
        account: Account,
        settings: Settings,
        source: Source,
        fit: Fit = fit_draft,
    ) -> None:
        self._rows = rows
        self._account = account
        self._settings = settings
        self._source = source
        self._fit = fit
        self._score_counts: tuple[bytes, dict[Clique, Integers]] | None = None

    def begin(self) -> State:
        """Measure every column, and return the state after that."""
        noise_stddev, loss_range = self._account.divide(
            self._settings.rounds, self._settings.choice_share
        )
        # One-way marginals take no choice: the noise is that of a round's measurement.
        randomness = self._source(0)
        measurements = [
            self._measure(clique, noise_stddev, randomness)
            for clique in self._settings.workload
            if len(clique) == 1
        ]
        model = self._fit(self._rows.sizes, measurements, self._settings.zeros, None)
        return State(0, noise_stddev, loss_range, measurements, model)

    def advance(self, state: State) -> State:
        """Make one round, and return the state after it; the last one spends what is left."""
        noise_stddev = state.noise_stddev
        loss_range = state.loss_range
        # A round must leave enough for one more like it: else it is the last, and takes all.
        finished = not self._account.affords(noise_stddev, loss_range, 2)
        if finished:
            noise_stddev, loss_range = self._account.divide(1, self._settings.choice_share)
        # By the round's number: a run that is resumed with a seed draws the same.
        randomness = self._source(state.round + 1)
        clique = self._choose(state, noise_stddev, loss_range, randomness)
        measured = self._measure(clique, noise_stddev, randomness)
        measurements = [*state.measurements, measured]
        # What the model had before, from which the change is measured.
        before = state.model.expect(clique)
        model = self._fit(self._rows.sizes, measurements, self._settings.zeros, state.model)
        # If the model changed by no more than noise alone would change it, nothing above the noise
        # is left to learn.
        change = float(np.abs(model.expect(clique) - before).sum())
        if change <= MEAN_DEVIATION * noise_stddev * before.size:
            noise_stddev /= 2
            loss_range *= 2
        return State(state.round + 1, noise_stddev, loss_range, measurements, model, finished)

    def _choose(
        self, state: State, noise_stddev: float, loss_range: float, randomness: Randomness
    ) -> Clique:
        """Charge a choice, and return the marginal that is chosen."""
        # The charge decides who takes part, and comes before any score.
        active = self._account.charge_choice(loss_range)
        cost_share = self._account.share_spent
        # The model may grow as the budget is spent, so that early rounds stay cheap.
        limit = self._settings.model_megabytes * max(cost_share, 1e-9)
        candidates = self._list_candidates(state.model, limit)
        scores = score_candidates(
            candidates, self._count_scores(active), state.model.expect, noise_stddev
        )
        position = randomness.choose(scores, rate_of(loss_range, candidates))
        return list(candidates)[position]

    def _list_candidates(self, model: Model, limit: float) -> dict[Clique, int]:
        """Return the marginals that keep the model small enough, or lie in one of its own."""
        measured = list(model.potentials)
        # A marginal within one of the model's, or a rule's, adds nothing to the tree.
        held = [set(clique) for clique in [*measured, *model.zeros]]
        chosen = {}
        for clique, importance in self._settings.workload.items():
            columns = set(clique)
            if any(columns <= clique_held for clique_held in held):
                chosen[clique] = importance
                continue
            joined = [*measured, *model.zeros, clique]
            if model_megabytes(self._rows.sizes, joined) <= limit:
                chosen[clique] = importance
        return chosen

    def _count_scores(self, active: Mask) -> dict[Clique, Integers]:
        """Return the weighted counts of all candidates, in steps of 2^−20."""
        # Counts change only where somebody has left: mostly they are counted once.
        key = active.tobytes()
        if self._score_counts is None or self._score_counts[0] != key:
            # Who cannot pay any more counts with weight 0.
            weight = mask_weights(self._account.weights.weight, active)
            steps = self._rows.steps_of(weight, math.ldexp(1.0, -SCORE_BITS))
            counts = count_all(self._rows, self._settings.workload, steps)
            self._score_counts = key, counts
        return self._score_counts[1]

    def _measure(self, clique: Clique, noise_stddev: float, randomness: Randomness) -> Measurement:
        """Charge a marginal, and return it with noise."""
        active = self._account.charge_measurement(noise_stddev)
        # By the grid of this noise, which follows from no row.
        step = math.ldexp(noise_stddev, -self._settings.grid_bits)
        weight = mask_weights(self._account.weights.weight, active)
        sums = self._rows.count(clique, self._rows.steps_of(weight, step))
        noisy = randomness.add_noise(sums, self._settings.grid_bits)
        return Measurement(clique, noisy.astype(np.float64) * step, noise_stddev)


def write_state(state: State, spent: Floats) -> Json:
    """Return a state as JSON values, with what each budget has spent."""
    return {
        "round": state.round,
        "noise_stddev": state.noise_stddev,
        "loss_range": state.loss_range,
        "finished": state.finished,
        "spent": spent.tolist(),
        "total": state.model.total,
        "measurements": [
            {"clique": list(m.clique), "noise_stddev": m.noise_stddev, "values": m.values.tolist()}
            for m in state.measurements
        ],
        "potentials": [
            {"clique": list(clique), "values": potential.tolist()}
            for clique, potential in state.model.potentials.items()
        ],
    }


def read_state(
    data: Json, sizes: tuple[int, ...], zeros: Mapping[Clique, Floats]
) -> tuple[State, Floats]:
    """Return a state and what each budget had spent, as `write_state` wrote them."""
    measurements = [
        Measurement(tuple(m["clique"]), np.array(m["values"]), float(m["noise_stddev"]))
        for m in data["measurements"]
    ]
    potentials = {
        tuple(entry["clique"]): np.array(entry["values"], np.float64)
        for entry in data["potentials"]
    }
    # Rules are the plan's, and are not stored twice.
    model = Model(sizes, potentials, float(data["total"]), zeros)
    state = State(
        int(data["round"]),
        float(data["noise_stddev"]),
        float(data["loss_range"]),
        measurements,
        model,
        bool(data["finished"]),
    )
    return state, np.array(data["spent"], np.float64)
