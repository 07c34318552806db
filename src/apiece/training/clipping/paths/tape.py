"""The tape: what went into each layer and where its output gradient will appear."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from apiece.training.clipping import records
from apiece.training.clipping.guards import modules_of
from apiece.training.clipping.paths.following import Following
from apiece.training.clipping.paths.meeting import nodes
from apiece.training.clipping.paths.packing import Packing
from apiece.training.clipping.rules.rule import LayerRule, NotBookable
from apiece.training.clipping.rules.table import rule_for

_unfollowed = torch._C.DisableTorchFunction  # even to read what a tensor is goes by way of a mode
_WHOLE = (nn.MultiheadAttention, nn.RNNBase)  # that read their parameters in one fused call


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A module whose trainable parameters are handled together; rule None: by torch.func."""

    path: str
    module: nn.Module
    rule: LayerRule | None

    @property
    def is_plain(self) -> bool:
        """Whether its rule needs no more than one input and the outputs' gradients."""
        return self.rule is not None and not (self.rule.remakes or self.rule.more)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Call:
    """One call of a unit: its arguments, their versions, its outputs and their edges.

    outputs: kept where the unit is run again, else None, so that their memory is free again.
    past: the nodes of autograd's graph at which its arguments came in.
    packing: whose each row is, where the argument and the first output are packed sequences.
    """

    unit: Unit
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    edges: tuple[GradientEdge, ...]
    versions: tuple[int, ...]
    past: tuple[Node, ...]
    packing: Packing | None = None

    def check(self) -> None:
        """Refuse a call whose input was overwritten later in the forward pass."""
        if tuple(t._version for t in records.leaves((self.args, self.kwargs))) != self.versions:
            raise NotBookable(f"{self.unit.path}: its input is changed in place after use")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SharedCall:
    """One call of a unit on something that all records share: its argument and its output."""

    unit: Unit
    given: torch.Tensor
    output: torch.Tensor


@dataclass(slots=True, repr=False)
class Tape:
    """The calls of one forward pass over `size` records, in order, and what records share.

    shared: calls that no record has a part in.
    """

    follow: Following
    calls: deque[Call] = field(default_factory=deque)
    shared: list[SharedCall] = field(default_factory=list)

    def note(self, unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note one call. Outputs without a gradient need no entry."""
        tensors = [t for t in records.leaves(out) if t.requires_grad]
        if not tensors:
            return
        if unit.is_plain and (kwargs or len(args) != 1):
            raise NotBookable(f"{unit.path}: called with {len(args)} arguments and {list(kwargs)}")
        edges = tuple(get_gradient_edge(t) for t in tensors)
        given = records.leaves((args, kwargs))
        offsets, packing = _offsets(unit, args, kwargs), self._packing(unit, args, kwargs)
        if packing is not None:
            self.follow.rows.keep_packed(tensors[0], packing)
        elif offsets is None:
            self.follow.rows.refuse(unit.path, given)
        else:
            places = [t for t in given if t is not offsets]
            last = bool(getattr(unit.module, "include_last_offset", False))
            self.follow.rows.check_bags(unit.path, places, offsets[:-1] if last else offsets)
        versions = tuple(t._version for t in given)
        kept = None if unit.is_plain else out
        past = nodes(given)
        self.calls.append(Call(unit, args, kwargs, kept, edges, versions, past, packing))

    def _packing(self, unit: Unit, args: Any, kwargs: Any) -> Packing | None:
        """Return whose the rows of packed sequences are, where the layer takes such."""
        if unit.rule is None or not unit.rule.packs or kwargs or len(args) != 1:
            return None
        packed = isinstance(args[0], nn.utils.rnn.PackedSequence)
        return self.follow.rows.packing(args[0]) if packed else None

    @property
    def edges(self) -> list[GradientEdge]:
        """Where gradients are wanted: of the calls' outputs, then of the uses of what is shared."""
        of_calls = [edge for call in self.calls for edge in call.edges]
        return of_calls + [use.edge for use in self.follow.uses]

    def stops(self) -> dict[Node, tuple[Node, ...]]:
        """Return the nodes whose parameters are accounted for, and where their records came in."""
        found: dict[Node, tuple[Node, ...]] = {}
        for call in self.calls:
            found |= dict.fromkeys((edge.node for edge in call.edges), call.past)
        for use in self.follow.uses:
            found[use.edge.node] = use.past
        return found

    def behind_shared(self) -> tuple[list[Node], dict[Node, tuple[Node, ...]]]:
        """Return where what is shared was computed, and the nodes of the layers that did it."""
        held = {id(p) for call in self.shared for p in call.unit.module.parameters()}
        if held & self.follow.roots.keys():
            raise NotBookable("a layer's parameter is used by it and beside it, without records")
        computed = [use.shared for use in self.follow.uses if use.shared.grad_fn is not None]
        stops = {nodes([call.output])[0]: nodes([call.given]) for call in self.shared}
        return list(nodes(computed)), stops


def _offsets(unit: Unit, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return where in its first argument a bag's records begin, None where they are its rows."""
    if not isinstance(unit.module, nn.EmbeddingBag) or unit.rule is None:
        return None
    found: torch.Tensor | None = args[1] if len(args) > 1 else kwargs.get("offsets")
    return found


def units_of(model: nn.Module) -> list[Unit]:
    """Return the layers that hold trainable parameters, each with its way of being handled.

    Parameters of other modules are followed to where they are used.

    Args:
        model: Whose modules are meant; a module inside a unit is none.
    """
    found: list[Unit] = []
    _collect(model, "", found, set())
    return found


def free_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trained parameters of modules that are no layers, by name."""
    held = {id(p) for unit in units_of(model) for p in unit.module.parameters()}
    return {
        name: p for name, p in model.named_parameters() if p.requires_grad and id(p) not in held
    }


def _collect(module: nn.Module, path: str, found: list[Unit], seen: set[nn.Module]) -> None:
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, _WHOLE):
        if any(p.requires_grad for p in module.parameters()):
            found.append(Unit(path, module, rule_for(module)))
        return
    own = any(p is not None and p.requires_grad for p in module._parameters.values())
    rule = rule_for(module) if own else None
    if rule is not None:
        found.append(Unit(path, module, rule))
        return
    for name, child in module._modules.items():
        if child is not None:
            _collect(child, f"{path}.{name}" if path else name, found, seen)


@contextlib.contextmanager
def recording(model: nn.Module, size: int) -> Iterator[Tape]:
    """Record one forward pass of `model` while the context is open; hooks are gone afterwards."""
    held = [m for _, m in modules_of(model)]
    own = {id(p): p for m in held for p in m._parameters.values() if p is not None}
    trained = [p for p in own.values() if p.requires_grad]
    fixed = [p for p in own.values() if not p.requires_grad]
    buffers = [b for m in held for b in m._buffers.values() if b is not None]
    tape = Tape(Following(size, trained, [*buffers, *fixed]))
    handles: list[RemovableHandle] = []
    for unit in units_of(model):
        handles += _hooks(unit, tape)
    try:
        with tape.follow:
            yield tape
    finally:
        for handle in handles:
            handle.remove()


def _hooks(unit: Unit, tape: Tape) -> Iterator[RemovableHandle]:
    follow = tape.follow
    expanded: list[int] = []  # as often as the output is to be repeated
    attention = unit.module if isinstance(unit.module, nn.MultiheadAttention) else None

    def before(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]] | None:
        with _unfollowed():
            alone = not kwargs and len(args) == 1 and follow.knows(args[0])
            times, changed = 0, None
            if alone and follow.size > 1:
                one = follow.one_of(args[0])
                if one is not None:
                    times, changed = args[0].shape[0], ((one,), kwargs)
            elif not alone:
                changed = follow.spread(unit.path, args, kwargs)
            expanded.append(times)
            follow.inside += 1
            follow.attention = attention
            return changed

    def after(_module: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
        times = expanded.pop()
        with _unfollowed():
            if kwargs or len(args) != 1 or not follow.knows(args[0]):
                if attention is not None and follow.attention is None:  # its projections were noted
                    follow.rows.refuse(unit.path, records.leaves((args, kwargs)))
                else:
                    tape.note(unit, args, kwargs, out)
                follow.inside -= 1
                return None
            if isinstance(out, torch.Tensor) and out.requires_grad:
                tape.shared.append(SharedCall(unit, args[0], out))
            for tensor in records.leaves(out):
                follow.keep(tensor)
            follow.inside -= 1
        return out.expand(times, *out.shape[1:]) if times else None

    yield unit.module.register_forward_pre_hook(before, with_kwargs=True)
    yield unit.module.register_forward_hook(after, with_kwargs=True)
