"""Whether a tensor's first rows are the records in their order, whatever the records hold.

A layer's rows are taken for the records', in order, as many for each. What is picked, cut or put
together by rows may be so in one batch and not in the next: by a mask, a length, a sort. Looks at
some batches do not show that. So each such tensor, and all that is made of it, is known here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from apiece.training.clipping import records
from apiece.training.clipping.paths.packing import PACKING, Packing, Packs
from apiece.training.clipping.rules.rule import NotBookable

Function = Callable[..., Any]
_Tensor = torch.Tensor


def named(names: str, *places: Any) -> frozenset[Function]:
    """Return the functions of these names in `places`, where there are such."""
    found = [getattr(place, name, None) for place in places for name in names.split()]
    return frozenset(f for f in found if f is not None)


def _each(names: str, arguments: str) -> dict[Function, tuple[str, ...]]:
    order = tuple(arguments.split())
    return dict.fromkeys(named(names, torch, _Tensor), order)


_REPEATING = named("repeat_interleave", torch, _Tensor)
_UNEVEN = _REPEATING | named("masked_select nonzero argwhere unique", torch, _Tensor)
_CUTTING = {
    **_each("unbind", "input dim"),
    **_each("select narrow", "input dim index"),
    **_each("split chunk tensor_split split_with_sizes", "input sizes dim"),
}
_JOINING = {
    **_each("cat concat concatenate", "tensors dim"),
    **_each("vstack row_stack", "tensors"),
}
_PICKING = {
    **_each("index_select gather", "input dim index"),
    **_each("take_along_dim", "input indices dim"),
    **_each("sort", "input dim"),
}
_PUTTING = {
    **_each(
        "index_add index_add_ index_copy index_copy_ index_fill index_fill_", "input dim index"
    ),
    **_each("scatter scatter_ scatter_add scatter_add_ scatter_reduce", "input dim index"),
    **_each("scatter_reduce_", "input dim index"),
    **_each("masked_scatter masked_scatter_", "input index"),
    **_each("index_put index_put_", "input index"),
}
_BRACKETS = named("__getitem__ __setitem__", _Tensor)
_MASKING = named("__getitem__", _Tensor)
_DECIDING = _UNEVEN | PACKING | _BRACKETS | _CUTTING.keys() | _JOINING.keys() | {torch.where}
_DECIDING |= _PICKING.keys() | _PUTTING.keys()  # those after which rows may not be the records
_PLAIN = named("clone contiguous to type_as long int float double half bfloat16", _Tensor)


def ordered(names: tuple[str, ...], args: Any, kwargs: Any) -> dict[str, Any]:
    """Return a call's arguments by name, however they were given."""
    found: dict[str, Any] = dict(zip(names, args, strict=False))
    found.update(kwargs)
    return found


class RowOrder:
    """Knows the tensors whose rows need not be those of `size` records in their order.

    shared: tells whether a tensor is the same for all records, so that no record decides it.
    """

    def __init__(self, size: int, shared: Callable[[Any], bool]) -> None:
        self._size, self._shared = size, shared
        self._lost: dict[int, torch.Tensor] = {}
        self._written: dict[int, torch.Tensor] = {}  # by storage: all views of them are lost
        self._packs = Packs(size)
        self._counts: dict[int, torch.Tensor] = {}  # of what a mask picked: rows of each record

    def refuse(self, where: str, tensors: Iterable[torch.Tensor]) -> None:
        """Raise `NotBookable` where a tensor is among them whose rows need not be the records."""
        if any(map(self._is_lost, tensors)):
            raise NotBookable(
                f"{where}: whose row is whose follows from the records (a mask, a length, a "
                "sort, a packed sequence); give it padded rows, and mask what comes of them"
            )

    def check_bags(self, where: str, tensors: Iterable[torch.Tensor], starts: torch.Tensor) -> None:
        """Raise `NotBookable` unless the rows of tensors, cut at `starts`, are a record's each."""
        if len(starts) != self._size:
            raise NotBookable(f"{where}: the bags are not the records")
        for tensor in tensors:
            counts = self._counts.get(id(tensor))
            if counts is None:
                self.refuse(where, [tensor])
                counts = torch.full_like(starts, len(tensor) // self._size)
            if not torch.equal(starts, (counts.cumsum(0) - counts).to(starts.dtype)):
                raise NotBookable(f"{where}: a bag holds places of several records")

    def packing(self, packed: nn.utils.rnn.PackedSequence) -> Packing | None:
        """Return whose each row of packed sequences is, None where that is not known."""
        if self._size < 2:
            found: Packing | None = Packing(packed.batch_sizes, torch.zeros(1, dtype=torch.long))
        else:
            found = self._packs.packing(packed.data)
        return found if found is not None and found.is_of(packed) else None

    def keep_packed(self, rows: torch.Tensor, packing: Packing) -> None:
        """Note that rows are packed so, and not the records."""
        self._lost[id(rows)] = rows
        self._packs.keep(rows, packing)

    def note(self, func: Function, args: Any, kwargs: Any, out: Any, given: Any) -> None:
        """Note what a call makes of its tensors, `given`: it is lost where one of them is."""
        clean = not (self._lost or self._written or self._counts)
        if self._size < 2 or (clean and func not in _DECIDING):
            return
        if func in _PLAIN and id(given[0]) in self._counts:
            self._counts[id(out)] = self._counts[id(given[0])]
        elif func in _MASKING and not any(map(self._is_lost, given)):
            self._count(out, *args[:2])
        in_order = self._packs.note(func, args, kwargs, out, self._is_lost)
        if in_order:
            return
        if any(map(self._is_lost, given)) or self._loses(func, args, kwargs, given):
            self._lost |= {id(t): t for t in records.leaves(out)}
            if out is None or any(out is t for t in given):  # written in place
                self._written[_storage(args[0])] = args[0]

    def _count(self, out: torch.Tensor, tensor: torch.Tensor, mask: Any) -> None:
        """Note how many rows of each record a mask has picked, which stand in their order."""
        if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool or not mask.dim():
            return
        if tensor.shape[: mask.dim()] == mask.shape and len(mask) == self._size:
            self._counts[id(out)] = mask.flatten(1).sum(1) if mask.dim() > 1 else mask.long()

    def _is_lost(self, tensor: torch.Tensor) -> bool:
        if not self._lost and not self._written:
            return False
        return id(tensor) in self._lost or bool(self._written and _storage(tensor) in self._written)

    def _loses(self, func: Function, args: Any, kwargs: Any, given: Any) -> bool:
        if func in _BRACKETS:
            return self._brackets(*args[:2])
        if func in _CUTTING:
            call = ordered(_CUTTING[func], args, kwargs)
            return self._is_first(call["input"], call.get("dim", 0)) and self._rows(call["input"])
        if func in _JOINING:
            call = ordered(_JOINING[func], args, kwargs)
            tensors = records.leaves(call["tensors"])
            several = len(tensors) > 1 and not all(map(self._shared, tensors))
            return several and self._is_first(tensors[0], call.get("dim", 0))
        if func in _PICKING or func in _PUTTING:
            call = ordered({**_PICKING, **_PUTTING}[func], args, kwargs)
            return self._by_index(call)
        if func in _UNEVEN:
            return func not in _REPEATING or len(given) > 1
        return func in PACKING or (func is torch.where and len(args) + len(kwargs) == 1)

    def _by_index(self, call: dict[str, Any]) -> bool:
        """Whether the records decide which rows are picked, or written to."""
        index = call.get("index", call.get("indices", call["input"]))  # a sort decides by itself
        if isinstance(index, tuple | list):
            return self._brackets(call["input"], tuple(index))
        if index.dtype in (torch.bool, torch.uint8):
            return not self._shared(index)
        return self._is_first(call["input"], call.get("dim", 0)) and self._decided(index)

    def _brackets(self, tensor: torch.Tensor, index: Any) -> bool:
        """Whether brackets with this index pick rows of the first dimension that may change."""
        parts = [
            part for part in (index if isinstance(index, tuple) else (index,)) if part is not None
        ]
        masks = [
            p for p in parts if isinstance(p, torch.Tensor) and p.dtype in (torch.bool, torch.uint8)
        ]
        if any(not self._shared(mask) for mask in masks):
            return True
        if parts and parts[0] is Ellipsis:
            parts = parts[1:] if len(parts) - 1 >= tensor.dim() else []
        if not parts or not self._rows(tensor):
            return False
        first = parts[0]
        if isinstance(first, torch.Tensor):
            return not self._shared(first)
        whole = isinstance(first, slice) and first.indices(tensor.shape[0]) == (
            0,
            tensor.shape[0],
            1,
        )
        return not whole

    def _decided(self, index: torch.Tensor) -> bool:
        return not self._shared(index) and index.dim() > 0

    def _rows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor may have the records first."""
        return bool(tensor.dim()) and tensor.shape[0] % self._size == 0 and not self._shared(tensor)

    @staticmethod
    def _is_first(tensor: torch.Tensor, dim: Any) -> bool:
        return dim is None or dim in (0, -tensor.dim())


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
