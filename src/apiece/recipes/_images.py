"""Which images a transform takes."""

from __future__ import annotations

from torch import Tensor

from apiece.errors import InputError


def require_shape(images: Tensor, colours: int | str, side: int) -> None:
    """Raise `InputError` unless images are (n, colours, side, side); "c" stands for any number."""
    fits = images.ndim == 4 and images.shape[2:] == (side, side)
    if not fits or colours not in ("c", images.shape[1]):
        raise InputError(
            f"images of shape {tuple(images.shape)}: must be (n, {colours}, {side}, {side})"
        )
