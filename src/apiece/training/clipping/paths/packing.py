"""Whose the rows of packed sequences are, followed from the records to where they are rows again.

`pack_padded_sequence` sorts the records by length and lays out their places by time. From how it
did so it is known which record each row belongs to, so that a recurrent layer, and it alone, can
be given such rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from apiece.training.clipping import records

Turned = tuple[torch.Tensor, int, torch.Tensor]  # a tensor, its version, the record of each row


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Packing:
    """The places of packed sequences: which record and time each row is of.

    Args:
        sizes: (T,) How many sequences reach each time.
        order: (B,) The record of each sequence, the longest first.
    """

    sizes: torch.Tensor
    order: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """How many places each record has, (B,)."""
        longest_first = (self.sizes.unsqueeze(1) > torch.arange(len(self.order))).sum(0)
        lengths = torch.empty_like(longest_first)
        lengths[self.order.to(lengths.device)] = longest_first
        return lengths

    def padded(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (B, T, …) of the packed rows (N, …), in the order of records; else zero."""
        size, long = len(self.order), len(self.sizes)
        time = torch.repeat_interleave(torch.arange(long), self.sizes)
        turn = torch.arange(len(time)) - (self.sizes.cumsum(0) - self.sizes)[time]
        place = self.order[turn.to(self.order.device)] * long + time.to(self.order.device)
        full = rows.new_zeros(size * long, *rows.shape[1:])
        full.index_copy_(0, place.to(rows.device), rows)
        return full.view(size, long, *rows.shape[1:])

    def is_of(self, packed: nn.utils.rnn.PackedSequence) -> bool:
        """Whether a layer that runs over `packed` gives last states in the order of the records."""
        back = packed.unsorted_indices
        turned = self.order if back is None else self.order[back.to(self.order.device)]
        return torch.equal(packed.batch_sizes, self.sizes) and _in_order(turned)


class Packs:
    """Knows the tensors whose rows are records in another order, or the rows of packed ones."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._turned: dict[int, Turned] = {}
        self._packed: dict[int, tuple[torch.Tensor, int, Packing]] = {}

    def note(
        self, func: Any, args: Any, kwargs: Any, out: Any, lost: Callable[[torch.Tensor], bool]
    ) -> bool:
        """Note what a call makes of records; return whether its rows are the records in order.

        lost: tells of which tensors the rows need not be the records.
        """
        if func in PACKING and len(args) == 3 and args[2]:
            order = self._order(args[0], lost)
            if order is not None:
                self.keep(out[0], Packing(out[1], order))
        elif func in PADDING and len(args) > 2 and args[2]:
            packing = self.packing(args[0])
            if packing is not None and torch.equal(packing.sizes, args[1]):
                return self._turn(out, packing.order)
        elif func in _TURNING:
            call = dict(zip(_TURNING[func], args, strict=False)) | kwargs
            index, first = call["index"], call.get("dim", 0) == 0
            order = self._order(call["input"], lost)
            if order is not None and first and self._is_turn(index):
                return self._turn(out, order.to(index.device)[index])
        return False

    def keep(self, rows: torch.Tensor, packing: Packing) -> None:
        """Note that rows are packed so."""
        self._packed[id(rows)] = rows, rows._version, packing

    def packing(self, rows: torch.Tensor) -> Packing | None:
        """Return how rows are packed, None where that is not known."""
        found = self._packed.get(id(rows))
        return found[2] if found is not None and found[1] == rows._version else None

    def _turn(self, out: Any, order: torch.Tensor) -> bool:
        if _in_order(order):
            return True
        for tensor in records.leaves(out):
            self._turned[id(tensor)] = tensor, tensor._version, order
        return False

    def _order(
        self, tensor: torch.Tensor, lost: Callable[[torch.Tensor], bool]
    ) -> torch.Tensor | None:
        """Return the record of each row, None where that is not known."""
        found = self._turned.get(id(tensor))
        if found is not None:
            return found[2] if found[1] == tensor._version else None
        if not tensor.dim() or tensor.shape[0] != self._size or lost(tensor):
            return None
        return torch.arange(self._size, device=tensor.device)

    def _is_turn(self, index: Any) -> bool:
        """Whether an index takes every one of the rows once."""
        if not isinstance(index, torch.Tensor) or index.dtype != torch.long:
            return False
        return index.shape == (self._size,) and _in_order(index.sort().values)


def _in_order(order: torch.Tensor) -> bool:
    return torch.equal(order, torch.arange(len(order), device=order.device))


def _functions(name: str) -> frozenset[Any]:
    places = torch, torch.Tensor, torch._C._VariableFunctions
    found = (getattr(place, name, None) for place in places)
    return frozenset(f for f in found if f is not None)


PACKING, PADDING = _functions("_pack_padded_sequence"), _functions("_pad_packed_sequence")
_TURNING = {
    **dict.fromkeys(_functions("index_select"), ("input", "dim", "index")),
    torch.Tensor.__getitem__: ("input", "index"),
}
