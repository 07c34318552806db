"""Hybrid: between Scale and Sample, as far as each record's bound on the excess risk allows."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.accounting.divergence import excesses
from apiece.assignment.request import Request, Strategy
from apiece.assignment.sample import Sample
from apiece.assignment.scale import Scale, make_scaled_plan
from apiece.assignment.solve import (
    RateCurve,
    find_crossing,
    find_harmonic_noise,
    find_level_noise,
    require_few,
    solve_noise,
)
from apiece.errors import BudgetError, as_given
from apiece.numerics.roots import safe_ends
from apiece.plan import Plan
from apiece.plan.parts import sampled_steps

# How closely a group's limit is found, in log q.
PRECISION = 2e-3
# The smallest rate.
MIN_RATE = 1e-12
# The share of the way to where a group's bound should be met up to which it is likely kept.
LIKELY = 0.97
# The relative difference below which two rates are the same.
SAME_RATE = 1e-13
# How far below the bound on Δ is aimed, relative to it: outweighs the rounding of the joint
# solution.
BACKOFF = 1e-4


@dataclass(frozen=True, slots=True)
class Hybrid(Strategy):
    """Each group moves on its own curve of equal (ε_g, δ_g), as far as Δ ≤ Δ̄_g lets it.

    On its curve a group's rate q decides its noise multiplier z_g(q). At Scale's point q = q̄ = B/n
    its mechanism is the baseline of Kaiser et al. 2026, Def. 8, and Δ (the larger of both
    directions) grows on either side: Δ̄_g allows an interval of q around q̄. Within it each group
    takes the rate of one common noise multiplier ζ, which is solved for mean q = q̄; then S and
    c_g = S/z_g for mean c = c̄.

    Attributes:
        excess: One bound Δ̄ for all, beside each record's own (`Budgets.excess`): the smaller
            counts. None for the records' own. 0 for all is Scale's plan, 1 for all Sample's.

    Raises:
        InputError: For a bound outside [0, 1].

    Guarantee:
        Each record's Δ is at most its bound, whatever the others ask.

    References:
        Kaiser et al. 2026, Def. 8; the strategy is ours.

    Example:
        >>> from apiece import Budgets, Hybrid, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Hybrid(0.0), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.stages[0].sampling_probability.tolist()
        [0.1, 0.1]
    """

    name: ClassVar[str] = "hybrid"
    excess: float | None = None

    def __post_init__(self) -> None:
        if self.excess is not None:
            _check.put(self, excess=_check.probability)

    def plan(self, request: Request) -> Plan:
        """Return the plan with a rate and a clip norm a group."""
        groups = request.groups
        if groups.excess is None and self.excess is None:
            raise BudgetError(
                "Hybrid: the budgets carry no bound on the excess risk; give "
                + as_given("Hybrid(excess=…) or Budgets(…, excess=…)", flag="--option excess=0.02")
            )
        bound = np.ones(len(groups)) if groups.excess is None else groups.excess
        if self.excess is not None:
            bound = np.minimum(bound, self.excess)
        if (bound <= 0).all():
            # Nobody may move from the baseline.
            return replace(Scale().plan(request), strategy=self.name)
        if (bound >= 1).all():
            # Everybody moves freely.
            return replace(Sample().plan(request), strategy=self.name)
        require_few(f"strategy {self.name}", len(groups))
        rates, z = _solve_jointly(request, bound)
        return make_scaled_plan(request, self.name, rates, z)


def _solve_jointly(request: Request, bound: Floats) -> tuple[Floats, Floats]:
    """Return rates with mean q̄, each within the interval that its bound allows; the noise there."""
    # Intervals are found only where the solution without them goes too far; each pass adds some.
    size = len(request.groups)
    q = request.mean_probability
    # A bound of 0 holds a group at q̄; all others may go anywhere until they are seen to go too
    # far.
    low = np.where(bound <= 0, q, MIN_RATE)
    high = np.where(bound <= 0, q, 1.0)
    intervals = Intervals(request, bound)
    common = CommonNoise(request, bound > 0)
    # The lower and the upper end of each interval, once it is known to keep the bound.
    ends = np.full((2, size), np.nan)
    # About the distance of log q from that of q̄, up to which a group keeps its bound.
    reach = np.full(size, np.nan)
    while True:
        rates = common.find_rates(low, high)
        # A group that stands at an end that was found for it keeps its bound.
        unsure = (bound > 0) & (bound < 1) & (rates != ends).all(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            progress = np.log(rates / q) / reach
        # Groups likely to be within their bound are looked at last, once the others are.
        likely = (progress > 0) & (progress < LIKELY)
        for groups in (np.flatnonzero(unsure & ~likely), np.flatnonzero(unsure & likely)):
            limits, reach[groups] = intervals.find_limits(groups, rates[groups])
            tight = limits != rates[groups]
            for g, limit in zip(groups[tight], limits[tight], strict=True):
                # The interval reaches from this limit to the other side of q̄.
                if rates[g] > q:
                    high[g] = limit
                    ends[1, g] = limit
                else:
                    low[g] = limit
                    ends[0, g] = limit
            if tight.any():
                # All other rates will move: solve anew before looking at more groups.
                break
        else:
            return rates, intervals.solve_noise(np.arange(size), rates)


class CommonNoise:
    """The rates of one common noise multiplier ζ, within intervals that become narrower.

    Args:
        request: The budgets and the settings of the training.
        moving: The groups whose rate may be another than q̄.
    """

    def __init__(self, request: Request, moving: Mask) -> None:
        self._request = request
        self._moving = moving
        epsilon = request.target
        delta = request.groups.delta
        self._curve = RateCurve(request, epsilon[moving], delta[moving], request.share[moving])
        # The common noise lies between what the loosest and what the strictest need at q̄.
        self._low = find_level_noise(request, "loosest", epsilon)
        self._high = find_level_noise(request, "strictest", epsilon)
        # The ζ of the last pass, near which the next one lies.
        self._zeta = find_harmonic_noise(request)

    def find_rates(self, low: Floats, high: Floats) -> Floats:
        """Return the rates with mean q̄, each clipped to [low, high]."""
        share = self._request.share
        q = self._request.mean_probability

        # The mean rate grows with ζ: more common noise lets everybody take part more often.
        def measure_room(zeta: float) -> float:
            return float(np.log(share @ self._rates_at(zeta, low, high) / q))

        self._zeta = find_crossing(measure_room, self._zeta, self._low, self._high)
        rates = self._rates_at(self._zeta, low, high)
        # Scaling moves the free groups only; those at a limit or at q̄ stay where they are.
        fixed = (rates <= low) | (rates >= high)
        free_sum = float(share[~fixed] @ rates[~fixed])
        wanted = q - float(share[fixed] @ rates[fixed])
        factor = wanted / free_sum if free_sum > 0 else 1.0
        return np.where(fixed, rates, np.clip(rates * factor, low, high))

    def _rates_at(self, zeta: float, low: Floats, high: Floats) -> Floats:
        rates = np.full(len(low), self._request.mean_probability)
        rates[self._moving] = self._curve.at(zeta)
        return np.asarray(np.clip(rates, low, high))


class Intervals:
    """Each group's curve of equal (ε, δ), and how far from its baseline the bound lets it go."""

    def __init__(self, request: Request, bound: Floats) -> None:
        self._request = request
        self._bound = bound
        # By group; each is made when it is first needed.
        self._baselines: dict[int, PrivacyCurve] = {}
        # Each group's last rate, and the noise multiplier that was found for it.
        self._rates = np.full(len(request.groups), np.nan)
        self._noise = np.full(len(request.groups), np.nan)

    def make_curves(self, groups: Integers, q: Floats) -> list[PrivacyCurve]:
        """Return the curves of some groups with rates q that spend their (ε, δ)."""
        # By PLD whatever the noise is calibrated with, as plans measure Δ: it needs lower bounds
        # too, which Rényi accounting has none of.
        pairs = zip(self.solve_noise(groups, q).tolist(), q.tolist(), strict=True)
        runs = [sampled_steps(z, rate, self._request.steps) for z, rate in pairs]
        return [privacy_curve(run, method="pld") for run in runs]

    def solve_noise(self, groups: Integers, q: Floats) -> Floats:
        """Return the noise multipliers with which some groups spend their (ε, δ) at rates q."""
        # Only for rates that moved since the last call: a pass moves few.
        moved = ~(np.abs(self._rates[groups] / q - 1) < SAME_RATE)
        changed = groups[moved]
        epsilon = self._request.target[changed]
        delta = self._request.groups.delta[changed]
        self._noise[changed] = solve_noise(self._request, epsilon, delta, q[moved])
        self._rates[changed] = q[moved]
        return np.asarray(self._noise[groups])

    def find_limits(self, groups: Integers, q: Floats) -> tuple[Floats, Floats]:
        """Return the farthest rates up to q where Δ ≤ bound, and about their log from that of q̄."""
        if not groups.size:
            return q, q
        self._add_baselines(groups)
        baseline_rate = self._request.mean_probability
        bound = self._bound[groups]
        begin = np.full(q.shape, math.log(baseline_rate))
        end = np.log(q)
        room = self._measure_room(groups, end)
        # Δ starts out linear in the distance from q̄: so far up to where the bound is met.
        reach = (end - begin) * bound / np.maximum(bound - room, BACKOFF * bound)
        # The groups that go too far, among which a limit is sought.
        far = np.flatnonzero(room < 0)
        far_begin = begin[far]
        far_end = end[far]
        slope = (bound - room)[far] / np.abs(far_end - far_begin)
        found = safe_ends(
            lambda log_q, rows: self._measure_room(groups[far[rows]], log_q),
            far_begin + reach[far],
            far_begin,
            far_end,
            slope=slope,
            tolerance=PRECISION * slope,
            narrow=PRECISION,
        )
        limits = q.copy()
        stays = (found == far_begin) | np.isnan(found)
        # Where nothing beyond q̄ keeps the bound, the group stays at its baseline.
        limits[far] = np.where(stays, baseline_rate, np.exp(found))
        return limits, reach

    def _add_baselines(self, groups: Integers) -> None:
        """Make the baseline curves of those groups that have none yet."""
        absent = [g for g in groups.tolist() if g not in self._baselines]
        if absent:
            q = np.full(len(absent), self._request.mean_probability)
            curves = self.make_curves(np.array(absent, dtype=np.intp), q)
            self._baselines |= dict(zip(absent, curves, strict=True))

    def _measure_room(self, groups: Integers, log_q: Floats) -> Floats:
        """Return how far below its bound, less `BACKOFF`, each group's Δ is at a rate."""
        bound = self._bound[groups]
        curves = self.make_curves(groups, np.exp(log_q))
        baselines = [self._baselines[g] for g in groups.tolist()]
        # A Δ far below the bound need not be known closely.
        differences = excesses(baselines, curves, negligible=(bound / 4).tolist())
        upper = np.array([difference.symmetric.upper for difference in differences])
        return np.asarray(bound * (1 - BACKOFF) - upper)
