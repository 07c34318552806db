"""What of an image is seen beside itself: its mirror image, and the image a little turned."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage


def views(
    pixels: NDArray[np.uint8], *, mirrored: bool = False, turn: float = 0.0
) -> list[NDArray[np.uint8]]:
    """Return the images, and each of them mirrored and turned, in an order that is always the same.

    Features that are averaged over these are nearly the same for all of them, so that a head has
    not to learn from people that a mirrored or turned image shows the same. Which views there are
    is no data.

    Args:
        pixels: (n, colours, side, side), bytes.
        mirrored: Whether each also comes with left and right exchanged.
        turn: Degrees by which each also comes turned, either way; 0 for none. Corners that come
            from outside repeat the border.

    Example:
        >>> [view[0, 0].tolist() for view in views(np.array([[[[1, 2], [3, 4]]]], np.uint8),
        ...                                       mirrored=True)]
        [[[1, 2], [3, 4]], [[2, 1], [4, 3]]]
    """
    found = [pixels] + [turned(pixels, angle) for angle in (-turn, turn) if angle]
    return found + [view[..., ::-1] for view in found if mirrored]


def turned(pixels: Any, degrees: float) -> NDArray[np.uint8]:
    """Return images turned by some degrees, between pixels by the four nearest.

    Args:
        pixels: (n, colours, side, side), bytes.
        degrees: Against the clock.

    Example:
        >>> turned(np.array([[[[1, 2], [3, 4]]]], np.uint8), 90)[0, 0].tolist()
        [[2, 4], [1, 3]]
    """
    values = pixels.astype(np.float32)
    near = ndimage.rotate(values, degrees, axes=(3, 2), reshape=False, order=1, mode="nearest")
    found: NDArray[np.uint8] = np.rint(near).astype(np.uint8)
    return found
