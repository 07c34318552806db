"""The attacks of Kaiser et al. 2026: what a record's own budget does not protect it from.

With Sample, everyone else's budget moves the shared noise, and with it a record's whole privacy
curve, though (ε, δ) stays as promised. A central adversary (budget manipulation) or other
contributors (collusion) ask for less than they would, and the target leaks more. Theory comes
from plans alone; practice from shadow models under one frozen plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece.accounting import Bounds
from apiece.assignment import Strategy, assign
from apiece.audit.records import positions
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.plan import Plan, excess_of


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """What the target faces when the others ask as they do in `plan`.

    label: what the others do. epsilon: what the target is charged at its δ, at most what it
    asked. advantage: bounds on the largest TPR − FPR of any membership test. forward, backward:
    Δ-divergence of the target's curve from the uniform mechanism with its (ε, δ): more, and less,
    vulnerable than promised.
    """

    label: str
    plan: Plan = field(repr=False)
    group: int = field(repr=False)
    epsilon: Bounds = field(repr=False)
    advantage: Bounds = field(repr=False)
    forward: Bounds = field(repr=False)
    backward: Bounds = field(repr=False)

    def to_dict(self) -> dict[str, float | str]:
        """Return the figures as JSON types, upper ends."""
        return {
            "others": self.label,
            "epsilon_spent": float(self.epsilon.upper),
            "advantage": float(self.advantage.upper),
            "excess": float(self.forward.upper),
            "excess_backward": float(self.backward.upper),
            "sampling_probability": float(self.plan.stages[0].sampling_probability[self.group]),
            "noise_multiplier": float(
                self.plan.stages[0].noise_stddev / self.plan.stages[0].clip_norm[self.group]
            ),
        }


def budget_manipulation(
    budgets: Budgets,
    target: Any,
    *,
    decoys: Sequence[float],
    strategy: Strategy | str,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str = "pld",
) -> list[Exposure]:
    """Return the target's exposure when all others are given smaller budgets than they asked.

    The adversary keeps every promise: the target keeps its own budget, everyone else gets the
    smaller of what they asked and each of `decoys` in turn. The first entry is the honest plan.
    budgets: what the records ask, bounds Δ̄ included (a strategy that keeps them is not moved past
    them). target: a record's id.

    Guarantee: the figures bound every attack of any strength; they hold for the plan, whatever
    the data. Raises `DataError` for an unknown target, and whatever `assign` raises.
    Source: Kaiser et al. 2026 Def. 5, §V-A.
    """
    at = _position(budgets, target)
    asked = [("as asked", budgets)]
    for decoy in decoys:
        value = _check.positive("decoy", decoy)
        epsilon = np.minimum(budgets.epsilon, value)
        epsilon[at] = budgets.epsilon[at]
        asked.append((f"at most {value:g}", _with_epsilon(budgets, epsilon)))
    return _exposures(asked, at, strategy, steps, expected_batch_size, clip_norm, method)


def collusion(
    budgets: Budgets,
    target: Any,
    *,
    epsilon: float,
    shares: Sequence[float],
    strategy: Strategy | str,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    generator: np.random.Generator,
    method: str = "pld",
) -> list[Exposure]:
    """Return the target's exposure when a share of the others ask for `epsilon` together.

    The colluders, drawn at random and growing with the share, may ask for any budget, smaller or
    larger than their own; the target and the rest stay as they are. The first entry is the honest
    plan. Raises as `budget_manipulation`. Source: Kaiser et al. 2026 Def. 6, §V-B.
    """
    at = _position(budgets, target)
    value = _check.positive("epsilon", epsilon)
    others = np.flatnonzero(np.arange(len(budgets)) != at)
    order = generator.permutation(others)
    asked = [("as asked", budgets)]
    for share in shares:
        share = _check.probability("share", share)
        changed = budgets.epsilon.copy()
        changed[order[: round(share * others.size)]] = value
        asked.append((f"{share:.0%} ask {value:g}", _with_epsilon(budgets, changed)))
    return _exposures(asked, at, strategy, steps, expected_batch_size, clip_norm, method)


def _position(budgets: Budgets, target: Any) -> int:
    if len(budgets) < 2:
        raise DataError("budgets: 1 record; an attack needs others beside the target")
    return int(positions(np.asarray(budgets.ids), np.atleast_1d(np.asarray(target)))[0])


def _with_epsilon(budgets: Budgets, epsilon: npt.NDArray[np.float64]) -> Budgets:
    return Budgets(epsilon, budgets.delta, excess=budgets.excess, ids=budgets.ids)


def _exposures(
    asked: list[tuple[str, Budgets]],
    at: int,
    strategy: Strategy | str,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str,
) -> list[Exposure]:
    found = []
    for label, budgets in asked:
        plan = assign(
            budgets,
            strategy,
            steps=steps,
            expected_batch_size=expected_batch_size,
            clip_norm=clip_norm,
            method=method,
        )
        found.append(exposure(plan, int(budgets.group_index[at]), label=label))
    return found


def exposure(plan: Plan, group: int, *, label: str = "") -> Exposure:
    """Return what a record of `group` faces under `plan`, against the plan's reference."""
    curve = plan.curve(group)
    gap = excess_of(plan, group, curve)
    return Exposure(
        label=label,
        plan=plan,
        group=group,
        epsilon=curve.epsilon(float(plan.budgets.delta[group])),
        advantage=curve.advantage(),
        forward=gap.forward,
        backward=gap.backward,
    )


def one_plan(*plans: Plan) -> Plan:
    """Return the plan that all worlds of an audit share; raise `InputError` if they differ.

    A plan made again without the target differs in its rates and noise, so it shows by itself
    whether the target took part, whatever is trained with it.
    """
    if not plans:
        raise InputError("plans: none given")
    for at, plan in enumerate(plans[1:], start=1):
        if plan.hash() != plans[0].hash():
            raise InputError(
                f"plan of world {at}: differs from that of world 0; make one plan with the target "
                "and use it in every world, or the plan itself gives the target away"
            )
        own, first = plan.group_index, plans[0].group_index
        if own is not None and first is not None and not np.array_equal(own, first):
            raise InputError(
                f"plan of world {at}: its records are in other groups than in world 0; bind one "
                "plan to one table of budgets"
            )
    return plans[0]
