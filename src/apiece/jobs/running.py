"""The main job: a table of people with a budget each → a trained model and what it cost whom."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tomli_w
import torch
from torch import nn

from apiece._json import read_toml
from apiece._types import AnyArray, Mask, State
from apiece._version import __version__
from apiece.datasets import Numeric, Schema
from apiece.errors import StateError
from apiece.jobs.config import Job, Training, complete
from apiece.jobs.model import TabularModel, build, by_sgd, evaluated, rightness, target_of, to_bytes
from apiece.jobs.people import Examples
from apiece.jobs.prepared import Prepared, RunFolder, refuse_used
from apiece.jobs.results import (
    CONFIG,
    METRICS,
    MODEL,
    PLAN,
    STATEMENT,
    Run,
    fixed_by,
    statement_of,
    totals,
    tuned,
)
from apiece.jobs.search import Best, Candidates, seed_of_run
from apiece.jobs.statement import Bound, as_text
from apiece.jobs.trained import POINTS, Accuracies, Facts, Predictions, Trained, accuracies
from apiece.pate import Lessons, teach
from apiece.pate.planning import VotePlan
from apiece.plan import BoundPlan
from apiece.training import Progress
from apiece.training.callbacks import Callback
from apiece.training.charging import TrainingCharge, charge_training
from apiece.training.checkpoints import CheckpointFolder
from apiece.training.randomness import Streams
from apiece.training.stacked import StackedMlp

if TYPE_CHECKING:
    from apiece.ledger import Ledger

# Told about every step: strategy, which repeat, step, steps.
Watcher = Callable[[str, int, int, int], object]
Models = dict[str, list[tuple[nn.Sequential, float]]]  # of each strategy, with their seconds
SAVE_EVERY = 1000  # steps: a second or so to make again, against a flush of the disk
ANSWERS = "answers.json"


def run(prepared: Prepared, *, out: Path, watch: Watcher) -> Run:
    """Return what was found by training every strategy as often as asked; fill the run folder.

    The report is the caller's to make, from what is returned. KeyboardInterrupt is passed on after
    the interruption is logged; the folder then holds config.toml, plan.json, log.jsonl and the
    checkpoints, all whole, and the run can be gone on with.

    Args:
        prepared: A job that has passed every check.
        out: A folder that does not exist yet or is empty, or that of the run that `prepare_again`
            found.
        watch: Told about every step.

    Raises:
        DataError: Where the folder is used or cannot be written to.
        StateError: Where the table has changed since the run was interrupted.
        BudgetError: Where the ledger refuses somebody.

    Guarantee:
        With a ledger, everyone is charged for every model first, and the release is recorded before
        a model or its metrics are written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.jobs import job_from_dict, prepare, run
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 2, "batch_size": 50, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     out = Path(parent) / "run"
        ...     run(prepare(job, out=out), out=out, watch=lambda *_: None)
        Run(first: 1 models, scale kept)
    """
    job, people = prepared.job, prepared.people
    if not prepared.resumed:
        refuse_used(out)
    charge = _charge(prepared)
    folder = _open(prepared, out)
    try:
        with _one_thread():
            prepared, models = _made(prepared, folder, watch, charge)
    except KeyboardInterrupt:
        folder.log("interrupted")
        raise
    kept, head = models[job.training.strategy][0][0], None
    if charge is not None:
        charge.release(kept.state_dict())
        entry = charge.ledger.head()
        head = f"{entry.number}:{entry.digest}"
    bound = Bound.of(kept.state_dict(), read_toml(out / CONFIG, "config"), job.run.seed, head)
    made = replace(_found(prepared, models, folder), bound=bound)
    told = statement_of(made)
    folder.write(
        MODEL, to_bytes(TabularModel(kept, people.columns, people.label, people.target, told))
    )
    folder.write(STATEMENT, as_text(told))
    folder.write(METRICS, made.to_json(indent=2) + "\n")
    if prepared.candidates is not None:
        folder.write(PLAN, made.kept.plan.to_json(indent=2) + "\n")
    prepared.unfinished.clear()
    folder.log("finished")
    return made


def _open(prepared: Prepared, out: Path) -> RunFolder:
    """Return the run folder, with config and plan in it."""
    job, folder = prepared.job, RunFolder(out, timed=prepared.candidates is None)
    if prepared.resumed:
        folder.log("resumed")
        return folder
    folder.write(CONFIG, tomli_w.dumps(complete(job, out=out).to_dict()))
    if prepared.candidates is None:  # of a search the best run says by which plan
        folder.write(PLAN, prepared.plans[job.training.strategy].to_json(indent=2) + "\n")
    prepared.unfinished.begin(job)
    folder.log("planned", strategies=list(prepared.plans), apiece=__version__)
    return folder


def ledger_of(job: Job) -> Ledger | None:
    """Return the ledger that a job charges, in its scope; None where it charges none."""
    if job.run.ledger is None or job.run.analysis is None:
        return None
    from apiece.ledger import Ledger
    from apiece.ledger.scopes import read_scope

    ledger = Ledger.open(job.run.ledger, create=False)
    return ledger if job.run.scope is None else ledger.within(read_scope(job.run.scope))


def gone_from(ledger: Ledger, ids: AnyArray) -> Mask:
    """Return who of a table's ids withdrew, or does not permit the ledger's scope now."""
    from apiece.ledger.codec import read_ids

    own, known = read_ids(ids.tolist(), ledger.id_kind)
    who, place = np.unique(own, return_inverse=True)
    gone = known.copy()
    gone[known] = ledger.withdrawn(who)[place]
    return gone


def _charge(prepared: Prepared) -> TrainingCharge | None:
    """Charge the ledger for every model that the job trains; None without a ledger."""
    job, people, ledger = prepared.job, prepared.people, ledger_of(prepared.job)
    if ledger is None or job.run.analysis is None:
        return None
    plans = [plan for plan in prepared.plans.values() for _ in range(job.compare.seeds)]
    # What the ledger holds a training to beside its plans: settings and tables.
    sections = job.to_dict()
    terms = {name: sections.get(name) for name in ("budgets", "training", "compare")} | {
        **({"search": sections["search"]} if "search" in sections else {}),
        "pate": {name: value for name, value in asdict(job.pate).items() if name != "public"},
        "label": people.label,
        "source": dict(people.fingerprints) or job.data.source,
    }
    return charge_training(ledger, job.run.analysis, *plans, terms=terms, resumed=prepared.resumed)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: faster for models this small, and repeatable on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelRun:
    """One model of a job: its strategy, which of its repeats, and whom to tell.

    folder: of the run. watch: told strategy, repeat, step and number of steps. charge: who takes
    part, where a ledger was charged. number: of a run of a search, which is secret.
    """

    prepared: Prepared
    strategy: str
    repeat: int
    folder: RunFolder
    watch: Watcher
    charge: TrainingCharge | None
    number: int | None = None

    @property
    def training(self) -> Training:
        """How it is trained."""
        return self.prepared.job.training_of(self.strategy)

    @property
    def seed(self) -> int | None:
        """Its seed; None for the system's randomness."""
        seeds = self.prepared.job.seeds_of(self.strategy)
        if seeds is not None and self.number is not None:
            return seed_of_run(seeds[0], self.number)
        return None if seeds is None else seeds[self.repeat]

    @property
    def place(self) -> Path:
        """Where its checkpoint is."""
        if self.number is not None:
            return self.prepared.unfinished.only(self.number)
        return self.prepared.unfinished.model(self.strategy, self.repeat)


def _made(
    prepared: Prepared, folder: RunFolder, watch: Watcher, charge: TrainingCharge | None
) -> tuple[Prepared, Models]:
    """Return the models of each strategy, and the job; of a search the best, as it was made."""
    models: Models = {}
    if prepared.candidates is not None:
        prepared, network = searched(prepared, prepared.candidates, folder, watch, charge)
        # Without its time, which would tell how many runs there were.
        return prepared, {prepared.job.training.strategy: [(network, 0.0)]}
    make = taught if prepared.votes else descended
    for name in prepared.plans:
        models[name] = []
        for repeat in range(prepared.job.compare.seeds):
            begun = time.monotonic()
            network = make(ModelRun(prepared, name, repeat, folder, watch, charge))
            models[name].append((network, time.monotonic() - begun))
    return prepared, models


def descended(one: ModelRun) -> nn.Sequential:
    """Return a network that DP-SGD trained."""
    people, charge = one.prepared.people, one.charge
    train, target = people.train.without_faulty(), target_of(people.target)
    alone = one.number is None  # of the runs of a search nothing is logged
    kept = alone and (one.strategy, one.repeat) == (one.prepared.job.training.strategy, 0)

    def watch(network: nn.Module) -> Callback:
        def progress(done: Progress) -> None:
            step, last = done.step, done.step == done.steps
            one.watch(one.strategy, one.repeat, step, done.steps)
            of = {"strategy": one.strategy, "repeat": one.repeat, "step": step}
            if kept and (step % -(-done.steps // POINTS) == 0 or last):
                held_out = evaluated(network, people.test, people.target)
                if held_out is not None:
                    one.folder.log("tested", **of, figure=held_out.figure)
            if alone and (step % 100 == 0 or last):
                one.folder.log("trained", **of, steps=done.steps)

        return progress

    return by_sgd(
        one.prepared.plans[one.strategy],
        train,
        target,
        target.encoded(train.labels),
        one.training,
        seed=one.seed,
        watch=watch,
        checkpoint=one.place,
        save_every=SAVE_EVERY,
        included=None if charge is None else charge.included,
        withdrawn=None if charge is None else charge.withdrawn,
    )


def searched(
    prepared: Prepared,
    candidates: Candidates,
    folder: RunFolder,
    watch: Watcher,
    charge: TrainingCharge | None,
) -> tuple[Prepared, nn.Sequential]:
    """Return the best model of a search, and the job with its settings and plan.

    Until the run is done its folder keeps, readable by its owner, the key of the search's draws,
    the best model so far with its score, and a checkpoint of the present run; no other model.
    """
    job, people = prepared.job, prepared.people
    journal = CheckpointFolder(prepared.unfinished.search)
    name, target, seed = job.training.strategy, target_of(people.target), job.run.seed
    rows = people.train.without_faulty() if people.validation is None else people.validation
    targets, ids = target.encoded(rows.labels), candidates.first.ids
    streams, done, best = Streams.from_seed(seed), 0, None

    def one(plan: BoundPlan, settings: Mapping[str, Any]) -> Prepared:
        changed = replace(job, training=replace(job.training, **settings))
        return replace(prepared, job=changed, plans={name: plan})

    def train(plan: BoundPlan, settings: Mapping[str, Any], run: int) -> nn.Sequential:
        return descended(ModelRun(one(plan, settings), name, 0, folder, watch, charge, run))

    def keep(done: int, best: Best[nn.Sequential] | None) -> None:
        state: State = {"step": 0, "finished": False, "done": done, "best": None}
        if best is not None:
            state["best"] = [best.score, best.settings, best.model.state_dict()]
        journal.save(state, streams.key)

    if journal.state.exists():
        state, key = journal.load()
        if key is None or journal.was_copied(state):
            raise StateError(
                f"{prepared.unfinished.folder}: is a copy, and its search must not end twice; go "
                "on with the first, or start afresh"
            )
        streams, done = Streams(key, release=seed is None), state["done"]
        if state["best"] is not None:
            score, settings, weights = state["best"]
            widths = people.train.features.shape[1], target.outputs, job.training.hidden
            best = Best(score, build(*widths, torch.Generator()), settings)
            best.model.load_state_dict(weights)
    else:
        keep(0, None)
    chosen = candidates.best(
        train,
        lambda model: rightness(model, rows, target, targets, ids),
        streams,
        counted=None if charge is None else lambda: charge.included & ~charge.withdrawn(),
        begun=(done, best),
        keep=keep,
    )
    return one(candidates.plan(chosen.settings), chosen.settings), chosen.model


def taught(one: ModelRun) -> nn.Sequential:
    """Return the student of one strategy's teachers, by PATE."""
    # Until the run is done, the run folder keeps answers alone, readable by their owner: no vote,
    # no teacher and no key. Steps are counted of teachers and student together.
    people, training, public = one.prepared.people, one.training, one.prepared.people.public
    assert public is not None  # of every job whose method is PATE
    try:
        one.place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{one.place}: cannot be made ({error.strerror}); make room or mend the folder, then "
            "resume the run"
        ) from None
    steps = iter(range(1, 2 * training.steps + 1))
    network, count = student(
        one.prepared.votes[one.strategy],
        people.train.without_faulty(),
        public,
        training,
        classes=len(people.classes),
        semi_supervised=bool(one.prepared.job.pate.semi_supervised),
        included=None if one.charge is None else one.charge.included & ~one.charge.withdrawn(),
        seed=one.seed,
        keep=one.place / ANSWERS,
        progress=lambda *_: one.watch(one.strategy, one.repeat, next(steps), 2 * training.steps),
    )
    one.folder.log("answered", strategy=one.strategy, repeat=one.repeat, answers=count)
    return network


def student(
    votes: VotePlan,
    records: Examples,
    public: npt.NDArray[np.float32],
    training: Training,
    *,
    classes: int,
    **options: object,
) -> tuple[nn.Sequential, int]:
    """Return a student as a network, and how many questions were answered."""
    # records: the rows that the teachers learn from, of persons where the plan of votes is of
    # persons. public: (Q, d), public rows, encoded alike. options: of `teach`.
    features = records.features.shape[1]
    assert training.batch_size is not None  # PATE has a default
    lesson = teach(
        votes,
        StackedMlp((features, *training.hidden, classes)),
        (torch.from_numpy(records.features), torch.from_numpy(records.labels)),
        torch.from_numpy(public),
        classes=classes,
        lessons=Lessons(
            steps=training.steps,
            batch_size=int(training.batch_size),
            learning_rate=training.learning_rate,
            momentum=training.momentum,
            clip_norm=training.clip_norm,
        ),
        people=records.person,
        **options,  # type: ignore[arg-type]
    )
    network = build(features, classes, training.hidden, torch.Generator())
    nn.utils.vector_to_parameters(lesson.student, network.parameters())
    return network, int((lesson.answers >= 0).sum())


def _found(prepared: Prepared, models: Models, folder: RunFolder) -> Run:
    """Return what a run tells of its models."""
    job, people = prepared.job, prepared.people
    plans = {name: plan.public() for name, plan in prepared.plans.items()}
    strategies, held_out = [], None
    for name, trained in models.items():
        told = [evaluated(network, people.test, people.target) for network, _ in trained]
        if name == job.training.strategy:
            held_out = told[0] if isinstance(told[0], Predictions) else None
        seconds = round(sum(each for _, each in trained), 2)
        settings = tuned(job.training_of(name), job.pate)
        made = Trained(name, plans[name], settings, job.seeds_of(name), (), seconds)
        strategies.append(made.tested(told, job.data.unit))
    curve = folder.curve(job.training.strategy, 0)
    tested = Accuracies(None, (), (), (), tuple(sorted(curve.items())))
    if people.classes:
        kept = models[job.training.strategy][0][0]
        trained_on = evaluated(kept, people.train, people.target)
        assert isinstance(trained_on, Predictions)  # somebody is usable, or the people are refused
        group = people.group_of_rows[~people.train.faulty]
        groups = len(people.budgets.groups)
        tested = accuracies(held_out, len(people.classes), trained_on, group, groups, curve)
    return Run(
        version=__version__,
        name=job.name,
        data=_facts(prepared, held_out),
        strategies=tuple(strategies),
        totals=totals(list(plans.values()), job.compare.seeds),
        **fixed_by(job),
        finished=time.strftime("%Y-%m-%d", time.gmtime()),
        versions=versions(),
        tested=tested,
    )


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that a model is made with, by name."""
    libraries = {name: version(name) for name in ("numpy", "scipy", "torch")}
    return {"python": platform.python_version(), **libraries}


def _facts(prepared: Prepared, held_out: Predictions | None) -> Facts:
    data, people = prepared.job.data, prepared.people
    number = people.target if isinstance(people.target, Numeric) else None
    return Facts(
        source=data.source if data.packaged else Path(data.source).name,
        packaged=data.packaged,
        label=people.label,
        classes=people.classes,
        target_range=None if number is None else (number.lower, number.upper),
        target_scale="linear" if number is None else number.scale,
        schema=people.schema.name,
        features=int(people.train.features.shape[1]),
        unit=data.unit,
        training_records=people.train.units,
        test_records=people.test.units,
        commonest_class_share=None if held_out is None else held_out.commonest,
        simulated_budgets=bool(prepared.job.budgets.groups),
        columns=Schema("model", people.columns).to_dict()["columns"],
        fingerprints=people.fingerprints,
    )
