"""Rows with several owners: a plan of rows that keeps every owner's promise.

Removing an owner removes all rows of theirs, at most `limit` of those selected. With one row the
owner's guarantee is that row's. With several, each joins a batch by its own coin and is clipped on
its own, so the owner adds a random sum of their clip norms: a mixture of Gaussians a step.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.accounting import privacy_curve
from apiece.assignment.front import ATTEMPTS, make_plan
from apiece.assignment.request import BACK, Strategy
from apiece.budgets import Budgets, Ownership
from apiece.budgets.units import places_of
from apiece.errors import InputError, UnsupportedError
from apiece.mechanisms import Composed, Mechanism, MixtureOfGaussians, Repeated
from apiece.numerics.roots import bisect, geometric
from apiece.plan import BoundPlan, Verification
from apiece.plan.parts import sampled_steps

_LEAST, _MOST = 0.05, 1e6
_ROUNDS = 16
_MOST_KINDS = 500


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
        if not np.array_equal(self.plan.ids, self.rows):
            raise InputError(
                "rows: they are not the ids of the plan; make the plan for these rows, in order"
            )

    def mechanism_for(self, owner: object) -> Mechanism:
        """Return what is done to all selected rows of `owner` together.

        Args:
            owner: An id of the graph.

        Raises:
            InputError: For an id that owns no row of the graph.
            UnsupportedError: For several rows of plans with a coin before a stage.
        """
        place = np.flatnonzero(self.ownership.ids == owner)
        if not place.size:
            raise InputError("owner: owns no row of the graph; give the id of one who does")
        return _together(self.plan, self._held[0][place[0]])

    @cached_property
    def _held(self) -> tuple[Integers, Integers]:
        """The budget groups of each owner's selected rows, −1 for none; and each row's place."""
        graph, mask = self.ownership, np.zeros(self.ownership.rows, dtype=bool)
        mask[self.rows] = True
        keep = mask[graph.row]
        owner, row = graph.owner[keep], np.searchsorted(self.rows, graph.row[keep])
        group = self.plan.group_index[row]
        order = np.lexsort((group, owner))  # each owner's rows side by side, by group
        many = np.bincount(owner, minlength=graph.ids.size)
        held = np.full((graph.ids.size, int(many.max())), -1, dtype=np.int64)
        rank = np.arange(owner.size) - np.repeat(np.cumsum(many) - many, many)
        held[owner[order], rank] = group[order]
        return held, many

    def verify(self) -> Verification:
        """Return, for each kind of owner, the ε of all their rows beside what they asked.

        Owners are of one kind whose rows are in the same groups and who asked the same.

        Raises:
            InputError: For more than 500 kinds.
            UnsupportedError: As `mechanism_for`.
        """
        kinds, _ = self._kinds
        epsilon, delta, held = kinds[:, 0], kinds[:, 1], kinds[:, 2:].astype(np.int64)
        curves = [privacy_curve(_together(self.plan, groups)) for groups in held]
        told = zip(curves, delta, strict=True)
        spent = np.array([curve.epsilon(float(d)).upper for curve, d in told], dtype=np.float64)
        names = np.array([f"owners of {many} rows" for many in (held >= 0).sum(axis=1)])
        return Verification(names, epsilon, delta, spent, spent <= epsilon)

    @cached_property
    def _kinds(self) -> tuple[Floats, Integers]:
        """(ε, δ, groups of rows) of each kind of owner, and each owner's kind, −1 for none."""
        held, many = self._held
        asked = _of_owners(self.ownership, self.budgets)
        some = many > 0
        columns = np.column_stack([self.budgets.epsilon[asked], self.budgets.delta[asked], held])
        kinds, place = np.unique(columns[some], axis=0, return_inverse=True)
        if len(kinds) > _MOST_KINDS:
            raise InputError(
                f"budgets: {len(kinds)} kinds of owners, by their budgets and their rows' groups; "
                f"at most {_MOST_KINDS} can be verified: round budgets down to a few values"
            )
        index = np.full(some.size, -1, dtype=np.int64)
        index[some] = place
        return kinds, index


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
    rows = ownership.select(limit)
    if not rows.size:
        raise InputError("limit: no row is left of the graph; allow every owner of some row one")
    asked = _of_owners(ownership, budgets)
    many = ownership.owned(rows)
    rate = min(1.0, expected_batch_size / rows.size)
    epsilon, delta = budgets.epsilon[asked], budgets.delta[asked]
    # Owners who asked the same and have as many rows have one aim, the ε of one of their rows.
    kinds, kind = np.unique(np.column_stack([epsilon, delta, many]), axis=0, return_inverse=True)
    of_kind = [_one_of(e, d, int(held), rate, steps) for e, d, held in kinds.tolist()]
    aims = np.array(of_kind)[kind.ravel()]
    batch = expected_batch_size
    for attempt in range(ATTEMPTS):
        asks = _asked_by_rows(ownership, rows, aims, delta)
        plan = make_plan(
            asks, strategy, steps=steps, expected_batch_size=batch, clip_norm=clip_norm
        )
        owned = OwnedPlan(plan, rows, ownership, budgets)
        checked = owned.verify()
        if checked.ok or not plan.releasable:
            return owned
        # Owners above what they asked aim lower with each of their rows.
        above = np.maximum(np.log(checked.epsilon_spent / checked.epsilon), 0.0)
        back = np.where(checked.kept, 0.0, 1.5 * np.minimum(above, 1.0) + BACK * 2**attempt)
        aims = aims * np.exp(-np.append(back, 0.0)[owned._kinds[1]])
    checked.require()
    return owned


def _of_owners(ownership: Ownership, budgets: Budgets) -> Integers:
    """Return the place in `budgets` of each owner of the graph."""
    if budgets.excess is not None:
        raise UnsupportedError(
            "budgets: bounds on the excess are not kept for rows of several owners; leave them out"
        )
    place = places_of(budgets.ids, ownership.ids)
    if missing := int((place < 0).sum()):
        raise InputError(
            f"budgets: {missing} of the graph's {ownership.ids.size} owners have none; give a "
            "budget for the id of every owner, of the same type"
        )
    return place


def _asked_by_rows(ownership: Ownership, rows: Integers, aims: Floats, delta: Floats) -> Budgets:
    """Return the budgets of the selected rows: the least of their owners' aims."""
    # With the least δ of all owners too, a row keeps what each of them allows.
    epsilon, least = np.full(ownership.rows, np.inf), np.full(ownership.rows, np.inf)
    np.minimum.at(epsilon, ownership.row, aims[ownership.owner])
    np.minimum.at(least, ownership.row, delta[ownership.owner])
    return Budgets(epsilon[rows], least[rows], ids=rows)


def _one_of(epsilon: float, delta: float, many: int, rate: float, steps: int) -> float:
    """Return the ε of one row at the noise at which so many, all at one rate, spend ε together."""
    if many <= 1:
        return epsilon

    # All rows join and are clipped alike, which is not what the plan will do: the plan is verified
    # owner by owner, and this is where its search starts.
    def within(z: Floats) -> Mask:
        step = MixtureOfGaussians.of_rows(float(z), [1.0] * many, [rate] * many)
        assert step is not None
        return np.asarray(privacy_curve(Repeated(step, steps)).epsilon(delta).upper <= epsilon)

    z, _ = bisect(within, _MOST, _LEAST * many, rounds=_ROUNDS, middle=geometric)
    alone = float(privacy_curve(sampled_steps(float(z), rate, steps)).epsilon(delta).lower)
    return min(alone * (1 - BACK), epsilon)


def _together(plan: BoundPlan, groups: Integers) -> Mechanism:
    """Return what is done to rows of these groups (−1: none) together."""
    held = groups[groups >= 0]
    if held.size == 1:
        return plan.mechanism_for(int(held[0]))
    kept = any(s.participation is not None or s.times is not None for s in plan.stages)
    if plan.worst_paths is not None or kept:
        raise UnsupportedError(
            f"strategy {plan.strategy}: draws what holds for many steps, not accounted for "
            "several rows of one owner; take one row an owner, or another strategy"
        )
    # By Kahane's inequality rows that point one way are the worst: their norms add up.
    parts: list[Mechanism] = []
    for stage in plan.stages:
        clips, q = stage.clip_norm[held].tolist(), stage.sampling_probability[held].tolist()
        step = MixtureOfGaussians.of_rows(stage.noise_stddev, clips, q)
        parts += [] if step is None else [Repeated(step, stage.steps)]
    return parts[0] if len(parts) == 1 else Composed(*parts)
