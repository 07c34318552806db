"""Arrays of settings: checked by name, brought to one shape, runs of equal columns found."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from apiece._types import Floats
from apiece.errors import BudgetError, InputError

Places: TypeAlias = npt.NDArray[np.intp]


def broadcast(**columns: npt.ArrayLike) -> tuple[tuple[int, ...], list[Floats]]:
    """Check and broadcast the arguments; return their shape and flat columns."""
    arrays = [_checked(name, values) for name, values in columns.items()]
    try:
        arrays = list(np.broadcast_arrays(*arrays))
    except ValueError:
        shapes = ", ".join(f"{n} {np.shape(v)}" for n, v in columns.items())
        raise InputError(f"arrays do not broadcast: {shapes}; give one shape") from None
    return arrays[0].shape, [array.ravel() for array in arrays]


def _checked(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name}: not numbers; give an array of numbers") from None
    error: type[InputError] = InputError
    match name:
        case "sampling_probability":
            good, bound = (array >= 0) & (array <= 1), "[0, 1]"
        case "steps":
            good, bound = (array >= 1) & (array == np.floor(array)) & (array < 1e15), "1, 2, 3, …"
        case "delta":
            good, bound, error = (array > 0) & (array < 1), "(0, 1)", BudgetError
        case "epsilon":
            good, bound, error = (array > 0) & (array < np.inf), "(0, inf)", BudgetError
        case _:
            good, bound = (array > 0) & (array < np.inf), "(0, inf)"
    if not good.all():
        first = int(np.flatnonzero(~good.ravel())[0])
        where = f"[{first}]" if array.ndim else ""
        value = float(array.ravel()[first])
        raise error(f"{name}{where} = {value!r}: must be in {bound}; give numbers inside")
    return array


def runs(columns: Floats) -> tuple[Places, Places]:
    """Return where each run of equal columns begins, and how many columns it has."""
    new = np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0))[: columns.shape[1]]
    starts = np.flatnonzero(new)
    return starts, np.diff(np.append(starts, columns.shape[1]))


def distinct(columns: Floats) -> tuple[Floats, Places]:
    """Return the distinct columns in lexical order, and the place of each column among them."""
    order = np.lexsort(columns[::-1])
    starts, sizes = runs(columns[:, order])
    member = np.empty(order.size, dtype=np.intp)
    member[order] = np.repeat(np.arange(starts.size), sizes)
    return columns[:, order[starts]], member
