"""What a training makes of its gradients: running sums, with momentum and learning rates.

The parameters after step t are θ₀ − Σ_s A[t, s]·g_s. Correlated noise with strategy C disturbs them
by A C⁻¹ z; its rows' norms, times the noise's standard deviation, are the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.correlation.series import invert_series, multiply_series
from apiece.correlation.strategies import NoiseStrategy
from apiece.errors import InputError

# Columns of A C⁻¹ that are computed at a time.
_BLOCK = 64


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Gradient descent for a number of steps: A[t, s] = Σ_{s ≤ u ≤ t} rate_u · momentum^(u−s).

    Args:
        steps: T, at least 1.
        momentum: In [0, 1).
        learning_rates: (T,), each at least 0 and not all 0; None where they are all alike, and
            then 1.

    Raises:
        InputError: For values out of bounds.

    Example:
        >>> from apiece.correlation.strategies import Banded
        >>> from apiece.correlation.workloads import Workload
        >>> workload = Workload(100)
        >>> round(workload.mean_error(Banded([1.0])), 3)
        7.106
        >>> round(workload.mean_error(Banded.square_root(100)), 3)
        1.49
    """

    steps: int
    momentum: float = 0.0
    learning_rates: Floats | None = None

    def __init__(
        self,
        steps: int,
        *,
        momentum: float = 0.0,
        learning_rates: npt.ArrayLike | None = None,
    ) -> None:
        put = object.__setattr__
        put(self, "steps", _check.count("steps", steps))
        put(self, "momentum", _check.probability("momentum", momentum, high_open=True))
        rates = None
        if learning_rates is not None:
            rates = _check.nonnegative_array("learning_rates", learning_rates)
            if rates.shape != (self.steps,) or not rates.any():
                raise InputError(
                    f"learning_rates: of shape {rates.shape}; give {self.steps} numbers, one a "
                    "step, not all 0"
                )
        put(self, "learning_rates", rates)

    @property
    def _momentum_series(self) -> Floats:
        """What a gradient adds to the step taken after so many further steps, (T,)."""
        return self.momentum ** np.arange(self.steps, dtype=float)

    def errors(self, strategy: NoiseStrategy) -> Floats:
        """Return the norm of each row of A C⁻¹, (T,): the error after each step at noise 1.

        Args:
            strategy: C.
        """
        inverse = invert_series(strategy.first_column(self.steps), self.steps)
        response = multiply_series(self._momentum_series, inverse, self.steps)
        if self.learning_rates is None:
            # Row t has the prefix sums of the response up to t for its entries, whatever its
            # length.
            return np.sqrt(np.cumsum(np.cumsum(response) ** 2))
        squares = np.zeros(self.steps)
        # Column s of A C⁻¹ has Σ over s ≤ u ≤ t of rate_u·response_{u−s} in row t.
        for start in range(0, self.steps, _BLOCK):
            for column in range(start, min(start + _BLOCK, self.steps)):
                later = self.learning_rates[column:]
                contributions = later * response[: later.size]
                squares[column:] += np.cumsum(contributions) ** 2
        return np.sqrt(squares)

    def mean_error(self, strategy: NoiseStrategy) -> float:
        """Return the root of the mean squared error over all steps, at noise of deviation 1.

        Args:
            strategy: C.
        """
        squares = self.errors(strategy) ** 2
        return float(np.sqrt(np.mean(squares)))

    def max_error(self, strategy: NoiseStrategy) -> float:
        """Return the largest error over all steps, at noise of deviation 1.

        Args:
            strategy: C.
        """
        return float(self.errors(strategy).max())
