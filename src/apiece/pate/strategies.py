"""Strategies: budgets decide how many teachers a record has, and how much their votes count.

Teachers stand in pools. A record's teachers are all of one pool, and the votes of a pool's teachers
all count the same. What one record can move in a count of votes is its *reach*: the number of its
teachers times what each vote counts. A strategy chooses pools, copies and weights; nothing else of
it enters the accounts. Source: Boenisch et al. 2022.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from apiece import _check
from apiece._types import Floats, Integers
from apiece.budgets import BudgetGroups
from apiece.errors import InfeasibleError, InputError, unknown

# Weights are multiples of this, so that sums of votes are exact in doubles.
GRID = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Seats:
    """The pools of teachers, and where the records of each budget group go."""

    # (groups,) The pool of each group.
    pool: Integers
    # (groups,) How many teachers of its pool a record has, at least 1.
    copies: Integers
    # (pools,) How many teachers each pool has.
    teachers: Integers
    # (pools,) What the vote of one of them counts, a multiple of 2⁻²⁰.
    weight: Floats

    def __post_init__(self) -> None:
        self.require()

    def require(self) -> None:
        """Raise unless every group has seats, and its votes add up exactly."""
        pools = self.teachers.size
        has_weights = self.weight.shape == (pools,)
        has_copies = self.pool.shape == self.copies.shape
        if not (has_weights and has_copies and pools):
            raise InputError(
                "seats: columns of different lengths; give pool and copies one entry a group, "
                "teachers and weight one entry a pool"
            )
        is_pool = (self.pool >= 0) & (self.pool < pools)
        if not is_pool.all() or not (self.teachers >= 1).all():
            raise InputError(
                "seats: a group's pool is not there, or a pool has no teacher; give each group a "
                "pool of at least one"
            )
        pool_teachers = self.teachers[self.pool]
        fits = (self.copies >= 1) & (self.copies <= pool_teachers)
        if not fits.all():
            raise InputError(
                "seats: a group's copies are not from 1 to the teachers of its pool; give fewer "
                "copies, or more teachers"
            )
        # Weights in steps of the grid.
        steps = self.weight / GRID
        # All votes together are then less than 2⁵² steps, which a double adds up exactly.
        largest_step = 2.0**52 / self.teachers.sum()
        exact = (steps == np.floor(steps)) & (steps < largest_step)
        if not (exact & (self.weight > 0)).all():
            raise InputError(
                "seats: a weight is not a positive multiple of 2^-20, small enough that votes add "
                "up exactly; round weights down to the grid"
            )

    @property
    def reach(self) -> Floats:
        """(groups,) Votes for one class that a record can add or take away, exact."""
        return np.asarray(self.copies * self.weight[self.pool])


class Voters(Protocol):
    """A way to seat the records of each budget group; a frozen value with its options."""

    __slots__ = ()
    name: ClassVar[str]

    def seats(self, groups: BudgetGroups, mu: Floats, teachers: int) -> Seats:
        """Return the pools; mu: (groups,) what each budget allows, teachers: how many in all."""
        ...


@dataclass(frozen=True, slots=True)
class Strictest(Voters):
    """PATE without individual budgets: one teacher a record, and everyone gets the strictest ε."""

    name: ClassVar[str] = "uniform"

    def seats(self, groups: BudgetGroups, mu: Floats, teachers: int) -> Seats:
        """Return one pool, in which each record has one teacher."""
        return _seat_in_one_pool(np.ones(len(groups), dtype=np.int64), teachers)


@dataclass(frozen=True, slots=True)
class Upsample(Voters):
    """A record with a larger budget is given to more teachers, whose votes all count one.

    A group's copies are the whole number nearest to `base` times its Gaussian parameter over the
    strictest one's. The noise is that of the group which this brings nearest to its budget; the
    others spend a little less than they allow.

    Attributes:
        base: The copies of the strictest group's records, at least 1; more of them follow the
            budgets more closely, and let teachers share more records.

    Raises:
        InputError: For a base below 1.

    References:
        Boenisch et al. 2022, upsampling.

    Example:
        >>> from apiece.pate import Upsample
        >>> Upsample(base=5)
        Upsample(base=5)
    """

    base: int = 1
    name: ClassVar[str] = "upsample"

    def __post_init__(self) -> None:
        _check.put(self, base=_check.count)

    def seats(self, groups: BudgetGroups, mu: Floats, teachers: int) -> Seats:
        """Return one pool, in which records of larger budgets have more teachers."""
        # A record of reach r spends r times the μ of one of reach 1, so that copies follow μ.
        proportional = self.base * mu / mu.min()
        copies = np.maximum(np.rint(proportional), 1)
        if not copies.max() <= teachers:
            raise InfeasibleError(
                f"teachers = {teachers}: a record of the loosest group would be given to "
                f"{copies.max():.0f}; give at least so many teachers, or a smaller base"
            )
        return _seat_in_one_pool(copies.astype(np.int64), teachers)


@dataclass(frozen=True, slots=True)
class Weight(Voters):
    """Each budget group has teachers of its own, whose votes count in proportion to what it allows.

    Teachers are dealt out to the groups by their sizes. Every group spends its budget in full.

    References:
        Boenisch et al. 2022, weighting.

    Example:
        >>> from apiece.pate.strategies import Weight
        >>> Weight()
        Weight()
    """

    name: ClassVar[str] = "weight"

    def seats(self, groups: BudgetGroups, mu: Floats, teachers: int) -> Seats:
        """Return a pool for each group."""
        size = len(groups)
        pool_sizes = _deal_teachers(groups, teachers)
        # Votes add up to about one a teacher; rounded down, so that no group's reach exceeds its
        # share of what all allow.
        scale = teachers / float(pool_sizes @ mu)
        weight = np.floor(mu * scale / GRID) * GRID
        if not weight.min() > 0:
            raise InfeasibleError(
                f"group {groups.name[int(np.argmin(weight))]}: allows so little beside the others "
                "that its teachers' votes count nothing; leave its records out, lower the others' "
                "budgets, or take upsample"
            )
        return Seats(np.arange(size), np.ones(size, dtype=np.int64), pool_sizes, weight)


VOTERS: dict[str, Callable[[], Voters]] = {
    voters.name: voters for voters in (Strictest, Upsample, Weight)
}


def find_voters(voters: str | Voters) -> Voters:
    """Return the strategy of a name, with its default options."""
    if not isinstance(voters, str):
        return voters
    if voters not in VOTERS:
        raise unknown("strategy", voters, VOTERS)
    return VOTERS[voters]()


def _seat_in_one_pool(copies: Integers, teachers: int) -> Seats:
    return Seats(np.zeros_like(copies), copies, np.array([teachers]), np.ones(1))


def _deal_teachers(groups: BudgetGroups, teachers: int) -> Integers:
    """Return how many teachers each group gets: at least one, in proportion to its records."""
    # Shares are rounded by largest remainders, so that the teachers add up to all.
    size = len(groups)
    if not size <= teachers:
        raise InfeasibleError(
            f"teachers = {teachers}: fewer than the {size} budget groups, each of which needs "
            f"teachers of its own; give at least {size}, round budgets down to fewer groups, or "
            "take upsample"
        )
    share = teachers * groups.records / groups.records.sum()
    small = np.flatnonzero(share < 0.5)
    if small.size:
        group = int(small[0])
        raise InfeasibleError(
            f"group {groups.name[group]}: its {groups.records[group]} records are too few for a "
            f"teacher of about {int(groups.records.sum()) / teachers:.0f}; give more teachers, "
            "round these budgets down to a larger group's, or take upsample"
        )
    # Rounded down, but for groups that would have none; then one by one until all are dealt.
    dealt = np.maximum(np.floor(share).astype(np.int64), 1)
    while (missing := teachers - int(dealt.sum())) != 0:
        remainder = share - dealt
        if missing > 0:
            dealt[int(np.argmax(remainder))] += 1
        else:
            # There are no more groups than teachers, so that some group has two.
            spare = np.where(dealt > 1, remainder, np.inf)
            dealt[int(np.argmin(spare))] -= 1
    return np.asarray(dealt)
