"""A job that has passed every check, and its run folder: new, or gone on with after Ctrl-C."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from apiece import _json
from apiece._files import Kind, append, require_own_folder, write
from apiece.assignment import Strategy, assign, schedule_noise
from apiece.assignment.unspent import default_batch
from apiece.budgets import Budgets
from apiece.budgets.groups import describe_cap
from apiece.errors import DataError, StateError, UnsupportedError, as_given
from apiece.jobs.config import Job, Pate, Training, read_job
from apiece.jobs.people import People, read_people
from apiece.jobs.search import SETTINGS, Candidates
from apiece.jobs.settings import refuse_past
from apiece.pate import plan_votes
from apiece.pate.planning import VotePlan
from apiece.plan import BoundPlan

# Records that are expected in a step at most, where no batch size is given.
MOST_EXPECTED: Final = 512.0
# Any file may be overwritten: the folder was empty when the run began.
_FILE: Final = Kind("a run's file", mark=b"")
_LOG: Final = Kind("a run's log", (".jsonl",), b'{"seconds": ')
# Bits of the coins of a split.
_COIN_BITS: Final = 128


class RunFolder:
    """The folder of one run: files written whole, a log of whole lines, nothing private."""

    # No losses or norms of training records go into it, no counts of those who were sampled, no
    # list of who has which budget.

    def __init__(self, path: Path, *, timed: bool = True) -> None:
        require_own_folder(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(
                f"out = {path}: cannot be made ({error.strerror}); give another"
            ) from None
        self.path = path
        # None for a search: the time would tell how many runs there were.
        self._start = time.monotonic() if timed else None

    def write(self, name: str, content: str | bytes) -> None:
        """Write the file `name`, whole."""
        write(self.path / name, content, _FILE)

    def log(self, event: str, **values: object) -> None:
        """Append one line to log.jsonl: seconds since the start or none, event, public values."""
        seconds = None
        if self._start is not None:
            seconds = round(time.monotonic() - self._start, 3)
        line = json.dumps({"seconds": seconds, "event": event, **values}, allow_nan=False)
        append(self.path / "log.jsonl", line, _LOG)

    def read_curve(self, strategy: str, repeat: int) -> dict[int, float]:
        """Return the figures that were logged as "tested" of one model, by step."""
        # A step that was made again after an interruption was logged twice; the later line counts.
        lines = (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines()
        curve = {}
        for line in lines:
            entry = json.loads(line)
            if entry["event"] != "tested":
                continue
            if (entry["strategy"], entry["repeat"]) == (strategy, repeat):
                curve[entry["step"]] = entry["figure"]
        return curve


def _is_free(path: Path) -> bool:
    """Whether a run folder can be made at `path`: nothing is there, or an empty folder."""
    if path.is_dir():
        return not any(path.iterdir())
    # A link that leads nowhere does not exist, and yet no folder can be made there.
    return not (path.exists() or path.is_symlink())


def refuse_used(path: Path) -> None:
    """Raise `DataError` unless `path` is free, or an empty folder of this user."""
    if not _is_free(path):
        raise DataError(
            f"out = {path}: exists and is not empty; it is left untouched, give another folder as "
            f"{as_given('out')}"
        )
    try:
        require_own_folder(path)
    except DataError as error:
        raise DataError(f"out = {error}") from None


def find_free_folder(parent: Path, name: str) -> Path:
    """Return parent/name, or the first of parent/name-2, parent/name-3, … that is free."""
    path = parent / name
    number = 1
    while not _is_free(path):
        number += 1
        path = parent / f"{name}-{number}"
    return path


@dataclass(frozen=True, slots=True, repr=False)
class Unfinished:
    """What a run keeps in its folder until it is done, so that it can be gone on with.

    The folder `checkpoints` holds a checkpoint of every model begun, with the key of its noise, and
    what the config does not say: the job's name, and the coins (the seed) of a split that was
    drawn. Only its owner can read it, and it is deleted once the run's results are written.
    """

    out: Path
    coins: int

    @classmethod
    def fresh(cls, seed: int | None, out: Path) -> Unfinished:
        """Return the checkpoints of a new run, of which nothing is written yet."""
        return cls(out, secrets.randbits(_COIN_BITS) if seed is None else seed)

    @property
    def folder(self) -> Path:
        """Where everything is."""
        return self.out / "checkpoints"

    @property
    def note(self) -> Path:
        """The file of what the config does not say; with it the run can be resumed."""
        return self.folder / "job.json"

    @property
    def search_folder(self) -> Path:
        """The folder of a search: its key, and the best model so far with its secret score."""
        return self.folder / "search"

    def begin(self, name: str) -> None:
        """Make the folder, and note what the config does not say."""
        from apiece.training.checkpoints import write_atomically

        # Readable by its owner alone: it will hold the keys of the noise.
        self.folder.mkdir(mode=0o700)
        content = {"name": name, "coins": self.coins}
        write_atomically(self.note, json.dumps(content).encode())

    def model_folder(self, strategy: str, repeat: int) -> Path:
        """Return the folder of one model's checkpoint."""
        return self.folder / f"{strategy}-{repeat + 1}"

    def take_search_folder(self, run: int) -> Path:
        """Return the folder of the checkpoint of one run of a search; delete those of others."""
        from apiece.training.checkpoints import CheckpointFolder

        folder = self.model_folder("run", run)
        # What stayed behind would tell how many runs there were.
        for path in self.folder.glob("run-*"):
            if path != folder:
                CheckpointFolder(path).finish()
                shutil.rmtree(path)
        return folder

    def count_steps(self) -> int:
        """Return how many steps the checkpoints hold, all models together."""
        paths = list(self.folder.glob("*/state.pt"))
        if not paths:
            return 0
        # Torch takes long to load: only where there is a checkpoint to be read.
        import torch

        from apiece.training.checkpoints import CheckpointFolder

        steps = 0
        for path in paths:
            state = torch.load(CheckpointFolder(path.parent).state, weights_only=True)
            steps += int(state["step"])
        return steps

    def clear(self) -> None:
        """Delete what makes it a run to be resumed, then the keys, then everything."""
        from apiece.training.checkpoints import CheckpointFolder

        # A folder without its note is no run to be resumed, whatever is left of it.
        self.note.unlink(missing_ok=True)
        # Keys are overwritten before they are unlinked.
        for path in self.folder.glob("*/key"):
            CheckpointFolder(path.parent).finish()
        shutil.rmtree(self.folder)


def reopen(out: Path, *, ledger: str | None = None) -> tuple[Job, Unfinished]:
    """Return the job of an interrupted run folder, and its checkpoints; see `prepare_again`."""
    path = out / "checkpoints" / "job.json"
    if not path.is_file():
        is_finished = (out / "metrics.json").exists()
        reason = "was finished" if is_finished else "is no interrupted run"
        raise StateError(
            f"{out}: {reason}; --resume takes the folder of a run that was interrupted"
        )
    note = _json.fields(
        _json.loads(path.read_bytes(), str(path)),
        str(path),
        {"name": _json.text, "coins": _json.whole(2**_COIN_BITS)},
    )
    # A password is in no config, so that the address of the ledger may have to be given again.
    job = read_job(out / "config.toml", {} if ledger is None else {"ledger": ledger})
    job = replace(job, name=note["name"], run=replace(job.run, out=str(out)))
    return job, Unfinished(out, note["coins"])


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Prepared:
    """A job that has passed every check: nothing is written and nothing trained yet.

    Attributes:
        job: The settings.
        people: The rows of its table, with their budgets.
        plans: Strategy → its verified plan.
        unfinished: Where the run keeps what it needs to be gone on with.
        resumed: Whether it is an interrupted run.
        votes: With PATE, strategy → how its teachers vote, of which `plans` has the plan.
        candidates: With a search, the plans of its runs, of which `plans` has the first.

    Example:
        >>> from pathlib import Path
        >>> from apiece.jobs import prepare
        >>> from apiece.jobs.config import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> job = job_from_dict(data, name="first", changes={"steps": 3, "strategy": "scale"})
        >>> prepare(job, out=Path("runs/first")).steps
        3
    """

    job: Job
    people: People
    plans: dict[str, BoundPlan]
    unfinished: Unfinished
    resumed: bool = False
    votes: Mapping[str, VotePlan] = field(default_factory=dict)
    candidates: Candidates | None = None

    @property
    def steps(self) -> int | None:
        """How many updates all models take together; with PATE those of teachers and student.

        None of a search, whose number of runs is secret.
        """
        if self.candidates is not None:
            return None
        # With PATE a step of the plan is a vote, and those of teachers and student count.
        total = 0
        for name, plan in self.plans.items():
            if self.votes:
                total += 2 * self.job.training_of(name).steps
            else:
                total += plan.steps
        return total * self.job.compare.seeds

    @property
    def private_notes(self) -> list[str]:
        """Counts about people, for the operator's eyes; they are kept out of the run folder."""
        notes = list(self.people.private_warnings)
        rows = "records" if self.people.train.person is None else "rows"
        for part, records, consequence in (
            ("training", self.people.train, "contribute nothing"),
            ("test", self.people.test, "are not counted"),
        ):
            faulty = int(records.faulty.sum())
            if faulty:
                notes.append(
                    f"{faulty} of {len(records.labels)} {part} {rows} have a NaN, "
                    f"infinite or unreadable number and {consequence}"
                )
        return notes


def prepare(job: Job, *, out: Path) -> Prepared:
    """Return the job with its people read, and a verified plan for each of its strategies.

    Nothing is written.

    Args:
        job: The settings.
        out: The run folder, which does not exist yet or is empty.

    Raises:
        InputError: And its kinds, for anything that cannot be used.

    Example:
        >>> from pathlib import Path
        >>> from apiece.jobs import prepare
        >>> from apiece.jobs.config import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 3, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> prepare(job, out=Path("runs/first")).plans["scale"].verify().ok
        True
    """
    refuse_used(out)
    refuse_past("valid_until", job.run.valid_until)
    return _prepare(job, Unfinished.fresh(job.run.seed, out), resumed=False)


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
        >>> from pathlib import Path
        >>> from apiece.jobs.prepared import prepare_again
        >>> prepare_again(Path("runs/none"))
        Traceback (most recent call last):
        ...
        apiece.errors.StateError: runs/none: is no interrupted run; --resume takes the folder of a \
run that was interrupted
    """
    return _prepare(*reopen(out, ledger=ledger), resumed=True)


def _prepare(job: Job, unfinished: Unfinished, *, resumed: bool) -> Prepared:
    """Return the job with its people and plans, by its method."""
    # The coins of the split are those of the first start, so that a resumed run has the same
    # people.
    people = read_people(job, unfinished.coins)
    # A batch size that the job leaves open follows from the groups of budgets.
    job = choose_batch_size(job, people.budgets)
    cap = job.budgets.no_limit_cap
    notes = () if cap is None else (describe_cap(cap),)
    unit = job.data.unit
    search = job.search.search()
    if search is not None:
        strategy = job.training.strategy
        defaults = {name: getattr(job.training, name) for name in SETTINGS}
        candidates = Candidates.of(
            search, people.budgets, strategy, defaults, unit=unit, notes=notes
        )
        plans = {strategy: candidates.first}
        return Prepared(job, people, plans, unfinished, resumed, candidates=candidates)
    if job.training.method == "pate":
        votes = {}
        for name in job.strategies:
            votes[name] = _plan_votes(job.pate, people.budgets, name, unit=unit, notes=notes)
        plans = {name: vote_plan.plan for name, vote_plan in votes.items()}
        return Prepared(job, people, plans, unfinished, resumed, votes)
    plans = {}
    for name in job.strategies:
        training = job.training_of(name)
        plans[name] = plan_training(training, people.budgets, name, unit=unit, notes=notes)
    return Prepared(job, people, plans, unfinished, resumed)


def _plan_votes(
    pate: Pate, budgets: Budgets, strategy: str, *, unit: str, notes: tuple[str, ...]
) -> VotePlan:
    """Return how the teachers of a strategy vote."""
    # Or the job is refused.
    assert pate.teachers is not None
    return plan_votes(
        budgets,
        strategy,
        teachers=pate.teachers,
        questions=pate.question_count,
        answers=pate.answers,
        threshold=pate.threshold,
        unit=unit,
        notes=notes,
    )


def choose_batch_size(job: Job, budgets: Budgets) -> Job:
    """Return the job with a batch size; one for all its strategies, so that they compare."""
    if job.training.batch_size is not None:
        return job
    sizes = []
    for name in job.strategies:
        steps = job.training_of(name).steps
        # The smallest of the sizes that suit each strategy.
        sizes.append(default_batch(budgets.groups, name, steps=steps, most=MOST_EXPECTED))
    return replace(job, training=replace(job.training, batch_size=min(sizes)))


def plan_training(
    training: Training,
    budgets: Budgets,
    strategy: Strategy | str,
    *,
    unit: str,
    notes: tuple[str, ...] = (),
) -> BoundPlan:
    """Return the verified plan of a training; raise `UnsupportedError` for one of many models."""
    if strategy == "hybrid" and budgets.excess is None:
        raise UnsupportedError(
            "strategy hybrid: needs bounds on the excess risk, and a table of people has none; "
            "choose sample or scale"
        )
    batch = training.batch_size
    if batch is None:
        batch = default_batch(budgets.groups, strategy, steps=training.steps, most=MOST_EXPECTED)
    plan = assign(
        budgets,
        strategy,
        steps=training.steps,
        expected_batch_size=batch,
        clip_norm=training.clip_norm,
        noise=training.correlated_noise(),
    )
    if plan.combine != "continue":
        raise UnsupportedError(
            f"strategy {plan.strategy}: averages the outputs of {len(plan.stages)} models, and one "
            "is made here; choose sample or scale"
        )
    # Schedules are part of the plan, so that they are verified and charged with it.
    plan = replace(plan, unit=unit, notes=(*plan.notes, *notes))
    if training.noise_schedule is not None:
        plan = schedule_noise(plan, training.noise_schedule)
    if training.learning_rate_schedule is not None:
        plan = replace(plan, learning_rate=training.learning_rate_schedule)
    return plan
