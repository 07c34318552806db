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
from apiece.assignment.scale import Scale, scaled
from apiece.assignment.solve import (
    Follow,
    crossing,
    harmonic_noise,
    level_noise,
    noise,
    require_few,
)
from apiece.errors import BudgetError, as_given
from apiece.numerics.roots import safe_ends
from apiece.plan import Plan
from apiece.plan.parts import sampled_steps

PRECISION = 2e-3  # of a group's limit, in log q
LEAST = 1e-12  # rate
LIKELY = 0.97  # of the way to where a group's bound should be met, up to which it is likely kept
SAME = 1e-13  # of a rate: no other one
BACKOFF = 1e-4  # relative, below the bound on Δ: outweighs the rounding of the joint solution


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
        own = groups.excess
        if own is None and self.excess is None:
            raise BudgetError(
                "Hybrid: the budgets carry no bound on the excess risk; give "
                + as_given("Hybrid(excess=…) or Budgets(…, excess=…)", flag="--option excess=0.02")
            )
        bound = np.ones(len(groups)) if own is None else own
        bound = np.minimum(bound, 1.0 if self.excess is None else self.excess)
        if (bound <= 0).all() or (bound >= 1).all():
            # Nobody may move, or everybody freely: Scale's plan, or Sample's.
            end = Scale() if (bound <= 0).all() else Sample()
            return replace(end.plan(request), strategy=self.name)
        require_few(f"strategy {self.name}", len(groups))
        return scaled(request, self.name, *_joint_rates(request, bound))


def _joint_rates(request: Request, bound: Floats) -> tuple[Floats, Floats]:
    """Return rates with mean q̄, each within the interval that its bound allows; the noise there."""
    # Intervals are found only where the solution without them goes too far; each pass adds some.
    groups, q = request.groups, request.mean_probability
    low = np.where(bound <= 0, q, LEAST)
    high = np.where(bound <= 0, q, 1.0)
    own, common = Intervals(request, bound), Common(request, bound > 0)
    seen = np.full((2, len(groups)), np.nan)  # ends of intervals that are known to keep the bound
    reach = np.full(len(groups), np.nan)  # about the log q, from q̄, up to which a group keeps it
    while True:
        rates = common.within(low, high)
        open_ = (bound > 0) & (bound < 1) & (rates != seen).all(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            inside = np.log(rates / q) / reach
        # Groups likely to be within their bound are looked at last, once the others are.
        likely = (inside > 0) & (inside < LIKELY)
        for some in (np.flatnonzero(open_ & ~likely), np.flatnonzero(open_ & likely)):
            limits, reach[some] = own.limits(some, rates[some])
            tight = limits != rates[some]
            for g, limit in zip(some[tight], limits[tight], strict=True):
                above = bool(rates[g] > q)
                (high if above else low)[g] = seen[int(above), g] = limit
            if tight.any():  # all other rates will move
                break
        else:
            return rates, own.noise(np.arange(len(groups)), rates)


class Common:
    """The rates of one common noise multiplier, within intervals that become narrower."""

    def __init__(self, request: Request, move: Mask) -> None:
        """move: the groups whose rate may be another than q̄."""
        self._request, self._move = request, move
        epsilon, delta = request.target, request.groups.delta
        self._follow = Follow(request, epsilon[move], delta[move], request.share[move])
        self._ends = [level_noise(request, of, epsilon) for of in ("loosest", "strictest")]
        self._zeta = harmonic_noise(request)

    def within(self, low: Floats, high: Floats) -> Floats:
        """Return the rates with mean q̄, each clipped to [low, high]."""
        share, q = self._request.share, self._request.mean_probability

        def room(zeta: float) -> float:
            return float(np.log(share @ self._at(zeta, low, high) / q))

        self._zeta = crossing(room, self._zeta, *self._ends)
        rates = self._at(self._zeta, low, high)
        # Scaling moves the free groups only; those at a limit or at q̄ stay where they are.
        fixed = (rates <= low) | (rates >= high)
        free_sum = float(share[~fixed] @ rates[~fixed])
        wanted = q - float(share[fixed] @ rates[fixed])
        factor = wanted / free_sum if free_sum > 0 else 1.0
        return np.where(fixed, rates, np.clip(rates * factor, low, high))

    def _at(self, zeta: float, low: Floats, high: Floats) -> Floats:
        rates = np.full(len(low), self._request.mean_probability)
        rates[self._move] = self._follow.at(zeta)
        return np.asarray(np.clip(rates, low, high))


class Intervals:
    """Each group's curve of equal (ε, δ), and how far from its baseline the bound lets it go."""

    def __init__(self, request: Request, bound: Floats) -> None:
        self._request, self._bound = request, bound
        self._baselines: dict[int, PrivacyCurve] = {}
        self._found = np.full((2, len(request.groups)), np.nan)  # the last rates, and the noise

    def curves(self, groups: Integers, q: Floats) -> list[PrivacyCurve]:
        """Return the curves of some groups with rates q that spend their (ε, δ)."""
        # By PLD whatever the noise is calibrated with, as plans measure Δ: it needs lower bounds
        # too, which Rényi accounting has none of.
        pairs = zip(self.noise(groups, q).tolist(), q.tolist(), strict=True)
        runs = [sampled_steps(z, rate, self._request.steps) for z, rate in pairs]
        return [privacy_curve(run, method="pld") for run in runs]

    def noise(self, groups: Integers, q: Floats) -> Floats:
        """Return the noise multipliers with which some groups spend their (ε, δ) at rates q."""
        # The last answers are kept: a pass moves few rates.
        new = ~(np.abs(self._found[0, groups] / q - 1) < SAME)
        some, request = groups[new], self._request
        z = noise(request, request.target[some], request.groups.delta[some], q[new])
        self._found[:, some] = q[new], z
        return np.asarray(self._found[1, groups])

    def limits(self, groups: Integers, q: Floats) -> tuple[Floats, Floats]:
        """Return the farthest rates up to q where Δ ≤ bound, and about their log from that of q̄."""
        if not groups.size:
            return q, q
        start = self._request.mean_probability
        new = np.array([g for g in groups.tolist() if g not in self._baselines], dtype=np.intp)
        if new.size:
            curves = self.curves(new, np.full(new.size, start))
            self._baselines |= dict(zip(new.tolist(), curves, strict=True))

        def room(log_q: Floats, at: Integers) -> Floats:
            some = groups[at]
            own, base = self.curves(some, np.exp(log_q)), [self._baselines[g] for g in some]
            deltas = excesses(base, own, negligible=(self._bound[some] / 4).tolist())
            upper = np.array([each.symmetric.upper for each in deltas])
            return np.asarray(self._bound[some] * (1 - BACKOFF) - upper)

        end, begin = np.log(q), np.full(q.shape, math.log(start))
        beyond, bound = room(end, np.arange(q.size)), self._bound[groups]
        reach = (end - begin) * bound / np.maximum(bound - beyond, BACKOFF * bound)
        far = np.flatnonzero(beyond < 0)
        end, begin = end[far], begin[far]
        # Δ starts out linear in the distance: a first slope, and where the bound should be met.
        slope, guess = (bound - beyond)[far] / np.abs(end - begin), begin + reach[far]
        ends = safe_ends(
            lambda log_q, at: room(log_q, far[at]),
            guess,
            begin,
            end,
            slope=slope,
            tolerance=PRECISION * slope,
            narrow=PRECISION,
        )
        limits = q.copy()
        limits[far] = np.where((ends == begin) | np.isnan(ends), start, np.exp(ends))
        return limits, reach
