"""The main job: a table of people with a budget each → a trained model and what it cost whom."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tomli_w
import torch
from torch import nn

from apiece._json import read_toml
from apiece._types import Json, Mask
from apiece._version import __version__
from apiece.datasets import Numeric, Schema
from apiece.errors import AnalysisError, InputError, StateError
from apiece.jobs.config import Job, complete
from apiece.jobs.model import (
    Accuracy,
    TabularModel,
    accuracy,
    answers,
    build,
    errors,
    figure,
    target_of,
    to_bytes,
)
from apiece.jobs.people import Records
from apiece.jobs.prepared import Prepared, RunFolder, refuse_used
from apiece.jobs.results import (
    CONFIG,
    METRICS,
    MODEL,
    PLAN,
    STATEMENT,
    Run,
    declared_levels,
    statement_of,
    totals,
    tuned,
)
from apiece.jobs.trained import (
    POINTS,
    Accuracies,
    Bound,
    Errors,
    Facts,
    Trained,
    accuracies,
    weights_digest,
)
from apiece.ledger import Ledger, reserve_plan, training_costs, training_terms
from apiece.pate import Lessons, VotePlan, teach
from apiece.plan import BoundPlan, Plan
from apiece.training import Progress, StackedMlp, Streams, Trainer

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, eq=False)
class Charge:
    """Everyone's payment for a training: who may take part, and the leave to release its model.

    Make one with `charge_training`, before the first step. included: one Boolean a record, in the
    order of the plan, for `Trainer(included=)`. Data about people: not for logs.
    """

    ledger: Ledger
    analysis_id: str
    included: Mask = field(repr=False)

    def release(self, state: Mapping[str, torch.Tensor]) -> str:
        """Record that the model with this `state_dict` goes out; return its digest.

        Call it before anyone sees the model, or figures made from it. Repeated with the same
        parameters it returns the same. Raises `AnalysisError` where another model went out under
        this analysis id: then this one must not.
        """
        digest = weights_digest(state)
        first = self.ledger.commit(self.analysis_id, {"model": digest})
        if first != {"model": digest}:
            raise AnalysisError(
                f"analysis {self.analysis_id!r}: another model was released under this id, and "
                "one charge pays for one; discard this model, or train it under a new id"
            )
        return digest


def charge_training(
    ledger: Ledger,
    analysis_id: str,
    plan: Plan,
    *others: Plan,
    terms: Any = None,
    resumed: bool = False,
) -> Charge:
    """Charge everyone in the plan for all of it, durably, and return who may take part.

    A person whose account cannot bear the whole plan pays nothing and is left out. The plan stays
    as it is, so that neither noise nor rates tell how many were left out. others: further plans
    for the same records, trained in the same job; a plan counts as often as it is given. terms:
    what else is fixed in public, as of `reserve_plan`. resumed: the run goes on, so that its model
    may have been released already, and the last files not written.

    Guarantee: each person's spending covers all models that the job can release, before its
    first step. A job that was killed and is started again, or resumed, under the same id is not
    charged again; what a killed job has shown of itself must not be released beside it. Charges
    are never given back.

    Raises `AnalysisError` where a model was released under this id by another run, or the id stands
    for another plan, other people or other terms, or nobody's account can bear the plan;
    `DataError` for a person without an account; `InputError` for a plan without ids.

    >>> import tempfile
    >>> from apiece import Budgets, Ledger, Scale, Trainer, assign
    >>> budgets = Budgets([1.0, 3.0], 1e-5, ids=["ann", "bob"])
    >>> plan = assign(budgets, Scale(), steps=5, expected_batch_size=1, clip_norm=1.0)
    >>> model = torch.nn.Linear(2, 1)
    >>> loss = lambda out, y: (out[:, 0] - y).square()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ledger = Ledger.open(f"sqlite:///{folder}/p.db")
    ...     _ = ledger.enroll(["ann", "bob"], epsilon=[0.5, 3.1], delta=1e-5)
    ...     charge = charge_training(ledger, "model 1", plan)
    ...     trainer = Trainer(model, torch.optim.SGD(model.parameters(), 0.1), loss, plan,
    ...         (torch.ones(2, 2), torch.ones(2)), included=charge.included, seed=0)
    ...     trainer.fit()
    ...     _ = charge.release(model.state_dict())
    ...     charge.included.tolist(), ledger.status("model 1")
    ([False, True], 'committed')
    """
    training = training_terms(plan, *others, terms=terms)
    if resumed and ledger.status(analysis_id, training) == "committed":
        admitted = np.concatenate(list(ledger.admitted(analysis_id)))
    else:
        admitted = reserve_plan(ledger, analysis_id, plan, *others, terms=terms)
    if admitted.size == 0:
        raise AnalysisError(
            f"analysis {analysis_id!r}: nobody's account can bear the plan; "
            + _remedy((plan, *others))
            + " (then under a new name: this one stands for a training of nobody)"
        )
    return Charge(ledger, analysis_id, np.asarray(np.isin(BoundPlan.of(plan).ids, admitted)))


def _remedy(plans: tuple[Plan, ...]) -> str:
    """Say what accounts would need, from the plans alone."""
    first, *_ = bound = [BoundPlan.of(plan) for plan in plans]
    at = first.group_index
    needs = training_costs(*bound).epsilon(first.budget_groups.delta[at])
    asked = first.budget_groups.epsilon[at]
    low, high = int(np.argmin(needs)), int(np.argmax(needs))
    return (
        f"an untouched account needs epsilon from {needs[low]:.4g} to {needs[high]:.4g}, where the "
        f"plan asks {asked[low]:.4g} and {asked[high]:.4g}; train with a smaller epsilon, or raise "
        "the accounts"
    )


KEPT = "answers.json"


def taught(
    prepared: Prepared,
    name: str,
    repeat: int,
    folder: RunFolder,
    watch: Callable[[str, int, int, int], object],
    charge: Charge | None,
) -> nn.Sequential:
    """Return the student of one strategy's teachers.

    Args:
        prepared: A job whose method is PATE.
        name: The strategy.
        repeat: Which of its models.
        folder: Of the run; it is told how many questions were answered.
        watch: Told the strategy, which model, the step and the number of steps, of teachers and
            student together.
        charge: Who takes part, where a ledger was charged.

    Guarantee:
        In the run folder only answers are kept until the run is done, readable by their owner
        alone: no vote, no teacher and no key.
    """
    job, people = prepared.job, prepared.people
    training, public = job.training_of(name), people.public
    assert public is not None  # of every job whose method is PATE
    place = prepared.unfinished.model(name, repeat)
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StateError(
            f"{place}: cannot be made ({error.strerror}); make room or mend the folder, then "
            "resume the run"
        ) from None
    lessons = Lessons(
        steps=training.steps,
        batch_size=int(training.batch_size),
        learning_rate=training.learning_rate,
        momentum=training.momentum,
        clip_norm=training.clip_norm,
    )
    told = iter(range(1, 2 * training.steps + 1))
    network, answers = student(
        prepared.votes[name],
        people.train.without_faulty(),
        public,
        hidden=training.hidden,
        classes=len(people.classes),
        lessons=lessons,
        semi_supervised=bool(job.pate.semi_supervised),
        included=None if charge is None else charge.included,
        seed=_seed_of(job, name, repeat),
        keep=place / KEPT,
        watch=lambda *_: watch(name, repeat, next(told), 2 * training.steps),
    )
    folder.log("answered", strategy=name, repeat=repeat, answers=answers)
    return network


def student(
    votes: VotePlan,
    records: Records,
    public: npt.NDArray[np.float32],
    *,
    hidden: tuple[int, ...],
    classes: int,
    **options: object,
) -> tuple[nn.Sequential, int]:
    """Return a student as a network, and how many questions were answered.

    Args:
        votes: The plan of the votes.
        records: The rows that the teachers learn from, of persons where the plan is of persons.
        public: (Q, d) Public rows, encoded alike.
        hidden: Widths of hidden layers.
        classes: How many there are.
        **options: As for `teach`.

    Raises:
        DataError: As `teach`.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.pate import plan_votes
        >>> votes = plan_votes(Budgets([2.0] * 500, 1e-5), "weight", teachers=25, questions=20)
        >>> x = np.random.default_rng(0).random((500, 3), dtype=np.float32)
        >>> records = Records(x, (x[:, 0] > 0.5).astype(np.int64))
        >>> student(votes, records, x[:20], hidden=(), classes=2, lessons=Lessons(steps=9), seed=0)
        (Sequential(
          (0): Linear(in_features=3, out_features=2, bias=True)
        ), 20)
    """
    features = records.features.shape[1]
    found = teach(
        votes,
        StackedMlp((features, *hidden, classes)),
        (torch.from_numpy(records.features), torch.from_numpy(records.labels)),
        torch.from_numpy(public),
        classes=classes,
        people=records.person,
        **options,  # type: ignore[arg-type]
    )
    network = build(features, classes, hidden, torch.Generator())
    nn.utils.vector_to_parameters(found.student, network.parameters())
    return network, int((found.answers >= 0).sum())


# Told about every step: strategy, which repeat, step, steps.
Watcher = Callable[[str, int, int, int], object]
SAVE_EVERY = 1000  # steps: a second or so to make again, against a flush of the disk


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
        a model or a figure is written.

    Example:
        >>> import tempfile
        >>> from apiece.jobs import job_from_dict, prepare
        >>> groups = [{"name": "all", "share": 1.0, "epsilon": 2.0}]
        >>> data = {"data": {"source": "german"}, "budgets": {"groups": groups}}
        >>> changes = {"steps": 2, "batch_size": 50, "strategy": "scale"}
        >>> job = job_from_dict(data, name="first", changes=changes)
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     out = Path(parent) / "run"
        ...     run(prepare(job, out=out), out=out, watch=lambda *_: None)
        Run(first: 1 models, scale kept)
    """
    if not prepared.resumed:
        refuse_used(out)
    charge = _charge(prepared)
    folder = _open(prepared, out)
    try:
        with _one_thread():
            models = {
                name: [
                    _train(prepared, name, repeat, folder, watch, charge)
                    for repeat in range(prepared.job.compare.seeds)
                ]
                for name in prepared.plans
            }
    except KeyboardInterrupt:
        folder.log("interrupted")
        raise
    kept = models[prepared.job.training.strategy][0].network
    if charge is not None:
        charge.release(kept.state_dict())
    head = None if charge is None else charge.ledger.head()
    bound = Bound.of(
        kept.state_dict(),
        read_toml(out / CONFIG, "config"),
        prepared.job.run.seed,
        None if head is None else f"{head.number}:{head.digest}",
    )
    found = replace(_found(prepared, models, folder), bound=bound)
    people = prepared.people
    told = statement_of(found)
    model = TabularModel(kept, people.columns, people.label, people.target, told)
    folder.write(MODEL, to_bytes(model))
    folder.write(STATEMENT, json.dumps(told, indent=2, ensure_ascii=False) + "\n")
    folder.write(METRICS, found.to_json(indent=2) + "\n")
    prepared.unfinished.clear()
    folder.log("finished")
    return found


def _open(prepared: Prepared, out: Path) -> RunFolder:
    """Return the run folder, with config and plan in it."""
    job, folder = prepared.job, RunFolder(out)
    if prepared.resumed:
        folder.log("resumed")
        return folder
    folder.write(CONFIG, tomli_w.dumps(complete(job, out=out).to_dict()))
    plan = prepared.plans[job.training.strategy]
    folder.write(PLAN, plan.to_json(indent=2) + "\n")
    prepared.unfinished.begin(job)
    folder.log("planned", strategies=list(prepared.plans), apiece=__version__)
    return folder


def _charge(prepared: Prepared) -> Charge | None:
    """Charge the ledger for every model that the job trains; None without a ledger."""
    job = prepared.job
    url, analysis = job.run.ledger, job.run.analysis
    if url is None or analysis is None:
        return None
    pass
    from apiece.ledger import Ledger

    ledger = Ledger.open(url, create=False)
    plans = [plan for plan in prepared.plans.values() for _ in range(job.compare.seeds)]
    if ledger.id_kind == "integer":
        plans = [_with_whole_ids(plan) for plan in plans]
    terms = _terms(prepared)
    return charge_training(ledger, analysis, *plans, terms=terms, resumed=prepared.resumed)


def _terms(prepared: Prepared) -> Json:
    """Return what the ledger holds a training to beside its plans: settings and tables."""
    job, people = prepared.job, prepared.people
    sections = job.to_dict()
    asked = {name: sections.get(name) for name in ("budgets", "training", "compare")}
    teachers = {k: v for k, v in asdict(job.pate).items() if k != "public"}  # a path
    tables = dict(people.fingerprints) or job.data.source
    return {**asked, "pate": teachers, "label": people.label, "source": tables}


def _with_whole_ids(plan: BoundPlan) -> BoundPlan:
    from apiece.ledger import read_id

    ids = [read_id(str(i), "integer") for i in plan.ids]
    if None in ids:
        raise InputError(
            f"ids: {ids.count(None)} of {len(ids)} are not whole numbers as 7 is written, but this "
            "ledger's ids are; mend the column of ids"
        )
    return replace(plan, consents=plan.consents.named(np.array(ids, dtype=np.int64)))


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: faster for models this small, and repeatable on any machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    network: nn.Sequential
    accuracy: Accuracy
    errors: Errors | None
    seconds: float


def _train(
    prepared: Prepared,
    name: str,
    repeat: int,
    folder: RunFolder,
    watch: Watcher,
    charge: Charge | None,
) -> _Model:
    people, begun = prepared.people, time.monotonic()
    make = taught if prepared.votes else _descended
    network = make(prepared, name, repeat, folder, watch, charge)
    seconds = time.monotonic() - begun
    if isinstance(people.target, Numeric):
        found = errors(network, people.test, people.target)
        return _Model(network, Accuracy(None, None), found, seconds)
    return _Model(network, accuracy(network, people.test), None, seconds)


def _seed_of(job: Job, name: str, repeat: int) -> int | None:
    seeds = job.seeds_of(name)
    return None if seeds is None else seeds[repeat]


def _descended(
    prepared: Prepared,
    name: str,
    repeat: int,
    folder: RunFolder,
    watch: Watcher,
    charge: Charge | None,
) -> nn.Sequential:
    """Return a network that DP-SGD trained."""
    job, people = prepared.job, prepared.people
    training, seed = job.training_of(name), _seed_of(job, name, repeat)
    train, target = people.train.without_faulty(), target_of(people.target)
    inputs = torch.from_numpy(train.features)
    network = build(
        inputs.shape[1],
        target.outputs,
        training.hidden,
        Streams.from_seed(seed).initialisation(),
    )

    curved = (name, repeat) == (job.training.strategy, 0)  # of the model that is kept

    def progress(done: Progress) -> None:
        watch(name, repeat, done.step, done.steps)
        if curved and (done.step % -(-done.steps // POINTS) == 0 or done.step == done.steps):
            _log_figure(folder, network, prepared, done.step)
        if done.step % 100 == 0 or done.step == done.steps:
            folder.log("trained", strategy=name, repeat=repeat, step=done.step, steps=done.steps)

    given = (
        network,
        torch.optim.SGD(
            network.parameters(), lr=training.learning_rate, momentum=training.momentum
        ),
        target.loss,
        prepared.plans[name],
        (inputs, target.encoded(train.labels)),
    )
    place = prepared.unfinished.model(name, repeat)
    options: dict[str, Any] = {"callbacks": [progress], "save_every": SAVE_EVERY}
    options["included"] = None if charge is None else charge.included
    options["people"] = train.person
    if training.rows_per_person != "all":
        options["rows_per_person"] = training.rows_per_person
    if (place / "state.pt").exists():
        trainer = Trainer.resume(place, *given, **options)
    else:
        trainer = Trainer(*given, seed=seed, checkpoint=place, **options)
    trainer.fit()
    return network


def _log_figure(folder: RunFolder, network: nn.Module, prepared: Prepared, step: int) -> None:
    """Log how well the model that is kept does after a step, on held-out people."""
    people, strategy = prepared.people, prepared.job.training.strategy
    found = figure(network, people.test, people.target)
    if found is not None:
        folder.log("tested", strategy=strategy, repeat=0, step=step, figure=found)


def _tested(prepared: Prepared, kept: nn.Module, folder: RunFolder) -> Accuracies:
    """Return how well the model that is kept does, and on whom."""
    people, strategy = prepared.people, prepared.job.training.strategy
    curve = folder.curve(strategy, 0)
    if not people.classes:
        return Accuracies(None, (), (), (), tuple(sorted(curve.items())))
    trained_on = answers(kept, people.train)
    assert trained_on is not None  # somebody is usable, or the people are refused
    return accuracies(
        answers(kept, people.test),
        len(people.classes),
        trained_on,
        people.group_of_rows[~people.train.faulty],
        len(people.budgets.groups),
        curve,
    )


def _found(prepared: Prepared, models: Mapping[str, Sequence[_Model]], folder: RunFolder) -> Run:
    """Return what a run tells of its models."""
    job, repeats = prepared.job, prepared.job.compare.seeds
    plans = {name: plan.public() for name, plan in prepared.plans.items()}
    strategies = []
    for name, trained in models.items():
        strategies.append(
            Trained(
                strategy=name,
                plan=plans[name],
                settings=tuned(job, name),
                seeds=job.seeds_of(name),
                test_accuracy=_known(m.accuracy.by_row for m in trained),
                test_accuracy_by_person=_known(m.accuracy.by_person for m in trained),
                test_errors=tuple(m.errors for m in trained if m.errors is not None),
                seconds=round(sum(m.seconds for m in trained), 2),
            )
        )
    return Run(
        version=__version__,
        name=job.name,
        data=_facts(prepared),
        strategy=job.training.strategy,
        method=job.training.method,
        hidden=job.training.hidden,
        rows_per_person=job.training.rows_per_person,
        analysis=job.run.analysis,
        no_limit_cap=job.budgets.no_limit_cap,
        seed=job.run.seed,
        strategies=tuple(strategies),
        models=len(plans) * repeats,
        totals=totals(list(plans.values()), repeats),
        purpose=job.run.purpose,
        finished=time.strftime("%Y-%m-%d", time.gmtime()),
        levels=declared_levels(job),
        versions={"python": platform.python_version()}
        | {name: version(name) for name in ("numpy", "scipy", "torch")},
        tested=_tested(prepared, models[job.training.strategy][0].network, folder),
    )


def _known(values: Iterable[float | None]) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _facts(prepared: Prepared) -> Facts:
    data, people = prepared.job.data, prepared.people
    tested = people.test.labels[~people.test.faulty] if people.classes else np.array([])
    number = people.target if isinstance(people.target, Numeric) else None
    return Facts(
        source=data.source if data.packaged else Path(data.source).name,
        packaged=data.packaged,
        label=people.label,
        classes=people.classes,
        target_range=None if number is None else (number.lower, number.upper),
        schema=people.schema.name,
        features=int(people.train.features.shape[1]),
        unit=data.unit,
        training_records=people.train.units,
        test_records=people.test.units,
        commonest_class_share=max(
            (float((tested == k).mean()) for k in set(tested.tolist())), default=None
        ),
        simulated_budgets=bool(prepared.job.budgets.groups),
        columns=Schema("model", people.columns).to_dict()["columns"],
        fingerprints=people.fingerprints,
    )
