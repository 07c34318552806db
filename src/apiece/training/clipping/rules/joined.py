"""What one use of a parameter gives each person, from what it gives each of their rows.

The norm of a person's gradient has the products between their rows in it; a weighted sum over
persons is one over rows, each with its person's weight, so that it needs nothing new.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch

from apiece.training.clipping.rules.contributions import (
    Contribution,
    Lookups,
    Outer,
    Products,
    Rows,
    Slices,
)
from apiece.training.clipping.rules.convolution import Convolution
from apiece.training.clipping.rules.kernels import Squares, row_squares

Groups: TypeAlias = list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


def alike(owner: torch.Tensor) -> Groups:
    """Return persons of about as many rows: who, their rows (p, R), and which of these are.

    R is a power of two, so that at most half is filled up, with a person's first row.
    """
    count = torch.bincount(owner)
    start = count.cumsum(0) - count
    sizes = torch.ceil(torch.log2(count.double())).long()
    found: Groups = []
    for exponent in sorted(set(sizes.tolist())):
        persons = (sizes == exponent).nonzero().squeeze(1)
        turn = torch.arange(2**exponent, device=count.device)
        there = turn < count[persons].unsqueeze(1)
        found.append((persons, start[persons].unsqueeze(1) + turn * there, there))
    return found


def _persons(groups: Groups) -> int:
    return sum(persons.numel() for persons, _, _ in groups)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Joined:
    """A contribution by person, of one by row.

    Args:
        part: What each row gives, (B, …).
        owner: (B,) The person of each row, from 0 on, never falling, nobody left out.
        groups: The same persons by how many rows they have.
    """

    part: Contribution
    owner: torch.Tensor
    groups: Groups

    def squares(self, of_rows: Squares = row_squares) -> torch.Tensor:
        """Return (P,) squared norms, never below the true ones but for ordinary round-off."""
        if isinstance(self.part, Outer | Products | Lookups):
            return self._by_products(self.part)
        total, sizes = self._added()
        unit = torch.finfo(total.dtype).eps / 2 * (8 + torch.bincount(self.owner))
        return row_squares(total).sqrt_().add_(sizes * unit).square_().to(total.dtype)

    def smooth_squares(self) -> torch.Tensor:
        """Return (P,) squared norms that autograd can differentiate."""
        return Rows(self.per_record()).smooth_squares()

    def weighted(self, weights: torch.Tensor) -> torch.Tensor:
        """Return Σ_p weights[p]·gradient_p, of the parameter's shape."""
        return self.part.weighted(weights[self.owner])

    def per_record(self) -> torch.Tensor:
        """Return the persons' gradients one by one, (P, *shape)."""
        return self._added()[0]

    def without(self, bad: torch.Tensor) -> Joined:
        """Return this with the persons at `bad` (P,) set to zero."""
        return Joined(self.part.without(bad[self.owner]), self.owner, self.groups)

    def _by_products(self, part: Outer | Products | Lookups) -> torch.Tensor:
        """Return the squares with a person's rows as positions of one record."""
        squares = part.left.new_zeros(_persons(self.groups))
        for persons, index, there in self.groups:
            left = part.left[index] * there.view(*there.shape, *[1] * (part.left.dim() - 1))
            left = left.flatten(1, -2)
            if isinstance(part, Lookups):
                places = part.index[index].flatten(1)
                squares[persons] = Lookups(places, left, part.size).squares()
            else:
                right = part.right[index].flatten(1, -2)
                squares[persons] = Products(left, right).squares()
        return squares

    def _added(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the persons' gradients, and the sum of the norms of each one's rows."""
        total: torch.Tensor | None = None
        sizes: torch.Tensor | None = None
        begin = 0
        for rows in _pieces(self.part):
            mine = self.owner[begin : begin + len(rows)]
            begin += len(rows)
            if total is None or sizes is None:
                total = rows.new_zeros(_persons(self.groups), *rows.shape[1:])
                sizes = rows.new_zeros(len(total))
            total.index_add_(0, mine, rows)
            sizes.index_add_(0, mine, row_squares(rows).sqrt())
        assert total is not None
        assert sizes is not None
        return total, sizes


def _pieces(part: Contribution) -> Iterator[torch.Tensor]:
    """Yield the gradients of rows, some at a time where that spares memory."""
    if isinstance(part, Convolution):
        yield from part.pieces()
    elif isinstance(part, Slices):
        yield from part.parts
    else:
        yield part.per_record()
