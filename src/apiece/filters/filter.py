"""The Gaussian and the Rényi filter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Mask
from apiece.errors import BudgetError
from apiece.filters.convert import ULP, best_order, gaussian_mu, renyi_budget
from apiece.filters.meter import Meter, checked_orders


def _budgets(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> tuple[Floats, Floats]:
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    try:
        eps, dlt = np.broadcast_arrays(eps, dlt)
    except ValueError:
        raise BudgetError(
            f"epsilon has shape {eps.shape}, delta {dlt.shape}; give one entry a person"
        ) from None
    return eps, dlt


class GaussianFilter:
    """Persons take part for as long as Σ s²/S² stays within μ(ε, δ)²; exact for Gaussian noise.

    Args:
        epsilon: One entry a person, or a scalar for a single one (or one shared) account.
        delta: The same, in (0, 1).

    Raises:
        BudgetError: For budgets out of bounds, or shapes that do not fit.

    Guarantee:
        Whatever analyses of the form sum + N(0, S²) are chosen, adaptively, with norms and S that
        depend on everything released before, each person's whole transcript is (ε_i, δ_i)-DP under
        add/remove adjacency, if only the active persons enter each sum. It does not hold for noise
        that is not Gaussian, nor for a discount by subsampling.

    References:
        Koskela, Tobaben, Honkela 2023, Thm 8; Smith and Thakurta 2022.

    Example:
        >>> people = GaussianFilter([0.5, 2.0], 1e-5)
        >>> [people.admit([1.0, 1.0], noise_stddev=5.0).tolist() for _ in range(3)]
        [[False, True], [False, True], [False, True]]
        >>> people.admit([0.5, 1.0], noise_stddev=5.0).tolist()
        [True, True]
    """

    __slots__ = ("_meter", "delta", "epsilon")

    def __init__(self, epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> None:
        self.epsilon, self.delta = _budgets(epsilon, delta)
        mu = gaussian_mu(self.epsilon, self.delta)
        self._meter = Meter(mu * mu * (1 - 2 * ULP))

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Return who can pay for this analysis and takes part, and charge them.

        Call it before the sum is used, with norms that are current or enforced as clip bounds.
        Nobody is charged where an error is raised.

        Args:
            norms: Bound on each person's contribution, or one for all; 0 is free.
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        return self._meter.admit(norms, noise_stddev)

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm each person can still pay for. Data about people.

        Args:
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For noise that is not positive.
        """
        return self._meter.affordable(noise_stddev)

    def noise_stddev(self, clip_norm: npt.ArrayLike, steps: int) -> Floats:
        """Return, per person, the least noise with which they last `steps` charges of `clip_norm`.

        A public parameter: it depends on budgets alone. Take the largest for nobody to drop out.

        Args:
            clip_norm: Positive; one for all, or one a person.
            steps: How many charges.

        Raises:
            InputError: For values out of bounds, or a shape that does not fit.
        """
        return self._meter.noise_stddev(clip_norm, steps)

    @property
    def limit(self) -> Floats:
        """The budget μ(ε, δ)² of each person."""
        return self._meter.reported(self._meter.limit)

    @property
    def spent(self) -> Floats:
        """Σ s²/S² so far, rounded up. Data about people."""
        return self._meter.reported(self._meter.total)

    @property
    def remaining(self) -> Floats:
        """What is left of `limit`. Data about people."""
        return self._meter.remaining()


class RenyiFilter:
    """Persons take part for as long as Σ α s²/(2S²) stays within B(ε, δ).

    Args:
        epsilon: One entry a person, or a scalar.
        delta: The same, in (0, 1).
        order: The Rényi order α, one or one a person, fixed before any data are seen; None takes
            `best_order(epsilon, delta)`.

    Raises:
        BudgetError: For budgets out of bounds, and for an order too small to reach ε at all.
        InputError: For an order that is not in (1, ∞).

    Guarantee:
        As `GaussianFilter`'s, by Rényi divergence of one order, so that it also composes with other
        mechanisms of known Rényi divergence.

    References:
        Feldman and Zrnic 2021, Algorithm 1 and Thm 2.2.

    Example:
        >>> people = RenyiFilter([0.5, 2.0], 1e-5)
        >>> people.admit([0.5, 1.0], noise_stddev=5.0).tolist()
        [True, True]
    """

    __slots__ = ("_meter", "delta", "epsilon", "order")

    def __init__(
        self,
        epsilon: npt.ArrayLike,
        delta: npt.ArrayLike,
        *,
        order: npt.ArrayLike | None = None,
    ) -> None:
        self.epsilon, self.delta = _budgets(epsilon, delta)
        orders = best_order(self.epsilon, self.delta) if order is None else order
        self.order = checked_orders(orders, self.epsilon.shape)
        budget = renyi_budget(self.epsilon, self.delta, self.order)
        if not (budget > 0).all():
            bad = int(np.flatnonzero(~(budget > 0).reshape(-1))[0])
            raise BudgetError(
                f"order = {self.order.reshape(-1)[bad]:g}: (epsilon, delta) = "
                f"({self.epsilon.reshape(-1)[bad]:g}, {self.delta.reshape(-1)[bad]:g}) cannot be "
                "reached from it; give a larger order or None"
            )
        self._meter = Meter(np.asarray(2 * budget / self.order * (1 - 2 * ULP)), self.order / 2)

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Return who can pay for this analysis and takes part; charge them. See `GaussianFilter`.

        Args:
            norms: Bound on each person's contribution, or one for all; 0 is free.
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        return self._meter.admit(norms, noise_stddev)

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm each person can still pay for. Data about people.

        Args:
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For noise that is not positive.
        """
        return self._meter.affordable(noise_stddev)

    def noise_stddev(self, clip_norm: npt.ArrayLike, steps: int) -> Floats:
        """Return, per person, the least noise with which they last `steps` charges of `clip_norm`.

        Args:
            clip_norm: Positive; one for all, or one a person.
            steps: How many charges.

        Raises:
            InputError: For values out of bounds, or a shape that does not fit.
        """
        return self._meter.noise_stddev(clip_norm, steps)

    @property
    def limit(self) -> Floats:
        """The Rényi budget B of each person at `order`."""
        return self._meter.reported(self._meter.limit)

    @property
    def spent(self) -> Floats:
        """Rényi loss at `order` so far. Data about people."""
        return self._meter.reported(self._meter.total)

    @property
    def remaining(self) -> Floats:
        """What is left of `limit`. Data about people."""
        return self._meter.remaining()
