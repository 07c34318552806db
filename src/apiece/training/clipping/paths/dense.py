"""Clipping where every layer is linear at one position: few operators, each on what is at hand.

A layer's gradient is left ⊗ right and its bias's is left, so that the squared norm of a record is
Σ ‖left‖²(‖right‖² + 1) over the layers (Goodfellow 2015, arXiv 1510.01799).
"""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn.functional import pad

from apiece.training.clipping.clipped import ClippedSum, clip_factors
from apiece.training.clipping.paths.chain import Link
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.contributions import blank, cancellation_of, underflow_room
from apiece.training.clipping.rules.joined import Pair, Persons, outer_squares
from apiece.training.clipping.rules.kernels import least_norm, product, row_norms


def is_dense(uses: list[Link]) -> bool:
    """Whether the layers share no parameter, so that their gradients stand side by side."""
    held = [id(p) for use in uses for p in use.layer._parameters.values() if p is not None]
    return bool(uses) and len(set(held)) == len(held)


def clip_dense(uses: list[Link], batch: Batch, losses: torch.Tensor) -> ClippedSum:
    """Return the clipped sum. Overwrites the gradients in `uses` that are ours."""
    owner, bounds = batch.owner, batch.clip_norms
    if owner is None:
        sizes = _sizes(uses)[:, : len(batch)]
        norms = sizes.square_().sum(0).sqrt_()  # vector_norm is slow along this dimension
    else:
        norms = _norms_of_persons(uses, Persons(owner))
    factors = clip_factors(norms, bounds)
    bad = None if math.isfinite(float(norms.sum())) else ~torch.isfinite(norms)
    if owner is not None:
        factors, bad = factors[owner], None if bad is None else bad[owner]
    more = len(uses[0].left) - len(batch)  # rows of no record
    if more:
        factors = pad(factors, (0, more))
    if bad is not None:
        bad = pad(bad, (0, more))
        uses = [Link(u.layer, blank(u.right, bad), blank(u.left, bad), True) for u in uses]
    found: dict[int, torch.Tensor] = {}
    column = factors.unsqueeze(1)
    for layer, right, left, ours in uses:
        weight, bias = _trained(layer)
        if bias is not None:
            found[id(bias)] = factors @ left
        if weight is None:
            continue
        if left.shape[1] > right.shape[1]:  # the narrower one takes the factors
            right = right * column
        else:
            left = left.mul_(column) if ours else left * column
        found[id(weight)] = product(left, right)
    sums = {
        name: found[id(p)] if id(p) in found else torch.zeros_like(p, requires_grad=False)
        for name, p in batch.parameters.items()
    }
    return ClippedSum(sums, norms, losses, bounds)


def _trained(layer: nn.Linear) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return weight and bias, None where they take no gradient."""
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    return (
        weight if weight is not None and weight.requires_grad else None,
        bias if bias is not None and bias.requires_grad else None,
    )


def _sizes(uses: list[Link], room: float = 1.0) -> torch.Tensor:
    """Return ‖gradient‖ of each layer's weight and bias for every row, (2·layers, B).

    room: how many times what underflow can take is added to what a norm is made of.
    """
    count, size = len(uses), len(uses[0].left)
    table = torch.empty(2 * count, size)
    rows = table.unbind(0)
    for k, use in enumerate(uses):
        row_norms(use.right, rows[k])
        row_norms(use.left, rows[count + k])
    widest = max(max(use.right.shape[1], use.left.shape[1]) for use in uses)
    table.add_(room * least_norm(widest, table.dtype))
    weights, biases = table.split_with_sizes((count, count))
    weights.mul_(biases)
    for k, use in enumerate(uses):
        weight, bias = _trained(use.layer)
        if weight is None:
            rows[k].zero_()
        if bias is None:
            rows[count + k].zero_()
    return table


def _norms_of_persons(uses: list[Link], persons: Persons) -> torch.Tensor:
    """Return ‖gradient‖ over all layers, for every person; a bias is a weight of an input of 1."""
    size = len(persons.owner)
    pairs: list[Pair] = []
    for use in uses:
        (weight, bias), left = _trained(use.layer), use.left[:size]
        if weight is not None:
            pairs.append((left, use.right[:size], bias is not None))
        elif bias is not None:
            pairs.append((left, None, True))
    sizes = _sizes(uses, underflow_room(uses[0].left.dtype))[:, :size]
    squares = cancellation_of(persons.add(sizes), sizes.dtype).sum(0)
    return (squares.add_(outer_squares(pairs, persons)) if pairs else squares).sqrt_()
