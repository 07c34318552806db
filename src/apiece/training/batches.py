"""Poisson batches at individual rates, at the cost of the batch and not of the data set.

Records of one rate are visited by geometric skips: the gap to the next member is geometric, so
only members are ever drawn. Many distinct rates are first put in buckets within a factor of two,
visited at the bucket's largest rate and thinned to each record's own. Both are exact: every record
joins independently with its own probability.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import require_ids
from apiece._types import Floats, Ids, Integers, Mask
from apiece.errors import InputError, UnsupportedError
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage
from apiece.training.fixed import FixedSampler, OwnOrder, deal_slots
from apiece.training.randomness import Generator, Streams, draw_uniforms

# Positions of records in the data: 4 bytes each where they fit, else 8.
Positions = npt.NDArray[np.signedinteger[Any]]

# Number of distinct rates up to which each gets a bucket of its own, without thinning.
_MOST_EXACT_RATES = 32


@dataclass(frozen=True, slots=True, repr=False)
class Bucket:
    """Records (positions in the data) visited together at one rate; rates: (m,), None if equal."""

    records: Positions
    rate: float
    rates: Floats | None

    def draw(self, generator: Generator) -> Positions:
        """Return the records that join, each independently with its own rate."""
        hits = draw_positions(self.records.size, self.rate, generator)
        if self.rates is not None and hits.size:
            # Thinning: a hit at the bucket's rate stays with chance rates[hit] / rate, so that
            # the product of the two chances is the record's own rate.
            marks = draw_uniforms(generator, hits.size) * self.rate
            hits = hits[marks < self.rates[hits]]
        members: Positions = self.records[hits]
        return members


def draw_positions(size: int, rate: float, generator: Generator) -> Integers:
    """Return positions in range(size), each present independently with probability `rate`.

    Cost and memory are those of the expected number of positions, size·rate. No coin is tossed
    where the rate is 0 or 1.
    """
    if rate >= 1:
        return np.arange(size)
    if rate <= 0 or size == 0:
        return np.empty(0, dtype=np.int64)
    # log(1 − rate), by log1p, since 1 − rate rounds away small rates.
    scale = 1 / np.log1p(-rate)
    mean = size * rate
    reached = -1
    # Arrays of positions, each part beginning behind the last one.
    parts = []
    while reached < size:
        # The mean and four standard deviations: one round nearly always reaches the end.
        room = int(mean + 4 * np.sqrt(mean) + 8)
        # Inversion: ⌊log(u) / log(1 − rate)⌋ is geometric for u uniform in (0, 1], and
        # log1p(-u) for u in [0, 1) is the logarithm of such a number.
        # Cut at `size` before the cast: a gap of tiny rates may be beyond any integer.
        gaps = np.minimum(np.log1p(-draw_uniforms(generator, room)) * scale, size)
        # A gap of g skips g records: the next member is g + 1 places on.
        positions = reached + np.cumsum(gaps.astype(np.int64) + 1)
        parts.append(positions)
        reached = int(positions[-1])
        mean = max((size - reached) * rate, 0)
    positions = np.concatenate(parts) if len(parts) > 1 else parts[0]
    # Sorted by construction; what lies beyond the end is cut off.
    inside: Integers = positions[: np.searchsorted(positions, size)]
    return inside


class PoissonSampler:
    """Draws the records that join a step of one stage; making it costs one sort of the records.

    joined: (n,) the records that take part in the stage at all; None for all. shard: (rank, world)
    leaves only the records whose position is rank modulo world.
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
        # Half the memory for the positions of a large data set.
        integer = np.int32 if group_index.size < 2**31 else np.int64
        positions: Positions = np.arange(rank, group_index.size, world, dtype=integer)
        if joined is not None:
            positions = positions[joined[positions]]
        rates = stage.sampling_probability
        if stage.correlated is not None:
            # The chance to join a step of one's own part.
            _, rates = stage.of_turns()
        self.buckets = _make_buckets(positions, rates, group_index)

    def draw(self, generator: Generator) -> Integers:
        """Return the positions of the records of one batch, in increasing order."""
        parts = [bucket.draw(generator) for bucket in self.buckets]
        batch = np.concatenate(parts) if parts else np.empty(0)
        batch = batch.astype(np.int64, copy=False)
        # In the order of the data: the order of buckets would tell rates.
        batch.sort()
        return batch


class CyclicSampler:
    """Draws who joins a step of a stage whose parts take turns: of the step's part, by coins.

    Every record is in one of as many parts as the noise's separation, dealt once, whoever is there;
    in the steps of its part it joins by a coin of its own.

    joined, shard: as for `PoissonSampler`. generator: deals the parts.
    """

    def __init__(
        self,
        stage: Stage,
        group_index: Integers,
        generator: Generator,
        *,
        joined: Mask,
        shard: tuple[int, int],
    ) -> None:
        assert stage.correlated is not None
        self._stage = stage
        self._group_index = group_index
        self._joined = joined
        self._shard = shard
        # Dealt over all records, whoever is there: who leaves moves nobody else.
        self._parts, _ = deal_slots(group_index, stage.correlated.separation, generator)
        # The sampler of each part, made in its first step.
        self._samplers: dict[int, PoissonSampler] = {}

    def draw(self, step_of_stage: int, generator: Generator) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order."""
        assert self._stage.correlated is not None
        part = step_of_stage % self._stage.correlated.separation
        if part not in self._samplers:
            self._samplers[part] = PoissonSampler(
                self._stage,
                self._group_index,
                joined=self._joined & (self._parts == part),
                shard=self._shard,
            )
        return self._samplers[part].draw(generator)


class AllocatedSampler:
    """Draws who takes part in a step of a stage in which each record joins exactly k steps.

    k is the group's. The steps of the stage fall into k blocks, as equal as can be; in each block
    every record draws one step of its own. A block is drawn when a step of it is asked for first.

    stream: makes the generator of a block, from the group (from 0) and the block's first step.
    """

    def __init__(
        self, stage: Stage, group_index: Integers, stream: Callable[[int, int], Generator]
    ) -> None:
        assert stage.times is not None
        self._steps = stage.steps
        self._stream = stream
        self._times = stage.times.tolist()
        # Stable, so that records of a group stay in the order of the plan.
        order = np.argsort(group_index, kind="stable")
        counts = np.bincount(group_index, minlength=len(self._times))
        # By group, the positions of its records.
        self._records = np.split(order, np.cumsum(counts)[:-1])
        # Of each group the first step of the block drawn last, and the step that each record took.
        self._blocks: dict[int, tuple[int, Integers]] = {}

    def draw(self, step_of_stage: int) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order."""
        parts = [np.empty(0, dtype=np.int64)]
        for group, (times, records) in enumerate(zip(self._times, self._records, strict=True)):
            if times and records.size:
                steps = self._draw_block(group, step_of_stage)
                # A record is in the batch if the step it drew in this block is the present one.
                parts.append(records[steps == step_of_stage])
        return np.sort(np.concatenate(parts))

    def _draw_block(self, group: int, step_of_stage: int) -> Integers:
        """Return the step that each record of a group takes in the block that a step is in."""
        times = self._times[group]
        # Block b has the steps from ⌊b·steps/times⌋ to ⌊(b + 1)·steps/times⌋, without the latter.
        block = ((step_of_stage + 1) * times - 1) // self._steps
        start = block * self._steps // times
        end = (block + 1) * self._steps // times
        # Drawn once for a block and held until the next: the same coins would give the same.
        if group in self._blocks and self._blocks[group][0] == start:
            return self._blocks[group][1]
        uniform = draw_uniforms(self._stream(group, start), self._records[group].size)
        # ⌊u·length⌋ for u uniform in [0, 1): each of the block's steps with the same chance.
        steps: Integers = start + (uniform * (end - start)).astype(np.int64)
        steps = np.minimum(steps, end - 1)  # u·(end − start) may be rounded up to end − start
        self._blocks[group] = start, steps
        return steps


def _make_buckets(positions: Positions, rates: Floats, group_index: Integers) -> list[Bucket]:
    """Return the records by their rates: a bucket a rate, or an octave where there are many."""
    # Groups may share a rate; records are sorted by the rank of their rate.
    distinct, rank_of_group = np.unique(rates, return_inverse=True)
    # A rank, in the smallest type that holds it, stands for a rate: 1 byte a record in place of 8.
    ranks = rank_of_group.astype(np.min_scalar_type(distinct.size))[group_index][positions]
    if distinct.size > 1:
        order = np.argsort(ranks, kind="stable")
        positions = positions[order]
        ranks = ranks[order]
        del order  # 8 bytes a record
    edges = _find_bucket_edges(distinct)
    starts = np.searchsorted(ranks, edges.astype(ranks.dtype))  # else all ranks would be widened
    buckets = []
    bounds = itertools.pairwise(starts)
    for (start, end), edge in zip(bounds, edges[1:], strict=True):
        # The largest rate of the bucket: all lower ones are thinned from it.
        rate = float(distinct[edge - 1])
        if end == start or rate <= 0:
            continue
        # Ranks are sorted: where the lowest is the bucket's highest, all its rates are equal.
        equal = ranks[start] == edge - 1
        thinned = None if equal else distinct[ranks[start:end]]
        buckets.append(Bucket(positions[start:end], rate, thinned))
    return buckets


def _find_bucket_edges(distinct: Floats) -> Integers:
    """Return the ranks where buckets begin, and the number of `distinct`, increasing rates."""
    if distinct.size <= _MOST_EXACT_RATES:
        return np.arange(distinct.size + 1)
    with np.errstate(divide="ignore"):
        # ⌊log₂ rate⌋: rates of one octave differ by less than a factor of two, so that thinning
        # rejects less than half.
        octave = np.floor(np.log2(distinct))
    octave[distinct >= 1] = np.inf  # rate 1 is taken whole, without a draw
    # The first octave differs from NaN, so that the first rate begins a bucket.
    begins = np.diff(octave, prepend=np.nan) != 0
    return np.append(np.flatnonzero(begins), distinct.size)


def draw_participants(stage: Stage, group_index: Integers, generator: Generator) -> Mask:
    """Return who joins the stage at all, by one coin a record; without a draw where all do."""
    if stage.participation is None:
        return np.ones(group_index.size, dtype=bool)
    # Each record's chance to join the stage, (n,).
    chances = stage.participation[group_index]
    return np.asarray(draw_uniforms(generator, chances.size) < chances)


def read_included(included: npt.ArrayLike | None, ids: Ids) -> Mask:
    """Return `included` as one Boolean a record of a plan, (n,); all True where it is None."""
    if included is None:
        return np.ones(ids.size, dtype=bool)
    # A Series is joined by ids; an array must be in the plan's order.
    require_ids("plan.ids", ids, included=included)
    mask = np.asarray(included)
    if mask.dtype != np.bool_ or mask.shape != ids.shape:
        raise InputError(
            f"included: {mask.dtype} of shape {mask.shape} for {ids.size} records; give one "
            "Boolean a record, in the order of the data"
        )
    return mask.copy()


def poisson_batches(plan: Plan, *, seed: int | None = None) -> Iterator[Integers]:
    """Yield plan.steps batches: arrays of record positions, each record at its own rate.

    A batch can be empty, and counts as a step. The cost of a step grows with the batch, not with
    the number of records; each stage starts with one sort.

    Args:
        plan: Bound to its records.
        seed: None takes the coins from the operating system, as a release needs. A whole number
            from 0 on gives the batches of a `Trainer` with that seed, for experiments.

    Raises:
        InputError: For a plan that is not bound to records.
        UnsupportedError: For a plan with correlated noise, which `Trainer` makes.

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
        >>> batches = list(poisson_batches(plan, seed=0))
        >>> len(batches), all((np.diff(batch) > 0).all() for batch in batches)
        (3, True)
    """
    if any(stage.correlated is not None for stage in plan.stages):
        raise UnsupportedError(
            "plan: the noise of its steps is correlated, and a loop of one's own adds independent "
            "noise; train it by Trainer"
        )
    yield from draw_batches(plan, Streams.from_seed(seed))


def draw_batches(plan: Plan, coins: Coins) -> Iterator[Integers]:
    """Yield the batches of `poisson_batches` by coins from any source."""
    bound = BoundPlan.of(plan)
    sampler = PlannedSampler(bound, read_included(None, bound.ids))
    for step in range(plan.steps):
        yield sampler.draw(step, coins).records


@dataclass(frozen=True, slots=True, repr=False)
class OneStream:
    """All coins from one generator, in the order in which they are tossed."""

    generator: Generator

    def sampling(self, _step: int, _shard: int = 0) -> Generator:
        """Return the generator."""
        return self.generator

    participation = sampling


Coins: TypeAlias = Streams | OneStream


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Draw:
    """One step's records, (B,) positions with their bounds, and the step's public numbers.

    stage: of the plan, from 0. step_of_stage: from 0 in each stage.
    """

    records: Integers
    clip_norms: Floats
    noise_stddev: float
    expected_batch_size: float
    stage: int = 0
    step_of_stage: int = 0


class Sampler(Protocol):
    """Draws the records of a step; the step loop's one source of who takes part."""

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`, counted from 0, by coins from `streams`."""
        ...

    def find_withdrawn(self) -> Mask:
        """Return which records are in no draw from now on, (n,); or (0,) where none can leave."""
        return np.zeros(0, dtype=bool)

    def digest_order(self, steps: int) -> str | None:
        """Return a digest of the first batches of an order of the user's own; None without one."""
        return None


# What decides who takes part in a step of one stage.
StageSampler: TypeAlias = (
    PoissonSampler | CyclicSampler | AllocatedSampler | FixedSampler | OwnOrder
)


class PlannedSampler:
    """Poisson batches as a plan says: each record joins at its own rate, stage after stage.

    In each step every record joins independently of all others, with the probability that its group
    has in the stage; where the stage has a participation, only if its one coin of the stage said
    so.

    included: (n,) who may be drawn at all; nothing else follows from it. shard: (rank, world) as in
    `PoissonSampler`. withdrawn: called in each step; returns who has left since, (n,). They are
    taken out after the draw, so that the draws of all others stay as they were. order: batches of
    the user's own, for a plan of one stage with fixed steps; None for the plan's.

    Raises `InputError` for an order where steps are drawn by chance, or in several stages.
    """

    def __init__(
        self,
        plan: BoundPlan,
        included: Mask,
        shard: tuple[int, int] = (0, 1),
        withdrawn: Callable[[], Mask] | None = None,
        order: object = None,
    ) -> None:
        self._plan = plan
        self._order = None if order is None else _make_order(order, plan)
        self._included = included
        self._shard = shard
        self._withdrawn = withdrawn
        # The number of the stage entered last, and its sampler.
        self._entered: tuple[int, StageSampler] | None = None

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`; entering a stage costs one sort of the records."""
        number, step_of_stage = find_stage(self._plan, step)
        stage = self._plan.stages[number]
        # A stage's sampler is made once, and again where a resumed run enters the stage.
        if self._entered is None or self._entered[0] != number:
            self._entered = number, self._make_stage_sampler(number, streams)
        match self._entered[1]:
            case PoissonSampler() as sampler:
                records = sampler.draw(streams.sampling(step, self._shard[0]))
            case CyclicSampler() as sampler:
                records = sampler.draw(step_of_stage, streams.sampling(step, self._shard[0]))
            case AllocatedSampler() | FixedSampler() | OwnOrder() as sampler:
                # These need no coin of the step's, and deal to all records of the plan.
                records = self._in_shard(sampler.draw(step_of_stage))
        # After the draw and by position alone: no coin depends on who has withdrawn.
        withdrawn = self.find_withdrawn()
        if withdrawn.size:
            records = records[~withdrawn[records]]
        return Draw(
            records,
            clip_norms=stage.clip_norm[self._plan.group_index[records]],
            noise_stddev=stage.noise_stddev,
            expected_batch_size=stage.expected_batch_size,
            stage=number,
            step_of_stage=step_of_stage,
        )

    def _in_shard(self, records: Integers) -> Integers:
        """Return those of the records that may be drawn, and are this process's."""
        rank, world = self._shard
        # The share of this process: positions that leave its rank modulo the number of processes.
        mine: Integers = records[self._included[records] & (records % world == rank)]
        return mine

    def digest_order(self, steps: int) -> str | None:
        """Return a digest of the first batches of the user's own order; None without one."""
        return None if self._order is None else self._order.digest(steps)

    def find_withdrawn(self) -> Mask:
        """Return who has withdrawn by now, (n,); (0,) where nobody can."""
        if self._withdrawn is None:
            return np.zeros(0, dtype=bool)
        withdrawn = self._withdrawn()
        require_ids("plan.ids", self._plan.ids, withdrawn=withdrawn)
        return np.asarray(withdrawn)

    def _make_stage_sampler(self, number: int, streams: Coins) -> StageSampler:
        """Return the sampler of a stage: by coins, by blocks, by turns or with fixed steps."""
        stage = self._plan.stages[number]
        group_index = self._plan.group_index
        if self._order is not None:
            return self._order
        # Deterministic steps first, then turns, then blocks; all else is Poisson sampling.
        if stage.has_fixed_steps:
            return FixedSampler(stage, group_index, streams.participation(number))
        if stage.correlated is not None:
            return CyclicSampler(
                stage,
                group_index,
                streams.participation(number),
                joined=self._included,
                shard=self._shard,
            )
        if stage.times is not None:
            groups = stage.times.size

            # A stream of its own for each block, so that a step can be drawn again alone; stream 0
            # is that of the coins by which records join a stage.
            def stream(group: int, start: int) -> Generator:
                return streams.participation(number, 1 + start * groups + group)

            return AllocatedSampler(stage, group_index, stream)
        joined = draw_participants(stage, group_index, streams.participation(number))
        joined &= self._included
        return PoissonSampler(stage, group_index, joined=joined, shard=self._shard)


def _make_order(order: object, plan: BoundPlan) -> OwnOrder:
    """Return the user's own order, for a plan of one stage with fixed steps."""
    is_fixed = len(plan.stages) == 1 and plan.stages[0].has_fixed_steps
    if not is_fixed:
        raise InputError(
            "order: the plan's steps are drawn by chance, or in several stages; leave it out, or "
            "plan with noise=Correlated()"
        )
    return OwnOrder(order, plan.stages[0], plan.group_index)


def find_stage(plan: Plan, step: int) -> tuple[int, int]:
    """Return the stage that `step` is in, and how many of the stage's steps come before it."""
    # Steps of the plan count through all stages.
    for number, stage in enumerate(plan.stages):
        if step < stage.steps:
            return number, step
        step -= stage.steps
    raise InputError(f"step: {step} beyond the last of the plan's steps")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EqualSampler(Sampler):
    """Draws every record with the same probability in every step; 1 is the full batch.

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
        """The divisor of the noisy sum, in records; it never follows who is drawn, or can pay."""
        mean = self.clip_norms.size * self.probability
        return mean if self.expected_batch_size is None else self.expected_batch_size

    def draw(self, step: int, streams: Coins) -> Draw:
        """Return the draw of `step`; without a coin where the probability is 1."""
        records = draw_positions(self.clip_norms.size, self.probability, streams.sampling(step))
        return Draw(records, self.clip_norms[records], self.noise_stddev, self.size)
