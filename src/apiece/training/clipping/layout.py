"""Layouts: where the records of a batch are in a tensor, and what a sum over them has become.

A tensor of a captured graph is `SHARED` (made of parameters and constants alone, and so the same
whoever is in the batch), `Records` (along one axis, row i made of record i and of what is shared)
or `SUMMED` (a sum over records of what each of them gives alone, and linear in each of them).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch


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
    """Records along `axis`, of size outer·B·inner: place (o·B + i)·inner + j is record i's.

    outer and inner are integers, or sympy's expressions of other sizes than the batch's.
    """

    axis: int
    outer: Any = 1
    inner: Any = 1

    @property
    def rows(self) -> Any:
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
    """Sizes of tensors as multiples of the batch's size, which is a symbol.

    Args:
        batch: The symbol of the number of records.
    """

    batch: sympy.Symbol

    def depends(self, size: Any) -> bool:
        """Whether a size (or a number) is another one for another number of records."""
        if isinstance(size, torch.SymInt | torch.SymFloat | torch.SymBool):
            return bool(size.node.expr.has(self.batch))
        return isinstance(size, sympy.Basic) and size.has(self.batch)

    def factor(self, size: Any) -> Any:
        """Return size/B of a size that depends on the batch.

        Raises `Unproved` where the size is no multiple of the batch's.
        """
        found = divide(expression(size), self.batch)
        if found is None or (isinstance(found, sympy.Basic) and found.has(self.batch)):
            raise Unproved(f"a size of {size} is not a multiple of the batch's")
        return found

    def check(self, layout: Layout, shape: tuple[Any, ...]) -> None:
        """Raise `Unproved` unless a tensor of this shape can have this layout."""
        axes = [k for k, size in enumerate(shape) if self.depends(size)]
        match layout:
            case Records(axis, outer, inner):
                if axes != [axis]:
                    raise Unproved(f"records along axis {axis} of a tensor of shape {shape}")
                if not same(self.factor(shape[axis]), outer * inner):
                    raise Unproved(f"{outer}·B·{inner} records along an axis of {shape[axis]}")
            case Places(axis, _):
                if axes != [axis]:
                    raise Unproved(f"places along axis {axis} of a tensor of shape {shape}")
                if not same(self.factor(shape[axis]), 1):
                    raise Unproved(f"{shape[axis]} places, which are not as many as the records")
            case _:
                if axes:
                    raise Unproved(f"shape {shape} changes with the number of records")


def expression(size: Any) -> Any:
    """Return a size as an integer or sympy's expression."""
    if isinstance(size, torch.SymInt):
        found = size.node.expr
        return int(found) if found.is_Integer else found
    return size


def same(one: Any, other: Any) -> bool:
    """Whether two sizes are equal for every value of their symbols."""
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    return bool(sympy.simplify(expression(one) - expression(other)) == 0)


def divide(size: Any, by: Any) -> Any | None:
    """Return size/by where that is whole for every value of the symbols, else None."""
    size, by = expression(size), expression(by)
    if isinstance(size, int) and isinstance(by, int):
        return size // by if by and size % by == 0 else None
    whole = sympy.Integer(size) if isinstance(size, int) else size
    found = sympy.cancel(whole / by)
    if sympy.fraction(found)[1] != 1:
        return None
    return int(found) if found.is_Integer else found


def product(sizes: Any) -> Any:
    """Return the product of sizes, an integer or an expression."""
    return math.prod(expression(size) for size in sizes)


def viewed(layout: Records, old: tuple[Any, ...], new: tuple[Any, ...], sizes: Sizes) -> Records:
    """Return where the records are after the entries, in their order, take another shape.

    As many entries come before the first step from one record to the next, and as many within it,
    as before; a new axis must hold the whole of that step.
    """
    before = product(old[: layout.axis]) * layout.outer
    at: Any = 1
    for axis, size in enumerate(new):
        if sizes.depends(size):
            outer = divide(before, at)
            if outer is None:
                break
            inner = divide(sizes.factor(size), outer)
            if inner is None:
                break
            return Records(axis, outer, inner)
        at = at * expression(size)
    raise Unproved(f"a view of shape {tuple(old)} as {tuple(new)} tears records apart")
