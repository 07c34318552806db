"""Graphs of operators: whether two are one, for any number of records, and without idle parts."""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from apiece.training.clipping import torch_internals
from apiece.training.clipping.table import RANDOM, UNFILLED, Sizes, is_filled, name_of

aten = torch.ops.aten
# Records in the graph that another one is compared with: even, and small.
FEW_RECORDS = 4


class Uncaptured(Exception):  # noqa: N818
    """A model or loss cannot be written as one graph; the text says what and where."""


class Coincidence(Exception):  # noqa: N818
    """A number that does not follow the number of records is a multiple of it."""


def place_of(node: fx.Node) -> str:
    """Return the module in whose forward an operator ran."""
    return node.meta.get("custom", {}).get("module") or "model"


def is_mutation(node: fx.Node) -> bool:
    """Return whether a node writes into a tensor, or is an end of the graph."""
    schema = torch_internals.schema_of(node.target)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def free_batch_size(graph: fx.GraphModule, sizes: Sizes, along: fx.Node) -> None:
    """Let a graph take any number of records, with which all its sizes that follow it change.

    along: a placeholder with the records along its first axis.
    """
    # The batch's size is read after the placeholders, before everything that may need it.
    *_, last_placeholder = (node for node in graph.graph.nodes if node.op == "placeholder")
    # listed before the sizes come among them
    calls = [node for node in graph.graph.nodes if node.op in ("call_function", "output")]
    with graph.graph.inserting_after(last_placeholder):
        batch = graph.graph.call_function(aten.sym_size.int, (along, 0))
    # by the factor: the node that gives so many times the number of records
    multiples = {1: batch}

    def replace_size(value: Any) -> Any:
        if not sizes.depends(value):
            return value
        factor = value // sizes.batch
        # One node for each multiple, however many arguments have it.
        if factor not in multiples:
            with graph.graph.inserting_after(batch):
                multiples[factor] = graph.graph.call_function(operator.mul, (batch, factor))
        return multiples[factor]

    # In arguments alone: what a tensor's shape says follows the tensor by itself.
    for node in calls:
        node.args = fx.node.map_aggregate(node.args, replace_size)
        node.kwargs = fx.node.map_aggregate(node.kwargs, replace_size)
    if not batch.users:  # no size follows the batch
        graph.graph.erase_node(batch)


def tidy(graph: fx.GraphModule) -> None:
    """Take out what nothing depends on, and copies that are none."""
    for node in list(graph.graph.nodes):  # listed, since nodes are taken out
        if node.op != "call_function":
            continue
        source = _source_of_copy(node)
        if source is not None:
            node.replace_all_uses_with(source)
            graph.graph.erase_node(node)
            continue
        # Memory that somebody may read before it is written would hold what another batch left.
        if name_of(node) in UNFILLED and not is_filled(node):
            node.target = _ZEROS[name_of(node)]
        notes = node.meta.get("custom", {})
        node.meta["module"] = notes.get("module", "")
    _pool_by_channels(graph.graph)
    graph.graph.eliminate_dead_code(is_impure_node=is_mutation)
    graph.recompile()


def _source_of_copy(node: fx.Node) -> fx.Node | None:
    """Return the tensor that an operator gives once more; None for one that does something.

    That is a `detach` or an `alias`, which mean something to autograd alone, and the second of two
    transposes.
    """
    if node.target in (aten.detach.default, aten.alias.default):
        return node.args[0]  # type: ignore[return-value]
    if node.target is aten.t.default:
        transposed: Any = node.args[0]
        if transposed.target is aten.t.default:
            source: fx.Node = transposed.args[0]
            return source
    return None


def _pool_by_channels(graph: fx.Graph) -> None:
    """Let max pooling on a processor have channels last: with both copies a third of the time."""
    if all(node.meta["val"].device.type != "cpu" for node in graph.find_nodes(op="placeholder")):
        return
    target = aten.max_pool2d_with_indices.default
    for node in graph.find_nodes(op="call_function", target=target):
        if not _gains_by_channels_last(node):
            continue
        # Copied to channels last, pooled, and both outputs copied back: consumers find the strides
        # that the capture has promised them.
        source = node.args[0]
        with graph.inserting_before(node):
            turned = graph.call_function(
                aten.clone.default, (source,), {"memory_format": torch.channels_last}
            )
        turned.meta = dict(source.meta)
        node.args = (turned, *node.args[1:])
        for output in list(node.users):
            with graph.inserting_after(output):
                turned_back = graph.call_function(
                    aten.clone.default, (output,), {"memory_format": torch.contiguous_format}
                )
            turned_back.meta = dict(output.meta)
            # all uses but the copy's own
            output.replace_all_uses_with(
                turned_back, delete_user_cb=functools.partial(operator.is_not, turned_back)
            )


def _gains_by_channels_last(pooling: fx.Node) -> bool:
    """Return whether pictures are a batch, and have their channels first."""
    source = pooling.args[0].meta["val"]  # type: ignore[union-attr]
    values, _ = pooling.meta["val"]
    if values.dim() != 4:
        return False
    is_channels_last = source.is_contiguous(memory_format=torch.channels_last)
    return bool(source.is_contiguous() and not is_channels_last)


# By operator that leaves memory as it was found, the one that fills it with zeros.
_ZEROS: dict[str, Any] = {
    "empty": aten.zeros.default,
    "new_empty": aten.new_zeros.default,
    "empty_like": aten.zeros_like.default,
}


# ---------------------------------------------------------------- two captures agree

# What is said of two captures that differ, after where they do.
_MOVES = (
    "a value of Python's (a coin, a clock, a counter, the number of records) decides what is "
    "computed: draw with torch, for each record, or give it as an input"
)


def check_agreement(
    graph: fx.GraphModule,
    other: fx.GraphModule,
    batch: int,
    lengths: tuple[int, int] | None = None,
) -> dict[fx.Node, fx.Node]:
    """Return the other's node for each; they may be of records of two lengths.

    Raises `Uncaptured` where a graph with `batch` records differs from one with `FEW_RECORDS`.
    Sizes may differ that are the same multiple of the numbers of records, or follow the length.
    Raises `Coincidence` where a size is a multiple of `batch`, a prime, and the same in both.
    """
    # `partner` grows as the walk goes on: nodes are compared after all that they take.
    pairs = _Pairs({}, batch, lengths)
    # What is made of inputs or of chance comes in the order of the code, the same in both.
    nodes = _ordered_nodes(graph.graph)
    other_nodes = _ordered_nodes(other.graph)
    # of several lengths the first difference is said, if there is one before the end
    for node, other_node in zip(nodes, other_nodes, strict=False):
        pairs.partner[node] = other_node
        if not pairs.nodes_agree(node, other_node):
            raise Uncaptured(
                f"{place_of(node)}: {name_of(node)} differs from one capture to the next; {_MOVES}"
            )
    if len(nodes) != len(other_nodes):
        raise Uncaptured(f"model: other operators from one capture to the next; {_MOVES}")
    return pairs.partner


def size_between(
    value: int, other: int, batch: int, lengths: tuple[int, int], length: int
) -> int | None:
    """Return a size for records of `length`; None where it does not follow the lengths so.

    It is `value` in a graph with `batch` records of the first of `lengths`, and `other` with
    `FEW_RECORDS` of the second. What a record has of it is the same, or s·length + c with whole
    numbers s and c.
    """
    # value/unit is a record's share; slope and offset of the line through (l₁, share₁) and (l₂,
    # share₂) follow from both.
    is_along = value != 0 and value % batch == 0 == other % FEW_RECORDS
    unit, other_unit = (batch, FEW_RECORDS) if is_along else (1, 1)
    share = value // unit
    slope, remainder = divmod(share - other // other_unit, lengths[0] - lengths[1])
    if remainder and value != other:
        return None
    return value if value == other else unit * (share + slope * (length - lengths[0]))


def _ordered_nodes(graph: fx.Graph) -> list[fx.Node]:
    """Return the nodes that are made of inputs or of chance: of others the order does not count."""
    # Grows in the graph's order: a node is constant if all that it takes is.
    constants: set[fx.Node] = set()
    # Made of constants alone, by no chance, writing nowhere: they may come in any order.
    for node in graph.nodes:
        is_pure = node.op == "call_function" and name_of(node) not in RANDOM
        is_pure = is_pure and not is_mutation(node)
        if (is_pure or node.op == "get_attr") and constants.issuperset(node.all_input_nodes):
            constants.add(node)
    return [node for node in graph.nodes if node not in constants]


def moved_by_records(graph: fx.Graph) -> set[fx.Node]:
    """Return what is made of inputs or of chance, and what such values are written into."""
    # Of inputs, model's tensors among them: what a forward leaves must follow from none.
    moved = {n for n in graph.nodes if n.op == "placeholder" or name_of(n) in RANDOM}
    size = 0
    # Until nothing is added: a write moves what was read from the same memory before it.
    while len(moved) > size:
        size = len(moved)
        for node in graph.nodes:
            if node not in moved and moved.isdisjoint(node.all_input_nodes):
                continue
            moved.add(node)
            moved.update(written_by(node))
    return moved


def written_by(node: fx.Node) -> list[fx.Node]:
    """Return the tensor that an operator writes into, and all those that this one is a view of.

    They are followed by the first argument: of a view, what it is of.
    """
    schema = torch_internals.schema_of(node.target)
    written: list[fx.Node] = []
    if schema is None or not schema.is_mutable:
        return written
    target = node
    # Of an operator that writes, and of a view, the first argument is the memory's owner; of any
    # other it only marks more than need be.
    while target.args and isinstance(target.args[0], fx.Node):
        target = target.args[0]
        written.append(target)
    return written


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Nodes of two captures that do the same, the first with `batch` records.

    partner: by node of the first capture, the node of the second. lengths: of their records, where
    the two have several.
    """

    partner: dict[fx.Node, fx.Node]
    batch: int
    lengths: tuple[int, int] | None = None

    def nodes_agree(self, node: fx.Node, other: fx.Node) -> bool:
        """Return whether two nodes do the same with what are the same nodes before them."""
        if node.op != other.op:
            return False
        if node.op == "get_attr":
            return _is_same_constant(_constant(node), _constant(other))
        shapes = _shapes(node.meta.get("val"))
        if not self.arguments_agree(shapes, _shapes(other.meta.get("val"))):
            raise Uncaptured(
                f"{place_of(node)}: {name_of(node)}: a size follows the number of records, and "
                "is no multiple of it"
            )
        if node.op == "placeholder":
            return True
        if node.target != other.target:
            return False
        if node.kwargs.keys() != other.kwargs.keys():
            return False
        # by the order of the first one's, since the second one's may be another
        keyword_arguments = [other.kwargs[key] for key in node.kwargs]
        arguments = [*node.args, *node.kwargs.values()]
        other_arguments = [*other.args, *keyword_arguments]
        return self.arguments_agree(arguments, other_arguments)

    def arguments_agree(self, value: object, other: object) -> bool:
        """Return whether two arguments are the same, or one multiple of the numbers of records."""
        if isinstance(value, list | tuple) and isinstance(other, list | tuple):
            return len(value) == len(other) and all(map(self.arguments_agree, value, other))
        if isinstance(value, fx.Node) and isinstance(other, fx.Node):
            # Constants have no order in which to be paired: they are when something takes them.
            is_new = value not in self.partner and other not in self.partner.values()
            if is_new and self.nodes_agree(value, other):
                self.partner[value] = other
            return self.partner.get(value) is other
        if type(value) is int and type(other) is int:
            # By chance, as it seems, a fixed size is a multiple: with another prime it is none.
            if value == other and value and value % self.batch == 0:
                raise Coincidence
            if self.lengths is not None:
                return size_between(value, other, self.batch, self.lengths, 0) is not None
            # value/batch = other/few, without a division
            return value == other or value * FEW_RECORDS == other * self.batch
        # True, 1 and 1.0 are equal, and so are both zeros: operators treat them differently.
        if type(value) is type(other) and isinstance(value, float | complex):
            return repr(value) == repr(other)
        if isinstance(value, int | float | complex) and type(value) is not type(other):
            return False
        return bool(value == other)


def _constant(node: fx.Node) -> object:
    """Return what a node reads from its module."""
    return operator.attrgetter(str(node.target))(node.graph.owning_module)


def _shapes(value: object) -> object:
    """Return the shapes of a node's tensors."""
    if isinstance(value, list | tuple):
        return [_shapes(part) for part in value]
    return list(value.shape) if isinstance(value, torch.Tensor) else None


def _is_same_constant(value: object, other: object) -> bool:
    """Return whether two constants are one, or tensors of the same bits; NaN of any bits is NaN."""
    if value is other:
        return True
    if not isinstance(value, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    form = (value.shape, value.dtype, value.device, value.layout)
    if form != (other.shape, other.dtype, other.device, other.layout):
        return False
    # By the bits, since both zeros are equal, and 1 over the one is not 1 over the other.
    return torch.equal(_bits(value), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor's entries, those of one NaN for each that is NaN."""
    entries = tensor.detach().resolve_conj().resolve_neg()
    entries = (entries if entries.layout is torch.strided else entries.to_dense()).reshape(-1)
    if entries.is_complex():
        entries = torch.view_as_real(entries).reshape(-1)
    if entries.is_floating_point():
        entries = torch.where(entries.isnan(), math.nan, entries)
    return entries.contiguous().view(torch.uint8)
