"""Graphs of operators: whether two are one, for any number of records, and without idle parts."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from apiece.training.clipping.table import RANDOM, UNFILLED, Sizes, is_filled, name_of

aten = torch.ops.aten
OTHERWISE = 4  # in the one that it is compared with: even, and small


class Uncaptured(Exception):  # noqa: N818
    """A model or loss cannot be written as one graph; the text says what and where."""


class Coincidence(Exception):  # noqa: N818
    """A number that does not follow the number of records is a multiple of it."""


def place_of(node: fx.Node) -> str:
    """Return the module in whose forward an operator ran."""
    return node.meta.get("custom", {}).get("module") or "model"


def is_mutation(node: fx.Node) -> bool:
    """Return whether a node writes into a tensor, or is an end of the graph."""
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def for_any_size(graph: fx.GraphModule, sizes: Sizes, along: fx.Node) -> None:
    """Let a graph take any number of records, with which all its sizes that follow it change.

    along: a placeholder with the records along its first axis.
    """
    *_, last = (node for node in graph.graph.nodes if node.op == "placeholder")
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "output")]
    with graph.graph.inserting_after(last):
        batch = graph.graph.call_function(aten.sym_size.int, (along, 0))
    known = {1: batch}

    def sized(value: Any) -> Any:
        if not sizes.depends(value):
            return value
        times = value // sizes.batch
        if times not in known:
            with graph.graph.inserting_after(batch):
                known[times] = graph.graph.call_function(operator.mul, (batch, times))
        return known[times]

    for node in calls:
        node.args = fx.node.map_aggregate(node.args, sized)
        node.kwargs = fx.node.map_aggregate(node.kwargs, sized)
    if not batch.users:
        graph.graph.erase_node(batch)


def tidy(graph: fx.GraphModule) -> None:
    """Take out what nothing depends on, and copies that are none."""
    for node in list(graph.graph.nodes):
        if node.op != "call_function":
            continue
        before, same = node, node.target in (aten.detach.default, aten.alias.default)
        if same or (node.target is aten.t.default and node.args[0].target is aten.t.default):
            before = node.args[0] if same else node.args[0].args[0]
            node.replace_all_uses_with(before)
            graph.graph.erase_node(node)
            continue
        if name_of(node) in UNFILLED and not is_filled(node):
            node.target = _ZEROS[name_of(node)]
        node.meta["module"] = node.meta.get("custom", {}).get("module", "")
    _pool_by_channels(graph.graph)
    graph.graph.eliminate_dead_code(is_impure_node=is_mutation)
    graph.recompile()


def _pool_by_channels(graph: fx.Graph) -> None:
    """Let max pooling on a processor have channels last: with both copies a third of the time."""
    target, last = aten.max_pool2d_with_indices.default, torch.channels_last
    for node in graph.find_nodes(op="call_function", target=target):
        given, (value, _) = node.args[0].meta["val"], node.meta["val"]
        if value.device.type != "cpu" or value.dim() != 4:
            continue
        if not given.is_contiguous() or given.is_contiguous(memory_format=last):
            continue
        with graph.inserting_before(node):
            turned = graph.call_function(aten.clone.default, node.args[:1], {"memory_format": last})
        turned.meta = dict(node.args[0].meta)
        node.args = (turned, *node.args[1:])
        for part in list(node.users):
            with graph.inserting_after(part):
                back = graph.call_function(
                    aten.clone.default, (part,), {"memory_format": torch.contiguous_format}
                )
            back.meta = dict(part.meta)
            part.replace_all_uses_with(
                back, delete_user_cb=functools.partial(operator.is_not, back)
            )


_ZEROS: dict[str, Any] = {
    "empty": aten.zeros.default,
    "new_empty": aten.new_zeros.default,
    "empty_like": aten.zeros_like.default,
}


# ---------------------------------------------------------------- two captures agree

_MOVES = (
    "a value of Python's (a coin, a clock, a counter, the number of records) decides what is "
    "computed: draw with torch, for each record, or give it as an input"
)


def agree(graph: fx.GraphModule, other: fx.GraphModule, batch: int) -> None:
    """Raise `Uncaptured` where a graph with `batch` records and one with `OTHERWISE` differ more.

    Raises `Coincidence` where a size is a multiple of `batch`, a prime, and the same in both.
    """
    pairs = _Pairs({}, batch)
    ours, theirs = _moving(graph.graph), _moving(other.graph)
    for one, two in zip(ours, theirs, strict=False):
        pairs.named[one] = two
        if not pairs.alike(one, two):
            raise Uncaptured(
                f"{place_of(one)}: {name_of(one)} differs from one capture to the next; {_MOVES}"
            )
    if len(ours) != len(theirs):
        raise Uncaptured(f"model: other operators from one capture to the next; {_MOVES}")


def _moving(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that are made of inputs or of chance: of others the order does not count."""
    still: set[fx.Node] = set()
    for node in graph.nodes:
        made = node.op == "call_function" and name_of(node) not in RANDOM
        made = made and not is_mutation(node)
        if (made or node.op == "get_attr") and still.issuperset(node.all_input_nodes):
            still.add(node)
    return [node for node in graph.nodes if node not in still]


def moved_by_records(graph: fx.Graph) -> set[fx.Node]:
    """Return what is made of inputs or of chance, and what such values are written into."""
    result = {n for n in graph.nodes if n.op == "placeholder" or name_of(n) in RANDOM}
    known = 0
    while len(result) > known:
        known = len(result)
        for node in graph.nodes:
            if node not in result and result.isdisjoint(node.all_input_nodes):
                continue
            result.add(node)
            schema, into = getattr(node.target, "_schema", None), node
            while schema is not None and schema.is_mutable and into.args:
                if not isinstance(into.args[0], fx.Node):
                    break
                into = into.args[0]
                result.add(into)
    return result


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Nodes of two captures that do the same, the first with `batch` records."""

    named: dict[fx.Node, fx.Node]
    batch: int

    def alike(self, one: fx.Node, two: fx.Node) -> bool:
        """Return whether two nodes do the same with what are the same nodes before them."""
        if one.op != two.op:
            return False
        if one.op == "get_attr":
            a, b = (operator.attrgetter(str(n.target))(n.graph.owning_module) for n in (one, two))
            return a is b or (isinstance(a, torch.Tensor) and _equal(a, b))
        if not self.same(_shapes(one.meta.get("val")), _shapes(two.meta.get("val"))):
            raise Uncaptured(
                f"{place_of(one)}: {name_of(one)}: a size is not a multiple of the batch's"
            )
        if one.op == "placeholder":
            return True
        return (
            one.target == two.target
            and one.kwargs.keys() == two.kwargs.keys()
            and self.same(
                [*one.args, *one.kwargs.values()], [*two.args, *(two.kwargs[k] for k in one.kwargs)]
            )
        )

    def same(self, a: object, b: object) -> bool:
        """Return whether two arguments are the same, or one multiple of the numbers of records."""
        if isinstance(a, list | tuple) and isinstance(b, list | tuple):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, fx.Node) and isinstance(b, fx.Node):
            if a not in self.named and b not in self.named.values() and self.alike(a, b):
                self.named[a] = b
            return self.named.get(a) is b
        if type(a) is int and type(b) is int:
            if a == b and a and a % self.batch == 0:
                raise Coincidence
            return a == b or a * OTHERWISE == b * self.batch
        return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and a != a and b != b)


def _shapes(value: object) -> object:
    """Return the shapes of a node's tensors."""
    if isinstance(value, list | tuple):
        return [_shapes(part) for part in value]
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _equal(a: torch.Tensor, b: object) -> bool:
    if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))) if a.numel() else True
