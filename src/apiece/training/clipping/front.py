"""clip_and_sum: the front door to per-record clipping."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from apiece import _check
from apiece.budgets import Units
from apiece.errors import InputError, SlowPathWarning, UnsupportedError, unknown
from apiece.training.clipping import guards, records
from apiece.training.clipping.alone import clip_alone
from apiece.training.clipping.clipped import ClippedSum
from apiece.training.clipping.engine import clip_proved, engine_for, refused
from apiece.training.clipping.precision import wide
from apiece.training.clipping.records import LossFunction as LossFunction

_WRAPPED = "_orig_mod."  # how torch.compile's wrapper names what is in it
METHODS = ("auto", "proved", "alone")


def clip_and_sum(
    model: nn.Module,
    loss_fn: LossFunction,
    inputs: Any,
    targets: Any,
    clip_norms: torch.Tensor | float,
    *,
    method: str = "auto",
    physical_batch_size: int | None = None,
    people: Any = None,
    compiled: bool = False,
) -> ClippedSum:
    """Return Σ_i min(1, clip_norms[i]/‖∇ℓ_i‖) ∇ℓ_i over the records of a batch.

    Args:
        model: With at least one trainable parameter.
        loss_fn: Takes (outputs, targets) and returns one loss a record, shape (B,); it sees the
            parameters through the outputs only.
        inputs: Tensors with the records first, or tuples or dicts of them; a tuple is given to the
            model as positional, a dict as keyword arguments. An empty batch gives zeros.
        targets: As `inputs`.
        clip_norms: (B,), or one number for all.
        method: "proved" captures model and loss as one graph of operators, once for each form of
            inputs, and runs that graph where it is proved that no record can meet another in it;
            other models are refused. "alone" runs each record by itself on fresh copies of all that
            a forward can write. "auto" is the first where it can be, and the second where it
            cannot; a `SlowPathWarning` then names the module, the operator and what it does.
        physical_batch_size: How many records are worked on at a time; it bounds the memory and does
            not change the sum.
        people: (B,), the id of each row's person; None where each row is its own. A person's
            gradients are added up before the norm is taken and clipped as one. `clip_norms` and the
            norms returned then have one entry a person, in the order of first appearance, losses
            one a row. A person with more rows than `physical_batch_size` is taken part by part, by
            plain gradients.
        compiled: Whether the proved graph, with norms and sums, is compiled by inductor at the
            first batch, in seconds, by a C++ compiler. Not with method="alone" or people.

    Raises:
        InputError: For a loss that was reduced, wrong shapes, bounds below 1e-12 or infinite, a
            model without trainable parameters.
        UnsupportedError: For batch norm in training mode and other layers that always mix records;
            with method="proved" for a model that is not proved; with compiled=True for one that
            cannot be compiled; and for one that can neither be proved nor copied.

    Guarantee:
        Each record's share of the sum has ℓ2 norm at most clip_norms[i], over all trainable
        parameters together and after round-off. A record whose gradient is NaN or infinite has
        share zero and changes nothing for the others.

    References:
        Boenisch et al. 2023, §3; Abadi et al. 2016, Alg. 1.

    Example:
        >>> model = nn.Linear(3, 1, bias=False)
        >>> loss = lambda outputs, targets: (outputs[:, 0] - targets).square()
        >>> total = clip_and_sum(model, loss, torch.ones(4, 3), torch.ones(4), 1e-3)
        >>> bool(total.gradients["weight"].norm() <= 4e-3)
        True
    """
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    inner = guards.inner(model)
    parameters = guards.fit_parameters(inner)
    size = records.count(inputs, targets)
    device = next(iter(parameters.values())).device
    units = None if people is None else units_of(people, size)
    clip_norms = guards.bounds(clip_norms, size if units is None else len(units), device)
    if size == 0:
        return _named(empty_sum(parameters), model, inner)
    order = owner = None
    if units is not None:
        owner = torch.from_numpy(units.owner[units.rows]).to(device)
        order = None if units.gathered else torch.from_numpy(units.rows).to(device)
    if order is not None:
        inputs, targets = records.select(inputs, order), records.select(targets, order)
    batch = records.Batch(inner, parameters, loss_fn, inputs, targets, clip_norms, owner)
    width = size if physical_batch_size is None else physical_batch_size
    with guards.told_of_checkpoints():
        total = _by(method, batch, _check.count("physical_batch_size", width), compiled)
    if order is not None:
        losses = torch.empty_like(total.losses).scatter_(0, order, total.losses)
        total = replace(total, losses=losses)
    return _named(total, model, inner)


def units_of(people: Any, size: int) -> Units | None:
    """Return the persons of a batch, in the order of first appearance; None where each has a row.

    Args:
        people: The id of each row's person, as a tensor, an array or a list.
        size: How many rows there are.

    Raises:
        InputError: For another number of ids, or ids that are neither integers nor text.
    """
    given = people.cpu().numpy() if isinstance(people, torch.Tensor) else people
    units = Units.in_turn(given)
    if units.owner.size != size:
        raise InputError(
            f"people: {units.owner.size} ids for {size} rows; give the id of each row's person"
        )
    return None if len(units) == size else units


def _named(total: ClippedSum, model: nn.Module, inner: nn.Module) -> ClippedSum:
    """Return the sum under the names that `model` has for the parameters of what it wraps."""
    if inner is model:
        return total
    return replace(total, gradients={_WRAPPED + n: g for n, g in total.gradients.items()})


def _by(method: str, batch: records.Batch, width: int, compiled: bool) -> ClippedSum:
    if method == "alone":
        if compiled:
            raise UnsupportedError("compiled: method='alone' has no graph to compile; leave it out")
        return clip_alone(batch)
    engine = engine_for(batch, compiled=compiled)
    if engine.program is not None:
        return clip_proved(engine, batch, width)
    if method == "proved" or compiled:
        raise refused(engine.proof)
    warnings.warn(
        f"model: records of {type(batch.model).__name__} run one after the other, many times "
        f"slower, since they are not proved to stay apart ({engine.proof.why}); change that, or "
        "say method='alone' to take this unwarned",
        SlowPathWarning,
        stacklevel=4,
    )
    return clip_alone(batch)


def empty_sum(parameters: dict[str, nn.Parameter]) -> ClippedSum:
    """Return the sum over no records.

    Args:
        parameters: The trainable ones, by name; at least one.

    Example:
        >>> len(empty_sum({"weight": nn.Parameter(torch.ones(2))}))
        0
    """
    first = next(iter(parameters.values()))
    none = torch.zeros(0, device=first.device)
    zeros = {
        name: torch.zeros(p.shape, dtype=wide(p.dtype), device=p.device)
        for name, p in parameters.items()
    }
    return ClippedSum(zeros, none, none, none.to(torch.float64))
