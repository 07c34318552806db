"""Contributions: what one use of a parameter gives each record, in the form that costs least.

A layer hands over activations and output gradients; a contribution knows the cheapest way from
there to squared norms (B,) and to Σ weight·gradient, and the per-record gradients where nothing
cheaper will do (book-keeping: Bu, Wang, Zha, Karypis 2022, arXiv 2210.00038; ghost norms: Li et
al. 2022, arXiv 2110.05679).
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Self

import torch

from apiece.errors import UnsupportedError

Squares = Callable[..., torch.Tensor]  # of the rows of a tensor
_BLOCK = 128  # values added one after the other in single precision
KEEP = 1 << 24  # entries of a layer's per-record gradients that are kept rather than made again
TOTAL = 1 << 26  # entries of per-record gradients kept over a step: 256 MiB in single precision
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)
_CELLS = 1 << 22  # entries of a temporary at a time on a processor
_ON_GPU = 1 << 27  # and elsewhere, where pieces are to be few: 512 MiB in single precision
_IN_CACHE = 1 << 22  # entries of per-record gradients that stay in a processor's caches


def flattened(rows: torch.Tensor) -> torch.Tensor:
    """Return (B, ...) as (B, I); a number a row is a row of one."""
    if rows.dim() == 2:
        return rows
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def row_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared norms (B,) of the rows of (B, ...), to a few units of precision.

    `vector_norm` adds along a row in as many running sums as the processor has lanes, and loses
    hundreds of units of precision over a long row, more than the room under a bound; so do compiled
    sums. So blocks of a row come first, and blocks of those.
    """
    norm: Squares = torch.linalg.vector_norm
    flat = flattened(rows)
    width = flat.shape[1]
    if width <= 2 * _BLOCK:
        return norm(flat, dim=1).square_()
    whole = width - width % _BLOCK
    total = _sums(norm(flat[:, :whole].view(len(flat), -1, _BLOCK), dim=2).square_())
    if whole < width:
        total += norm(flat[:, whole:], dim=1).square_()
    return total


def _sums(blocks: torch.Tensor) -> torch.Tensor:
    """Return the sums (B,) of rows (B, N), blocks of them first."""
    while (width := blocks.shape[1]) > 2 * _BLOCK:
        whole = width - width % _BLOCK
        some = blocks[:, :whole].view(len(blocks), -1, _BLOCK).sum(2)
        blocks = torch.cat([some, blocks[:, whole:]], 1) if whole < width else some
    return blocks.sum(1)


def remembering(function: Squares) -> Squares:
    """Return `function` for one step, which computes the same tensor's result once."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(rows: torch.Tensor) -> torch.Tensor:
        if id(rows) not in known:
            known[id(rows)] = rows, function(rows)
        return known[id(rows)][1]

    return of


class Contribution:
    """Per-record gradients of one parameter, held in the form in which they are cheapest.

    Its shape is part of what it is: a gradient in another order of axes is another gradient.
    """

    __slots__ = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of records B, then the shape of each record's gradient."""
        raise NotImplementedError

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return (B,) squared norms, never below the true ones but for ordinary round-off.

        `of_rows` gives the squared norms of a tensor's rows, perhaps from memory.
        """
        return of_rows(self.per_record())

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_i weights[i]·gradient_i, of the parameter's shape; weights: (B,)."""
        rows = self.per_record()
        return (weights @ flattened(rows)).view(rows.shape[1:])

    def per_record(self) -> torch.Tensor:
        """Return the gradients one by one, (B, *shape)."""
        raise NotImplementedError

    def without(self, bad: torch.Tensor) -> Self:
        """Return this with the records at `bad` (B,) set to zero."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        blank = {  # by selection: 0·NaN would be no zero
            name: tensor.masked_fill(bad.view(-1, *([1] * (tensor.dim() - 1))), 0)
            for name, tensor in held.items()
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
        }
        return replace(self, **blank)  # type: ignore[type-var]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Rows(Contribution):
    """Per-record gradients as they are, (B, *shape)."""

    gradients: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, *shape)."""
        return tuple(self.gradients.shape)

    def per_record(self) -> torch.Tensor:
        """Return the gradients."""
        return self.gradients


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Outer(Contribution):
    """Gradients left_i ⊗ right_i; left: (B, O), right: (B, I)."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, O, I)."""
        return (*self.left.shape, self.right.shape[1])

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return (‖left‖·‖right‖)², with room for what underflow took from either."""
        return outer_squares([self], of_rows)

    def sizes(self) -> torch.Tensor:
        """Return ‖left‖‖right‖, (B,), with room for what underflow took from products of two."""
        left, right = self.left.unsqueeze(1), self.right.unsqueeze(1)
        return term_sizes(left, right, underflow_room(left.dtype))

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return one matrix product, the same as plain back-propagation makes."""
        return (self.left * weights.unsqueeze(1)).t() @ self.right

    def per_record(self) -> torch.Tensor:
        """Return the outer products."""
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)


def outer_squares(parts: Sequence[Outer], of_rows: Squares = row_squares) -> torch.Tensor:
    """Return the squared norms of several contributions, added up: few operators for all."""
    tensors = [part.left for part in parts] + [part.right for part in parts]
    squares = torch.stack([of_rows(tensor) for tensor in tensors])
    norms = squares.sqrt_().add_(max(map(_lost, tensors)))
    return norms[: len(parts)].mul_(norms[len(parts) :]).square_().sum(0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Products(Contribution):
    """Gradients left_i ᵀ right_i summed over positions; left: (B, T, O), right: (B, T, I)."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, O, I)."""
        return (self.left.shape[0], self.left.shape[2], self.right.shape[2])

    @property
    def ghost_is_cheaper(self) -> bool:
        """Return whether Gram matrices over positions cost less than the gradients themselves."""
        positions, out, into = (*self.left.shape[1:], self.right.shape[2])
        return positions * (out + into) <= out * into

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return the squared norms by whichever of the two forms costs less."""
        if self.ghost_is_cheaper:  # Σ_{s,t} (left_s·left_t)(right_s·right_t)
            return in_parts(
                lambda left, right: gram_sum(
                    left @ left.mT, right @ right.mT, left.shape[2], right.shape[2]
                ),
                self.left,
                self.right,
                self.left.shape[1] ** 2,
            )

        def made_again(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            # The sum makes the gradients once more. Two products of the same tensors differ by a
            # few units of precision of Σ_t ‖left_t‖‖right_t‖, which is more than a unit of their
            # norm where positions cancel.
            unit = 2.0**-50 if left.dtype == torch.float64 else 2.0**-21
            norms = row_squares(left.mT @ right).sqrt_()
            return norms.add_(term_sizes(left, right).mul_(unit)).square_()

        cells = self.left.shape[2] * self.right.shape[2]
        return in_parts(made_again, self.left, self.right, cells)

    def sizes(self) -> torch.Tensor:
        """Return Σ_t ‖left_t‖‖right_t‖, (B,), of which round-off is a few units of precision."""
        return term_sizes(self.left, self.right)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return one matrix product over records and positions."""
        left, right = self.left, self.right
        if left.shape[2] > right.shape[2]:  # the narrower one takes the weights
            right = right * weights.view(-1, 1, 1)
        else:
            left = left * weights.view(-1, 1, 1)
        return left.flatten(0, 1).t() @ right.flatten(0, 1)

    def per_record(self) -> torch.Tensor:
        """Return the products."""
        return self.left.mT @ self.right


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lookups(Contribution):
    """Gradients of a table of `size` rows: row index[i, t] gets left[i, t]; left: (B, T, D)."""

    index: torch.Tensor
    left: torch.Tensor
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, size, D)."""
        return (self.left.shape[0], self.size, self.left.shape[2])

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return Σ_{s,t: same row} left_s·left_t."""

        def ghost(left: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            same, gram = index.unsqueeze(1) == index.unsqueeze(2), left @ left.mT
            return gram_sum(gram, same.to(gram.dtype), left.shape[2], 1)

        return in_parts(ghost, self.left, self.index, self.index.shape[1] ** 2)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the scaled rows, scattered."""
        rows = (self.left * weights.view(-1, 1, 1)).flatten(0, 1)
        return rows.new_zeros(self.size, rows.shape[1]).index_add_(0, self.index.flatten(), rows)

    def per_record(self) -> torch.Tensor:
        """Return (B, size, D)."""
        batch, _, width = self.left.shape
        table = self.left.new_zeros(batch, self.size, width)
        where = self.index.unsqueeze(2).expand(-1, -1, width)
        return table.scatter_add_(1, where, self.left)


def check_shape(part: Contribution, shape: tuple[int, ...], source: str) -> None:
    """Raise `UnsupportedError` unless a contribution has this shape, (B, *shape of a gradient).

    source: what it was made of, for the message.
    """
    if part.shape != shape:
        raise UnsupportedError(
            f"{source}: each record's gradient has shape {part.shape[1:]}, of {part.shape[0]} "
            f"records, where {shape[1:]}, of {shape[0]}, is expected; use method='alone'"
        )


# ---------------------------------------------------------------- the cheapest form


def products(left: torch.Tensor, right: torch.Tensor) -> Contribution:
    """Return the cheapest form of gradients left_i ᵀ right_i; left: (B, T, O), right: (B, T, I).

    Where the gradients must be made for their norms and fit in memory they are kept, so that the
    sum needs no second product. On a processor they are where they fit in its cache, too: a batch
    of small products is then quicker than Gram matrices and one long product, up to where those
    multiply two fifths as much.
    """
    result = Products(left, right)
    batch, positions, out, into = (*left.shape, right.shape[2])
    cells = batch * out * into
    in_cache = left.device.type == "cpu" and cells <= _IN_CACHE
    ghost = 5 * positions * (out + into) <= 2 * out * into if in_cache else result.ghost_is_cheaper
    return result if ghost or not may_keep(cells, KEEP) else Rows(result.per_record())


def lookups(index: torch.Tensor, left: torch.Tensor, size: int) -> Contribution:
    """Return the cheapest form of gradients of a table of `size` rows, as `Lookups` takes them.

    A small table that is looked up often (relative positions) is made for each record.
    """
    result, table = Lookups(index, left, size), size * left.shape[2]
    small = table <= index.shape[1] ** 2 // 4 and may_keep(len(left) * table, KEEP)
    return Rows(result.per_record()) if small else result


def join(parts: list[Contribution]) -> Contribution:
    """Return the contribution of a parameter used several times, cross terms included.

    Raises `UnsupportedError` for parts of several shapes, whose sum would broadcast.
    """
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        check_shape(part, parts[0].shape, "a parameter that is used several times")
    pairs = [
        (part.left.unsqueeze(1), part.right.unsqueeze(1))
        if isinstance(part, Outer)
        else (part.left, part.right)
        for part in parts
        if isinstance(part, Outer | Products)
    ]
    if len(pairs) == len(parts):
        lefts, rights = zip(*pairs, strict=True)
        return Products(torch.cat(lefts, 1), torch.cat(rights, 1))
    total = parts[0].per_record().clone()
    for part in parts[1:]:
        total += part.per_record()
    return Rows(total)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Let no more than `TOTAL` entries be kept meanwhile, however many layers there are."""
    token = _left.set([TOTAL])
    try:
        yield
    finally:
        _left.reset(token)


def may_keep(cells: int, most: int) -> bool:
    """Return whether a layer may keep so many entries, of at most `most`; they are then counted."""
    left = _left.get()
    if cells > most or (left is not None and cells > left[0]):
        return False
    if left is not None:
        left[0] -= cells
    return True


def at_a_time(tensor: torch.Tensor, on_cpu: int) -> int:
    """Return how many entries of a temporary are made at a time where `tensor` is."""
    return on_cpu if tensor.device.type == "cpu" else _ON_GPU


def in_parts(
    squares: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    left: torch.Tensor,
    right: torch.Tensor,
    cells: int,
) -> torch.Tensor:
    """Return `squares` over slices of records, so that temporaries stay small."""
    width = max(1, at_a_time(left, _CELLS) // max(cells, 1))
    if width >= left.shape[0]:
        return squares(left, right)
    pairs = zip(left.split(width), right.split(width), strict=True)  # type: ignore[no-untyped-call]
    return torch.cat([squares(a, b) for a, b in pairs])


# ---------------------------------------------------------------- room for round-off


def gram_sum(left: torch.Tensor, right: torch.Tensor, *widths: int) -> torch.Tensor:
    """Return Σ_{s,t} left_st·right_st and a bound on its round-off, (B,); overwrites `left`.

    left, right: (B, T, T) Gram matrices, of which the first has positions of widths[0] values.

    The terms may cancel. They are at most ‖left_s‖‖left_t‖‖right_s‖‖right_t‖, so that their sum is
    at most (Σ_t ‖left_t‖‖right_t‖)², with norms from the diagonals; the round-off is a few units of
    precision of that. Of the norms' room for underflow, a unit must cover what products of two
    entries lose.
    """
    lost = [underflow_room(left.dtype) * least_norm(width, left.dtype) for width in widths]
    diagonals = (gram.diagonal(dim1=1, dim2=2).sqrt() for gram in (left, right))
    one, other = (norms.add_(room) for norms, room in zip(diagonals, lost, strict=True))
    room = cancellation_of(one.mul_(other).sum(1), left.dtype)
    return left.mul_(right).flatten(1).sum(1).add_(room)


def cancellation_of(sizes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a bound on the round-off of such a sum from Σ_t ‖left_t‖‖right_t‖, overwritten."""
    return sizes.square_().mul_(_unit(dtype))


def underflow_room(dtype: torch.dtype) -> float:
    """Return how many times what a norm may lack a product of two may, for `cancellation_of`."""
    return 1 / math.sqrt(_unit(dtype))


def _unit(dtype: torch.dtype) -> float:
    return 2.0**-48 if dtype == torch.float64 else 2.0**-20


def term_sizes(left: torch.Tensor, right: torch.Tensor, room: float = 1.0) -> torch.Tensor:
    """Return Σ_t ‖left_t‖‖right_t‖, (B,), with `room` times what underflow can take added."""
    norm: Squares = torch.linalg.vector_norm
    one, other = (norm(t, dim=2).add_(room * _lost(t)) for t in (left, right))
    size: torch.Tensor = one.mul_(other).sum(1)
    return size


def _lost(rows: torch.Tensor) -> float:
    return least_norm(rows.shape[-1], rows.dtype)


@functools.cache
def least_norm(width: int, dtype: torch.dtype) -> float:
    """Return more than what underflow can take from the norm of `width` values.

    A square below 2⁻¹²⁶ (2⁻¹⁰²² in double precision) may be lost, so that √width·2⁻⁶³ may be.
    """
    return math.sqrt(width) * (2.0**-510 if dtype == torch.float64 else 2.0**-62)
