"""Exposure: what one record faces under a plan, whatever the data and whoever attacks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from apiece import _check
from apiece._types import Floats, Json
from apiece.accounting import Bounds
from apiece.assignment import Sample, Strategy
from apiece.assignment.front import make_plan
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.plan import BoundPlan, Plan
from apiece.plan.verification import compute_excess


@dataclass(frozen=True, slots=True, eq=False)
class Exposure:
    """What the target faces when the others ask as they do in `plan`; data about a person.

    Attributes:
        label: What the others do.
        changed: How many of them ask for something else than in the first plan.
        plan: The plan that follows from it.
        group: The target's group in it.
        epsilon: Bounds on what the target is charged at its δ, at most what it asked.
        advantage: Bounds on the largest TPR − FPR of any membership test.
        forward: Bounds on Δ of the target's curve from the plan's reference at its (ε, δ): by how
            much it is more vulnerable than promised.
        backward: The same for less vulnerable.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.contract.exposure import exposure
        >>> plan = assign(Budgets([2.0] * 50, 1e-5), Scale(), steps=5, expected_batch_size=5,
        ...               clip_norm=1.0)
        >>> 0 < exposure(plan, 0).advantage.upper < 1
        True
    """

    label: str
    changed: int
    plan: Plan = field(repr=False)
    group: int = field(repr=False)
    epsilon: Bounds = field(repr=False)
    advantage: Bounds = field(repr=False)
    forward: Bounds = field(repr=False)
    backward: Bounds = field(repr=False)

    def to_dict(self) -> dict[str, float | str]:
        """Return the figures as JSON types, upper ends."""
        stage = self.plan.stages[0]
        return {
            "others": self.label,
            "epsilon_spent": float(self.epsilon.upper),
            "advantage": float(self.advantage.upper),
            "excess": float(self.forward.upper),
            "excess_backward": float(self.backward.upper),
            "sampling_probability": float(stage.sampling_probability[self.group]),
            "noise_multiplier": float(stage.noise_stddev / stage.clip_norm[self.group]),
        }


def exposure(plan: Plan, group: int, *, label: str = "", changed: int = 0) -> Exposure:
    """Return what a record of `group` faces under `plan`, against the plan's reference."""
    # ε is by the plan's own method; advantage and Δ, which need a whole curve, by PLD.
    curve = plan.curve(group, method="pld")
    charged = curve if plan.method == "pld" else plan.curve(group)
    difference = compute_excess(plan, group, curve)
    return Exposure(
        label=label,
        changed=changed,
        plan=plan.public(),
        group=group,
        epsilon=charged.epsilon(float(plan.budget_groups.delta[group])),
        advantage=curve.advantage(),
        forward=difference.forward,
        backward=difference.backward,
    )


def worst(exposures: Sequence[Exposure]) -> Exposure:
    """Return the exposure in which the target is most vulnerable: by forward Δ, then advantage.

    Args:
        exposures: Of one target.

    Raises:
        InputError: Where there is none to choose from.

    Example:
        >>> from apiece.assignment import Scale, assign
        >>> from apiece.budgets import Budgets
        >>> from apiece.contract import worst
        >>> from apiece.contract.exposure import exposure
        >>> plan = assign(Budgets([2.0] * 50, 1e-5), Scale(), steps=5, expected_batch_size=5,
        ...               clip_norm=1.0)
        >>> worst([exposure(plan, 0, label="as asked")]).label
        'as asked'
    """
    if not exposures:
        raise InputError("exposures: none given; give what budget_manipulation or collusion found")

    # Forward Δ first: an advantage can be large and be what was promised.
    def rank(exposure: Exposure) -> tuple[float, float]:
        return float(exposure.forward.upper), float(exposure.advantage.upper)

    return max(exposures, key=rank)


@dataclass(frozen=True, slots=True, eq=False)
class RiskTable:
    """The victim's risk for each share (rows) and budget (columns) of the others.

    Guarantee:
        `advantage`, `forward`, `backward` and `baseline` are upper bounds.
    """

    victim_epsilon: float
    delta: float
    strategy: str
    # (rows,) Shares of the records, and (columns,) what they ask.
    shares: Floats
    epsilons: Floats
    # (rows, columns) each.
    advantage: Floats
    forward: Floats
    backward: Floats
    # The advantage where all ask what the victim asks.
    baseline: float

    def to_dict(self) -> Json:
        """Return the table as JSON types."""
        return {
            "victim_epsilon": self.victim_epsilon,
            "delta": self.delta,
            "strategy": self.strategy,
            "baseline_advantage": self.baseline,
            "shares": self.shares.tolist(),
            "epsilons": self.epsilons.tolist(),
            "advantage": self.advantage.tolist(),
            "forward": self.forward.tolist(),
            "backward": self.backward.tolist(),
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

    For each share and ε a plan is made for two groups: the share of the records asks that ε, the
    others ask what the victim asks.
    """
    size = _check.count("records", records, least=2)
    rows = np.array(
        [_check.probability("share", share, low_open=True, high_open=True) for share in shares]
    )
    columns = np.array([_check.positive("epsilon", epsilon) for epsilon in epsilons])
    if not rows.size or not columns.size:
        raise InputError("risk: give at least one share and one epsilon of the others")
    if strategy is None:
        strategy = Sample()
    # The clip norm is a unit here: what a record faces depends on the noise over it alone.
    plan_for = partial(
        make_plan,
        strategy=strategy,
        steps=steps,
        expected_batch_size=expected_batch_size,
        clip_norm=1,
        method=method,
    )
    shape = (rows.size, columns.size)
    advantage = np.empty(shape)
    forward = np.empty(shape)
    backward = np.empty(shape)
    for i, share in enumerate(rows):
        for j, epsilon in enumerate(columns):
            # All who do not ask the others' ε ask what the victim asks.
            groups = [("victim", victim_epsilon, 1 - share), ("others", float(epsilon), share)]
            victim = _expose_victim(plan_for(Budgets.from_groups(groups, size, delta)))
            advantage[i, j] = victim.advantage.upper
            forward[i, j] = victim.forward.upper
            backward[i, j] = victim.backward.upper
            if progress is not None:
                progress(i * columns.size + j + 1, rows.size * columns.size)
    # What the victim faces where all ask alike, beside which the table is read.
    alone = Budgets.from_groups([("victim", victim_epsilon, 1.0)], size, delta)
    return RiskTable(
        victim_epsilon=float(victim_epsilon),
        delta=float(delta),
        strategy=strategy.name,
        shares=rows,
        epsilons=columns,
        advantage=advantage,
        forward=forward,
        backward=backward,
        baseline=float(_expose_victim(plan_for(alone)).advantage.upper),
    )


def _expose_victim(plan: BoundPlan) -> Exposure:
    """Return the exposure of the first record, which is a victim."""
    # Groups stand in the order in which they were given, victims first.
    return exposure(plan, int(plan.group_index[0]))


# The smallest and the largest ε that others are taken to choose.
MIN_EPSILON = 0.1
MAX_EPSILON = 100.0
# How many caps on the others' ε are tried, the largest budget among them, which caps nobody.
CAPS = 5
# How many ε of colluders are tried.
CHOICES = 9


def budget_manipulation(
    budgets: Budgets,
    target: object,
    *,
    decoys: Sequence[float] | None = None,
    strategy: Strategy | str | None = None,
    **settings: object,
) -> list[Exposure]:
    """Return the target's exposure when all others are given smaller budgets than they asked.

    The adversary keeps every promise: the target keeps its own budget, everyone else gets the
    smaller of what they asked and each of `decoys` in turn. The first entry is the honest plan;
    `worst` finds the worst of them.

    Args:
        budgets: What the records ask, bounds Δ̄ included (a strategy that keeps them is not moved
            past them).
        target: A record's id.
        decoys: Caps on ε. Unless given, four from 0.1 (or a tenth of the largest budget, where that
            is less) to below the largest, evenly in log ε.
        strategy: Sample unless given.
        **settings: Of `assign`; clip_norm is 1 unless given.

    Raises:
        DataError: For an unknown target, or one without others beside it.
        InputError: For decoys that are not positive and finite, and as `assign`.
        InfeasibleError: As `assign`.

    Guarantee:
        The figures bound every membership attack under add/remove, whatever the data.

    References:
        Kaiser et al. 2026, Def. 5 and §V-A.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.contract import budget_manipulation
        >>> budgets = Budgets([2.0] * 100, 1e-5)
        >>> settings = {"steps": 5, "expected_batch_size": 10}
        >>> exposures = budget_manipulation(budgets, 7, decoys=[0.5], strategy="scale", **settings)
        >>> [one.label for one in exposures]
        ['as asked', 'at most 0.5']
    """
    position = _find_target(budgets, target)
    if decoys is None:
        highest = float(budgets.epsilon.max())
        # The largest budget caps nobody, and is left out.
        decoys = np.geomspace(min(MIN_EPSILON, highest / 10), highest, CAPS)[:-1].tolist()
    scenarios = [("as asked", budgets.epsilon)]
    for decoy in decoys:
        cap = _check.positive("decoy", decoy)
        epsilon = np.minimum(budgets.epsilon, cap)
        # The target keeps its own: only the others are manipulated.
        epsilon[position] = budgets.epsilon[position]
        scenarios.append((f"at most {cap:g}", epsilon))
    return _expose_target(budgets, position, scenarios, strategy, settings)


def collusion(
    budgets: Budgets,
    target: object,
    *,
    shares: Sequence[float],
    epsilons: Sequence[float] | None = None,
    strategy: Strategy | str | None = None,
    seed: int | None = None,
    **settings: object,
) -> list[Exposure]:
    """Return the target's exposure when a share of the others ask for the same ε together.

    The colluders grow with the share and may ask for any budget, smaller or larger than their own;
    the target and the rest stay as they are. The first entry is the honest plan, then come all
    shares of the first of `epsilons`, of the second, and so on; `worst` finds the worst.

    Args:
        budgets: What the records ask.
        target: A record's id.
        shares: Of the others, in [0, 1].
        epsilons: What they ask. Unless given, nine from 0.1 to 100, evenly in log ε.
        strategy: Sample unless given.
        seed: Draws the colluders, a whole number from 0 on; None takes those with the largest
            budgets, who have most to withhold.
        **settings: Of `assign`; clip_norm is 1 unless given.

    Raises:
        DataError: As `budget_manipulation`.
        InputError: For a share or an ε out of bounds, and as `assign`.
        InfeasibleError: As `assign`.

    Guarantee:
        As `budget_manipulation`.

    References:
        Kaiser et al. 2026, Def. 6 and §V-B.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.contract import collusion
        >>> budgets = Budgets([2.0] * 100, 1e-5)
        >>> settings = {"steps": 5, "expected_batch_size": 10, "strategy": "scale"}
        >>> exposures = collusion(budgets, 7, shares=[0.5], epsilons=[0.5], **settings)
        >>> [one.label for one in exposures]
        ['as asked', '50% ask 0.5']
    """
    position = _find_target(budgets, target)
    if epsilons is None:
        epsilons = np.geomspace(MIN_EPSILON, MAX_EPSILON, CHOICES).tolist()
    # The others, in the order in which they collude.
    members = np.delete(np.arange(len(budgets)), position)
    if seed is None:
        members = members[np.argsort(-budgets.epsilon[members], kind="stable")]
    else:
        generator = np.random.default_rng(_check.count("seed", seed, least=0))
        members = generator.permutation(members)
    scenarios = [("as asked", budgets.epsilon)]
    for value in epsilons:
        request = _check.positive("epsilon", value)
        for share in shares:
            share = _check.probability("share", share)
            # The first so many: a larger share has all of a smaller one in it.
            colluders = members[: round(share * members.size)]
            epsilon = budgets.epsilon.copy()
            epsilon[colluders] = request
            scenarios.append((f"{share:.0%} ask {request:g}", epsilon))
    return _expose_target(budgets, position, scenarios, strategy, settings)


def _find_target(budgets: Budgets, target: object) -> int:
    """Return the position of the record with this id; raise where there is no other beside it."""
    if len(budgets) < 2:
        raise DataError("budgets: 1 record; an attack needs others beside the target")
    positions = np.flatnonzero(np.asarray(budgets.ids) == target)
    if positions.size != 1:
        raise DataError(
            f"target = {target!r}: not among the ids of the {len(budgets)} records; give one of "
            "budgets.ids"
        )
    return int(positions[0])


def _expose_target(
    budgets: Budgets,
    position: int,
    scenarios: list[tuple[str, Floats]],
    strategy: Strategy | str | None,
    settings: Json,
) -> list[Exposure]:
    """Return the exposure of the record at `position` in each scenario: a label and all ε."""
    if strategy is None:
        strategy = Sample()
    settings = {"clip_norm": 1.0, **settings}
    exposures = []
    # Each scenario is planned from the start, as a steward would who knew nothing of it.
    for label, epsilon in scenarios:
        # Budgets that are changed keep their ids and bounds, so that the target is found again.
        changed = Budgets(epsilon, budgets.delta, excess=budgets.excess, ids=budgets.ids)
        plan = make_plan(changed, strategy, **settings)
        group = int(changed.group_index[position])
        count = int((epsilon != budgets.epsilon).sum())
        exposures.append(exposure(plan, group, label=label, changed=count))
    return exposures
