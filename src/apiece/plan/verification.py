"""A plan's real cost, recomputed from its own numbers."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from apiece import accounting
from apiece._types import AnyArray, Floats, Integers
from apiece.accounting import Excess, PrivacyCurve, privacy_curve
from apiece.accounting.batch import upper_epsilons
from apiece.accounting.divergence import excesses
from apiece.budgets import BudgetGroups
from apiece.budgets.records import Consents
from apiece.errors import VerificationError
from apiece.mechanisms import Mechanism
from apiece.numerics.rounding import after_coin
from apiece.plan.parts import Numbers, Reference, Stage, sampled_steps

MEASURED = 64  # groups up to which a plan says what each risks
QUICK = 32  # distinct mechanisms from which on no curves are made
ULP = 2.0**-52
Budget: TypeAlias = tuple[float, float]  # ε and δ
Asked: TypeAlias = tuple[Floats, Floats, Floats]  # the strictest ε, δ and Δ̄, one entry a group


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Measures:
    """What each group spends and risks, one entry a group; each number is an upper bound."""

    # ε at the group's own δ is by the plan's method. Advantage and Δ, towards more (forward) and
    # less (backward) vulnerable than the uniform mechanism of the same (ε, δ), are by PLD; they are
    # None in a plan of more than `MEASURED` groups, where they would take long.

    epsilon_spent: Floats
    advantage: Floats | None
    forward: Floats | None
    backward: Floats | None

    @property
    def excess(self) -> Floats | None:
        """The larger of both directions of Δ, as Kaiser et al. 2026 Def. 8 has it."""
        if self.forward is None or self.backward is None:
            return None
        return np.maximum(self.forward, self.backward)

    def columns(self) -> dict[str, Floats | None]:
        """Return the risks by the names that they have in JSON."""
        both = {"excess_forward": self.forward, "excess_backward": self.backward}
        return {"advantage": self.advantage, "excess": self.excess} | both


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
        above = np.where(self.kept, -np.inf, self.epsilon_spent / self.epsilon)
        g, broken = int(np.argmax(above)), f"({int((~self.kept).sum())} groups broken)"
        if above[g] > 1:
            raise VerificationError(
                f"plan: group {self.name[g]} spends epsilon = {self.epsilon_spent[g]:.6g} at "
                f"delta = {self.delta[g]:g}, more than the {self.epsilon[g]:.6g} it asked "
                f"{broken}; make the plan anew from these budgets"
            )
        if self.bound is not None and self.forward is not None:
            beyond = np.where(self.bound < 1, self.forward - self.bound, -np.inf)
            if not (beyond <= 0).all():
                g = int(np.argmax(beyond))
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
    """Return what `plan` spends, which is known, and risks."""
    if len(plan.budget_groups) > MEASURED:
        return Measures(spent, None, None, None)
    own = tuple(plan.mechanism_at(g) for g in range(len(plan.budget_groups)))
    baselines = tuple(baseline_for(plan, g) for g in range(len(own)))
    return Measures(spent, *map(np.array, _risks(own, baselines)))


@lru_cache(maxsize=256)
def _risks(
    own: tuple[Mechanism, ...], baselines: tuple[Mechanism, ...]
) -> tuple[tuple[float, ...], ...]:
    """Return advantages, and both directions of Δ from the baselines; of a plan made again, too."""
    curves = _curves(own)
    advantage = tuple(curve.advantage().upper for curve in curves)
    each = _excesses(baselines, curves)
    return advantage, tuple(e.forward.upper for e in each), tuple(e.backward.upper for e in each)


def baseline_for(plan: Numbers, group: int, asked: Budget | None = None) -> Mechanism:
    """Return the uniform mechanism that a record of `group` compares its own with."""
    # All records with the same (ε, δ), at the plan's reference; calibrated with the plan's own
    # method. Nothing of it moves with what others ask (Kaiser et al. 2026, Def. 8).
    reference, own = plan.reference, plan.budget_groups
    assert reference is not None  # set when the plan was made
    epsilon, delta = (own.epsilon[group], own.delta[group]) if asked is None else asked
    return reference.mechanism(_noise(float(epsilon), float(delta), reference, plan.method))


@lru_cache(maxsize=1024)
def _noise(epsilon: float, delta: float, reference: Reference, method: str) -> float:
    """Return the noise multiplier of a baseline, which plans of the same people share."""
    given = {"epsilon": epsilon, "delta": delta, **asdict(reference)}
    return float(accounting.noise_multipliers(**given, method=method))


@lru_cache(maxsize=16)
def _baseline_curve(baseline: Mechanism) -> PrivacyCurve:
    return privacy_curve(baseline, method="pld")


def excess_of(plan: Numbers, group: int, curve: PrivacyCurve) -> Excess:
    """Return Δ between a group's baseline and its own curve."""
    return _excesses([baseline_for(plan, group)], [curve])[0]


def _excesses(baselines: Sequence[Mechanism], curves: Sequence[PrivacyCurve]) -> list[Excess]:
    return excesses([_baseline_curve(baseline) for baseline in baselines], curves)


def verify(
    plan: Numbers, spent: Floats, asked: Asked, measures: Callable[[], Measures]
) -> Verification:
    """Return the verification of what is `spent` by the groups of a plan, and of its excess."""
    # A record that allows less than its group asked is compared with a baseline of what it allows:
    # the less a baseline tells, the larger is Δ towards more vulnerable.
    own, (epsilon, delta, bound) = plan.budget_groups, asked
    kept = (spent <= epsilon) & (own.delta <= delta)
    if (bound >= 1).all():
        return Verification(own.name, epsilon, own.delta, spent, kept)
    measured = measures().forward
    narrower = (epsilon < own.epsilon) | (delta < own.delta)
    again = (bound < 1) & (narrower if measured is not None else True)
    forward = np.full(len(own), np.nan) if measured is None else measured.copy()
    some = np.flatnonzero(again).tolist()
    curves = _curves([plan.mechanism_at(g) for g in some])
    baselines = [baseline_for(plan, g, (float(epsilon[g]), float(delta[g]))) for g in some]
    forward[some] = [each.forward.upper for each in _excesses(baselines, curves)]
    kept &= (bound >= 1) | (forward <= bound)
    return Verification(own.name, epsilon, own.delta, spent, kept, bound, forward)


def spending(plan: Numbers, method: str) -> Floats:
    """Return an upper bound on each group's ε at its own δ; equal mechanisms share a curve."""
    delta, spent = plan.budget_groups.delta, np.zeros(len(plan.budget_groups))
    distinct = _distinct(plan)
    if len(plan.stages) == 1 and plan.worst_paths is None and plan.selection is None:
        stage = plan.stages[0]
        if stage.participation is not None:
            return _spending_by_coin(plan, stage, stage.participation, method)
        # as good as the curves, in a fraction of the time
        if len(distinct) >= QUICK and stage.times is None:
            joins = stage.sampling_probability > 0
            spent[joins] = upper_epsilons(
                noise_multiplier=stage.noise_stddev / stage.clip_norm[joins],
                sampling_probability=stage.sampling_probability[joins],
                steps=np.full(int(joins.sum()), stage.steps),
                delta=delta[joins],
                method=method,
            )
            return spent
    for same in distinct:
        at = tuple(delta[same].tolist())
        spent[same] = _epsilons(plan.mechanism_at(int(same[0])), method, at)
    return spent


@lru_cache(maxsize=256)
def _epsilons(mechanism: Mechanism, method: str, delta: tuple[float, ...]) -> Floats:
    """Return upper bounds on ε, which plans that are searched among or made again share."""
    spent = _at_each(privacy_curve(mechanism, method=method), np.array(delta))
    spent.setflags(write=False)
    return spent


def _at_each(curve: PrivacyCurve, delta: Floats) -> Floats:
    """Return upper bounds on ε at many δ, equal ones once."""
    distinct, place = np.unique(delta, return_inverse=True)
    return np.asarray(curve.epsilon(distinct).upper)[place.reshape(delta.shape)]


def _spending_by_coin(plan: Numbers, stage: Stage, joins: Floats, method: str) -> Floats:
    """Return `spending` of a stage that records join by a coin: one curve for all coins."""
    # A run that is (x, δ/π)-DP in both directions is (log(1 + π(e^x − 1)), δ)-DP for a record that
    # joins it with chance π; so whatever accounts for the run accounts for the coin: by
    # Balle, Barthe, Gaboardi 2018; for the add direction docs/plans.md.
    delta, spent = plan.budget_groups.delta, np.zeros(len(plan.budget_groups))
    # Who joins with a chance of at most δ is covered by δ alone.
    pays = np.flatnonzero((stage.sampling_probability > 0) & (delta < joins))
    runs = np.stack([stage.sampling_probability, stage.clip_norm], axis=1)[pays]
    distinct, place = np.unique(runs, axis=0, return_inverse=True)
    for number, (q, clip) in enumerate(distinct.tolist()):
        here = pays[place.reshape(-1) == number]
        run = sampled_steps(stage.noise_stddev / clip, q, stage.steps)
        inner = _at_each(privacy_curve(run, method=method), delta[here] / joins[here] * (1 - ULP))
        spent[here] = after_coin(inner, joins[here]) * (1 + 64 * ULP)
    return spent


def _distinct(plan: Numbers) -> list[npt.NDArray[np.intp]]:
    """Return the groups that share a mechanism, for each distinct one."""
    columns: list[AnyArray | None] = []
    others = () if plan.selection is None else plan.selection.others
    for stage in (*plan.stages, *others):
        columns += [stage.sampling_probability, stage.clip_norm, stage.participation]
    columns += [] if plan.worst_paths is None else list(plan.worst_paths.T)
    keys = np.stack([column for column in columns if column is not None])
    order = np.lexsort(keys)
    return np.split(order, np.flatnonzero((np.diff(keys[:, order]) != 0).any(axis=0)) + 1)


def _curves(mechanisms: Sequence[Mechanism]) -> list[PrivacyCurve]:
    """Return each mechanism's curve by PLD; equal ones share one."""
    made = {each: privacy_curve(each, method="pld") for each in dict.fromkeys(mechanisms)}
    return [made[each] for each in mechanisms]


def strictest(
    own: BudgetGroups, index: Integers | None = None, allows: Consents | None = None
) -> Asked:
    """Return the smallest ε, δ and Δ̄ that each group, or any record of it, asked."""
    bounds = np.ones(len(own)) if own.excess is None else own.excess
    if index is None or allows is None:
        return own.epsilon, own.delta, bounds
    asked = own.epsilon.copy(), own.delta.copy(), bounds.copy()
    for least, each in zip(asked, (allows.epsilon, allows.delta, allows.excess), strict=True):
        np.minimum.at(least, index, each)
    return asked
