"""A personal running loss without a budget."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats
from apiece.filters.convert import ULP
from apiece.filters.meter import Meter, checked_orders


class Odometer:
    """A running, personal bound on the Rényi loss, with no budget set in advance.

    Readings are data about people.

    Args:
        size: How many persons.
        order: The Rényi order α, in (1, ∞), fixed in advance.

    Raises:
        InputError: For values out of bounds.

    Guarantee:
        Let L be the log-likelihood ratio of all that was released, with person i against without,
        and ρ person i's `loss`, the sum of α s²/(2S²). Then exp((α−1)(L − ρ)) is a supermartingale
        from 1 on, in both directions, however norms, noise and the moment of stopping depend on
        what was released. So at every stopping time:

        - `epsilon(delta)` is an odometer at a stopping time: E[(1 − e^(ε − L))₊] ≤ δ, where ε is
          what it reads then. Whoever stops by a rule under which ε never exceeds e is (e, δ)-DP.
        - `throughout(delta)` is an odometer in the sense of Rogers et al.: with probability at
          least 1 − δ, L ≤ ε at all times at once. It is the larger of the two.

    References:
        Feldman and Zrnic 2021, whose Algorithm 2 counts in steps instead; Rogers et al. 2016. The
        proof is in docs/mathematics.md.

    Example:
        >>> meter = Odometer(2, order=8)
        >>> for _ in range(3):
        ...     meter.add([1.0, 0.1], noise_stddev=10.0)
        >>> meter.loss.round(6).tolist()
        [0.12, 0.0012]
        >>> meter.epsilon(1e-5).round(3).tolist(), meter.throughout(1e-5).round(3).tolist()
        ([1.334, 1.215], [1.765, 1.646])
    """

    __slots__ = ("_meter", "order")

    def __init__(self, size: int, *, order: float) -> None:
        self.order = float(checked_orders(order, ()))
        size = _check.count("size", size)
        self._meter = Meter(np.full(size, math.inf), self.order / 2)

    def add(self, norms: npt.ArrayLike, noise_stddev: float) -> None:
        """Account for one analysis, sum + N(0, noise_stddev²).

        Args:
            norms: Bound on each person's contribution, or one for all; 0 is free.
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        self._meter.admit(norms, noise_stddev)

    @property
    def loss(self) -> Floats:
        """Each person's Rényi loss at `order` so far, rounded up."""
        return self._meter.reported(self._meter.total) * (1 + 4 * ULP)

    def epsilon(self, delta: float) -> Floats:
        """Return each person's ε at `delta` for whoever stops now.

        Args:
            delta: In (0, 1).

        Guarantee:
            Rounded up; see the class.
        """
        return self._beyond(delta, math.log1p(-1 / self.order) - math.log(self.order) / self._power)

    def throughout(self, delta: float) -> Floats:
        """Return each person's ε that holds at all times at once but with chance `delta`.

        Args:
            delta: In (0, 1).

        Guarantee:
            Rounded up; see the class.
        """
        return self._beyond(delta, 0.0)

    @property
    def _power(self) -> float:
        return self.order - 1

    def _beyond(self, delta: float, constant: float) -> Floats:
        """Return loss + log(1/δ)/(α−1) + constant, at least 0, rounded up."""
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        tail = -math.log(delta) / self._power
        slack = 16 * ULP * (tail + abs(constant))
        loss = self.loss
        return np.asarray(np.maximum(loss * (1 + 4 * ULP) + (tail + constant + slack), 0.0))
