"""When a model and a loss are looked at: at first, at what is larger or new, and secretly."""

from __future__ import annotations

import functools
import math
import secrets
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

_AT_FIRST = 2  # batches that are looked at in any case
_SOME, _ENOUGH = 64, 8  # records that are compared; as many different ones speak for any batch
_coin = secrets.SystemRandom()  # no seed of a run says when
Mark = Callable[[], Any]


@dataclass(slots=True, eq=False)
class Uses:
    """How a model was used with one loss: how many batches, and what was looked at.

    Records that are equal say nothing of each other: that a mean is taken off them, say, or that
    the worst half counts. So a batch speaks for those that are no larger and have no more different
    records: `seen` has the largest batch looked at by how many of its records differ, of which
    `_ENOUGH` speak for any number. `varied` says in which tensors any ever differed. `vain` counts
    looks after which a batch was as strange as before, since few of its records were finite.
    """

    loss: list[Mark]
    batches: int = 0
    seen: dict[int, int] = field(default_factory=dict)
    varied: set[int] = field(default_factory=set)
    vain: int = 0

    def due(self, size: int, tensors: list[torch.Tensor]) -> bool:
        """Whether to look at the next batch, of `size` records with these `tensors`.

        The first two, and those that are `strange`: after v looks in vain with chance 1/(1 + v).
        Of the others the t-th with chance 1/t, so that T steps cost some ln T looks.
        """
        if self.batches < _AT_FIRST:
            return True
        past = self.vain if self.strange(size, tensors) else self.batches
        return past == 0 or _coin.random() * (past + 1) < 1

    def strange(self, size: int, tensors: list[torch.Tensor]) -> bool:
        """Whether a batch is `new`, or the first in which records differ in a tensor."""
        return self.new(size, tensors) or any(
            _varies(t) for k, t in enumerate(tensors) if k not in self.varied
        )

    def new(self, size: int, tensors: list[torch.Tensor]) -> bool:
        """Whether no batch looked at speaks for one of `size` records with these `tensors`."""
        if size <= self.seen.get(_ENOUGH, 0):
            return False
        most = _different(tensors)
        return all(most > different or size > largest for different, largest in self.seen.items())

    def looked(self, size: int, tensors: list[torch.Tensor]) -> None:
        """Note that a batch of `size` records was looked at and found good."""
        self.varied |= {k for k, t in enumerate(tensors) if _varies(t)}
        different = _different(tensors)
        self.seen[different] = max(self.seen.get(different, 0), size)


def _varies(records: torch.Tensor) -> bool:
    """Return whether any two records differ."""
    return not torch.equal(records[1:], records[:1].expand_as(records[1:]))


def _different(tensors: list[torch.Tensor]) -> int:
    """Return how many of some records differ and are finite, `_ENOUGH` where it is more."""
    size = len(tensors[0])
    some = torch.linspace(0, size - 1, min(size, _SOME), device=tensors[0].device).long()
    taken = [t[some].detach().cpu().reshape(len(some), -1) for t in tensors]
    finite = torch.stack([torch.isfinite(t).all(1) for t in taken]).all(0)
    rows = [t[finite].view(torch.uint8) for t in taken]
    found = {
        b"".join(row.numpy().tobytes() for row in record) for record in zip(*rows, strict=True)
    }
    return min(len(found), _ENOUGH)


def enlarged(size: int) -> int:
    """Return a size that few Poisson batches of a rate near `size` go beyond: 4 deviations more.

    Looked at once with records repeated, it spares the look at every batch a little larger.
    """
    return size + 4 * math.ceil(math.sqrt(size))


_known: weakref.WeakKeyDictionary[nn.Module, dict[Any, list[Uses]]] = weakref.WeakKeyDictionary()


def uses_of(model: nn.Module, how: tuple[Any, ...], loss_fn: Any) -> Uses:
    """Return the uses of `model` in state and by method `how` with exactly this loss."""
    all_ = _known.setdefault(model, {}).setdefault(how, [])
    parts = _parts(loss_fn)
    for uses in all_:
        if len(uses.loss) == len(parts) and all(
            mark() is part for mark, part in zip(uses.loss, parts, strict=True)
        ):
            return uses
    all_[:] = [uses for uses in all_ if not any(mark() is _GONE for mark in uses.loss)]
    all_.append(Uses([_mark(part) for part in parts]))
    return all_[-1]


def _parts(loss: Any) -> list[Any]:
    """Return the objects that make a loss what it is: a lambda made again is the same loss."""
    if isinstance(loss, functools.partial):
        names, values = list(loss.keywords), list(loss.keywords.values())
        return [functools.partial, *_parts(loss.func), *loss.args, *names, *values]
    if isinstance(loss, types.MethodType):
        return [loss.__self__, *_parts(loss.__func__)]
    if isinstance(loss, types.FunctionType):
        cells = [cell.cell_contents for cell in loss.__closure__ or ()]
        defaults = [*(loss.__defaults__ or ()), *(loss.__kwdefaults__ or {}).values()]
        return [loss.__code__, *cells, *defaults]
    return [loss]


_GONE = object()


def _mark(part: Any) -> Mark:
    """Return a function that gives `part` for as long as somebody else keeps it."""
    try:
        found = weakref.ref(part)
    except TypeError:  # numbers, strings and builtin functions, which keep nothing alive
        return lambda: part
    return lambda: _GONE if found() is None else found()
