"""Persons: what one use of a parameter gives each of them, from what it gives each of their rows.

The norm of a person's gradient has the products between their rows in it; a weighted sum over
persons is one over rows, each with its person's weight, so that it needs nothing new.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

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

Groups: TypeAlias = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
_NEAR = 16  # rows of a person up to which products are made between neighbours, as they lie


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
    def groups(self) -> Groups:
        """All persons, by how many rows they have."""
        return self._alike(0)

    @functools.cached_property
    def far(self) -> Groups:
        """Those with more rows than `_NEAR`, likewise."""
        return self._alike(_NEAR)

    @functools.cached_property
    def near(self) -> torch.Tensor:
        """Where rows of a block meet those of it and the next one that are the same person's.

        (n, W, 2·W); nowhere for a person with more rows than `_NEAR`.
        """
        owner = torch.where(self.count[self.owner] <= _NEAR, self.owner, -1)
        whose = _blocks(owner.unsqueeze(1), -1)
        return (whose[:, :_NEAR] == whose.mT) & (whose[:, :_NEAR] >= 0)

    def add(self, rows: torch.Tensor) -> torch.Tensor:
        """Return (…, P) what rows (…, B) come to, by person."""
        total = rows.new_zeros(*rows.shape[:-1], len(self.count))
        return total.index_add_(-1, self.owner, rows)

    def _alike(self, above: int) -> Groups:
        """Return persons of about as many rows: who, their rows (p, R), and which of these are.

        R is a power of two, so that at most half is filled up, with a person's first row.
        """
        count = self.count
        start = count.cumsum(0) - count
        sizes = torch.where(count > above, torch.ceil(torch.log2(count.double())).long(), -1)
        result: Groups = []
        for exponent in sorted(set(sizes.tolist()) - {-1}):
            persons = (sizes == exponent).nonzero().squeeze(1)
            turn = torch.arange(2**exponent, device=count.device)
            there = turn < count[persons].unsqueeze(1)
            result.append((persons, start[persons].unsqueeze(1) + turn * there, there))
        return result


def outer_squares(left: torch.Tensor, right: torch.Tensor, persons: Persons) -> torch.Tensor:
    """Return (P,) ‖Σ_rows left ⊗ right‖², round-off aside; left: (B, O), right: (B, I)."""

    def gram(pick: Callable[[torch.Tensor], torch.Tensor], some: slice) -> torch.Tensor:
        """Return (left_s·left_t)(right_s·right_t), s among `some` of what is picked."""
        one, other = pick(left), pick(right)
        return (one[:, some] @ one.mT).mul_(other[:, some] @ other.mT)

    # ‖Σ_s l_s ⊗ r_s‖² = Σ_{s,t} (l_s·l_t)(r_s·r_t). A person's rows lie side by side, so that pairs
    # of near rows are met in blocks of the batch, and only long persons one by one.
    met = gram(functools.partial(_blocks, fill=0.0), slice(_NEAR))
    met.masked_fill_(~persons.near, 0.0)  # what is not finite stays with its person
    met[:, :, _NEAR:] *= 2  # a block does not look back
    squares = persons.add(met.sum(2).flatten()[: len(persons.owner)])
    for who, index, there in persons.far:
        met = gram(operator.itemgetter(index), slice(None))
        met.masked_fill_(~(there.unsqueeze(1) & there.unsqueeze(2)), 0.0)
        squares[who] = met.flatten(1).sum(1)
    return squares


def _blocks(rows: torch.Tensor, fill: float) -> torch.Tensor:
    """Return (n, 2·W, D): the rows (B, D) of each block of W and of the next one."""
    size, width = rows.shape
    count = -(-size // _NEAR)
    padded = nn.functional.pad(rows, (0, 0, 0, (count + 1) * _NEAR - size), value=fill)
    return padded.as_strided((count, 2 * _NEAR, width), (_NEAR * width, width, 1))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined:
    """A contribution by person, of one by row."""

    part: Contribution
    persons: Persons

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return (P,) squared norms, never below the true ones but for ordinary round-off."""
        match self.part:
            case Outer(left, right) as part:
                room = cancellation_of(self.persons.add(part.sizes()), left.dtype)
                return outer_squares(left, right, self.persons).add_(room)
            case Products() as part if part.ghost_is_cheaper:
                return self._by_products(part)
            case Lookups() as part:
                return self._by_places(part)
            case part:
                squares = torch.cat(tuple(self._sums(part)))
                return _with_room(squares, self.persons.add(_sizes(part)), self.persons.count)

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_p weights[p]·gradient_p, of the parameter's shape."""
        return self.part.weighted(weights[self.persons.owner])

    def without(self, bad: torch.Tensor) -> Joined:
        """Return this with the persons at `bad` (P,) set to zero."""
        return Joined(self.part.without(bad[self.persons.owner]), self.persons)

    def _by_products(self, part: Products) -> torch.Tensor:
        """Return the squares with a person's rows as positions of one record."""
        squares = part.left.new_zeros(self.persons.count.shape)
        # Rows and positions are summed alike: all of a person's are positions of one record.
        for who, index, there in self.persons.groups:
            left = part.left[index] * there.view(*there.shape, 1, 1)
            result = Products(left.flatten(1, 2), part.right[index].flatten(1, 2))
            squares[who] = result.squares()
        return squares

    def _by_places(self, part: Lookups) -> torch.Tensor:
        """Return the squares of what each person adds to each row of a table."""
        rows, persons = part.left.flatten(0, 1), self.persons.count.numel()
        place = (self.persons.owner.unsqueeze(1) * part.size + part.index).flatten()
        places = torch.arange(persons * part.size, device=place.device)
        if places.numel() > 8 * place.numel():  # most of the tables would stay empty
            places, place = torch.unique(place, return_inverse=True)
        total = rows.new_zeros(places.numel(), rows.shape[1]).index_add_(0, place, rows)
        sizes = row_squares(rows).sqrt_()
        sizes = sizes.new_zeros(places.numel()).index_add_(0, place, sizes)
        count = torch.bincount(place, minlength=places.numel())
        squares = _with_room(row_squares(total), sizes, count)
        whose = places.div(part.size, rounding_mode="floor")
        return squares.new_zeros(persons).index_add_(0, whose, squares)

    def _sums(self, part: Contribution) -> Iterator[torch.Tensor]:
        """Yield the persons' squared norms, piece by piece; what is left of the last goes on."""
        owner = self.persons.owner
        begin, last, rest = 0, -1, owner.new_empty(0)
        for rows in _pieces(part):
            mine = owner[begin : begin + len(rows)]
            begin += len(rows)
            # A piece may end within a person: their part waits until the next piece has the rest.
            first, many = int(mine[0]), int(mine[-1]) - int(mine[0]) + 1
            total = rows.new_zeros(many, *rows.shape[1:]).index_add_(0, mine - first, rows)
            if first == last:
                total[0] += rest
            elif last >= 0:
                yield row_squares(rest.unsqueeze(0))
            if many > 1:
                yield row_squares(total[:-1])
            last, rest = int(mine[-1]), total[-1]
        yield row_squares(rest.unsqueeze(0))


def _with_room(squares: torch.Tensor, sizes: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    """Return the squared norms of sums of `count` rows, with room for round-off.

    sizes: a bound on the norms of all terms added up, which it overwrites. A sum in another order
    may differ from them by a unit a row, and a row that is made again by a few. Rows that cancel
    leave the more of their own round-off, which changes with who else is in the batch: room for
    that keeps it from being scaled up to the bound.
    """
    unit = torch.finfo(squares.dtype).eps / 2 * (8 + count)
    result = (squares.sqrt() + sizes * unit).square().to(squares.dtype)
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
            width = max(1, KEEP // (left.shape[2] * right.shape[2]))
            for start in range(0, len(left), width):
                yield left[start : start + width].mT @ right[start : start + width]
        case _:
            yield part.per_record()
