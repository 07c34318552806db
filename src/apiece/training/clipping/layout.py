"""Layouts: where the records of a batch are in a tensor, and what a sum over them has become.

A tensor of a captured graph is `SHARED` (made of parameters and constants alone, and so the same
whoever is in the batch), `Records` (along one axis, row i made of record i and of what is shared)
or `SUMMED` (a sum over records of what each of them gives alone, and linear in each of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias


class Unproved(Exception):  # noqa: N818
    """An operator is not known to keep records apart; the text says what it does."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The same for every record, and not as long as the batch in any direction."""


@dataclass(frozen=True, slots=True)
class Summed:
    """A sum over records: Σ_i f(record i, what is shared), and nothing else."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records along `axis`, of size outer·B·inner: place (o·B + i)·inner + j is record i's."""

    axis: int
    outer: int = 1
    inner: int = 1

    @property
    def rows(self) -> int:
        """How many places along the axis each record has."""
        return self.outer * self.inner


@dataclass(frozen=True, slots=True)
class Places:
    """The numbers 0, step … (B − 1)·step along an axis: to pick from each record its own."""

    axis: int
    step: int = 1


Layout: TypeAlias = Shared | Summed | Records | Places
SHARED, SUMMED = Shared(), Summed()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Which sizes of a captured graph are multiples of the number of records.

    Args:
        batch: The number of records in the capture: a prime, of which no other size or number of
            the graph is a multiple.
    """

    batch: int

    def depends(self, size: Any) -> bool:
        """Whether a size (or a number) is another one for another number of records."""
        return type(size) is int and size != 0 and size % self.batch == 0

    def factor(self, size: int) -> int:
        """Return size/B of a size that depends on the batch.

        Raises `Unproved` where the size is no multiple of the batch's alone.
        """
        found = size // self.batch
        if not self.depends(size) or self.depends(found):
            raise Unproved("a size is not a multiple of the number of records")
        return found

    def check(self, layout: Layout, shape: tuple[Any, ...]) -> None:
        """Raise `Unproved` unless a tensor of this shape can have this layout."""
        axes = [k for k, size in enumerate(shape) if self.depends(size)]
        match layout:
            case Records(axis, outer, inner):
                if axes != [axis]:
                    raise Unproved(f"records along axis {axis} of a tensor of shape {shape}")
                if self.factor(shape[axis]) != outer * inner:
                    raise Unproved(f"{outer}·B·{inner} records along an axis of {shape[axis]}")
            case Places(axis, _):
                if axes != [axis]:
                    raise Unproved(f"places along axis {axis} of a tensor of shape {shape}")
                if self.factor(shape[axis]) != 1:
                    raise Unproved(f"{shape[axis]} places, which are not as many as the records")
            case _:
                if axes:
                    raise Unproved(f"shape {shape} changes with the number of records")


def divide(size: int, by: int) -> int | None:
    """Return size/by where that is whole, else None."""
    return size // by if by and size % by == 0 else None


def viewed(layout: Records, old: tuple[Any, ...], new: tuple[Any, ...], sizes: Sizes) -> Records:
    """Return where the records are after the entries, in their order, take another shape.

    As many entries come before the first step from one record to the next, and as many within it,
    as before; a new axis must hold the whole of that step.
    """
    before = math.prod(old[: layout.axis]) * layout.outer
    at = 1
    for axis, size in enumerate(new):
        if sizes.depends(size):
            outer = divide(before, at)
            if outer is None:
                break
            inner = divide(sizes.factor(size), outer)
            if inner is None:
                break
            return Records(axis, outer, inner)
        at *= size
    raise Unproved(f"a view of shape {tuple(old)} as {tuple(new)} tears records apart")
