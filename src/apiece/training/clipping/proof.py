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

from apiece.training.clipping import layers, shapes  # noqa: F401 - put their rules in the table
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
    Given,
    Layout,
    Places,
    Records,
    Shared,
    Sizes,
    Summed,
    Unproved,
    flat,
    name_of,
    words,
)


@dataclass(frozen=True, slots=True, eq=False)
class Proved:
    """Where the records are in every tensor of a graph.

    layouts: of every node. leaves: the operators that turn records into a sum over them. operators:
    how often each operator occurs that meets records.
    """

    layouts: dict[fx.Node, Given]
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
    layouts: dict[fx.Node, Given] = {}
    leaves: list[fx.Node] = []
    operators: Counter[str] = Counter()
    along = set(records)
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            layouts[node] = Records(0) if node in along else SHARED
        elif node.op == "call_function":
            try:
                layouts[node] = _layout(node, layouts, sizes)
            except Unproved as error:
                where = module_of(node) or "model"
                raise Unproved(f"{where}: {name_of(node)}: {error}") from None
            if node.target is operator.getitem:
                continue
            operators[name_of(node)] += any(_is(layouts[node], Records | Summed))
            of_records = (any(_is(layouts.get(n, SHARED), Records)) for n in node.all_input_nodes)
            if any(_is(layouts[node], Summed)) and any(of_records):
                leaves.append(node)
    _check_ends(layouts, losses, gradients)
    return Proved(layouts, tuple(leaves), +operators)


def _check_ends(
    layouts: dict[fx.Node, Given], losses: fx.Node, gradients: Sequence[fx.Node | None]
) -> None:
    if layouts.get(losses, SHARED) != Records(0):
        raise Unproved("loss_fn: the losses do not follow the records, one for each")
    for gradient in gradients:
        if gradient is not None and not isinstance(layouts[gradient], Summed | Shared):
            raise Unproved("a parameter's gradient is no sum over the records")


def _is(result: Given, kinds: type | UnionType) -> list[bool]:
    return [isinstance(one, kinds) for one in (result if isinstance(result, tuple) else (result,))]


def module_of(node: fx.Node, depth: int = 40) -> str:
    """Return the path of the module in whose forward an operator ran, or its backward's forward."""
    waiting, seen = [node], {node}
    while waiting and depth:
        depth -= 1
        one = waiting.pop(0)
        if one.meta.get("module"):
            return str(one.meta["module"])
        new = [before for before in one.all_input_nodes if before not in seen]
        seen.update(new)
        waiting += new
    return ""


def _layout(node: fx.Node, layouts: dict[fx.Node, Given], sizes: Sizes) -> Given:
    if node.target is operator.getitem:
        source, index = node.args
        result = layouts[source]  # type: ignore[index]
        return result[index] if isinstance(result, tuple) else result  # type: ignore[index]
    if not any(isinstance(one, torch.Tensor) for one in flat(node.meta.get("val"))):
        return SHARED  # a size; rules look where it goes
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Unproved(f"{node.target} is no operator of ATen")
    return layout_of(Call(node, layouts, sizes))


def layout_of(call: Call) -> Given:
    """Return what an operator gives, by its rule, held against the laws and the shapes it has.

    Raises `Unproved` where no rule holds for these arguments.
    """
    if call.name not in RULES:
        shared = all(isinstance(call.of(t), Shared) for t in call.tensors())
        raise Unproved(f"no rule {'for this operator' if shared else 'says how it treats records'}")
    _numbers_are_shapes(call)
    _arguments_fit(call)
    result, value = RULES[call.name](call), call.node.meta["val"]
    values = value if isinstance(value, list | tuple) else [value]
    given = result if isinstance(result, tuple) else (result,) * len(values)
    for k, (one, tensor) in enumerate(zip(given, values, strict=True)):
        if isinstance(tensor, torch.Tensor):
            call.sizes.check(one, tuple(tensor.shape))
            _flows(call, one, beside=k > 0)
    return given if isinstance(value, list | tuple) else given[0]


# The arguments in which the number of records may stand: the shape of what is given follows them.
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
_SLICES = words("slice slice_copy narrow slice_scatter slice_backward arange")


def _numbers_are_shapes(call: Call) -> None:
    """Raise `Unproved` where the number of records may become a value."""
    allowed = _LENGTHS.get(call.name, frozenset())
    if call.name in _SLICES:
        allowed, out = words("input_sizes"), call.out()
        if call.sizes.depends(out[int(call.argument("dim", 0)) % len(out)]):  # over the records
            allowed |= words("start end")
    schema = call.node.target._schema.arguments  # type: ignore[union-attr]
    for argument in schema:
        if argument.name in allowed:
            continue
        for number in flat(call.argument(argument.name)):
            value = number.meta["val"] if isinstance(number, fx.Node) else number
            if call.sizes.depends(value):
                raise Unproved("the number of records in the batch becomes a value")


_PICK = words("index _unsafe_index index_put _unsafe_index_put _embedding_bag")
_PLACES = words(
    """
    permute permute_copy t mT adjoint t_copy transpose transpose_copy unsqueeze unsqueeze_copy
    squeeze squeeze_copy expand expand_copy broadcast_to slice slice_copy narrow arange
    _embedding_bag_forward_only _embedding_bag_backward
    """
)
# Where an output beside the first one does not depend on the records, though it is given with them.
_BESIDE = layers.ATTENTION | words(
    """
    nll_loss_forward nll_loss2d_forward native_batch_norm _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training cudnn_batch_norm
    _embedding_bag _embedding_bag_forward_only
    """
)


def _arguments_fit(call: Call) -> None:
    """Raise `Unproved` where a sum meets records, or their places are no operator's to take."""
    given = _layouts(call)
    if any(isinstance(one, Places) for one in given) and call.name not in _PLACES | _PICK:
        raise Unproved(PLACE)
    if SUMMED in given and any(isinstance(one, Records | Places) for one in given):
        raise Unproved(AGAIN)


def _layouts(call: Call) -> set[Layout]:
    """Return the layouts of the tensors whose values an operator takes."""
    return set() if call.name in LIKE else {call.of(tensor) for tensor in call.tensors()}


def _flows(call: Call, result: Layout, *, beside: bool) -> None:
    """Raise `Unproved` where a rule overlooked a tensor: whatever it says, nothing is lost."""
    given = _layouts(call)
    if isinstance(result, Places) and call.name not in _PLACES | _PICK:
        raise Unproved(PLACE)
    if SUMMED in given and not isinstance(result, Summed):
        raise Unproved(AGAIN)
    records = any(isinstance(one, Records | Places) for one in given)
    if records and isinstance(result, Shared) and not (beside and call.name in _BESIDE):
        raise Unproved("what follows from records is taken for shared")
