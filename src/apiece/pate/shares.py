"""The deal of rows to teachers: each record's teachers are drawn by its own coins.

Nobody else's presence, rows or budget move a record to other teachers. A person's rows all go to
the person's teachers, so that what holds of a record holds of a person.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from apiece._types import Floats, Integers, Mask
from apiece.budgets import Units
from apiece.errors import DataError, VerificationError
from apiece.pate.planning import VotePlan
from apiece.training import ChaCha20Stream

_CELLS = 1 << 22  # coins in memory at a time


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Shares:
    """The rows of each model: those of model k are rows[starts[k]:starts[k + 1]]."""

    rows: Integers  # Positions in the data, model by model; a row of several models stands in each
    starts: Integers  # (models + 1,) Where each model's rows begin, and the end

    @property
    def sizes(self) -> Integers:
        """(models,) How many rows each has."""
        return np.diff(self.starts)

    def drawn(self, coins: Floats) -> Integers:
        """Return rows drawn with replacement from each model's own; 0 where a model has none."""
        sizes = self.sizes[:, None]
        place = np.minimum((coins * sizes).astype(np.int64), np.maximum(sizes - 1, 0))
        if not self.rows.size:
            return np.zeros_like(place)
        last = self.rows.size - 1  # a model without rows at the end would look past it
        result = self.rows[np.minimum(self.starts[:-1, None] + place, last)]
        return np.asarray(np.where(sizes > 0, result, 0))


def shared_out(
    plan: VotePlan, *, key: bytes, people: npt.ArrayLike | None = None, included: Mask | None = None
) -> Shares:
    """Return the rows of each teacher."""
    # A record's rows are in `copies` different teachers of its group's pool and in no other, and
    # which these are depends on `key` and its place in the plan alone.
    bound = plan.plan
    if (people is None) != (bound.unit == "record"):
        raise DataError(
            f"people: the plan is of {bound.unit}s; give each row's person for a plan of persons, "
            "and none for a plan of records"
        )
    of = None if people is None else Units.of(people, bound.ids)
    record, teacher = _seated(plan, key)
    if included is not None:
        record, teacher = record[included[record]], teacher[included[record]]
    order = np.argsort(teacher, kind="stable")
    record, teacher = record[order], teacher[order]
    counts = np.ones(record.size, np.int64) if of is None else of.counts[record]
    ends = np.cumsum(np.bincount(teacher, weights=counts, minlength=plan.teachers))
    starts = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
    if of is None:
        return Shares(record, starts)
    first = np.repeat(of.starts[record] - (np.cumsum(counts) - counts), counts)
    return Shares(of.rows[first + np.arange(int(counts.sum()))], starts)


def require_dealt(
    plan: VotePlan,
    shares: Shares,
    *,
    people: npt.ArrayLike | None = None,
    included: Mask | None = None,
) -> None:
    """Raise unless no record can move the votes by more than the plan says."""
    # A record moves a count by the votes of the different teachers who have a row of it: its reach,
    # added up here from the rows that the teachers learn from. Nothing of the plan is believed but
    # what its group was promised.
    if shares.sizes.size != plan.teachers:
        raise _misdealt("there are other teachers than the plan has")
    teacher = np.repeat(np.arange(plan.teachers), shares.sizes)
    group, seats = plan.plan.group_index, plan.seats
    owner = np.arange(group.size) if people is None else Units.of(people, plan.plan.ids).owner
    pairs = np.unique(owner[shares.rows] * plan.teachers + teacher)
    record, teacher = pairs // plan.teachers, pairs % plan.teachers
    if included is not None and not included[record].all():
        raise _misdealt("somebody who takes no part has a teacher")
    if (plan.pool_of_teacher[teacher] != seats.pool[group[record]]).any():
        raise _misdealt("a record sits with a teacher of another pool than its group's")
    for phase in plan.phases:
        reach = np.bincount(record, plan.weights(phase)[teacher], minlength=group.size)
        promised = np.where(phase.voting[seats.pool], seats.reach, 0.0)
        if not (reach <= promised[group]).all():
            raise _misdealt("a record can move the votes by more than its group was promised")


def _misdealt(why: str) -> VerificationError:
    return VerificationError(
        f"teachers: {why}; no question was asked and nothing is released: deal again, by shared_out"
    )


def _seated(plan: VotePlan, key: bytes) -> tuple[Integers, Integers]:
    """Return every pair (record, teacher of it), by a block of coins for each record's place."""
    seats, group = plan.seats, plan.plan.group_index
    first = np.concatenate([np.zeros(1, np.int64), np.cumsum(seats.teachers)])
    width = int(seats.teachers.max())
    stream, result = ChaCha20Stream(key), []
    together = max(1, _CELLS // width)
    for at in range(0, group.size, together):
        here = group[at : at + together]
        coins = stream.uniform(here.size * width).reshape(-1, width)
        for g in np.unique(here).tolist():
            who, pool, copies = np.flatnonzero(here == g), seats.pool[g], int(seats.copies[g])
            among = coins[who, : seats.teachers[pool]]
            chosen = np.argpartition(among, copies - 1, axis=1)[:, :copies]
            result.append((np.repeat(who + at, copies), first[pool] + chosen.reshape(-1)))
    record, teacher = (np.concatenate(part) for part in zip(*result, strict=True))
    return record, teacher
