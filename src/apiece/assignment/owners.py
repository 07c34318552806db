"""Rows with several owners: a plan of rows that keeps every owner's promise.

Removing an owner removes all rows of theirs, at most `limit` of those selected. With one row the
owner's guarantee is that row's. With several, each joins a batch by its own coin and is clipped on
its own, so the owner adds a random sum of their clip norms: a mixture of Gaussians a step.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from apiece import _check
from apiece._types import Floats, Integers, Mask
from apiece.accounting import privacy_curve
from apiece.assignment.front import ATTEMPTS, make_plan
from apiece.assignment.request import BACK, Strategy
from apiece.budgets import Budgets, Ownership
from apiece.budgets.units import find_positions
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import Composed, Mechanism, Repeated
from apiece.mechanisms.mixture import MixtureOfGaussians
from apiece.numerics.roots import bisect, geometric
from apiece.plan import BoundPlan
from apiece.plan.parts import sampled_steps
from apiece.plan.verification import Verification

# The smallest noise multiplier of a row, for each row of an owner.
_MIN_NOISE = 0.05
# The largest noise multiplier of a row.
_MAX_NOISE = 1e6
# How many times the interval of noise multipliers is halved.
_BISECTIONS = 16
# The largest number of kinds of owners; each takes a curve.
_MAX_KINDS = 500
# How much of log ε owners who overspend aim lower, for each of log ε that they overspend.
_CORRECTION = 1.5


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Holdings:
    """The budget groups of each owner's selected rows."""

    # A row an owner, ascending, filled up with −1.
    groups: Integers
    # How many selected rows each owner has.
    count: Integers


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Kinds:
    """The kinds of owners: alike are those who asked the same and have rows in the same groups."""

    epsilon: Floats
    delta: Floats
    # The groups of the rows of each kind, filled up with −1.
    groups: Integers
    # Each owner's kind, −1 for those without a row.
    index: Integers


@dataclass(frozen=True, eq=False)
class OwnedPlan:
    """A plan of the selected rows, and the owners whose promises it keeps.

    Attributes:
        plan: What is done to each selected row; its ids are the rows' positions in the graph.
        rows: The selected rows, ascending; the dataset to train on has these, in this order.
        ownership: The graph.
        budgets: What the owners asked for.

    Raises:
        InputError: where the plan's ids are not the rows.

    Guarantee:
        Under one frozen plan and a public graph, the parameters of a run with all selected rows and
        of one without an owner's rows are as close as `mechanism_for(owner)` says.

    References:
        Choquette-Choo et al. 2024 (mixtures of Gaussians); Ganesh et al. 2025 (several owners).

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment import assign_owned
        >>> from apiece.budgets import Ownership
        >>> graph = Ownership([[i, (i + 1) % 100] for i in range(100)])
        >>> owned = assign_owned(graph, Budgets(2.0, 1e-5, ids=range(100)), "scale", limit=2,
        ...                      steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> owned.rows.size
        100
    """

    plan: BoundPlan
    rows: Integers = field(repr=False)
    ownership: Ownership = field(repr=False)
    budgets: Budgets = field(repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", _check.freeze(np.asarray(self.rows)))
        if not np.array_equal(self.plan.ids, self.rows):
            raise InputError(
                "rows: they are not the ids of the plan; make the plan for these rows, in order"
            )

    def mechanism_for(self, owner: object) -> Mechanism:
        """Return the mechanism of all selected rows of `owner` together.

        Args:
            owner: An id of the graph.

        Raises:
            InputError: For an id that owns no row of the graph.
            UnsupportedError: For several rows of plans with a coin before a stage.
        """
        position = np.flatnonzero(self.ownership.ids == owner)
        if not position.size:
            raise InputError("owner: owns no row of the graph; give the id of one who does")
        return _combine_rows(self.plan, self._holdings.groups[position[0]])

    @cached_property
    def _holdings(self) -> _Holdings:
        graph = self.ownership
        selected = np.zeros(graph.rows, dtype=bool)
        selected[self.rows] = True
        # The edges of the graph that end in a selected row.
        edges = selected[graph.row]
        owner = graph.owner[edges]
        position = np.searchsorted(self.rows, graph.row[edges])
        group = self.plan.group_index[position]
        # Each owner's rows side by side, by group.
        order = np.lexsort((group, owner))
        owner = owner[order]
        group = group[order]
        count = np.bincount(owner, minlength=graph.ids.size)
        starts = np.cumsum(count) - count
        # Which of its owner's rows an edge is, from 0 on.
        rank = np.arange(owner.size) - np.repeat(starts, count)
        groups = np.full((graph.ids.size, int(count.max())), -1, dtype=np.int64)
        groups[owner, rank] = group
        return _Holdings(groups, count)

    def verify(self) -> Verification:
        """Return, for each kind of owner, the ε of all their rows beside what they asked.

        Owners are of one kind whose rows are in the same groups and who asked the same.

        Raises:
            InputError: For more than 500 kinds.
            UnsupportedError: As `mechanism_for`.
        """
        kinds = self._kinds
        curves = [privacy_curve(_combine_rows(self.plan, groups)) for groups in kinds.groups]
        spent = np.array(
            [
                curve.epsilon(float(delta)).upper
                for curve, delta in zip(curves, kinds.delta, strict=True)
            ],
            dtype=np.float64,
        )
        counts = (kinds.groups >= 0).sum(axis=1)
        names = np.array([f"owners of {count} rows" for count in counts])
        return Verification(names, kinds.epsilon, kinds.delta, spent, spent <= kinds.epsilon)

    @cached_property
    def _kinds(self) -> _Kinds:
        positions = _find_budgets(self.ownership, self.budgets)
        owns = self._holdings.count > 0
        # (owners, 2 + rows of who has the most).
        columns = np.column_stack(
            [
                self.budgets.epsilon[positions],
                self.budgets.delta[positions],
                self._holdings.groups,
            ]
        )
        # Owners with one budget and rows in the same groups spend alike: each kind is computed
        # once. Who has no row spends nothing and is of none.
        distinct, inverse = np.unique(columns[owns], axis=0, return_inverse=True)
        if len(distinct) > _MAX_KINDS:
            raise InputError(
                f"budgets: {len(distinct)} kinds of owners, by their budgets and their rows' "
                f"groups; at most {_MAX_KINDS} can be verified: round budgets down to a few values"
            )
        index = np.full(owns.size, -1, dtype=np.int64)
        index[owns] = inverse
        groups = distinct[:, 2:].astype(np.int64)
        return _Kinds(distinct[:, 0], distinct[:, 1], groups, index)

    def _lower_aims(self, aims: Floats, verification: Verification, attempt: int) -> Floats:
        """Return the owners' aims, lower where an owner's kind spends more than it asked."""
        # A kind that spends nothing has −∞, which lowers no aim.
        with np.errstate(divide="ignore"):
            overspending = np.log(verification.epsilon_spent / verification.epsilon)
        # ε may jump with the aim: no more than a factor e at once.
        overspending = np.minimum(np.maximum(overspending, 0.0), 1.0)
        back = _CORRECTION * overspending + BACK * 2**attempt
        back = np.where(verification.kept, 0.0, back)
        # Owners without a row are of kind −1: the last entry, which leaves their aim alone.
        owner_back = np.append(back, 0.0)[self._kinds.index]
        return np.asarray(aims * np.exp(-owner_back))


def assign_owned(
    ownership: Ownership,
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    limit: npt.ArrayLike = 1,
    steps: int,
    expected_batch_size: float,
    clip_norm: float,
) -> OwnedPlan:
    """Return a verified plan for rows with several owners, each of whom has a budget.

    Rows are selected by the graph alone so that nobody owns more than `limit` of them. A row asks
    what the most cautious of its owners allows a row of theirs. The plan is verified owner by
    owner, and made again with lower aims where an owner would spend more.

    Args:
        ownership: The public graph.
        budgets: Of the owners, by the ids of the graph.
        strategy: As for `assign`.
        limit: How many rows of an owner are used at most; one for all, or one an owner.
        steps: As for `assign`.
        expected_batch_size: In rows, at most as many as are selected.
        clip_norm: The mean bound on a row's gradient.

    Raises:
        InputError: For owners without a budget, no selected row, more than 500 kinds of owners, and
            what `assign` raises.
        UnsupportedError: For several rows an owner under a plan with a coin before a stage.
        VerificationError: Where an owner would spend more than they asked, even when aimed lower.

    Guarantee:
        No owner's ε under add/remove of all their selected rows, recomputed from the plan's own
        numbers, is above what they asked; a plan that fails is never returned.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.assignment import assign_owned
        >>> from apiece.budgets import Ownership
        >>> graph = Ownership([[i, (i + 1) % 100] for i in range(100)])
        >>> owned = assign_owned(graph, Budgets(2.0, 1e-5, ids=range(100)), "scale", limit=2,
        ...                      steps=10, expected_batch_size=10, clip_norm=1.0)
        >>> owned.verify().ok
        True
    """
    # By the public graph alone, so that the choice costs nothing.
    rows = ownership.select(limit)
    if not rows.size:
        raise InputError("limit: no row is left of the graph; allow every owner of some row one")
    aims, delta = _aim_rows(ownership, budgets, rows, steps, expected_batch_size)
    for attempt in range(ATTEMPTS):
        plan = make_plan(
            _make_row_budgets(ownership, rows, aims, delta),
            strategy,
            steps=steps,
            expected_batch_size=expected_batch_size,
            clip_norm=clip_norm,
        )
        owned = OwnedPlan(plan, rows, ownership, budgets)
        verification = owned.verify()
        # Lower aims would not make a plan with objections fit for release.
        if verification.ok or not plan.releasable:
            return owned
        aims = owned._lower_aims(aims, verification, attempt)
    verification.require()
    return owned


def _aim_rows(
    ownership: Ownership,
    budgets: Budgets,
    rows: Integers,
    steps: int,
    expected_batch_size: float,
) -> tuple[Floats, Floats]:
    """Return, for each owner, the ε that each of their rows is aimed at, and their δ."""
    positions = _find_budgets(ownership, budgets)
    epsilon = budgets.epsilon[positions]
    delta = budgets.delta[positions]
    count = ownership.owned(rows)
    # As if all selected rows had one rate.
    rate = min(1.0, expected_batch_size / rows.size)
    # Owners who asked the same and have as many rows have one aim.
    columns = np.column_stack([epsilon, delta, count])
    kinds, inverse = np.unique(columns, axis=0, return_inverse=True)
    aims = [
        _aim_one_row(kind_epsilon, kind_delta, int(kind_count), rate, steps)
        for kind_epsilon, kind_delta, kind_count in kinds.tolist()
    ]
    return np.array(aims)[inverse.ravel()], delta


def _find_budgets(ownership: Ownership, budgets: Budgets) -> Integers:
    """Return the position in `budgets` of each owner of the graph."""
    if budgets.excess is not None:
        raise UnsupportedError(
            "budgets: bounds on the excess are not kept for rows of several owners; leave them out"
        )
    positions = find_positions(budgets.ids, ownership.ids)
    missing = int((positions < 0).sum())
    if missing:
        raise InputError(
            f"budgets: {missing} of the graph's {ownership.ids.size} owners have none; give a "
            "budget for the id of every owner, of the same type"
        )
    return positions


def _make_row_budgets(ownership: Ownership, rows: Integers, aims: Floats, delta: Floats) -> Budgets:
    """Return the budgets of the selected rows: the least of their owners' aims."""
    # With the least δ of all owners too, a row keeps what each of them allows.
    row_epsilon = np.full(ownership.rows, np.inf)
    row_delta = np.full(ownership.rows, np.inf)
    np.minimum.at(row_epsilon, ownership.row, aims[ownership.owner])
    np.minimum.at(row_delta, ownership.row, delta[ownership.owner])
    return Budgets(row_epsilon[rows], row_delta[rows], ids=rows)


def _aim_one_row(epsilon: float, delta: float, count: int, rate: float, steps: int) -> float:
    """Return the ε of one row at the noise at which `count` rows spend ε together."""
    if count <= 1:
        return epsilon

    # All rows join at one rate and are clipped alike, which is not what the plan will do: the plan
    # is verified owner by owner, and this is where its search starts.
    def keeps_budget(z: Floats) -> Mask:
        step = MixtureOfGaussians.of_rows(float(z), [1.0] * count, [rate] * count)
        assert step is not None
        return np.asarray(privacy_curve(Repeated(step, steps)).epsilon(delta).upper <= epsilon)

    z, _ = bisect(
        keeps_budget, _MAX_NOISE, _MIN_NOISE * count, rounds=_BISECTIONS, middle=geometric
    )
    curve = privacy_curve(sampled_steps(float(z), rate, steps))
    # From the lower end: an aim too low costs little, one too high another attempt.
    row_epsilon = float(curve.epsilon(delta).lower)
    return min(row_epsilon * (1 - BACK), epsilon)


def _combine_rows(plan: BoundPlan, groups: Integers) -> Mechanism:
    """Return the mechanism of rows of these groups together; −1 is no row."""
    rows = groups[groups >= 0]
    # A single row has the plan's own mechanism, with any coin before a stage.
    if rows.size == 1:
        return plan.mechanism_for(int(rows[0]))
    if plan.worst_paths is not None or any(
        stage.participation is not None or stage.times is not None for stage in plan.stages
    ):
        raise UnsupportedError(
            f"strategy {plan.strategy}: draws what holds for many steps, not accounted for "
            "several rows of one owner; take one row an owner, or another strategy"
        )
    # By Kahane's inequality rows that point one way are the worst: their norms add up.
    mechanisms: list[Mechanism] = []
    for stage in plan.stages:
        clip_norms = stage.clip_norm[rows].tolist()
        probabilities = stage.sampling_probability[rows].tolist()
        step = MixtureOfGaussians.of_rows(stage.noise_stddev, clip_norms, probabilities)
        if step is not None:
            mechanisms.append(Repeated(step, stage.steps))
    return mechanisms[0] if len(mechanisms) == 1 else Composed(*mechanisms)
