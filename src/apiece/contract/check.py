"""A plan against each group's contract, and the most useful plan that keeps it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from apiece import _check
from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.assignment import Hybrid, Sample, Scale, Strategy, assign
from apiece.assignment.front import noise_over_signal, unspent_notes
from apiece.assignment.solve import require_few
from apiece.budgets import Budgets
from apiece.errors import BudgetError, InfeasibleError, RangeError, VerificationError
from apiece.numerics.roots import log_room, safe_end
from apiece.plan import BoundPlan, Plan, Reference
from apiece.plan.parts import PUBLIC
from apiece.plan.verification import compute_excess


@dataclass(frozen=True, slots=True)
class Clause:
    """One group's contract: what it asked, what it gets, whether that is kept.

    Guarantee:
        `epsilon_spent`, `forward`, `backward` and `symmetric` are upper bounds.
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
        >>> from apiece.contract import Verdict
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


# Plans round noise towards privacy by a part in 10¹², and so are by next to nothing less vulnerable
# than the mechanism that was promised. Up to this Δ backward that breaks no bound, not even 0.
ROUNDED = 1e-7


def check(plan: Plan, budgets: Budgets | None = None) -> Verdict:
    """Return, for each group, forward, backward and symmetric Δ, with a verdict and a reason.

    Forward Δ must be at most the bound. Backward Δ may be above it by 1e-7, which is more than the
    rounding of noise towards privacy comes to.

    Args:
        plan: Any plan; all numbers are recomputed from its own mechanisms, by PLD.
        budgets: What the records ask, with their bounds Δ̄, joined by id; it is checked beside what
            they asked when the plan was made.

    Raises:
        UnsupportedError: For a plan of more than 500 groups.
        InputError: For a record of the plan that `budgets` lacks.

    References:
        Kaiser et al. 2026, Def. 7 and 8.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.contract import check
        >>> budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5, excess=0.1)
        >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=10, clip_norm=1.0)
        >>> check(plan, budgets).ok
        True
    """
    require_few("contract", len(plan.budget_groups), of="groups")
    verification, measures = plan.verify(budgets), plan.measures
    size = len(plan.budget_groups)
    bounds = np.ones(size) if verification.bound is None else verification.bound
    clauses = []
    for g, name in enumerate(plan.budget_groups.name.tolist()):
        if measures.forward is not None and measures.backward is not None:
            forward, backward = float(measures.forward[g]), float(measures.backward[g])
        else:
            difference = compute_excess(plan, g, privacy_curve(plan.mechanism_for(g), method="pld"))
            forward, backward = float(difference.forward.upper), float(difference.backward.upper)
        if verification.forward is not None:  # as the group's most cautious record sees it
            forward = float(np.fmax(forward, verification.forward[g]))
        spent, asked = float(verification.epsilon_spent[g]), float(verification.epsilon[g])
        most, bound, delta = max(forward, backward), float(bounds[g]), verification.delta[g]
        kept = bool(verification.kept[g]) and forward <= bound and backward <= bound + ROUNDED
        reason = "kept" if kept else _reason(spent, asked, forward, backward, bound)
        told = asked, float(delta), bound, spent, forward, backward, most
        clauses.append(Clause(name, *told, kept, reason))
    return Verdict(tuple(clauses))


def _reason(spent: float, asked: float, forward: float, backward: float, bound: float) -> str:
    if not spent <= asked:
        return f"spends epsilon = {spent:.6g}, more than the {asked:.6g} asked"
    if forward > bound:
        return f"forward excess {forward:.3g} is above {bound:.3g}: more vulnerable than promised"
    if backward > bound + ROUNDED:
        return (
            f"backward excess {backward:.3g} is above {bound:.3g}: less vulnerable than promised, "
            "but not the mechanism that was promised"
        )
    return "planned at a larger delta than a record of it allows"


SPARE = 0.01  # of a bound on the excess, that a budget for public records may leave
SLOPE = 0.7  # about that of the log of what is used of a bound, in the log of that budget

Planner: TypeAlias = Callable[[Budgets, Strategy], BoundPlan]


class _Option(NamedTuple):
    """A plan that was considered; its cost is noise over signal, S / Σ q_i·c_i."""

    label: str
    plan: BoundPlan
    verdict: Verdict
    cost: float


def enforce(
    budgets: Budgets,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    excess: float | None = None,
    public: int = 0,
    method: str = "pld",
) -> BoundPlan:
    """Return the most useful plan that keeps every record's (ε_i, δ_i, Δ̄_i).

    Sample, if it fits; else the plan with the least noise over signal, S / Σ q_i·c_i, among Hybrid,
    Sample padded with public records (at about the largest budget for them that fits), and Scale,
    which always fits. The plan's `notes` say which was taken, why Sample was not, and what the
    others would have cost. In a padded plan the public records are the last ones, in the group
    "public", with ids that follow the others'.

    Args:
        budgets: With their bounds Δ̄; without any where `excess` is given.
        steps: As for `assign`.
        expected_batch_size: As for `assign`.
        clip_norm: As for `assign`.
        excess: A bound for all, beside the records' own: the smaller counts.
        public: How many public records could be added, whose budget is free to choose.
        method: As for `assign`.

    Raises:
        BudgetError: Where there is no bound.
        InputError: For values out of bounds.
        InfeasibleError: As `assign`.

    Guarantee:
        Each record's (ε_i, δ_i) and bound Δ̄_i hold under add/remove, by the plan's own numbers.

    References:
        Kaiser et al. 2026, §VI.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.contract import enforce
        >>> budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = enforce(budgets, excess=0.5, steps=5, expected_batch_size=10, clip_norm=1.0)
        >>> plan.strategy
        'sample'
    """
    if excess is not None:
        budgets = budgets.bounded(excess)
    if budgets.excess is None:
        raise BudgetError("enforce: the budgets carry no bound Δ̄; give excess=… or such budgets")
    public = _check.count("public", public, least=0)
    batch, clip = expected_batch_size, clip_norm
    plan_for = partial(
        assign, steps=steps, expected_batch_size=batch, clip_norm=clip, method=method
    )
    sample = _option("sample", plan_for(budgets, Sample()))
    if sample.verdict.ok:
        notes = ["contract: sample keeps it, and was taken", *unspent_notes(sample.plan)]
        return replace(sample.plan, notes=tuple(notes))
    options = [_option("hybrid", plan_for(budgets, Hybrid()))]
    if public:
        # The promise is the one of the records that asked, whoever is added.
        reference = Reference(expected_batch_size / len(budgets), steps)
        options += _padded(budgets, public, reference, plan_for)
    options.append(_option("scale", plan_for(budgets, Scale())))
    kept = [option for option in options if option.verdict.ok]
    if not kept:
        raise InfeasibleError(
            f"contract: not even scale keeps it ({options[-1].verdict.broken[0].reason}); raise "
            "the bound on the excess"
        )
    taken = min(kept, key=lambda option: option.cost)
    return replace(taken.plan, notes=_notes(taken, sample, options))


def _option(label: str, plan: BoundPlan) -> _Option:
    return _Option(label, plan, check(plan), noise_over_signal(plan))


def _padded(
    budgets: Budgets, public: int, reference: Reference, plan_for: Planner
) -> list[_Option]:
    """Return Sample with public records at the largest budget for them that fits, if one does."""
    # The more they ask, the less noise there is. Too little noise makes some record less vulnerable
    # than promised (backward), too much makes one more vulnerable (forward): so the end is sought
    # at which no more of the bound is left backward.
    groups = budgets.groups
    kept: dict[float, _Option] = {}

    def room(log_epsilon: float) -> float:
        padded = with_public(budgets, public, math.exp(log_epsilon))
        try:
            plan = plan_for(padded, Sample())
        except (InfeasibleError, RangeError):
            return -math.inf
        plan = replace(plan, reference=reference)
        option = _option(f"sample, {public} public records", plan)
        if option.verdict.ok:
            kept[log_epsilon] = option
        return min(
            float(log_room(max(clause.bound, ROUNDED), clause.backward))
            for clause in option.verdict
        )

    low, high = math.log(groups.epsilon.min() / 2), math.log(groups.epsilon.max() * 8)
    safe_end(room, low, low, high, slope=SLOPE, tolerance=SPARE, narrow=SPARE / 100)
    return [kept[max(kept)]] if kept else []


def with_public(budgets: Budgets, public: int, epsilon: float) -> Budgets:
    """Return `budgets` followed by `public` records with a budget of their own and no bound."""
    own, ids = budgets.ids, np.array([f"public:{i}" for i in range(public)])
    if np.issubdtype(own.dtype, np.integer):
        ids = own.max() + 1 + np.arange(public)
    else:
        own = own.astype(str)
    labels = budgets.groups.name[budgets.group_index].astype(str)
    assert budgets.excess is not None
    return Budgets(
        np.concatenate((budgets.epsilon, np.full(public, epsilon))),
        np.concatenate((budgets.delta, np.full(public, float(budgets.delta.max())))),
        excess=np.concatenate((budgets.excess, np.ones(public))),
        ids=np.concatenate((own, ids)),
        labels=np.concatenate((labels, np.full(public, PUBLIC))),
    )


def _notes(taken: _Option, sample: _Option, options: list[_Option]) -> tuple[str, ...]:
    worst = sample.verdict.broken[0]
    notes = [
        f"contract: {taken.label} was taken",
        f"sample would break it: group {worst.group}: {worst.reason}",
    ]
    for option in (*options, sample):
        more = option.cost / taken.cost - 1
        fits = "" if option.verdict.ok or option is sample else " and break the contract"
        if option is not taken:
            notes.append(f"{option.label} would cost {100 * more:+.2f} % noise over signal{fits}")
    return (*notes, *unspent_notes(taken.plan))
