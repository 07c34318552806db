"""One capture for all lengths of a batch, between two that were captured.

Forms of batches that differ in one length alone (sequences padded to the longest of a batch) have
graphs that differ in sizes alone. Two captures, of one length and of a long one, say how: each size
is the same in both, or a record's share of it is s·length + c, with whole s and c. A third one, of
a short length, must be the graph that the two say. From there on a graph for a length between short
and long costs no capture: its sizes are put in, torch says the shapes of all that it computes, and
it is proved anew. What is proved is what runs, whatever the captures had in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from apiece.training.clipping.capture import (
    PRIMES,
    Captured,
    Task,
    capture_few,
    capture_twice,
    check_constants,
)
from apiece.training.clipping.graphs import (
    Coincidence,
    Uncaptured,
    check_agreement,
    size_between,
    tidy,
)
from apiece.training.clipping.records import Batch
from apiece.training.clipping.table import Sizes
from apiece.training.clipping.watch import Watch

# Of the records' tensors: number, axis, and how much longer it is than the first of them.
Axes = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """A graph for any length from `shortest` to the second of `lengths`.

    graph: of `batch` records of the first of `lengths`. other: of the second, by node of the graph.
    """

    axes: Axes
    batch: int
    shortest: int
    lengths: tuple[int, int]
    graph: fx.GraphModule
    other: dict[fx.Node, fx.Node]

    def takes(self, length: int) -> bool:
        """Return whether a length lies between the two, and is none like a number of records."""
        is_between = self.shortest <= length <= self.lengths[1]
        return is_between and length % self.batch != 0

    def capture(self, batch: Batch, length: int) -> Captured:
        """Return the graph for the length that a batch has.

        Raises `Uncaptured` where torch finds it to be none.
        """
        task = _task(batch)
        graph = self.graph_of(task, length)
        tidy(graph)
        check_constants(graph, batch.parameters)
        return Captured(graph, tuple(task.tensors), tuple(batch.parameters), Sizes(self.batch))

    def graph_of(self, task: Task, length: int) -> fx.GraphModule:
        """Return the graph for a length, which is the task's, as a capture leaves it."""
        graph = fx.Graph()
        nodes: dict[fx.Node, fx.Node] = {}
        for node in self.graph.graph.nodes:
            if node.op == "call_function" and node not in self.other:
                continue  # made of constants alone, and nothing depends on it
            copied = graph.node_copy(node, nodes.__getitem__)
            nodes[node] = copied
            if node.op == "call_function":
                other = self.other[node]
                args = self._between(node.args, other.args, length)
                kwargs = self._between(node.kwargs, other.kwargs, length)
                copied.args = fx.map_arg(tuple(args), nodes.__getitem__)
                copied.kwargs = fx.map_arg(kwargs, nodes.__getitem__)
        module = fx.GraphModule(self.graph, graph)
        if length == self.lengths[0]:  # it is as it was captured
            return module
        try:
            with torch.no_grad():
                _Shapes(module).run(*task.fakes(self.batch, length))
        except Exception as error:
            raise Uncaptured(f"model: no graph for records of length {length}") from error
        return module

    def _between(self, value: Any, other: Any, length: int) -> Any:
        """Return an operator's arguments for a length."""
        if isinstance(value, dict):
            return {key: self._between(value[key], other[key], length) for key in value}
        if isinstance(value, list | tuple):
            parts = zip(value, other, strict=True)
            return [self._between(part, part_of_other, length) for part, part_of_other in parts]
        if type(value) is not int:
            return value
        return size_between(value, other, self.batch, self.lengths, length)


class _Shapes(fx.Interpreter):
    """Notes what every operator gives, of tensors without values."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op in ("placeholder", "call_function"):
            n.meta["val"] = result
        return result


def _task(batch: Batch, axes: Axes = ()) -> Task:
    return Task(batch.model, batch.parameters, batch.loss_fn, batch.inputs, batch.targets, axes)


def find_axes(shapes: Sequence[Sequence[int]], others: Sequence[Sequence[int]]) -> Axes:
    """Return the axes that are longer, all by as much, in one form of batches than in another.

    shapes, others: of a record's tensors, in order. Empty where the forms differ in more than that.
    """
    if [len(shape) for shape in shapes] != [len(shape) for shape in others]:
        return ()
    pairs = [
        (number, axis, size, other_size)
        for number, (shape, other) in enumerate(zip(shapes, others, strict=True))
        for axis, (size, other_size) in enumerate(zip(shape, other, strict=True), start=1)
        if size != other_size
    ]
    if len({size - other_size for *_, size, other_size in pairs}) != 1:
        return ()
    _, _, first, _ = pairs[0]
    return tuple((number, axis, size - first) for number, axis, size, _ in pairs)


@torch.inference_mode(False)  # in which nothing has a gradient
def capture_family(batch: Batch, watch: Watch, axes: Axes, met: Sequence[int]) -> Family:
    """Return a graph for the lengths met, the batch's own last, and for others about them.

    Raises `Uncaptured` where it is another graph for another length.
    """
    # None of an axis is shorter than two: at one, operators do something else.
    least = 2 - min(surplus for _, _, surplus in axes)
    short = max(least, min(met) // 2)
    error = Uncaptured("model: records of the least length have no graph in common with others")
    # A table of positions may end before twice the length.
    for longest in (2 * max(met), max(met)):
        if short < met[-1]:
            lengths = met[-1], short + _prime_from(longest - short + 1)
            try:
                return _capture_between(batch, watch, axes, short, lengths)
            except Uncaptured as refusal:
                error = refusal
    raise error


def _prime_from(number: int) -> int:
    """Return the least prime that is not below a number above one.

    As a difference of lengths: no stride, and nothing that lengths are rounded to, divides it.
    """
    while any(number % divisor == 0 for divisor in range(2, math.isqrt(number) + 1)):
        number += 1
    return number


def _capture_between(
    batch: Batch, watch: Watch, axes: Axes, short: int, lengths: tuple[int, int]
) -> Family:
    """Return a graph for any length from `short` to the second of two; a batch has the first."""
    task = _task(batch, axes)
    for prime in PRIMES:
        if any(length % prime == 0 for length in (short, *lengths)):
            continue
        try:
            graph, other = capture_twice(task, watch, prime, lengths)
            family = Family(axes, prime, short, lengths, graph, other)
            # what two lengths have in common by chance (a square, a branch) a third one has not
            graph_of_few = capture_few(task, watch, short)
            check_agreement(family.graph_of(task, short), graph_of_few, prime)
            return family
        except Coincidence:
            continue
    raise Uncaptured("model: no length of records is apart from their number")
