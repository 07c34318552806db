"""The clipped sum over any of the records of a data set, a physical batch at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece._types import Floats, Integers
from apiece.budgets import Units
from apiece.training.clipping import (
    ClippedSum,
    LossFunction,
    Proof,
    clip_and_sum,
    empty_sum,
    guards,
    model_randomness,
    proof_of,
)
from apiece.training.people import bring
from apiece.training.sources import Source, alike
from apiece.training.updates import check_same


class Sums:
    """Clips and sums over records by their positions.

    Args:
        model: As in `clip_and_sum`.
        loss_fn: As in `clip_and_sum`.
        source: The records.
        width: How many are in memory at a time; None takes all at once. It bounds the memory and
            is no part of the mechanism.
        method: Of `clip_and_sum`.
        people: Where records are persons with rows of the source; None where each row is one.
        compiled: Of `clip_and_sum`.

    Raises:
        InputError: For a model without a trainable parameter, or with one without a shape.
        UnsupportedError: Where a module mixes records, or a parameter cannot be clipped.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFunction,
        source: Source,
        *,
        width: int | None = None,
        method: str = "auto",
        people: Units | None = None,
        compiled: bool = False,
    ) -> None:
        self.model, self.loss_fn, self.source = model, loss_fn, source
        self.parameters = guards.trainable(model)
        guards.check_modules(model)
        self._width, self._method, self._compiled = width, method, compiled
        self._people = people

    def check_same(self) -> None:
        """Raise `StateError` where other parameters are trainable than at first."""
        check_same(self.model, self.parameters)

    def take_parameters(self) -> None:
        """Take the parameters that are trainable now for those to sum over."""
        self.parameters = guards.trainable(self.model)

    @property
    def proof(self) -> Proof | None:
        """What was proved of model and loss; None before the first batch."""
        return proof_of(guards.inner(self.model))

    def nothing(self) -> ClippedSum:
        """Return the sum over no records."""
        return empty_sum(self.parameters)

    def over(self, records: Integers, clip_norms: Floats, seed: int) -> ClippedSum:
        """Return the sum of the gradients of at least one record, each clipped at its bound.

        Args:
            records: (B,) Positions in the data, or of persons.
            clip_norms: (B,) Their bounds.
            seed: Of the model's own randomness (dropout) in this pass, and of which rows a person
                brings; torch's generators are left as they were.

        Raises:
            ApieceError: What `clip_and_sum` raises.
        """
        total: ClippedSum | None = None
        device = next(iter(self.parameters.values())).device
        bounds, width = torch.from_numpy(clip_norms), self._width or len(self.source)
        with model_randomness(seed, (p.device for p in self.parameters.values())):
            summed: list[Integers] = []
            for where, inputs, targets, owner in self._batches(records, width, seed, device):
                clipped = clip_and_sum(
                    self.model,
                    self.loss_fn,
                    inputs,
                    targets,
                    bounds[where],
                    method=self._method,
                    physical_batch_size=None if owner is None else width,
                    people=owner,
                    compiled=self._compiled,
                )
                total = clipped if total is None else total + clipped
                summed.append(where)
        if total is None:
            return self.nothing()
        return total if self._people is not None else total.ordered(np.concatenate(summed))

    def _batches(
        self, records: Integers, width: int, seed: int, device: torch.device
    ) -> Iterator[tuple[Integers, Any, Any, Integers | None]]:
        """Yield batches: which of `records`, inputs and targets, and whose each row is."""
        for part, rows, owner in self._parts(records, width, seed):
            here = np.arange(records.size)[part]
            if owner is not None:
                yield here, *self.source.fetch(rows, device), owner
                continue
            for where, inputs, targets in alike(self.source, rows, device):
                yield here[where], inputs, targets, None

    def _parts(
        self, records: Integers, width: int, seed: int
    ) -> Iterator[tuple[slice, Integers, Integers | None]]:
        """Yield records that are in memory together: which, their rows, and whose each row is."""
        if self._people is None:
            for start in range(0, records.size, width):
                part = slice(start, start + width)
                yield part, records[part], None
            return
        brought = bring(self._people, records, _coins(seed))
        for part, where in brought.parts(width):
            yield part, brought.rows[where], brought.owner[where]


def _coins(seed: int) -> bytes:
    """Return the key of the coins by which persons choose rows; no guarantee rests on them."""
    return hashlib.blake2b(f"rows {seed}".encode(), digest_size=32).digest()
