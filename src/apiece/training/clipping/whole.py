"""A batch's clipped sum as one compiled graph: forward, backward, norms, factors, weighted sums.

What the engine does with a batch is traced with few records and with as many as a part of a batch
ever has. Where both do the same, the graph is one for any number, and is compiled once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from apiece.errors import UnsupportedError
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.capture import (
    OTHERWISE,
    Coincidence,
    Uncaptured,
    agree,
    for_any_size,
    tidy,
)
from apiece.training.clipping.layout import Sizes

_PRIMES = (37, 67, 131, 257, 521, 1031, 2053, 4099)
Clipped = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """One compiled graph for batches of `OTHERWISE` to `most` records.

    Args:
        run: Takes what the traced function takes, and gives what it gives.
        most: Records.
    """

    run: Clipped
    most: int

    def takes(self, size: int) -> bool:
        """Whether the graph is for so many records."""
        return OTHERWISE <= size <= self.most


def compiled(
    clipped: Clipped, given: Sequence[torch.Tensor], along: Sequence[bool], most: int
) -> Whole:
    """Return a function of a batch as one graph, compiled by inductor.

    Args:
        clipped: Of tensors alone; what it does must not follow from their values.
        given: What it is called with, of any number of records.
        along: Which of them are along the records, the first one among them.
        most: How many records a part of a batch has at most.

    Raises:
        UnsupportedError: Where the graph is another one for another number of records, or there is
            no C++ compiler.
    """
    _find_compiler()
    size = next((prime for prime in _PRIMES if prime >= most), _PRIMES[-1])
    try:
        graph, other = (_graph(clipped, given, along, many) for many in (size, OTHERWISE))
        agree(graph, other, size)
    except (Coincidence, Uncaptured):
        raise UnsupportedError(
            "compiled: this model's sums are made in another way for another number of records "
            "(convolutions, long sequences), and would be compiled at every step; leave it out"
        ) from None
    tidy(graph)
    for_any_size(graph, Sizes(size), next(iter(graph.graph.nodes)))
    graph.recompile()
    fast = torch.compile(graph, dynamic=True, fullgraph=True)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the compiler imports, now or for other sizes
            found: list[torch.Tensor] = fast(*tensors)
        return found

    # compiled for as many records in every run: a resumed one begins with another batch
    first = [
        t[:1].expand(_PRIMES[0], *t.shape[1:]).clone() if follows else t
        for t, follows in zip(given, along, strict=True)
    ]
    with trial([given[0].device]), torch.no_grad():
        run(*first)
    return Whole(run, size)


def _find_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise UnsupportedError(
            "compiled: no C++ compiler is found; install g++ or set CXX, or leave it out"
        ) from None


def _graph(
    clipped: Clipped, given: Sequence[torch.Tensor], along: Sequence[bool], size: int
) -> fx.GraphModule:
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor, follows: bool) -> torch.Tensor:
        if follows:
            shape = (size, *tensor.shape[1:])
            empty = torch.empty(shape, dtype=tensor.dtype, device="meta")
            tensor = torch.empty_like(empty, device=tensor.device)
        return mode.from_tensor(tensor)

    tensors = [fake(t, follows) for t, follows in zip(given, along, strict=True)]
    with torch.no_grad():
        make = make_fx(clipped, tracing_mode="fake", _allow_non_fake_inputs=True)
        found: fx.GraphModule = make(*tensors)
    return found
