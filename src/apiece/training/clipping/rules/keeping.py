"""How many per-record gradients are kept between their norms and their sum, in all layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

TOTAL = 1 << 26  # entries over all layers of a step: 256 MiB in single precision
_left: ContextVar[list[int] | None] = ContextVar("_left", default=None)


@contextlib.contextmanager
def keeping() -> Iterator[None]:
    """Let no more than `TOTAL` entries be kept meanwhile, however many layers there are."""
    token = _left.set([TOTAL])
    try:
        yield
    finally:
        _left.reset(token)


def may_keep(cells: int, most: int) -> bool:
    """Whether so many entries of per-record gradients may be kept; they are then counted.

    Args:
        cells: Of one layer.
        most: Of one layer, at most.
    """
    left = _left.get()
    if cells > most or (left is not None and cells > left[0]):
        return False
    if left is not None:
        left[0] -= cells
    return True
