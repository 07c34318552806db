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
from apiece.assignment.front import noise_over_signal, note_unspent
from apiece.assignment.solve import require_few
from apiece.budgets import Budgets
from apiece.errors import BudgetError, InfeasibleError, RangeError, VerificationError
from apiece.numerics.roots import log_room, safe_end
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import PUBLIC, Reference
from apiece.plan.verification import Verification, compute_excess


@dataclass(frozen=True, slots=True)
class Clause:
    """One group's contract: what it asked, what it gets, whether that is kept.

    Guarantee:
        `epsilon_spent`, `forward`, `backward` and `symmetric` are upper bounds.
    """

    group: str
    # What was asked: the strictest ε of the group and its records, at the plan's δ, and Δ̄, which
    # is 1 where none was asked.
    epsilon: float
    delta: float
    bound: float
    # At that δ, by the plan's own method.
    epsilon_spent: float
    # Δ from the uniform mechanism of the (ε, δ) asked: by how much a record is more vulnerable, by
    # how much less, and the larger of both.
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
            clause = self.broken[0]
            raise VerificationError(f"contract: group {clause.group}: {clause.reason}")

    def to_dict(self) -> Json:
        """Return the verdict as JSON types."""
        return {"ok": self.ok, "groups": [asdict(clause) for clause in self.clauses]}


# Δ backward up to which no bound is broken, not even 0: plans round noise towards privacy by a part
# in 10¹², and so are by next to nothing less vulnerable than the mechanism that was promised.
BACKWARD_TOLERANCE = 1e-7


def check(plan: Plan, budgets: Budgets | None = None) -> Verdict:
    """Return whether a plan keeps each group's contract: its ε, and its forward and backward Δ.

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
    verification = plan.verify(budgets)
    clauses = [_make_clause(plan, verification, g) for g in range(len(plan.budget_groups))]
    return Verdict(tuple(clauses))


def _make_clause(plan: Plan, verification: Verification, group: int) -> Clause:
    """Return the clause of the group at a position."""
    measures = plan.measures
    # A plan of many groups has no measures of its own; here each group's curve is made.
    if measures.forward is not None and measures.backward is not None:
        forward = float(measures.forward[group])
        backward = float(measures.backward[group])
    else:
        curve = privacy_curve(plan.mechanism_for(group), method="pld")
        difference = compute_excess(plan, group, curve)
        forward = float(difference.forward.upper)
        backward = float(difference.backward.upper)
    if verification.forward is not None:
        # The group's most cautious record may compare with a stricter baseline. NaN: none does.
        forward = float(np.fmax(forward, verification.forward[group]))
    # No excess is above 1, so that a bound of 1 asks for nothing.
    bound = 1.0 if verification.bound is None else float(verification.bound[group])
    # Made as if it were kept: the reason of a breach is read off the clause's own numbers.
    clause = Clause(
        group=str(plan.budget_groups.name[group]),
        epsilon=float(verification.epsilon[group]),
        delta=float(verification.delta[group]),
        bound=bound,
        epsilon_spent=float(verification.epsilon_spent[group]),
        forward=forward,
        backward=backward,
        symmetric=max(forward, backward),
        kept=True,
        reason="kept",
    )
    # Forward the bound is strict; backward, where nobody is more vulnerable, to a tolerance.
    within = forward <= bound and backward <= bound + BACKWARD_TOLERANCE
    if verification.kept[group] and within:
        return clause
    return replace(clause, kept=False, reason=_explain_breach(clause))


def _explain_breach(clause: Clause) -> str:
    """Return why a clause is broken, in words."""
    # The first breach that is found is named; what is left at the end is δ.
    if not clause.epsilon_spent <= clause.epsilon:
        return (
            f"spends epsilon = {clause.epsilon_spent:.6g}, more than the {clause.epsilon:.6g} asked"
        )
    if clause.forward > clause.bound:
        return (
            f"forward excess {clause.forward:.3g} is above {clause.bound:.3g}: more vulnerable "
            "than promised"
        )
    if clause.backward > clause.bound + BACKWARD_TOLERANCE:
        return (
            f"backward excess {clause.backward:.3g} is above {clause.bound:.3g}: less vulnerable "
            "than promised, but not the mechanism that was promised"
        )
    return "planned at a larger delta than a record of it allows"


# The share of a bound on the excess that the budget found for public records may leave unused.
SPARE = 0.01
# About the slope of log(share of a bound that is used) in log(ε of the public records).
SLOPE = 0.7

# From budgets and a strategy to their plan, with the caller's settings.
Planner: TypeAlias = Callable[[Budgets, Strategy], BoundPlan]


class _Option(NamedTuple):
    """A plan among which `enforce` chooses."""

    label: str
    plan: BoundPlan
    verdict: Verdict
    # Noise over signal, S / Σ q_i·c_i.
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
    plan_for = partial(
        assign,
        steps=steps,
        expected_batch_size=expected_batch_size,
        clip_norm=clip_norm,
        method=method,
    )
    # Sample is what Hybrid comes to without bounds: where it keeps them, nothing is given up.
    sample = _make_option("sample", plan_for(budgets, Sample()))
    if sample.verdict.ok:
        notes = ["contract: sample keeps it, and was taken", *note_unspent(sample.plan)]
        return replace(sample.plan, notes=tuple(notes))
    options = [_make_option("hybrid", plan_for(budgets, Hybrid()))]
    if public:
        # The promise is the one of the records that asked, whoever is added.
        reference = Reference(expected_batch_size / len(budgets), steps)
        padded = _search_padded(budgets, public, reference, plan_for)
        if padded is not None:
            options.append(padded)
    # With Scale everybody meets the reference of their own budget: Δ is 0 but for rounding.
    options.append(_make_option("scale", plan_for(budgets, Scale())))
    sound = [option for option in options if option.verdict.ok]
    # Scale stands last: where its clause is broken, nothing was left to try.
    if not sound:
        raise InfeasibleError(
            f"contract: not even scale keeps it ({options[-1].verdict.broken[0].reason}); raise "
            "the bound on the excess"
        )
    cheapest = min(sound, key=lambda option: option.cost)
    return replace(cheapest.plan, notes=_make_notes(cheapest, sample, options))


def _make_option(label: str, plan: BoundPlan) -> _Option:
    return _Option(label, plan, check(plan), noise_over_signal(plan))


def _search_padded(
    budgets: Budgets, public: int, reference: Reference, plan_for: Planner
) -> _Option | None:
    """Return Sample with public records at about the largest budget for them that fits."""
    # The more they ask, the less noise there is. Too little noise makes some record less vulnerable
    # than promised (backward), too much makes one more vulnerable (forward): so the end is sought
    # at which no more of the bound is left backward.
    sound: dict[float, _Option] = {}  # by log ε of the public records

    def measure_room(log_epsilon: float) -> float:
        padded = add_public_records(budgets, public, math.exp(log_epsilon))
        try:
            plan = plan_for(padded, Sample())
        except (InfeasibleError, RangeError):
            return -math.inf
        plan = replace(plan, reference=reference)
        option = _make_option(f"sample, {public} public records", plan)
        if option.verdict.ok:
            sound[log_epsilon] = option
        # A logarithm needs a bound above 0, and up to the tolerance none is broken.
        return min(
            float(log_room(max(clause.bound, BACKWARD_TOLERANCE), clause.backward))
            for clause in option.verdict
        )

    epsilon = budgets.groups.epsilon
    # Public records are tried from half the strictest budget up to eight times the loosest.
    low = math.log(epsilon.min() / 2)
    high = math.log(epsilon.max() * 8)
    # Of interest is what was met on the way: the search's end may break the contract forward.
    safe_end(measure_room, low, low, high, slope=SLOPE, tolerance=SPARE, narrow=SPARE / 100)
    # The largest budget that fits leaves the least noise.
    return sound[max(sound)] if sound else None


def add_public_records(budgets: Budgets, public: int, epsilon: float) -> Budgets:
    """Return `budgets` followed by `public` records with a budget of their own and no bound."""
    ids = budgets.ids
    if np.issubdtype(ids.dtype, np.integer):
        public_ids = ids.max() + 1 + np.arange(public)
    else:
        ids = ids.astype(str)
        public_ids = np.array([f"public:{i}" for i in range(public)])
    labels = budgets.groups.name[budgets.group_index].astype(str)
    assert budgets.excess is not None
    # The loosest δ of all, and no bound: public records make nothing stricter for the others.
    return Budgets(
        np.concatenate((budgets.epsilon, np.full(public, epsilon))),
        np.concatenate((budgets.delta, np.full(public, float(budgets.delta.max())))),
        excess=np.concatenate((budgets.excess, np.ones(public))),
        ids=np.concatenate((ids, public_ids)),
        labels=np.concatenate((labels, np.full(public, PUBLIC))),
    )


def _make_notes(chosen: _Option, sample: _Option, options: list[_Option]) -> tuple[str, ...]:
    """Return which plan was taken, why Sample was not, and what the others would have cost."""
    breach = sample.verdict.broken[0]
    notes = [
        f"contract: {chosen.label} was taken",
        f"sample would break it: group {breach.group}: {breach.reason}",
    ]
    for option in (*options, sample):
        if option is chosen:
            continue
        increase = option.cost / chosen.cost - 1
        note = f"{option.label} would cost {100 * increase:+.2f} % noise over signal"
        if not option.verdict.ok and option is not sample:
            note += " and break the contract"
        notes.append(note)
    return (*notes, *note_unspent(chosen.plan))
