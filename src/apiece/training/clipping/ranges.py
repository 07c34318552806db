"""Labels and indices: which values a graph takes of its inputs, and whether all rows have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from apiece.errors import DataError
from apiece.training.clipping.capture import Captured
from apiece.training.clipping.table import Call, name_of


@dataclass(frozen=True, slots=True)
class _Counting:
    """How an operator counts places: by which argument, in which other one, along which axis.

    axis: None for the one that its argument `dim` names.
    """

    index: str
    table: str
    axis: int | None


# By operator. Labels count the classes, on the second axis of the scores or on the only one.
_COUNTING = {
    "nll_loss_forward": _Counting("target", "self", 1),
    "nll_loss2d_forward": _Counting("target", "self", 1),
    "embedding": _Counting("indices", "weight", 0),
    "_embedding_bag": _Counting("indices", "weight", 0),
    "_embedding_bag_forward_only": _Counting("indices", "weight", 0),
    "gather": _Counting("index", "self", None),
    "scatter": _Counting("index", "self", None),
}
# Operators that give all the values they take, in another shape or type.
_SAME_VALUES = {
    "view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "clone", "_to_copy", "expand",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Values from 0 to `size` − 1, and `also`, that an input's tensor may have.

    place: of the tensor among the records'. operator: that counts with it.
    """

    place: int
    size: int
    also: int | None
    operator: str


def find_ranges(captured: Captured) -> tuple[IndexRange, ...]:
    """Return what the graph's operators take of integers that they are given as they came."""
    # By node of a records' tensor, its number among them.
    places = {node: place for place, node in enumerate(captured.records)}
    result: list[IndexRange] = []
    for node in captured.module.graph.nodes:
        counting = _COUNTING.get(name_of(node)) if node.op == "call_function" else None
        if counting is None:
            continue
        # Layouts are not needed here: only arguments and shapes are read.
        call = Call(node, {}, captured.sizes)
        source = _source(call.argument(counting.index))
        shape = call.shape(call.argument(counting.table))
        if not shape:
            continue
        axis = int(call.argument("dim")) if counting.axis is None else counting.axis
        # Scores without a batch's axis have the classes on their only one.
        size = shape[min(axis, len(shape) - 1)]
        # a size that follows the batch is no fixed number of places
        if source in places and not captured.sizes.depends(size):
            also = call.argument("ignore_index")
            result.append(IndexRange(places[source], size, also, call.name))
    return tuple(dict.fromkeys(result))


def _source(node: fx.Node) -> fx.Node:
    """Return the node whose values, all of them, a node has in another shape."""
    # Backwards through views and casts, as long as the values stay.
    while node.op == "call_function" and name_of(node) in _SAME_VALUES:
        node = node.args[0]  # type: ignore[assignment]
    return node


def check_ranges(ranges: Iterable[IndexRange], tensors: list[torch.Tensor], inputs: int) -> None:
    """Raise `DataError` where a value is outside; the first `inputs` tensors are the inputs'."""
    # One pass over the column for each range; no position is named, since it is a record's.
    for wanted in ranges:
        values = tensors[wanted.place]
        is_valid = (values >= 0) & (values < wanted.size)
        if wanted.also is not None:
            is_valid |= values == wanted.also
        if not bool(is_valid.all()):
            argument = "inputs" if wanted.place < inputs else "targets"
            also = "" if wanted.also is None else f", or {wanted.also}"
            raise DataError(
                f"{argument}: values outside 0 to {wanted.size - 1}{also}, which is what "
                f"{wanted.operator} takes; correct the data, or give the model as many classes or "
                "rows of its table"
            )
