"""Persons: what one use of a parameter gives each of them, from what it gives each of their rows.

The norm of a person's gradient has the products between their rows in it; a weighted sum over
persons is one over rows, each with its person's weight, so that it needs nothing new.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from apiece.training.clipping.contributions import (
    KEEP,
    Contribution,
    Lookups,
    Outer,
    Products,
    Squares,
    cancellation_of,
    row_squares,
)
from apiece.training.clipping.convolution import Convolution

# Rows of a person up to which products are made between neighbours, as they lie in the batch.
_NEAR = 16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group:
    """Persons with about as many rows, up to R, which are taken together.

    R is a power of two, so that less than half of `rows` is filled up, with a person's first row.

    persons: (p,) their numbers. rows: (p, R) where their rows are in the batch. is_row: (p, R)
    which of these are rows of theirs, and not filled up.
    """

    persons: torch.Tensor
    rows: torch.Tensor
    is_row: torch.Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Persons:
    """Whose each row of a batch is.

    owner: (B,) The person of each row, from 0 on, never falling, nobody left out.
    """

    owner: torch.Tensor

    @functools.cached_property
    def count(self) -> torch.Tensor:
        """How many rows each person has, (P,)."""
        return torch.bincount(self.owner)

    @functools.cached_property
    def groups(self) -> list[Group]:
        """All persons, by how many rows they have."""
        return self._groups_above(0)

    @functools.cached_property
    def groups_of_long(self) -> list[Group]:
        """Persons with more rows than `_NEAR`, by how many they have."""
        return self._groups_above(_NEAR)

    @functools.cached_property
    def is_pair(self) -> torch.Tensor:
        """Where rows of a block meet those of it and the next one that are the same person's.

        (n, W, 2·W); nowhere for a person with more rows than `_NEAR`.
        """
        # -1 stands for who is met otherwise, and for what a block is filled up with.
        is_near = self.count[self.owner] <= _NEAR
        owner = torch.where(is_near, self.owner, -1)
        # (n, 2·W, 1): by block, the persons of its rows and of the next block's.
        owners = _blocks(owner.unsqueeze(1), -1)
        owners_of_block = owners[:, :_NEAR]
        return (owners_of_block == owners.mT) & (owners_of_block >= 0)

    def add_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (…, P) what rows (…, B) come to, by person."""
        persons = len(self.count)
        total = rows.new_zeros(*rows.shape[:-1], persons)
        return total.index_add_(-1, self.owner, rows)

    def _groups_above(self, limit: int) -> list[Group]:
        """Return the persons with more than `limit` rows, by the power of two that takes them."""
        count = self.count
        # A person's first row: rows of a person lie side by side (`Persons.owner` never falls).
        start = count.cumsum(0) - count
        # in double precision a power of two has a logarithm without round-off
        # 2^exponent is the least power of two that takes a person's rows.
        exponents = torch.log2(count.double()).ceil().long()
        exponents = torch.where(count > limit, exponents, -1)
        result: list[Group] = []
        for exponent in sorted(set(exponents.tolist()) - {-1}):
            persons = (exponents == exponent).nonzero().squeeze(1)
            # beyond a person's last row, their first one stands again
            step = torch.arange(2**exponent, device=count.device)
            is_row = step < count[persons].unsqueeze(1)
            rows = start[persons].unsqueeze(1) + step * is_row
            result.append(Group(persons, rows, is_row))
        return result


def outer_squares(left: torch.Tensor, right: torch.Tensor, persons: Persons) -> torch.Tensor:
    """Return (P,) ‖Σ_rows left ⊗ right‖², round-off aside; left: (B, O), right: (B, I)."""
    # ‖Σ_s l_s ⊗ r_s‖² = Σ_{s,t} (l_s·l_t)(r_s·r_t). A person's rows lie side by side, so that pairs
    # of near rows are met in blocks of the batch, and only long persons one by one.
    lefts = _blocks(left, 0.0)
    rights = _blocks(right, 0.0)
    # (n, W, 2·W): rows of a block with those of it and of the next one.
    products = lefts[:, :_NEAR] @ lefts.mT
    products.mul_(rights[:, :_NEAR] @ rights.mT)
    products.masked_fill_(~persons.is_pair, 0.0)  # what is not finite stays with its person
    # A block looks at the next one and not back: a pair across both is met once, and counts twice.
    products[:, :, _NEAR:] *= 2
    by_row = products.sum(2).flatten()
    # Without the rows that fill the last block up.
    squares = persons.add_rows(by_row[: len(persons.owner)])
    for group in persons.groups_of_long:
        # (p, R, O) and (p, R, I): all rows of a long person together.
        lefts = left[group.rows]
        rights = right[group.rows]
        products = lefts @ lefts.mT
        products.mul_(rights @ rights.mT)
        is_pair = group.is_row.unsqueeze(1) & group.is_row.unsqueeze(2)
        products.masked_fill_(~is_pair, 0.0)
        squares[group.persons] = products.flatten(1).sum(1)
    return squares


def _blocks(rows: torch.Tensor, fill: float) -> torch.Tensor:
    """Return (n, 2·W, D): the rows (B, D) of each block of W and of the next one."""
    size, width = rows.shape
    count = math.ceil(size / _NEAR)
    missing = (count + 1) * _NEAR - size
    padded = nn.functional.pad(rows, (0, 0, 0, missing), value=fill)
    # a view in which each row but those at the ends stands twice
    return padded.as_strided((count, 2 * _NEAR, width), (_NEAR * width, width, 1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined:
    """A contribution by person, of one by row.

    Each form of contribution has its way to persons' squares, made of its own tensors; the
    weighted sum is that by row.
    """

    part: Contribution
    persons: Persons

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return (P,) squared norms, never below the true ones but for ordinary round-off."""
        match self.part:
            case Outer(left, right) as part:
                # Round-off is a share of (Σ_rows ‖left‖·‖right‖)², whatever cancels between the
                # rows.
                sizes = self.persons.add_rows(part.sizes())
                room = cancellation_of(sizes, left.dtype)
                return outer_squares(left, right, self.persons).add_(room)
            case Products() as part if part.ghost_is_cheaper:
                return self._squares_by_products(part)
            case Lookups() as part:
                return self._squares_by_table_rows(part)
            case part:
                squares = torch.cat(tuple(self._squares_by_sums(part)))
                sizes = self.persons.add_rows(_sizes(part))
                return _add_room(squares, sizes, self.persons.count)

    def weighted_sum(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_p weights[p]·gradient_p, of the parameter's shape."""
        return self.part.weighted_sum(weights[self.persons.owner])

    def without(self, bad: torch.Tensor) -> Joined:
        """Return this with the persons at `bad` (P,) set to zero."""
        bad_rows = bad[self.persons.owner]
        return Joined(self.part.without(bad_rows), self.persons)

    def _squares_by_products(self, part: Products) -> torch.Tensor:
        """Return the squares with a person's rows as positions of one record."""
        squares = part.left.new_zeros(self.persons.count.shape)
        # Rows and positions are summed alike: all of a person's are positions of one record. What
        # is filled up must count for nothing, for which one factor of zero is enough.
        for group in self.persons.groups:
            # (p, R, 1, 1), to be broadcast over positions and values.
            is_row = group.is_row.view(*group.is_row.shape, 1, 1)
            left = part.left[group.rows] * is_row
            right = part.right[group.rows]
            products = Products(left.flatten(1, 2), right.flatten(1, 2))
            squares[group.persons] = products.squares()
        return squares

    def _squares_by_table_rows(self, part: Lookups) -> torch.Tensor:
        """Return the squares of what each person adds to each row of a table."""
        # (B·T, D): what each look-up adds to its row of a table.
        terms = part.left.flatten(0, 1)
        persons = self.persons.count.numel()
        # One table for each person, one after the other: the cell that each term is added to.
        table_start = self.persons.owner.unsqueeze(1) * part.size
        # Of person p and row r the cell is p·size + r.
        cell = (table_start + part.index).flatten()
        cells = torch.arange(persons * part.size, device=cell.device)
        if cells.numel() > 8 * cell.numel():  # most of the tables would stay empty
            cells, cell = torch.unique(cell, return_inverse=True)
        total = terms.new_zeros(cells.numel(), terms.shape[1])
        total.index_add_(0, cell, terms)
        # norms of the terms added up, cell by cell: of that round-off is a share
        sizes = row_squares(terms).sqrt_()
        sizes = sizes.new_zeros(cells.numel()).index_add_(0, cell, sizes)
        count = torch.bincount(cell, minlength=cells.numel())
        squares = _add_room(row_squares(total), sizes, count)
        # From the cell's number back to the person: cells may be a selection, in order.
        person = cells.div(part.size, rounding_mode="floor")
        return squares.new_zeros(persons).index_add_(0, person, squares)

    def _squares_by_sums(self, part: Contribution) -> Iterator[torch.Tensor]:
        """Yield the persons' squared norms in order, from gradients that are made in pieces.

        A piece may end within a person, whose sum then waits for the rest in the next one.
        """
        owner = self.persons.owner
        begin = 0
        waiting_person = -1
        # Nothing waits at first; −1 is nobody.
        waiting_sum = owner.new_empty(0)
        for rows in _pieces(part):
            owners = owner[begin : begin + len(rows)]
            begin += len(rows)
            first_person = int(owners[0])
            last_person = int(owners[-1])
            persons = last_person - first_person + 1
            # (persons of this piece, *shape): their sums as far as this piece goes.
            total = rows.new_zeros(persons, *rows.shape[1:])
            total.index_add_(0, owners - first_person, rows)
            if first_person == waiting_person:
                total[0] += waiting_sum
            elif waiting_person >= 0:
                yield row_squares(waiting_sum.unsqueeze(0))
            if persons > 1:  # all but the last one, who may have rows in the next piece
                yield row_squares(total[:-1])
            waiting_person = last_person
            waiting_sum = total[-1]
        yield row_squares(waiting_sum.unsqueeze(0))


def _add_room(squares: torch.Tensor, sizes: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the squared norms of sums of `count` rows, with room for round-off.

    sizes: a bound on the norms of all terms added up, which it overwrites. A sum in another order
    may differ from them by a unit a row, and a row that is made again by a few. Rows that cancel
    leave the more of their own round-off, which changes with who else is in the batch: room for
    that keeps it from being scaled up to the bound.
    """
    half_unit = torch.finfo(squares.dtype).eps / 2
    # one for each row that is added, and eight for a row that is made again
    round_off = half_unit * (8 + count)
    norms = squares.sqrt() + sizes * round_off
    result = norms.square().to(squares.dtype)
    return result.add_(cancellation_of(sizes, squares.dtype))


def _sizes(part: Contribution) -> torch.Tensor:
    """Return (B,) norms added up over the terms that each row's part of the sum is made of."""
    if isinstance(part, Convolution | Products):  # made again for the sum, position by position
        return part.sizes()
    return torch.cat([row_squares(rows).sqrt_() for rows in _pieces(part)])


def _pieces(part: Contribution) -> Iterator[torch.Tensor]:
    """Yield the gradients of rows in order, some at a time."""
    match part:
        case Convolution():
            yield from part.pieces()
        case Products(left, right):
            cells = left.shape[2] * right.shape[2]
            # As many rows as one kept layer may have entries.
            width = max(1, KEEP // cells)
            for start in range(0, len(left), width):
                rows = slice(start, start + width)
                yield left[rows].mT @ right[rows]
        case _:
            yield part.per_record()
