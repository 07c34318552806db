"""Fixed batches: each record takes part in k steps that are far enough apart, without chance."""

import numpy as np

from apiece._types import Integers
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
        # Group by group, so that the records of each are spread over all steps.
        order = np.lexsort((draw_uniforms(generator, group_index.size), group_index))
        slots = np.empty(group_index.size, dtype=np.int64)
        slots[order] = np.arange(group_index.size) % min(self._separation, stage.steps)
        # How many steps a slot has, and how many of them its record takes part in.
        passes = (stage.steps - 1 - slots) // self._separation + 1
        times = np.minimum(stage.times[group_index], passes)
        # The first of a record's passes, dealt likewise, so that batches are of equal size.
        starts = np.empty(group_index.size, dtype=np.int64)
        starts[order] = np.arange(group_index.size) // min(self._separation, stage.steps)
        self._passes = passes
        self._times = times
        self._starts = starts % passes
        self._records = np.argsort(slots, kind="stable")
        self._bounds = np.searchsorted(slots[self._records], np.arange(self._separation + 1))

    def draw(self, within: int) -> Integers:
        """Return the positions of the records of a step of the stage, in increasing order."""
        number, slot = divmod(within, self._separation)
        records = self._records[self._bounds[slot] : self._bounds[slot + 1]]
        passes = self._passes[records]
        times = self._times[records]
        # The l-th of k among P passes is ⌊l·P/k⌋, counted from the record's own first one.
        position = (number - self._starts[records]) % passes
        nearest = -(-position * times // passes)
        takes_part = (nearest < times) & (nearest * passes // np.maximum(times, 1) == position)
        return np.sort(records[takes_part])
