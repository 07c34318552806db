"""assign: the front door from budgets to a verified plan."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

import numpy as np

from apiece._text import per_cent
from apiece._types import Json
from apiece.assignment.allocate import Allocate
from apiece.assignment.correlated import Epochs, plan_correlated
from apiece.assignment.hybrid import Hybrid
from apiece.assignment.jorgensen import JorgensenSampling
from apiece.assignment.request import Correlated, Request, Strategy
from apiece.assignment.rounds import AdaPDP, PublishedAdaPDP, PublishedRounds, Rounds
from apiece.assignment.sample import Sample
from apiece.assignment.scale import Scale
from apiece.assignment.sequential import Sequential
from apiece.assignment.threshold import Threshold
from apiece.assignment.uniform import Uniform
from apiece.assignment.unspent import warn_of_shortfall
from apiece.budgets import BudgetLevels, Budgets
from apiece.correlation.strategies import Banded
from apiece.correlation.workloads import Workload
from apiece.errors import (
    InfeasibleError,
    InputError,
    OptionError,
    RangeError,
    UnsupportedError,
    VerificationError,
    unknown,
)
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import UNSPENT

# By name, in the order in which help and messages list them.
STRATEGIES: dict[str, type[Strategy]] = {
    strategy.name: strategy
    for strategy in (
        Uniform,
        Scale,
        Sample,
        Allocate,
        Hybrid,
        Threshold,
        Sequential,
        JorgensenSampling,
        Rounds,
        AdaPDP,
        Epochs,
        PublishedRounds,
        PublishedAdaPDP,
    )
}

# The strategies that keep bounds Δ̄, whatever the others ask.
KEEP_BOUNDS = (Uniform.name, Scale.name, Hybrid.name)
# The strategies that plan for correlated noise.
CORRELATED = (Uniform.name, Scale.name, Threshold.name, Epochs.name)
# Those that plan for parts that take turns, with coins in each.
CYCLIC = (Uniform.name, Scale.name, Threshold.name, Sample.name)
# How many plans are made where groups spend too much; each aims twice as far below as the one
# before.
ATTEMPTS = 12
LEFT_UNSPENT = (
    "a level may leave budget unspent: where its noise or chance is held by a stricter level or by "
    "a bound on the excess, or is already the most that the strategy can use"
)
# The largest number of groups with a note of their own.
MAX_NOTES = 64


def assign(
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str = "pld",
    noise: Correlated | None = None,
) -> BoundPlan:
    """Return a verified plan: what will be done to every record so that each promise is kept.

    The plan knows which record is in which group; `plan.public()` and its JSON do not. Uniform,
    Scale and Hybrid keep bounds Δ̄. Plans of other strategies may not, as `plan.notes` then says; a
    plan that breaks one cannot make a release. A group that can spend less than .8 of what it asked
    is an `UnspentBudgetWarning`, but for Uniform and Threshold, which say so by their names.

    Args:
        budgets: What n records asked for.
        strategy: `Scale()`, `Sample()`, …, or such a name for its defaults.
        steps: The number of updates T.
        expected_batch_size: B, at most n.
        clip_norm: The mean ℓ2 bound c̄ on a record's gradient.
        method: The accounting to calibrate with, "pld" (tight) or "rdp" (looser; for published
            values).
        noise: `Correlated()` for fixed batches and correlated noise, by Uniform, Scale, Threshold
            or Epochs: each record then takes part steps·expected_batch_size/n times, rounded down.
            None for sampling and independent noise.

    Raises:
        InputError: For settings out of bounds, and a strategy of one's own that goes wrong.
        OptionError: For an unknown strategy or method.
        BudgetError: As the strategy's `plan`, and so `UnsupportedError`.
        InfeasibleError: Where no plan meets the request, or it is past the numerical range.
        VerificationError: Where a group would spend more than it asked, even when aimed lower.

    Guarantee:
        Each group's ε under add/remove, recomputed from the plan's own numbers, is at most what
        was asked, unless `plan.objections` says otherwise.

    References:
        Boenisch et al. 2023, §3.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> budgets = Budgets.from_groups([("strict", 1.0, .5), ("weak", 3.0, .5)], 1000, 1e-5)
        >>> plan = assign(budgets, Scale(), steps=10, expected_batch_size=100, clip_norm=1.0)
        >>> plan.verify().ok
        True
    """
    plan = make_plan(
        budgets,
        strategy,
        steps=steps,
        expected_batch_size=expected_batch_size,
        clip_norm=clip_norm,
        method=method,
        noise=noise,
    )
    warn_of_shortfall(plan)
    return plan


def make_plan(
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str = "pld",
    noise: Correlated | None = None,
) -> BoundPlan:
    """Return the plan of `assign` without a warning, for callers that do not run it."""
    _require_type("budgets", budgets, Budgets, "Budgets(epsilon, delta)")
    request = Request(budgets, steps, expected_batch_size, clip_norm, method, noise=noise)
    return BoundPlan.of(_make_verified(request, _resolve_strategy(strategy)))


def assign_levels(
    levels: BudgetLevels,
    strategy: Strategy | str,
    *,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
    method: str = "pld",
) -> Plan:
    """Return the plan that `assign` makes, of public numbers alone, from how many asked for what.

    For more records than fit in memory: time and memory grow with the number of levels. `plan.bind`
    gives the engine its plan, for all records or a part at a time.

    Args:
        levels: How many records asked for which budget.
        strategy: As for `assign`, like all that follow.
        steps: The number of updates T.
        expected_batch_size: B, at most the number of records.
        clip_norm: The mean ℓ2 bound c̄ on a record's gradient.
        method: The accounting to calibrate with.

    Raises:
        InputError: As `assign`, like its other errors.
        UnsupportedError: For a strategy that needs every record.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment import assign_levels
        >>> from apiece.budgets import BudgetLevels
        >>> groups = Budgets.from_groups([("a", 1.0, .5), ("b", 3.0, .5)], 1000, 1e-5).groups
        >>> levels = BudgetLevels(groups)
        >>> assign_levels(levels, "scale", steps=10, expected_batch_size=100, clip_norm=1.0)
        Plan(scale, 1000 records in 2 groups, 10 steps)
    """
    _require_type("levels", levels, BudgetLevels, "BudgetLevels")
    request = Request(levels, steps, expected_batch_size, clip_norm, method)
    plan = _make_verified(request, _resolve_strategy(strategy))
    warn_of_shortfall(plan)
    return plan


def make_strategy(name: str, **options: object) -> Strategy:
    """Return the strategy called `name` with these options."""
    if name not in STRATEGIES:
        raise unknown("strategy", name, STRATEGIES)
    strategy = STRATEGIES[name]
    # A strategy's options are the fields of its dataclass.
    accepted = [field.name for field in fields(cast(Any, strategy))]
    for option in options.keys() - accepted:
        raise unknown(f"option of strategy {name}", option, accepted)
    return strategy(**options)


# What `compare` sets side by side unless it is told otherwise; Hybrid needs a bound.
COMPARED: Sequence[Strategy | str] = ("uniform", "scale", "sample", Hybrid(0.02), "threshold")


@dataclass(frozen=True, slots=True)
class Compared:
    """What one strategy makes of budgets; public numbers alone.

    Attributes:
        strategy: Its name.
        noise_over_signal: S / Σ q_i·c_i, a root mean square over steps; less is better.
        below_uniform: How many times less that is than under Uniform, where both are compared.
        unspent: The share of records whose group spends less than 95 % of the ε it asked.
        excess: The largest Δ of a group towards more vulnerable; None where it is not computed.
        objection: Why the plan must not be released, or why there is none; None for a sound plan.

    Example:
        >>> from apiece.assignment.front import Compared
        >>> Compared("scale", 0.02, 1.5, 0.0, 0.01, None).strategy
        'scale'
    """

    strategy: str
    noise_over_signal: float | None
    below_uniform: float | None
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
    noise: Correlated | None = None,
) -> tuple[Compared, ...]:
    """Return what each strategy makes of the same budgets, in the order given; none is run.

    Args:
        budgets: What everyone asked for.
        strategies: Names or strategies, as for `assign`.
        steps: How many updates.
        expected_batch_size: Of each.
        clip_norm: The mean bound on a record's gradient.
        method: Of accounting.
        noise: Correlated noise, with which the strategies that can are compared as well, as
            "scale, correlated" (with coins "scale, cyclic"); its noise over signal is that of the
            independent noise that would disturb running sums as much.

    Raises:
        InputError: As `assign`, but for requests that cannot be met: `objection` says why.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment import compare
        >>> budgets = Budgets([1.0] * 300 + [4.0] * 300, 1e-5)
        >>> both = ["uniform", "scale"]
        >>> uniform, scale = compare(budgets, both, steps=50, expected_batch_size=60)
        >>> scale.noise_over_signal < uniform.noise_over_signal
        True
    """
    _require_type("budgets", budgets, Budgets, "Budgets(epsilon, delta)")
    request = Request(budgets, steps, expected_batch_size, clip_norm, method)
    # Names become strategies before anything is planned, so that a mistake costs no time.
    resolved = [_resolve_strategy(strategy) for strategy in strategies]
    rows = [_measure_strategy(request, strategy) for strategy in resolved]
    if noise is not None:
        with_noise = replace(request, noise=noise)
        kind = "cyclic" if noise.sampled else "correlated"
        plan_for_it = CYCLIC if noise.sampled else CORRELATED
        # A strategy that cannot plan for such noise has no second row.
        for strategy in resolved:
            if strategy.name in plan_for_it:
                row = _measure_strategy(with_noise, strategy)
                rows.append(replace(row, strategy=f"{strategy.name}, {kind}"))
    # Uniform is what there is without individual budgets.
    baseline = None
    for row in rows:
        if row.strategy == Uniform.name:
            baseline = row.noise_over_signal
            break
    if baseline is None:
        return tuple(rows)
    return tuple(
        row
        if row.noise_over_signal is None
        else replace(row, below_uniform=baseline / row.noise_over_signal)
        for row in rows
    )


def _measure_strategy(request: Request, strategy: Strategy) -> Compared:
    """Return the row of a strategy, which is not yet held against Uniform's."""
    # That budgets cannot be met is an answer too; any other error is a mistake in the request.
    try:
        plan = _make_verified(request, strategy)
    except (InfeasibleError, UnsupportedError) as error:
        return Compared(strategy.name, None, None, None, None, str(error))
    records = plan.budget_groups.records
    forward = plan.measures.forward
    return Compared(
        strategy=plan.strategy,
        noise_over_signal=noise_over_signal(plan),
        below_uniform=None,
        unspent=float(records @ (plan.spent_share < UNSPENT) / records.sum()),
        excess=None if forward is None else float(forward.max()),
        objection=plan.objections[0] if plan.objections else None,
    )


def _require_type(name: str, value: object, kind: type, remedy: str) -> None:
    if not isinstance(value, kind):
        raise InputError(f"{name}: a {type(value).__name__}; give {remedy}")


def noise_over_signal(plan: Plan) -> float:
    """Return S / Σ q_i·c_i, a root mean square over steps: less is better."""
    # The noises of steps are independent, so that their squares add up. Correlated noise counts as
    # the independent noise that would disturb running sums as much.
    records = plan.budget_groups.records
    squares = 0.0
    for stage in plan.stages:
        signal = float(records @ (stage.chances() * stage.clip_norm))
        stddev = stage.noise_stddev
        if stage.correlated is not None:
            sums = Workload(stage.steps)
            independent = sums.mean_error(Banded([1.0]))
            stddev *= sums.mean_error(stage.correlated.strategy) / independent
        squares += stage.steps * (stddev / signal) ** 2
    return float(np.sqrt(squares / plan.steps))


def _resolve_strategy(strategy: Strategy | str) -> Strategy:
    """Return a strategy that is given by its value or name; raise for anything else."""
    if isinstance(strategy, str):
        return make_strategy(strategy)
    if isinstance(strategy, type):
        raise OptionError(f"strategy: a class; give an instance, as {strategy.__name__}()")
    # By what it can do: a user's own strategy need not inherit from any of ours.
    if not callable(getattr(strategy, "plan", None)) or not hasattr(strategy, "name"):
        raise OptionError(
            f"strategy: a {type(strategy).__name__}; give one of {', '.join(STRATEGIES)}, or a "
            "value with a name and a method plan(request)"
        )
    return strategy


def _run_strategy(strategy: Strategy, request: Request) -> Plan:
    """Return a strategy's plan; where a user's own strategy goes wrong, say so by its name."""
    # Errors of these strategies are documented; those of a user's own are put into words.
    if type(strategy) in STRATEGIES.values():
        if request.noise is not None:
            return plan_correlated(strategy, request, request.noise)
        return strategy.plan(request)
    if request.noise is not None:
        raise UnsupportedError(
            f"strategy {strategy.name}: a strategy of one's own plans for sampling; leave noise out"
        )
    label = f"strategy {strategy.name}:"
    try:
        plan: object = strategy.plan(request)
    except (InfeasibleError, RangeError, UnsupportedError):
        raise
    except InputError as error:
        raise InputError(f"{label} {error}") from error
    except Exception as error:
        # A user's code may raise anything.
        message = " ".join(str(error).split()) or "no message"
        raise InputError(
            f"{label} its method plan raised {type(error).__name__} ({message}); mend the method"
        ) from error
    if not isinstance(plan, Plan):
        raise InputError(
            f"{label} its method plan returned a {type(plan).__name__}; return a Plan, as "
            "request.one_stage(…) makes it"
        )
    groups = request.groups
    # A bound plan may have split groups, by coins that it tossed.
    fits = isinstance(plan, BoundPlan) or plan.budget_groups.same_as(groups)
    if not (fits and plan.steps == request.steps):
        raise InputError(
            f"{label} its plan has {plan.steps} steps and {len(plan.budget_groups)} groups, not "
            f"the {request.steps} and {len(groups)} of the request, or other budgets; make it by "
            "request.one_stage(…) or request.plan(…)"
        )
    return plan


def _bind_plan(plan: Plan, budgets: Budgets | BudgetLevels) -> Plan:
    """Return the plan bound to the records; for levels, which have no records, as it is."""
    if not isinstance(budgets, Budgets):
        return plan
    # No record is in a group that asks more than it allows, or the plan cannot be bound.
    if isinstance(plan, BoundPlan):
        return replace(plan, consents=plan.consents.lowered_to(budgets))
    return plan.bind(budgets)


def _make_verified(request: Request, strategy: Strategy) -> Plan:
    """Return the strategy's plan, verified; groups that spent too much are aimed lower."""
    # Each attempt plans for aims that are lower wherever a group spent too much.
    for attempt in range(ATTEMPTS):
        try:
            plan = _bind_plan(_run_strategy(strategy, request), request.budgets)
            # A plan with objections keeps no promise that could be verified, and says so.
            if not plan.releasable:
                return plan
            spent = plan.epsilon_spent
        except RangeError as error:
            raise InfeasibleError(explain_range(strategy, request, str(error))) from None
        if (spent <= plan.budget_groups.epsilon).all():
            notes = (*_note_ignored_bounds(plan), *note_unspent(plan))
            return replace(plan, notes=(*plan.notes, *notes)) if notes else plan
        # Solvers round, and two routes of the accountant may differ: aim lower, and again.
        request = request.lower(spent, attempt)
    # Raises, and names the group that spends too much.
    try:
        plan.verify().require()
    except VerificationError as error:
        raise VerificationError(
            f"strategy {strategy.name}: {str(error).partition(';')[0]}, however low it is aimed; "
            "find its noise for request.target, which is what it is aimed at, or add noise"
        ) from None
    return plan


def _note_ignored_bounds(plan: Plan) -> list[str]:
    """Return a note where bounds Δ̄ were asked and the strategy pays no heed to them."""
    bounds = plan.budget_groups.excess
    if bounds is None or plan.strategy in KEEP_BOUNDS or not (bounds < 1).any():
        return []
    return [
        f"{plan.strategy} pays no heed to the bounds Δ̄ on the excess: contract.check says whether "
        "they hold, contract.enforce makes a plan that keeps them; a release is refused otherwise"
    ]


def note_unspent(plan: Plan) -> list[str]:
    """Return a note for each of up to 64 groups that spend less than 95 % of what they asked."""
    share = plan.spent_share
    groups = plan.budget_groups
    below = np.flatnonzero(share < UNSPENT)
    # Those that leave most unspent come first.
    below = below[np.argsort(share[below], kind="stable")]
    notes = [
        f"group {groups.name[g]} spends {per_cent(share[g])} of the epsilon = "
        f"{groups.epsilon[g]:g} that it asked"
        for g in below[:MAX_NOTES]
    ]
    if below.size > MAX_NOTES:
        low = per_cent(share[below[MAX_NOTES]])
        high = per_cent(share[below[-1]])
        notes.append(
            f"{below.size - MAX_NOTES} more groups spend {low} to "
            f"{high} of what they asked: see plan.spent_share"
        )
    return [*notes, LEFT_UNSPENT] if notes else []


def explain_range(strategy: Strategy, request: Request, reason: str) -> str:
    """Return a message that names the extreme group and the nearest cap on ε found feasible."""
    groups = request.groups
    loosest = int(np.argmax(groups.epsilon))
    # The remedy of the inner message gives way to a nearer one.
    prefix = f"strategy {strategy.name}: {reason.partition(';')[0]};"
    # Caps are halved from the largest ε down, until the strategy can plan under one.
    cap = float(groups.epsilon[loosest]) / 2
    while cap > float(groups.epsilon.min()):
        if _is_feasible(strategy, replace(request, budgets=request.budgets.at_most(cap))):
            return (
                f"{prefix} group {groups.name[loosest]} asks epsilon = "
                f"{groups.epsilon[loosest]:g}, about {cap:g} "
                f"can be planned for; lower it, with budgets.at_most({cap:g})"
            )
        cap /= 2
    strictest = int(np.argmin(groups.delta))
    return (
        f"{prefix} group {groups.name[strictest]} asks epsilon = "
        f"{groups.epsilon[strictest]:g} at delta = "
        f"{groups.delta[strictest]:g}; ask for a larger delta or another strategy"
    )


def _is_feasible(strategy: Strategy, request: Request) -> bool:
    """Return whether the strategy's first plan keeps every ε."""
    try:
        plan = strategy.plan(request)
        return bool((plan.epsilon_spent <= plan.budget_groups.epsilon).all())
    except (RangeError, InfeasibleError):
        return False
