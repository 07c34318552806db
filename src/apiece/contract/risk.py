"""How a victim's risk moves with the share and the budget of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from apiece import _check
from apiece._types import Floats, Json
from apiece.assignment import Sample, Strategy, assign
from apiece.budgets import Budgets
from apiece.contract.exposure import exposure
from apiece.errors import InputError
from apiece.plan import BoundPlan


@dataclass(frozen=True, slots=True, eq=False)
class RiskTable:
    """The victim's risk for each share (rows) and budget (columns) of the others.

    Attributes:
        victim_epsilon: What the victim asks.
        delta: Of everyone.
        strategy: By which the plans are made.
        shares: Of the others.
        epsilons: What they ask.
        advantage: (shares, epsilons), the most that any membership test gains.
        forward: The same shape: Δ towards more vulnerable than the reference.
        backward: The same shape: Δ towards less.
        baseline: The advantage when everyone asks what the victim does.

    Guarantee:
        `advantage`, `forward`, `backward` and `baseline` are upper bounds.

    Example:
        >>> one = np.ones((1, 1))
        >>> table = RiskTable(2.0, 1e-5, "sample", one[0], one[0], 0.3 * one, 0 * one, 0 * one, 0.2)
        >>> table.to_dict()["advantage"]
        [[0.3]]
    """

    victim_epsilon: float
    delta: float
    strategy: str
    shares: Floats
    epsilons: Floats
    advantage: Floats
    forward: Floats
    backward: Floats
    baseline: float

    def to_dict(self) -> Json:
        """Return the table as JSON types."""
        arrays = ("shares", "epsilons", "advantage", "forward", "backward")
        return {
            "victim_epsilon": self.victim_epsilon,
            "delta": self.delta,
            "strategy": self.strategy,
            "baseline_advantage": self.baseline,
            **{name: getattr(self, name).tolist() for name in arrays},
        }


def risk_table(
    *,
    records: int,
    victim_epsilon: float,
    delta: float,
    shares: Sequence[float],
    epsilons: Sequence[float],
    steps: int,
    expected_batch_size: float,
    strategy: Strategy | None = None,
    method: str = "pld",
    progress: Callable[[int, int], None] | None = None,
) -> RiskTable:
    """Return a victim's advantage and Δ, from plans alone, as the others' choices vary.

    For each share and ε a plan is made for two groups: `share` of the records ask ε, the others
    what the victim asks.

    Args:
        records: How many there are.
        victim_epsilon: What the victim asks.
        delta: Of everyone.
        shares: Of the others, in (0, 1).
        epsilons: What they ask.
        steps: As of `assign`.
        expected_batch_size: As of `assign`.
        strategy: Sample unless given.
        method: As of `assign`.
        progress: Called with (cells done, of how many).

    Raises:
        InputError: For a share that leaves either group empty, and values out of bounds.

    References:
        Kaiser et al. 2026, Fig. 3 and 8 to 10.

    Example:
        >>> table = risk_table(records=100, victim_epsilon=4.0, delta=1e-5, shares=[0.9],
        ...                    epsilons=[1.0, 4.0], steps=5, expected_batch_size=10)
        >>> bool(table.advantage[0, 0] > table.advantage[0, 1])
        True
    """
    size = _check.count("records", records, least=2)
    rows = np.array([_check.probability("share", s, low_open=True, high_open=True) for s in shares])
    columns = np.array([_check.positive("epsilon", e) for e in epsilons])
    if not rows.size or not columns.size:
        raise InputError("risk: give at least one share and one epsilon of the others")
    scheme = Sample() if strategy is None else strategy
    found = np.empty((rows.size, columns.size, 3))
    plan_for = partial(
        assign,
        strategy=scheme,
        steps=steps,
        expected_batch_size=expected_batch_size,
        clip_norm=1.0,
        method=method,
    )
    for i, share in enumerate(rows):
        for j, epsilon in enumerate(columns):
            groups = [("victim", victim_epsilon, 1 - share), ("others", float(epsilon), share)]
            budgets = Budgets.from_groups(groups, size, delta)
            found[i, j] = _risk(plan_for(budgets))
            if progress is not None:
                progress(i * columns.size + j + 1, rows.size * columns.size)
    alone = Budgets.from_groups([("victim", victim_epsilon, 1.0)], size, delta)
    baseline = _risk(plan_for(alone))[0]
    return RiskTable(
        victim_epsilon=float(victim_epsilon),
        delta=float(delta),
        strategy=scheme.name,
        shares=rows,
        epsilons=columns,
        advantage=found[:, :, 0],
        forward=found[:, :, 1],
        backward=found[:, :, 2],
        baseline=baseline,
    )


def _risk(plan: BoundPlan) -> tuple[float, float, float]:
    """Return advantage, forward and backward Δ of the first record, a victim; upper bounds."""
    found = exposure(plan, int(plan.group_index[0]))
    ends = found.advantage.upper, found.forward.upper, found.backward.upper
    advantage, forward, backward = map(float, ends)
    return advantage, forward, backward
