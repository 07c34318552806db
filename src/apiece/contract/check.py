"""Whether a plan keeps each group's contract, and if not, why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.budgets import Budgets
from apiece.errors import UnsupportedError, VerificationError
from apiece.plan import Plan, Verification, excess_of

MOST = 500


@dataclass(frozen=True, slots=True)
class Clause:
    """One group's contract: what it asked, what it gets, whether that is kept.

    Attributes:
        group: Its name.
        epsilon: As asked.
        delta: As asked.
        bound: Δ̄ as asked; 1 where none was.
        epsilon_spent: What the plan spends.
        forward: Δ towards more vulnerable than the uniform mechanism of the same (ε, δ).
        backward: Δ towards less vulnerable.
        symmetric: The larger of the two, which is compared with the bound.
        kept: Whether the contract is kept.
        reason: "kept", or what breaks it.

    Guarantee:
        `epsilon_spent`, `forward`, `backward` and `symmetric` are upper bounds.

    References:
        Kaiser et al. 2026, Def. 8.

    Example:
        >>> Clause("a", 1.0, 1e-5, 1.0, 0.9, 0.0, 0.0, 0.0, True, "kept").kept
        True
    """

    group: str
    epsilon: float
    delta: float
    bound: float
    epsilon_spent: float
    forward: float
    backward: float
    symmetric: float
    kept: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a plan keeps its contracts, a clause a group.

    Attributes:
        clauses: In the order of the plan's groups.

    Example:
        >>> Verdict(()).ok
        True
    """

    clauses: tuple[Clause, ...]

    @property
    def ok(self) -> bool:
        """Whether every clause is kept."""
        return all(clause.kept for clause in self.clauses)

    def __iter__(self) -> Iterator[Clause]:
        return iter(self.clauses)

    @property
    def broken(self) -> tuple[Clause, ...]:
        """The clauses that are not kept."""
        return tuple(clause for clause in self.clauses if not clause.kept)

    def require(self) -> None:
        """Raise unless every clause is kept.

        Raises:
            VerificationError: Naming the first group whose contract is broken.
        """
        if not self.ok:
            first = self.broken[0]
            raise VerificationError(f"contract: group {first.group}: {first.reason}")

    def to_dict(self) -> Json:
        """Return the verdict as JSON types."""
        return {"ok": self.ok, "groups": [asdict(clause) for clause in self.clauses]}


def check(plan: Plan, budgets: Budgets | None = None) -> Verdict:
    """Return, for each group, forward, backward and symmetric Δ, with a verdict and a reason.

    Args:
        plan: Any plan; all numbers are recomputed from its own mechanisms, by PLD.
        budgets: What the records asked, with their bounds Δ̄, joined by id, beside what they asked
            when the plan was made.

    Raises:
        UnsupportedError: For a plan of more than 500 groups.
        DataError: For budgets of other records.

    References:
        Kaiser et al. 2026, Def. 7 and 8.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5, excess=0.1)
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=10, clip_norm=1.0)
        >>> check(plan, budgets).ok
        True
    """
    if len(plan.budget_groups) > MOST:
        raise UnsupportedError(
            f"contract: {len(plan.budget_groups)} groups, at most {MOST}; round the budgets down "
            "first, with Budgets.rounded_down"
        )
    verification = plan.verify(budgets)
    size = len(plan.budget_groups)
    bounds = np.ones(size) if verification.bound is None else verification.bound
    clauses = []
    for g in range(size):
        forward, backward = _apart(plan, verification, g)
        spent, asked = float(verification.epsilon_spent[g]), float(verification.epsilon[g])
        symmetric, bound = max(forward, backward), float(bounds[g])
        kept = bool(verification.kept[g]) and symmetric <= bound
        clauses.append(
            Clause(
                group=str(plan.budget_groups.name[g]),
                epsilon=asked,
                delta=float(plan.budget_groups.delta[g]),
                bound=bound,
                epsilon_spent=spent,
                forward=forward,
                backward=backward,
                symmetric=symmetric,
                kept=kept,
                reason="kept" if kept else _reason(spent, asked, forward, backward, bound),
            )
        )
    return Verdict(tuple(clauses))


def _apart(plan: Plan, verification: Verification, group: int) -> tuple[float, float]:
    """Return a group's forward and backward Δ; forward as its most cautious record sees it."""
    measures, seen = plan.measures, verification.forward
    if measures.forward is not None and measures.backward is not None:
        forward, backward = float(measures.forward[group]), float(measures.backward[group])
    else:
        curve = privacy_curve(plan.mechanism_for(group), method="pld")
        found = excess_of(plan, group, curve)
        forward, backward = float(found.forward.upper), float(found.backward.upper)
    return forward if seen is None else float(np.fmax(forward, seen[group])), backward


def _reason(spent: float, asked: float, forward: float, backward: float, bound: float) -> str:
    """Return what breaks a contract."""
    if not spent <= asked:
        return f"spends epsilon = {spent:.6g}, more than the {asked:.6g} asked"
    if forward > bound:
        return f"forward excess {forward:.3g} is above {bound:.3g}: more vulnerable than promised"
    if backward > bound:
        return (
            f"backward excess {backward:.3g} is above {bound:.3g}: less vulnerable than promised, "
            "but not the mechanism that was promised"
        )
    return "planned at a larger delta than a record of it allows"
