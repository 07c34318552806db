"""Whether each record of a batch gives, in company, the loss and gradient that it gives alone.

That is what clipping needs, and what no batch computation shows by itself. It is looked at on the
batch as it is, by the path that clips it, and again in double precision, where records that hardly
touch are told from round-off: the gradients of a few, drawn secretly, and the losses of all.
"""

from __future__ import annotations

import contextlib
import enum
import math
import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import torch

from apiece.errors import InputError, UnsupportedError
from apiece.training.clipping import records
from apiece.training.clipping.ambient import trial
from apiece.training.clipping.clipped import clip_factors
from apiece.training.clipping.independence.blame import blame
from apiece.training.clipping.independence.draws import Draws
from apiece.training.clipping.independence.widening import Tolerance, as_it_is, widened
from apiece.training.clipping.paths import functional
from apiece.training.clipping.paths.bookkeeping import clip_in_parts, parts_of
from apiece.training.clipping.precision import single, wide
from apiece.training.clipping.records import Batch
from apiece.training.clipping.rules.kernels import row_squares

_CELLS = 1 << 24  # entries of per-record gradients at a time
_CLOSELY = 32  # records of which a close look takes the gradients in double precision
_PARTS = 16  # in which it takes the losses of all, in another order
_HUGE = 1e15  # norms beyond which squares may overflow in one way of adding and not in another


class Finding(enum.Enum):
    """What a look at a batch found."""

    SAME = "every record gives what it gives alone"
    OTHER_SUM = "records are apart, but this path does not compute their gradients"
    UNKNOWN = "what was drawn, or round-off, does not let two runs be compared"
    NEAR = "a record gives something else in company, by no more than round-off may do"
    MIXED = "a record gives something else in company, or when it is run again"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Seen:
    """Losses (B,), norms (B,) and Σ factor·gradient by parameter name."""

    losses: torch.Tensor
    norms: torch.Tensor
    total: dict[str, torch.Tensor]


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
        if found is Finding.SAME and len(batch) > _CLOSELY:
            closer = _sampled(look, batch)
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
    found = _in_double(look.at, look, _at(batch, order[:_CLOSELY]))
    if found is not Finding.SAME:
        return found
    return _in_double(lambda all_, room: look.at_losses(all_, room, order), look, batch) or found


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
        lost, where = _of_losses(seen.losses, other.losses, tolerance)
        if lost is not None and booked:  # by the very same operators: vmap's may round otherwise
            other = self._again(batch, weights, draws, vectorised=False)
            lost, where = _of_losses(seen.losses, other.losses, tolerance)
        if lost is None:
            above = math.inf if booked else tolerance.relative  # see `cancellation`
            room = _floor(batch, tolerance)
            off = _apart(seen.norms, other.norms, above, tolerance.relative, room)
            if off is None and not _same_sum(seen, other, weights, tolerance, room):
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
        draws, turned = _drawn(batch), _at(batch, order)
        together = _losses(parts_of(batch), draws)
        apart = torch.empty_like(together)
        apart[order] = _losses(turned.parts(math.ceil(len(batch) / _PARTS)), draws)
        lost, where = _of_losses(together, apart, tolerance)
        return (Finding.SAME if lost is None or draws.strayed else lost), where

    def _again(
        self, batch: Batch, weights: torch.Tensor, draws: Draws, *, vectorised: bool
    ) -> _Seen:
        """Return what each record gives alone, taken in the opposite order."""
        order = torch.arange(len(batch) - 1, -1, -1, device=weights.device)
        turned = _at(batch, order)
        try:
            found = _alone(turned, weights.flip(0), draws, vectorised=vectorised)
        except (RuntimeError, ValueError):
            if not vectorised or self.path != "book-keeping":
                raise
            found = _alone(turned, weights.flip(0), draws, vectorised=False)
        return _Seen(found.losses.flip(0), found.norms.flip(0), found.total)


def _secret() -> torch.Generator:
    return torch.Generator().manual_seed(secrets.randbits(56))


def _at(batch: Batch, index: torch.Tensor) -> Batch:
    """Return the batch of the records at `index`."""
    return replace(
        batch,
        inputs=records.select(batch.inputs, index),
        targets=records.select(batch.targets, index),
        clip_norms=batch.clip_norms[index],
    )


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


def _booked(batch: Batch, weights: torch.Tensor, draws: Draws) -> tuple[_Seen, torch.Tensor]:
    """Return what book-keeping gives with bounds near weight·norm, and the factors it took."""
    with draws.again():
        norms = clip_in_parts(batch).norms.double()
    bounds = torch.where((norms > 0) & torch.isfinite(norms), norms * weights, 1.0)
    with draws.again():
        clipped = clip_in_parts(replace(batch, clip_norms=bounds))
    factors = clip_factors(clipped.norms, bounds).double()
    return _Seen(clipped.losses, clipped.norms, dict(clipped.gradients)), factors


def _alone(batch: Batch, weights: torch.Tensor, draws: Draws, *, vectorised: bool) -> _Seen:
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
    return _Seen(torch.cat(losses), torch.cat(norms), total)


def _in_company(
    batch: Batch, weights: torch.Tensor, alone: _Seen, draws: Draws, tolerance: Tolerance
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
    lost, where = _of_losses(torch.cat(some), alone.losses, tolerance)
    if lost is not None or not good.all():
        return lost, where
    room = _floor(batch, tolerance)
    same = _same_sum(replace(alone, total=total), alone, weights, tolerance, room)
    return None if same else Finding.NEAR, 0


def _of_losses(
    one: torch.Tensor, other: torch.Tensor, tolerance: Tolerance
) -> tuple[Finding | None, int]:
    """Return whether losses are apart, by much or by little, and where."""
    where = _apart(one, other, tolerance.relative, tolerance.relative, tolerance.floor)
    if where is None:
        return None, 0
    gross = _apart(one, other, tolerance.gross, tolerance.gross, 100 * tolerance.floor)
    return (Finding.NEAR, where) if gross is None else (Finding.MIXED, gross)


def _apart(
    one: torch.Tensor, other: torch.Tensor, above: float, below: float, floor: torch.Tensor | float
) -> int | None:
    """Return the record where `one` is most out of the room around `other`, None if none is."""
    a, b = one.double(), other.double()
    finite = torch.isfinite(b)
    if not bool(finite.any()):
        return None if not bool(torch.isfinite(a).any()) else 0
    typical = b[finite].abs().mean()
    sides = torch.where(a > b, min(above, 1.0), below)
    room = sides * torch.maximum(b.abs(), typical).nan_to_num(nan=0.0) + floor
    if above == math.inf:
        room = torch.where(a > b, torch.inf, room)
    lost = torch.isfinite(a) != finite
    lost &= ~((a.abs() > _HUGE) | (b.abs() > _HUGE)) | torch.isnan(a) | torch.isnan(b)
    over = torch.where(finite & torch.isfinite(a), (a - b).abs() - room, -1.0)
    over = torch.where(lost, torch.inf, over)
    return int(over.argmax()) if float(over.max()) > 0 else None


def _same_sum(
    one: _Seen, other: _Seen, weights: torch.Tensor, tolerance: Tolerance, floor: torch.Tensor
) -> bool:
    own = torch.nan_to_num(other.norms.double() * weights, nan=0.0, posinf=0.0)
    room = (tolerance.relative * own).square().sum() + floor.square().sum()
    apart = sum(
        float((one.total[name].double() - total.double()).square().sum())
        for name, total in other.total.items()
    )
    return apart <= float(room)


def _floor(batch: Batch, tolerance: Tolerance) -> torch.Tensor:
    """Return what is too little of a share to matter, (B,)."""
    return tolerance.share * batch.clip_norms.double().clamp(max=1.0)
