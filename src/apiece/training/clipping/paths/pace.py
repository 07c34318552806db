"""How many records to work on at a time, so that what they leave behind stays in the cache."""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any

import torch
from torch import nn

from apiece.training.clipping import records

_CACHE = 1 << 22  # values that a part of a batch may leave behind: half of a third-level cache
_WORTH = 8  # a part must leave this many values for each parameter, which it has to pass over
_EACH = 1 << 19  # values for each layer, whose handling costs the same for any number of records
_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, tuple[int, int, int]]] = (
    weakref.WeakKeyDictionary()
)


def records_at_a_time(model: nn.Module, inputs: Any, size: int) -> int:
    """Return the width of the parts in which book-keeping takes a batch of `size` records.

    A function of the model and of the shape of one record, so that a run that was stopped adds up
    the same parts again. On an accelerator the batch is one part.
    """
    most = most_at_a_time(model, inputs)
    return size if size <= most else math.ceil(size / math.ceil(size / most))


def most_at_a_time(model: nn.Module, inputs: Any) -> int:
    """Return the largest width of a part, whatever the size of the batch."""
    tensors = records.leaves(inputs)
    if any(t.device.type != "cpu" for t in tensors):
        return sys.maxsize
    shapes = tuple(t.shape[1:] for t in tensors)
    known = _known.setdefault(model, {})
    if shapes not in known:
        layers = sum(1 for module in model.modules() if module._parameters)
        cells = max(1, _cells_of_one(model, inputs))  # which gives lazy layers their shapes
        parameters = sum(p.numel() for p in model.parameters())  # frozen ones are read as well
        known[shapes] = cells, layers, parameters
    cells, layers, parameters = known[shapes]
    return max(1, max(_CACHE, _WORTH * parameters, _EACH * layers) // cells)


def _cells_of_one(model: nn.Module, inputs: Any) -> int:
    """Return how many values the layers put out for one record."""
    found = 0

    def hook(_module: nn.Module, _args: Any, out: Any) -> None:
        nonlocal found
        found += sum(t.numel() for t in records.leaves(out))

    last = [module for module in model.modules() if not any(True for _ in module.children())]
    handles = [module.register_forward_hook(hook) for module in last]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            records.call(model, records.select(inputs, slice(0, 1)))
    finally:
        for handle in handles:
            handle.remove()
    return found
