"""Labels and indices: which values a graph takes of its inputs, and whether all rows have them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from apiece.errors import DataError
from apiece.training.clipping.capture import Captured
from apiece.training.clipping.table import Call, name_of

# By operator: the tensor whose values count places, and of what along which axis.
_COUNTED = {
    "nll_loss_forward": ("target", "self", 1), "nll_loss2d_forward": ("target", "self", 1),
    "embedding": ("indices", "weight", 0), "_embedding_bag": ("indices", "weight", 0),
    "_embedding_bag_forward_only": ("indices", "weight", 0), "gather": ("index", "self", None),
    "scatter": ("index", "self", None),
}  # fmt: skip
_SAME = {"view", "reshape", "_unsafe_view", "unsqueeze", "squeeze", "clone", "_to_copy", "expand"}


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Values from 0 to `size` − 1, and `also`, that an input's tensor may have.

    place: of the tensor among the records'. operator: that counts with it.
    """

    place: int
    size: int
    also: int | None
    operator: str


def ranges(captured: Captured) -> tuple[IndexRange, ...]:
    """Return what the graph's operators take of integers that they are given as they came."""
    places = {node: k for k, node in enumerate(captured.records)}
    result: list[IndexRange] = []
    for node in captured.module.graph.nodes:
        if node.op != "call_function" or name_of(node) not in _COUNTED:
            continue
        index, of, axis = _COUNTED[name_of(node)]
        call = Call(node, {}, captured.sizes)
        source = _source(call.argument(index))
        counted = call.shape(call.argument(of))
        if axis is None:
            axis = int(call.argument("dim"))
        size = counted[min(axis, len(counted) - 1)]
        if source in places and not captured.sizes.depends(size):
            also = call.argument("ignore_index")
            result.append(IndexRange(places[source], size, also, call.name))
    return tuple(dict.fromkeys(result))


def _source(node: fx.Node) -> fx.Node:
    """Return the node whose values, all of them, a node has in another shape."""
    while node.op == "call_function" and name_of(node) in _SAME:
        node = node.args[0]  # type: ignore[assignment]
    return node


def check(wanted: Iterable[IndexRange], tensors: list[torch.Tensor], inputs: int) -> None:
    """Raise `DataError` where a value is outside; the first `inputs` tensors are the inputs'."""
    for one in wanted:
        values = tensors[one.place]
        good = (values >= 0) & (values < one.size)
        if one.also is not None:
            good |= values == one.also
        if not bool(good.all()):
            also = "" if one.also is None else f", or {one.also}"
            raise DataError(
                f"{'inputs' if one.place < inputs else 'targets'}: values outside 0 to "
                f"{one.size - 1}{also}, which is what {one.operator} takes; correct the data, or "
                "give the model as many classes or rows of its table"
            )
