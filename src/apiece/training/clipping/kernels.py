"""The few products that clipping spends its time in, each in the form that was measured fastest."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

Squares = Callable[[torch.Tensor], torch.Tensor]
_BLOCK = 128  # values added one after the other in single precision
_linear: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _is_amd() -> bool:
    """Whether the processor is one on which the BLAS library behind `@` is not at its best."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            return "AuthenticAMD" in file.read(4096)
    except OSError:
        return "AuthenticAMD" in platform.processor()


# multiplications below which oneDNN's setting-up costs more than it gains; elsewhere it never gains
_SMALL = 1 << 21 if _is_amd() else math.inf


def flattened(rows: torch.Tensor) -> torch.Tensor:
    """Return (B, ...) as (B, I); a number a row is a row of one."""
    return rows.flatten(1) if rows.dim() > 1 else rows.unsqueeze(1)


def row_squares(rows: torch.Tensor) -> torch.Tensor:
    """Return the squared norms (B,) of the rows of (B, ...), to a few units of precision.

    `vector_norm` adds along a row in as many running sums as the processor has lanes, and loses
    hundreds of units of precision over a long row, more than the room under a bound; so do compiled
    sums. So blocks of a row come first, and blocks of those.
    """
    flat = flattened(rows)
    width = flat.shape[1]
    if width <= 2 * _BLOCK:
        return _norms(flat).square_()
    whole = width - width % _BLOCK
    total = _sums(_norms(flat[:, :whole].view(len(flat), -1, _BLOCK)).square_())
    if whole < width:
        total += _norms(flat[:, whole:]).square_()
    return total


def _sums(blocks: torch.Tensor) -> torch.Tensor:
    """Return the sums (B,) of rows (B, N), blocks of them first."""
    while (width := blocks.shape[1]) > 2 * _BLOCK:
        whole = width - width % _BLOCK
        some = blocks[:, :whole].view(len(blocks), -1, _BLOCK).sum(2)
        blocks = torch.cat([some, blocks[:, whole:]], 1) if whole < width else some
    return blocks.sum(1)


def least_norm(width: int, dtype: torch.dtype) -> float:
    """Return more than what underflow can take from the norm of `width` values.

    A square below 2⁻¹²⁶ (2⁻¹⁰²² in double precision) may be lost, so that √width·2⁻⁶³ may be.
    """
    return math.sqrt(width) * (2.0**-510 if dtype == torch.float64 else 2.0**-62)


def _norms(rows: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = torch.linalg.vector_norm(rows, dim=-1)
    return found


def remembering(function: Squares) -> Squares:
    """Return `function` for one step, which computes the same tensor's result once."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def of(rows: torch.Tensor) -> torch.Tensor:
        if id(rows) not in known:
            known[id(rows)] = rows, function(rows)
        return known[id(rows)][1]

    return of


def by_onednn(multiplications: int) -> bool:
    """Whether a product of so many goes to oneDNN directly, in single precision on a processor.

    That takes 0.4 to 0.75 of the time of `@` on a processor of AMD, 1.1 to 3 times as long on one
    of Intel.
    """
    return _linear is not None and multiplications >= _SMALL


def _single_on_cpu(like: torch.Tensor) -> bool:
    return like.dtype == torch.float32 and like.device.type == "cpu"


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Return leftᵀ right; left: (N, O), right: (N, I)."""
    if not (by_onednn(left.numel() * right.shape[1]) and _single_on_cpu(left)):
        return left.t() @ right
    if left.shape[1] > right.shape[1]:  # the narrower one first
        return product(right, left).t()
    found: torch.Tensor = _linear(left.t(), right.t(), None, "none", [], "")
    return found


TOTAL = 1 << 26  # entries of per-record gradients kept over a step: 256 MiB in single precision
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
