"""The cache of engines: each form of a model's batches is captured and proved once."""

from __future__ import annotations

import contextlib
import functools
import gc
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import nn

from apiece.errors import ApieceError
from apiece.training.clipping import records
from apiece.training.clipping.engine import (
    Engine,
    Proof,
    ProvedEngine,
    build_engine,
    join_graphs,
)
from apiece.training.clipping.records import Batch, LossFunction
from apiece.training.clipping.tracing import limit_graphs
from apiece.training.clipping.watch import Watch

if TYPE_CHECKING:
    from torch import fx

    from apiece.training.clipping.lengths import Axes, Family

# Forms of one model's batches whose engines are held, at least.
_FORMS_OF_MODEL = 16
# Operators of the graphs that are held of one model where they are more: some hundred MiB.
_OPERATORS_OF_MODEL = 1 << 16
# A form counts for at least as many, with what is watched for it.
_OPERATORS_OF_FORM = 1 << 8
# Models that are held although nobody else does: where their losses or layers lead to them.
_MODELS_KEPT = 16
# Graphs for many lengths that are held of one model.
_FAMILIES_OF_MODEL = 4
# Operators that are captured and proved in the time in which one record runs alone.
_OPERATORS_A_RECORD = 64
# Operators that hardly any graph has: where as many may be captured, nothing is weighed.
_LARGE_GRAPH = 1 << 14

# The most operators that a capture pays for, and what is said of more; None where any number does.
_weight: ContextVar[tuple[int, str] | None] = ContextVar("_weight", default=None)


@contextlib.contextmanager
def weigh_capture(records: float) -> Iterator[None]:
    """Let records run alone where a capture would cost more than so many records in all do.

    What is weighed is a number of operators against a number of records, and no time: a run that is
    resumed takes the same way.
    """
    most = int(records * _OPERATORS_A_RECORD)
    reason = (
        f"a graph of more than {most} operators takes longer to capture than the {records:.0f} "
        "records of the run take alone"
    )
    # Where the limit is beyond any graph's size, nothing is counted.
    token = _weight.set((most, reason) if most < _LARGE_GRAPH else None)
    try:
        yield
    finally:
        _weight.reset(token)


@contextlib.contextmanager
def _pause_collector() -> Iterator[None]:
    """Let Python look for no cycles of objects meanwhile.

    A capture makes many objects that live to its end: the collector would take them for lasting
    ones and go through all of torch's, which takes a tenth of a second.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# What batches of one form have in common: shapes, types and devices, and Python's values in trees.
Signature: TypeAlias = tuple[object, ...]


@dataclass(slots=True, eq=False)
class _Form:
    """A form of batches with its engine, and a watch over what Python held at the capture."""

    signature: Signature
    loss_fn: LossFunction
    watch: Watch
    engine: Engine

    @property
    def operators(self) -> int:
        """How many operators this form counts for in the room that a model has."""
        match self.engine:
            case ProvedEngine(program=program):
                return max(_OPERATORS_OF_FORM, program.calls)
        return _OPERATORS_OF_FORM

    def holds(self, signature: Signature, loss_fn: LossFunction) -> bool:
        """Return whether the engine is right for batches of this form and loss, as things are."""
        # what costs most is asked last
        is_same_form = self.loss_fn is loss_fn and self.signature == signature
        return is_same_form and self.watch.is_unchanged()


@dataclass(slots=True, eq=False)
class _Store:
    """The engines of one model.

    forms: by the form and what model and loss held (`Watch.key`), in the order of their captures.
    families: by the form without its length and what model and loss held, which the watch keeps
    alive; None where there is none.
    """

    forms: dict[tuple[Signature, object], _Form] = field(default_factory=dict)
    families: dict[object, tuple[Watch, Family | None]] = field(default_factory=dict)

    def make_room(self) -> None:
        """Let the oldest forms go where the graphs are too many and too large."""
        while len(self.forms) >= _FORMS_OF_MODEL:
            # More forms than that may stay as long as their graphs are small.
            if sum(form.operators for form in self.forms.values()) < _OPERATORS_OF_MODEL:
                break
            del self.forms[next(iter(self.forms))]


class EngineCache:
    """Engines by model and form of batch.

    It owns them: as many as have room for a model (`_Store.make_room`), of which the oldest goes
    first, and none for longer than its model lives. A model that its own layers or its loss lead to
    would live as long as its engines: of such ones the last `_MODELS_KEPT` are held. An engine is
    right as long as nothing has changed that model and loss hold; after a change the form is
    captured anew, unless it is one that was met before.
    """

    def __init__(self) -> None:
        self._stores: weakref.WeakKeyDictionary[nn.Module, _Store] = weakref.WeakKeyDictionary()
        # Models that their engines keep alive, the latest last.
        self._kept: list[nn.Module] = []

    def find(self, batch: Batch, *, compiled: bool = False) -> Engine:
        """Return how batches like this one are clipped; captured and proved once for each form.

        Raises `UnsupportedError` where the graph is to be compiled and cannot be.
        """
        weight = None if compiled else _weight.get()
        # The weight is part of the form: what was too large under one limit may be captured under
        # another.
        signature = (*_signature_of(batch, compiled), weight)
        store = self._stores.setdefault(batch.model, _Store())
        # Few forms: to look at each costs less than a key of all that model and loss hold.
        for form in store.forms.values():
            if form.holds(signature, batch.loss_fn):
                return form.engine
        limit = contextlib.nullcontext() if weight is None else limit_graphs(*weight)
        with limit, _pause_collector():
            return self._add(store, signature, batch, compiled)

    def latest_proof(self, model: nn.Module) -> Proof | None:
        """Return what was proved last of a model; None before its first batch, and by "alone"."""
        store = self._stores.get(model)
        if store is None or not store.forms:
            return None
        return list(store.forms.values())[-1].engine.proof

    def _add(self, store: _Store, signature: Signature, batch: Batch, compiled: bool) -> Engine:
        """Hold the engine of a form that is new, or whose model or loss has changed."""
        classes = records.named_tuples([batch.inputs, batch.targets])
        # Looked at before the capture: what is frozen is what the watch has seen.
        watch = Watch(batch.model, batch.loss_fn, *classes)
        state = signature, watch.key
        if state in store.forms:  # as it was once: what was captured then holds again
            engine = store.forms[state].engine
        else:
            of_any_length = self._by_length(store, signature, batch, watch)
            engine = of_any_length or build_engine(batch, watch)
            # The form is noted with what is there now, or no batch would find it again.
            if not watch.is_unchanged():  # a library has noted something
                watch = Watch(batch.model, batch.loss_fn, *classes)
        if compiled and isinstance(engine, ProvedEngine) and engine.whole is None:
            engine = join_graphs(engine, batch)
        # A dict keeps the order of insertion, which makes its first entry the oldest.
        store.forms.pop(state, None)  # so that it comes last in the order of captures
        store.make_room()
        store.forms[state] = _Form(signature, batch.loss_fn, watch, engine)
        if watch.keeps_model:
            self._limit_kept(batch.model)
        return engine

    def _limit_kept(self, model: nn.Module) -> None:
        """Note a model that its engines keep alive; let the oldest of them go."""
        self._kept = [*(other for other in self._kept if other is not model), model]
        for oldest in self._kept[:-_MODELS_KEPT]:
            self._stores.pop(oldest, None)
        self._kept = self._kept[-_MODELS_KEPT:]

    def _by_length(
        self, store: _Store, signature: Signature, batch: Batch, watch: Watch
    ) -> Engine | None:
        """Return the engine of a form that has one length where a proved one has another.

        None where there is no such form, or no graph for both.
        """
        # Only proved forms tell of one graph for several lengths.
        siblings = [form.signature for form in store.forms.values() if form.engine.proof.proved]
        differences = (_axes_of_length(signature, sibling) for sibling in siblings)
        axes = next(filter(None, differences), None)
        if axes is None:
            return None
        # slow to import, and there by now
        from apiece.training.clipping.graphs import Uncaptured
        from apiece.training.clipping.lengths import capture_family, shortest_length

        length = _length(signature, axes)
        if length < shortest_length(axes):
            return None
        # The form without its length, and all that model and loss hold: the same graph but for
        # sizes.
        state = _without_length(signature, axes), watch.key
        families = store.families
        family = None
        if state in families:
            # Taken out, and put back below with what came of it, so that the latest comes last.
            _, known = families.pop(state)
            if known is not None:
                with contextlib.suppress(Uncaptured, ApieceError):
                    family = known.extend(batch, watch, length)
        else:
            first = _first_capture(store, state, axes)
            if first is None:
                return None
            with contextlib.suppress(Uncaptured, ApieceError):
                family = capture_family(batch, watch, axes, first, length)
        if len(families) >= _FAMILIES_OF_MODEL:
            del families[next(iter(families))]
        # None is noted as well: the captures are not tried again at the next length.
        families[state] = watch, family
        if family is None:
            return None
        find_graph = functools.partial(family.capture, batch, length)
        engine = build_engine(batch, watch, find_graph)
        return engine if isinstance(engine, ProvedEngine) else None


# Of this process: what was proved of a model holds wherever it is clipped.
ENGINES = EngineCache()


def proof_of(model: nn.Module) -> Proof | None:
    """Return what was proved last of a model; None before its first batch, and by "alone"."""
    return ENGINES.latest_proof(model)


def _signature_of(batch: Batch, compiled: bool) -> Signature:
    """Return the form of a batch: all that a graph depends on besides values, model and loss."""
    trees = [batch.inputs, batch.targets]
    # The number of records is no part of it: a graph is one for any number.
    tensors = [(t.shape[1:], t.dtype, t.device) for t in records.leaves(trees)]
    # A graph writes the strides of parameters into its views.
    parameters = [(name, p.shape, p.stride(), p.dtype) for name, p in batch.parameters.items()]
    # Outlines hold Python's values in the trees, which are constants of the graph.
    return tuple(tensors), tuple(parameters), records.outline(trees), compiled


def _axes_of_length(signature: Signature, other: Signature) -> Axes | None:
    """Return the axes along one length, in which alone two forms differ; None where they do not."""
    from apiece.training.clipping.lengths import find_axes

    shapes, kinds = _split(signature)
    other_shapes, other_kinds = _split(other)
    return (find_axes(shapes, other_shapes) or None) if kinds == other_kinds else None


def _first_capture(
    store: _Store, state: tuple[object, object], axes: Axes
) -> tuple[fx.GraphModule, int] | None:
    """Return the first capture of few records of another length, and its length; None without one.

    state: the form without its length, and what model and loss held.
    """
    from apiece.training.clipping.lengths import shortest_length

    for (signature, key), form in store.forms.items():
        engine = form.engine
        if not isinstance(engine, ProvedEngine) or engine.graph_of_few is None:
            continue
        if (_without_length(signature, axes), key) != state:
            continue
        length = _length(signature, axes)
        if length >= shortest_length(axes):
            return engine.graph_of_few, length
    return None


def _split(signature: Signature) -> tuple[list[list[Any]], object]:
    """Return the shapes of a form's tensors, and all else of it."""
    tensors, *others = signature
    shapes = [list(shape) for shape, _, _ in tensors]  # type: ignore[attr-defined]
    kinds = [kind for _, *kind in tensors]  # type: ignore[attr-defined]
    return shapes, [kinds, others]


def _length(signature: Signature, axes: Axes) -> int:
    """Return the length of a form's records."""
    shapes, _ = _split(signature)
    number, axis, _ = axes[0]
    return int(shapes[number][axis - 1])


def _without_length(signature: Signature, axes: Axes) -> object:
    """Return what forms have in common that differ in a length."""
    length = _length(signature, axes)
    shapes, kinds = _split(signature)
    for number, axis, surplus in axes:
        # one that is not as long as the others is no such form
        shapes[number][axis - 1] = "length" if shapes[number][axis - 1] == length + surplus else -1
    return str((shapes, axes)), str(kinds)
