"""Tracing: what a function does to tensors without values, as a graph of ATen's operators.

Every operator that torch dispatches below autograd is a node, in the order in which it runs, with
its arguments as they are; a tensor that was not given, and that no operator has made, is a constant
of the graph. That is what `make_fx` does as well; this takes a fifth of its time, since it has
neither proxies nor symbols.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from apiece.errors import UnsupportedError
from apiece.training.clipping import torch_internals

aten = torch.ops.aten
# `tracer`: what is at work in this thread, None outside of a trace. limit: the most nodes that a
# graph may have, and what is said of one with more.
_THREAD = threading.local()


class TooLarge(UnsupportedError):  # noqa: N818
    """A graph grows beyond the nodes that it may have."""


@contextlib.contextmanager
def limit_graphs(most: int, reason: str) -> Iterator[None]:
    """Raise `TooLarge`, with a reason, where a trace inside makes a graph of more than `most`."""
    _THREAD.limit = most, reason
    try:
        yield
    finally:
        _THREAD.limit = None


def current_tracer() -> Tracer | None:
    """Return the tracer that is at work, None outside of a trace."""
    return getattr(_THREAD, "tracer", None)


class Tracer(torch_internals.DispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operator that runs meanwhile as a node of its graph.

    graph: what has run so far. constants: by name, the tensors that nobody has given. device: the
    type of device that everything is on.
    """

    def __init__(self, decompositions: Mapping[Any, Callable[..., Any]], device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self._decompositions = decompositions
        self._device = device
        self._limit: tuple[int, str] | None = getattr(_THREAD, "limit", None)
        # By the id of a tensor, the node that has made it; each stays alive, and so its id its own.
        self._nodes: dict[int, fx.Node] = {}
        self._alive: list[torch.Tensor] = []

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """Return the node that makes a tensor; of a constant one that reads it."""
        node = self._nodes.get(id(tensor))
        if node is None:
            # Met here for the first time: not given, and made by no operator that was seen.
            # A constant has values. What has none was made of something given, out of sight: it
            # must not pass for what is the same for every record.
            if torch_internals.has_no_values(tensor):
                raise RuntimeError("a tensor is made where no operator of torch is seen")
            name = f"_constant{len(self.constants)}"
            self.constants[name] = tensor
            node = self.graph.create_node("get_attr", name)
            node.meta["val"] = tensor
            self._note(tensor, node)
        return node

    def give(self, tensor: torch.Tensor) -> None:
        """Make a tensor an input of the graph, the next one."""
        node = self.graph.placeholder(f"input_{len(self._alive)}")
        node.meta["val"] = torch_internals.snapshot(tensor)
        self._note(tensor, node)

    def _note(self, tensor: torch.Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # Asked by torch itself about tensors without values: no operator of the model.
        if func is torch_internals.DEVICE_OF:
            return func(*args, **kwargs)
        # Written in others, in this order: by our table, or by torch where it has no kernel of its
        # own.
        write_out = self._decompositions.get(func)
        if write_out is None and torch_internals.is_composite(func, self._device):
            write_out = func.decompose
        if write_out is not None:
            # Active again inside: the operators that come of it are nodes.
            with self:
                result = write_out(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if self._limit is not None and len(self.graph.nodes) > self._limit[0]:
            raise TooLarge(self._limit[1])
        # Memory that nobody else has: what is written into it would be written into the constant.
        target = aten.lift_fresh_copy.default if func is aten.lift_fresh.default else func
        node = self.graph.create_node(
            "call_function",
            target,
            fx.node.map_aggregate(args, self._find),
            fx.node.map_aggregate(kwargs, self._find),
        )
        # of a graph that is run once more, the notes of the node that runs
        if (notes := torch_internals.notes_of_running_node()) is not None:
            node.meta["custom"] = notes
        # An operator that writes gives the tensor that it has written: from here on it is this one.
        result = target(*args, **kwargs)
        self._note_results(result, node)
        return result

    def _find(self, argument: Any) -> Any:
        return self.node_of(argument) if isinstance(argument, torch.Tensor) else argument

    def _note_results(self, result: Any, node: fx.Node) -> None:
        """Note which tensors a node makes, one by one where it makes several."""
        if isinstance(result, torch.Tensor):
            # A snapshot of shape and strides, since later operators may change the tensor in place.
            node.meta["val"] = torch_internals.snapshot(result)
            self._note(result, node)
            return
        node.meta["val"] = result
        if not isinstance(result, list | tuple):
            return
        values = list(result)
        # Each output is a node of its own, so that consumers refer to one tensor.
        for position, part in enumerate(result):
            if isinstance(part, torch.Tensor):
                picked = self.graph.call_function(operator.getitem, (node, position))
                if "custom" in node.meta:
                    picked.meta["custom"] = node.meta["custom"]
                self._note_results(part, picked)
                values[position] = picked.meta["val"]
        node.meta["val"] = tuple(values)


def trace(
    function: Callable[..., Any],
    *tensors: torch.Tensor,
    decompositions: Mapping[Any, Callable[..., Any]] | None = None,
) -> fx.GraphModule:
    """Return what a function of tensors does to these, which have no values.

    decompositions: by operator, how it is written in others.
    """
    # One device for all: which kernels there are decides what is composite.
    tracer = Tracer(decompositions or {}, tensors[0].device.type)
    for tensor in tensors:
        tracer.give(tensor)
    # Inside the fake tensors' own mode, so that operators compute shapes alone.
    with _at_work(tracer), torch_internals.mode_of(tensors[0]), tracer:
        results = function(*tensors)
    tracer.graph.output([None if result is None else tracer.node_of(result) for result in results])
    return torch_internals.graph_module(tracer.constants, tracer.graph)


@contextlib.contextmanager
def _at_work(tracer: Tracer) -> Iterator[None]:
    """Let a tracer be the current one, and autocast cast a parameter at each use."""
    is_cached = torch.is_autocast_cache_enabled()
    outer = current_tracer()
    _THREAD.tracer = tracer
    torch.set_autocast_cache_enabled(False)  # of a cast that was made before there is no node
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(is_cached)
        _THREAD.tracer = outer
