"""Fixed batches: each record takes part in k steps that are far enough apart, without chance."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from apiece import _check
from apiece._types import AnyArray, Integers
from apiece.errors import BudgetError, DataError, InputError, StateError
from apiece.plan.parts import Stage
from apiece.training.randomness import Generator, draw_uniforms


class FixedSampler:
    """Says who takes part in a step of a stage in which each record has k fixed steps.

    Every record has a slot: it can take part in the steps slot, slot + b, slot + 2b, …, with b the
    separation, and does so in k of them, spread evenly. Slots are dealt to all records of the
    plan, group by group, in an order that is drawn once. Who is left out afterwards leaves their
    slot empty, so that nobody's absence moves another.

    generator: draws the order.
    """

    def __init__(self, stage: Stage, group_index: Integers, generator: Generator) -> None:
        assert stage.times is not None
        assert stage.correlated is not None
        self._separation = stage.correlated.separation
        # No more slots than steps: a slot beyond them would have no step.
        slots, starts = deal_slots(group_index, min(self._separation, stage.steps), generator)
        # How many steps a slot has, and how many of them its record takes part in.
        # Slot s has the steps s, s + b, …: ⌊(steps − 1 − s)/b⌋ + 1 of them.
        passes = (stage.steps - 1 - slots) // self._separation + 1
        # A record cannot join more often than its slot has steps.
        times = np.minimum(stage.times[group_index], passes)
        self._passes = passes
        self._times = times
        # The first of a record's passes, dealt likewise, so that batches are of equal size.
        self._starts = starts % passes
        # Records by slot; bounds[s] to bounds[s + 1] are those of slot s.
        self._records = np.argsort(slots, kind="stable")
        self._bounds = np.searchsorted(slots[self._records], np.arange(self._separation + 1))

    def draw(self, step_of_stage: int) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order."""
        # Step t is pass t div b of slot t mod b.
        number, slot = divmod(step_of_stage, self._separation)
        records = self._records[self._bounds[slot] : self._bounds[slot + 1]]
        passes = self._passes[records]
        times = self._times[records]
        # The l-th of k among P passes is ⌊l·P/k⌋, counted from the record's own first one.
        position = (number - self._starts[records]) % passes
        # ⌈position·k/P⌉ is the only l that can give this position.
        nearest = -(-position * times // passes)
        takes_part = (nearest < times) & (nearest * passes // np.maximum(times, 1) == position)
        return np.sort(records[takes_part])


def deal_slots(
    group_index: Integers, slots: int, generator: Generator
) -> tuple[Integers, Integers]:
    """Return each record's slot in 0 … slots − 1, and how many were dealt it before, at random.

    Group by group, so that the records of each are spread over all slots evenly.
    """
    # By group, and within it in a random order; the coins are of all records of the plan.
    order = np.lexsort((draw_uniforms(generator, group_index.size), group_index))
    numbers = np.empty(group_index.size, dtype=np.int64)
    numbers[order] = np.arange(group_index.size)
    # Dealt like cards: the k-th goes to slot k mod slots, in round k div slots.
    return numbers % slots, numbers // slots


class OwnOrder:
    """Batches in an order of the user's own, each checked against the plan before it is used.

    Every batch is held against what its records have taken part in before: nobody takes part more
    often than the plan says, nor sooner again than its separation. What breaks a limit is refused,
    and the order is not gone on with.

    order: an iterable of batches, one a step, or a DataLoader, whose batches of positions are gone
    through pass after pass. stage: the one that the batches are for.
    """

    def __init__(self, order: object, stage: Stage, group_index: Integers) -> None:
        assert stage.times is not None
        assert stage.correlated is not None
        self._batches = iterate_order(order)
        self._separation = stage.correlated.separation
        self._steps = stage.steps
        # How often each record may still take part, and its last step.
        self._remaining = stage.times[group_index].astype(np.int64)
        # As if everyone had last joined a separation ago, so that the first step is free.
        self._last = np.full(group_index.size, -self._separation, dtype=np.int64)
        # Batches taken so far, the last of them, and a digest of all.
        self._taken = 0
        self._batch: Integers = np.empty(0, dtype=np.int64)
        self._digest = b""
        self._is_broken = False

    def draw(self, step_of_stage: int) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order.

        Raises `BudgetError` for a batch that breaks a limit, `DataError` for no positions or an
        order that has ended, and `StateError` for a step that has gone by.
        """
        if step_of_stage + 1 < self._taken:
            raise StateError(
                f"order: step {step_of_stage} has gone by, of {self._taken} batches taken; make "
                "the trainer anew, with the order from its beginning"
            )
        # A step that failed before its release is taken again with the same batch.
        while self._taken <= step_of_stage:
            self._take()
        return self._batch

    def digest(self, steps: int) -> str:
        """Return a digest of the first `steps` batches, which are taken where they were not yet."""
        if steps == 0:
            return ""
        self.draw(steps - 1)
        return self._digest.hex()

    def _take(self) -> None:
        if self._is_broken:
            raise StateError(
                "order: it broke the plan's limits at an earlier step; make the trainer anew, with "
                "an order that keeps them"
            )
        step = self._taken
        item = next(self._batches, None)
        if item is None:
            raise DataError(
                f"order: ended after {step} batches, and the plan has {self._steps} steps; give as "
                "many, of which some may be empty"
            )
        batch = read_positions(item, self._last.size)
        # Counted over the whole batch: the message names how many, and nobody.
        exhausted = int((self._remaining[batch] == 0).sum())
        soon = int((step - self._last[batch] < self._separation).sum())
        if exhausted or soon:
            self._is_broken = True
            raise BudgetError(
                f"order: batch {step}, of {batch.size} records, breaks the plan's limits and was "
                f"not used: {exhausted} have taken part as often as they may, {soon} less than "
                f"{self._separation} steps before; keep the same order in each pass, or plan with "
                "a smaller separation"
            )
        # Only now: a batch that is refused has changed nothing.
        self._remaining[batch] -= 1
        self._last[batch] = step
        # A chain of digests: two orders agree only if all batches up to here do.
        self._digest = hashlib.blake2b(self._digest + batch.tobytes(), digest_size=16).digest()
        self._batch = batch
        self._taken += 1


def iterate_order(order: object) -> Iterator[object]:
    """Return the batches of an order of the user's own, one after the other.

    Raises `InputError` for what cannot be gone through, and for a loader that has no batches of
    positions, or those of one process alone.
    """
    if isinstance(order, DataLoader):
        return _repeat_batches(order)
    if isinstance(order, Iterable):
        return iter(order)
    raise InputError(
        f"order: a {type(order).__name__}; give batches of positions, one a step, or a DataLoader"
    )


def _repeat_batches(loader: DataLoader[Any]) -> Iterator[object]:
    """Return the loader's batches of positions, pass after pass."""
    batches = loader.batch_sampler
    sampler = getattr(batches, "sampler", None)
    if batches is None or isinstance(sampler, DistributedSampler):
        raise InputError(
            "order: its loader has no batches of positions for all processes together; give a "
            "map-style dataset, a batch_size and no DistributedSampler"
        )

    def repeat() -> Iterator[object]:
        is_empty = False
        while not is_empty:
            is_empty = True
            # Ends where a whole pass gave no batch, or it would go on for ever.
            for batch in batches:
                is_empty = False
                yield batch

    return repeat()


def read_positions(batch: object, records: int) -> Integers:
    """Return a batch of the user's own as positions in increasing order, each once.

    Raises `DataError` for anything else.
    """
    positions: AnyArray = np.asarray(batch)
    if positions.size == 0:
        return np.empty(0, dtype=np.int64)
    is_valid = positions.ndim == 1 and positions.dtype.kind in "iu"
    if not is_valid or not ((positions >= 0) & (positions < records)).all():
        raise DataError(
            f"order: a batch of {positions.dtype} of shape {positions.shape}; give whole numbers "
            f"from 0 to {records - 1}, the positions of records in the plan"
        )
    # Sorted, so that sums do not depend on the order within a batch.
    distinct = np.unique(positions).astype(np.int64)
    if distinct.size < positions.size:
        raise DataError("order: a batch has a record twice; give each once a step")
    return distinct


class RecordStream(Dataset[object]):
    """Records that come as a stream, each batch read once: an order and its data in one.

    Give it to `Trainer` as the dataset and as `order`. What has gone by is not held.

    Args:
        batches: Of triples (positions, inputs, targets): the positions of the batch's records in
            the plan, each once, and one row of both tensors for each.
        size: Number of records in the plan.

    Raises:
        DataError: For rows of another number than positions, and records that are asked for when
            they are not in the batch.

    Example:
        >>> import torch
        >>> from apiece.training import RecordStream
        >>> batches = [([2, 0], torch.ones(2, 3), torch.zeros(2)), ([1], torch.ones(1, 3),
        ...            torch.zeros(1))]
        >>> stream = RecordStream(batches, size=3)
        >>> [list(positions) for positions in stream], len(stream)
        ([[2, 0], [1]], 3)
    """

    def __init__(self, batches: Iterable[tuple[Any, Any, Any]], *, size: int) -> None:
        self._batches = batches
        self._size = _check.count("size", size)
        self._rows: dict[int, int] = {}
        self._inputs: Any = None
        self._targets: Any = None

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the positions of one batch after the other, whose rows are then held."""
        for positions, inputs, targets in self._batches:
            members = [int(position) for position in positions]
            if not len(members) == len(inputs) == len(targets):
                raise DataError(
                    f"stream: {len(members)} positions for {len(inputs)} inputs and "
                    f"{len(targets)} targets; give one row of both for each"
                )
            # Row numbers of this batch; those of earlier batches are gone.
            self._rows = {position: row for row, position in enumerate(members)}
            self._inputs = inputs
            self._targets = targets
            yield members

    def __getitem__(self, position: int) -> tuple[Any, Any]:
        """Return inputs and target of a record of the batch that came last."""
        if position not in self._rows:
            raise DataError("stream: a record that is not in the batch that came last")
        row = self._rows[position]
        return self._inputs[row], self._targets[row]

    def fingerprint(self) -> str:
        """Return the number of records: what comes is not known before."""
        return f"stream of {self._size}"
