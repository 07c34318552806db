"""clip_and_sum: the front door to clipping, by a proved graph or one record at a time."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import replace

import torch
from numpy.typing import ArrayLike
from torch import nn

from apiece import _check
from apiece._identity import require_rows
from apiece.budgets import Units
from apiece.errors import InputError, SlowPathWarning, UnsupportedError, unknown
from apiece.training.clipping import guards, records
from apiece.training.clipping.alone import clip_alone
from apiece.training.clipping.ambient import widen
from apiece.training.clipping.cache import ENGINES
from apiece.training.clipping.engine import (
    AloneEngine,
    ProvedEngine,
    clip_proved,
)
from apiece.training.clipping.records import Batch, ClippedSum, LossFunction, Tree
from apiece.training.clipping.torch_internals import WRAPPED_MODULE

# How records are clipped: as `clip_and_sum` explains.
METHODS = ("auto", "proved", "alone")


def clip_and_sum(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Tree,
    targets: Tree,
    clip_norms: torch.Tensor | float,
    *,
    method: str = "auto",
    physical_batch_size: int | None = None,
    people: ArrayLike | torch.Tensor | None = None,
    compiled: bool = False,
) -> ClippedSum:
    """Return Σ_i min(1, clip_norms[i]/‖∇ℓ_i‖) ∇ℓ_i over the records of a batch.

    Args:
        model: With at least one trainable parameter.
        loss_fn: Takes (outputs, targets) and returns one loss a record, shape (B,); it sees the
            parameters through the outputs only.
        inputs: Tensors with the records first, or tuples or dicts of them; a tuple is given to the
            model as positional, a dict as keyword arguments. Beside tensors they may hold None,
            bool, int, float and str, which are the same for all records. An empty batch gives
            zeros.
        targets: As `inputs`.
        clip_norms: (B,), or one number for all.
        method: "proved" captures model and loss as one graph of operators, once for each form of
            inputs, and runs that graph where it is proved that no record can meet another in it;
            other models are refused. "alone" runs each record by itself: under Linux on a
            processor in a process of its own, elsewhere on fresh copies of all that a forward can
            write, with an `IsolationWarning`. "auto" is the first where it can be, and the second
            where it cannot; a `SlowPathWarning` then names the module, the operator and what it
            does.
        physical_batch_size: How many records are worked on at a time; it bounds the memory and does
            not change the sum.
        people: (B,), the id of each row's person, by position; None where each row is its own. A
            Series with an index other than 0, 1, 2, … is refused: give `.to_numpy()`. A person's
            gradients are added up before the norm is taken and clipped as one. `clip_norms` and the
            norms returned then have one entry a person, in the order of first appearance, losses
            one a row. A person with more rows than `physical_batch_size` is taken part by part, by
            plain gradients.
        compiled: Whether the proved graph, with norms and sums, is compiled by inductor at the
            first batch, in seconds, by a C++ compiler. Not with method="alone" or people.

    Raises:
        InputError: For a loss that was reduced, wrong shapes, bounds below 1e-12, infinite or NaN,
            and a model without trainable parameters. `DataError` for labels beyond the classes or
            indices beyond a table, not saying which; and for a Series with an index of its own.
        UnsupportedError: For batch norm in training mode and other layers that always mix records;
            with method="proved" for a model that is not proved; with compiled=True for one that
            cannot be compiled; for one that can neither be proved nor copied; and for an object,
            an array or a list without a tensor among inputs and targets.

    Guarantee:
        Each record's share of the sum has ℓ2 norm at most clip_norms[i], over all trainable
        parameters together and after round-off. A record whose gradient is NaN or infinite has
        share zero and changes nothing for the others.

    References:
        Boenisch et al. 2023, §3; Abadi et al. 2016, Alg. 1.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from apiece import clip_and_sum
        >>> model = nn.Linear(3, 1, bias=False)
        >>> loss = lambda outputs, targets: (outputs[:, 0] - targets).square()
        >>> total = clip_and_sum(model, loss, torch.ones(4, 3), torch.ones(4), 1e-3)
        >>> bool(total.gradients["weight"].norm() <= 4e-3)
        True
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    # What is captured is the module itself: torch.compile's wrapper would hide it.
    inner = guards.inner(model)
    parameters = guards.fit_parameters(inner)
    # Containers of this call's own: what a forward does to them leaves the caller's alone.
    inputs = guards.read_tree("inputs", inputs)
    targets = guards.read_tree("targets", targets)
    # Checked before anything runs: later, errors would name lines of the model or of torch.
    size = records.count(inputs, targets)
    # One model lies on one device: the first parameter's.
    device = next(iter(parameters.values())).device
    require_rows("inputs", None, people=people, clip_norms=clip_norms)
    units = None if people is None else units_of(people, size)
    # One bound for each record, or for each person where rows are put together.
    clip_norms = guards.bounds(clip_norms, size if units is None else len(units), device)
    owner = None
    order = None  # in which each person's rows lie side by side, where they do not already
    # By row the number of its person, in the order in which rows are then taken.
    if units is not None:
        owner = torch.from_numpy(units.owner[units.rows]).to(device)
        order = None if units.gathered else torch.from_numpy(units.rows).to(device)
    if order is not None:
        inputs = records.select(inputs, order)
        targets = records.select(targets, order)
    batch = Batch(inner, parameters, loss_fn, inputs, targets, clip_norms, owner)
    # None is all at once; the engine may still take fewer at a time.
    width = size if physical_batch_size is None else physical_batch_size
    # Messages of torch may hold a value of a record: they are exchanged for ours.
    with guards.translate_errors(), _explain_missing_targets(targets):
        total = empty_sum(parameters) if size == 0 else _clip(method, batch, width, compiled)
    # Row k of the sorted batch was row order[k].
    if order is not None:  # losses go back to the rows' own order; norms are the persons'
        losses = torch.empty_like(total.losses).scatter_(0, order, total.losses)
        total = replace(total, losses=losses)
    if inner is not model:  # names are those that `model` has for what it wraps
        gradients = {f"{WRAPPED_MODULE}.{name}": g for name, g in total.gradients.items()}
        total = replace(total, gradients=gradients)
    return total


@contextlib.contextmanager
def _explain_missing_targets(targets: Tree) -> Iterator[None]:
    """Raise `InputError` in place of what a loss raises of targets that are None."""
    try:
        yield
    except (TypeError, AttributeError) as error:
        if targets is not None:
            raise
        raise InputError(
            f"targets: None, and model or loss_fn stops ({str(error)[:120]}); give a tensor with "
            "one row a record, or a loss that takes no targets"
        ) from error


def check_values(
    model: nn.Module, loss_fn: LossFunction, batch: tuple[Tree, Tree], data: tuple[Tree, Tree]
) -> None:
    """Raise `DataError` for labels or indices of `data` that the graph does not take.

    batch: inputs and targets by which the graph is captured. data: those of all records. Of what
    is not proved nothing is known.
    """
    with guards.translate_errors():
        engine = ENGINES.find(batch_without_bounds(guards.inner(model), loss_fn, *batch))
    if isinstance(engine, ProvedEngine) and engine.ranges:
        # slow to import, and there by now
        from apiece.training.clipping.ranges import check_ranges

        inputs, _ = data
        of_inputs = len(records.leaves(inputs))
        check_ranges(engine.ranges, records.leaves(list(data)), of_inputs)


def batch_without_bounds(
    model: nn.Module, loss_fn: LossFunction, inputs: Tree, targets: Tree
) -> Batch:
    """Return a batch whose bounds count for nothing."""
    parameters = guards.fit_parameters(model)
    inputs = guards.read_tree("inputs", inputs)
    targets = guards.read_tree("targets", targets)
    device = next(iter(parameters.values())).device
    bounds = torch.ones(records.count(inputs, targets), dtype=torch.float64, device=device)
    return Batch(model, parameters, loss_fn, inputs, targets, bounds)


def units_of(people: ArrayLike | torch.Tensor, size: int) -> Units | None:
    """Return the persons of a batch, in the order of first appearance; None where each has a row.

    Raises `InputError` for another number of ids, or ids that are neither integers nor text.
    """
    # a tensor of ids may lie on a GPU, beside the rows
    ids = people.cpu().numpy() if isinstance(people, torch.Tensor) else people
    units = Units.in_turn(ids)
    if units.owner.size != size:
        raise InputError(
            f"people: {units.owner.size} ids for {size} rows; give the id of each row's person"
        )
    return None if len(units) == size else units


def _clip(method: str, batch: Batch, width: int, compiled: bool) -> ClippedSum:
    """Return the clipped sum of at least one record, by one of `METHODS`."""
    width = _check.count("physical_batch_size", width)
    # Asked for, it is no slow path: no warning.
    if method == "alone":
        if compiled:
            raise UnsupportedError("compiled: method='alone' has no graph to compile; leave it out")
        return clip_alone(batch, width)
    match ENGINES.find(batch, compiled=compiled):
        case ProvedEngine() as engine:
            return clip_proved(engine, batch, width)
        case AloneEngine() as engine if method == "proved" or compiled:
            raise engine.refusal()
        case engine:
            why = engine.proof.why
            if engine.is_cheaper:
                reason = f"since that costs less ({why}); say method='proved' to capture"
            else:
                reason = (
                    f"many times slower, since they are not proved to stay apart ({why}); change "
                    "that, or say method='alone' to take this unwarned"
                )
            name = type(batch.model).__name__
            warnings.warn(
                f"model: records of {name} run one after the other, {reason}",
                SlowPathWarning,
                stacklevel=4,
            )
            return clip_alone(batch, width)


def empty_sum(parameters: dict[str, nn.Parameter]) -> ClippedSum:
    """Return the sum over no records, for the trainable parameters by name; at least one."""
    empty = torch.zeros(0, device=next(iter(parameters.values())).device)
    # Not zeros_like: of a sharded parameter that is sharded too, and each process sums whole ones.
    zeros = {
        name: torch.zeros(p.shape, dtype=widen(p.dtype), device=p.device)
        for name, p in parameters.items()
    }
    return ClippedSum(zeros, empty, empty, empty.to(torch.float64))
