"""Strategies side by side, before anything is trained: what each makes of the same budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from apiece._types import Json
from apiece.assignment.front import assign
from apiece.assignment.request import Strategy
from apiece.budgets import Budgets
from apiece.errors import InfeasibleError, UnsupportedError
from apiece.plan import UNSPENT, Plan

COMPARED = ("uniform", "scale", "sample", "threshold")


@dataclass(frozen=True, slots=True)
class Compared:
    """What one strategy makes of budgets; public numbers alone.

    Attributes:
        strategy: Its name.
        noise_over_signal: The noise's standard deviation over the expected sum of a step if every
            record clips, a root mean square over steps; less is better.
        unspent: The share of records whose group spends less than 95 % of the ε it asked.
        excess: The largest Δ of a group towards more vulnerable; None where it is not computed.
        objection: Why the plan must not be released, or why there is none; None for a sound plan.

    Example:
        >>> Compared("scale", 0.02, 0.0, 0.01, None).strategy
        'scale'
    """

    strategy: str
    noise_over_signal: float | None
    unspent: float | None
    excess: float | None
    objection: str | None

    def to_dict(self) -> Json:
        """Return it as JSON types."""
        return asdict(self)


def compare(
    budgets: Budgets,
    strategies: Sequence[Strategy | str] = COMPARED,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float = 1.0,
    method: str = "pld",
) -> tuple[Compared, ...]:
    """Return what each strategy makes of the same budgets, in the order given.

    A plan is made and verified for each, and none is run: it costs nobody anything.

    Args:
        budgets: What everyone asked for.
        strategies: Names or strategies, as for `assign`.
        steps: How many updates.
        expected_batch_size: Of each.
        clip_norm: The mean bound on a record's gradient.
        method: Of accounting.

    Raises:
        InputError: As `assign` does, but for a strategy that cannot meet the request: what it says
            is in `objection`.

    Example:
        >>> budgets = Budgets([1.0] * 300 + [4.0] * 300, 1e-5)
        >>> uniform, scale = compare(budgets, COMPARED[:2], steps=50, expected_batch_size=60)
        >>> scale.noise_over_signal < uniform.noise_over_signal
        True
    """
    found = []
    for strategy in strategies:
        try:
            plan = assign(
                budgets,
                strategy,
                steps=steps,
                expected_batch_size=expected_batch_size,
                clip_norm=clip_norm,
                method=method,
            )
        except (InfeasibleError, UnsupportedError) as error:
            name = strategy if isinstance(strategy, str) else strategy.name
            found.append(Compared(name, None, None, None, str(error)))
        else:
            found.append(_compared(plan))
    return tuple(found)


def _compared(plan: Plan) -> Compared:
    records = plan.budget_groups.records
    forward = plan.measures.forward
    return Compared(
        strategy=plan.strategy,
        noise_over_signal=noise_over_signal(plan),
        unspent=float(records @ (plan.spent_share < UNSPENT) / records.sum()),
        excess=None if forward is None else float(forward.max()),
        objection=plan.objections[0] if plan.objections else None,
    )


def noise_over_signal(plan: Plan) -> float:
    """Return S / Σ q_i·c_i, a root mean square over steps: less is better.

    Args:
        plan: Of any number of stages.

    Example:
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), "scale", steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> round(noise_over_signal(plan) / (plan.noise_stddev / 10), 6)
        1.0
    """
    records, squares = plan.budget_groups.records, 0.0
    for stage in plan.stages:
        signal = float(records @ (stage.chances() * stage.clip_norm))
        squares += stage.steps * (stage.noise_stddev / signal) ** 2
    return float(np.sqrt(squares / plan.steps))
