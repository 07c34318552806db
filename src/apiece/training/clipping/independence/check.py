"""Whether each record of a batch gives, in company, the loss and gradient that it gives alone.

That is what clipping needs, and what no batch computation shows by itself. It is looked at on the
batch as it is, by the path that clips it, and again in double precision, where records that hardly
touch are told from round-off: the gradients of a few, drawn secretly, and the losses of all.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.clipped import ClippedSum, add_up, clip_factors
from apiece.training.clipping.independence.blame import blame
from apiece.training.clipping.independence.compare import (
    Finding,
    Seen,
    apart,
    floor_of,
    of_losses,
    same_sum,
)
from apiece.training.clipping.independence.draws import Draws
from apiece.training.clipping.independence.widening import Tolerance, as_it_is, widened
from apiece.training.clipping.paths import functional
from apiece.training.clipping.paths.bookkeeping import clip_batch, parts_of
from apiece.training.clipping.precision import single, wide
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.kernels import row_squares

_CELLS = 1 << 21  # entries of per-record gradients at a time
_CLOSELY = 32  # records of which a close look takes the gradients in double precision
_PARTS = 16  # in which it takes the losses of all, in another order


def examine(path: str, batch: Batch, *, free: bool, closely: bool, again: bool) -> Finding:
    """Compare every record of the batch with itself alone.

    path: "book-keeping", "functional" or "loop". free: whether the model has to keep records apart
    in a batch even where the path takes them one at a time. closely: look in double precision in
    any case, not only in doubt. again: whether batches were summed before, which a refusal says.

    Raises `UnsupportedError` with the module, or `InputError` for the loss, in which records meet;
    `NotBookable` where book-keeping cannot be taken, and what the model raises.
    """
    look = _Look(path, free, again)
    with trial([batch.clip_norms.device]), _nothing_kept():
        tolerance = as_it_is(batch)
        found, where = look.at(batch, tolerance)
        if found is Finding.MIXED:
            raise look.refusal(batch, where, tolerance)
        if found is Finding.SAME and not closely:
            return found
        if found is Finding.SAME:
            closer = _sampled(look, batch)
            if closer is None:  # it is in double precision, or too large for it
                _check_losses(look, batch, tolerance)
        else:
            closer = _in_double(look.at, look, batch)
        if closer is None and found is Finding.NEAR:
            raise look.refusal(batch, where, tolerance)
    if closer is None:
        return Finding.UNKNOWN if found is Finding.OTHER_SUM else found
    return closer if found is not Finding.UNKNOWN else found


@contextlib.contextmanager
def _nothing_kept() -> Iterator[None]:
    """Say in our words what torch.func says of values that a forward keeps from another."""
    try:
        yield
    except RuntimeError as error:
        if "escaped from inside a function being vmapped" not in str(error):
            raise
        raise UnsupportedError(
            "model: a forward keeps a value that it computes from records and uses it in the next; "
            "take that out, and start again from a model that has not run"
        ) from None


def _sampled(look: _Look, batch: Batch) -> Finding | None:
    """Return what double precision finds of gradients on some records, and of losses on all."""
    order = torch.randperm(len(batch), generator=_secret()).to(batch.clip_norms.device)
    found = _in_double(look.at, look, batch.at(order[:_CLOSELY]))
    if found is not Finding.SAME:
        return found
    return _in_double(lambda all_, room: look.at_losses(all_, room, order), look, batch) or found


def _check_losses(look: _Look, batch: Batch, tolerance: Tolerance) -> None:
    """Raise the refusal where losses in other company are others, by more than round-off does."""
    order = torch.randperm(len(batch), generator=_secret()).to(batch.clip_norms.device)
    found, where = look.at_losses(batch, tolerance, order)
    if found is Finding.MIXED:
        raise look.refusal(batch, where, tolerance)


def _in_double(
    of: Callable[[Batch, Tolerance], tuple[Finding, int]], look: _Look, batch: Batch
) -> Finding | None:
    """Return what `of` finds in double precision, None where the model does not run in it."""
    try:
        with widened(batch) as doubled:
            if doubled is None:
                return None
            tolerance = as_it_is(doubled)
            found, where = of(doubled, tolerance)
            if found in (Finding.MIXED, Finding.NEAR):
                raise look.refusal(doubled, where, tolerance)
            return found
    except InputError:
        raise
    except Exception:  # whatever a model raises that is not made for this
        return None


@dataclass(frozen=True, slots=True)
class _Look:
    path: str
    free: bool
    again: bool  # batches of this model and loss were summed before

    def refusal(self, batch: Batch, where: int, tolerance: Tolerance) -> InputError:
        """Return the error for records that meet, `where` being one of them."""
        error = blame(batch, where, tolerance.relative)
        if not self.again:
            return error
        return type(error)(
            f"{error}; the guarantee does not cover the batches summed before: treat what came of "
            "them as made without privacy"
        )

    def at(self, batch: Batch, tolerance: Tolerance) -> tuple[Finding, int]:
        """Return what is found, and a record at which it is."""
        draws = _drawn(batch)
        weights = torch.empty(len(batch), dtype=torch.float64)
        weights.uniform_(0.3, 1.0, generator=_secret())
        weights = weights.to(batch.clip_norms.device)
        booked = self.path == "book-keeping"
        if booked:
            seen, weights = _booked(batch, weights, draws)
        else:
            seen = _alone(batch, weights, draws, vectorised=self.path == "functional")
        other = self._again(batch, weights, draws, vectorised=self.path != "loop")
        lost, where = of_losses(seen.losses, other.losses, tolerance)
        if lost is not None and booked:  # by the very same operators: vmap's may round otherwise
            other = self._again(batch, weights, draws, vectorised=False)
            lost, where = of_losses(seen.losses, other.losses, tolerance)
            if lost and not _in_company(batch, weights, other, draws, tolerance)[0]:
                lost = Finding.OTHER_SUM  # what the path makes of the model mixes
        if lost is None:
            above = math.inf if booked else tolerance.relative  # see `cancellation`
            room = floor_of(batch, tolerance)
            off = apart(seen.norms, other.norms, above, tolerance.relative, room)
            if off is None and not same_sum(seen, other, weights, tolerance, room):
                off = 0
            if off is None and (booked or not self.free):
                return Finding.SAME, 0
            if off is not None and not booked:
                lost, where = Finding.NEAR, off
            else:
                lost, where = _in_company(batch, weights, other, draws, tolerance)
                if lost is None:
                    return (Finding.SAME, 0) if off is None else (Finding.OTHER_SUM, off)
        return (Finding.UNKNOWN if draws.strayed else lost), where

    def at_losses(
        self, batch: Batch, tolerance: Tolerance, order: torch.Tensor
    ) -> tuple[Finding, int]:
        """Return whether losses are what they are in other company: in parts by `order`."""
        if self.path != "book-keeping" and not self.free:
            return Finding.SAME, 0
        draws, turned = _drawn(batch), batch.at(order)
        together = _losses(parts_of(batch), draws)
        width = max(math.ceil(len(batch) / _PARTS), 2)
        for size in (width, width + 1):  # of both parities, which a model may tell apart
            parted = torch.empty_like(together)
            parted[order] = _losses(turned.parts(size), draws)
            lost, where = of_losses(together, parted, tolerance)
            if lost is not None:
                return (Finding.SAME if draws.strayed else lost), where
        return Finding.SAME, 0

    def _again(
        self, batch: Batch, weights: torch.Tensor, draws: Draws, *, vectorised: bool
    ) -> Seen:
        """Return what each record gives alone, taken in the opposite order."""
        order = torch.arange(len(batch) - 1, -1, -1, device=weights.device)
        turned = batch.at(order)
        try:
            found = _alone(turned, weights.flip(0), draws, vectorised=vectorised)
        except (RuntimeError, ValueError):
            if not vectorised or self.path != "book-keeping":
                raise
            found = _alone(turned, weights.flip(0), draws, vectorised=False)
        return Seen(found.losses.flip(0), found.norms.flip(0), found.total)


def _secret() -> torch.Generator:
    return torch.Generator().manual_seed(secrets.randbits(56))


def _drawn(batch: Batch) -> Draws:
    """Return what the first record draws alone."""
    draws = Draws()
    with draws.first(), torch.no_grad():
        one = next(batch.parts(1))
        one.loss_fn(records.call(one.model, one.inputs), one.targets)
    return draws


def _losses(parts: Iterable[Batch], draws: Draws) -> torch.Tensor:
    """Return the losses of all parts."""
    found = []
    for part in parts:
        with draws.again(), torch.no_grad():
            found.append(part.losses())
    return torch.cat(found)


def _booked(batch: Batch, weights: torch.Tensor, draws: Draws) -> tuple[Seen, torch.Tensor]:
    """Return what book-keeping gives with bounds near weight·norm, and the factors it took."""
    norms = _clipped(batch, draws).norms.double()
    bounds = torch.where((norms > 0) & torch.isfinite(norms), norms * weights, 1.0)
    clipped = _clipped(replace(batch, clip_norms=bounds), draws)
    factors = clip_factors(clipped.norms, bounds).double()
    return Seen(clipped.losses, clipped.norms, dict(clipped.gradients)), factors


def _clipped(batch: Batch, draws: Draws) -> ClippedSum:
    found = []
    for part in parts_of(batch):
        with draws.again():
            found.append(clip_batch(part))
    return add_up(found)


def _alone(batch: Batch, weights: torch.Tensor, draws: Draws, *, vectorised: bool) -> Seen:
    """Return what each record gives when it is the whole batch, in the order given."""
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    total = {n: torch.zeros_like(p, dtype=wide(p.dtype)) for n, p in batch.parameters.items()}
    width = functional.width_of(batch, _CELLS) if vectorised else 1
    split = weights.split(width)  # type: ignore[no-untyped-call]
    for part, factors in zip(batch.parts(width), split, strict=True):
        with draws.again():
            if vectorised:
                gradients, some = functional.per_record(part, randomness="same")
            else:
                gradients, some = functional.one_by_one(part)
        rows = {name: g.detach().to(wide(g.dtype)) for name, g in gradients.items()}
        with single(some.device):
            own = torch.stack([row_squares(g) for g in rows.values()]).sum(0).sqrt()
            for name, g in rows.items():
                total[name] += functional.weighted_sum(g, factors, torch.isfinite(own))
        losses.append(some.detach())
        norms.append(own)
    return Seen(torch.cat(losses), torch.cat(norms), total)


def _in_company(
    batch: Batch, weights: torch.Tensor, alone: Seen, draws: Draws, tolerance: Tolerance
) -> tuple[Finding | None, int]:
    """Return whether losses or gradients by autograd on the batch are others than alone."""
    good = torch.isfinite(alone.norms)
    total = {name: torch.zeros_like(t) for name, t in alone.total.items()}
    some: list[torch.Tensor] = []
    factors = torch.where(good, weights, 0.0)
    start = 0
    for part in parts_of(batch):
        with draws.again():
            losses = part.losses()
            mine = factors[start : start + len(part)].to(losses.dtype)
            start += len(part)
            if losses.requires_grad:
                found = torch.autograd.grad(
                    torch.where(mine > 0, losses, 0.0),
                    list(part.parameters.values()),
                    mine,
                    allow_unused=True,
                    materialize_grads=True,
                )
                for name, g in zip(part.parameters, found, strict=True):
                    total[name] += g.to_dense() if g.is_sparse else g
        some.append(losses.detach())
    lost, where = of_losses(torch.cat(some), alone.losses, tolerance)
    if lost is not None or not good.all():
        return lost, where
    room = floor_of(batch, tolerance)
    same = same_sum(replace(alone, total=total), alone, weights, tolerance, room)
    return None if same else Finding.NEAR, 0
