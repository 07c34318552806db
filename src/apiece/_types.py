"""Types that are used everywhere: names for arrays, and what lies between two bounds."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]


class Bounds(NamedTuple):
    """A quantity that lies in [lower, upper]; floats, or arrays of one shape."""

    lower: Any
    upper: Any
