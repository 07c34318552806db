"""How well the kept model does, and on whom: by class, by budget group, step by step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Json, Mask
from apiece.jobs.regression import NORMAL, Interval, standard_error

POINTS = 20  # of a learning curve


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Figures of people without noise, covered by no ε: for the steward alone.

    Shares are of rows; intervals count records, or persons where these are the units.

    Attributes:
        accuracy: On held-out people; None where a number is predicted.
        by_class: The same for each true class, None for one that no held-out row has.
        confusion: For each true class the share of its held-out rows that is taken for each class.
        by_group: Accuracy on those *trained on*, for each budget group of the plan.
        curve: Held-out accuracy, or mean absolute error of a number, after some of the steps.

    Example:
        >>> Accuracies(None, (), (), (), ((10, 0.5), (20, 0.75))).curve[-1]
        (20, 0.75)
    """

    accuracy: Interval | None
    by_class: tuple[Interval | None, ...]
    confusion: tuple[tuple[float, ...] | None, ...]
    by_group: tuple[Interval | None, ...]
    curve: tuple[tuple[int, float], ...]

    def to_dict(self) -> Json:
        """Return the figures as JSON types."""
        found = asdict(self)
        rows = [None if row is None else list(row) for row in self.confusion]
        lists = {name: list(found[name]) for name in ("by_class", "by_group")}
        return found | lists | {"confusion": rows, "curve": [list(point) for point in self.curve]}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Answers:
    """What a model says of rows and what is so. unit: whose each row is."""

    said: npt.NDArray[np.int64]
    true: npt.NDArray[np.int64]
    unit: npt.NDArray[np.int64]

    def share(self, where: Mask | None = None) -> Interval | None:
        """Return the share that is right, of all rows or of some; None of none."""
        hits, unit = self.said == self.true, self.unit
        return share_right(hits if where is None else hits[where], unit if where is None else
                           unit[where])  # fmt: skip


def accuracies(
    held_out: Answers | None,
    classes: int,
    trained_on: Answers,
    group: npt.NDArray[np.int64],
    groups: int,
    curve: Mapping[int, float],
) -> Accuracies:
    """Return the figures of a model of classes.

    held_out: None where nobody was. group: of each row that was trained on. groups: of the plan.
    """
    points = tuple(sorted(curve.items()))
    by_group = tuple(trained_on.share(group == g) for g in range(groups))
    if held_out is None:
        return Accuracies(None, (), (), by_group, points)
    each = [held_out.true == k for k in range(classes)]
    return Accuracies(
        held_out.share(),
        tuple(held_out.share(where) for where in each),
        tuple(_taken_for(held_out.said[where], classes) for where in each),
        by_group,
        points,
    )


def _taken_for(said: npt.NDArray[np.int64], classes: int) -> tuple[float, ...] | None:
    if not said.size:
        return None
    return tuple((np.bincount(said, minlength=classes) / said.size).tolist())


def share_right(hits: Mask, unit: npt.NDArray[np.int64]) -> Interval | None:
    """Return a share with its 95 % interval by Wilson's score; None of no rows.

    Args:
        hits: (n,) Which rows count.
        unit: (n,) Whose each row is; rows of one unit may go together.

    References:
        Wilson 1927.

    Example:
        >>> found = share_right(np.arange(100) < 80, np.arange(100))
        >>> round(found.lower, 3), found.value, round(found.upper, 3)
        (0.711, 0.8, 0.867)
    """
    if not hits.size:
        return None
    values: Floats = hits.astype(np.float64)
    share, own = float(values.mean()), np.unique(unit, return_inverse=True)[1]
    error = standard_error(values - share, own)
    # As many independent rows as would leave this error; where all are alike, the units.
    many = share * (1 - share) / error**2 if error > 0 else float(own.max() + 1)
    spread = NORMAL**2 / many
    middle = (share + spread / 2) / (1 + spread)
    half = NORMAL / (1 + spread) * math.sqrt(share * (1 - share) / many + spread / (4 * many))
    lower, upper = max(middle - half, 0.0), min(middle + half, 1.0)
    return Interval(share, min(lower, share), max(upper, share))
