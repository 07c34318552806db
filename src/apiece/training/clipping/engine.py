"""The engine: what clips batches of one form, by a proved graph or, without a proof, alone."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import fx, nn

from apiece.errors import IdleParameterWarning, UnsupportedError, UntestedVersionWarning
from apiece.training.clipping import records, torch_internals
from apiece.training.clipping.ambient import (
    computes_in_single,
    read_states,
    restore_states,
    single_precision,
    widen,
)
from apiece.training.clipping.contributions import (
    Contribution,
    Outer,
    limit_kept_gradients,
    outer_squares,
    remember_results,
    row_squares,
)
from apiece.training.clipping.joined import Joined, Persons
from apiece.training.clipping.records import Batch, ClippedSum, add_up, clip_factors
from apiece.training.clipping.watch import Watch

if TYPE_CHECKING:
    from apiece.training.clipping.capture import Captured
    from apiece.training.clipping.proof import Proved
    from apiece.training.clipping.ranges import IndexRange
    from apiece.training.clipping.rewrite import Program
    from apiece.training.clipping.whole import Whole

# Values that a part of a batch may leave behind on a processor, so that they stay in its caches.
_VALUES_OF_PART = 1 << 23
# A part leaves at least this many values for each parameter: each part passes over all of them.
_VALUES_PER_PARAMETER = 16
# It leaves at least as many for each operator, whose call costs the same for any number of values.
_VALUES_PER_OPERATOR = 1 << 16
# Single-precision values in just under 32 MiB, the largest threshold that glibc moves to by itself.
_GLIBC_VALUES = 31 << 18
Named = dict[str, torch.Tensor]
Contributions = dict[str, Contribution | Joined]


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
class ProvedEngine:
    """Clips batches of one form by a program of which it is proved that records stay apart.

    names: of the model's tensors that the program takes. capacity: how many records it takes at a
    time on a processor. whole: the program and all that follows it as one graph, where there is
    one. ranges: of the labels and indices among the records' tensors. graph_of_few: the capture
    of few records, by which graphs of other lengths are made; None for one that was made so.
    """

    proof: Proof
    program: Program
    names: tuple[str, ...]
    capacity: int = sys.maxsize
    whole: Whole | None = None
    ranges: tuple[IndexRange, ...] = ()
    graph_of_few: fx.GraphModule | None = None


@dataclass(frozen=True, slots=True, eq=False)
class AloneEngine:
    """Stands for batches of a form that could not be proved: their records run alone.

    proof: whose `why` says what stood in the way. is_cheaper: whether a capture would cost more.
    """

    proof: Proof
    is_cheaper: bool = False

    def refusal(self) -> UnsupportedError:
        """Return the error to raise where nothing but a proof will do."""
        return UnsupportedError(
            f"method: records are not proved to stay apart ({self.proof.why}); use "
            "method='alone', or change the model"
        )


Engine: TypeAlias = ProvedEngine | AloneEngine


# ---------------------------------------------------------------- built of a batch's form


@torch.inference_mode(False)  # in which nothing has a gradient
def build_engine(
    batch: Batch, watch: Watch, find_graph: Callable[[], Captured] | None = None
) -> Engine:
    """Capture, prove and rewrite what clips batches of this form.

    find_graph: gives the graph in place of a capture.
    """
    # tracing takes half a second to import, and is of no use to who only plans
    from apiece.training.clipping.capture import capture
    from apiece.training.clipping.graphs import Uncaptured
    from apiece.training.clipping.proof import prove
    from apiece.training.clipping.ranges import find_ranges
    from apiece.training.clipping.rewrite import rewrite
    from apiece.training.clipping.table import Unproved
    from apiece.training.clipping.tracing import TooLarge

    try:
        if find_graph is None:
            captured = capture(
                batch.model, batch.parameters, batch.loss_fn, batch.inputs, batch.targets, watch
            )
        else:
            captured = find_graph()
        # What is proved here is the very graph that is rewritten and run.
        graph = captured.module.graph
        losses, gradients = captured.results
        proved = prove(graph, captured.records, captured.sizes, losses, gradients)
        # counted here, since the rewriting changes the graph
        operators = sum(node.op == "call_function" for node in graph.nodes)
        ranges = find_ranges(captured)
        program = rewrite(captured, proved, model_tensors(captured.names, batch), ranges)
    except (Uncaptured, Unproved, TooLarge) as error:
        return AloneEngine(Proof(False, {}, str(error)), isinstance(error, TooLarge))
    warn_of_newer_torch()
    # said once, when the graph is built, and not at each step
    idle = tuple(name for name in batch.parameters if name not in program.parts)
    if idle:
        _warn_of_idle(idle, len(batch.parameters))
    proof = Proof(True, dict(sorted(proved.operators.items())), idle=idle)
    capacity = _capacity(batch, captured, proved, program, operators)
    return ProvedEngine(
        proof,
        program,
        captured.names,
        capacity,
        ranges=ranges,
        graph_of_few=captured.graph_of_few,
    )


@functools.cache  # once a process
def warn_of_newer_torch() -> None:
    """Warn where torch is newer than what the rules of the proof were tested with."""
    tested = torch_internals.NEWEST_TESTED
    if torch_internals.version() > tested:
        newest = ".".join(map(str, tested))
        warnings.warn(
            f"torch: version {torch.__version__} is newer than {newest}, the newest with which the "
            "rules of the proof were tested: an operator may do something else by now; install "
            f"torch=={newest}.*, or run the engine's tests (make test-torch TORCH=...)",
            UntestedVersionWarning,
            stacklevel=7,
        )


def _warn_of_idle(idle: Sequence[str], trained: int) -> None:
    """Warn of parameters that no record's loss depends on, of so many that are trained."""
    names = ", ".join(idle[:3])
    if len(idle) > 3:
        names += ", …"
    warnings.warn(
        f"model: no record's loss depends on {names} ({len(idle)} of {trained} trained): noise "
        "alone would move them; freeze them, or use them in the forward",
        IdleParameterWarning,
        stacklevel=7,
    )


def _capacity(
    batch: Batch, captured: Captured, proved: Proved, program: Program, operators: int
) -> int:
    """Return how many records the program takes at a time where the parameters are.

    On a processor the operands of a part are read back from its caches by norms and sums, if they
    fit. Elsewhere calls are dear and memory is fast: everything is taken at once.
    """
    devices = {parameter.device.type for parameter in batch.parameters.values()}
    if devices != {"cpu"}:
        return sys.maxsize
    # glibc, once it has freed as much, keeps memory from step to step: no page faults
    torch.empty(_GLIBC_VALUES)
    parameters = sum(p.numel() for p in batch.model.parameters())  # frozen ones are read as well
    # The largest of the three rooms: caches, a pass over all parameters, and the price of calls.
    room = max(
        _VALUES_OF_PART, _VALUES_PER_PARAMETER * parameters, _VALUES_PER_OPERATOR * operators
    )
    # Operands are what a part leaves behind for norms and sums.
    values = sum(_values_per_record(node, captured, proved) for node in program.places)
    return max(2, room // max(1, values))  # a graph is for two records and more


def _values_per_record(node: fx.Node, captured: Captured, proved: Proved) -> int:
    """Return how many values of a tensor each record has; 0 for one that is not along them."""
    if getattr(proved.layouts[node], "axis", None) is None:
        return 0
    sizes = captured.sizes
    values = 1
    for size in map(int, node.meta["val"].shape):
        values *= sizes.factor(size) if sizes.depends(size) else size
    return values


# ---------------------------------------------------------------- a batch


def clip_proved(engine: ProvedEngine, batch: Batch, width: int) -> ClippedSum:
    """Return the clipped sum of a batch, at most `width` records at a time."""
    size = len(batch)
    width = min(width, engine.capacity)
    if size > width:
        # Parts of about the same size: a short last one would cost as many calls as a full one.
        count = math.ceil(size / width)
        # At least two, since a graph is one for two records and more.
        width = max(2, math.ceil(size / count))
    parts = [batch] if size <= width else batch.parts(width)
    # A part is longer than `width` only where one person has more rows than that.
    return add_up(
        _clip_part(engine, part) if len(part) <= width else _clip_long_person(engine, part, width)
        for part in parts
    )


def _clip_part(engine: ProvedEngine, batch: Batch) -> ClippedSum:
    """Return the clipped sum of as many records as are taken at a time."""
    rows = len(batch)
    batch = pad_to_two(batch)
    padding = len(batch) - rows
    # None where one graph is not possible; then program, norms and sums run one after the other.
    result = _clip_by_one_graph(engine, batch)  # None where that does not apply
    if result is None:
        losses, contributions = _contribute(engine, arguments_of(engine, batch))
        with torch.no_grad(), single_precision(losses.device):
            norms, sums = _sum_clipped(engine, contributions, batch)
    else:
        losses, norms, sums = result
    # The copy that pads a single record is the last person and the last row.
    persons = norms.numel() - padding
    clip_norms = batch.clip_norms[:persons]
    return ClippedSum(_complete(sums, batch), norms[:persons], losses[:rows], clip_norms)


def _complete(sums: Named, batch: Batch) -> Named:
    """Return the sums in the parameters' order, zeros for those that no loss depends on."""
    return {
        name: sums[name] if name in sums else torch.zeros_like(p, dtype=widen(p.dtype))
        for name, p in batch.parameters.items()
    }


def _contribute(
    engine: ProvedEngine, arguments: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, dict[str, Contribution]]:
    """Return losses and each parameter's contribution, of at least two records."""
    device = arguments[0].device.type
    # The casts of autocast are operators of the graph already: it must not cast once more.
    is_cast = torch.is_autocast_enabled(device)
    uncast = torch.autocast(device, enabled=False) if is_cast else contextlib.nullcontext()
    with torch.no_grad(), uncast, limit_kept_gradients():
        return engine.program.run(arguments)


def arguments_of(engine: ProvedEngine, batch: Batch) -> list[torch.Tensor]:
    """Return what the program takes: the model's tensors, and the records', in their order.

    A graph is of records that lie in memory as their axes say; others (channels last, permuted,
    expanded) are copied, so that a view in the graph is one of what is given, too.
    """
    # in the order of `Captured`: the model's tensors by name, then inputs and targets
    tensors = records.leaves([batch.inputs, batch.targets])
    shared = [tensor.detach() for tensor in model_tensors(engine.names, batch)]
    return [*shared, *(tensor.contiguous() for tensor in tensors)]


def model_tensors(names: Sequence[str], batch: Batch) -> list[torch.Tensor]:
    """Return a batch's parameters, and other tensors of its model, by their names."""
    return [_model_tensor(name, batch) for name in names]


def _model_tensor(name: str, batch: Batch) -> torch.Tensor:
    if name in batch.parameters:
        return batch.parameters[name]
    path, _, attribute = name.rpartition(".")
    module: nn.Module = batch.model.get_submodule(path)
    buffers = torch_internals.buffers_of(module)
    tensors = buffers if attribute in buffers else torch_internals.parameters_of(module)
    tensor = tensors[attribute]
    assert tensor is not None
    return tensor


def pad_to_two(batch: Batch) -> Batch:
    """Return a batch of one record with a second, a copy whose bound is zero.

    A captured graph holds for two records and more: along an axis of length one, operators
    (squeeze, broadcasting) may do something else.
    """
    if len(batch) > 1:
        return batch
    device = batch.clip_norms.device
    first_twice = torch.zeros(2, dtype=torch.long, device=device)
    return replace(
        batch,
        inputs=records.select(batch.inputs, first_twice),
        targets=records.select(batch.targets, first_twice),
        clip_norms=torch.cat([batch.clip_norms, batch.clip_norms.new_zeros(1)]),
        owner=None if batch.owner is None else torch.arange(2, device=device),
    )


# ---------------------------------------------------------------- norms and sums


def _drop_not_finite(contributions: Contributions, norms: torch.Tensor) -> Contributions:
    """Return contributions without the records, or persons, whose norms are not finite."""
    # The sum of norms, none of them negative, is finite where all of them are: one number to wait
    # for. Where it overflows, the mask finds nobody.
    if math.isfinite(float(norms.sum())):
        return contributions
    bad = ~torch.isfinite(norms)
    return {name: part.without(bad) for name, part in contributions.items()}


def _keep_all(contributions: Contributions, _norms: torch.Tensor) -> Contributions:
    """Return contributions as they are: a traced graph cannot branch on norms."""
    return contributions


def _sum_clipped(
    engine: ProvedEngine,
    by_row: dict[str, Contribution],
    batch: Batch,
    drop: Callable[[Contributions, torch.Tensor], Contributions] = _drop_not_finite,
) -> tuple[torch.Tensor, Named]:
    """Return norms and the clipped sums, by parameter; it empties `by_row`."""
    bounds = batch.clip_norms
    contributions: Contributions = dict(by_row)
    if batch.owner is not None:
        persons = Persons(batch.owner)
        contributions = {n: Joined(part.widened(), persons) for n, part in by_row.items()}
    by_row.clear()
    # Norms come from the very tensors of which the sums are made, so that no other round-off
    # enters.
    norms = _norms(list(contributions.values()), bounds)
    # From here on a record is its factor; one that is not finite is dropped, since 0·NaN is NaN.
    factors = clip_factors(norms, bounds)
    contributions = drop(contributions, norms)
    sums: Named = {}
    for name in list(contributions):
        # popped, so that a parameter's contribution is freed before the next one's sum is made
        total = contributions.pop(name).weighted_sum(factors)
        # The rest of the way is linear: it is gone once, by the sum, and not by each record.
        sums[name] = engine.program.finish_gradient(name, total)
    return norms, sums


def _norms(parts: Sequence[Contribution | Joined], bounds: torch.Tensor) -> torch.Tensor:
    """Return each record's or person's ℓ2 norm over all parameters together."""
    if not parts:
        return torch.zeros_like(bounds, dtype=torch.float32)
    # Layers share tensors (a weight and its bias the output's gradient): each is read once.
    squares_of_rows = remember_results(row_squares)
    # Outer products, most of a network's layers, are squared all at once in few operators.
    outer = [part for part in parts if isinstance(part, Outer)]
    squares = [part.squares(squares_of_rows) for part in parts if not isinstance(part, Outer)]
    if outer:
        squares.append(outer_squares(outer, squares_of_rows))
    if len(squares) == 1:
        return squares[0].sqrt()
    # (parameters, B): squares of parts add up to the square of the whole.
    return torch.stack(squares).sum(0).sqrt()


def _clip_long_person(engine: ProvedEngine, batch: Batch, width: int) -> ClippedSum:
    """Return the clipped share of one person with more rows than are taken at a time.

    Products between rows of different parts are never made, so that the norm cannot come from
    them: the gradients are added up, part by part, and clipped in the end.
    """
    total: Named = {}
    losses: list[torch.Tensor] = []
    # Rows, not persons: weights of one make the sum, and the bound comes only at the end.
    for rows in batch.of_rows().parts(width):
        part = pad_to_two(rows)
        losses_of_part, contributions = _contribute(engine, arguments_of(engine, part))
        losses.append(losses_of_part[: len(rows)])
        weights = torch.ones(
            len(part), device=losses_of_part.device, dtype=widen(losses_of_part.dtype)
        )
        weights[len(rows) :] = 0  # of the copy that a single row is padded with
        with torch.no_grad(), single_precision(losses_of_part.device):
            for name, contribution in contributions.items():
                summed = contribution.weighted_sum(weights)
                gradient = engine.program.finish_gradient(name, summed)
                total[name] = total[name] + gradient if name in total else gradient
    return clip_gradient(_complete(total, batch), torch.cat(losses), batch.clip_norms)


def clip_gradient(gradients: Named, losses: torch.Tensor, clip_norms: torch.Tensor) -> ClippedSum:
    """Return one record's or person's gradient, clipped at its bound (1,)."""
    with torch.no_grad():
        # Over all parameters together: one norm, one factor.
        # in double precision: parameters may have several types, and none loses another's digits
        squares = [row_squares(g.reshape(1, -1)).to(torch.float64) for g in gradients.values()]
        norms = torch.stack(squares).sum(0).sqrt()
        norms = norms.to(next(iter(gradients.values())).dtype)
        factor = clip_factors(norms, clip_norms)
        is_finite = bool(torch.isfinite(norms).all())
        # by selection: a factor of zero would leave 0·NaN
        sums = {
            name: g * factor.to(g.dtype) if is_finite else torch.zeros_like(g)
            for name, g in gradients.items()
        }
    return ClippedSum(sums, norms, losses.detach(), clip_norms)


# ---------------------------------------------------------------- as one graph


def _clip_by_one_graph(
    engine: ProvedEngine, batch: Batch
) -> tuple[torch.Tensor, torch.Tensor, Named] | None:
    """Return losses, norms and sums by one graph; None where none is, or applies.

    That is where a record is not finite, where rows are clipped by person, and for few records, or
    more than a part of a batch has.
    """
    whole = engine.whole
    if whole is None or batch.owner is not None:
        return None
    # The graph is for no fewer records than it was traced with, and no more than a part has.
    if not whole.takes(len(batch)):
        return None
    device = batch.clip_norms.device
    states = read_states([device]) if engine.program.draws else []
    with torch.no_grad(), single_precision(device):
        # Run without looking at values: a record that is not finite is found afterwards.
        losses, norms, *sums = whole.run(batch.clip_norms, *arguments_of(engine, batch))
    # The graph drops nobody, so that a norm that is not finite has spoilt the sums.
    if math.isfinite(float(norms.sum())):
        return losses, norms, dict(zip(engine.program.parts, sums, strict=True))
    restore_states(states)  # the others' draws are the same without the record that is not finite
    return None


def join_graphs(engine: ProvedEngine, batch: Batch) -> ProvedEngine:
    """Return the engine with its program, norms and sums as one graph, compiled.

    Raises `UnsupportedError` where that cannot be.
    """
    from apiece.training.clipping.whole import as_whole

    program = engine.program
    if batch.owner is not None:
        raise UnsupportedError("compiled: rows of one person are added up uncompiled; leave it out")
    if not computes_in_single():
        raise UnsupportedError(
            'compiled: needs torch.set_float32_matmul_precision("highest"), in which norms are made'
        )

    # What is traced: everything from bounds and tensors to sums, with no look at a value.
    def clip(bounds: torch.Tensor, *arguments: torch.Tensor) -> list[torch.Tensor]:
        losses, contributions = _contribute(engine, arguments)
        # bounds are an input of the graph, as they may differ from batch to batch
        bounded = replace(batch, clip_norms=bounds)
        norms, sums = _sum_clipped(engine, contributions, bounded, _keep_all)
        return [losses, norms, *(sums[name] for name in program.parts)]

    arguments = arguments_of(engine, batch)
    shared = len(engine.names)
    # The bounds, and what follows the model's tensors, are along the records.
    of_records = len(arguments) - shared
    along = [True] + [False] * shared + [True] * of_records
    whole = as_whole(clip, [batch.clip_norms, *arguments], along, engine.capacity)
    return replace(engine, whole=whole)
