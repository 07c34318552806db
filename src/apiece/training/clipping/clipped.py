"""ClippedSum: a sum of clipped gradients that knows what each record can have added to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from apiece._types import Integers
from apiece.errors import InputError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ClippedSum:
    """The sum over B records of gradients clipped at each record's own norm.

    Norms and losses are data about people: they are for filters and audits, not for printing. Where
    rows were clipped by person, norms and clip_norms are the persons', losses the rows'.

    Attributes:
        gradients: Parameter name → the sum, a tensor of the parameter's shape.
        norms: (B,), each record's ℓ2 gradient norm before clipping, NaN or infinite where the
            record was left out.
        losses: (B,).
        clip_norms: (B,), the bounds.

    Guarantee:
        Without record (or person) i the sum differs by a vector of norm at most clip_norms[i].

    Example:
        >>> one = torch.ones(2)
        >>> total = ClippedSum({"weight": one}, one, one, one)
        >>> len(total), (total + total).norms.numel()
        (2, 4)
    """

    gradients: Mapping[str, torch.Tensor]
    norms: torch.Tensor
    losses: torch.Tensor
    clip_norms: torch.Tensor

    def __len__(self) -> int:
        return int(self.norms.numel())

    @property
    def rejected(self) -> int:
        """How many records were not finite and so contributed zero; a private count."""
        return int((~torch.isfinite(self.norms)).sum())

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Return the sum over the records of both, which must be different records."""
        if not isinstance(other, ClippedSum):
            return NotImplemented
        if self.gradients.keys() != other.gradients.keys():
            raise InputError("clipped sums: of different parameters; add those of one model")
        return ClippedSum(
            {name: value + other.gradients[name] for name, value in self.gradients.items()},
            torch.cat([self.norms, other.norms]),
            torch.cat([self.losses, other.losses]),
            torch.cat([self.clip_norms, other.clip_norms]),
        )

    def ordered(self, places: Integers) -> ClippedSum:
        """Return the sum with its records in order, of one whose k-th record belongs at places[k].

        Args:
            places: (B,) A permutation; norms, losses and bounds are one a record.

        Example:
            >>> total = ClippedSum({}, *torch.arange(6.0).view(3, 2))
            >>> total.ordered(np.array([1, 0])).norms
            tensor([1., 0.])
        """
        if bool((places == np.arange(places.size)).all()):
            return self
        order = torch.from_numpy(np.argsort(places)).to(self.norms.device)
        each = (values[order] for values in (self.norms, self.losses, self.clip_norms))
        return ClippedSum(self.gradients, *each)


def add_up(parts: Iterable[ClippedSum]) -> ClippedSum:
    """Return the sum over the records of all parts, at least one, which are given up to it."""
    first, *rest = list(parts)
    if not rest:
        return first
    for part in rest:
        for name, value in part.gradients.items():
            first.gradients[name].add_(value)
    every = [first, *rest]
    return ClippedSum(
        first.gradients,
        torch.cat([part.norms for part in every]),
        torch.cat([part.losses for part in every]),
        torch.cat([part.clip_norms for part in every]),
    )


def slack(dtype: torch.dtype) -> float:
    """Return the relative room left under every bound for round-off.

    Args:
        dtype: The type that norms are computed in.

    Example:
        >>> slack(torch.float32) == 2.0**-17
        True
    """
    return 2.0**-40 if dtype == torch.float64 else 2.0**-17


def clip_factors(norms: torch.Tensor, clip_norms: torch.Tensor) -> torch.Tensor:
    """Return min(1, clip/norm) rounded down: what a record's gradient is multiplied by.

    Args:
        norms: Of any shape, at least the true norms but for a relative error of half the slack.
        clip_norms: Bounds of the same shape; 0 leaves a record out.

    Returns:
        Factors in the type of `norms`; 0 where a norm is not finite.

    Guarantee:
        A factor is below the exact one by the slack, which is more than can be lost in computing
        the norm and in multiplying, so that round-off cannot lift a record over its bound.

    Example:
        >>> clip_factors(torch.tensor([0.5, 2.0, torch.inf]), torch.ones(3)) <= 1 / torch.tensor(
        ...     [1.0, 2.0, torch.inf]
        ... )
        tensor([True, True, True])
    """
    room = 1 - slack(norms.dtype)
    factors = (clip_norms.to(torch.float64) * room).div_(norms).clamp_(max=1.0)
    return factors.nan_to_num_(nan=0.0).to(norms.dtype)  # bound/inf is 0 already
