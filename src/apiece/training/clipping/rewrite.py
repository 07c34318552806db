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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from apiece.errors import UnsupportedError
from apiece.training.clipping import narrow, torch_internals
from apiece.training.clipping.ambient import single_precision
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
from apiece.training.clipping.graphs import free_batch_size
from apiece.training.clipping.proof import Proved, has_layout, module_of
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
# Operators that give the entries in their order, in another shape.
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
    """How a leaf's contribution is made: the tensors that it takes, and the function of them.

    takes_narrow: whether these may be in bf16 where tensor cores multiply them.
    """

    operands: tuple[fx.Node, ...]
    make: Make
    takes_narrow: bool = False


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

    def contribution(self, operands: Tensors, size: int) -> Contribution:
        """Return what `size` records give, each in the shape of the sum.

        Raises `UnsupportedError` for any other.
        """
        result = self.rule.make(operands, size)
        # A rule that lost an axis would broadcast in the sum, and nobody would see it.
        check_shape(result, (size, *self.shape), self.name)
        return result


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """An operator between leaves and a parameter's gradient, as it was before the rewriting.

    shape_before: of what it takes first. shape: of what it gives.
    """

    node: fx.Node
    name: str
    shape_before: tuple[int, ...]
    shape: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @classmethod
    def of(cls, node: fx.Node) -> Step:
        """Return the step that a node is."""
        source = node.args[0]
        shape_before = _shape(source) if isinstance(source, fx.Node) else ()
        return cls(node, name_of(node), shape_before, _shape(node), node.args, dict(node.kwargs))

    @property
    def kind(self) -> tuple[object, ...]:
        """What makes two steps the same."""
        # Written as text, since arguments may be nodes, lists and types, which do not compare by
        # value.
        # A view's arguments say its shape once more, with sizes that may be nodes.
        if self.name in _VIEWS:
            return self.name, self.shape, ()
        arguments = tuple(str(argument) for argument in self.args[1:])
        return self.name, self.shape, arguments

    def apply(self, value: torch.Tensor) -> torch.Tensor:
        """Return the step of a weighted sum of leaves, which stays wide.

        Raises `UnsupportedError` where the sum has another shape than the step's own input had.
        """
        if tuple(value.shape) != self.shape_before:
            raise UnsupportedError(
                f"{self.name}: takes a sum of shape {tuple(value.shape)} for one of "
                f"{self.shape_before}; use method='alone'"
            )
        # as the entries lie now: the sum is contiguous where the graph's own may not have been
        if self.name in _VIEWS:
            return value.reshape(self.shape)
        if self.name in ("clone", "_to_copy"):  # the sum is made in a wider type than the graph's
            return value
        operator_: Any = self.node.target
        result: torch.Tensor = operator_(value, *self.args[1:], **self.kwargs)
        return result


@dataclass(frozen=True, eq=False)
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

    @functools.cached_property
    def operands(self) -> tuple[fx.Node, ...]:
        """The tensors that it is made of, each once."""
        of_leaves = (node for leaf in self.leaves for node in leaf.operands)
        return tuple(dict.fromkeys((*of_leaves, *self.shared)))


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
    def _function(self) -> Callable[..., list[Any]]:
        """The graph with each contribution made where the last of its operands is there.

        So an operand that nothing else takes is freed at once, and does not wait for all others.
        """
        # The captured graph is copied, and the contributions are added to the copy as calls of
        # `_contribute`.
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        losses, *operands = graph.graph_copy(self.module.graph, copies)  # type: ignore[misc]
        placeholders = graph.find_nodes(op="placeholder")
        # Positions before any contribution is added: an operand's says when it is there.
        order = {node: number for number, node in enumerate(graph.nodes)}
        results: list[fx.Node] = []
        for name, part in self.parts.items():
            taken = [operands[self.places[node]] for node in part.operands]
            # Never before the last placeholder: the inputs of a graph come first, one after the
            # other.
            last = max([placeholders[-1], *taken], key=order.__getitem__)
            # The last placeholder is a tensor of the records, whose length is the number of them.
            with graph.inserting_after(last):
                results.append(
                    graph.call_function(self._contribute, (name, placeholders[-1], *taken))
                )
        graph.output([losses, *results])
        return as_function(graph)

    def _contribute(
        self, name: str, of_records: torch.Tensor, *operands: torch.Tensor
    ) -> Contribution:
        """Return a parameter's contribution; `of_records` is one of the records' tensors."""
        with single_precision(of_records.device):
            return self.contribution(self.parts[name], operands, len(of_records))

    @functools.cached_property
    def draws(self) -> bool:
        """Return whether the graph draws random numbers."""
        return any(name_of(node) in RANDOM for node in self.module.graph.nodes)

    @property
    def calls(self) -> int:
        """How many operators the graph has."""
        return sum(node.op == "call_function" for node in self.module.graph.nodes)

    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, dict[str, Contribution]]:
        """Return losses, and each parameter's contribution in the layout of its leaves, by name."""
        losses, *contributions = self._function(self.module, *tensors)
        return losses, dict(zip(self.parts, contributions, strict=True))

    def contribution(self, part: Part, operands: Sequence[torch.Tensor], size: int) -> Contribution:
        """Return what `size` records give one parameter, from the part's operands in order."""
        # Operands are in the order of `part.operands`; leaves find theirs by node.
        tensors = dict(zip(part.operands, operands, strict=True))

        def pick(nodes: Sequence[fx.Node], takes_narrow: bool = False) -> Tensors:
            picked = [tensors[node] for node in nodes]
            if takes_narrow and narrow.on_tensor_cores(*picked):
                return picked
            return [_widen(operand) for operand in picked]

        # Leaves of one part may be of several forms; `join` finds the one that they have in common.
        of_leaves = [
            leaf.contribution(pick(leaf.operands, leaf.rule.takes_narrow), size)
            for leaf in part.leaves
        ]
        if part.through is None:
            return join(of_leaves)
        shared = pick(part.shared)
        # Leaves go along the records, one of each at a time; the shared tensors are whole for
        # everyone.
        dims = (*[0] * len(of_leaves), *[None] * len(shared))
        # A gradient is linear in its leaves: the map of a record's leaves gives its gradient.
        rows = [contribution.per_record() for contribution in of_leaves]
        map_records = torch.vmap(part.through, in_dims=dims)
        result = Rows(_widen(map_records(*rows, *shared)))
        check_shape(result, (size, *part.shape), part.name)
        return result

    def finish_gradient(self, name: str, total: torch.Tensor) -> torch.Tensor:
        """Return a weighted sum of leaves as the parameter's gradient.

        Raises `UnsupportedError` where it has another shape than the parameter.
        """
        part = self.parts[name]
        # isometries, which are linear: of the weighted sum as of each record's gradient
        for step in part.chain:
            total = step.apply(total)
        if tuple(total.shape) != part.shape:
            raise UnsupportedError(
                f"{name}: its gradient comes to shape {tuple(total.shape)} for {part.shape}; use "
                "method='alone'"
            )
        return total.contiguous()  # for who adds to it in place, or sends it


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in single precision, if it has less: norms and sums are made in it."""
    is_narrow = tensor.dtype in (torch.float16, torch.bfloat16)
    return tensor.float() if is_narrow else tensor


def as_function(graph: fx.Graph) -> Callable[..., list[Any]]:
    """Return a graph as a function of its module and tensors, with each operator at hand."""
    # The graph's own code, in which each call looks an operator up: torch.ops, library, overload.
    code = graph.python_code("self")
    names: dict[str, Any] = dict(code.globals)

    def bind(call: re.Match[str]) -> str:
        """Return a call of an operator by a name of its own, under which its binding is put."""
        library, name, overload = call.groups()
        packet = getattr(getattr(torch.ops, library), name)
        key = f"{library}_{name}_{overload}"
        names[key] = torch_internals.binding_of(getattr(packet, overload))
        return f"{key}("

    # such as torch.ops.aten.add.Tensor(
    operator_call = r"torch\.ops\.(\w+)\.(\w+)\.(\w+)\("
    exec(re.sub(operator_call, bind, code.src), names)
    result: Callable[..., list[Any]] = names["forward"]
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
    graph = captured.module.graph
    # The others are None, or shared: what no record's loss depends on is zero.
    summed = {
        name: gradient
        for name, gradient in zip(captured.trained, gradients, strict=True)
        if gradient is not None and isinstance(proved.layouts[gradient], Summed)
    }
    # Stage 1: find for each gradient the leaves it is the sum of.
    writer = _Writer(proved, captured.sizes)
    parts = {name: writer.part(name, gradient) for name, gradient in summed.items()}
    places = _number_operands(parts)
    # Stage 2: let the graph give operands, for any number of records, and try it on made-up ones.
    # The graph gives operands in place of gradients; for the trial it gives both.
    output = next(node for node in graph.nodes if node.op == "output")
    output.args = ([losses, *places, *summed.values()],)
    free_batch_size(captured.module, captured.sizes, captured.records[0])
    program = Program(captured.module, parts, places)
    # Of a model that is too large the contributions are held against shapes alone, at each batch.
    if held and sum(tensor.numel() for tensor in held) <= LARGEST_MODEL:
        labels = {limits.place: limits.size for limits in ranges}
        reconcile(program, list(parts), made_up_arguments(graph, held, labels))
    # Stage 3: take out the gradients. Read anew, since `free_batch_size` has written other
    # arguments.
    (results,) = output.args
    output.args = (list(results[: 1 + len(places)]),)  # without the gradients
    # Without the gradients the sums over records are dead, and with them most of the backward's
    # products. What is dead says which outputs of an operator are; spared, they leave more dead.
    _eliminate_dead_code(graph)
    for node in graph.nodes:
        _spare_gradients(node)
    _eliminate_dead_code(graph)
    graph.lint()
    captured.module.recompile()
    return program


def _number_operands(parts: dict[str, Part]) -> dict[fx.Node, int]:
    """Return the tensors that contributions are made of, each once, with their numbers."""
    operands = dict.fromkeys(node for part in parts.values() for node in part.operands)
    return {node: number for number, node in enumerate(operands)}


# Operators whose last argument is a mask of the gradients that are wanted.
_MASKED = ("convolution_backward", "native_layer_norm_backward", "native_group_norm_backward",
           "native_batch_norm_backward", "_fused_rms_norm_backward")  # fmt: skip


def _eliminate_dead_code(graph: fx.Graph) -> None:
    """Take out what nothing depends on, draws of random numbers among it."""
    graph.eliminate_dead_code(is_impure_node=lambda node: node.op in ("placeholder", "output"))


def _spare_gradients(node: fx.Node) -> None:
    """Let an operator that gives several gradients make only those that something takes."""
    if node.op == "call_function" and name_of(node) in _MASKED:
        *arguments, mask = node.args
        assert isinstance(mask, list | tuple)
        # Its users pick outputs by number: `getitem(node, position)`.
        used = {user.args[1] for user in node.users}
        new_mask = [bool(wanted) and position in used for position, wanted in enumerate(mask)]
        node.args = (*arguments, new_mask)


@dataclass(frozen=True, slots=True, eq=False)
class _Writer:
    """Finds what each parameter's gradient is made of.

    leaves: those found so far, which several parameters may have.
    """

    proved: Proved
    sizes: Sizes
    leaves: dict[fx.Node, Leaf] = field(default_factory=dict)

    def part(self, name: str, gradient: fx.Node) -> Part:
        """Return what a parameter's gradient is made of."""
        # Norms of leaves are those of the gradient only where all leaves go the same way to it,
        # from one shape, and the way keeps norms.
        terms = self._terms(gradient)
        if terms is None:
            return self._part_by_map(name, gradient)
        ways = {term.way for term in terms}
        if len(ways) > 1:
            return self._part_by_map(name, gradient)
        leaves = tuple(self.leaf(term.leaf) for term in terms)
        return Part(name, _shape(gradient), leaves, _shorten(terms[0].chain))

    def _terms(self, node: object) -> list[_Term] | None:
        """Return the terms that a gradient is the sum of; None where a map lies on the way.

        That is one that is no isometry.
        """
        if not isinstance(node, fx.Node) or node.op != "call_function":
            return None
        if self.is_leaf(node):
            return [_Term(node)]
        # the way goes on from the leaf: each isometry comes after those before it
        if name_of(node) in _ISOMETRIES:
            terms = self._terms(node.args[0])
            if terms is None:
                return None
            step = Step.of(node)
            return [_Term(term.leaf, (*term.chain, step)) for term in terms]
        # `alpha` scales the second term, which would be no plain sum of leaves any more.
        is_scaled = node.kwargs.get("alpha", 1) != 1
        if name_of(node) == "add" and len(node.args) == 2 and not is_scaled:
            left_terms, right_terms = map(self._terms, node.args)
            if left_terms is None or right_terms is None:
                return None
            return left_terms + right_terms
        return None

    def is_leaf(self, node: fx.Node) -> bool:
        """Return whether a node gives a sum over records of what it takes of each."""
        # of an operator with several outputs the node is the one that picks an output
        source = node.args[0] if node.target is operator.getitem else node
        return source in self.proved.leaves

    def _part_by_map(self, name: str, gradient: fx.Node) -> Part:
        """Return a gradient by the map that takes each record's leaves to it."""
        # Nodes from the gradient back to its leaves, each after those that it takes.
        order: list[fx.Node] = []
        leaves: list[fx.Node] = []
        shared: list[fx.Node] = []

        # Depth first, so that a node comes after all that it takes; leaves and shared tensors end
        # the walk.
        def visit(node: fx.Node) -> None:
            if node in order or node in leaves or node in shared:
                return
            if self.is_leaf(node):
                leaves.append(node)
            elif not has_layout(self.proved.layouts.get(node, SHARED), Summed):
                shared.append(node)  # a factor, the same for all records
            else:
                for source in node.all_input_nodes:
                    visit(source)
                order.append(node)

        visit(gradient)
        steps = [Step.of(node) for node in order]

        # Runs under `vmap`: each leaf is one record's gradient, in the shape of the sum.
        def through(*tensors: torch.Tensor) -> torch.Tensor:
            sources = [*leaves, *shared]
            values: dict[fx.Node, Any] = dict(zip(sources, tensors, strict=True))
            for step in steps:
                args, kwargs = fx.map_arg((step.args, step.kwargs), values.__getitem__)
                if step.name in _VIEWS:  # of what may lie in memory otherwise than in the graph
                    values[step.node] = args[0].reshape(step.shape)
                elif step.name == "copy":  # which `vmap` would run record by record
                    values[step.node] = args[1].to(args[0].dtype).expand(step.shape)
                else:
                    values[step.node] = step.node.target(*args, **kwargs)  # type: ignore[operator]
            result: torch.Tensor = values[gradient]
            return result

        return Part(
            name,
            _shape(gradient),
            tuple(map(self.leaf, leaves)),
            through=through,
            shared=tuple(shared),
        )

    def leaf(self, node: fx.Node) -> Leaf:
        """Return a leaf, with the rule for what each record gives it."""
        if node not in self.leaves:
            source = node
            output = 0
            if node.target is operator.getitem:
                source, output = node.args  # type: ignore[assignment]
            call = Call(source, self.proved.layouts, self.sizes)
            # without a rule of its own the operator itself runs on each record
            make_rule = LEAVES.get(call.name)
            rule = (make_rule and make_rule(call, output)) or _rule_by_vmap(call, output)
            name = f"{module_of(source) or 'model'}: {call.name}"
            self.leaves[node] = Leaf(name, _shape(node), rule)
        return self.leaves[node]


@dataclass(frozen=True, slots=True, eq=False)
class _Term:
    """A leaf that a gradient is a sum of, and the isometries on its way to it."""

    leaf: fx.Node
    chain: tuple[Step, ...] = ()

    @property
    def way(self) -> tuple[object, ...]:
        """What two terms have in common that come from one shape in the same steps."""
        return (_shape(self.leaf), *(step.kind for step in self.chain))


def _shape(node: fx.Node) -> tuple[int, ...]:
    """Return the shape of what a node gives; () for several tensors."""
    return tuple(getattr(node.meta["val"], "shape", ()))


def _shorten(chain: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return a chain without transposes that undo one another, and views before a view."""
    result: list[Step] = []
    for step in chain:
        if result and step.name == result[-1].name == "t":  # (Aᵀ)ᵀ = A
            result.pop()
        elif step.name not in ("clone", "_to_copy"):
            # the last of several views alone says the shape
            if result and step.name in _VIEWS and result[-1].name in _VIEWS:
                step = replace(step, shape_before=result.pop().shape_before)
            result.append(step)
    return tuple(result)


# ---------------------------------------------------------------- leaves, operator by operator


def by_record(tensor: torch.Tensor, layout: Records, size: int) -> torch.Tensor:
    """Return (B, rows, *rest): each record's places on its axis, then the other axes in order."""
    axis = layout.axis
    axes_before = tensor.shape[:axis]
    axes_after = tensor.shape[axis + 1 :]
    rows = tensor.shape[axis] // size
    # The axis is outer × records × inner. Where one of the two is 1, the other has all the rows:
    # their number may be another one than in the capture, and follows the tensor.
    if layout.inner == 1:
        outer = rows
    elif layout.outer == 1:
        outer = 1
    else:
        outer = int(layout.outer)
    split = tensor.reshape(*axes_before, outer, size, rows // outer, *axes_after)
    # the records come to the front, then their rows; the other axes stay in order
    moved = split.movedim((axis + 1, axis, axis + 2), (0, 1, 2))
    return moved.reshape(size, rows, *axes_before, *axes_after)


def _along(call: Call, name: str) -> tuple[fx.Node, Records]:
    """Return a tensor among the arguments that is along the records, and its layout."""
    node, layout = layout_and_tensor(call, name)
    assert isinstance(layout, Records)
    return node, layout


def _mm(call: Call, _output: int) -> Rule | None:
    # Σ over places of left·right: of a linear layer the output's gradient and its input.
    left, left_layout = _along(call, "self")
    right, right_layout = _along(call, "mat2")
    # left (O, places), right (places, I): the product sums over the places of all records.
    # With one row a record leftᵀ·right is a sum of outer products, whose norms are ‖left‖·‖right‖.
    if (left_layout, right_layout) == (Records(1), Records(0)):
        if name_of(left) == "t":  # of what a bias is given, whose norms are then found once
            source: Any = left.args[0]
            return Rule((source, right), lambda operands, _: _outer(*operands), True)
        return Rule((left, right), lambda operands, _: _outer(operands[0].t(), operands[1]), True)

    def make(operands: Tensors, size: int) -> Contribution:
        left_rows = by_record(operands[0], left_layout, size)
        right_rows = by_record(operands[1], right_layout, size)
        # one row is one position: its product is the outer one
        if left_rows.shape[1] == 1:
            return _outer(left_rows.squeeze(1), right_rows.squeeze(1))
        if left_rows.dtype == torch.bfloat16:
            return narrow.NarrowProducts(left_rows, right_rows)
        return products(left_rows, right_rows)

    return Rule((left, right), make, True)


def _outer(left: torch.Tensor, right: torch.Tensor) -> Contribution:
    """Return outer products of rows; as products of one position where they stay narrow."""
    if left.dtype == torch.bfloat16:
        return narrow.NarrowProducts(left.unsqueeze(1), right.unsqueeze(1))
    return Outer(left, right)


def _sum(call: Call, _output: int) -> Rule | None:
    node, layout = _along(call, "self")
    dims = call.axes(call.argument("dim"), node)
    shape = call.out_shape()
    # The gradient of what was broadcast: a bias, say, or one number for all. In the order of
    # `by_record` (records, rows, the other axes), the axes that are summed.
    # Axes before the records' one shift by two places there, and those after it by one.
    summed = [2 + dim - (dim > layout.axis) for dim in dims if dim != layout.axis]
    if layout == Records(0) and not summed:
        if not call.argument("keepdim", False):  # the very tensor, whose norms are found once
            return Rule((node,), lambda operands, _: Rows(operands[0]))

        def keep_axes(operands: Tensors, size: int) -> Contribution:
            return Rows(operands[0].reshape(size, *shape))

        return Rule((node,), keep_axes)

    def make(operands: Tensors, size: int) -> Contribution:
        rows = by_record(operands[0], layout, size)
        has_one_row = rows.shape[1] == 1 and not summed
        total = rows.squeeze(1) if has_one_row else rows.sum([1, *summed])
        # what is left are the axes of the sum in their order: with `keepdim`, ones among them
        return Rows(total.reshape(size, *shape))

    return Rule((node,), make)


def _convolution(call: Call, output: int) -> Rule | None:
    node, layout = _along(call, "grad_output")
    if layout != Records(0):
        # With records elsewhere than first, the operator itself runs on each record.
        return None
    # A bias is added at every place: its gradient is the output's, added up over them.
    if output == 2:

        def sum_places(operands: Tensors, _size: int) -> Contribution:
            return Rows(operands[0].flatten(2).sum(2))

        return Rule((node,), sum_places)
    inputs = call.argument("input")
    kernel = Kernel(
        shape=_integers(call.shape(call.argument("weight"))),
        stride=_integers(call.argument("stride")),
        padding=_integers(call.argument("padding")),
        dilation=_integers(call.argument("dilation")),
        groups=int(call.argument("groups")),
    )
    if call.argument("transposed"):  # the weight's gradient with input and output exchanged
        return Rule((inputs, node), lambda operands, _: convolution(kernel, *reversed(operands)))
    return Rule((inputs, node), lambda operands, _: convolution(kernel, *operands))


def _integers(values: Iterable[Any]) -> tuple[int, ...]:
    """Return numbers of a graph as Python's own."""
    return tuple(int(value) for value in values)


def _embedding(call: Call, _output: int) -> Rule | None:
    # Row r of the table gets the gradients of all places that looked r up.
    node, layout = _along(call, "grad_output")
    indices = call.argument("indices")
    count = int(call.argument("num_weights"))
    padding = int(call.argument("padding_idx"))

    # index (B, T), gradient (B, T, D).
    def make(operands: Tensors, size: int) -> Contribution:
        index = by_record(operands[1], layout, size).flatten(1)
        gradient = by_record(operands[0], layout, size)
        gradient = gradient.reshape(*index.shape, gradient.shape[-1])
        if padding >= 0:  # whose row of the table is never moved
            gradient = gradient * (index != padding).unsqueeze(2)
        return lookups(index, gradient, count)

    return Rule((node, indices), make)


def _bags(call: Call, _output: int) -> Rule | None:
    count = int(call.argument("num_weights"))
    padding = int(call.argument("padding_idx"))
    is_mean = call.argument("mode") == 1
    weights = call.argument("per_sample_weights")
    nodes = [call.argument("grad"), call.argument("indices")]
    # Of the mode that takes the largest entry, `maximum_indices` (B, D) says which row gave entry
    # d. Modes 0 and 1 are sum and mean.
    if call.argument("mode") == 2:
        nodes += [call.argument("maximum_indices"), call.argument("bag_size")]
        return Rule((nodes[0], *nodes[2:]), functools.partial(_largest_of_bags, count))
    if isinstance(weights, fx.Node):
        nodes.append(weights)

    def make(operands: Tensors, size: int) -> Contribution:
        # A bag is a weighted sum of rows: each row's gradient is the bag's, times its weight.
        gradient = operands[0]
        # gradient (B, D), index and weight (B, T).
        index = operands[1].reshape(size, -1)
        weight = torch.ones_like(index, dtype=gradient.dtype)
        if len(operands) > 2:
            weight = operands[2].reshape(size, -1)
        if padding >= 0:
            weight = weight * (index != padding)
        if is_mean:  # over the places that count; a bag of padding alone gives nothing
            weight = weight / weight.sum(1, keepdim=True).clamp(min=1)
        return lookups(index, gradient.unsqueeze(1) * weight.unsqueeze(2), count)

    return Rule(tuple(nodes), make)


def _largest_of_bags(count: int, operands: Tensors, _size: int) -> Contribution:
    """Return what bags of largest entries give a table: entry d's gradient to row index[d]."""
    gradient, index, bag_size = operands
    # a bag of padding alone has no largest entry, and perhaps −1 for its index
    gradient = gradient.masked_fill(bag_size.unsqueeze(1) == 0, 0)
    return lookups(index.clamp(min=0), torch.diag_embed(gradient), count)


def _normaliser(
    call: Call,
    output: int,
    names: str,
    normalise: Callable[..., torch.Tensor],
    parameter_axes: int | None = None,
) -> Rule:
    """Scale and shift of values that are normalised within a record.

    names: of the operands, the output's gradient first. normalise: from the other operands to the
    normalised values. parameter_axes: how many axes a parameter has, the last ones; None for one
    along the channels, the second axis.
    """
    nodes = tuple(call.argument(name) for name in names.split())
    _, layout = _along(call, names.split()[0])

    def make(operands: Tensors, size: int) -> Contribution:
        gradient = operands[0]
        # The shift's gradient is the output's; the scale's is that times the normalised values.
        values = gradient if output == 2 else gradient * normalise(*operands[1:])
        rows = by_record(values, layout, size)
        if parameter_axes is None:
            # (B, rows, channels, *places); without places, (B, rows, channels)
            if rows.dim() > 3:
                return Rows(rows.flatten(3).sum((1, 3)))
            return Rows(rows.sum(1))
        shape = rows.shape[rows.dim() - parameter_axes :]
        return Rows(rows.reshape(size, -1, *shape).sum(1))

    return Rule(nodes, make)


def _layer_norm(call: Call, output: int) -> Rule | None:
    def normalise(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (x - mean).mul_(scale)

    axes = len(call.argument("normalized_shape"))
    return _normaliser(call, output, "grad_out input mean rstd", normalise, axes)


def _rms_norm(call: Call, output: int) -> Rule | None:
    axes = len(call.argument("normalized_shape"))
    return _normaliser(call, output, "grad_out input rstd", torch.mul, axes)


def _group_norm(call: Call, output: int) -> Rule | None:
    groups = int(call.argument("group"))

    def normalise(x: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        # mean and scale are those of a record's group of channels
        grouped = x.reshape(*mean.shape[:1], groups, -1)
        centred = grouped - mean.view(-1, groups, 1)
        scaled = centred.mul_(scale.view(-1, groups, 1))
        return scaled.view(x.shape)

    return _normaliser(call, output, "grad_out input mean rstd", normalise)


def _batch_norm(call: Call, output: int) -> Rule | None:
    _, layout = _along(call, "grad_out")
    # With the batch's own statistics (instance norms) it is left to `vmap`.
    if call.argument("train") or layout.axis != 0:
        return None
    eps = float(call.argument("eps"))

    def normalise(x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        # Running statistics are those of channels, the second axis: (1, C, 1, …).
        by_channel = (1, -1, *(1 for _ in x.shape[2:]))
        scale = (variance + eps).rsqrt()
        return (x - mean.view(by_channel)).mul_(scale.view(by_channel))

    return _normaliser(call, output, "grad_out input running_mean running_var", normalise)


# By operator, the rule for one of its outputs; None where its arguments ask for `vmap`.
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


def _rule_by_vmap(call: Call, output: int) -> Rule:
    """Return each record's gradient by the operator itself, on that record alone."""
    node = call.node
    nodes = call.tensors()
    layouts = [call.of(tensor) for tensor in nodes]
    if any(isinstance(layout, Places) for layout in layouts):
        raise Unproved(f"{call.name}: no rule gives each record's gradient")
    has_several_outputs = isinstance(node.meta["val"], list | tuple)
    # as they are now: the rewriting changes the node's
    node_args = node.args
    node_kwargs = dict(node.kwargs)

    # One record's tensors have the batch's axes, with the record's own rows where all records'
    # were.
    def run_on_record(*tensors: torch.Tensor) -> torch.Tensor:
        values = dict(zip(nodes, tensors, strict=True))
        args, kwargs = fx.map_arg((node_args, node_kwargs), values.__getitem__)
        result = node.target(*args, **kwargs)  # type: ignore[operator]
        gradient: torch.Tensor = result[output] if has_several_outputs else result
        return gradient

    def make(operands: Tensors, size: int) -> Contribution:
        rows: Tensors = []
        dims: list[int | None] = []
        for tensor, layout in zip(operands, layouts, strict=True):
            # Records come first for `vmap`, which takes that axis away.
            if isinstance(layout, Records):
                # a record's rows go back to where the batch had all of them
                rows.append(by_record(tensor, layout, size).movedim(1, 1 + layout.axis))
                dims.append(0)
            else:
                rows.append(tensor)
                dims.append(None)
        return Rows(torch.vmap(run_on_record, in_dims=tuple(dims))(*rows))

    return Rule(tuple(nodes), make)
