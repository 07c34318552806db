"""Who takes part in a step, and how: what each sampler draws for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.plan import BoundPlan
from apiece.training.batches import PoissonSampler, participants
from apiece.training.randomness import Randomness
from apiece.training.stages import stage_of


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draw:
    """One step's records and the public numbers of its mechanism.

    Args:
        records: (B,) Positions in the data, each once.
        clip_norms: (B,) Their bounds.
        noise_stddev: Of the noise on the sum.
        expected_batch_size: What the noisy sum is divided by; it never follows B.
        stage: Of the plan, from 0.
        within: Steps of the stage before this one.
    """

    records: Integers
    clip_norms: Floats
    noise_stddev: float
    expected_batch_size: float
    stage: int = 0
    within: int = 0


class Sampler(Protocol):
    """What the step loop asks who takes part."""

    def draw(self, step: int, streams: Randomness) -> Draw:
        """Return the draw of `step`, counted from 0, by coins from `streams`."""
        ...


class PlannedSampler:
    """Poisson batches as a plan says: each record joins at its own rate, stage after stage.

    Args:
        plan: With who is where.
        included: (n,) Who may be drawn at all; nothing else follows from it.
        shard: (rank, world); this process draws records at positions rank modulo world.

    Guarantee:
        In each step every record joins independently of all others, with the probability that its
        group has in the stage; where the stage has a participation, only if its one coin of the
        stage said so.
    """

    def __init__(self, plan: BoundPlan, included: Mask, shard: tuple[int, int] = (0, 1)) -> None:
        self._plan, self._included, self._shard = plan, included, shard
        self._entered: int | None = None

    def draw(self, step: int, streams: Randomness) -> Draw:
        """Return the draw of `step`; entering a stage costs one sort of the records."""
        number, within = stage_of(self._plan, step)
        stage, index = self._plan.stages[number], self._plan.group_index
        if self._entered != number:
            joined = participants(stage, index, streams.participation(number))
            joined &= self._included
            self._poisson = PoissonSampler(stage, index, joined=joined, shard=self._shard)
            self._entered = number
        records = self._poisson.draw(streams.sampling(step, self._shard[0]))
        bounds = stage.clip_norm[index[records]]
        size = stage.expected_batch_size
        return Draw(records, bounds, stage.noise_stddev, size, number, within)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EqualSampler:
    """Everyone with the same probability, in every step alike; 1 is the full batch.

    Args:
        clip_norms: (n,) Each record's bound.
        probability: Of joining a step, in (0, 1].
        noise_stddev: Of the noise on the sum.
        expected_batch_size: What the noisy sum is divided by; n·probability by default.

    Raises:
        InputError: For a value out of bounds.
    """

    clip_norms: Floats
    probability: float
    noise_stddev: float
    expected_batch_size: float | None = None

    def __post_init__(self) -> None:
        _check.positive("noise_stddev", self.noise_stddev)
        _check.probability("sampling_probability", self.probability, low_open=True)
        _check.positive("expected_batch_size", self.size)

    @property
    def size(self) -> float:
        """What the noisy sum is divided by; it never follows who is drawn, or can pay."""
        mean = self.clip_norms.size * self.probability
        return mean if self.expected_batch_size is None else self.expected_batch_size

    def draw(self, step: int, streams: Randomness) -> Draw:
        """Return the draw of `step`; without a coin where the probability is 1."""
        count = self.clip_norms.size
        if self.probability < 1:
            records = np.flatnonzero(streams.sampling(step).uniform(count) < self.probability)
        else:
            records = np.arange(count)
        return Draw(records, self.clip_norms[records], self.noise_stddev, self.size)
