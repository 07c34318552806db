"""Which path a model takes: found out on its first batch, and looked at again in secret."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import nn

from apiece.errors import InputError, StateError, UnsupportedError
from apiece.training.clipping import guards
from apiece.training.clipping.ambient import put_back, states
from apiece.training.clipping.clipped import ClippedSum
from apiece.training.clipping.independence.check import examine
from apiece.training.clipping.independence.compare import Finding
from apiece.training.clipping.independence.state import State
from apiece.training.clipping.independence.uses import enlarged, uses_of
from apiece.training.clipping.paths import functional
from apiece.training.clipping.paths.bookkeeping import clip_in_parts, most_together, parts_of
from apiece.training.clipping.records import Batch, leaves
from apiece.training.clipping.rules.rule import NotBookable
from apiece.training.clipping.told import PartPath, parts, tell

How = tuple[bool | str, ...]  # training mode, autocast, the names of the trained parameters

_PATHS = {
    "book-keeping": clip_in_parts,
    "functional": functional.clip_vectorised,
    "loop": functional.clip_one_by_one,
}
_chosen: weakref.WeakKeyDictionary[nn.Module, dict[How, str]] = weakref.WeakKeyDictionary()


def chosen(model: nn.Module) -> list[tuple[How, str]]:
    """Return which path the model took, in which state: what a resumed run must take again."""
    return list(_chosen.get(guards.inner(model), {}).items())


def paths_of(model: nn.Module, method: str = "auto") -> tuple[PartPath, ...]:
    """Return how each part of the model is clipped, as it last was; none before its first batch.

    Args:
        model: As given to `clip_and_sum`.
        method: Likewise.

    Example:
        >>> paths_of(nn.Linear(2, 1))
        ()
    """
    model = guards.inner(model)
    taken = list(_chosen.get(model, {}).values())
    return parts(model, method if method != "auto" else taken[-1] if taken else None)


def choose(model: nn.Module, paths: Iterable[tuple[Iterable[bool | str], str]]) -> None:
    """Let the model take the paths that `chosen` gave, without trying others."""
    known = {tuple(how): path for how, path in paths if path in _PATHS}
    _chosen.setdefault(guards.inner(model), {}).update(known)


def clip_by(method: str, batch: Batch) -> ClippedSum:
    """Return the clipped sum of one batch by `method`; "auto" chooses.

    Batches that are due are looked at first: see `Uses.due` for when, `examine` for how. What is
    tried leaves torch's generators alone: the sum is the one that the path taken gives when it is
    taken without a look, dropout included.
    """
    free = method == "auto"
    take = partial(_take, batch=batch, free=free)
    return _looked_then(method, batch.of_rows(), batch.owner, take)


def clip_large(person: Batch, width: int) -> ClippedSum:
    """Return the clipped share of one person with more than `width` rows, part by part.

    That is by plain gradients, whatever the method; so the model has to keep rows apart in a
    batch, and is looked at on the first part as on any batch of "auto".
    """
    rows = next(person.of_rows().parts(width))
    owner = torch.zeros(len(rows), dtype=torch.long, device=rows.clip_norms.device)
    return _looked_then("auto", rows, owner, lambda _: functional.clip_person(person, width))


def _looked_then(
    method: str, rows: Batch, owner: torch.Tensor | None, take: Callable[[str | None], ClippedSum]
) -> ClippedSum:
    """Return what `take` gives by the path for `rows`, which are looked at first where due.

    The path is decided from rows that are finite. A batch of which nothing was looked at is taken
    record by record (None).
    """
    device = rows.clip_norms.device.type
    how: How = (rows.model.training, torch.is_autocast_enabled(device), *rows.parameters)
    known = _chosen.setdefault(rows.model, {})
    path = known.get(how) if method == "auto" else method
    uses = uses_of(rows.model, (method, *how), rows.loss_fn)
    tensors = leaves((rows.inputs, rows.targets))
    if not uses.due(len(rows), tensors):
        uses.batches += 1
        alone = method not in ("functional", "loop") and uses.strange(len(rows), tensors)
        return take(None if alone else path)
    settled = uses.batches > 0 and any(n > 1 for n in uses.seen)  # looked at beside others
    roots = {"model": rows.model, "loss_fn": rows.loss_fn}
    state = State(**{name: m for name, m in roots.items() if isinstance(m, nn.Module)})
    again, size, new = uses.batches > 0, len(rows), uses.new(len(rows), tensors)
    look = partial(_looked_at, method, again=again, settled=settled)
    with state.kept(contents=True):
        path = taken = look(path, rows, closely=new)
        before = states([rows.clip_norms.device])
        clipped = take(path)
        judged = _finite(rows, clipped, owner)
        if 0 < len(judged) < len(rows):
            path = look(path, judged, closely=new)
        if new and len(judged):
            path, size = _enlarged(method, path, judged, len(rows), look)
        if path != taken:
            put_back(before)
            clipped = take(path)
    uses.batches += 1
    if len(judged):
        if method == "auto":
            known[how] = path
        uses.looked(size, leaves((judged.inputs, judged.targets)))
    uses.vain += uses.strange(len(rows), tensors)
    return clipped


def _finite(rows: Batch, clipped: ClippedSum, owner: torch.Tensor | None) -> Batch:
    """Return the rows whose record's or owner's norm is finite."""
    finite = torch.isfinite(clipped.norms)
    if bool(finite.all()):
        return rows
    return rows.at((finite if owner is None else finite[owner]).nonzero()[:, 0])


def _take(path: str | None, batch: Batch, *, free: bool) -> ClippedSum:
    """Return the clipped sum by `path`; where book-keeping cannot be taken this time, by another.

    None is record by record, by what needs no look.

    Raises `UnsupportedError` where it is not `free` to.
    """
    before = states([batch.clip_norms.device])
    why = None
    try:
        if path is not None:
            return _PATHS[path](batch)
    except NotBookable as reason:
        if not free:
            raise _not_exact(str(reason)) from None
        why = str(reason)
    put_back(before)
    try:
        found, path = functional.clip_vectorised(batch), "functional"
    except RuntimeError:  # vmap cannot run every model
        put_back(before)
        found, path = functional.clip_one_by_one(batch), "loop"
    if why is not None:
        tell(batch.model, path, why)
    return found


def _looked_at(
    method: str, path: str | None, batch: Batch, *, again: bool, settled: bool, closely: bool
) -> str:
    """Look at a batch, and return the path to take: `path`, where one is given and stands.

    A path that cannot take this batch is left for good: what was seen of it is no promise for a
    batch of another shape. Where the path is settled, a sum that is wrong here may have been wrong
    before, and is not passed over.
    """
    free, why = method == "auto", ""
    names = list(_PATHS)[list(_PATHS).index(path or "book-keeping") :] if free else [method]
    for name in names:
        try:
            found = examine(name, batch, free=free, closely=closely, again=again)
        except NotBookable as reason:
            if not free:
                raise _not_exact(str(reason)) from None
            why = str(reason)
            continue
        except (RuntimeError, ValueError) as error:
            if name != "functional" or isinstance(error, InputError):
                raise
            if not free:
                raise UnsupportedError(
                    "method: torch.func cannot run this model, which looks at values, writes in "
                    "place or has a backward of its own; use method='auto' or 'loop' "
                    f"({str(error).splitlines()[0][:120]})"
                ) from error
            continue  # vmap cannot run every model
        if found is Finding.SAME or name != "book-keeping":
            if why:
                tell(batch.model, name, why)
            return name
        if not free or (settled and found is Finding.OTHER_SUM):
            raise _not_exact(found.value)
        why = found.value
    tell(batch.model, "functional", why)
    return "functional"


def _enlarged(
    method: str, path: str, batch: Batch, size: int, look: Callable[..., str]
) -> tuple[str, int]:
    """Look at a larger batch, of this one's records, and return the path and the size looked at.

    It has as many records as one of `size` may have run together, where that is more than in this
    one. A model that cannot run it is looked at again when a batch is larger. Where the caller
    insists on a path that takes records one at a time, the size of the batch is of no account.
    """
    size = enlarged(size)
    if method in ("functional", "loop"):
        return path, size
    most = min(size, most_together(batch))
    if most <= max(len(part) for part in parts_of(batch)):
        return path, size
    index = torch.arange(most, device=batch.clip_norms.device) % len(batch)
    try:
        return look(path, batch.at(index), closely=False), size
    except (InputError, StateError):
        raise
    except Exception:  # whatever a model raises that has room for no more
        return path, len(batch)


def _not_exact(reason: str) -> UnsupportedError:
    return UnsupportedError(
        f"method: book-keeping does not give this model's gradients ({reason}); use "
        "method='functional', or 'auto'"
    )
