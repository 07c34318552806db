"""The engine: a batch by a proved graph; and what was proved of it, or why it could not be."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import fx, nn

from apiece.errors import IdleParameterWarning, UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.ambient import is_highest, put_back, single, states, wide
from apiece.training.clipping.contributions import (
    Contribution,
    Outer,
    keeping,
    outer_squares,
    remembering,
    row_squares,
)
from apiece.training.clipping.joined import Joined, Persons
from apiece.training.clipping.records import Batch, ClippedSum, add_up, clip_factors
from apiece.training.clipping.watch import Watch

if TYPE_CHECKING:
    from apiece.training.clipping.ranges import IndexRange
    from apiece.training.clipping.rewrite import Program
    from apiece.training.clipping.whole import Whole

_CACHE = 1 << 23  # values that a part of a batch may leave behind on a processor
_WORTH = 16  # a part must leave this many values for each parameter, which it has to pass over
_EACH = 1 << 16  # and as many for each operator, whose call costs the same for any number
_GRAPHS = 16  # of one model that are kept
_AGAIN = 128  # batches of one form, after which a small graph pays for being written out whole
_SMALL_GRAPH = 200  # operators of a small graph: calls between them cost as much as they do
Named = dict[str, torch.Tensor]
Held = dict[str, Contribution | Joined]


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of the proof that a model and its loss keep records apart.

    Attributes:
        proved: Whether no record can meet another in the graph that runs; if not, records run
            alone, one after the other.
        operators: How often each operator of the graph meets records, by name.
        why: Where it was not proved: the module or line, the operator, and what it does.
        idle: The trained parameters that no record's loss depends on; noise alone would move them.

    Example:
        >>> from apiece.training import Proof
        >>> Proof(False, {}, "norm: native_batch_norm: takes the mean over the records").proved
        False
    """

    proved: bool
    operators: Mapping[str, int] = field(default_factory=dict)
    why: str = ""
    idle: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """How batches of one form are clipped: by a program where one was proved.

    names: of the model's tensors that the program takes. most: how many records it takes at a time
    on a processor. whole: the program and all that follows it as one graph, where there is one.
    ranges: of the labels and indices among the records' tensors.
    """

    proof: Proof
    program: Program | None
    names: tuple[str, ...] = ()
    most: int = sys.maxsize
    whole: Whole | None = None
    ranges: tuple[IndexRange, ...] = ()


@dataclass(slots=True, eq=False)
class _Seen:
    """A form of batches, and what of Python's it was captured with."""

    form: object
    loss_fn: object
    watch: Watch
    engine: Engine
    batches: int = 0


_known: weakref.WeakKeyDictionary[nn.Module, dict[object, _Seen]] = weakref.WeakKeyDictionary()


def engine_for(batch: Batch, *, compiled: bool = False) -> Engine:
    """Return how batches like this one are clipped; captured and proved once for each form."""
    given = [batch.inputs, batch.targets]
    tensors = tuple((t.shape[1:], t.dtype, t.device) for t in records.leaves(given))
    parameters = tuple((n, p.shape, p.stride(), p.dtype) for n, p in batch.parameters.items())
    form = tensors, parameters, records.outline(given), compiled
    known = _known.setdefault(batch.model, {})
    for seen in known.values():
        if seen.loss_fn is batch.loss_fn and seen.form == form and seen.watch.unchanged():
            seen.batches += batch.owner is None
            if seen.batches == _AGAIN and _is_small(seen.engine):
                with contextlib.suppress(UnsupportedError):
                    seen.engine = replace(seen.engine, whole=_whole(seen.engine, batch, compiled))
            return seen.engine
    classes = records.named_tuples(given)
    watch = Watch(batch.model, batch.loss_fn, *classes)
    key = form, watch.key
    if key in known:
        engine = known[key].engine
    else:
        engine = _proved(batch, watch)
        if not watch.unchanged():  # a library has noted something
            watch = Watch(batch.model, batch.loss_fn, *classes)
    if compiled and engine.program is not None and engine.whole is None:
        engine = replace(engine, whole=_whole(engine, batch, compiled))
    known.pop(key, None)
    if len(known) >= _GRAPHS:
        del known[next(iter(known))]
    known[key] = _Seen(form, batch.loss_fn, watch, engine)
    return engine


def refused(proof: Proof) -> UnsupportedError:
    """Return what is raised where nothing but a proof will do."""
    return UnsupportedError(
        f"method: records are not proved to stay apart ({proof.why}); use method='alone', or "
        "change the model"
    )


def proof_of(model: nn.Module) -> Proof | None:
    """Return what was proved last of a model; None before its first batch, and by "alone"."""
    known = _known.get(model)
    return None if not known else list(known.values())[-1].engine.proof


@torch.inference_mode(False)  # in which nothing has a gradient
def _proved(batch: Batch, watch: Watch) -> Engine:
    # tracing takes half a second to import, and is of no use to who only plans
    from apiece.training.clipping import capture
    from apiece.training.clipping.graphs import Uncaptured
    from apiece.training.clipping.proof import prove
    from apiece.training.clipping.ranges import ranges
    from apiece.training.clipping.rewrite import rewrite
    from apiece.training.clipping.table import Unproved

    try:
        result = capture.capture(
            batch.model, batch.parameters, batch.loss_fn, batch.inputs, batch.targets, watch
        )
        losses, gradients = result.results
        proved = prove(result.module.graph, result.records, result.sizes, losses, gradients)
        nodes = sum(node.op == "call_function" for node in result.module.graph.nodes)
        taken = ranges(result)
        program = rewrite(result, proved, model_tensors(result.names, batch), taken)
    except (Uncaptured, Unproved) as error:
        return Engine(Proof(False, {}, str(error)), None)

    def cells(node: fx.Node) -> int:
        """Return how many values a tensor holds for each record."""
        if getattr(proved.layouts[node], "axis", None) is None:
            return 0
        sizes = (int(size) for size in node.meta["val"].shape)
        follows = result.sizes
        return math.prod(follows.factor(s) if follows.depends(s) else s for s in sizes)

    parameters = sum(p.numel() for p in batch.model.parameters())  # frozen ones are read as well
    room = max(_CACHE, _WORTH * parameters, _EACH * nodes)
    on_cpu = all(p.device.type == "cpu" for p in batch.parameters.values())
    each = max(1, sum(map(cells, program.places)))
    if on_cpu:  # glibc, once it has freed as much, keeps memory from step to step: no page faults
        torch.empty(31 << 18)
    idle = tuple(name for name in batch.parameters if name not in program.parts)
    if idle:
        named = ", ".join(idle[:3]) + (", …" if len(idle) > 3 else "")
        warnings.warn(
            f"model: no record's loss depends on {named} ({len(idle)} of {len(batch.parameters)} "
            "trained): noise alone would move them; freeze them, or use them in the forward",
            IdleParameterWarning,
            stacklevel=5,
        )
    proof = Proof(True, dict(sorted(proved.operators.items())), idle=idle)
    most = max(2, room // each) if on_cpu else sys.maxsize
    return Engine(proof, program, result.names, most, ranges=taken)


# ---------------------------------------------------------------- a batch


def clip_proved(engine: Engine, batch: Batch, width: int) -> ClippedSum:
    """Return the clipped sum of a batch, at most `width` records at a time."""
    size = len(batch)
    width = min(width, engine.most)
    if size > width:  # parts of about the same size
        width = max(2, math.ceil(size / math.ceil(size / width)))
    parts = [batch] if size <= width else batch.parts(width)
    return add_up(
        _clip(engine, part) if len(part) <= width else _clip_large(engine, part, width)
        for part in parts
    )


def _clip(engine: Engine, batch: Batch) -> ClippedSum:
    rows, batch = len(batch), at_least_two(batch)
    made = _at_once(engine, batch)
    if made is None:
        losses, named = _contributions(engine, arguments_of(engine, batch), len(batch))
        with torch.no_grad(), single(losses.device):
            made = losses, *_summed(engine, named, batch)
    losses, norms, sums = made
    persons = norms.numel() - (len(batch) - rows)
    sums = _every(sums, batch)
    return ClippedSum(sums, norms[:persons], losses[:rows], batch.clip_norms[:persons])


def _every(sums: Named, batch: Batch) -> Named:
    """Return the sums with zeros for what no record's loss depends on, in the parameters' order."""
    return {
        name: sums[name] if name in sums else torch.zeros_like(p, dtype=wide(p.dtype))
        for name, p in batch.parameters.items()
    }


def _contributions(
    engine: Engine, given: list[torch.Tensor], size: int
) -> tuple[torch.Tensor, dict[str, Contribution]]:
    """Return losses and each parameter's contribution, of at least two records."""
    assert engine.program is not None
    device = given[0].device
    with torch.no_grad():
        cast = torch.is_autocast_enabled(device.type)
        with torch.autocast(device.type, enabled=False) if cast else contextlib.nullcontext():
            losses, operands = engine.program.run(given)
        given.clear()
        with single(device), keeping():
            return losses, engine.program.contributions(operands, size)


def arguments_of(engine: Engine, batch: Batch) -> list[torch.Tensor]:
    """Return what the program takes: the model's tensors, and the records', in their order.

    A graph is of records that lie in memory as their axes say; others (channels last, permuted,
    expanded) are copied, so that a view in the graph is one of what is given, too.
    """
    given = records.leaves([batch.inputs, batch.targets])
    shared = [tensor.detach() for tensor in model_tensors(engine.names, batch)]
    return [*shared, *(tensor.contiguous() for tensor in given)]


def model_tensors(names: Sequence[str], batch: Batch) -> list[torch.Tensor]:
    """Return a batch's parameters, and other tensors of its model, by their names."""

    def held(name: str) -> torch.Tensor:
        if name in batch.parameters:
            return batch.parameters[name]
        path, _, own = name.rpartition(".")
        module = batch.model.get_submodule(path)
        tensor = (module._buffers if own in module._buffers else module._parameters)[own]
        assert tensor is not None
        return tensor

    return list(map(held, names))


def at_least_two(batch: Batch) -> Batch:
    """Return a batch of one record with a second, a copy whose bound is zero."""
    if len(batch) > 1:
        return batch
    device = batch.clip_norms.device
    twice = torch.zeros(2, dtype=torch.long, device=device)
    return replace(
        batch,
        inputs=records.select(batch.inputs, twice),
        targets=records.select(batch.targets, twice),
        clip_norms=torch.cat([batch.clip_norms, batch.clip_norms.new_zeros(1)]),
        owner=None if batch.owner is None else torch.arange(2, device=device),
    )


# ---------------------------------------------------------------- norms and sums


def _finite_alone(held: Held, norms: torch.Tensor) -> Held:
    """Return what is held without the records, or persons, whose norms are not finite."""
    if math.isfinite(float(norms.sum())):
        return held
    bad = ~torch.isfinite(norms)
    return {name: part.without(bad) for name, part in held.items()}


def _summed(
    engine: Engine,
    named: dict[str, Contribution],
    batch: Batch,
    finite: Callable[[Held, torch.Tensor], Held] = _finite_alone,
) -> tuple[torch.Tensor, Named]:
    """Return norms and the clipped sums, by parameter."""
    assert engine.program is not None
    bounds = batch.clip_norms
    held: Held = dict(named)
    if batch.owner is not None:
        persons = Persons(batch.owner)
        held = {name: Joined(part, persons) for name, part in named.items()}
    named.clear()
    norms = _norms(list(held.values()), bounds)
    factors = clip_factors(norms, bounds)
    held = finite(held, norms)
    sums = {name: held.pop(name).weighted(factors) for name in list(held)}
    finished = engine.program.finished
    return norms, {name: finished(name, total) for name, total in sums.items()}


def _norms(held: Sequence[Contribution | Joined], bounds: torch.Tensor) -> torch.Tensor:
    if not held:
        return torch.zeros_like(bounds, dtype=torch.float32)
    of_rows = remembering(row_squares)
    outer = [part for part in held if isinstance(part, Outer)]
    squares = [part.squares(of_rows) for part in held if not isinstance(part, Outer)]
    if outer:
        squares.append(outer_squares(outer, of_rows))
    total = squares[0] if len(squares) == 1 else torch.stack(squares).sum(0)
    return total.sqrt()


def _clip_large(engine: Engine, batch: Batch, width: int) -> ClippedSum:
    """Return the clipped share of one person with more rows than are taken at a time."""
    assert engine.program is not None
    total: Named = {}
    losses: list[torch.Tensor] = []
    for rows in batch.of_rows().parts(width):
        part = at_least_two(rows)
        some, named = _contributions(engine, arguments_of(engine, part), len(part))
        losses.append(some[: len(rows)])
        weights = torch.ones(len(part), device=some.device, dtype=wide(some.dtype))
        weights[len(rows) :] = 0
        with torch.no_grad(), single(some.device):
            for name, one in named.items():
                made = engine.program.finished(name, one.weighted(weights))
                total[name] = total[name] + made if name in total else made
    return clip_one(_every(total, batch), torch.cat(losses), batch.clip_norms)


def clip_one(gradients: Named, losses: torch.Tensor, clip_norms: torch.Tensor) -> ClippedSum:
    """Return one record's or person's gradient, clipped at its bound (1,)."""
    with torch.no_grad():
        squares = [row_squares(g.reshape(1, -1)) for g in gradients.values()]
        norms = torch.stack([s.to(torch.float64) for s in squares]).sum(0).sqrt()
        norms = norms.to(next(iter(gradients.values())).dtype)
        factor = clip_factors(norms, clip_norms)
        good = bool(torch.isfinite(norms).all())
        sums = {
            name: g * factor.to(g.dtype) if good else torch.zeros_like(g)
            for name, g in gradients.items()
        }
    return ClippedSum(sums, norms, losses.detach(), clip_norms)


# ---------------------------------------------------------------- as one graph


def _at_once(engine: Engine, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, Named] | None:
    """Return losses, norms and sums by one graph; None where none is, or applies.

    That is where a record is not finite, where rows are clipped by person, and for few records, or
    more than a part of a batch has.
    """
    whole, program = engine.whole, engine.program
    if whole is None or program is None or not whole.takes(len(batch)) or batch.owner is not None:
        return None
    device = batch.clip_norms.device
    before = states([device]) if program.draws else []
    with torch.no_grad(), single(device):
        losses, norms, *sums = whole.run(batch.clip_norms, *arguments_of(engine, batch))
    if math.isfinite(float(norms.sum())):
        return losses, norms, dict(zip(program.parts, sums, strict=True))
    put_back(before)  # the others' draws are the same without the record that is not finite
    return None


def _is_small(engine: Engine) -> bool:
    return (
        engine.whole is None and engine.program is not None and engine.program.calls <= _SMALL_GRAPH
    )


def _whole(engine: Engine, batch: Batch, compiled: bool) -> Whole:
    """Return the sum of batches like this one as one graph; without a compiler to the bit."""
    from apiece.training.clipping.whole import as_whole

    program = engine.program
    assert program is not None
    if batch.owner is not None:
        raise UnsupportedError("compiled: rows of one person are added up uncompiled; leave it out")
    if not is_highest():
        raise UnsupportedError(
            'compiled: needs torch.set_float32_matmul_precision("highest"), in which norms are made'
        )

    def clipped(bounds: torch.Tensor, *given: torch.Tensor) -> list[torch.Tensor]:
        losses, named = _contributions(engine, list(given), len(bounds))
        norms, sums = _summed(engine, named, replace(batch, clip_norms=bounds), lambda h, _: h)
        return [losses, norms, *(sums[name] for name in program.parts)]

    given = arguments_of(engine, batch)
    along = [True, *(False for _ in engine.names), *(True for _ in given[len(engine.names) :])]
    return as_whole(clipped, [batch.clip_norms, *given], along, engine.most, compiled)
