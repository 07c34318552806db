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

# From the rows of a tensor (B, ...) to their squared norms (B,).
Squares = Callable[..., torch.Tensor]
# Values that are added one after the other in single precision: round-off grows with their number.
_BLOCK = 128
# Entries of a layer's per-record gradients that are kept rather than made again.
KEEP = 1 << 24
# Entries of per-record gradients kept over a step: 256 MiB in single precision.
TOTAL = 1 << 26
# Entries of a temporary at a time on a processor.
_CELLS = 1 << 22
# Those elsewhere, where pieces are to be few: 512 MiB in single precision.
_CELLS_ON_GPU = 1 << 27
# Entries of per-record gradients that stay in a processor's caches.
_IN_CACHE = 1 << 22
# How many entries may still be kept in this step, in a list of one that all layers count down;
# None outside of a step.
_allowance: ContextVar[list[int] | None] = ContextVar("_allowance", default=None)


def flatten_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return (B, ...) as (B, I); a number a row is a row of one."""
    if rows.dim() == 2:
        return rows
    if rows.dim() == 1:
        return rows.unsqueeze(1)
    return rows.flatten(1)


def row_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared norms (B,) of the rows of (B, ...), to a few units of precision.

    `vector_norm` adds along a row in as many running sums as the processor has lanes, and loses
    hundreds of units of precision over a long row, more than the room under a bound; so do compiled
    sums. So blocks of a row come first, and blocks of those.
    """
    norm: Squares = torch.linalg.vector_norm
    flat = flatten_rows(rows)
    # The squares of blocks' norms are added blockwise: the chain of additions is `_BLOCK` long, and
    # then grows with the logarithm of the width.
    width = flat.shape[1]
    if width <= 2 * _BLOCK:
        return norm(flat, dim=1).square_()
    in_blocks = width - width % _BLOCK
    total = _sum_blockwise(norm(_blocks(flat, in_blocks), dim=2).square_())
    if in_blocks < width:  # what fills no block
        total += norm(flat[:, in_blocks:], dim=1).square_()
    return total


def _blocks(rows: torch.Tensor, width: int) -> torch.Tensor:
    """Return the first `width` values of rows (B, N) as (B, blocks, `_BLOCK`)."""
    return rows[:, :width].view(len(rows), -1, _BLOCK)


def _sum_blockwise(rows: torch.Tensor) -> torch.Tensor:
    """Return the sums (B,) of rows (B, N), blocks of them first: round-off grows as log N."""
    # Up to two blocks one sum is as exact, and another round would cost an operator.
    while (width := rows.shape[1]) > 2 * _BLOCK:
        in_blocks = width - width % _BLOCK
        sums = _blocks(rows, in_blocks).sum(2)
        if in_blocks < width:  # a remainder that fills no block goes on as it is
            sums = torch.cat([sums, rows[:, in_blocks:]], 1)
        rows = sums
    return rows.sum(1)


def remember_results(function: Squares) -> Squares:
    """Return `function` for one step, which computes the same tensor's result once."""
    # Each result stands with its tensor, which stays alive: an id is not used for another one.
    results: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def look_up(rows: torch.Tensor) -> torch.Tensor:
        if id(rows) not in results:
            results[id(rows)] = rows, function(rows)
        _, result = results[id(rows)]
        return result

    return look_up


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

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_i weights[i]·gradient_i, of the parameter's shape; weights: (B,)."""
        # a row of weights times (B, I): one product, in which the records are added up
        rows = self.per_record()
        return (weights @ flatten_rows(rows)).view(rows.shape[1:])

    def per_record(self) -> torch.Tensor:
        """Return the gradients one by one, (B, *shape)."""
        raise NotImplementedError

    def widened(self) -> Contribution:
        """Return the same in single precision or wider, to be joined with others."""
        return self

    def without(self, bad: torch.Tensor) -> Self:
        """Return this with the records at `bad` (B,) set to zero."""
        # Every form keeps its values in fields of floating point: where a record's are zero, its
        # gradient is.
        blank: dict[str, torch.Tensor] = {}
        for field in fields(self):  # type: ignore[arg-type]
            tensor = getattr(self, field.name)
            # indices stay: nothing comes of a row that is zero, wherever it goes
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                # a fill, and no product: 0·NaN would be no zero
                mask = _along_records(bad, tensor)
                blank[field.name] = tensor.masked_fill(mask, 0)
        return replace(self, **blank)  # type: ignore[type-var]


def _along_records(values: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return values (B,) as (B, 1, …), to be broadcast over what each record has in a tensor."""
    ones = [1] * (tensor.dim() - 1)
    return values.view(-1, *ones)


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
        # Room for products of two: an underflow in one factor is multiplied by the other's size.
        room = underflow_room(self.left.dtype)
        return term_sizes(self.left.unsqueeze(1), self.right.unsqueeze(1), room)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return one matrix product, the same as plain back-propagation makes."""
        scaled = self.left * weights.unsqueeze(1)
        return scaled.t() @ self.right

    def per_record(self) -> torch.Tensor:
        """Return the outer products."""
        return self.left.unsqueeze(2) * self.right.unsqueeze(1)


def outer_squares(parts: Sequence[Outer], of_rows: Squares = row_squares) -> torch.Tensor:
    """Return the squared norms of several contributions, added up: few operators for all."""
    tensors = [part.left for part in parts] + [part.right for part in parts]
    # (2·parts, B): norms of all lefts, then of all rights.
    squares = torch.stack([of_rows(tensor) for tensor in tensors])
    # ‖left ⊗ right‖ = ‖left‖·‖right‖. What underflow took from either is added before the product,
    # where the other one may make it large.
    norms = squares.sqrt_().add_(max(map(_underflow, tensors)))
    lefts = norms[: len(parts)]
    rights = norms[len(parts) :]
    return lefts.mul_(rights).square_().sum(0)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Products(Contribution):
    """Gradients left_i ᵀ right_i summed over positions; left: (B, T, O), right: (B, T, I)."""

    left: torch.Tensor
    right: torch.Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """(B, O, I)."""
        batch, _, out = self.left.shape
        into = self.right.shape[2]
        return (batch, out, into)

    @property
    def ghost_is_cheaper(self) -> bool:
        """Return whether Gram matrices over positions cost less than the gradients themselves."""
        _, positions, out = self.left.shape
        into = self.right.shape[2]
        # T²·(O + I) multiplications for both Gram matrices, T·O·I for the gradients
        return positions * (out + into) <= out * into

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return the squared norms by whichever of the two forms costs less."""
        _, positions, out = self.left.shape
        into = self.right.shape[2]
        # Temporaries are what decides how many records go at a time: (T, T) of Grams, or (O, I) of
        # gradients.
        if self.ghost_is_cheaper:
            return in_parts(self._squares_by_grams, self.left, self.right, positions**2)
        return in_parts(self._squares_by_gradients, self.left, self.right, out * into)

    @staticmethod
    def _squares_by_grams(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return Σ_{s,t} (left_s·left_t)(right_s·right_t), which is ‖Σ_t left_t ⊗ right_t‖²."""
        left_gram = left @ left.mT
        right_gram = right @ right.mT
        return gram_sum(left_gram, right_gram, left.shape[2], right.shape[2])

    @staticmethod
    def _squares_by_gradients(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Return the squared norms of gradients that the weighted sum will make once more.

        Two products of the same tensors differ by a few units of precision of
        Σ_t ‖left_t‖‖right_t‖, which is more than a unit of their norm where positions cancel.
        """
        # 2⁻²¹ is four units of single precision (2⁻²³), 2⁻⁵⁰ likewise of double
        few_units = 2.0**-50 if left.dtype == torch.float64 else 2.0**-21
        norms = row_squares(left.mT @ right).sqrt_()
        round_off = term_sizes(left, right).mul_(few_units)
        return norms.add_(round_off).square_()

    def sizes(self) -> torch.Tensor:
        """Return Σ_t ‖left_t‖‖right_t‖, (B,), of which round-off is a few units of precision."""
        return term_sizes(self.left, self.right)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return one matrix product over records and positions."""
        left = self.left
        right = self.right
        # Either factor may carry the weight of its record, since the product is linear in both.
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
        batch, _, width = self.left.shape
        return (batch, self.size, width)

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return Σ_{s,t: same row} left_s·left_t."""

        def squares_by_grams(left: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
            gram = left @ left.mT
            # (B, T, T): whether two positions look the same row up, and so add to the same
            # gradient.
            is_same_row = index.unsqueeze(1) == index.unsqueeze(2)
            return gram_sum(gram, is_same_row.to(gram.dtype), left.shape[2], 1)

        return in_parts(squares_by_grams, self.left, self.index, self.index.shape[1] ** 2)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return the scaled rows, scattered."""
        # Two positions that look the same row up add up, which `index_add_` does.
        rows = (self.left * weights.view(-1, 1, 1)).flatten(0, 1)
        table = rows.new_zeros(self.size, rows.shape[1])
        return table.index_add_(0, self.index.flatten(), rows)

    def per_record(self) -> torch.Tensor:
        """Return (B, size, D)."""
        batch, _, width = self.left.shape
        # each position's row of D values goes to one row of its record's table
        table = self.left.new_zeros(batch, self.size, width)
        index = self.index.unsqueeze(2).expand(-1, -1, width)
        return table.scatter_add_(1, index, self.left)


def check_shape(part: Contribution, shape: tuple[int, ...], source: str) -> None:
    """Raise `UnsupportedError` unless a contribution has this shape, (B, *shape of a gradient).

    source: what it was made of, for the message.
    """
    if part.shape != shape:
        records, *of_record = part.shape
        expected_records, *expected = shape
        raise UnsupportedError(
            f"{source}: each record's gradient has shape {tuple(of_record)}, of {records} records, "
            f"where {tuple(expected)}, of {expected_records}, is expected; use method='alone'"
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
    batch, positions, out = left.shape
    into = right.shape[2]
    cells = batch * out * into
    uses_grams = result.ghost_is_cheaper
    if left.device.type == "cpu" and cells <= _IN_CACHE:
        uses_grams = 5 * positions * (out + into) <= 2 * out * into
    # Per-record gradients are made for the norms anyway: kept, they spare the sum a product.
    # the allowance is asked last: what it grants is counted
    if uses_grams or not may_keep(cells, KEEP):
        return result
    return Rows(result.per_record())


def lookups(index: torch.Tensor, left: torch.Tensor, size: int) -> Contribution:
    """Return the cheapest form of gradients of a table of `size` rows, as `Lookups` takes them.

    A small table that is looked up often (relative positions) is made for each record.
    """
    result = Lookups(index, left, size)
    table_entries = size * left.shape[2]
    lookups_of_record = index.shape[1]
    # against Gram matrices, which have one entry for each pair of lookups
    is_small = table_entries <= lookups_of_record**2 // 4
    if is_small and may_keep(len(left) * table_entries, KEEP):
        return Rows(result.per_record())
    return result


def join(parts: list[Contribution]) -> Contribution:
    """Return the contribution of a parameter used several times, cross terms included.

    Raises `UnsupportedError` for parts of several shapes, whose sum would broadcast.
    """
    if len(parts) == 1:
        return parts[0]
    for part in parts[1:]:
        check_shape(part, parts[0].shape, "a parameter that is used several times")
    parts = [part.widened() for part in parts]
    # A use with one position and a use with several are positions of one product: the norm of
    # their sum has the products between them in it.
    lefts: list[torch.Tensor] = []
    rights: list[torch.Tensor] = []
    for part in parts:
        match part:
            case Outer(left, right):
                lefts.append(left.unsqueeze(1))
                rights.append(right.unsqueeze(1))
            case Products(left, right):
                lefts.append(left)
                rights.append(right)
    if len(lefts) == len(parts):
        return Products(torch.cat(lefts, 1), torch.cat(rights, 1))
    # Other forms have no common one. A copy, since a contribution may give its own tensor.
    total = parts[0].per_record().clone()
    for part in parts[1:]:
        total += part.per_record()
    return Rows(total)


@contextlib.contextmanager
def limit_kept_gradients() -> Iterator[None]:
    """Let no more than `TOTAL` entries be kept meanwhile, however many layers there are."""
    token = _allowance.set([TOTAL])
    try:
        yield
    finally:
        _allowance.reset(token)


def may_keep(cells: int, limit: int) -> bool:
    """Return whether a layer may keep so many entries, at most `limit`; they are then counted."""
    if cells > limit:
        return False
    allowance = _allowance.get()
    # Who asks first has it: the order of the layers is that of the graph, the same in each step.
    if allowance is not None:
        if cells > allowance[0]:
            return False
        allowance[0] -= cells
    return True


def cells_at_a_time(tensor: torch.Tensor, on_cpu: int) -> int:
    """Return how many entries of a temporary are made at a time where `tensor` is."""
    return on_cpu if tensor.device.type == "cpu" else _CELLS_ON_GPU


def in_parts(
    squares: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    left: torch.Tensor,
    right: torch.Tensor,
    cells: int,
) -> torch.Tensor:
    """Return `squares` over slices of records, so that temporaries stay small.

    cells: entries of the temporary that one record needs.
    """
    # At least one record at a time, even where it is larger than the room.
    width = max(1, cells_at_a_time(left, _CELLS) // max(cells, 1))
    if width >= left.shape[0]:
        return squares(left, right)
    lefts = left.split(width)  # type: ignore[no-untyped-call]
    rights = right.split(width)  # type: ignore[no-untyped-call]
    return torch.cat([squares(a, b) for a, b in zip(lefts, rights, strict=True)])


# ---------------------------------------------------------------- room for round-off


def gram_sum(left: torch.Tensor, right: torch.Tensor, *widths: int) -> torch.Tensor:
    """Return Σ_{s,t} left_st·right_st and a bound on its round-off, (B,); overwrites `left`.

    left, right: (B, T, T) Gram matrices, of which the first has positions of widths[0] values.

    The terms may cancel. They are at most ‖left_s‖‖left_t‖‖right_s‖‖right_t‖, so that their sum is
    at most (Σ_t ‖left_t‖‖right_t‖)², with norms from the diagonals; the round-off is a few units of
    precision of that. Of the norms' room for underflow, a unit must cover what products of two
    entries lose.
    """
    left_width, right_width = widths
    # Roots of the Grams' diagonals: norms of positions, from which underflow may have taken.
    room = underflow_room(left.dtype)
    # Underflow may have taken from the root of a diagonal: with that added, sizes are upper bounds.
    left_norms = _diagonal_norms(left).add_(room * least_norm(left_width, left.dtype))
    right_norms = _diagonal_norms(right).add_(room * least_norm(right_width, left.dtype))
    sizes = left_norms.mul_(right_norms).sum(1)
    # Terms may cancel down to any size, so that round-off is a share of the sizes, not of the
    # result.
    round_off = cancellation_of(sizes, left.dtype)
    terms = left.mul_(right).flatten(1)
    return terms.sum(1).add_(round_off)


def _diagonal_norms(gram: torch.Tensor) -> torch.Tensor:
    """Return the norms (B, T) of what Gram matrices (B, T, T) are of."""
    return gram.diagonal(dim1=1, dim2=2).sqrt()


def cancellation_of(sizes: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a bound on the round-off of such a sum from Σ_t ‖left_t‖‖right_t‖, overwritten."""
    return sizes.square_().mul_(_cancellation_unit(dtype))


def underflow_room(dtype: torch.dtype) -> float:
    """Return how many times what a norm may lack a product of two may, for `cancellation_of`."""
    return 1 / math.sqrt(_cancellation_unit(dtype))


def _cancellation_unit(dtype: torch.dtype) -> float:
    """Return the round-off that a sum of cancelling terms is given room for, of their size.

    That is 8 units of single precision (2⁻²³), and 16 of double (2⁻⁵²).
    """
    return 2.0**-48 if dtype == torch.float64 else 2.0**-20


def term_sizes(left: torch.Tensor, right: torch.Tensor, room: float = 1.0) -> torch.Tensor:
    """Return Σ_t ‖left_t‖‖right_t‖, (B,), with `room` times what underflow can take added."""
    norm: Squares = torch.linalg.vector_norm
    left_norms = norm(left, dim=2).add_(room * _underflow(left))
    right_norms = norm(right, dim=2).add_(room * _underflow(right))
    sizes: torch.Tensor = left_norms.mul_(right_norms).sum(1)
    return sizes


def _underflow(rows: torch.Tensor) -> float:
    """Return more than what underflow can take from the norm of a row."""
    return least_norm(rows.shape[-1], rows.dtype)


@functools.cache
def least_norm(width: int, dtype: torch.dtype) -> float:
    """Return more than what underflow can take from the norm of `width` values.

    A square below 2⁻¹²⁶ (2⁻¹⁰²² in double precision) may be lost, so that √width·2⁻⁶³ may be.
    """
    # twice that, in either precision
    of_one_value = 2.0**-510 if dtype == torch.float64 else 2.0**-62
    return math.sqrt(width) * of_one_value
