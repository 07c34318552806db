"""Adding charges up: one float a person, every rounding towards privacy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Mask
from apiece.errors import InputError
from apiece.filters.convert import ULP

BLOCK: Final = 1 << 15  # persons a pass: the arrays of a block stay in the second cache
SMALL: Final = 2.0**-510  # its square is still a normal number


class Meter:
    """Sums of squared ratios and of slacks, and their limits: what both filters keep of a person.

    limit: of Σ (norm/stddev)². unit: what a filter calls one of it, in what it reports. slack: the
    limit of Σ slack.
    """

    def __init__(
        self, limit: Floats, unit: Floats | float = 1.0, slack: Floats | float = 0.0
    ) -> None:
        self.limit, self.unit = limit, unit
        self.slack = np.broadcast_to(slack, limit.shape)
        self.total, self.slack_total = np.zeros(limit.shape), np.zeros(limit.shape)

    def reported(self, amount: Floats) -> Floats:
        """Return an amount of privacy in the filter's own unit."""
        return np.asarray(amount * self.unit)

    def remaining(self) -> Floats:
        """Return what is left of the limit, rounded down, in the filter's own unit."""
        return np.asarray(self.reported(self.limit - self.total) * (1 - ULP))

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Add (norm/stddev)², rounded up, where the limit allows it; return where it does."""
        stddev = _check.positive("noise_stddev", noise_stddev)
        norms = checked_norms(norms, self.limit.shape)
        scale = 1 / stddev * (1 + 2 * ULP)  # charge ≥ (norm/stddev)² after all round-off
        limit, total = self.limit.reshape(-1), self.total.reshape(-1)
        flat = np.broadcast_to(norms, self.limit.shape).reshape(-1)
        active = np.empty(limit.size, dtype=bool)
        work = np.empty(min(BLOCK, limit.size))
        with np.errstate(over="ignore", under="ignore"):
            for start in range(0, limit.size, BLOCK):
                part = slice(start, start + BLOCK)
                _charge(flat[part], scale, limit[part], total[part], active[part], work)
        return active.reshape(self.limit.shape)

    def pay(self, loss: Floats, slack: Floats) -> Mask:
        """Add both, rounded up, where both limits allow it; return where they do."""
        with np.errstate(over="ignore"):
            total = np.where(loss > 0, (self.total + loss) * (1 + 4 * ULP), self.total)
            told = np.where(slack > 0, (self.slack_total + slack) * (1 + 4 * ULP), self.slack_total)
        paid = np.asarray((total <= self.limit) & (told <= self.slack))
        np.copyto(self.total, total, where=paid)
        np.copyto(self.slack_total, told, where=paid)
        return paid

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm that `admit` is sure to take, per person."""
        stddev = _check.positive("noise_stddev", noise_stddev)
        left = np.maximum(self.limit * (1 - 32 * ULP) - self.total, 0.0)
        return np.asarray(np.sqrt(left) * (stddev * (1 - 32 * ULP)))

    def noise_stddev(self, clip_norm: npt.ArrayLike, steps: int) -> Floats:
        """Return the least noise at which `steps` charges of clip_norm stay within the limit."""
        steps = _check.count("steps", steps)
        norms = _check.positive_array("clip_norm", clip_norm)
        if norms.ndim and norms.shape != self.limit.shape:
            raise InputError(f"clip_norm: shape {norms.shape}, persons {self.limit.shape}")
        slack = 1 + (8 * steps + 32) * ULP  # what `admit` adds in rounding up, and more
        return np.asarray(norms * np.sqrt(steps / self.limit) * slack)


def _charge(
    norms: Floats, scale: float, limit: Floats, total: Floats, active: Mask, work: Floats
) -> None:
    """Add each norm's charge to `total` where the sum stays within `limit`; set `active`."""
    new = work[: norms.size]
    np.multiply(norms, scale, out=new)
    small = new < SMALL
    np.multiply(new, new, out=new)
    np.add(new, total, out=new)
    np.multiply(new, 1 + 4 * ULP, out=new)  # makes up for rounding in the sum and in the square
    # A square that underflows would be free or too cheap: the least normal number covers it.
    if small.any():
        np.add(new, np.finfo(np.float64).tiny, out=new, where=small & (norms > 0))
        np.copyto(new, total, where=norms == 0)  # free: no rounding of a sum to make up for
    np.less_equal(new, limit, out=active)
    np.copyto(total, new, where=active)


def _blocks(array: Floats) -> Iterator[Floats]:
    """Yield the array in parts that stay in the cache."""
    flat = array.reshape(-1)
    for start in range(0, flat.size, BLOCK):
        yield flat[start : start + BLOCK]


def checked_norms(norms: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return `norms` as floats of `shape` or a scalar, all in [0, ∞)."""
    array = np.asarray(norms, dtype=np.float64)
    if array.ndim and array.shape != shape:
        raise InputError(f"norms: shape {array.shape}, but the filter has persons {shape}")
    # min and max let a NaN through to the comparison, which it fails.
    if not all(b.min() >= 0 and b.max() < math.inf for b in _blocks(array)):
        bad = int(np.flatnonzero(~((array >= 0) & (array < math.inf)).reshape(-1))[0])
        raise InputError(
            f"norms[{bad}] = {float(array.reshape(-1)[bad])!r}: must be in [0, inf); a record "
            "whose contribution is not finite must contribute nothing, with norm 0"
        )
    return array


def checked_orders(order: Any, shape: tuple[int, ...]) -> Floats:
    """Return Rényi orders, all in (1, ∞), broadcast to `shape`."""
    array = np.asarray(order, dtype=np.float64)
    if not ((array > 1) & (array < math.inf)).all():
        raise InputError(f"order = {order!r}: must be in (1, inf); the order is fixed in advance")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(f"order: shape {array.shape}, but there are persons {shape}") from None
