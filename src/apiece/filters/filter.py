"""The filter, its two currencies (Gaussian with slack, Rényi divergence), and the odometer."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._identity import common_index, require_rows
from apiece._types import Floats, Mask
from apiece.errors import BudgetError, InputError, RangeError
from apiece.filters.convert import ULP, best_order, gaussian_budget, renyi_budget
from apiece.filters.costs import Costs

if TYPE_CHECKING:
    import pandas as pd

BLOCK: Final = 1 << 15
"""Persons a pass: the arrays of a block stay in the second cache."""
SMALL: Final = 2.0**-510
"""Its square is still a normal number."""


class Filter:
    """Budgets, what each person has spent, and who can still pay; one entry a person."""

    # `limit` bounds Σ (norm/stddev)², `_spent` is that sum so far; `unit` is what one of it is in
    # the filter's currency. `slack` bounds Σ slack, `_slack_spent` is that sum so far. `persons` is
    # an index of their labels, where epsilon and delta had one; norms are joined to it. Every
    # rounding is towards privacy.
    __slots__ = (
        "_limit",
        "_slack",
        "_slack_spent",
        "_spent",
        "_unit",
        "delta",
        "epsilon",
        "persons",
    )

    def __init__(
        self,
        epsilon: Floats,
        delta: Floats,
        limit: Floats,
        unit: Floats | float = 1.0,
        slack: Floats | float = 0.0,
        persons: pd.Index[Any] | None = None,
    ) -> None:
        self.persons = persons
        self.epsilon = epsilon
        self.delta = delta
        self._limit = limit
        self._unit = unit
        self._slack = np.broadcast_to(slack, limit.shape)
        self._spent = np.zeros(limit.shape)
        self._slack_spent = np.zeros(limit.shape)

    def admit(self, norms: npt.ArrayLike, noise_stddev: float) -> Mask:
        """Return who can pay for this analysis and takes part, and charge them.

        Call it before the sum is used, with norms that are current or enforced as clip bounds.
        Nobody is charged where an error is raised.

        Args:
            norms: ℓ2 bound on each person's contribution, or one for all; 0 is free. A Series has
                the index of the filter's epsilon; a list or an array is taken by position.
            noise_stddev: Standard deviation of the noise on the sum.

        Raises:
            DataError: For a Series with another index.
            InputError: For norms that are negative or not finite, another number of them, and
                noise that is not positive and finite.
        """
        stddev = _check.positive("noise_stddev", noise_stddev)
        require_rows("epsilon", self.persons, norms=norms)
        norms = _check.nonnegative_array("norms", norms)
        if norms.ndim and norms.shape != self._limit.shape:
            shape = self._limit.shape
            raise InputError(f"norms: shape {norms.shape}, but the filter has persons {shape}")
        # The charge is at least (norm/stddev)² after all round-off.
        scale = 1 / stddev * (1 + 2 * ULP)
        limit = self._limit.reshape(-1)
        # Views: what is charged block by block is written into the accounts themselves.
        spent = self._spent.reshape(-1)
        flat = np.broadcast_to(norms, self._limit.shape).reshape(-1)
        active = np.empty(limit.size, dtype=bool)
        work = np.empty(min(BLOCK, limit.size))
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            for start in range(0, limit.size, BLOCK):
                part = slice(start, start + BLOCK)
                _charge_block(flat[part], scale, limit[part], spent[part], active[part], work)
        return active.reshape(self._limit.shape)

    def affordable(self, noise_stddev: float) -> Floats:
        """Return the largest norm that `admit` is sure to take, per person. Data about people.

        Args:
            noise_stddev: Of the noise on the sum.

        Raises:
            InputError: For noise that is not positive.
        """
        stddev = _check.positive("noise_stddev", noise_stddev)
        # By more than `admit` adds in rounding up.
        safe_limit = self._limit * (1 - 32 * ULP)
        remaining = np.maximum(safe_limit - self._spent, 0.0)
        with np.errstate(over="ignore"):
            norm = np.sqrt(remaining) * (stddev * (1 - 32 * ULP))
        return np.asarray(np.minimum(norm, np.finfo(np.float64).max))

    def noise_stddev(self, clip_norm: npt.ArrayLike, steps: int) -> Floats:
        """Return, per person, the least noise with which they last `steps` charges of `clip_norm`.

        A public parameter: it depends on budgets alone. Take the largest for nobody to drop out.

        Args:
            clip_norm: Positive; one for all, or one a person.
            steps: How many charges.

        Raises:
            DataError: For a Series with another index than the filter's epsilon.
            InputError: For values out of bounds, or a shape that does not fit.
            RangeError: For noise past floating-point numbers.
        """
        steps = _check.count("steps", steps)
        require_rows("epsilon", self.persons, clip_norm=clip_norm)
        norms = _check.positive_array("clip_norm", clip_norm)
        if norms.ndim and norms.shape != self._limit.shape:
            raise InputError(f"clip_norm: shape {norms.shape}, persons {self._limit.shape}")
        # What `admit` adds in rounding up, and more.
        slack = 1 + (8 * steps + 32) * ULP
        with np.errstate(over="ignore"):
            noise = np.asarray(norms * np.sqrt(steps / self._limit) * slack)
        if not np.isfinite(noise).all():
            raise RangeError(
                f"clip_norm = {float(norms.max()):g} in {steps} steps: the noise is past "
                "floating-point numbers; give a smaller clip norm"
            )
        return noise

    @property
    def limit(self) -> Floats:
        """Each person's budget in the filter's currency: μ², or Rényi divergence at `order`."""
        return np.asarray(self._limit * self._unit)

    @property
    def spent(self) -> Floats:
        """What each has spent of it, rounded up. Data about people."""
        return np.asarray(self._spent * self._unit)

    @property
    def remaining(self) -> Floats:
        """What is left of `limit`, rounded down. Data about people."""
        remaining = self._limit - self._spent
        return np.asarray(remaining * self._unit * (1 - ULP))


class GaussianFilter(Filter):
    """Persons take part while Σ μ² ≤ B and Σ slack ≤ S; a Gaussian sum costs (s²/S², 0), exactly.

    Args:
        epsilon: In (0, ∞); one entry a person, or a scalar for a single account. Series have one
            index.
        delta: In (0, 1); one entry a person, or a scalar.
        slack: The share of δ that is kept for charges with a slack (`admit_costs`), in [0, 1); B is
            made from the rest.

    Raises:
        BudgetError: For budgets out of bounds, or shapes that do not fit.
        DataError: For Series whose indices differ.
        InputError: For a share that is not in [0, 1).

    Guarantee:
        Each person's whole transcript is (ε_i, δ_i)-DP under add/remove adjacency, for analyses
        chosen adaptively, with norms, noise and costs that depend on everything released before, if
        only the active persons enter each. Sampling gives a discount by `admit_costs` alone.

    References:
        docs/mathematics.md, section 11; Koskela, Tobaben, Honkela 2023, Thm 8; Smith and Thakurta
        2022.

    Example:
        >>> from apiece import GaussianFilter
        >>> people = GaussianFilter([0.5, 2.0], 1e-5)
        >>> [people.admit([1.0, 1.0], noise_stddev=5.0).tolist() for _ in range(3)]
        [[False, True], [False, True], [False, True]]
        >>> people.admit([0.5, 1.0], noise_stddev=5.0).tolist()
        [True, True]
    """

    __slots__ = ()

    def __init__(self, epsilon: npt.ArrayLike, delta: npt.ArrayLike, *, slack: float = 0.0) -> None:
        eps, dlt = _check_budgets(epsilon, delta)
        if not 0 <= slack < 1:
            raise InputError(f"slack = {slack!r}: must be in [0, 1), a share of delta; try 0.1")
        slack_limit = dlt * slack
        # The slack is taken off δ once and for all, whether it is ever used or not.
        limit = gaussian_budget(eps, dlt, slack_limit)
        persons = common_index(epsilon=epsilon, delta=delta)
        super().__init__(eps, dlt, limit, 1.0, slack_limit, persons)

    def admit_costs(self, costs: Costs) -> Mask:
        """Return who can pay these costs and takes part, and charge them: a whole training, say.

        Args:
            costs: Of everyone. Each pays the pair that takes the smallest share of their account.

        Raises:
            InputError: For costs of another number of people.

        Example:
            >>> from apiece import Gaussian, GaussianFilter, Repeated, Sampled
            >>> from apiece.filters import costs_of
            >>> training = Repeated(Sampled(Gaussian(2.5), 0.05), 200)  # ε = 1.17
            >>> people = GaussianFilter([1.1, 1.18], 1e-5, slack=0.1)
            >>> people.admit_costs(costs_of([training], 1e-5).of([0, 0])).tolist()
            [False, True]
        """
        # By the limits, so that the pair does not follow from earlier charges.
        loss, slack = costs.chosen(self._limit.reshape(-1), self._slack.reshape(-1))
        loss = loss.reshape(self._limit.shape)
        slack = slack.reshape(self._limit.shape)
        # Rounded up, and free where nothing is charged.
        with np.errstate(over="ignore"):
            charged = (self._spent + loss) * (1 + 4 * ULP)
            slack_charged = (self._slack_spent + slack) * (1 + 4 * ULP)
        spent = np.where(loss > 0, charged, self._spent)
        slack_spent = np.where(slack > 0, slack_charged, self._slack_spent)
        # Both currencies or neither: who cannot pay one of them is charged nothing.
        admitted = np.asarray((spent <= self._limit) & (slack_spent <= self._slack))
        np.copyto(self._spent, spent, where=admitted)
        np.copyto(self._slack_spent, slack_spent, where=admitted)
        return admitted

    @property
    def slack_remaining(self) -> Floats:
        """What is left of the slack. Data about people."""
        return np.asarray((self._slack - self._slack_spent) * (1 - ULP))


class RenyiFilter(Filter):
    """Persons take part for as long as Σ α s²/(2S²) stays within B(ε, δ).

    Args:
        epsilon: One entry a person, or a scalar.
        delta: In (0, 1); one entry a person, or a scalar.
        order: The Rényi order α, one or one a person, fixed before any data are seen; None takes
            `best_order(epsilon, delta)`.

    Raises:
        BudgetError: For budgets out of bounds, and for an order too small to reach ε at all.
        DataError: For Series whose indices differ.
        InputError: For an order that is not in (1, ∞).

    Guarantee:
        As `GaussianFilter`'s for sums with Gaussian noise, by Rényi divergence of one order.

    References:
        Feldman and Zrnic 2021, Algorithm 1 and Thm 2.2.

    Example:
        >>> from apiece import RenyiFilter
        >>> people = RenyiFilter([0.5, 2.0], 1e-5)
        >>> people.admit([0.5, 1.0], noise_stddev=5.0).tolist()
        [True, True]
    """

    __slots__ = ("order",)

    def __init__(
        self, epsilon: npt.ArrayLike, delta: npt.ArrayLike, *, order: npt.ArrayLike | None = None
    ) -> None:
        persons = common_index(epsilon=epsilon, delta=delta, order=order)
        eps, dlt = _check_budgets(epsilon, delta)
        self.order = _check_orders(best_order(eps, dlt) if order is None else order, eps.shape)
        budget = renyi_budget(eps, dlt, self.order)
        if not (budget > 0).all():
            unreachable = ~(budget > 0).reshape(-1)
            bad = int(np.flatnonzero(unreachable)[0])
            raise BudgetError(
                f"order = {self.order.reshape(-1)[bad]:g}: (epsilon, delta) = "
                f"({eps.reshape(-1)[bad]:g}, {dlt.reshape(-1)[bad]:g}) cannot be "
                "reached from it; give a larger order or None"
            )
        # B(ε, δ) bounds Σ α·s²/(2S²): in units of Σ (s/S)², rounded down.
        limit = np.asarray(2 * budget / self.order * (1 - 2 * ULP))
        super().__init__(eps, dlt, limit, self.order / 2, persons=persons)


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
        from 1 on, in both directions, however norms, noise and stopping depend on what was
        released. So at every stopping time:

        - `epsilon(delta)`: E[(1 − e^(ε − L))₊] ≤ δ, where ε is what it reads then. Whoever stops by
          a rule under which ε never exceeds e is (e, δ)-DP.
        - `throughout(delta)`, the larger: with probability at least 1 − δ, L ≤ ε at all times at
          once (Rogers et al.).

    References:
        Feldman and Zrnic 2021, whose Algorithm 2 counts in steps instead; Rogers et al. 2016. The
        proof is in docs/mathematics.md.

    Example:
        >>> from apiece import Odometer
        >>> meter = Odometer(2, order=8)
        >>> for _ in range(3):
        ...     meter.add([1.0, 0.1], noise_stddev=10.0)
        >>> meter.loss.round(6).tolist()
        [0.12, 0.0012]
        >>> meter.epsilon(1e-5).round(3).tolist(), meter.throughout(1e-5).round(3).tolist()
        ([1.334, 1.215], [1.765, 1.646])
    """

    __slots__ = ("_account", "order")

    def __init__(self, size: int, *, order: float) -> None:
        self.order = float(_check_orders(order, ()))
        size = _check.count("size", size)
        # A filter of endless budgets only counts.
        endless = np.full(size, math.inf)
        self._account = Filter(endless, endless, endless, self.order / 2)

    def add(self, norms: npt.ArrayLike, noise_stddev: float) -> None:
        """Account for one analysis, sum + N(0, noise_stddev²).

        Args:
            norms: Bound on each person's contribution, or one for all; 0 is free. By position.
            noise_stddev: Of the noise on the sum.

        Raises:
            DataError: For a Series with an index other than 0, 1, 2, …: persons are numbered here.
            InputError: For norms that are negative or not finite, and for noise that is not
                positive.
        """
        self._account.admit(norms, noise_stddev)

    @property
    def loss(self) -> Floats:
        """Each person's Rényi loss at `order` so far, rounded up."""
        return self._account.spent * (1 + 4 * ULP)

    def epsilon(self, delta: float) -> Floats:
        """Return each person's ε at `delta` for whoever stops now.

        Args:
            delta: In (0, 1).

        Guarantee:
            Rounded up; see the class.
        """
        # The Rényi conversion of one order, but for log(1/δ)/(α − 1).
        excess = self.order - 1
        gain = math.log1p(-1 / self.order) - math.log(self.order) / excess
        return self._add_tail(delta, gain)

    def throughout(self, delta: float) -> Floats:
        """Return each person's ε that holds at all times at once, except with chance `delta`.

        Args:
            delta: In (0, 1).

        Guarantee:
            Rounded up; see the class.
        """
        return self._add_tail(delta, 0.0)

    def _add_tail(self, delta: float, constant: float) -> Floats:
        """Return loss + log(1/δ)/(α−1) + constant, at least 0, rounded up."""
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        tail = -math.log(delta) / (self.order - 1)
        rounding = 16 * ULP * (tail + abs(constant))
        epsilon = self.loss * (1 + 4 * ULP) + (tail + constant + rounding)
        return np.asarray(np.maximum(epsilon, 0.0))


def _charge_block(
    norms: Floats, scale: float, limit: Floats, spent: Floats, active: Mask, work: Floats
) -> None:
    """Add each norm's charge to `spent` where the sum stays within `limit`; set `active`."""
    total = work[: norms.size]
    np.multiply(norms, scale, out=total)
    if scale == math.inf:
        # Of noise below all normal numbers: a norm of 0 stays free.
        np.copyto(total, 0.0, where=norms == 0)
    small = total < SMALL
    np.multiply(total, total, out=total)
    np.add(total, spent, out=total)
    # Makes up for rounding in the sum and in the square.
    np.multiply(total, 1 + 4 * ULP, out=total)
    # A square that underflows would be free or too cheap: the least normal number covers it.
    if small.any():
        np.add(total, np.finfo(np.float64).tiny, out=total, where=small & (norms > 0))
        # Free: no rounding of a sum to make up for.
        np.copyto(total, spent, where=norms == 0)
    np.less_equal(total, limit, out=active)
    np.copyto(spent, total, where=active)


def _check_orders(order: npt.ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return Rényi orders, all in (1, ∞), broadcast to `shape`."""
    array = np.asarray(order, dtype=np.float64)
    if not ((array > 1) & (array < math.inf)).all():
        raise InputError(f"order = {order!r}: must be in (1, inf); the order is fixed in advance")
    try:
        return np.broadcast_to(array, shape)
    except ValueError:
        raise InputError(f"order: shape {array.shape}, but there are persons {shape}") from None


def _check_budgets(epsilon: npt.ArrayLike, delta: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return checked budgets of one shape."""
    eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
    dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
    try:
        eps, dlt = np.broadcast_arrays(eps, dlt)
    except ValueError:
        raise BudgetError(
            f"epsilon has shape {eps.shape}, delta {dlt.shape}; give one entry a person"
        ) from None
    return eps, dlt
