"""The tape: what went into each layer and where its output gradient will appear."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils import parametrize

from apiece.training.clipping import records
from apiece.training.clipping.rules.rule import LayerRule, NotBookable
from apiece.training.clipping.rules.table import rule_for


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A module whose trainable parameters are handled together; rule None: by torch.func."""

    path: str
    module: nn.Module
    rule: LayerRule | None

    @property
    def is_plain(self) -> bool:
        """Whether its rule needs no more than one input and the outputs' gradients."""
        return self.rule is not None and not self.rule.remakes


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """One call of a unit: its arguments, their versions, its outputs and their edges.

    outputs: kept where the unit is run again, else None, so that their memory is free again.
    """

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    edges: tuple[GradientEdge, ...]
    versions: tuple[int, ...]

    def check(self) -> None:
        """Refuse a call whose input was overwritten later in the forward pass."""
        if tuple(t._version for t in records.leaves((self.args, self.kwargs))) != self.versions:
            raise NotBookable(f"{self.unit.path}: its input is changed in place after use")


@dataclass(slots=True, repr=False)
class Tape:
    """The calls of one forward pass, in order."""

    calls: list[Call] = field(default_factory=list)

    def note(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note one call. Outputs without a gradient need no entry."""
        tensors = [t for t in records.leaves(out) if t.requires_grad]
        if not tensors:
            return
        if unit.is_plain and (kwargs or len(args) != 1):
            raise NotBookable(f"{unit.path}: called with {len(args)} arguments and {list(kwargs)}")
        edges = tuple(get_gradient_edge(t) for t in tensors)
        versions = tuple(t._version for t in records.leaves((args, kwargs)))
        kept = None if unit.is_plain else out
        self.calls.append(Call(unit, args, kwargs, kept, edges, versions))


def units_of(model: nn.Module) -> list[Unit]:
    """Return the modules that hold trainable parameters, each with its way of being handled."""
    found: list[Unit] = []
    _collect(model, "", found, set())
    return found


def _collect(module: nn.Module, path: str, found: list[Unit], seen: set[nn.Module]) -> None:
    if module in seen:
        return
    seen.add(module)
    own = any(p is not None and p.requires_grad for p in module._parameters.values())
    bypasses = isinstance(module, nn.MultiheadAttention) or parametrize.is_parametrized(module)
    if own or bypasses:
        if any(p.requires_grad for p in module.parameters()):
            found.append(Unit(path, module, rule_for(module)))
    else:
        for name, child in module._modules.items():
            if child is not None:
                _collect(child, f"{path}.{name}" if path else name, found, seen)


@contextlib.contextmanager
def recording(units: list[Unit]) -> Iterator[Tape]:
    """Record the calls of `units` while the context is open; the hooks are gone afterwards."""
    tape = Tape()
    handles = []
    for unit in units:

        def hook(_module: nn.Module, args: Any, kwargs: Any, out: Any, unit: Unit = unit) -> None:
            tape.note(unit, args, kwargs, out)

        handles.append(unit.module.register_forward_hook(hook, with_kwargs=True))
    try:
        yield tape
    finally:
        for handle in handles:
            handle.remove()
