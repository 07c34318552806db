"""The filter, and its two currencies: Gaussian with slack, and Rényi divergence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Mask
from apiece.errors import BudgetError, InputError
from apiece.filters.convert import ULP, best_order, gaussian_budget, renyi_budget
from apiece.filters.costs import Costs
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


class Filter:
    """Who has which budget, what each has spent, and who can still pay; one entry a person.

    `GaussianFilter` and `RenyiFilter` make it, each in its currency.

    Args:
        epsilon: Of each person.
        delta: Of each person.
        meter: Counts in units of Σ (norm/noise)².

    Example:
        >>> [isinstance(make(1.0, 1e-5), Filter) for make in (GaussianFilter, RenyiFilter)]
        [True, True]
    """

    __slots__ = ("_meter", "delta", "epsilon")

    def __init__(self, epsilon: Floats, delta: Floats, meter: Meter) -> None:
        self.epsilon, self.delta, self._meter = epsilon, delta, meter

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
        """Each person's budget in the filter's currency: μ², or Rényi divergence at `order`."""
        return self._meter.reported(self._meter.limit)

    @property
    def spent(self) -> Floats:
        """What each has spent of it, rounded up. Data about people."""
        return self._meter.reported(self._meter.total)

    @property
    def remaining(self) -> Floats:
        """What is left of `limit`. Data about people."""
        return self._meter.remaining()


class GaussianFilter(Filter):
    """Persons take part while Σ μ² ≤ B and Σ slack ≤ S; a Gaussian sum costs (s²/S², 0), exactly.

    Args:
        epsilon: One entry a person, or a scalar for a single one (or one shared) account.
        delta: The same, in (0, 1).
        slack: The share of δ that is kept for charges with a slack (`admit_costs`), in [0, 1); B is
            made from the rest.

    Raises:
        BudgetError: For budgets out of bounds, or shapes that do not fit.
        InputError: For a share that is not in [0, 1).

    Guarantee:
        Whatever analyses are chosen, adaptively, with norms, noise and costs that depend on
        everything released before, each person's whole transcript is (ε_i, δ_i)-DP under add/remove
        adjacency, if only the active persons enter each. A Gaussian sum gets no discount for
        sampling; what is sampled as a whole does, by `admit_costs`.

    References:
        docs/mathematics.md, section 11; Koskela, Tobaben, Honkela 2023, Thm 8; Smith and Thakurta
        2022.

    Example:
        >>> people = GaussianFilter([0.5, 2.0], 1e-5)
        >>> [people.admit([1.0, 1.0], noise_stddev=5.0).tolist() for _ in range(3)]
        [[False, True], [False, True], [False, True]]
        >>> people.admit([0.5, 1.0], noise_stddev=5.0).tolist()
        [True, True]
    """

    __slots__ = ()

    def __init__(self, epsilon: npt.ArrayLike, delta: npt.ArrayLike, *, slack: float = 0.0) -> None:
        eps, dlt = _budgets(epsilon, delta)
        if not 0 <= slack < 1:
            raise InputError(f"slack = {slack!r}: must be in [0, 1), a share of delta; try 0.1")
        kept = dlt * slack
        budget = gaussian_budget(eps, dlt, kept)
        super().__init__(eps, dlt, Meter(budget, 1.0, kept))

    def admit_costs(self, costs: Costs) -> Mask:
        """Return who can pay these costs and takes part, and charge them: a whole training, say.

        Args:
            costs: Of everyone. Each pays the pair that takes the smallest share of their account.

        Raises:
            InputError: For costs of another number of people.

        Example:
            >>> from apiece.accounting import privacy_curve
            >>> from apiece.filters import costs_of
            >>> from apiece.mechanisms import Gaussian, Repeated, Sampled
            >>> training = privacy_curve(Repeated(Sampled(Gaussian(2.5), 0.05), 200))
            >>> round(training.epsilon(1e-5).upper, 3)
            1.17
            >>> people = GaussianFilter([1.1, 1.18], 1e-5, slack=0.1)
            >>> people.admit_costs(costs_of([training], 1e-5).of([0, 0])).tolist()
            [False, True]
        """
        meter = self._meter
        loss, slack = costs.chosen(meter.limit.reshape(-1), meter.slack.reshape(-1))
        shape = meter.limit.shape
        return meter.pay(loss.reshape(shape), slack.reshape(shape))

    @property
    def slack_remaining(self) -> Floats:
        """What is left of the slack. Data about people."""
        return np.asarray((self._meter.slack - self._meter.slack_total) * (1 - ULP))


class RenyiFilter(Filter):
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

    __slots__ = ("order",)

    def __init__(
        self,
        epsilon: npt.ArrayLike,
        delta: npt.ArrayLike,
        *,
        order: npt.ArrayLike | None = None,
    ) -> None:
        eps, dlt = _budgets(epsilon, delta)
        self.order = checked_orders(best_order(eps, dlt) if order is None else order, eps.shape)
        budget = renyi_budget(eps, dlt, self.order)
        if not (budget > 0).all():
            bad = int(np.flatnonzero(~(budget > 0).reshape(-1))[0])
            raise BudgetError(
                f"order = {self.order.reshape(-1)[bad]:g}: (epsilon, delta) = "
                f"({eps.reshape(-1)[bad]:g}, {dlt.reshape(-1)[bad]:g}) cannot be "
                "reached from it; give a larger order or None"
            )
        limit = np.asarray(2 * budget / self.order * (1 - 2 * ULP))
        super().__init__(eps, dlt, Meter(limit, self.order / 2))
