"""Types that are used everywhere: names for arrays and dictionaries, and a pair of bounds."""

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]
Reals: TypeAlias = npt.NDArray[np.floating[Any]]
"""Floats of any width, as numpy types what it computes of numbers."""
Integers: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
AnyArray: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = AnyArray
"""Ids of records or persons: whole numbers, or texts."""
Json: TypeAlias = dict[str, Any]
"""An object of a JSON document, as it is written or was read."""
Flags: TypeAlias = dict[str, Any]
"""A command's options by name, as click passes them."""
State: TypeAlias = dict[str, Any]
"""The state of an optimizer, a scheduler or a run, as torch's `state_dict` returns it."""


class Bounds(NamedTuple):
    """A quantity that lies in [lower, upper].

    Attributes:
        lower: A float, or an array.
        upper: A float, or an array of the same shape.

    Example:
        >>> from apiece import Bounds
        >>> Bounds(0.9, 1.1).upper
        1.1
    """

    lower: Any
    upper: Any
