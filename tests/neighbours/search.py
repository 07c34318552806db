"""A search for a record that moves a clipped sum by more than its bound."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass

import torch

from apiece.errors import InputError
from apiece.training import clip_and_sum
from apiece.training.clipping import proof
from apiece.training.clipping.records import clip_factors
from apiece.training.clipping.table import SHARED, SUMMED, Records, Shared, Unproved

from .harness import Refused, flat
from .holdout import reset

SIZE = 12
BAD = (float("nan"), float("inf"), 1e9, -1e9)


class GaveUp(Exception):  # noqa: N818 - an outcome
    """The model's own code raised."""


@dataclass
class Neighbours:
    """Two histories of batches that differ by one record: in the first batch alone, or in all."""

    one: list
    other: list
    allowed: float  # in bounds, for the first batch; later ones hold the record not at all


def neighbours(generator, calls=2, bad=BAD, first=True):
    """Yield pairs of histories; the records after the first batch are the same.

    first: Whether the first record is removed as well, which gives the others' draws to the next:
        not for those that draw.
    """
    x, y = torch.randn(SIZE, 6, generator=generator), torch.randn(SIZE, generator=generator)
    later = [
        (torch.randn(SIZE, 6, generator=generator), torch.randn(SIZE, generator=generator))
        for _ in range(calls - 1)
    ]
    most = SIZE - 1

    def pair(one, other, allowed=1.0):
        return Neighbours([one, *later], [other, *later], allowed)

    if first:
        yield pair((x, y), (x[1:], y[1:]))
    yield pair((x, y), (x[:most], y[:most]))
    order = torch.randperm(SIZE, generator=generator)
    yield pair((x[order], y[order]), (x[order[:most]], y[order[:most]]))
    replaced = x.clone()
    replaced[3] = 3 * torch.randn(6, generator=generator)
    yield pair((x, y), (replaced, y), 2.0)
    for value in bad:
        odd, label = x.clone(), y.clone()
        odd[most] = value
        yield pair((odd, y), (x[:most], y[:most]))
        label[most] = value
        yield pair((x, label), (x[:most], y[:most]))


def bounds_about(make):
    """Return bounds a thousandth of the norms, about them, and above all of them."""
    reset()
    torch.manual_seed(0)
    model, loss = make()
    x, y = torch.randn(SIZE, 6), torch.randn(SIZE)
    norms = careless(model, loss, x, y, torch.ones(SIZE)).norms
    norms = norms[torch.isfinite(norms) & (norms > 1e-6)]
    norms = norms if norms.numel() else torch.ones(1)
    return [float(norms.median()) / 1000, float(norms.median()), 1.5 * float(norms.max())]


def harm(make, run, *, seed=0, bounds=None, most=None, **options):
    """Return the largest move, in what is allowed: above one, and a record does harm.

    A pair on which the model itself gives up, one of them bad, does not count.

    Raises:
        Refused: Where a batch is refused, or the model gives up on every pair.
    """
    worst, seen, why = 0.0, False, ""
    pairs = neighbours(torch.Generator().manual_seed(seed), **options)
    each = itertools.cycle(bounds_about(make) if bounds is None else bounds)
    for pair, bound in zip(itertools.islice(pairs, most), each, strict=False):
        try:
            worst, seen = max(worst, moved(make, run, pair, bound)), True
        except GaveUp as error:
            why = str(error)
    if not seen:
        raise Refused(why)
    return worst


def moved(make, run, pair, bound):
    """Return the largest move of one pair of histories."""
    one, other = (_history(make, run, batches, bound) for batches in (pair.one, pair.other))
    first, *rest = (float((a - b).norm()) for a, b in zip(one, other, strict=True))
    room = 2e-3 * bound + 2e-6 * max(float(total.norm()) for total in (*one, *other))
    worst = (max(0.0, first - room)) / (pair.allowed * bound)
    return max([worst, *(1 + move / bound for move in rest if move > room)])


def _history(make, run, batches, bound):
    reset()
    torch.manual_seed(0)
    model, loss = make()
    sums = []
    for k, (x, y) in enumerate(batches):
        torch.manual_seed(k)
        clip = torch.full((len(x),), bound, dtype=torch.float64)
        try:
            sums.append(flat(run(model, loss, x.clone(), y.clone(), clip).gradients))
        except InputError as refusal:
            raise Refused(str(refusal)) from None
        except (RuntimeError, ValueError) as error:  # the model's own
            raise GaveUp(f"{type(error).__name__}: {error}") from None
    return sums


def proved(model, loss, x, y, clip):
    """Clip by the proved graph alone."""
    return clip_and_sum(model, loss, x, y, clip, method="proved")


def alone(model, loss, x, y, clip):
    """Clip one record at a time."""
    return clip_and_sum(model, loss, x, y, clip, method="alone")


# ---------------------------------------------------------------- what no proof holds back


class Careless:
    """A sum and its norms."""

    def __init__(self, gradients, norms):
        self.gradients, self.norms = gradients, norms


def careless(model, loss, x, y, clip):
    """Clip each loss's gradient, all of one forward: what an engine does without a proof.

    A record that is not finite spoils the others' gradients here, whatever the model.
    """
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    parameters = [dict(model.named_parameters())[name] for name in names]
    losses = loss(model(x), y)
    rows = []
    for one in losses:
        given = torch.autograd.grad(
            one, parameters, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        rows.append(torch.cat([g.flatten() for g in given]))
    each = torch.stack(rows).detach()
    norms = each.double().norm(dim=1)
    good = torch.isfinite(norms)
    factors = clip_factors(norms, clip.double()).float()
    total = (torch.where(good[:, None], each, 0 * each.nan_to_num(0, 0, 0)) * factors[:, None]).sum(
        0
    )
    return Careless({"all": total}, norms)


@contextlib.contextmanager
def believing():
    """Let every operator be proved that has a shape with the records along one axis."""
    strict, ends = proof.layout_of, proof._check_results

    def lenient(call):
        try:
            return strict(call)
        except Unproved:
            value = call.node.meta["val"]
            if not isinstance(value, list | tuple):
                return _by_shape(call, value)
            return tuple(_by_shape(call, one) for one in value)

    proof.layout_of, proof._check_results = lenient, lambda *_: None
    try:
        yield
    finally:
        proof.layout_of, proof._check_results = strict, ends


def _by_shape(call, value):
    if not isinstance(value, torch.Tensor):
        return SHARED
    long = [k for k, size in enumerate(value.shape) if call.sizes.depends(size)]
    if not long:
        given = [call.of(t) for t in call.tensors()]
        return SHARED if all(isinstance(one, Shared) for one in given) else SUMMED
    return Records(long[0], 1, call.sizes.factor(value.shape[long[0]]))


def believed(model, loss, x, y, clip):
    """Clip by the graph, whatever it does."""
    with believing():
        return clip_and_sum(model, loss, x, y, clip, method="proved")
