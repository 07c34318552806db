"""Rewriting: a proved graph becomes one that gives what norms and clipped sums are made of.

Where an operator turns records into a sum over them (a leaf), its arguments are given out instead:
they say each record's gradient, mostly without making it. `Contribution` has the cheapest way from
there to norms and weighted sums, both from the very same tensors. All that an engine does with a
batch can be traced once more, and compiled as one graph.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from apiece.errors import UnsupportedError
from apiece.training.clipping.capture import Captured
from apiece.training.clipping.contributions import (
    Contribution,
    Outer,
    Rows,
    check_shape,
    join,
    lookups,
    products,
)
from apiece.training.clipping.convolution import Kernel, convolution
from apiece.training.clipping.graphs import for_any_size
from apiece.training.clipping.proof import Proved, module_of
from apiece.training.clipping.ranges import IndexRange
from apiece.training.clipping.reconcile import LARGEST_MODEL, made_up_arguments, reconcile
from apiece.training.clipping.table import (
    RANDOM,
    SHARED,
    Call,
    Places,
    Records,
    Sizes,
    Summed,
    Unproved,
    layout_and_tensor,
    name_of,
)

Tensors = list[torch.Tensor]
_VIEWS = {"view", "_unsafe_view", "reshape"}
# Maps of a gradient that keep its norm, entry for entry.
_ISOMETRIES = {
    "t", "transpose", "permute", "view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "neg",
    "clone", "_to_copy",
}  # fmt: skip


# From the operands of a leaf and the number of records to what it gives each of them.
Make = Callable[[Tensors, int], Contribution]


@dataclass(frozen=True, slots=True, eq=False)
class Rule:
    """How a leaf's contribution is made: the tensors that it takes, and the function of them."""

    operands: tuple[fx.Node, ...]
    make: Make


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """An operator that sums over records: what it takes, and what that gives each of them.

    name: of the operator, with its module. shape: of the sum, and so of each record's part of it.
    """

    name: str
    shape: tuple[int, ...]
    rule: Rule

    @property
    def operands(self) -> tuple[fx.Node, ...]:
        """The tensors that it takes."""
        return self.rule.operands

    def contribution(self, given: Tensors, size: int) -> Contribution:
        """Return what `size` records give, each in the shape of the sum.

        Raises `UnsupportedError` for any other.
        """
        result = self.rule.make(given, size)
        check_shape(result, (size, *self.shape), self.name)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operator between leaves and a parameter's gradient, as it was before the rewriting.

    before: the shape of what it takes first. shape: of what it gives.
    """

    node: fx.Node
    name: str
    before: tuple[int, ...]
    shape: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, node: fx.Node) -> Step:
        """Return the step that a node is."""
        source = node.args[0]
        before = source.meta["val"].shape if isinstance(source, fx.Node) else ()
        return cls(node, name_of(node), tuple(before), _shape(node), node.args, dict(node.kwargs))

    @property
    def kind(self) -> tuple[object, ...]:
        """What makes two steps the same."""
        given = () if self.name in _VIEWS else tuple(map(str, self.args[1:]))
        return self.name, self.shape, given

    def applied(self, value: torch.Tensor) -> torch.Tensor:
        """Return the step of a weighted sum of leaves, which stays wide.

        Raises `UnsupportedError` where the sum has another shape than the step's own input had.
        """
        if tuple(value.shape) != self.before:
            raise UnsupportedError(
                f"{self.name}: takes a sum of shape {tuple(value.shape)} for one of {self.before}; "
                "use method='alone'"
            )
        if self.name in _VIEWS:
            return value.reshape(self.shape)
        if self.name in ("clone", "_to_copy"):
            return value
        result: torch.Tensor = self.node.target(value, *self.args[1:], **self.kwargs)  # type: ignore[operator]
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A parameter's gradient: leaves whose sum, taken through `chain`, it is.

    name: of the parameter. shape: of the parameter, and so of its gradient. through: where the
    leaves go separate ways, or ones that change norms, the map from each record's leaves to its
    gradient; with the shared tensors that it needs.
    """

    name: str
    shape: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    chain: tuple[Step, ...] = ()
    through: Callable[..., torch.Tensor] | None = None
    shared: tuple[fx.Node, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """What is run for a batch: the graph, and what becomes of what it gives.

    module: takes what the captured graph takes; gives losses and operands. parts: by parameter;
    none for one that no record's loss depends on. places: of each operand in what the graph gives.
    """

    module: fx.GraphModule
    parts: dict[str, Part]
    places: dict[fx.Node, int]

    @functools.cached_property
    def _function(self) -> Callable[..., Tensors]:
        return as_function(self.module.graph)

    @functools.cached_property
    def draws(self) -> bool:
        """Return whether the graph draws random numbers."""
        return any(name_of(node) in RANDOM for node in self.module.graph.nodes)

    @property
    def calls(self) -> int:
        """How many operators the graph has."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Tensors]:
        """Return losses and operands."""
        losses, *operands = self._function(self.module, *tensors)
        return losses, operands

    def contributions(self, operands: Tensors, size: int) -> dict[str, Contribution]:
        """Return each parameter's contribution in the layout of its leaves, by name."""
        return {name: self.contribution(p, operands, size) for name, p in self.parts.items()}

    def contribution(self, part: Part, operands: Tensors, size: int) -> Contribution:
        """Return what `size` records give one parameter, in the layout of its leaves."""

        def given(nodes: Sequence[fx.Node]) -> Tensors:
            return [_widened(operands[self.places[node]]) for node in nodes]

        made = [leaf.contribution(given(leaf.operands), size) for leaf in part.leaves]
        if part.through is None:
            return join(made)
        shared = given(part.shared)
        dims = (*(0 for _ in made), *(None for _ in shared))
        # A gradient is linear in its leaves: the map of a record's leaves gives its gradient.
        rows = [one.per_record() for one in made]
        result = Rows(_widened(torch.vmap(part.through, in_dims=dims)(*rows, *shared)))
        check_shape(result, (size, *part.shape), part.name)
        return result

    def finished(self, name: str, total: torch.Tensor) -> torch.Tensor:
        """Return a weighted sum of leaves as the parameter's gradient.

        Raises `UnsupportedError` where it has another shape than the parameter.
        """
        part = self.parts[name]
        for step in part.chain:
            total = step.applied(total)
        if tuple(total.shape) != part.shape:
            raise UnsupportedError(
                f"{name}: its gradient comes to shape {tuple(total.shape)} for {part.shape}; use "
                "method='alone'"
            )
        return total.contiguous()


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if narrow else tensor


def as_function(graph: fx.Graph) -> Callable[..., Tensors]:
    """Return a graph as a function of its module and tensors, with each operator at hand."""
    code = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)

    def bound(call: re.Match[str]) -> str:
        library, name, overload = call.groups()
        packet = getattr(getattr(torch.ops, library), name)
        # The overload's own binding spares torch's look-up, a microsecond an operator.
        key = f"{library}_{name}_{overload}"
        names[key] = getattr(packet, overload)._op
        return f"{key}("

    exec(re.sub(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)\(", bound, code.src), names)
    result: Callable[..., Tensors] = names["forward"]
    return result


def rewrite(
    captured: Captured,
    proved: Proved,
    held: Sequence[torch.Tensor] = (),
    ranges: Sequence[IndexRange] = (),
) -> Program:
    """Return the program of a graph in which records do not meet, and which is changed.

    Args:
        captured: The graph.
        proved: Where the records are in it.
        held: The model's tensors that the graph takes, by which the program is tried on made-up
            records; it is not tried without them, or where they are many.
        ranges: Of the labels and indices among the records' tensors.

    Raises:
        Unproved: Where an operator has no rule that gives each record's gradient, or what the rules
            give does not add up to the graph's own gradients.
    """
    losses, gradients = captured.results
    writer, graph = _Writer(proved, captured.sizes), captured.module.graph
    of_parameters = {
        name: gradient
        for name, gradient in zip(captured.trained, gradients, strict=True)
        if gradient is not None and isinstance(proved.layouts[gradient], Summed)
    }
    parts = {name: writer.part(name, gradient) for name, gradient in of_parameters.items()}
    places: dict[fx.Node, int] = {}
    for part in parts.values():
        for node in (*(n for leaf in part.leaves for n in leaf.operands), *part.shared):
            places.setdefault(node, len(places))
    end = next(node for node in graph.nodes if node.op == "output")
    end.args = ([losses, *places, *(of_parameters[name] for name in parts)],)
    graph.set_codegen(fx.graph.CodeGen())
    for_any_size(captured.module, captured.sizes, captured.records[0])
    program = Program(captured.module, parts, places)
    if held and sum(tensor.numel() for tensor in held) <= LARGEST_MODEL:
        labels = {one.place: one.size for one in ranges}
        reconcile(program, list(parts), made_up_arguments(graph, held, labels))
    end.args = ([*end.args[0][: 1 + len(places)]],)
    _eliminate_dead_code(graph)
    for node in graph.nodes:
        _spare(node)
    _eliminate_dead_code(graph)
    graph.lint()
    captured.module.recompile()
    return program


_MASKED = ("convolution_backward", "native_layer_norm_backward", "native_group_norm_backward",
           "native_batch_norm_backward", "_fused_rms_norm_backward")  # fmt: skip


def _eliminate_dead_code(graph: fx.Graph) -> None:
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def _spare(node: fx.Node) -> None:
    """Let an operator that gives several gradients make only those that something takes."""
    if node.op == "call_function" and name_of(node) in _MASKED:
        *others, mask = node.args
        assert isinstance(mask, list | tuple)
        used = {user.args[1] for user in node.users}
        node.args = (*others, [bool(wanted) and k in used for k, wanted in enumerate(mask)])


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    proved: Proved
    sizes: Sizes
    known: dict[fx.Node, Leaf] = field(default_factory=dict)

    def part(self, name: str, gradient: fx.Node) -> Part:
        """Return what a parameter's gradient is made of."""
        # Norms of leaves are those of the gradient only where all leaves go the same way to it,
        # from one shape, and the way keeps norms.
        terms = self._terms(gradient)
        if terms is None:
            return self._mapped(name, gradient)
        ways = {(_shape(node), *(step.kind for step in chain)) for node, chain in terms}
        if len(ways) > 1:
            return self._mapped(name, gradient)
        leaves = tuple(self.leaf(node) for node, _ in terms)
        return Part(name, _shape(gradient), leaves, _shortened(terms[0][1]))

    def _terms(self, node: object) -> list[tuple[fx.Node, tuple[Step, ...]]] | None:
        """Return the leaves that a gradient is the sum of, each with the isometries on its way.

        None where another map lies on the way.
        """
        if not isinstance(node, fx.Node) or node.op != "call_function":
            return None
        if self.is_leaf(node):
            return [(node, ())]
        if name_of(node) in _ISOMETRIES:
            inner = self._terms(node.args[0])
            step = Step.of(node)
            return None if inner is None else [(leaf, (*chain, step)) for leaf, chain in inner]
        if name_of(node) == "add" and node.kwargs.get("alpha", 1) == 1 and len(node.args) == 2:
            one, other = map(self._terms, node.args)
            return None if one is None or other is None else one + other
        return None

    def is_leaf(self, node: fx.Node) -> bool:
        """Return whether a node gives a sum over records of what it takes of each."""
        source = node.args[0] if node.target is operator.getitem else node
        return source in self.proved.leaves

    def _mapped(self, name: str, gradient: fx.Node) -> Part:
        """Return a gradient by the map that takes each record's leaves to it."""
        order, leaves, shared = list[fx.Node](), list[fx.Node](), list[fx.Node]()

        def visit(node: fx.Node) -> None:
            if node in order or node in leaves or node in shared:
                return
            if self.is_leaf(node):
                leaves.append(node)
            elif not isinstance(self.proved.layouts.get(node, SHARED), Summed):
                shared.append(node)
            else:
                for before in node.all_input_nodes:
                    visit(before)
                order.append(node)

        visit(gradient)
        steps = [Step.of(node) for node in order]

        def through(*tensors: torch.Tensor) -> torch.Tensor:
            held: dict[fx.Node, Any] = dict(zip([*leaves, *shared], tensors, strict=True))
            for step in steps:
                args, kwargs = fx.map_arg((step.args, step.kwargs), held.__getitem__)
                if step.name in _VIEWS:  # of what may lie in memory otherwise than in the graph
                    held[step.node] = args[0].reshape(step.shape)
                else:
                    held[step.node] = step.node.target(*args, **kwargs)  # type: ignore[operator]
            result: torch.Tensor = held[gradient]
            return result

        made = tuple(map(self.leaf, leaves))
        return Part(name, _shape(gradient), made, through=through, shared=tuple(shared))

    def leaf(self, node: fx.Node) -> Leaf:
        """Return a leaf's rule."""
        if node not in self.known:
            source, index = node, 0
            if node.target is operator.getitem:
                source, index = node.args  # type: ignore[assignment]
            call = Call(source, self.proved.layouts, self.sizes)
            rule = LEAVES.get(call.name)
            made = (rule and rule(call, index)) or _by_vmap(call, index)
            where = f"{module_of(source) or 'model'}: {call.name}"
            self.known[node] = Leaf(where, _shape(node), made)
        return self.known[node]


def _shape(node: fx.Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _shortened(chain: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a chain without transposes that undo one another, and views before a view."""
    result: list[Step] = []
    for step in chain:
        if result and step.name == result[-1].name == "t":
            result.pop()
        elif step.name not in ("clone", "_to_copy"):
            if result and step.name in _VIEWS and result[-1].name in _VIEWS:
                step = replace(step, before=result.pop().before)
            result.append(step)
    return tuple(result)


# ---------------------------------------------------------------- leaves, operator by operator


def by_record(tensor: torch.Tensor, layout: Records, size: int) -> torch.Tensor:
    """Return (B, rows, *rest): each record's places on its axis, then the other axes in order."""
    shape, axis = list(tensor.shape), layout.axis
    rows = shape[axis] // size
    # The axis is outer × records × inner; the records come to the front, the rest stays in order.
    outer = rows if layout.inner == 1 else (1 if layout.outer == 1 else int(layout.outer))
    split = tensor.reshape(*shape[:axis], outer, size, rows // outer, *shape[axis + 1 :])
    moved = split.movedim((axis + 1, axis, axis + 2), (0, 1, 2))
    return moved.reshape(size, rows, *shape[:axis], *shape[axis + 1 :])


def _along(call: Call, name: str) -> tuple[fx.Node, Records]:
    node, layout = layout_and_tensor(call, name)
    assert isinstance(layout, Records)
    return node, layout


def _mm(call: Call, _index: int) -> Rule | None:
    (left, one), (right, other) = _along(call, "self"), _along(call, "mat2")
    # With one row a record leftᵀ·right is a sum of outer products, whose norms are ‖left‖·‖right‖.
    if (one, other) == (Records(1), Records(0)):
        if name_of(left) == "t":  # of what a bias is given, whose norms are then found once
            return Rule((left.args[0], right), lambda given, _: Outer(given[0], given[1]))  # type: ignore[arg-type]
        return Rule((left, right), lambda given, _: Outer(given[0].t(), given[1]))

    def make(given: Tensors, size: int) -> Contribution:
        a, b = by_record(given[0], one, size), by_record(given[1], other, size)
        if a.shape[1] == 1:
            return Outer(a.squeeze(1), b.squeeze(1))
        return products(a, b)

    return Rule((left, right), make)


def _sum(call: Call, _index: int) -> Rule | None:
    node, layout = _along(call, "self")
    dims = call.axes(call.argument("dim"), node)
    shape = call.out()
    others = [2 + k - (k > layout.axis) for k in dims if k != layout.axis]
    if layout == Records(0) and not others:
        if not call.argument("keepdim", False):  # the very tensor, whose norms are found once
            return Rule((node,), lambda given, _: Rows(given[0]))
        return Rule((node,), lambda given, size: Rows(given[0].reshape(size, *shape)))

    def make(given: Tensors, size: int) -> Contribution:
        rows = by_record(given[0], layout, size)
        alone = rows.shape[1] == 1 and not others
        total = rows.squeeze(1) if alone else rows.sum([1, *others])
        # what is left are the axes of the sum in their order: with `keepdim`, ones among them
        return Rows(total.reshape(size, *shape))

    return Rule((node,), make)


def _convolution(call: Call, index: int) -> Rule | None:
    node, layout = _along(call, "grad_output")
    if layout != Records(0):
        return None
    # A bias is added at every place: its gradient is the output's, added up over them.
    if index == 2:
        return Rule((node,), lambda given, _: Rows(given[0].flatten(2).sum(2)))
    given_in = call.argument("input")
    shape = tuple(int(s) for s in call.shape(call.argument("weight")))
    stride, padding, dilation = (
        tuple(int(s) for s in call.argument(n)) for n in ("stride", "padding", "dilation")
    )
    kernel = Kernel(shape, stride, padding, dilation, int(call.argument("groups")))
    if call.argument("transposed"):  # the weight's gradient with input and output exchanged
        return Rule((given_in, node), lambda t, _: convolution(kernel, t[1], t[0]))
    return Rule((given_in, node), lambda t, _: convolution(kernel, t[0], t[1]))


def _embedding(call: Call, _index: int) -> Rule | None:
    (node, layout), indices = _along(call, "grad_output"), call.argument("indices")
    count, padding = int(call.argument("num_weights")), int(call.argument("padding_idx"))

    def make(given: Tensors, size: int) -> Contribution:
        index = by_record(given[1], layout, size).flatten(1)
        left = by_record(given[0], layout, size)
        left = left.reshape(*index.shape, left.shape[-1])
        if padding >= 0:
            left = left * (index != padding).unsqueeze(2)
        return lookups(index, left, count)

    return Rule((node, indices), make)


def _bags(call: Call, _index: int) -> Rule | None:
    gradient, indices = call.argument("grad"), call.argument("indices")
    count, padding = int(call.argument("num_weights")), int(call.argument("padding_idx"))
    mean, weights = call.argument("mode") == 1, call.argument("per_sample_weights")
    nodes = (gradient, indices, *((weights,) if isinstance(weights, fx.Node) else ()))

    def make(given: Tensors, size: int) -> Contribution:
        # A bag is a weighted sum of rows: each row's gradient is the bag's, times its weight.
        index = given[1].reshape(size, -1)
        counted = torch.ones_like(index, dtype=given[0].dtype)
        if len(given) > 2:
            counted = given[2].reshape(size, -1)
        if padding >= 0:
            counted = counted * (index != padding)
        if mean:
            counted = counted / counted.sum(1, keepdim=True).clamp(min=1)
        return lookups(index, given[0].unsqueeze(1) * counted.unsqueeze(2), count)

    return Rule(nodes, make)


def _normalised(
    call: Call,
    index: int,
    names: str,
    normal: Callable[..., torch.Tensor],
    last: int | None = None,
) -> Rule:
    """Scale and shift of values that are normalised within a record.

    last: how many axes a parameter has; None for one along the channels, the second axis.
    """
    nodes = tuple(call.argument(name) for name in names.split())
    _, layout = _along(call, names.split()[0])

    def make(given: Tensors, size: int) -> Contribution:
        # The shift's gradient is the output's; the scale's is that times the normalised values.
        values = given[0] if index == 2 else given[0] * normal(*given[1:])
        rows = by_record(values, layout, size)
        if last is not None:
            return Rows(rows.reshape(size, -1, *rows.shape[rows.dim() - last :]).sum(1))
        return Rows(rows.flatten(3).sum((1, 3)) if rows.dim() > 3 else rows.sum(1))

    return Rule(nodes, make)


def _layer_norm(call: Call, index: int) -> Rule | None:
    def normal(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x - mean).mul_(scale)

    last = len(call.argument("normalized_shape"))
    return _normalised(call, index, "grad_out input mean rstd", normal, last)


def _rms_norm(call: Call, index: int) -> Rule | None:
    last = len(call.argument("normalized_shape"))
    return _normalised(call, index, "grad_out input rstd", torch.mul, last)


def _group_norm(call: Call, index: int) -> Rule | None:
    groups = int(call.argument("group"))

    def normal(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        grouped = x.reshape(*mean.shape[:1], groups, -1)
        result = (grouped - mean.view(-1, groups, 1)).mul_(scale.view(-1, groups, 1))
        return result.view(x.shape)

    return _normalised(call, index, "grad_out input mean rstd", normal)


def _batch_norm(call: Call, index: int) -> Rule | None:
    _, layout = _along(call, "grad_out")
    if call.argument("train") or layout.axis != 0:
        return None
    small = float(call.argument("eps"))

    def normal(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        shape = (1, -1, *(1 for _ in x.shape[2:]))
        return (x - mean.view(shape)).mul_((variance + small).rsqrt().view(shape))

    return _normalised(call, index, "grad_out input running_mean running_var", normal)


# By name, what a leaf gives in one of its places; None where its arguments ask for `vmap`.
LEAVES: dict[str, Callable[[Call, int], Rule | None]] = {
    "mm": _mm,
    "sum": _sum,
    "convolution_backward": _convolution,
    "embedding_dense_backward": _embedding,
    "_embedding_bag_backward": _bags,
    "_embedding_bag_dense_backward": _bags,
    "native_layer_norm_backward": _layer_norm,
    "_fused_rms_norm_backward": _rms_norm,
    "native_group_norm_backward": _group_norm,
    "native_batch_norm_backward": _batch_norm,
}


def _by_vmap(call: Call, index: int) -> Rule:
    """Return each record's gradient by the operator itself, on that record alone."""
    node = call.node
    nodes = call.tensors()
    layouts = [call.of(n) for n in nodes]
    if any(isinstance(layout, Places) for layout in layouts):
        raise Unproved(f"{call.name}: no rule gives each record's gradient")
    several = isinstance(node.meta["val"], list | tuple)
    given_args, given_kwargs = node.args, dict(node.kwargs)

    def one(*tensors: torch.Tensor) -> torch.Tensor:
        held = dict(zip(nodes, tensors, strict=True))
        args, kwargs = fx.map_arg((given_args, given_kwargs), held.__getitem__)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        chosen: torch.Tensor = result[index] if several else result
        return chosen

    def make(given: Tensors, size: int) -> Contribution:
        rows = [
            by_record(t, layout, size).movedim(1, 1 + layout.axis)
            if isinstance(layout, Records)
            else t
            for t, layout in zip(given, layouts, strict=True)
        ]
        dims = tuple(0 if isinstance(layout, Records) else None for layout in layouts)
        return Rows(torch.vmap(one, in_dims=dims)(*rows))

    return Rule(tuple(nodes), make)
