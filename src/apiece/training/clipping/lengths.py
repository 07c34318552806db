"""One capture for all lengths of a batch, between those that confirm it.

Forms of batches that differ in one length alone (sequences padded to the longest of a batch) have
graphs that differ in sizes alone. The captures of the first two lengths say how: each size is the
same in both, or a record's share of it is s·length + c, with whole s and c. A third one, of a long
length, must be the graph that the two say, and a fourth, of a short one, where a shorter length
comes. Each batch of a new length takes one of these captures at most; the third length takes two
where it is the shortest. From there on a graph for a length between costs none: its sizes are put
in, torch says the shapes of all that it computes, and it is proved anew. What is proved is what
runs, whatever the captures had in common.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from apiece.training.clipping import torch_internals
from apiece.training.clipping.capture import (
    PRIMES,
    Captured,
    Task,
    capture_length,
    check_constants,
)
from apiece.training.clipping.graphs import (
    FEW_RECORDS,
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
    """A graph for any length from `shortest` to `longest`.

    lengths: the first two that were captured. graph: of `batch` records of the second length.
    other: for each node of the graph its partner in the capture of few records of the first length.
    """

    axes: Axes
    batch: int
    lengths: tuple[int, int]
    graph: fx.GraphModule
    other: dict[fx.Node, fx.Node]
    shortest: int
    longest: int

    @torch.inference_mode(False)  # in which nothing has a gradient
    def extend(self, batch: Batch, watch: Watch, length: int) -> Family:
        """Return a graph for the length that a batch has, too, as further captures confirm.

        Raises `Uncaptured` where it is another graph for another length.
        """
        if self.shortest <= length <= self.longest:
            return self
        family = self
        # Shorter and longer agree only after a third length has confirmed the first two.
        is_confirmed = self.shortest < self.longest
        if not is_confirmed or length > self.longest:
            family = self._extend_up(batch, watch, max(length, self.longest, *self.lengths))
        if length < family.shortest:
            # Half the length, so that batches a little shorter than this one take no capture.
            short = max(shortest_length(self.axes), length // 2)
            family._confirm(batch, watch, short)
            family = replace(family, shortest=short)
        return family

    def _extend_up(self, batch: Batch, watch: Watch, top: int) -> Family:
        """Return a graph that takes lengths up to `top`, and twice as many where there are any."""
        base = self.lengths[1]
        # Differences of lengths that are odd primes: no stride, and nothing that lengths are
        # rounded to, divides them.
        for end in (2 * top, top):
            longest = base + _next_prime(end - base + 1)
            with contextlib.suppress(Uncaptured):
                self._confirm(batch, watch, longest)
                return self._reach(longest)
        # A table of positions may end at `top`: a length below confirms this one.
        if top > base + 2:
            distant = base + _last_prime(top - base)
        else:
            distant = base - _last_prime(base - shortest_length(self.axes))
        self._confirm(batch, watch, distant)
        self._confirm(batch, watch, top)
        return self._reach(top)

    def _reach(self, longest: int) -> Family:
        """Return a graph for all lengths from the shortest captured to the longest confirmed."""
        return replace(self, shortest=min(self.shortest, *self.lengths), longest=longest)

    def _confirm(self, batch: Batch, watch: Watch, length: int) -> None:
        """Raise `Uncaptured` where a capture of few records of a length is another graph.

        What two lengths have in common by chance (a square, a branch) a third one has not.
        """
        task = _task(batch, self.axes)
        # A capture with few records is cheap; the graph of many is made from the family.
        graph_of_few = capture_length(task, watch, FEW_RECORDS, length)
        try:
            check_agreement(self.graph_of(task, length), graph_of_few, self.batch)
        except Coincidence as error:
            raise Uncaptured("model: a size of the records is taken for their number") from error

    def capture(self, batch: Batch, length: int) -> Captured:
        """Return the graph for the length that a batch has.

        Raises `Uncaptured` where torch finds it to be none, or takes it for a number of records.
        """
        if length % self.batch == 0:
            raise Uncaptured("model: the length of the records is taken for their number")
        task = _task(batch)
        graph = self.graph_of(task, length)
        tidy(graph)
        check_constants(graph, batch.parameters)
        return Captured(graph, tuple(task.tensors), tuple(batch.parameters), Sizes(self.batch))

    def graph_of(self, task: Task, length: int) -> fx.GraphModule:
        """Return the graph for a length, which is the task's, as a capture leaves it."""
        # Copied node by node, with the sizes of the wanted length among the arguments.
        graph = fx.Graph()
        nodes: dict[fx.Node, fx.Node] = {}
        # Only calls carry sizes; placeholders and constants are what they are.
        for node in self.graph.graph.nodes:
            if node.op == "call_function" and node not in self.other:
                continue  # made of constants alone, and nothing depends on it
            copied = graph.node_copy(node, nodes.__getitem__)
            nodes[node] = copied
            if node.op == "call_function":
                other = self.other[node]
                args = self._size(node.args, other.args, length)
                kwargs = self._size(node.kwargs, other.kwargs, length)
                copied.args = fx.map_arg(tuple(args), nodes.__getitem__)
                copied.kwargs = fx.map_arg(kwargs, nodes.__getitem__)
        module = torch_internals.graph_module(self.graph, graph)
        if length == self.lengths[1]:  # it is as it was captured
            return module
        fakes = task.fakes(self.batch, length)
        # these alone are on the model's device
        for node, fake in zip(graph.find_nodes(op="placeholder"), fakes, strict=True):
            node.meta["val"] = fake
        try:
            with torch.no_grad():
                _Shapes(module).run(*map(_on_meta, fakes))
        except Exception as error:
            raise Uncaptured(f"model: no graph for records of length {length}") from error
        return module

    def _size(self, value: Any, other: Any, length: int) -> Any:
        """Return an operator's arguments for a length."""
        if isinstance(value, dict):
            return {key: self._size(value[key], other[key], length) for key in value}
        if isinstance(value, list | tuple):
            parts = zip(value, other, strict=True)
            return [self._size(part, part_of_other, length) for part, part_of_other in parts]
        if type(value) is not int:
            return value
        # The graph is of the second length, its partner of the first.
        return size_between(value, other, self.batch, (self.lengths[1], self.lengths[0]), length)


# Where shapes are worked out without values.
_META = torch.device("meta")


def _on_meta(value: Any) -> Any:
    """Return a tensor's form on the device meta, and this device for another one."""
    if isinstance(value, torch.device):
        return _META
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
    return value


class _Shapes(fx.Interpreter):
    """Notes what every operator gives, of tensors on the device meta.

    Torch's own functions of shapes are the same there as in a trace, which costs several times as
    much.
    """

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return a constant's form."""
        return _on_meta(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Return what an operator gives on the device meta, whatever device it names."""
        kwargs = {name: _on_meta(value) for name, value in kwargs.items()}
        return super().call_function(target, args, kwargs)

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op == "call_function":
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
    # Counted from 1, since the first axis is the records' and differs as it likes.
    pairs = [
        (number, axis, size, other_size)
        for number, (shape, other) in enumerate(zip(shapes, others, strict=True))
        for axis, (size, other_size) in enumerate(zip(shape, other, strict=True), start=1)
        if size != other_size
    ]
    # One length alone: all axes must differ by the same amount.
    if len({size - other_size for *_, size, other_size in pairs}) != 1:
        return ()
    _, _, first, _ = pairs[0]
    return tuple((number, axis, size - first) for number, axis, size, _ in pairs)


def shortest_length(axes: Axes) -> int:
    """Return the least length at which none of these axes is shorter than two."""
    # At one, operators do something else.
    return 2 - min(surplus for _, _, surplus in axes)


@torch.inference_mode(False)  # in which nothing has a gradient
def capture_family(
    batch: Batch, watch: Watch, axes: Axes, first: tuple[fx.GraphModule, int], length: int
) -> Family:
    """Return a graph for the length that a batch has, which others can be made of.

    first: the capture of few records of another length, and that length. Raises `Uncaptured` where
    it is another graph for another length.
    """
    task = _task(batch, axes)
    graph_of_few, first_length = first
    for prime in PRIMES:
        # A multiple would make the length look like a number of records.
        if length % prime == 0 or first_length % prime == 0:
            continue
        try:
            graph = capture_length(task, watch, prime, length)
            other = check_agreement(graph, graph_of_few, prime, (length, first_length))
        except Coincidence:
            continue
        return Family(axes, prime, (first_length, length), graph, other, length, length)
    raise Uncaptured("model: no length of records is apart from their number")


def _next_prime(number: int) -> int:
    """Return the least odd prime that is not below a number."""
    number = max(3, number)
    while not _is_prime(number):
        number += 1
    return number


def _last_prime(number: int) -> int:
    """Return the largest odd prime that is not above a number; 1 where there is none."""
    while number > 1 and (number == 2 or not _is_prime(number)):
        number -= 1
    # 1 is the difference that every number has, where no prime is left.
    return max(1, number)


def _is_prime(number: int) -> bool:
    return all(number % divisor for divisor in range(2, math.isqrt(number) + 1))
