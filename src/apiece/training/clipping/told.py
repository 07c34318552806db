"""Which way each part of a model is clipped, and why: nothing slower is taken in silence."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from typing import Literal

from torch import nn

from apiece.errors import SlowPathWarning
from apiece.training.clipping.paths.tape import Unit, free_of, units_of

Path = Literal["book-keeping", "functional", "loop"]
_reasons: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class PartPath:
    """How one part of a model is clipped.

    Attributes:
        name: The part's name in the model; "" for the whole model.
        kind: Its class, or "parameter".
        path: "book-keeping" (one forward and one backward for all), "functional" (torch.func runs
            the part again, all records at once) or "loop" (the model runs a record at a time).
        why: The reason, in words.

    Example:
        >>> PartPath("0", "Linear", "book-keeping", "rule for Linear").path
        'book-keeping'
    """

    name: str
    kind: str
    path: str
    why: str


def parts(model: nn.Module, path: str | None) -> tuple[PartPath, ...]:
    """Return how each part of a model is clipped that takes `path`; none before that is known."""
    if path is None:
        return ()
    if path != "book-keeping":
        why = _reasons.get(model, "asked for by method")
        return (PartPath("", type(model).__name__, path, why),)
    layers = [_part(unit) for unit in units_of(model)]
    followed = "followed to where it meets the records"
    free = [PartPath(name, "parameter", path, followed) for name in free_of(model)]
    return (*free, *layers)


def _part(unit: Unit) -> PartPath:
    kind = type(unit.module).__name__
    if unit.rule is not None:
        return PartPath(unit.path, kind, "book-keeping", f"rule for {kind}")
    why = f"no rule for {kind}; this part alone runs again, record by record in one call"
    return PartPath(unit.path, kind, "functional", why)


def tell(model: nn.Module, path: str, reason: str) -> None:
    """Warn, once for each model, that a batch is not book-kept, and why.

    Args:
        model: Whose batch it is.
        path: The one that is taken.
        reason: What keeps it from book-keeping.
    """
    if model in _reasons:
        return
    _reasons[model] = reason
    warnings.warn(
        f"model: {type(model).__name__} is clipped by {path}, exactly but often several times "
        f"slower than by book-keeping ({reason}); give every layer its records first, in their "
        f"order, or say method={path!r} to take this path unwarned",
        SlowPathWarning,
        stacklevel=2,
    )
