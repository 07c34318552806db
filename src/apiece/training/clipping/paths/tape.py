"""The tape: what went into each layer and where its output gradient will appear."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from apiece.training.clipping import records
from apiece.training.clipping.paths.broadcast import Free, frees, one_each, widened
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
    """The calls of one forward pass over `size` records, in order.

    widened: whether something was made for each record that the model makes once for all.
    """

    size: int
    calls: list[Call] = field(default_factory=list)
    widened: bool = False

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


def units_of(model: nn.Module) -> list[Unit | Free]:
    """Return what holds trainable parameters, each with its way of being handled.

    Args:
        model: Whose modules and free parameters are meant; a module inside a unit is none.
    """
    found: list[Unit | Free] = []
    _collect(model, "", found, set())
    return found


def _collect(module: nn.Module, path: str, found: list[Unit | Free], seen: set[nn.Module]) -> None:
    if module in seen:
        return
    seen.add(module)
    own = any(p is not None and p.requires_grad for p in module._parameters.values())
    bypasses = isinstance(module, nn.MultiheadAttention) or parametrize.is_parametrized(module)
    rule = rule_for(module) if own or bypasses else None
    free = frees(path, module) if own and rule is None and not bypasses else []
    if (own and not free) or bypasses:
        if any(p.requires_grad for p in module.parameters()):
            found.append(Unit(path, module, rule))
        return
    found += free
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{path}.{name}" if path else name, found, seen)


@contextlib.contextmanager
def recording(units: list[Unit | Free], size: int) -> Iterator[Tape]:
    """Record the calls of `units` while the context is open; the hooks are gone afterwards."""
    tape = Tape(size)
    free = [unit for unit in units if isinstance(unit, Free)]
    handles: list[RemovableHandle] = []
    for unit in units:
        if isinstance(unit, Unit):
            handles += _hooks(unit, tape)
    try:
        with one_each(free, size) as made:
            tape.widened = size > 1 and bool(free)
            for f, each in zip(free, made, strict=True):
                tape.note(Unit(f.path, f.module, f.rule), (each,), {}, each)
            yield tape
    finally:
        for handle in handles:
            handle.remove()


def _hooks(unit: Unit, tape: Tape) -> Iterator[RemovableHandle]:
    def widen(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        wide = widened(args, tape.size)
        tape.widened |= wide is not None
        return wide

    def note(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
        tape.note(unit, args, kwargs, out)

    if unit.is_plain:
        yield unit.module.register_forward_pre_hook(widen)
    yield unit.module.register_forward_hook(note, with_kwargs=True)
