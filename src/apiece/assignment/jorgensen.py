"""JorgensenSampling: one secret coin decides whether a record takes part; the least wasteful τ."""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Mask
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.assignment.request import Request, Strategy
from apiece.assignment.solve import ROUND, find_uniform_noise
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.numerics.roots import bisect
from apiece.plan import Plan
from apiece.plan.parts import Stage, sampled_steps

# How many τ are tried, where budgets have more distinct values.
CANDIDATES = 400
# How many times rate, noise and chances, which depend on one another, are solved in turn.
PASSES = 4
# How many times as many records are to join, where too few did.
MORE_RECORDS = 1.25
# The share of ε that is aimed at: a lattice of losses may add to the amplification formula.
AIM = 1 - 3e-4
# The share of the smallest δ that is negligible: a curve is not read where its δ is smaller.
NEGLIGIBLE_DELTA = 1e-3
# The smallest log of a chance to join.
MIN_LOG_CHANCE = -60.0
# How many times the interval of log chances is halved.
BISECTIONS = 40
# A relative margin that outweighs the rounding of a sum or product.
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class JorgensenSampling(Strategy):
    """The data set is sampled once, record i with π_i, then standard DP-SGD runs at τ on it.

    Records that ask for τ or more join for certain; of the others π_i is the largest for which
    (ε_i, δ_i) holds, about (e^ε_i − 1)/(e^τ − 1). The coins stay secret and the batch is divided by
    its expected size, which Heo et al. 2023 takes from the realised sample. Each record's mechanism
    is `Sampled(Repeated(Sampled(Gaussian)))`; its ε is that of the run at δ/π, amplified by the
    coin, by PLD or by RDP.

    Attributes:
        threshold: τ, or None for the one that wastes least by `loss`, and is at most such that a
            batch's worth of records is expected to join.
        loss: The weight, in [0, 1], of budgets that stay out, or "adaptive".

    Raises:
        BudgetError: For a τ that is not positive.
        InputError: For another `loss`.

    References:
        Heo et al. 2023, Def. 4.1 and B.1; Jorgensen, Yu, Cormode 2015.

    Example:
        >>> from apiece import Budgets, JorgensenSampling, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, JorgensenSampling(3.0), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> plan.stages[0].participation.round(1).tolist()
        [0.1, 1.0]
    """

    name: ClassVar[str] = "jorgensen"
    threshold: float | None = None
    loss: float | str = 0.2

    def __post_init__(self) -> None:
        if self.threshold is not None:
            _check.put(self, threshold=partial(_check.positive, error=BudgetError))
        _check.put(self, loss=check_loss)

    def plan(self, request: Request) -> Plan:
        """Return the plan of one stage with a participation a group."""
        groups = request.groups
        z, q, chances = self._solve(request)
        size = len(groups)
        stage = Stage(
            steps=request.steps,
            expected_batch_size=float(q * chances @ groups.records),
            noise_stddev=z * request.clip_norm / ROUND,
            sampling_probability=np.full(size, q),
            clip_norm=np.full(size, request.clip_norm),
            participation=chances,
        )
        return request.plan(self.name, (stage,))

    def _solve(self, request: Request) -> tuple[float, float, Floats]:
        """Return noise multiplier, rate and chances of joining at τ, or at the best τ."""
        epsilon = request.groups.epsilon
        if self.threshold is not None:
            return _solve_run(request, min(self.threshold, float(epsilon.max())))
        joining = request.expected_batch_size
        while True:
            tau = find_threshold(epsilon, request.groups.records, self.loss, joining=joining)
            try:
                return _solve_run(request, tau)
            except InfeasibleError:
                # The formula for pure ε promised more than join where δ differ: ask for more.
                if not tau > epsilon.min():
                    raise
                joining = min(MORE_RECORDS * max(joining, 1.0), float(request.records))


def _solve_run(request: Request, tau: float) -> tuple[float, float, Floats]:
    """Return noise multiplier, rate and chances of joining of a run at τ."""
    groups = request.groups
    chances = compute_participation(groups.epsilon, tau)
    certain = groups.epsilon >= tau
    # Those who join for certain pay for the run itself, at most τ.
    epsilon = np.minimum(tau, request.target)[certain]
    for _ in range(PASSES):
        q = find_inner_rate(request, chances)
        z = find_uniform_noise(request, epsilon, groups.delta[certain], q)
        if certain.all():
            return z, q, chances
        # The others pay for the same run behind their coin.
        curve = privacy_curve(sampled_steps(z, q, request.steps), method=request.method)
        allowed = _find_chances(curve, request.target * AIM, groups.delta)
        chances = np.where(certain, 1.0, allowed)
    # A lower rate than the noise was solved for is safe.
    return z, min(q, find_inner_rate(request, chances)), chances


def find_inner_rate(request: Request, chances: Floats) -> float:
    """Return the rate among the records that joined that gives the batch size asked."""
    expected = float(chances @ request.groups.records)
    if expected < request.expected_batch_size * (1 - ROUNDING):
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: at this threshold "
            f"{expected:g} records are expected to join; ask for at most that, or lower the "
            "threshold"
        )
    return min(request.expected_batch_size / expected, 1.0)


def _find_chances(curve: PrivacyCurve, epsilon: Floats, delta: Floats) -> Floats:
    """Return the largest π that keeps (ε, δ) when `curve` runs on a record that joins with π."""
    # δ_π(ε) ≤ π·δ(log(1 + (e^ε − 1)/π)) in both directions; increasing in π. Bisected in log π.
    # δ falls with its level, so that what it is at this one bounds it beyond, and is negligible.
    max_level = float(np.max(curve.epsilon(float(delta.min()) * NEGLIGIBLE_DELTA).upper))

    def keeps_budget(log_pi: Floats) -> Mask:
        # log(1 + (e^ε − 1)/π) without overflow.
        level = epsilon + np.logaddexp(-epsilon, -log_pi + np.log(-np.expm1(-epsilon)))
        run_delta = np.asarray(curve.delta(np.minimum(level, max_level)).upper)
        return np.asarray(np.exp(log_pi) * run_delta <= delta * (1 - ROUNDING))

    low = np.full(epsilon.shape, MIN_LOG_CHANCE)
    log_pi, _ = bisect(keeps_budget, low, 0.0, rounds=BISECTIONS)
    return np.asarray(np.exp(log_pi))


def compute_participation(epsilon: Floats, tau: float) -> Floats:
    """Return each record's chance of joining a run at τ: (e^ε − 1)/(e^τ − 1), at most 1."""
    # Heo et al. 2023 Eq. 4, written so that no exponential overflows.
    capped = np.minimum(epsilon, tau)
    chance = np.exp(capped - tau) * np.expm1(-capped) / np.expm1(-tau)
    return np.asarray(np.clip(np.where(epsilon >= tau, 1.0, chance), 0.0, 1.0))


def check_loss(name: str, loss: float | str) -> float | str:
    """Return `loss` if it is "adaptive" or a weight in [0, 1]."""
    if loss == "adaptive":
        return loss
    if isinstance(loss, str):
        raise InputError(f"{name} = {loss!r}: must be 'adaptive' or a weight in [0, 1]")
    return _check.probability(name, loss)


def find_threshold(
    epsilon: Floats, records: npt.NDArray[np.int64], loss: float | str, *, joining: float = 0.0
) -> float:
    """Return the smallest τ that wastes least, at which `joining` records are expected to join.

    Args:
        epsilon: Each group's budget; one with 0 has none left.
        records: Each group's size.
        loss: The weight w1 of what is wasted below τ; that above has 1 − w1 (loss_f, Heo et al.
            2023 Eq. 6). Or "adaptive", each weighted by its share of the total (loss_a: the weights
            of Eq. 7, not its product formula, which does not follow from them and is 0 at both
            ends).
        joining: How many; where that is out of reach, the smallest ε is τ.
    """
    active = epsilon > 0
    values = epsilon[active]
    counts = records[active]
    # Sought among all distinct ε and a fine grid.
    levels = np.unique(values)
    if levels.size > CANDIDATES:
        levels = np.quantile(levels, np.linspace(0, 1, CANDIDATES))
    evenly = np.linspace(levels[0], levels[-1], CANDIDATES)
    grid = np.unique(np.concatenate((levels, evenly)))
    expected = np.array([float(counts @ compute_participation(values, tau)) for tau in grid])
    grid = grid[(expected >= joining) | (grid == grid[0])]
    # Two wastes: ε_i·(1 − π_i) of records below τ, which may stay out; ε_i − τ of records above it.
    below = np.zeros(grid.size)
    above = np.zeros(grid.size)
    for position, tau in enumerate(grid):
        stays_out = 1 - compute_participation(values, tau)
        below[position] = counts @ (values * stays_out)
        above[position] = counts @ np.maximum(values - tau, 0)
    if isinstance(loss, str):
        total = below + above
        cost = np.divide(below**2 + above**2, total, out=np.zeros_like(total), where=total > 0)
    else:
        cost = loss * below + (1 - loss) * above
    return float(grid[int(np.argmin(cost))])
