"""What every image reader returns, and the way to floats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece.errors import DataError


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Images:
    """n images and their labels; data about people.

    Attributes:
        pixels: (n, channels, height, width), bytes.
        labels: (n,), int64.

    Example:
        >>> Images(np.full((1, 1, 2, 2), 255, np.uint8), np.array([7])).scaled().max()
        np.float32(1.0)
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return int(self.labels.size)

    def scaled(self) -> npt.NDArray[np.float32]:
        """Return the pixels as floats in [0, 1]: the public range of a byte, not the data's own."""
        return self.pixels.astype(np.float32) / np.float32(255)


def images(pixels: npt.NDArray[np.uint8], labels: npt.ArrayLike, where: object) -> Images:
    """Return `Images` if there is one label an image, and at least one; else raise `DataError`."""
    marks = np.asarray(labels, dtype=np.int64).ravel()
    if pixels.ndim != 4 or len(pixels) != marks.size or marks.size == 0:
        raise DataError(
            f"{where}: images of shape {pixels.shape} and {marks.size} labels do not fit; "
            "give one label an image"
        )
    return Images(np.ascontiguousarray(pixels), marks)
