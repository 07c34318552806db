"""What budgets spent on a synthetic table, and what is known of a count in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from apiece._types import Floats, Json
from apiece.errors import DataError
from apiece.numerics.gaussian import gaussian_epsilon_above


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Charges:
    """What each distinct budget asked, weighs and has spent; one entry a budget.

    Attributes:
        name: Of the budget.
        epsilon: ε that was asked.
        delta: δ that was asked.
        weight: In (0, 1], beside the largest budget's.
        limit: μ² that the budget allows.
        spent: μ² that was charged, rounded up.

    Example:
        >>> import numpy as np
        >>> from apiece.synthesis import Charges
        >>> one = np.ones(1)
        >>> charges = Charges(np.array(["low"]), one, 1e-6 * one, one, 0.05 * one, 0.04 * one)
        >>> charges.epsilon_spent() <= charges.epsilon
        array([ True])
    """

    name: Any
    epsilon: Floats
    delta: Floats
    weight: Floats
    limit: Floats
    spent: Floats

    def epsilon_spent(self) -> Floats:
        """Return the ε of what was charged, at the δ that was asked.

        Guarantee:
            Rounded up.
        """
        # Up by more than the root's rounding.
        mu = np.sqrt(self.spent) * (1 + 2.0**-50)
        return gaussian_epsilon_above(mu, self.delta)

    def to_dict(self) -> Json:
        """Return the charges as JSON values."""
        return {
            "name": [str(name) for name in self.name],
            "epsilon": self.epsilon.tolist(),
            "delta": self.delta.tolist(),
            "weight": self.weight.tolist(),
            "limit": self.limit.tolist(),
            "spent": self.spent.tolist(),
        }

    @classmethod
    def from_dict(cls, data: Json) -> Charges:
        """Return the charges that `to_dict` wrote.

        Args:
            data: The JSON values.

        Raises:
            DataError: Where a budget has spent more than it allows.
        """
        # Everything but names is a number a budget.
        numbers = {key: np.array(value) for key, value in data.items() if key != "name"}
        charges = cls(np.array(data["name"]), **numbers)
        if not (charges.spent <= charges.limit).all():
            raise DataError("charges: a budget has spent more than it allows; make the table anew")
        return charges


@dataclass(frozen=True, slots=True)
class Count:
    """An estimated number of rows, with an interval.

    Attributes:
        estimate: Rows, from the measurements that hold the columns, or from the model.
        interval: (low, high), or None where no measurement holds the columns together.
        confidence: Of the interval, which is about the noise and about who happened to ask for how
            much: not about consent that depends on the data.
        measurements: How many measurements it comes from; 0 for the model's own guess.

    Example:
        >>> from apiece.synthesis import Count
        >>> Count(120.0, (90.0, 150.0), 0.95, 1).interval
        (90.0, 150.0)
    """

    estimate: float
    interval: tuple[float, float] | None
    confidence: float
    measurements: int
