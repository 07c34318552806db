"""Proof: that in a captured graph no record meets another but in the sums of their gradients.

Theorem. Let every operator of a graph keep what the table says of it. If the losses are `Records`
and each parameter's gradient is `SUMMED` (or `SHARED` and zero), then row i of the losses is a
function of record i, of its own random numbers and of what is shared; and each gradient is
Σ_i g_i, with g_i such a function too. Clipping each g_i then bounds what record i can change.

What a rule of the table lets through is held against five laws, whatever the rule says. The
operator has a rule. The number of records enters nothing but shapes. What is made of a sum over the
records is one, and not of records too. What is shared is made of what is shared. The numbers of
the records' places pick each record's own, and are nothing else. What these laws say of an
operator's arguments holds before its rule is asked, which need not say it again.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import UnionType

import torch
from torch import fx

from apiece.training.clipping import (
    layers,
    shapes,  # noqa: F401 - puts its rules into the table
    torch_internals,
)
from apiece.training.clipping.table import (
    AGAIN,
    LIKE,
    PLACE,
    RANDOM,
    RULES,
    SHAPES,
    SHARED,
    SUMMED,
    UNFILLED,
    Call,
    Layout,
    Layouts,
    Places,
    Records,
    Shared,
    Sizes,
    Summed,
    Unproved,
    flatten,
    name_of,
    words,
)


@dataclass(frozen=True, slots=True, eq=False)
class Proved:
    """Where the records are in every tensor of a graph.

    layouts: of every node. leaves: the operators that turn records into a sum over them. operators:
    how often each operator occurs that meets records.
    """

    layouts: dict[fx.Node, Layouts]
    leaves: tuple[fx.Node, ...]
    operators: Counter[str] = field(default_factory=Counter)


def prove(
    graph: fx.Graph,
    records: Sequence[fx.Node],
    sizes: Sizes,
    losses: fx.Node,
    gradients: Sequence[fx.Node | None],
) -> Proved:
    """Return the layouts of a graph, without mutation, in which records do not meet.

    `records` are the placeholders that hold records along their first axis; others are shared.
    Raises `Unproved` with the module, the operator and what it does.
    """
    layouts: dict[fx.Node, Layouts] = {}
    leaves: list[fx.Node] = []
    operators: Counter[str] = Counter()
    # In the graph's order: what an operator takes has its layout already.
    along_records = set(records)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            layouts[node] = Records(0) if node in along_records else SHARED
        elif node.op == "call_function":
            try:
                layouts[node] = _layout(node, layouts, sizes)
            except Unproved as error:
                module = module_of(node) or "model"
                reason = sizes.name_records(str(error))
                raise Unproved(f"{module}: {name_of(node)}: {reason}") from None
            if node.target is operator.getitem:  # the operator that it takes from is counted
                continue
            if has_layout(layouts[node], Records | Summed):
                operators[name_of(node)] += 1
            takes_records = any(
                has_layout(layouts.get(n, SHARED), Records) for n in node.all_input_nodes
            )
            # here the theorem's g_i are: what each record gives the sum
            if takes_records and has_layout(layouts[node], Summed):
                leaves.append(node)
    _check_results(layouts, losses, gradients)
    return Proved(layouts, tuple(leaves), operators)


def _check_results(
    layouts: dict[fx.Node, Layouts], losses: fx.Node, gradients: Sequence[fx.Node | None]
) -> None:
    """Raise `Unproved` unless losses are the records' and gradients sums over them: the theorem."""
    if layouts.get(losses, SHARED) != Records(0):
        raise Unproved("loss_fn: the losses do not follow the records, one for each")
    for gradient in gradients:
        # a shared one depends on no record: it is zero, or made of the parameters alone
        if gradient is not None and not isinstance(layouts[gradient], Summed | Shared):
            raise Unproved("a parameter's gradient is no sum over the records")


def has_layout(layouts: Layouts, kinds: type | UnionType) -> bool:
    """Return whether one of the layouts that an operator gives is of these kinds."""
    outputs = layouts if isinstance(layouts, tuple) else (layouts,)
    return any(isinstance(layout, kinds) for layout in outputs)


def module_of(node: fx.Node, limit: int = 40) -> str:
    """Return the path of the module in whose forward an operator ran, or its backward's forward.

    An operator of the backward has no note of its own. Among the nodes that it is made of, nearest
    first and at most `limit`, is a tensor that the forward has left for it.
    """
    waiting = [node]
    seen = {node}
    while waiting and limit:
        limit -= 1
        candidate = waiting.pop(0)
        if candidate.meta.get("module"):
            return str(candidate.meta["module"])
        unseen = [source for source in candidate.all_input_nodes if source not in seen]
        seen.update(unseen)
        waiting += unseen
    return ""


def _layout(node: fx.Node, layouts: dict[fx.Node, Layouts], sizes: Sizes) -> Layouts:
    """Return the layouts of what a node gives; raise `Unproved` where they are not known."""
    if node.target is operator.getitem:
        source, index = node.args
        # Of an operator whose outputs have one layout in common, each output has it.
        of_source = layouts[source]  # type: ignore[index]
        return of_source[index] if isinstance(of_source, tuple) else of_source  # type: ignore[index]
    values = flatten(node.meta.get("val"))
    if not any(isinstance(value, torch.Tensor) for value in values):
        return SHARED  # a size; rules look where it goes
    if not isinstance(node.target, torch_internals.Overload):
        raise Unproved(f"{node.target} is no operator of ATen")
    return layout_of(Call(node, layouts, sizes))


def layout_of(call: Call) -> Layouts:
    """Return what an operator gives, by its rule, held against the laws and the shapes it has.

    Raises `Unproved` where no rule holds for these arguments.
    """
    # A rule is needed even where nothing follows the records: the operator may draw, or write.
    if call.name not in RULES:
        if all(isinstance(call.of(tensor), Shared) for tensor in call.tensors()):
            raise Unproved("no rule for this operator")
        raise Unproved("no rule says how it treats records")
    # Rules are asked when the laws hold of the arguments, and need not say them again.
    _check_numbers(call)
    _check_arguments(call)
    result = SUMMED if _is_linear_backward(call) else RULES[call.name](call)
    value = call.node.meta["val"]
    values = value if isinstance(value, list | tuple) else [value]
    # A rule that gives one layout means it for all outputs.
    layouts = result if isinstance(result, tuple) else (result,) * len(values)
    # Whatever the rule says, each output must have a shape of such a layout, and lose nothing.
    for position, (layout, tensor) in enumerate(zip(layouts, values, strict=True)):
        if isinstance(tensor, torch.Tensor):
            call.sizes.check(layout, tuple(tensor.shape))
            _check_flow(call, layout, is_first=position == 0)
    return layouts if isinstance(value, list | tuple) else layouts[0]


# By operator, the arguments in which the number of records may stand: the shape of what it gives
# follows them, and no value.
_LENGTHS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        [
            *words("view _unsafe_view view_copy _reshape_copy expand expand_copy broadcast_to"),
            *(RANDOM | SHAPES | UNFILLED),
        ],
        words("size stride"),
    ),
    "reshape": words("shape"),
    "repeat": words("repeats"),
    "native_group_norm": words("N"),
    "native_group_norm_backward": words("N"),
    **dict.fromkeys(
        words("select_backward diagonal_backward unfold_backward"), words("input_sizes")
    ),
    **dict.fromkeys(layers.RESIZED_BACKWARD, words("input_size")),
}
# Operators whose ends may be the number of records where they work along the records' axis.
_SLICES = words("slice slice_copy narrow slice_scatter slice_backward arange")


def _check_numbers(call: Call) -> None:
    """Raise `Unproved` where the number of records may become a value."""
    # In every other argument it would be a factor, an exponent, a threshold: a value.
    allowed = _LENGTHS.get(call.name, frozenset())
    if call.name in _SLICES:
        allowed = words("input_sizes")
        # The ends may say the number of records only where the slice lies along them: there the
        # length of the result follows it, and the rule demands the whole axis.
        out = call.out_shape()
        axis = int(call.argument("dim", 0)) % len(out)
        if call.sizes.depends(out[axis]):
            allowed |= words("start end")
    for argument in torch_internals.schema_of(call.node.target).arguments:
        if argument.name in allowed:
            continue
        # a number that the graph works out is one, too: a product of sizes, say
        for number in flatten(call.argument(argument.name)):
            value = number.meta["val"] if isinstance(number, fx.Node) else number
            if call.sizes.depends(value):
                raise Unproved("the number of records in the batch becomes a value")


# Operators that pick by the numbers of the records' places; their rules look what is picked.
_PICKING = words("index _unsafe_index index_put _unsafe_index_put _embedding_bag")
# Operators that hand such numbers on as they are.
_PLACES = words(
    """
    permute permute_copy t mT adjoint t_copy transpose transpose_copy unsqueeze unsqueeze_copy
    squeeze squeeze_copy expand expand_copy broadcast_to slice slice_copy narrow arange mul
    _embedding_bag_forward_only _embedding_bag_backward
    """
)
# Operators with an output beside the first one that does not depend on the records, though it is
# given with them.
_WITH_SHARED_OUTPUT = layers.ATTENTION | words(
    """
    nll_loss_forward nll_loss2d_forward native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm
    _embedding_bag _embedding_bag_forward_only
    """
)


def _check_arguments(call: Call) -> None:
    """Raise `Unproved` where a sum meets records, or their places are no operator's to take."""
    layouts = _argument_layouts(call)
    has_places = any(isinstance(layout, Places) for layout in layouts)
    if has_places and call.name not in _PLACES | _PICKING:
        raise Unproved(PLACE)
    # Record j would meet, in the sum, what record i gave: the theorem's end.
    if SUMMED in layouts and _follows_records(layouts):
        raise Unproved(AGAIN)


# How the schemas of ATen's backwards name the gradient that they are given.
_GRADIENTS = ("grad_output", "grad_out", "grad_out_", "grad", "grad_in")


def _is_linear_backward(call: Call) -> bool:
    """Return whether a backward takes a sum over records back through what is shared.

    A backward is a product of the gradient that it is given and a matrix of all else. Where that is
    shared, a sum over the records goes to a sum over them; with the sum in it twice, it would not.
    """
    if "::" in call.name or not call.name.endswith(("_backward", "_backward_data")):
        return False
    gradients = [call.argument(name) for name in _GRADIENTS]
    if not any(isinstance(call.of(gradient), Summed) for gradient in gradients):
        return False
    # With repetition, since grad·grad would be a product of the sum with itself.
    layouts = [call.of(tensor) for tensor in call.tensors_repeated()]
    return layouts.count(SUMMED) == 1 and layouts.count(SHARED) == len(layouts) - 1


def _argument_layouts(call: Call) -> set[Layout]:
    """Return the layouts of the tensors whose values an operator takes."""
    if call.name in LIKE:  # it takes their shapes
        return set()
    return {call.of(tensor) for tensor in call.tensors()}


def _follows_records(layouts: set[Layout]) -> bool:
    """Return whether one of these layouts is along the records."""
    return any(isinstance(layout, Records | Places) for layout in layouts)


def _check_flow(call: Call, result: Layout, *, is_first: bool) -> None:
    """Raise `Unproved` where a rule overlooked a tensor: whatever it says, nothing is lost.

    is_first: whether `result` is of the first of the operator's outputs.
    """
    # Checked from the layouts alone, and so also where the rule never looked at an argument.
    layouts = _argument_layouts(call)
    if isinstance(result, Places) and call.name not in _PLACES | _PICKING:
        raise Unproved(PLACE)
    # what a sum has entered is one, or else nobody knows what
    if SUMMED in layouts and not isinstance(result, Summed):
        raise Unproved(AGAIN)
    if isinstance(result, Shared) and _follows_records(layouts):
        may_be_shared = not is_first and call.name in _WITH_SHARED_OUTPUT
        if not may_be_shared:
            raise Unproved("what follows from records is taken for shared")
