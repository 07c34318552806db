"""A job that has passed every check: its people read, its plans made and verified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from apiece.assignment import assign, schedule_noise
from apiece.budgets import cap_note
from apiece.errors import UnsupportedError
from apiece.jobs.config import Job
from apiece.jobs.folder import refuse_used
from apiece.jobs.people import People, read_people
from apiece.jobs.unfinished import Unfinished, reopen
from apiece.plan import BoundPlan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A job that has passed every check: nothing is written and nothing trained yet."""

    job: Job
    people: People
    plans: dict[str, BoundPlan]
    unfinished: Unfinished
    resumed: bool = False

    @property
    def steps(self) -> int:
        """How many updates all models take together."""
        return sum(plan.steps for plan in self.plans.values()) * self.job.compare.seeds

    @property
    def private_notes(self) -> list[str]:
        """Counts about people, for the operator's eyes; they are kept out of the run folder."""
        notes = list(self.people.private_warnings)
        for part, records in (("training", self.people.train), ("test", self.people.test)):
            faulty = int(records.faulty.sum())
            if faulty:
                does = "contribute nothing" if part == "training" else "are not counted"
                notes.append(
                    f"{faulty} of {len(records.labels)} {part} records have a NaN, "
                    f"infinite or unreadable number and {does}"
                )
        return notes


def prepare(job: Job, *, out: Path) -> Prepared:
    """Check the folder and the settings, read the people, and make a verified plan a strategy.

    Raises `InputError` and its kinds for anything that cannot be used; nothing is written.
    """
    refuse_used(out)
    return _prepare(job, Unfinished.fresh(job, out), resumed=False)


def prepare_again(out: Path, *, ledger: str | None = None) -> Prepared:
    """Return the interrupted run in `out`, for `run` to go on with; nothing is written.

    Raises as `reopen` and `prepare` do; `run` raises `StateError` where the table has changed.
    """
    job, unfinished = reopen(out, ledger=ledger)
    return _prepare(job, unfinished, resumed=True)


def _prepare(job: Job, unfinished: Unfinished, *, resumed: bool) -> Prepared:
    people = read_people(job, unfinished.coins)
    plans = {name: _plan(job, name, people) for name in job.strategies}
    for name, plan in plans.items():
        if plan.combine != "continue":
            raise UnsupportedError(
                f"strategy {name}: averages the outputs of {len(plan.stages)} models, and "
                "apiece train makes one; choose sample, scale or hybrid"
            )
    return Prepared(job, people, plans, unfinished, resumed)


def _plan(job: Job, name: str, people: People) -> BoundPlan:
    training, cap = job.training_of(name), job.budgets.no_limit_cap
    plan = assign(
        people.budgets,
        name,
        steps=training.steps,
        expected_batch_size=training.batch_size,
        clip_norm=training.clip_norm,
    )
    if cap is not None:
        plan = replace(plan, notes=(*plan.notes, cap_note(cap)))
    if training.noise_schedule is not None:
        plan = schedule_noise(plan, training.noise_schedule)
    if training.learning_rate_schedule is not None:
        plan = replace(plan, learning_rate=training.learning_rate_schedule)
    return plan
