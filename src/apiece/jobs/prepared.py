"""A job that has passed every check: its people read, its plans made and verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from apiece.assignment import assign, schedule_noise
from apiece.budgets import cap_note
from apiece.errors import UnsupportedError
from apiece.jobs.config import Job
from apiece.jobs.folder import refuse_used
from apiece.jobs.people import People, read_people
from apiece.jobs.unfinished import Unfinished, reopen
from apiece.pate import VotePlan, plan_votes
from apiece.plan import BoundPlan


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A job that has passed every check: nothing is written and nothing trained yet.

    Attributes:
        job: What was asked for.
        people: Read from its table.
        plans: Strategy → its verified plan.
        unfinished: Where the run keeps what it needs to be gone on with.
        resumed: Whether it is an interrupted run.
        votes: Strategy → how its teachers vote, of which `plans` has the plan; none without PATE.

    Example:
        >>> from apiece.jobs import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 3, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> prepare(job, out=Path("runs/first")).steps
        3
    """

    job: Job
    people: People
    plans: dict[str, BoundPlan]
    unfinished: Unfinished
    resumed: bool = False
    votes: Mapping[str, VotePlan] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """How many updates all models take together; with PATE those of teachers and student."""
        if self.votes:
            each = (2 * self.job.training_of(name).steps for name in self.votes)
            return sum(each) * self.job.compare.seeds
        return sum(plan.steps for plan in self.plans.values()) * self.job.compare.seeds

    @property
    def private_notes(self) -> list[str]:
        """Counts about people, for the operator's eyes; they are kept out of the run folder."""
        notes = list(self.people.private_warnings)
        rows = "records" if self.people.train.person is None else "rows"
        for part, records in (("training", self.people.train), ("test", self.people.test)):
            faulty = int(records.faulty.sum())
            if faulty:
                does = "contribute nothing" if part == "training" else "are not counted"
                notes.append(
                    f"{faulty} of {len(records.labels)} {part} {rows} have a NaN, "
                    f"infinite or unreadable number and {does}"
                )
        return notes


def prepare(job: Job, *, out: Path) -> Prepared:
    """Return the job with its people read, and a verified plan for each of its strategies.

    Nothing is written.

    Args:
        job: What is asked for.
        out: The run folder, which does not exist yet or is empty.

    Raises:
        InputError: And its kinds, for anything that cannot be used.

    Example:
        >>> from apiece.jobs import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 3, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> prepare(job, out=Path("runs/first")).plans["scale"].verify().ok
        True
    """
    refuse_used(out)
    return _prepare(job, Unfinished.fresh(job, out), resumed=False)


def prepare_again(out: Path, *, ledger: str | None = None) -> Prepared:
    """Return the interrupted run in a folder, for `run` to go on with; nothing is written.

    `run` raises `StateError` where the table has changed.

    Args:
        out: The run folder.
        ledger: Its URL, where that has a password, which a run folder does not keep.

    Raises:
        StateError: Where `out` is no run folder or its run was finished.
        InputError: As for `prepare`.

    Example:
        >>> prepare_again(Path("runs/none"))
        Traceback (most recent call last):
        ...
        apiece.errors.StateError: runs/none: is no interrupted run; --resume takes the folder of a \
run that was interrupted
    """
    job, unfinished = reopen(out, ledger=ledger)
    return _prepare(job, unfinished, resumed=True)


def _prepare(job: Job, unfinished: Unfinished, *, resumed: bool) -> Prepared:
    people = read_people(job, unfinished.coins)
    if job.training.method == "pate":
        votes = {name: _votes(job, name, people) for name in job.strategies}
        plans = {name: each.plan for name, each in votes.items()}
        return Prepared(job, people, plans, unfinished, resumed, votes)
    plans = {name: _plan(job, name, people) for name in job.strategies}
    for name, plan in plans.items():
        if plan.combine != "continue":
            raise UnsupportedError(
                f"strategy {name}: averages the outputs of {len(plan.stages)} models, and "
                "apiece train makes one; choose sample, scale or hybrid"
            )
    return Prepared(job, people, plans, unfinished, resumed)


def _votes(job: Job, name: str, people: People) -> VotePlan:
    assert job.pate.teachers is not None  # or the job is refused
    cap = job.budgets.no_limit_cap
    return plan_votes(
        people.budgets,
        name,
        teachers=job.pate.teachers,
        questions=job.pate.asked,
        answers=job.pate.answers,
        threshold=job.pate.threshold,
        unit=job.data.unit,
        notes=() if cap is None else (cap_note(cap),),
    )


def _plan(job: Job, name: str, people: People) -> BoundPlan:
    training, cap = job.training_of(name), job.budgets.no_limit_cap
    plan = assign(
        people.budgets,
        name,
        steps=training.steps,
        expected_batch_size=training.batch_size,
        clip_norm=training.clip_norm,
    )
    plan = replace(plan, unit=job.data.unit)
    if cap is not None:
        plan = replace(plan, notes=(*plan.notes, cap_note(cap)))
    if training.noise_schedule is not None:
        plan = schedule_noise(plan, training.noise_schedule)
    if training.learning_rate_schedule is not None:
        plan = replace(plan, learning_rate=training.learning_rate_schedule)
    return plan
