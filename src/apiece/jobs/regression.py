"""How far predicted numbers are off on held-out rows, with intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Json

NORMAL = 1.959964  # of a 95 % interval


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval, by the normal approximation over records or persons.

    Attributes:
        value: The estimate.
        lower: End of the interval.
        upper: The other end.

    Example:
        >>> Interval(1.0, 0.9, 1.1).upper
        1.1
    """

    value: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Errors:
    """The errors of one model on held-out rows.

    Attributes:
        mean_absolute: Mean absolute error, in the target's units.
        r2: 1 − squared error over that of always saying the rows' mean; at most 1.

    Example:
        >>> found = errors_of(np.array([1.0, 2.0, 4.0]), np.array([1.0, 2.0, 3.0]))
        >>> round(found.mean_absolute.value, 3), found.r2.value
        (0.333, 0.5)
    """

    mean_absolute: Interval
    r2: Interval

    def to_dict(self) -> Json:
        """Return the errors as JSON types."""
        return asdict(self)


def errors_of(
    predicted: Floats, truth: Floats, person: npt.NDArray[Any] | None = None
) -> Errors | None:
    """Return the errors of predictions; None where they say nothing.

    That is of fewer than two records or persons, of one value for all, and where a model puts out
    what is no number.

    Args:
        predicted: (n,).
        truth: (n,).
        person: (n,) Whose each row is, so that an interval counts persons; None for records.
    """
    unit = np.arange(truth.size) if person is None else np.unique(person, return_inverse=True)[1]
    centred = (truth - truth.mean()) ** 2 if truth.size else truth
    if truth.size == 0 or unit.max() < 1 or not centred.sum() > 0:
        return None
    if not np.isfinite(predicted).all():
        return None
    absolute, squared = np.abs(predicted - truth), (predicted - truth) ** 2
    r2 = 1 - squared.sum() / centred.sum()
    # a ratio of two means: its error is, to first order, that of the mean of these parts
    spread = standard_error(squared - (1 - r2) * centred, unit) / centred.mean()
    return Errors(
        _interval(
            float(absolute.mean()), standard_error(absolute - absolute.mean(), unit), least=0.0
        ),
        _interval(float(r2), spread, most=1.0),
    )


def standard_error(parts: Floats, unit: npt.NDArray[np.int64]) -> float:
    """Return the standard error of a mean over rows whose errors are independent over units."""
    return float(np.sqrt((np.bincount(unit, parts) ** 2).sum()) / parts.size)


def _interval(
    value: float, spread: float, *, least: float = -np.inf, most: float = np.inf
) -> Interval:
    half = NORMAL * spread
    return Interval(value, max(value - half, least), min(value + half, most))
