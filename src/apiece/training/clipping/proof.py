"""Proof: that in a captured graph no record meets another but in the sums of their gradients.

Theorem. Let every operator of a graph keep what the table says of it. If the losses are `Records`
and each parameter's gradient is `SUMMED` (or `SHARED` and zero), then row i of the losses is a
function of record i, of its own random numbers and of what is shared; and each gradient is
Σ_i g_i, with g_i such a function too. Clipping each g_i then bounds what record i can change.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from apiece.training.clipping import layers  # noqa: F401 - puts its rules into the table
from apiece.training.clipping.flow import layout_of
from apiece.training.clipping.layout import (
    SHARED,
    Layout,
    Records,
    Shared,
    Sizes,
    Summed,
    Unproved,
)
from apiece.training.clipping.table import Call, Given, name_of


@dataclass(frozen=True, slots=True, eq=False)
class Proved:
    """Where the records are in every tensor of a graph.

    Args:
        layouts: Of every node.
        leaves: The operators that turn records into a sum over them.
        operators: How often each operator occurs that meets records.
    """

    layouts: dict[fx.Node, Given]
    leaves: tuple[fx.Node, ...]
    operators: Counter[str] = field(default_factory=Counter)

    def of(self, node: fx.Node) -> Layout:
        """Return the layout of a node that gives one tensor."""
        found = self.layouts[node]
        assert not isinstance(found, tuple)
        return found


def prove(
    graph: fx.Graph, records: Sequence[fx.Node], sizes: Sizes, losses: Any, gradients: Sequence[Any]
) -> Proved:
    """Return the layouts of a graph in which records do not meet.

    Args:
        graph: Without mutation; placeholders that are not among `records` are shared.
        records: The placeholders that hold records along their first axis.
        sizes: What is known of sizes.
        losses: The node of the losses, one a record.
        gradients: The nodes of the parameters' gradients; None where there is none.

    Raises:
        Unproved: With the module, the operator and what it does.
    """
    layouts: dict[fx.Node, Given] = {}
    leaves: list[fx.Node] = []
    operators: Counter[str] = Counter()
    along = set(records)
    for node in graph.nodes:
        if node.op == "placeholder":
            layouts[node] = Records(0) if node in along else SHARED
        elif node.op == "get_attr":
            layouts[node] = SHARED
        elif node.op == "call_function":
            try:
                layouts[node] = _layout(node, layouts, sizes)
            except Unproved as error:
                raise Unproved(f"{place_of(node)}{error}") from None
            if _has(layouts[node], Records | Summed) and node.target is not operator.getitem:
                operators[name_of(node)] += 1
            if _is_leaf(node, layouts):
                leaves.append(node)
    _check_ends(layouts, sizes, losses, gradients)
    return Proved(layouts, tuple(leaves), operators)


def _layout(node: fx.Node, layouts: dict[fx.Node, Given], sizes: Sizes) -> Given:
    if node.target is operator.getitem:
        source, index = node.args
        found = layouts[source]  # type: ignore[index]
        return found[index] if isinstance(found, tuple) else found  # type: ignore[index]
    if not _has_tensor(node.meta.get("val")):
        return SHARED  # a size; rules look where it goes
    if not isinstance(node.target, torch._ops.OpOverload):
        raise Unproved(f"{node.target} is no operator of ATen")
    return layout_of(Call(node, layouts, sizes))


def _has_tensor(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(_has_tensor, value))
    return isinstance(value, torch.Tensor)


def _has(found: Given, kinds: Any) -> bool:
    several = found if isinstance(found, tuple) else (found,)
    return any(isinstance(one, kinds) for one in several)


def _is_leaf(node: fx.Node, layouts: dict[fx.Node, Given]) -> bool:
    if node.target is operator.getitem or not _has(layouts[node], Summed):
        return False
    return any(_has(layouts.get(n, SHARED), Records) for n in node.all_input_nodes)


def _check_ends(
    layouts: dict[fx.Node, Given], sizes: Sizes, losses: Any, gradients: Sequence[Any]
) -> None:
    if layouts.get(losses, SHARED) != Records(0):
        raise Unproved("loss_fn: the losses do not follow the records, one for each")
    for gradient in gradients:
        if gradient is not None and not isinstance(layouts[gradient], Summed | Shared):
            raise Unproved("a parameter's gradient is no sum over the records")
    del sizes


def place_of(node: fx.Node) -> str:
    """Return "module: operator: " of a node, as far as it is known."""
    module = module_of(node)
    return f"{module or 'model'}: {name_of(node)}: "


def module_of(node: fx.Node, depth: int = 40) -> str:
    """Return the path of the module in whose forward an operator ran, or its backward's forward."""
    waiting, seen = [node], {node}
    while waiting and depth:
        depth -= 1
        one = waiting.pop(0)
        if one.meta.get("module"):
            return str(one.meta["module"])
        for before in one.all_input_nodes:
            if before not in seen:
                seen.add(before)
                waiting.append(before)
    return ""
