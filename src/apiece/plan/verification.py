"""What a plan really spends, recomputed from its own numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from apiece.accounting import PrivacyCurve, privacy_curve
from apiece.budgets import Budgets
from apiece.errors import InputError, VerificationError

if TYPE_CHECKING:
    from apiece.plan.model import Plan

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """Upper bounds on what each group spends, one entry a group.

    epsilon_spent: ε at the group's own δ. advantage: the largest TPR − FPR of a membership test.
    """

    epsilon_spent: Floats
    advantage: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Verification:
    """A plan's promises beside what it spends; one entry a group.

    epsilon: the strictest ε asked by any record of the group; epsilon_spent: an upper bound on
    what is spent at delta; kept: whether spent ≤ asked.
    """

    name: npt.NDArray[Any]
    epsilon: Floats
    delta: Floats
    epsilon_spent: Floats
    kept: npt.NDArray[np.bool_]

    @property
    def ok(self) -> bool:
        """Whether every promise is kept."""
        return bool(self.kept.all())

    def require(self) -> None:
        """Raise `VerificationError`, naming the worst group, unless every promise is kept."""
        if self.ok:
            return
        worst = int(np.argmax(np.where(self.kept, -np.inf, self.epsilon_spent / self.epsilon)))
        raise VerificationError(
            f"plan: group {self.name[worst]} spends epsilon = {self.epsilon_spent[worst]:.6g} at "
            f"delta = {self.delta[worst]:g}, more than the {self.epsilon[worst]:.6g} it asked "
            f"({int((~self.kept).sum())} groups broken); make the plan anew"
        )


def measure(plan: Plan) -> Measures:
    """Return what `plan` spends, by the accounting it was made with."""
    curves = _curves(plan, plan.method)
    spent = _spent(curves, plan.budgets.delta)
    advantage = np.array([curve.advantage().upper for curve in curves])
    return Measures(spent, advantage)


def verify(plan: Plan, budgets: Budgets | None, method: str) -> Verification:
    """Return the verification of `plan` against `budgets`, or what it was made for."""
    own = plan.budgets
    spent = (
        plan.measures.epsilon_spent
        if method == plan.method
        else _spent(_curves(plan, method), own.delta)
    )
    asked, asked_delta = own.epsilon, own.delta
    if budgets is not None:
        asked, asked_delta = _strictest(plan, budgets)
    kept = (spent <= asked) & (own.delta <= asked_delta)
    return Verification(own.name, asked, own.delta, spent, kept)


def _curves(plan: Plan, method: str) -> list[PrivacyCurve]:
    """Return each group's curve; groups with equal mechanisms share one."""
    made: dict[Any, PrivacyCurve] = {}
    curves = []
    for g in range(len(plan.budgets)):
        mechanism = plan.mechanism_for(g)
        if mechanism not in made:
            made[mechanism] = privacy_curve(mechanism, method=method)
        curves.append(made[mechanism])
    return curves


def _spent(curves: list[PrivacyCurve], delta: Floats) -> Floats:
    return np.array([c.epsilon(float(d)).upper for c, d in zip(curves, delta, strict=True)])


def _strictest(plan: Plan, budgets: Budgets) -> tuple[Floats, Floats]:
    """Return the smallest ε and the smallest δ that any record of each plan group asked."""
    if plan.group_index is None or plan.ids is None:
        plan = plan.bind(budgets)
    assert plan.group_index is not None
    assert plan.ids is not None
    order = np.argsort(budgets.ids, kind="stable")
    found = np.searchsorted(budgets.ids, plan.ids, sorter=order)
    place = order[np.minimum(found, len(budgets) - 1)]
    missing = budgets.ids[place] != plan.ids
    if missing.any():
        raise InputError(
            f"budgets: no record with id {plan.ids[missing][0]!s} ({int(missing.sum())} of the "
            "plan's records are missing); give the budgets of every record of the plan"
        )
    epsilon = np.full(len(plan.budgets), np.inf)
    delta = np.full(len(plan.budgets), np.inf)
    np.minimum.at(epsilon, plan.group_index, budgets.epsilon[place])
    np.minimum.at(delta, plan.group_index, budgets.delta[place])
    return epsilon, delta
