"""The clipped sum over any of the records of a data set, a physical batch at a time."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import nn

from apiece._types import Floats, Integers
from apiece.training.clipping import (
    ClippedSum,
    LossFunction,
    State,
    clip_and_sum,
    empty_sum,
    guards,
    model_randomness,
)
from apiece.training.sources import Source
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
    ) -> None:
        self.model, self.loss_fn, self.source = model, loss_fn, source
        self.parameters = guards.trainable(model)
        guards.check_modules(model)
        self._width, self._method = width, method
        self._state = State(model=model)

    def check_same(self) -> None:
        """Raise `StateError` where other parameters are trainable than at first."""
        check_same(self.model, self.parameters)

    def unchanged(self) -> AbstractContextManager[None]:
        """Raise `UnsupportedError` where something of the model changes meanwhile."""
        return self._state.kept(contents=False)

    def nothing(self) -> ClippedSum:
        """Return the sum over no records."""
        return empty_sum(self.parameters)

    def over(self, records: Integers, clip_norms: Floats, seed: int) -> ClippedSum:
        """Return the sum of the gradients of at least one record, each clipped at its bound.

        Args:
            records: (B,) Positions in the data.
            clip_norms: (B,) Their bounds.
            seed: Of the model's own randomness (dropout) in this pass; torch's generators are left
                as they were.

        Raises:
            ApieceError: What `clip_and_sum` raises.
        """
        total = self.nothing()
        device = next(iter(self.parameters.values())).device
        bounds, width = torch.from_numpy(clip_norms), self._width or records.size
        with model_randomness(seed, (p.device for p in self.parameters.values())):
            for start in range(0, records.size, width):
                part = slice(start, start + width)
                inputs, targets = self.source.fetch(records[part], device)
                clipped = clip_and_sum(
                    self.model, self.loss_fn, inputs, targets, bounds[part], method=self._method
                )
                total = clipped if start == 0 else total + clipped
        return total
