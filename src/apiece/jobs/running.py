"""The main job: a table of people with a budget each → a trained model and what it cost whom."""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from apiece.jobs.config import RunSettings, Training, complete
from apiece.jobs.model import (
    TabularModel,
    build_network,
    evaluate,
    fit_network,
    make_target,
    score_records,
    to_bytes,
)
from apiece.jobs.people import Examples
from apiece.jobs.prepared import Prepared, RunFolder, refuse_used
from apiece.jobs.results import (
    CONFIG,
    METRICS,
    MODEL,
    PLAN,
    STATEMENT,
    Run,
    list_fixed,
    list_tuned,
    statement_of,
    total_costs,
)
from apiece.jobs.search import Best, Candidates, derive_run_seed
from apiece.jobs.statement import Bound, to_text
from apiece.jobs.trained import CURVE_POINTS, Accuracies, Facts, Predictions, Trained, accuracies_of
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

# Is called after every step with strategy, which of its models, step and number of steps.
StepProgress = Callable[[str, int, int, int], object]
# Steps from one checkpoint to the next: a second or so to make again, against a flush of the disk.
SAVE_EVERY = 1000
# Steps from one line of the log to the next.
_LOG_EVERY: Final = 100
# The file of the answers that teachers gave, until the run is done.
ANSWERS: Final = "answers.json"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ModelRun:
    """One model of a job that is to be trained."""

    strategy: str
    # Which of the strategy's models it is, from 0.
    repeat: int
    training: Training
    plan: BoundPlan
    # None for the randomness of the operating system.
    seed: int | None
    # Where its checkpoint, or the answers that it learns from, are until the run is done.
    checkpoint: Path
    # Whether its steps are logged: nothing is of the runs of a search.
    is_logged: bool
    # Whether the run folder will hold this model, whose learning curve is logged then.
    is_released: bool


def _ignore_step(_strategy: str, _repeat: int, _step: int, _steps: int) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Execution:
    """A prepared job under way: its folder, who hears of its steps, and what its ledger says."""

    prepared: Prepared
    folder: RunFolder
    progress: StepProgress
    # Who takes part; None where no ledger was charged.
    charge: TrainingCharge | None

    def start_model(self, strategy: str, repeat: int) -> ModelRun:
        """Return one of the models of a strategy, from 0, as it is trained."""
        job = self.prepared.job
        seeds = job.seeds_of(strategy)
        return ModelRun(
            strategy,
            repeat,
            job.training_of(strategy),
            self.prepared.plans[strategy],
            None if seeds is None else seeds[repeat],
            self.prepared.unfinished.model_folder(strategy, repeat),
            is_logged=True,
            is_released=(strategy, repeat) == (job.training.strategy, 0),
        )

    def start_search_run(
        self, plan: BoundPlan, settings: Mapping[str, Any], number: int
    ) -> ModelRun:
        """Return one run of a search, by its secret number; delete the checkpoints of others."""
        job = self.prepared.job
        strategy = job.training.strategy
        seeds = job.seeds_of(strategy)
        return ModelRun(
            strategy,
            0,
            replace(job.training, **settings),
            plan,
            None if seeds is None else derive_run_seed(seeds[0], number),
            self.prepared.unfinished.take_search_folder(number),
            is_logged=False,
            is_released=False,
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TrainedNetwork:
    """A network, and the seconds that its training took."""

    network: nn.Sequential
    seconds: float


# Strategy → its models.
Models = dict[str, list[TrainedNetwork]]


def run(prepared: Prepared, *, out: Path, progress: StepProgress | None = None) -> Run:
    """Return what was found by training every strategy as often as asked; fill the run folder.

    The report is the caller's to make, from what is returned. KeyboardInterrupt is passed on after
    the interruption is logged; the folder then holds config.toml, plan.json, log.jsonl and the
    checkpoints, all whole, and the run can be gone on with.

    Args:
        prepared: A job that has passed every check.
        out: A folder that does not exist yet or is empty, or that of the run that `prepare_again`
            found.
        progress: Called after every step with the strategy, which of its models, the step and the
            number of steps.

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
        >>> from apiece.jobs import prepare, run
        >>> from apiece.jobs.config import job_from_dict
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 2, "batch_size": 50, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     out = Path(parent) / "run"
        ...     run(prepare(job, out=out), out=out)
        Run(first: 1 models, scale kept)
    """
    job = prepared.job
    if not prepared.resumed:
        refuse_used(out)
    # Everyone is charged before a step is made, and before the folder exists: a refusal leaves no
    # trace.
    charge = _charge_ledger(prepared)
    folder = _open_folder(prepared, out)
    try:
        with _one_thread():
            execution = Execution(prepared, folder, progress or _ignore_step, charge)
            prepared, models = _train_models(execution)
    except KeyboardInterrupt:
        folder.log("interrupted")
        raise
    network = models[job.training.strategy][0].network
    # The release is recorded before the model is written: there is no model.pt of which the ledger
    # does not know.
    head = None
    if charge is not None:
        charge.release(network.state_dict())
        entry = charge.ledger.head()
        head = f"{entry.number}:{entry.digest}"
    # The config is read back, so that the digest is that of the stored file.
    config = read_toml(out / CONFIG, "config")
    bound = Bound.of(network.state_dict(), config, job.run.seed, head)
    results = replace(_collect_results(prepared, models, folder), bound=bound)
    statement = statement_of(results)
    declared = prepared.people.declaration
    model = TabularModel(network, declared.features, declared.label, declared.target, statement)
    # Model and statement come before the metrics: a folder with metrics.json is that of a finished
    # run.
    folder.write(MODEL, to_bytes(model))
    folder.write(STATEMENT, to_text(statement))
    folder.write(METRICS, results.to_json(indent=2) + "\n")
    # By now a search knows which plan its best run had.
    if prepared.candidates is not None:
        folder.write(PLAN, results.kept.plan.to_json(indent=2) + "\n")
    # Last of all: until the results are whole the run can be gone on with.
    prepared.unfinished.clear()
    folder.log("finished")
    return results


def _open_folder(prepared: Prepared, out: Path) -> RunFolder:
    """Return the run folder, with config and plan in it."""
    job = prepared.job
    folder = RunFolder(out, timed=prepared.candidates is None)
    if prepared.resumed:
        folder.log("resumed")
        return folder
    folder.write(CONFIG, tomli_w.dumps(complete(job, out=out).to_dict()))
    # The plan of a search is that of its best run, which is not known yet.
    if prepared.candidates is None:
        plan = prepared.plans[job.training.strategy]
        folder.write(PLAN, plan.to_json(indent=2) + "\n")
    prepared.unfinished.begin(job.name)
    folder.log("planned", strategies=list(prepared.plans), apiece=__version__)
    return folder


def open_ledger(run: RunSettings) -> Ledger | None:
    """Return the ledger that a run charges, in its scope; None where it charges none."""
    if run.ledger is None or run.analysis is None:
        return None
    from apiece.ledger import Ledger
    from apiece.ledger.scopes import read_scope

    ledger = Ledger.open(run.ledger, create=False)
    return ledger if run.scope is None else ledger.within(read_scope(run.scope))


def find_withdrawn(ledger: Ledger, ids: AnyArray) -> Mask:
    """Return whose ids (n,) withdrew, or do not permit the ledger's scope now."""
    from apiece.ledger.codec import parse_ids

    # A text that can be no id of the ledger is nobody's account, and nobody who withdrew.
    ledger_ids, is_person = parse_ids(ids.tolist(), ledger.id_kind)
    # An id may stand in many rows, and is asked for once.
    persons, person_of_id = np.unique(ledger_ids, return_inverse=True)
    withdrawn = is_person.copy()
    withdrawn[is_person] = ledger.withdrawn(persons)[person_of_id]
    return withdrawn


def _charge_ledger(prepared: Prepared) -> TrainingCharge | None:
    """Charge the ledger for every model that the job trains; None without a ledger."""
    job = prepared.job
    people = prepared.people
    ledger = open_ledger(job.run)
    if ledger is None or job.run.analysis is None:
        return None
    # Each model is a release of its own, whether or not it is looked at.
    plans = [plan for plan in prepared.plans.values() for _ in range(job.compare.seeds)]
    # What the ledger holds a training to beside its plans: settings and tables.
    sections = job.to_dict()
    terms: dict[str, Any] = {
        name: sections.get(name) for name in ("budgets", "training", "compare")
    }
    if "search" in sections:
        terms["search"] = sections["search"]
    # Where the public rows lie may change; what they are is in the fingerprints.
    terms["pate"] = asdict(job.pate)
    del terms["pate"]["public"]
    terms["label"] = people.declaration.label
    terms["source"] = dict(people.fingerprints) or job.data.source
    return charge_training(ledger, job.run.analysis, *plans, terms=terms, resumed=prepared.resumed)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: faster for models this small, and repeatable on any machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _train_models(execution: Execution) -> tuple[Prepared, Models]:
    """Return the job with the models of each strategy; of a search the best, as it was made."""
    prepared = execution.prepared
    if prepared.candidates is not None:
        prepared, network = search_settings(execution, prepared.candidates)
        # Without its time, which would tell how many runs there were.
        return prepared, {prepared.job.training.strategy: [TrainedNetwork(network, 0.0)]}
    train = teach_student if prepared.votes else train_network
    models: Models = {}
    for strategy in prepared.plans:
        models[strategy] = []
        for repeat in range(prepared.job.compare.seeds):
            start = time.monotonic()
            network = train(execution, execution.start_model(strategy, repeat))
            models[strategy].append(TrainedNetwork(network, time.monotonic() - start))
    return prepared, models


def train_network(execution: Execution, model: ModelRun) -> nn.Sequential:
    """Return a network that DP-SGD trained."""
    people = execution.prepared.people
    folder = execution.folder
    charge = execution.charge
    records = people.train.without_faulty()
    declared = people.declaration.target
    target = make_target(declared)
    name = {"strategy": model.strategy, "repeat": model.repeat}

    def make_callback(network: nn.Module) -> Callback:
        def report_progress(progress: Progress) -> None:
            step = progress.step
            is_last = step == progress.steps
            execution.progress(model.strategy, model.repeat, step, progress.steps)
            # Steps between two points of the learning curve, rounded up.
            interval = -(-progress.steps // CURVE_POINTS)
            if model.is_released and (step % interval == 0 or is_last):
                held_out = evaluate(network, people.test, declared)
                if held_out is not None:
                    folder.log("tested", **name, step=step, figure=held_out.figure)
            if model.is_logged and (step % _LOG_EVERY == 0 or is_last):
                folder.log("trained", **name, step=step, steps=progress.steps)

        return report_progress

    return fit_network(
        model.plan,
        records,
        target,
        target.encode(records.labels),
        model.training,
        seed=model.seed,
        make_callback=make_callback,
        checkpoint=model.checkpoint,
        save_every=SAVE_EVERY,
        included=None if charge is None else charge.included,
        withdrawn=None if charge is None else charge.withdrawn,
    )


def search_settings(execution: Execution, candidates: Candidates) -> tuple[Prepared, nn.Sequential]:
    """Return the job with the settings and plan of the best model of a search, and that model.

    Until the run is done its folder keeps, readable by its owner, the key of the search's draws,
    the best model so far with its score, and a checkpoint of the present run; no other model.
    """
    prepared = execution.prepared
    job = prepared.job
    people = prepared.people
    charge = execution.charge
    target = make_target(people.declaration.target)
    # Scored on the people trained on, with noise, or on public rows without.
    rows = people.train.without_faulty() if people.validation is None else people.validation
    targets = target.encode(rows.labels)
    ids = candidates.first.ids

    def train(plan: BoundPlan, settings: Mapping[str, Any], number: int) -> nn.Sequential:
        return train_network(execution, execution.start_search_run(plan, settings, number))

    journal = SearchJournal(CheckpointFolder(prepared.unfinished.search_folder))
    # A search that was begun goes on with its key, the number of its finished runs and the best of
    # them.
    if journal.exists:
        features = people.train.features.shape[1]

        def make_network() -> nn.Sequential:
            return build_network(features, target.outputs, job.training.hidden, torch.Generator())

        streams, count, best = journal.read(make_network, job.run.seed)
    else:
        # The key is stored before the first draw: a search that is killed and resumed draws the
        # same runs again, and cannot be repeated until a draw pleases.
        streams = Streams.from_seed(job.run.seed)
        count = 0
        best = None
        journal.write(streams, count, best)
    # Whoever withdraws meanwhile is scored no more; `save` is called after each run, so that a kill
    # costs one run.
    best = candidates.find_best(
        train,
        lambda model: score_records(model, rows, target, targets, ids),
        streams,
        counted=None if charge is None else lambda: charge.included & ~charge.withdrawn(),
        finished_runs=count,
        best=best,
        save=lambda count, best: journal.write(streams, count, best),
    )
    # From here on the job is that of the best run, as if no other had been.
    training = replace(job.training, **best.settings)
    plans = {job.training.strategy: candidates.plan(best.settings)}
    chosen = replace(prepared, job=replace(job, training=training), plans=plans)
    return chosen, best.model


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SearchJournal:
    """How far a search has come, in a folder that only its owner can read: it holds the key."""

    folder: CheckpointFolder

    @property
    def exists(self) -> bool:
        """Whether a search has begun."""
        return self.folder.state.exists()

    def write(self, streams: Streams, count: int, best: Best[nn.Sequential] | None) -> None:
        """Store how many runs were made, and the best of them."""
        # The form of a trainer's checkpoint: the steps of all checkpoints are added up where a run
        # is resumed, and a search has none of its own.
        state: State = {"step": 0, "finished": False, "done": count, "best": None}
        if best is not None:
            state["best"] = [best.score, best.settings, best.model.state_dict()]
        self.folder.save(state, streams.key)

    def read(
        self, make_network: Callable[[], nn.Sequential], seed: int | None
    ) -> tuple[Streams, int, Best[nn.Sequential] | None]:
        """Return the streams, the number of runs made, and the best of them.

        Raises `StateError` for a copy of the folder.
        """
        state, key = self.folder.load()
        if key is None or self.folder.was_copied(state):
            raise StateError(
                f"{self.folder.state.parent.parent}: is a copy, and its search must not end twice; "
                "go on with the first, or start afresh"
            )
        streams = Streams(key, release=seed is None)
        if state["best"] is None:
            return streams, state["done"], None
        score, settings, weights = state["best"]
        network = make_network()
        network.load_state_dict(weights)
        return streams, state["done"], Best(score, network, settings)


def teach_student(execution: Execution, model: ModelRun) -> nn.Sequential:
    """Return the student of one strategy's teachers, by PATE.

    Until the run is done, the run folder keeps answers alone, readable by their owner: no vote, no
    teacher and no key.
    """
    prepared = execution.prepared
    people = prepared.people
    charge = execution.charge
    # Every job whose method is PATE has public rows.
    assert people.public is not None
    folder = model.checkpoint
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{folder}: cannot be made ({error.strerror}); make room or mend the folder, then "
            "resume the run"
        ) from None
    # Steps are counted of teachers and student together, each of which makes as many.
    total = 2 * model.training.steps
    steps = iter(range(1, total + 1))
    network, count = train_student(
        prepared.votes[model.strategy],
        people.train.without_faulty(),
        people.public,
        model.training,
        classes=len(people.declaration.classes),
        semi_supervised=bool(prepared.job.pate.semi_supervised),
        included=None if charge is None else charge.included & ~charge.withdrawn(),
        seed=model.seed,
        keep=folder / ANSWERS,
        progress=lambda *_: execution.progress(model.strategy, model.repeat, next(steps), total),
    )
    execution.folder.log("answered", strategy=model.strategy, repeat=model.repeat, answers=count)
    return network


def train_student(
    votes: VotePlan,
    records: Examples,
    public: npt.NDArray[np.float32],
    training: Training,
    *,
    classes: int,
    **options: object,
) -> tuple[nn.Sequential, int]:
    """Return a student as a network, and how many questions were answered.

    Teachers learn from `records`, of persons where the plan of votes is of persons; `public` (Q, d)
    are public rows, encoded alike. `options` are those of `teach`.
    """
    features = records.features.shape[1]
    # PATE has a default.
    assert training.batch_size is not None
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
    network = build_network(features, classes, training.hidden, torch.Generator())
    # The student comes as one vector, in the order of the network's parameters.
    nn.utils.vector_to_parameters(lesson.student, network.parameters())
    return network, int((lesson.answers >= 0).sum())


def _collect_results(prepared: Prepared, models: Models, folder: RunFolder) -> Run:
    """Return what a run says of its models."""
    job = prepared.job
    people = prepared.people
    declared = people.declaration
    # Without who is in which group.
    plans = {name: plan.public() for name, plan in prepared.plans.items()}
    strategies = []
    held_out = None
    for name, trained in models.items():
        tests = [evaluate(model.network, people.test, declared.target) for model in trained]
        if name == job.training.strategy and isinstance(tests[0], Predictions):
            held_out = tests[0]
        seconds = round(sum(model.seconds for model in trained), 2)
        settings = list_tuned(job.training_of(name), job.pate)
        strategy = Trained(name, plans[name], settings, job.seeds_of(name), (), seconds)
        strategies.append(strategy.with_tests(tests, job.data.unit))
    # The curve is read from the log, which a resumed run has gone on with.
    curve = folder.read_curve(job.training.strategy, 0)
    tested = Accuracies(None, (), (), (), tuple(sorted(curve.items())))
    if declared.classes:
        network = models[job.training.strategy][0].network
        trained_on = evaluate(network, people.train, declared.target)
        # Somebody is usable, or the people are refused.
        assert isinstance(trained_on, Predictions)
        # Faulty rows have no prediction.
        group = people.group_of_rows[~people.train.faulty]
        groups = len(people.budgets.groups)
        tested = accuracies_of(held_out, len(declared.classes), trained_on, group, groups, curve)
    return Run(
        version=__version__,
        name=job.name,
        data=_collect_facts(prepared, held_out),
        strategies=tuple(strategies),
        totals=total_costs(list(plans.values()), job.compare.seeds),
        **list_fixed(job),
        finished=time.strftime("%Y-%m-%d", time.gmtime()),
        versions=list_versions(),
        tested=tested,
    )


def list_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that a model is made with, by name."""
    libraries = {name: version(name) for name in ("numpy", "scipy", "torch")}
    return {"python": platform.python_version(), **libraries}


def _collect_facts(prepared: Prepared, held_out: Predictions | None) -> Facts:
    """Return what a run says of its table."""
    data = prepared.job.data
    people = prepared.people
    declared = people.declaration
    number = declared.target if isinstance(declared.target, Numeric) else None
    return Facts(
        # Where a file lies is nobody's business.
        source=data.source if data.packaged else Path(data.source).name,
        packaged=data.packaged,
        label=declared.label,
        classes=declared.classes,
        target_range=None if number is None else (number.lower, number.upper),
        target_scale="linear" if number is None else number.scale,
        schema=declared.schema.name,
        features=int(people.train.features.shape[1]),
        unit=data.unit,
        training_records=people.train.units,
        test_records=people.test.units,
        commonest_class_share=None if held_out is None else held_out.commonest,
        simulated_budgets=bool(prepared.job.budgets.groups),
        columns=Schema(declared.features).to_dict()["columns"],
        fingerprints=people.fingerprints,
    )
