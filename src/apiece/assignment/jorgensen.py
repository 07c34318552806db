"""JorgensenSampling: one secret coin decides whether a record takes part at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from apiece import _check
from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.assignment.request import Floats, Request
from apiece.assignment.solve import ROUND, uniform_noise
from apiece.assignment.waste import best_threshold, check_loss, participation
from apiece.errors import BudgetError, InfeasibleError
from apiece.mechanisms import Gaussian, Repeated, Sampled
from apiece.plan import Plan, Stage

PASSES = 4
AIM = 1 - 3e-4  # what a lattice of losses may add to the amplification formula


@dataclass(frozen=True, slots=True)
class JorgensenSampling:
    """The data set is sampled once, record i with π_i, then standard DP-SGD runs at τ on it.

    threshold: τ, or None for the one that wastes least by `loss` (see `waste`): the weight of
    budgets that stay out, or "adaptive". Records that ask for τ or more join for certain; of the
    others π_i is the largest for which (ε_i, δ_i) holds, about (e^ε_i − 1)/(e^τ − 1).

    The coins stay secret and the batch is divided by its expected size, which Heo et al. 2023 takes
    from the realised sample. Each record's mechanism is `Sampled(Repeated(Sampled(Gaussian)))`.

    Raises `BudgetError` for a τ that is not positive, `InfeasibleError` where the records that
    are expected to join are fewer than a batch. Source: Heo et al. 2023 Def. 4.1 and B.1;
    Jorgensen, Yu, Cormode 2015.
    """

    name: ClassVar[str] = "jorgensen"
    threshold: float | None = None
    loss: float | str = 0.2

    def __post_init__(self) -> None:
        if self.threshold is not None:
            tau = _check.positive("threshold", self.threshold, error=BudgetError)
            object.__setattr__(self, "threshold", tau)
        object.__setattr__(self, "loss", check_loss("loss", self.loss))

    def plan(self, request: Request) -> Plan:
        """Return the plan of one stage with a participation a group."""
        groups = request.groups
        tau = self.threshold or best_threshold(groups.epsilon, groups.records, self.loss)
        tau = min(tau, float(groups.epsilon.max()))
        joins = participation(groups.epsilon, tau)
        sure = groups.epsilon >= tau
        for _ in range(PASSES):
            q = inner_rate(request, joins)
            z = uniform_noise(request, np.full(int(sure.sum()), tau), groups.delta[sure], q)
            curve = privacy_curve(_run(z, q, request.steps), method=request.method)
            joins = np.where(sure, 1.0, _largest(curve, groups.epsilon * AIM, groups.delta))
        q = min(q, inner_rate(request, joins))
        expected = float(q * joins @ groups.records)
        ones = np.ones(len(groups))
        stage = Stage(
            steps=request.steps,
            expected_batch_size=expected,
            noise_stddev=z * request.clip_norm / ROUND,
            sampling_probability=q * ones,
            clip_norm=request.clip_norm * ones,
            participation=joins,
        )
        return request.plan(self.name, (stage,), saturated=np.zeros(len(groups), dtype=bool))


def inner_rate(request: Request, joins: Floats) -> float:
    """Return the rate among those who joined that gives the batch size asked."""
    expected = float(joins @ request.groups.records)
    if expected < request.expected_batch_size:
        raise InfeasibleError(
            f"expected_batch_size = {request.expected_batch_size:g}: at this threshold "
            f"{expected:g} records are expected to join; ask for at most that, or lower the "
            "threshold"
        )
    return request.expected_batch_size / expected


def _run(z: float, q: float, steps: int) -> Repeated:
    return Repeated(Gaussian(z) if q == 1 else Sampled(Gaussian(z), q), steps)


def _largest(curve: PrivacyCurve, epsilon: Floats, delta: Floats) -> Floats:
    """Return the largest π that keeps (ε, δ) when `curve` runs on a record that joins with π.

    δ_π(ε) ≤ π·δ(log(1 + (e^ε − 1)/π)) in both directions; increasing in π. Bisected in log π.
    """
    # δ falls with its level, so reading it at most here bounds it beyond, and is negligible
    reach = float(np.max(curve.epsilon(float(delta.min()) * 1e-3).upper))
    low, high = np.full(epsilon.shape, -60.0), np.zeros(epsilon.shape)
    for _ in range(40):
        middle = (low + high) / 2
        # log(1 + (e^ε − 1)/π) without overflow
        level = epsilon + np.logaddexp(-epsilon, -middle + np.log(-np.expm1(-epsilon)))
        spent = np.exp(middle) * np.asarray(curve.delta(np.minimum(level, reach)).upper)
        keeps = spent <= delta * (1 - 1e-9)
        low, high = np.where(keeps, middle, low), np.where(keeps, high, middle)
    return np.asarray(np.exp(low))
