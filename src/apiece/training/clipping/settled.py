"""What a forward leaves in the model, where nothing that is computed depends on it.

A counter of calls, or a table that follows from shapes and is kept for the next call. The graph
that is proved and run is that of a forward from the state that the model has; it must be the same
from the state that forwards leave, and with any number in a counter's place. So nothing freezes
that would have moved, and the model stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from apiece.training.clipping.table import RANDOM, name_of

Attributes = Sequence[tuple[nn.Module, str]]
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


class Unsettled(Exception):  # noqa: N818
    """What a forward leaves behind differs from call to call, or follows from what it was given."""


class _Number:
    """Any number: it can be counted on, and nothing can be decided by it."""

    __slots__ = ()

    def _counted(self, other: Any) -> _Number:
        if isinstance(other, int | float | _Number):
            return self
        raise Unsettled("a tensor depends on it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _counted

    def _decided(self, *_others: Any) -> Any:
        raise Unsettled("something is decided by it")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _decided
    __int__ = __float__ = __index__ = __str__ = __repr__ = __format__ = _decided


class Settling:
    """Forwards before the one that counts, and what they have left.

    Args:
        attributes: What a forward was seen to change.
    """

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._left: list[Any] = []
        self._tensors: set[fx.Node] = set()
        self.begins = 0  # the place in the graph of the forward that counts

    def before(self, run: Callable[[], Any]) -> None:
        """Run twice; what still moves then must be a number, and becomes any number."""
        run()
        once = self._state()
        run()
        twice = self._state()
        for (module, key), one, two in zip(self._attributes, once, twice, strict=True):
            if not _alike(one, two):
                if type(one) not in (int, float) or type(two) not in (int, float):
                    raise Unsettled("differs from call to call")
                module.__dict__[key] = _Number()
        self._left = self._state()
        mode = get_proxy_mode()
        assert mode is not None
        self._tensors = {
            get_proxy_slot(value, mode.tracer).proxy.node
            for value in self._left
            if isinstance(value, torch.Tensor)
        }
        self.begins = len(mode.tracer.graph.nodes)

    def after(self) -> None:
        """Raise `Unsettled` unless the forward that counts has left everything as it was."""
        if not all(map(_alike, self._state(), self._left)):
            raise Unsettled("differs from call to call")

    def _state(self) -> list[Any]:
        found = [module.__dict__.get(key) for module, key in self._attributes]
        for value in found:
            if not isinstance(value, (*_PLAIN, torch.Tensor, _Number)):
                raise Unsettled("is neither a number nor a tensor")
        return found

    def check(self, graph: fx.Graph) -> None:
        """Take out the forwards before; raise `Unsettled` where a tensor follows from inputs."""
        if self._tensors & _follows(graph):
            raise Unsettled("follows from what it was given")
        for node in reversed(list(graph.nodes)[: self.begins]):
            if not node.users and node.op != "placeholder":
                graph.erase_node(node)


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return type(one) is type(other) and isinstance(one, _PLAIN) and bool(one == other)


def _follows(graph: fx.Graph) -> set[fx.Node]:
    """Return what is made of inputs or of chance, and what such values are written into."""
    found = {n for n in graph.nodes if n.op == "placeholder" or name_of(n) in RANDOM}
    while True:
        known = len(found)
        for node in graph.nodes:
            if node in found or not found.isdisjoint(node.all_input_nodes):
                found.add(node)
                schema = getattr(node.target, "_schema", None)
                written = node
                while schema is not None and schema.is_mutable and written.args:
                    (written, *_), before = written.args, written
                    if not isinstance(written, fx.Node) or written is before:
                        break
                    found.add(written)
        if len(found) == known:
            return found
