"""All that an engine does with a batch as one graph, perhaps compiled by inductor."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from apiece.errors import UnsupportedError
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.capture import fakes
from apiece.training.clipping.graphs import (
    OTHERWISE,
    Coincidence,
    Uncaptured,
    agree,
    for_any_size,
    tidy,
)
from apiece.training.clipping.rewrite import Tensors, as_function
from apiece.training.clipping.table import Sizes

_PRIMES = (37, 67, 131, 257, 521, 1031, 2053, 4099)
Clipped = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """One graph for batches of `OTHERWISE` to `most` records.

    run: takes what the traced function takes, and gives what it gives.
    """

    run: Clipped
    most: int

    def takes(self, size: int) -> bool:
        """Return whether the graph is for so many records."""
        return OTHERWISE <= size <= self.most


def as_whole(
    clipped: Clipped, given: Tensors, along: Sequence[bool], most: int, compiled: bool
) -> Whole:
    """Return a function of a batch as one graph, perhaps compiled by inductor.

    It is traced with few records and with as many as a part of a batch ever has. Where both do the
    same, the graph is one for any number, and is compiled once. What it does must not follow from
    the tensors' values; `along` tells which of them are along the records, the first among them.
    Raises `UnsupportedError` where it is another one for another number of records, or there is no
    C++ compiler.
    """
    if compiled:
        _find_compiler()
    # A prime: a size that it divides is most likely the batch's, and the second trace decides.
    size = next((prime for prime in _PRIMES if prime >= most), _PRIMES[-1])
    try:
        with torch.no_grad():
            graph, other = (
                make_fx(clipped, tracing_mode="fake")(*fakes(given, along, number))
                for number in (size, OTHERWISE)
            )
        # Two traces that differ only where `size` stands are one graph for any number of records.
        agree(graph, other, size)
    except (Coincidence, Uncaptured):
        raise UnsupportedError(
            "compiled: this model's sums are made in another way for another number of records "
            "(convolutions, long sequences), and would be compiled at every step; leave it out"
        ) from None
    tidy(graph)
    for_any_size(graph, Sizes(size), next(iter(graph.graph.nodes)))
    if not compiled:
        return Whole(functools.partial(as_function(graph.graph), graph), size)
    graph.recompile()
    fast = torch.compile(graph, dynamic=True, fullgraph=True)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the compiler imports, now or for other sizes
            result: list[torch.Tensor] = fast(*tensors)
        return result

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
