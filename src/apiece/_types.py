"""Types that are used everywhere: names for arrays, and what lies between two bounds."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Bounds(NamedTuple):
    """A quantity that lies in [lower, upper].

    Attributes:
        lower: A float, or an array.
        upper: The same, of the same shape.

    Example:
        >>> Bounds(0.9, 1.1).upper
        1.1
    """

    lower: Any
    upper: Any
