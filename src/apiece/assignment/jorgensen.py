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
from apiece.assignment.solve import ROUND, uniform_noise
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.numerics.roots import bisect
from apiece.plan import Plan, Stage
from apiece.plan.parts import sampled_steps

CANDIDATES = 400  # of τ, where budgets have more distinct values
PASSES = 4
MORE = 1.25  # times as many to join, where too few did
AIM = 1 - 3e-4  # what a lattice of losses may add to the amplification formula


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
        groups, least, given = request.groups, request.expected_batch_size, self.threshold
        while True:
            if given is not None:
                tau = min(given, float(groups.epsilon.max()))
            else:
                tau = best_threshold(groups.epsilon, groups.records, self.loss, least=least)
            try:
                z, q, joins = _settled(request, tau)
                break
            except InfeasibleError:
                # The formula for pure ε promised more than join where δ differ.
                if given is not None or not tau > groups.epsilon.min():
                    raise
                least = min(MORE * max(least, 1.0), float(request.records))
        ones, batch = np.ones(len(groups)), float(q * joins @ groups.records)
        stddev, clips = z * request.clip_norm / ROUND, request.clip_norm * ones
        stage = Stage(request.steps, batch, stddev, q * ones, clips, participation=joins)
        return request.plan(self.name, (stage,))


def _settled(request: Request, tau: float) -> tuple[float, float, Floats]:
    """Return noise multiplier, rate and chances of joining of a run at τ."""
    groups = request.groups
    joins, sure = participation(groups.epsilon, tau), groups.epsilon >= tau
    for _ in range(PASSES):  # rate, noise and chances depend on one another
        q = inner_rate(request, joins)
        z = uniform_noise(request, np.minimum(tau, request.target)[sure], groups.delta[sure], q)
        if sure.all():
            return z, q, joins
        curve = privacy_curve(sampled_steps(z, q, request.steps), method=request.method)
        joins = np.where(sure, 1.0, _largest(curve, request.target * AIM, groups.delta))
    return z, min(q, inner_rate(request, joins)), joins


def inner_rate(request: Request, joins: Floats) -> float:
    """Return the rate among those who joined that gives the batch size asked."""
    expected = float(joins @ request.groups.records)
    if expected < request.expected_batch_size * (1 - 1e-9):
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: at this threshold "
            f"{expected:g} records are expected to join; ask for at most that, or lower the "
            "threshold"
        )
    return min(request.expected_batch_size / expected, 1.0)


def _largest(curve: PrivacyCurve, epsilon: Floats, delta: Floats) -> Floats:
    """Return the largest π that keeps (ε, δ) when `curve` runs on a record that joins with π."""
    # δ_π(ε) ≤ π·δ(log(1 + (e^ε − 1)/π)) in both directions; increasing in π. Bisected in log π.
    # δ falls with its level, so reading it at most here bounds it beyond, and is negligible
    reach = float(np.max(curve.epsilon(float(delta.min()) * 1e-3).upper))

    def keeps(log_pi: Floats) -> Mask:
        # log(1 + (e^ε − 1)/π) without overflow
        level = epsilon + np.logaddexp(-epsilon, -log_pi + np.log(-np.expm1(-epsilon)))
        spent = np.exp(log_pi) * np.asarray(curve.delta(np.minimum(level, reach)).upper)
        return np.asarray(spent <= delta * (1 - 1e-9))

    log_pi, _ = bisect(keeps, np.full(epsilon.shape, -60.0), 0.0, rounds=40)
    return np.asarray(np.exp(log_pi))


def participation(epsilon: Floats, tau: float) -> Floats:
    """Return each record's chance of joining a run at τ: (e^ε − 1)/(e^τ − 1), at most 1."""
    # Heo et al. 2023 Eq. 4, written so that no exponential overflows.
    least = np.minimum(epsilon, tau)
    chance = np.exp(least - tau) * np.expm1(-least) / np.expm1(-tau)
    return np.asarray(np.clip(np.where(epsilon >= tau, 1.0, chance), 0.0, 1.0))


def check_loss(name: str, loss: float | str) -> float | str:
    """Return `loss` if it is "adaptive" or a weight in [0, 1]."""
    if loss == "adaptive":
        return loss
    if isinstance(loss, str):
        raise InputError(f"{name} = {loss!r}: must be 'adaptive' or a weight in [0, 1]")
    return _check.probability(name, loss)


def best_threshold(
    epsilon: Floats, records: npt.NDArray[np.int64], loss: float | str, *, least: float = 0.0
) -> float:
    """Return the smallest τ that wastes least, as far as `least` records are expected to join."""
    # Two wastes: ε_i·(1 − π_i) of records below τ, which may stay out; ε_i − τ of records above it.
    # loss: the weight w1 of the first, the second has 1 − w1 (loss_f, Heo et al. 2023 Eq. 6); or
    # "adaptive", each weighted by its share of the total (loss_a: the weights of Eq. 7, not its
    # product formula, which does not follow from them and is 0 at both ends). Entries with ε = 0
    # have left. Sought among all distinct ε and a fine grid.
    left = epsilon > 0
    values, counts = epsilon[left], records[left]
    levels = np.unique(values)
    if levels.size > CANDIDATES:
        levels = np.quantile(levels, np.linspace(0, 1, CANDIDATES))
    grid = np.unique(np.concatenate((levels, np.linspace(levels[0], levels[-1], CANDIDATES))))
    joining = np.array([float(counts @ participation(values, tau)) for tau in grid])
    grid = grid[(joining >= least) | (grid == grid[0])]
    below = np.array([float(counts @ (values * (1 - participation(values, t)))) for t in grid])
    above = np.array([float(counts @ np.maximum(values - tau, 0)) for tau in grid])
    if isinstance(loss, str):
        total = below + above
        cost = np.divide(below**2 + above**2, total, out=np.zeros_like(total), where=total > 0)
    else:
        cost = loss * below + (1 - loss) * above
    return float(grid[int(np.argmin(cost))])
