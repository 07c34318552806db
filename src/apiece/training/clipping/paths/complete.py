"""Whether every way from the losses to a parameter was noted: proved on the graph of each batch."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from torch.autograd.graph import Node

Stops = Mapping[Node, tuple[Node, ...]]


def missed(starts: Iterable[Node], stops: Stops, trained: Container[int]) -> int | None:
    """Return the id of a tensor among `trained` that is used where nothing was noted, or None.

    Walks autograd's graph backwards. stops: nodes whose parameters are accounted for, with those
    at which their inputs came in, where the walk goes on.
    """
    waiting = list(starts)
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        further = stops.get(node)
        if further is None:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) in trained:
                return id(variable)
            further = tuple(n for n, _ in node.next_functions if n is not None)
        waiting += further
    return None
