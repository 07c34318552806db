"""clip_and_sum: the front door to per-record clipping."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from apiece import _check
from apiece.errors import unknown
from apiece.training.clipping import guards, records
from apiece.training.clipping.alone import clip_alone
from apiece.training.clipping.clipped import ClippedSum, add_up
from apiece.training.clipping.engine import clip_proved, proved_engine
from apiece.training.clipping.people import owners
from apiece.training.clipping.precision import wide
from apiece.training.clipping.records import LossFunction as LossFunction
from apiece.training.clipping.selection import clip_by, clip_large

METHODS = ("auto", "book-keeping", "functional", "loop", "proved", "alone")


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
        method: "auto" takes book-keeping (one forward, one backward) where the layers allow it,
            tried on the model's first batch against autograd, and torch.func elsewhere.
            "book-keeping", "functional" and "loop" (one record at a time) insist on one path.
            "proved" captures model and loss as one graph of operators and runs it where it is
            proved that no record can meet another in it, refusing others; "alone" runs each record
            by itself on fresh copies of all that a forward can write.
        physical_batch_size: How many records are worked on at a time; it bounds the memory and does
            not change the sum.
        people: (B,), the id of each row's person; None where each row is its own. A person's
            gradients are added up before the norm is taken and clipped as one. `clip_norms` and the
            norms returned then have one entry a person, in the order of first appearance, losses
            one a row. A person with more rows than `physical_batch_size` is taken part by part, by
            plain gradients.

    Raises:
        InputError: For a loss that was reduced, wrong shapes, bounds below 1e-12 or infinite, a
            model without trainable parameters.
        UnsupportedError: For a model that mixes records, or that is not proved where `method` asks
            for it.

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
    parameters = guards.fit_parameters(model)
    model = guards.inner(model)
    size = records.count(inputs, targets)
    device = next(iter(parameters.values())).device
    found = None if people is None else owners(people, size)
    if found is not None and found.persons == size:
        found = None  # a row each, in their order
    clip_norms = guards.bounds(clip_norms, size if found is None else found.persons, device)
    if size == 0:
        return empty_sum(parameters)
    if found is not None and found.order is not None:
        order = found.order.to(device)
        inputs, targets = records.select(inputs, order), records.select(targets, order)
    owner = None if found is None else found.owner.to(device)
    batch = records.Batch(model, parameters, loss_fn, inputs, targets, clip_norms, owner)
    width = size if physical_batch_size is None else physical_batch_size
    width = _check.count("physical_batch_size", width)
    with guards.told_of_checkpoints():
        total = _by(method, batch, width)
    if found is None or found.order is None:
        return total
    return replace(total, losses=torch.empty_like(total.losses).scatter_(0, order, total.losses))


def _by(method: str, batch: records.Batch, width: int) -> ClippedSum:
    if method == "proved":
        return clip_proved(proved_engine(batch), batch, width)
    return clip_alone(batch) if method == "alone" else _in_parts(method, batch, width)


def _in_parts(method: str, batch: records.Batch, width: int) -> ClippedSum:
    if width >= len(batch):
        return clip_by(method, batch)
    return add_up(
        clip_by(method, part) if len(part) <= width else clip_large(part, width)
        for part in batch.parts(width)
    )


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
