"""What a model makes once for all records is made once for each, so that each gradient is seen.

Positions of a first dimension of 1, class tokens and the like are added to every record by
broadcasting, and their gradients are then those of all records together. With that dimension as
long as the batch nothing else changes, and autograd gives each record's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from apiece.training.clipping.rules.contributions import Rows
from apiece.training.clipping.rules.rule import Contributions, LayerRule, LayerUse


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Free:
    """A parameter (1, …) of a module that is no layer: used where the module's forward likes."""

    path: str
    module: nn.Module
    name: str

    @property
    def rule(self) -> LayerRule:
        """How its contribution comes from the gradient of the parameter made for each record."""
        return LayerRule(partial(_as_it_is, self.name))


def _as_it_is(name: str, _module: nn.Module, use: LayerUse) -> Contributions:
    return {name: Rows(use.gradient.unsqueeze(1))}


def frees(path: str, module: nn.Module) -> list[Free]:
    """Return the trained parameters that `module` itself holds if all are (1, …), else none."""
    own = {name: p for name, p in module._parameters.items() if p is not None and p.requires_grad}
    if all(p.dim() > 1 and p.shape[0] == 1 for p in own.values()):
        return [Free(path, module, name) for name in own]
    return []


@contextlib.contextmanager
def one_each(free: list[Free], size: int) -> Iterator[list[torch.Tensor]]:
    """Give the parameters a first dimension of `size` while the context is open; yield them."""
    before = [f.module._parameters[f.name] for f in free]
    made: list[Any] = [p.expand(size, *p.shape[1:]) for p in before if p is not None]
    try:
        for f, each in zip(free, made, strict=True):
            f.module._parameters[f.name] = each
        yield made
    finally:
        for f, parameter in zip(free, before, strict=True):
            f.module._parameters[f.name] = parameter


def widened(args: tuple[Any, ...], size: int) -> tuple[Any, ...] | None:
    """Return a layer's only argument (1, …) with a first dimension of `size`; None for others."""
    if size < 2 or len(args) != 1 or not isinstance(args[0], torch.Tensor):
        return None
    given = args[0]
    if given.dim() < 2 or given.shape[0] != 1:
        return None
    return (given.expand(size, *given.shape[1:]),)
