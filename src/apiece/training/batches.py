"""Poisson batches at individual rates, at the cost of the batch and not of the data set.

Records of one rate are visited by geometric skips: the gap to the next member is geometric, so
only members are ever drawn. Many distinct rates are first put in buckets within a factor of two,
visited at the bucket's largest rate and thinned to each record's own. Both are exact: every record
joins independently with its own probability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import require_ids
from apiece._types import Floats, Ids, Integers, Mask
from apiece.errors import InputError
from apiece.plan import BoundPlan, Plan, Stage
from apiece.training.randomness import Generator, Streams, uniforms

Positions = npt.NDArray[np.signedinteger[Any]]  # of 4 bytes where they fit
_PLAIN = 32  # up to so many distinct rates each gets a bucket of its own, without thinning


@dataclass(frozen=True, slots=True, repr=False)
class Bucket:
    """Records (positions in the data) visited together at one rate; rates: (m,), None if equal."""

    records: Positions
    rate: float
    rates: Floats | None

    def draw(self, generator: Generator) -> Positions:
        """Return the records that join, each independently with its own rate."""
        hits = skips(self.records.size, self.rate, generator)
        if self.rates is not None and hits.size:
            hits = hits[uniforms(generator, hits.size) * self.rate < self.rates[hits]]
        chosen: Positions = self.records[hits]
        return chosen


def skips(size: int, rate: float, generator: Generator) -> Integers:
    """Return positions in range(size), each present independently with probability `rate`.

    Cost and memory are those of the expected number of positions, size·rate. No coin is tossed
    where the rate is 0 or 1.
    """
    if rate >= 1:
        return np.arange(size)
    if rate <= 0 or size == 0:
        return np.empty(0, dtype=np.int64)
    scale = 1 / np.log1p(-rate)
    mean = size * rate
    last, parts = -1, []
    while last < size:
        room = int(mean + 4 * np.sqrt(mean) + 8)
        # log1p(-u) for u in [0, 1) is the logarithm of a uniform number in (0, 1]
        gaps = np.minimum(np.log1p(-uniforms(generator, room)) * scale, size)
        places = last + np.cumsum(gaps.astype(np.int64) + 1)
        parts.append(places)
        last = int(places[-1])
        mean = max((size - last) * rate, 0)
    places = np.concatenate(parts) if len(parts) > 1 else parts[0]
    inside: Integers = places[: np.searchsorted(places, size)]
    return inside


class PoissonSampler:
    """Who joins a step, for one stage of a plan; making it costs one sort of the records.

    shard: (rank, world) leaves only the records whose position is rank modulo world.
    """

    def __init__(
        self,
        stage: Stage,
        group_index: Integers,
        *,
        joined: Mask | None = None,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        rank, world = shard
        kind = np.int32 if group_index.size < 2**31 else np.int64
        positions: Positions = np.arange(rank, group_index.size, world, dtype=kind)
        if joined is not None:
            positions = positions[joined[positions]]
        self.buckets = _buckets(positions, stage.sampling_probability, group_index)

    def draw(self, generator: Generator) -> Integers:
        """Return the positions of the records of one batch, in increasing order."""
        parts = [bucket.draw(generator) for bucket in self.buckets]
        batch = np.concatenate(parts) if parts else np.empty(0)
        batch = batch.astype(np.int64, copy=False)
        batch.sort()
        return batch


class AllocatedSampler:
    """Who takes part in a step, for a stage in which each record joins a whole number of them.

    The steps of a group with k fall into k blocks, as equal as can be; in each block every record
    draws one step of its own. A block is drawn when a step of it is asked for first. stream: of
    the group (from 0) and the number of the block's first step.
    """

    def __init__(
        self, stage: Stage, group_index: Integers, stream: Callable[[int, int], Generator]
    ) -> None:
        assert stage.times is not None
        self._steps, self._stream, self._times = stage.steps, stream, stage.times.tolist()
        order = np.argsort(group_index, kind="stable")
        ends = np.cumsum(np.bincount(group_index, minlength=len(self._times)))[:-1]
        self._records = np.split(order, ends)
        self._drawn: dict[int, tuple[int, Integers]] = {}

    def draw(self, within: int) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order."""
        parts = [np.empty(0, dtype=np.int64)]
        for group, (times, records) in enumerate(zip(self._times, self._records, strict=True)):
            if times and records.size:
                block = ((within + 1) * times - 1) // self._steps
                start, end = (b * self._steps // times for b in (block, block + 1))
                if self._drawn.get(group, (-1,))[0] != start:
                    uniform = uniforms(self._stream(group, start), records.size)
                    chosen = start + (uniform * (end - start)).astype(np.int64)
                    self._drawn[group] = start, np.minimum(chosen, end - 1)
                parts.append(records[self._drawn[group][1] == within])
        return np.sort(np.concatenate(parts))


def _buckets(positions: Positions, rates: Floats, group_index: Integers) -> list[Bucket]:
    """Return the records by their rates: a bucket a rate, or an octave where there are many."""
    distinct, rank_of_group = np.unique(rates, return_inverse=True)
    ranks = rank_of_group.astype(np.min_scalar_type(distinct.size))[group_index][positions]
    if distinct.size > 1:
        order = np.argsort(ranks, kind="stable")
        positions, ranks = positions[order], ranks[order]
        del order  # 8 bytes a record
    edges = np.arange(distinct.size + 1)
    if distinct.size > _PLAIN:
        with np.errstate(divide="ignore"):
            octave = np.floor(np.log2(distinct))
        octave[distinct >= 1] = np.inf  # rate 1 is taken whole, without a draw
        edges = np.append(np.flatnonzero(np.diff(octave, prepend=np.nan) != 0), distinct.size)
    starts = np.searchsorted(ranks, edges.astype(ranks.dtype))  # else all ranks would be widened
    buckets = []
    for start, end, high in zip(starts[:-1], starts[1:], edges[1:], strict=True):
        top = float(distinct[high - 1])
        if end == start or top <= 0:
            continue
        own = None if ranks[start] == high - 1 else distinct[ranks[start:end]]
        buckets.append(Bucket(positions[start:end], top, own))
    return buckets


def participants(stage: Stage, group_index: Integers, generator: Generator) -> Mask:
    """Return who joins the stage at all, by one coin a record; without a draw where all do."""
    if stage.participation is None:
        return np.ones(group_index.size, dtype=bool)
    chances = stage.participation[group_index]
    return np.asarray(uniforms(generator, chances.size) < chances)


def taking_part(included: npt.ArrayLike | None, ids: Ids) -> Mask:
    """Return `included` as one Boolean a record of a plan; all of them where it is None."""
    if included is None:
        return np.ones(ids.size, dtype=bool)
    require_ids("plan.ids", ids, included=included)
    mask = np.asarray(included)
    if mask.dtype != np.bool_ or mask.shape != ids.shape:
        raise InputError(
            f"included: {mask.dtype} of shape {mask.shape} for {ids.size} records; give one "
            "Boolean a record, in the order of the data"
        )
    return mask.copy()


def poisson_batches(plan: Plan, *, generator: Generator) -> Iterator[Integers]:
    """Yield plan.steps batches: arrays of record positions, each record at its own rate.

    A batch can be empty, and counts as a step. The cost of a step grows with the batch, not with
    the number of records; each stage starts with one sort.

    Args:
        plan: Bound to its records.
        generator: The sampling stream, not used for anything else.

    Raises:
        InputError: For a plan that is not bound to records.

    Guarantee:
        In every step of a stage each record joins independently of all others with probability
        `stage.sampling_probability[group]`; with `participation`, only if the coin tossed for it
        once at the start of the stage said so. In a stage with `times` each record joins, also
        independently of all others, exactly one step of each of so many equal blocks.

    Example:
        >>> import numpy as np
        >>> from apiece import Budgets, Sample, assign, poisson_batches
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 40, 1e-3)
        >>> plan = assign(budgets, Sample(), steps=3, expected_batch_size=8, clip_norm=1.0)
        >>> batches = list(poisson_batches(plan, generator=np.random.default_rng(0)))
        >>> len(batches), all((np.diff(batch) > 0).all() for batch in batches)
        (3, True)
    """
    bound, one = BoundPlan.of(plan), _OneStream(generator)
    sampler = PlannedSampler(bound, taking_part(None, bound.ids))
    for step in range(plan.steps):
        yield sampler.draw(step, one).records


@dataclass(frozen=True, slots=True, repr=False)
class _OneStream:
    """All coins from one generator, in the order in which they are tossed."""

    generator: Generator

    def sampling(self, _step: int, _shard: int = 0) -> Generator:
        """Return the generator."""
        return self.generator

    participation = sampling


Coins: TypeAlias = Streams | _OneStream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draw:
    """One step's records, (B,) positions with their bounds, and the step's public numbers.

    stage: of the plan, from 0; within: steps of the stage before this one.
    """

    records: Integers
    clip_norms: Floats
    noise_stddev: float
    expected_batch_size: float
    stage: int = 0
    within: int = 0


class Sampler(Protocol):
    """What the step loop asks who takes part."""

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`, counted from 0, by coins from `streams`."""
        ...

    def left(self) -> Mask:
        """Return which records are in no draw from now on, (n,); or none of them, (0,)."""
        return np.zeros(0, dtype=bool)


class PlannedSampler:
    """Poisson batches as a plan says: each record joins at its own rate, stage after stage.

    In each step every record joins independently of all others, with the probability that its group
    has in the stage; where the stage has a participation, only if its one coin of the stage said
    so. included: (n,) who may be drawn at all; nothing else follows from it. withdrawn: asked in
    each step who has left since, (n,); they are taken out of the draw, which is the others' still.
    """

    def __init__(
        self,
        plan: BoundPlan,
        included: Mask,
        shard: tuple[int, int] = (0, 1),
        withdrawn: Callable[[], Mask] | None = None,
    ) -> None:
        self._plan, self._included, self._shard = plan, included, shard
        self._withdrawn = withdrawn
        self._entered: int | None = None

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`; entering a stage costs one sort of the records."""
        number, within = stage_of(self._plan, step)
        stage, index = self._plan.stages[number], self._plan.group_index
        if self._entered != number:
            self._enter(number, streams)
            self._entered = number
        if self._allocated is None:
            records = self._poisson.draw(streams.sampling(step, self._shard[0]))
        else:  # by a stream of the block's, so that a step can be drawn again alone
            rank, world = self._shard
            records = self._allocated.draw(within)
            records = records[self._included[records] & (records % world == rank)]
        left = self.left()
        if left.size:
            records = records[~left[records]]
        bounds, size = stage.clip_norm[index[records]], stage.expected_batch_size
        return Draw(records, bounds, stage.noise_stddev, size, number, within)

    def left(self) -> Mask:
        """Return who has withdrawn by now."""
        if self._withdrawn is None:
            return np.zeros(0, dtype=bool)
        gone = self._withdrawn()
        require_ids("plan.ids", self._plan.ids, withdrawn=gone)
        return np.asarray(gone)

    def _enter(self, number: int, streams: Coins) -> None:
        """Make ready to draw steps of a stage."""
        stage, index = self._plan.stages[number], self._plan.group_index
        self._allocated: AllocatedSampler | None = None
        if stage.times is not None:
            groups = stage.times.size

            def stream(group: int, start: int) -> Generator:
                return streams.participation(number, 1 + start * groups + group)

            self._allocated = AllocatedSampler(stage, index, stream)
            return
        joined = participants(stage, index, streams.participation(number))
        joined &= self._included
        self._poisson = PoissonSampler(stage, index, joined=joined, shard=self._shard)


def stage_of(plan: Plan, step: int) -> tuple[int, int]:
    """Return the stage that `step` is in, and how many of the stage's steps come before it."""
    for number, stage in enumerate(plan.stages):
        if step < stage.steps:
            return number, step
        step -= stage.steps
    raise InputError(f"step: {step} beyond the last of the plan's steps")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EqualSampler(Sampler):
    """Everyone with the same probability, in every step alike; 1 is the full batch.

    clip_norms: (n,) each record's bound. expected_batch_size: n·probability by default.
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

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`; without a coin where the probability is 1."""
        records = skips(self.clip_norms.size, self.probability, streams.sampling(step))
        return Draw(records, self.clip_norms[records], self.noise_stddev, self.size)
