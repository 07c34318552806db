"""The main job: a table of people with a budget each → a trained model and what it cost whom."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
import torch
from torch import nn

from apiece import __version__
from apiece.accounting import privacy_curve
from apiece.errors import InputError
from apiece.jobs.config import TUNED, Job, complete
from apiece.jobs.folder import RunFolder, refuse_used
from apiece.jobs.model import TabularModel, accuracy, build, to_bytes
from apiece.jobs.prepared import Prepared
from apiece.jobs.release import checklist
from apiece.mechanisms import Composed, Repeated
from apiece.plan import BoundPlan, Plan
from apiece.training import Progress, Streams, Trainer

if TYPE_CHECKING:
    from apiece.jobs.charged import Charge

# Told about every step: strategy, which repeat, step, steps.
Watcher = Callable[[str, int, int, int], object]
SAVE_EVERY = 1000  # steps: a second or so to make again, against a flush of the disk
_TOTALS = 12  # groups for which the cost of all models together is stated
Render = Callable[[dict[str, Any]], str]


def run(prepared: Prepared, *, out: Path, render: Render, watch: Watcher) -> dict[str, Any]:
    """Train every strategy as often as asked, fill the run folder, and return the metrics.

    out: a folder that does not exist yet or is empty, or that of the run that `prepare_again`
    found. render: makes report.html from the metrics. KeyboardInterrupt is passed on after the
    interruption is logged; the folder then holds config.toml, plan.json, log.jsonl and the
    checkpoints, all whole, and the run can be gone on with. With a ledger, everyone is charged
    for every model first, and the release is recorded before a model or a figure is written.
    """
    job, plans = prepared.job, prepared.plans
    if not prepared.resumed:
        refuse_used(out)
    charge = _charge(prepared)
    folder = _open(prepared, out)
    results, kept = [], None
    try:
        with _one_thread():
            for name, plan in plans.items():
                trained = [
                    _train(prepared, plan, name, repeat, folder, watch, charge)
                    for repeat in range(job.seeds)
                ]
                results.append(_result(name, prepared.described[name], trained, job))
                if name == job.strategy:
                    kept = trained[0]
    except KeyboardInterrupt:
        folder.log("interrupted")
        raise
    assert kept is not None
    if charge is not None:
        charge.release(kept.network.state_dict())
    metrics = _metrics(prepared, results)
    metrics["release"] = checklist(metrics)
    people = prepared.people
    model = TabularModel(kept.network, people.columns, people.label, people.classes)
    folder.write("model.pt", to_bytes(model))
    folder.write_json("metrics.json", metrics)
    folder.write("report.html", render(metrics))
    prepared.unfinished.clear()
    folder.log("finished")
    return metrics


def _open(prepared: Prepared, out: Path) -> RunFolder:
    """Return the run folder, with config and plan in it."""
    job, folder = prepared.job, RunFolder(out)
    if prepared.resumed:
        folder.log("resumed")
        return folder
    folder.write("config.toml", tomli_w.dumps(complete(job, out=out).to_dict()))
    folder.write_json("plan.json", prepared.described[job.strategy])
    prepared.unfinished.begin(job)
    folder.log("planned", strategies=list(prepared.plans), apiece=__version__)
    return folder


def _charge(prepared: Prepared) -> Charge | None:
    """Charge the ledger for every model that the job trains; None without a ledger."""
    job = prepared.job
    if job.ledger is None or job.analysis is None:
        return None
    from apiece.jobs.charged import Charge, charge_training
    from apiece.ledger import Ledger

    ledger = Ledger.open(job.ledger, create=False)
    if prepared.resumed and ledger.status(job.analysis) == "committed":
        # Killed between the release and the last file: no step is left that anyone could join.
        return Charge(ledger, job.analysis, np.ones(len(prepared.people.budgets), dtype=bool))
    plans = [plan for plan in prepared.plans.values() for _ in range(job.seeds)]
    if ledger.id_kind == "integer":
        plans = [_with_whole_ids(plan) for plan in plans]
    return charge_training(ledger, job.analysis, *plans)


def _with_whole_ids(plan: Plan) -> Plan:
    bound = BoundPlan.of(plan)
    try:
        ids = np.array([int(i) for i in bound.ids])
    except ValueError as error:
        raise InputError(f"ids: {error}, but this ledger's ids are whole numbers") from None
    return replace(bound, ids=ids)


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
class _Trained:
    network: nn.Sequential
    accuracy: float | None
    seconds: float


def _seed(job: Job, name: str, repeat: int) -> int | None:
    """Return one model's seed; no two models share noise, and the kept one has the job's seed."""
    if job.seed is None:
        return None
    others = [s for s in dict.fromkeys(job.strategies) if s != job.strategy]
    order = [job.strategy, *others]
    return job.seed + repeat * len(order) + order.index(name)


def _train(
    prepared: Prepared,
    plan: Plan,
    name: str,
    repeat: int,
    folder: RunFolder,
    watch: Watcher,
    charge: Charge | None,
) -> _Trained:
    job, people = prepared.job.of(name), prepared.people
    seed = _seed(job, name, repeat)
    begun = time.monotonic()
    inputs = torch.from_numpy(people.train.features)
    network = build(
        inputs.shape[1],
        len(people.classes),
        job.hidden,
        Streams.from_seed(seed).initialisation(),
    )

    def progress(done: Progress) -> None:
        watch(name, repeat, done.step, done.steps)
        if done.step % 100 == 0 or done.step == done.steps:
            folder.log("trained", strategy=name, repeat=repeat, step=done.step, steps=done.steps)

    given = (
        network,
        torch.optim.SGD(network.parameters(), lr=job.learning_rate, momentum=job.momentum),
        nn.CrossEntropyLoss(reduction="none"),
        plan,
        (inputs, torch.from_numpy(people.train.labels)),
    )
    place = prepared.unfinished.model(name, repeat)
    options: dict[str, Any] = {"callbacks": [progress], "save_every": SAVE_EVERY}
    options["included"] = None if charge is None else charge.included
    if (place / "state.pt").exists():
        trainer = Trainer.resume(place, *given, **options)
    else:
        trainer = Trainer(*given, seed=seed, checkpoint=place, **options)
    trainer.fit()
    return _Trained(network, accuracy(network, people.test), time.monotonic() - begun)


def _result(
    name: str, described: dict[str, Any], trained: list[_Trained], job: Job
) -> dict[str, Any]:
    hits = [t.accuracy for t in trained if t.accuracy is not None]
    return {
        "strategy": name,
        "seeds": None if job.seed is None else [_seed(job, name, r) for r in range(job.seeds)],
        "settings": {key: getattr(job.of(name), key) for key in TUNED},
        "test_accuracy": hits,
        "test_accuracy_mean": statistics.fmean(hits) if hits else None,
        "test_accuracy_stddev": statistics.stdev(hits) if len(hits) > 1 else None,
        "seconds": round(sum(t.seconds for t in trained), 2),
        "plan": described,
    }


def _metrics(prepared: Prepared, results: list[dict[str, Any]]) -> dict[str, Any]:
    job, people = prepared.job, prepared.people
    tested = people.test.labels[~people.test.faulty]
    commonest = max((float((tested == k).mean()) for k in set(tested.tolist())), default=None)
    return {
        "apiece": __version__,
        "name": job.name,
        "data": {
            "source": job.source if job.packaged else Path(job.source).name,
            "packaged": job.packaged,
            "label": people.label,
            "classes": list(people.classes),
            "schema": people.schema.name,
            "features": int(people.train.features.shape[1]),
            "training_records": len(people.train.labels),
            "test_records": len(people.test.labels),
            "commonest_class_share": commonest,
            "simulated_budgets": bool(job.groups),
        },
        "training": {
            "strategy": job.strategy,
            "hidden": list(job.hidden),
        },
        "ledger": None if job.analysis is None else {"analysis": job.analysis},
        "no_limit_cap": job.no_limit_cap,
        "randomness": {
            "seed": job.seed,
            "noise": "operating system" if job.seed is None else "reproducible",
        },
        "strategies": results,
        "all_models": _all_models(prepared.plans, job.seeds),
    }


def _all_models(plans: dict[str, Plan], seeds: int) -> dict[str, Any]:
    """Return what a group would spend if every trained model were released.

    With many groups, of some of them from the strictest to the loosest: each takes a composition.
    """
    first = next(iter(plans.values()))
    models = len(plans) * seeds
    chosen = np.linspace(0, len(first.budget_groups) - 1, min(len(first.budget_groups), _TOTALS))
    groups = []
    for g in np.round(chosen).astype(int).tolist() if models > 1 else []:
        every = Composed(*(Repeated(plan.mechanism_for(g), seeds) for plan in plans.values()))
        delta = float(first.budget_groups.delta[g])
        spent = float(privacy_curve(every, method="pld").epsilon(delta).upper)
        groups.append(
            {"name": str(first.budget_groups.name[g]), "delta": delta, "epsilon_spent": spent}
        )
    return {"models": models, "groups": groups}
