"""A plan's real cost, recomputed from its own numbers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import accounting
from apiece._text import MAX_ROWS, html_table, rounded_up
from apiece._types import AnyArray, Floats, Integers
from apiece.accounting import Excess, PrivacyCurve, privacy_curve
from apiece.accounting.batch import upper_epsilons
from apiece.accounting.divergence import excesses
from apiece.budgets import BudgetGroups
from apiece.budgets.groups import SMALL_GROUP
from apiece.budgets.records import Consents
from apiece.errors import VerificationError
from apiece.mechanisms import Gaussian, Mechanism
from apiece.numerics.rounding import after_coin
from apiece.plan.parts import Numbers, Reference, Stage, sampled_steps

# The largest number of groups for which a plan states advantage and Δ, which take a curve a group.
MEASURED = 64
# The number of distinct mechanisms from which on ε is bounded in one batch, without curves.
QUICK = 32
# The columns of a notebook's table.
_COLUMNS = ("group", "ε asked", "δ", "ε spent", "kept")
# The distance from 1.0 to the next float64: the unit in which roundings are counted.
ULP = 2.0**-52
# ε and δ.
Budget: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Limits:
    """The strictest budget of each group and of the records in it, one entry a group."""

    epsilon: Floats
    delta: Floats
    # Δ̄, the bound on the excess; 1 where there is none.
    excess: Floats


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measures:
    """Upper bounds on the spending and the risks of each group, one entry a group.

    Advantage and Δ are by PLD; they are None in a plan of more than `MEASURED` groups.
    """

    # ε at the group's own δ, by the plan's method.
    epsilon_spent: Floats
    # The largest TPR − FPR of any membership test.
    advantage: Floats | None
    # Δ towards more vulnerable than the uniform mechanism of the same (ε, δ).
    forward: Floats | None
    # Δ towards less vulnerable than that mechanism.
    backward: Floats | None

    @property
    def excess(self) -> Floats | None:
        """The larger of both directions of Δ, as Kaiser et al. 2026 Def. 8 has it."""
        if self.forward is None or self.backward is None:
            return None
        return np.maximum(self.forward, self.backward)

    def columns(self) -> dict[str, Floats | None]:
        """Return the risks by the names that they have in JSON."""
        return {
            "advantage": self.advantage,
            "excess": self.excess,
            "excess_forward": self.forward,
            "excess_backward": self.backward,
        }


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Verification:
    """A plan's promises beside what it spends; one entry a group.

    Attributes:
        name: Of the groups.
        epsilon: The strictest asked by the group or any record of it.
        delta: The plan's own.
        epsilon_spent: What is spent at that δ.
        kept: Whether spent ≤ asked, at a δ that is at most the strictest asked, and forward ≤
            bound.
        bound: The strictest Δ̄, likewise; None where none below 1 was asked.
        forward: Δ towards more vulnerable than the uniform mechanism of the (ε, δ) asked; None
            with `bound`. In a plan of more than 64 groups NaN where a group has no bound.
        records: Number of each group's records; None where they are not counted.

    Guarantee:
        `epsilon_spent` and `forward` are upper bounds, computed from the plan's own numbers.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
        >>> plan = assign(asked, Scale(), steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> plan.verify().kept.tolist()
        [True, True]
    """

    name: AnyArray
    epsilon: Floats
    delta: Floats
    epsilon_spent: Floats
    kept: npt.NDArray[np.bool_]
    bound: Floats | None = None
    forward: Floats | None = None
    records: Integers | None = None

    def __repr__(self) -> str:
        """Return how many promises are kept, and nothing of a group."""
        return f"Verification({int(self.kept.sum())} of {self.kept.size} promises kept)"

    def _repr_html_(self) -> str:
        """Return the table of groups for a notebook; of small ones only how many there are."""
        records = np.zeros(self.kept.size, int) if self.records is None else self.records
        large = np.flatnonzero(records >= SMALL_GROUP).tolist()
        rows = []
        for g in large[:MAX_ROWS]:
            asked = (str(self.name[g]), f"{self.epsilon[g]:g}", f"{self.delta[g]:g}")
            kept = "yes" if self.kept[g] else "no"
            rows.append((*asked, rounded_up(float(self.epsilon_spent[g])), kept))
        notes = []
        hidden = self.kept.size - len(large)
        if hidden and self.records is None:
            notes.append(f"{hidden} groups whose records are not counted are not shown.")
        elif hidden:
            notes.append(f"{hidden} groups of fewer than {SMALL_GROUP} records are not shown.")
        if len(large) > MAX_ROWS:
            notes.append(f"{len(large) - MAX_ROWS} more groups are not shown.")
        caption = f"{int(self.kept.sum())} of {self.kept.size} promises kept"
        return html_table(caption, _COLUMNS, rows, notes)

    @property
    def ok(self) -> bool:
        """Whether every promise is kept."""
        return bool(self.kept.all())

    def require(self) -> None:
        """Raise unless every promise is kept.

        Raises:
            VerificationError: Naming the worst group.
        """
        if self.ok:
            return
        count = int((~self.kept).sum())
        broken = f"({count} groups broken)"
        # Among the broken promises, the one that is exceeded most comes first.
        shares = np.where(self.kept, -np.inf, self.epsilon_spent / self.epsilon)
        g = int(np.argmax(shares))
        # ε comes before Δ; where neither is exceeded, the planned δ was too large.
        if shares[g] > 1:
            raise VerificationError(
                f"plan: group {self.name[g]} spends epsilon = {self.epsilon_spent[g]:.6g} at "
                f"delta = {self.delta[g]:g}, more than the {self.epsilon[g]:.6g} it asked "
                f"{broken}; make the plan anew from these budgets"
            )
        # Where no group has a bound below 1, Δ was not computed.
        if self.bound is not None and self.forward is not None:
            exceedance = np.where(self.bound < 1, self.forward - self.bound, -np.inf)
            if not (exceedance <= 0).all():
                g = int(np.argmax(exceedance))
                raise VerificationError(
                    f"plan: group {self.name[g]} has forward excess {self.forward[g]:.3g}, more "
                    f"vulnerable than its bound {self.bound[g]:.3g} allows {broken}; make the plan "
                    "by contract.enforce"
                )
        raise VerificationError(
            f"plan: group {self.name[g]} was planned at delta = {self.delta[g]:g}, more than a "
            f"record of it allows {broken}; make the plan from these budgets"
        )


def measure(plan: Numbers, spent: Floats) -> Measures:
    """Return the measures of `plan`, of which the spending is known."""
    size = len(plan.budget_groups)
    # A curve a group would take too long, and nothing is said of any.
    if size > MEASURED:
        return Measures(spent, None, None, None)
    # As tuples, by which the risks are cached.
    mechanisms = tuple(plan.mechanism_at(g) for g in range(size))
    baselines = tuple(find_baseline(plan, g) for g in range(size))
    advantage, forward, backward = _compute_risks(mechanisms, baselines)
    return Measures(spent, np.array(advantage), np.array(forward), np.array(backward))


# Cached, because a plan that is read back or made again has the mechanisms of the first.
@lru_cache(maxsize=256)
def _compute_risks(
    mechanisms: tuple[Mechanism, ...], baselines: tuple[Mechanism, ...]
) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
    """Return upper bounds on advantage, forward and backward Δ of each mechanism."""
    curves = _make_curves(mechanisms)
    differences = _compute_excesses(baselines, curves)
    advantage = tuple(curve.advantage().upper for curve in curves)
    forward = tuple(difference.forward.upper for difference in differences)
    backward = tuple(difference.backward.upper for difference in differences)
    return advantage, forward, backward


def find_baseline(plan: Numbers, group: int, budget: Budget | None = None) -> Mechanism:
    """Return the uniform mechanism that a record of `group` compares its own with.

    It spends `budget`, or the group's own, by the plan's method.
    """
    # All records have the same (ε, δ), at the plan's reference. Nothing of it moves with what
    # others ask (Kaiser et al. 2026, Def. 8).
    reference = plan.reference
    assert reference is not None  # set when the plan was made
    if budget is None:
        groups = plan.budget_groups
        budget = (groups.epsilon[group], groups.delta[group])
    epsilon, delta = budget
    noise = _calibrate_baseline(float(epsilon), float(delta), reference, plan.method)
    return reference.mechanism(noise)


# Cached, because plans of the same people share their baselines.
@lru_cache(maxsize=1024)
def _calibrate_baseline(epsilon: float, delta: float, reference: Reference, method: str) -> float:
    """Return the noise multiplier at which the reference spends (ε, δ)."""
    return float(
        accounting.noise_multipliers(
            epsilon=epsilon, delta=delta, **asdict(reference), method=method
        )
    )


@lru_cache(maxsize=16)
def _make_baseline_curve(baseline: Mechanism) -> PrivacyCurve:
    return privacy_curve(baseline, method="pld")


def compute_excess(plan: Numbers, group: int, curve: PrivacyCurve) -> Excess:
    """Return Δ between a group's baseline and its own curve."""
    return _compute_excesses([find_baseline(plan, group)], [curve])[0]


def _compute_excesses(
    baselines: Sequence[Mechanism], curves: Sequence[PrivacyCurve]
) -> list[Excess]:
    return excesses([_make_baseline_curve(baseline) for baseline in baselines], curves)


def verify(
    plan: Numbers, spent: Floats, limits: Limits, measures: Callable[[], Measures]
) -> Verification:
    """Return whether `spent` and the plan's excess are within `limits`, for each group."""
    groups = plan.budget_groups
    epsilon = limits.epsilon
    delta = limits.delta
    bound = limits.excess
    # ε was computed at the planned δ: it counts only where nobody asked for a smaller one.
    within = (spent <= epsilon) & (groups.delta <= delta)
    if (bound >= 1).all():
        return Verification(
            groups.name, epsilon, groups.delta, spent, within, records=groups.records
        )
    measured = measures().forward
    # A record that allows less than its group asked is compared with a baseline of what it allows:
    # the less a baseline tells, the larger is Δ towards more vulnerable.
    if measured is None:
        forward = np.full(len(groups), np.nan)
        unmeasured = bound < 1
    else:
        forward = measured.copy()
        unmeasured = (bound < 1) & ((epsilon < groups.epsilon) | (delta < groups.delta))
    # Only those groups whose baseline is another than the one measured.
    positions = np.flatnonzero(unmeasured).tolist()
    curves = _make_curves([plan.mechanism_at(g) for g in positions])
    baselines = [find_baseline(plan, g, (float(epsilon[g]), float(delta[g]))) for g in positions]
    differences = _compute_excesses(baselines, curves)
    forward[positions] = [difference.forward.upper for difference in differences]
    within &= (bound >= 1) | (forward <= bound)
    return Verification(
        groups.name, epsilon, groups.delta, spent, within, bound, forward, groups.records
    )


def compute_spending(plan: Numbers, method: str) -> Floats:
    """Return an upper bound on each group's ε at its own δ; equal mechanisms share a curve."""
    delta = plan.budget_groups.delta
    spent = np.zeros(len(plan.budget_groups))
    positions_by_mechanism = _group_by_mechanism(plan)
    # The quick ways, each for one stage whose steps are all of one kind.
    if len(plan.stages) == 1 and plan.worst_paths is None and plan.selection is None:
        stage = plan.stages[0]
        if stage.participation is not None:
            return _compute_spending_by_coin(plan, stage, stage.participation, method)
        if len(positions_by_mechanism) >= QUICK and stage.has_fixed_steps:
            return _compute_spending_of_gaussians(plan, stage, method)
        # The batch's bounds are as good as the curves', in a fraction of the time.
        if len(positions_by_mechanism) >= QUICK and stage.times is None:
            joins = stage.sampling_probability > 0
            multipliers = stage.noise_stddev / stage.clip_norm
            rates = stage.sampling_probability
            steps = stage.steps
            if stage.correlated is not None:
                # A sampled Gaussian once a turn, at the rate of the record's own part.
                multipliers, rates = stage.of_turns()
                steps = stage.correlated.turns(steps)
            spent[joins] = upper_epsilons(
                noise_multiplier=multipliers[joins],
                sampling_probability=rates[joins],
                steps=np.full(int(joins.sum()), steps),
                delta=delta[joins],
                method=method,
            )
            return spent
    # Any other plan: a curve for each distinct mechanism.
    for positions in positions_by_mechanism:
        mechanism = plan.mechanism_at(int(positions[0]))
        spent[positions] = _bound_epsilons(mechanism, method, tuple(delta[positions].tolist()))
    return spent


def compute_spending_at(plan: Numbers, group: int, steps: int, method: str) -> float:
    """Return an upper bound on a group's ε at its own δ after the plan's first steps."""
    if steps == 0:
        return 0.0
    mechanism = plan.mechanism_at(group, steps)
    delta = float(plan.budget_groups.delta[group])
    return float(_bound_epsilons(mechanism, method, (delta,))[0])


def _compute_spending_of_gaussians(plan: Numbers, stage: Stage, method: str) -> Floats:
    """Return upper bounds on ε for a stage of which each record meets one Gaussian."""
    multipliers = np.zeros(len(plan.budget_groups))
    for group in range(multipliers.size):
        mechanism = stage.mechanism(group)
        if isinstance(mechanism, Gaussian):
            # Groups that take no part stay at 0, and spend nothing.
            multipliers[group] = mechanism.noise_multiplier
    joins = multipliers > 0
    once = np.ones(int(joins.sum()))
    spent = np.zeros(multipliers.size)
    spent[joins] = upper_epsilons(
        noise_multiplier=multipliers[joins],
        sampling_probability=once,
        steps=once,
        delta=plan.budget_groups.delta[joins],
        method=method,
    )
    return spent


# Cached, because plans that are searched among or made again share their mechanisms.
@lru_cache(maxsize=256)
def _bound_epsilons(mechanism: Mechanism, method: str, delta: tuple[float, ...]) -> Floats:
    """Return upper bounds on a mechanism's ε, one a δ; read-only."""
    spent = _read_curve(privacy_curve(mechanism, method=method), np.array(delta))
    spent.setflags(write=False)
    return spent


def _read_curve(curve: PrivacyCurve, delta: Floats) -> Floats:
    """Return upper bounds on a curve's ε, one a δ; the curve is asked once of equal δ."""
    distinct, inverse = np.unique(delta, return_inverse=True)
    return np.asarray(curve.epsilon(distinct).upper)[inverse.reshape(delta.shape)]


def _compute_spending_by_coin(
    plan: Numbers, stage: Stage, participation: Floats, method: str
) -> Floats:
    """Return upper bounds on ε for a stage that records join by a coin: one curve for all coins."""
    # A run that is (x, δ/π)-DP in both directions is (log(1 + π(e^x − 1)), δ)-DP for a record that
    # joins it with chance π; so whatever accounts for the run accounts for the coin: by
    # Balle, Barthe, Gaboardi 2018; for the add direction docs/plans.md.
    delta = plan.budget_groups.delta
    spent = np.zeros(len(plan.budget_groups))
    # A record that joins with a chance of at most δ is covered by δ alone.
    paying = np.flatnonzero((stage.sampling_probability > 0) & (delta < participation))
    # Groups that differ by their coins alone share the curve of the run.
    runs = np.stack([stage.sampling_probability, stage.clip_norm], axis=1)[paying]
    distinct, inverse = np.unique(runs, axis=0, return_inverse=True)
    for number, (probability, clip_norm) in enumerate(distinct.tolist()):
        positions = paying[inverse.reshape(-1) == number]
        chances = participation[positions]
        run = sampled_steps(stage.noise_stddev / clip_norm, probability, stage.steps)
        # δ/π rounded down and the result rounded up: both only raise the bound.
        run_delta = delta[positions] / chances * (1 - ULP)
        run_epsilon = _read_curve(privacy_curve(run, method=method), run_delta)
        spent[positions] = after_coin(run_epsilon, chances) * (1 + 64 * ULP)
    return spent


def _group_by_mechanism(plan: Numbers) -> list[npt.NDArray[np.intp]]:
    """Return, for each distinct mechanism, the positions of the groups that share it."""
    stages = plan.stages
    if plan.selection is not None:
        stages = (*stages, *plan.selection.others)
    # What groups may differ in: all else is the stage's. `times` follow from the probabilities.
    columns: list[AnyArray | None] = []
    for stage in stages:
        columns += [stage.sampling_probability, stage.clip_norm, stage.participation]
    if plan.worst_paths is not None:
        columns += list(plan.worst_paths.T)
    keys = np.stack([column for column in columns if column is not None])
    # Sorted, equal mechanisms are neighbours: a new one starts where any of the columns changes.
    order = np.lexsort(keys)
    changes = (np.diff(keys[:, order]) != 0).any(axis=0)
    return np.split(order, np.flatnonzero(changes) + 1)


def _make_curves(mechanisms: Sequence[Mechanism]) -> list[PrivacyCurve]:
    """Return each mechanism's curve by PLD; equal ones share one."""
    curves = {}
    for mechanism in mechanisms:
        if mechanism not in curves:
            curves[mechanism] = privacy_curve(mechanism, method="pld")
    return [curves[mechanism] for mechanism in mechanisms]


def find_limits(
    groups: BudgetGroups, index: Integers | None = None, consents: Consents | None = None
) -> Limits:
    """Return the smallest ε, δ and Δ̄ of each group, or of any record in it.

    Args:
        groups: The budgets that the groups asked.
        index: Each record's group; with `consents`.
        consents: What each record allows.
    """
    excess = np.ones(len(groups)) if groups.excess is None else groups.excess
    if index is None or consents is None:
        return Limits(groups.epsilon, groups.delta, excess)
    limits = Limits(groups.epsilon.copy(), groups.delta.copy(), excess.copy())
    # Unbuffered: many records lower one group's entry.
    np.minimum.at(limits.epsilon, index, consents.epsilon)
    np.minimum.at(limits.delta, index, consents.delta)
    np.minimum.at(limits.excess, index, consents.excess)
    return limits
