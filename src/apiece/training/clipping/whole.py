"""All that an engine does with a batch as one graph, compiled by inductor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from apiece.errors import UnsupportedError
from apiece.training.clipping import torch_internals
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.capture import make_fakes
from apiece.training.clipping.graphs import (
    FEW_RECORDS,
    Coincidence,
    Uncaptured,
    check_agreement,
    free_batch_size,
    tidy,
)
from apiece.training.clipping.rewrite import Tensors
from apiece.training.clipping.table import Sizes
from apiece.training.clipping.tracing import trace

# Numbers of records that a graph is traced with: the least of them that no part of a batch exceeds.
_PRIMES = (37, 67, 131, 257, 521, 1031, 2053, 4099)
# From bounds and a program's arguments to losses, norms and sums.
ClipBatch = Callable[..., list[torch.Tensor]]


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """One graph for batches of `FEW_RECORDS` to `capacity` records.

    run: takes what the traced function takes, and gives what it gives.
    """

    run: ClipBatch
    capacity: int

    def takes(self, size: int) -> bool:
        """Return whether the graph is for so many records."""
        return FEW_RECORDS <= size <= self.capacity


def as_whole(clip: ClipBatch, arguments: Tensors, along: Sequence[bool], capacity: int) -> Whole:
    """Return a function of a batch as one graph, compiled by inductor.

    It is traced with few records and with as many as a part of a batch ever has. Where both do the
    same, the graph is one for any number, and is compiled once. What it does must not follow from
    the tensors' values; `along` tells which of them are along the records, the first among them.
    Raises `UnsupportedError` where it is another one for another number of records, or there is no
    C++ compiler.
    """
    if not torch_internals.has_compiler():
        raise UnsupportedError(
            "compiled: no C++ compiler is found; install g++ or set CXX, or leave it out"
        )
    # A prime: a size that it divides is most likely the batch's, and the second trace decides.
    size = next((prime for prime in _PRIMES if prime >= capacity), _PRIMES[-1])
    try:
        with torch.no_grad():
            graph = trace(clip, *make_fakes(arguments, along, size))
            graph_of_few = trace(clip, *make_fakes(arguments, along, FEW_RECORDS))
        # Two traces that differ only where `size` stands are one graph for any number of records.
        check_agreement(graph, graph_of_few, size)
    except (Coincidence, Uncaptured):
        raise UnsupportedError(
            "compiled: this model's sums are made in another way for another number of records "
            "(convolutions, long sequences), and would be compiled at every step; leave it out"
        ) from None
    # Sizes that follow the number of records become nodes, so that one graph serves all batches.
    tidy(graph)
    free_batch_size(graph, Sizes(size), next(iter(graph.graph.nodes)))
    # one that is written as Python's code, which the compiler reads
    module = fx.GraphModule(graph, graph.graph)
    fast = torch.compile(module, dynamic=True, fullgraph=True)

    def run(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the compiler imports, now or for other sizes
            result: list[torch.Tensor] = fast(*tensors)
        return result

    # compiled for as many records in every run: a resumed one begins with another batch
    first_record_repeated: Tensors = []
    # A copy of the first record in all places: values count for nothing in a compilation.
    for tensor, follows in zip(arguments, along, strict=True):
        if follows:
            repeated = tensor[:1].expand(_PRIMES[0], *tensor.shape[1:])
            tensor = repeated.clone()  # with the strides that records have
        first_record_repeated.append(tensor)
    # Run once now, so that the compile time falls into the first batch, and no stream is moved.
    with trial([arguments[0].device]), torch.no_grad():
        run(*first_record_repeated)
    return Whole(run, size)
