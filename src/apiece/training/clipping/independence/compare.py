"""Two computations of the same records: how far their losses, norms and sums may be apart."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

from apiece.training.clipping.independence.widening import Tolerance
from apiece.training.clipping.records import Batch

_HUGE = 1e15  # norms beyond which squares may overflow in one way of adding and not in another


class Finding(enum.Enum):
    """What a look at a batch found."""

    SAME = "every record gives what it gives alone"
    OTHER_SUM = "records are apart, but this path does not compute their gradients"
    UNKNOWN = "what was drawn, or round-off, does not let two runs be compared"
    NEAR = "a record gives something else in company, by no more than round-off may do"
    MIXED = "a record gives something else in company, or when it is run again"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Seen:
    """Losses (B,), norms (B,) and Σ factor·gradient by parameter name."""

    losses: torch.Tensor
    norms: torch.Tensor
    total: dict[str, torch.Tensor]


def of_losses(
    one: torch.Tensor, other: torch.Tensor, tolerance: Tolerance
) -> tuple[Finding | None, int]:
    """Return whether losses are apart, by much or by little, and where."""
    where = apart(one, other, tolerance.relative, tolerance.relative, tolerance.floor)
    if where is None:
        return None, 0
    gross = apart(one, other, tolerance.gross, tolerance.gross, 100 * tolerance.floor)
    return (Finding.NEAR, where) if gross is None else (Finding.MIXED, gross)


def apart(
    one: torch.Tensor, other: torch.Tensor, above: float, below: float, floor: torch.Tensor | float
) -> int | None:
    """Return the record where `one` is most out of the room around `other`, None if none is."""
    a, b = one.double(), other.double()
    finite = torch.isfinite(b)
    if not bool(finite.any()):
        return None if not bool(torch.isfinite(a).any()) else 0
    typical = b[finite].abs().mean()
    sides = torch.where(a > b, min(above, 1.0), below)
    room = sides * torch.maximum(b.abs(), typical).nan_to_num(nan=0.0) + floor
    if above == math.inf:
        room = torch.where(a > b, torch.inf, room)
    lost = torch.isfinite(a) != finite
    lost &= ~((a.abs() > _HUGE) | (b.abs() > _HUGE)) | torch.isnan(a) | torch.isnan(b)
    over = torch.where(finite & torch.isfinite(a), (a - b).abs() - room, -1.0)
    over = torch.where(lost, torch.inf, over)
    return int(over.argmax()) if float(over.max()) > 0 else None


def same_sum(
    one: Seen, other: Seen, weights: torch.Tensor, tolerance: Tolerance, floor: torch.Tensor
) -> bool:
    """Whether two sums of the weighted gradients are within the room of the records in them."""
    own = torch.nan_to_num(other.norms.double() * weights, nan=0.0, posinf=0.0)
    room = (tolerance.relative * own).square().sum() + floor.square().sum()
    off = sum(
        float((one.total[name].double() - total.double()).square().sum())
        for name, total in other.total.items()
    )
    return off <= float(room)


def floor_of(batch: Batch, tolerance: Tolerance) -> torch.Tensor:
    """Return what is too little of a share to matter, (B,)."""
    return tolerance.share * batch.clip_norms.double().clamp(max=1.0)
