"""`apiece audit RUN --models K`: shadow models of a run's table, resumable; imports stay inside."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from apiece import _check
from apiece.errors import InputError, unknown

if TYPE_CHECKING:
    from apiece.audit import Findings, Mapper, ShadowJob, ShadowScores


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `apiece audit lira`."""

    run: Path
    models: int
    processes: int
    ray: bool
    address: str | None
    seed: int
    out: Path | None
    variant: str


def of_shadow_run(asked: Asked) -> Findings:
    """LiRA by group from shadow models of a run's table, trained here or resumed."""
    from apiece.audit import shadow_findings

    job = _shadow_job(asked)
    return replace(
        shadow_findings(_trained(job, asked), variant=asked.variant),
        audit="shadow models of a run's table",
        unit=None if job.pool.people is None else "person",
        strategy=job.plan.strategy,
        steps=job.plan.steps,
    )


def _shadow_job(asked: Asked) -> ShadowJob:
    """The shadow models of a run's table; what is wrong with them is found before training."""
    import numpy as np

    from apiece.audit import LEAST_MODELS, VARIANTS, half_plan, table_job
    from apiece.cli._findings import of_classes
    from apiece.jobs import Run, read_job, read_people

    models = _check.count("models", asked.models, least=LEAST_MODELS)
    _check.count("processes", asked.processes)
    if asked.ray and asked.processes > 1:
        raise InputError("--processes: are of this machine; with --cluster Ray decides")
    if asked.address is not None and not asked.ray:
        raise InputError("--address: is of a Ray cluster; add --cluster to train there")
    if asked.variant not in VARIANTS:
        raise unknown("variant", asked.variant, VARIANTS)
    Run.load(asked.run)  # every file in it is what its statement is bound to
    job = read_job(asked.run / "config.toml")
    training, coins = job.training_of(job.training.strategy), job.run.seed
    people = of_classes(read_people(job, asked.seed if coins is None else coins))
    rows, whole, person = ~people.train.faulty, people.budgets, people.train.person
    good = rows if person is None else np.isin(whole.ids, person[rows])
    budgets = whole.taken(good)
    plan = half_plan(
        budgets,
        training.strategy,
        steps=training.steps,
        expected_batch_size=training.batch_size / 2,
        clip_norm=training.clip_norm,
    )
    most = training.rows_per_person
    return table_job(
        people.train.features[rows],
        people.train.labels[rows],
        budgets,
        replace(plan, unit=job.data.unit),
        models=models,
        seed=asked.seed,
        people=None if person is None else person[rows],
        rows_per_person=most if isinstance(most, int) else None,
    )


def _trained(job: ShadowJob, asked: Asked) -> ShadowScores:
    """The scores of all models of `job`; with --out, what an earlier call left is not repeated."""
    from apiece.audit import claim, train_shadows
    from apiece.cli import Interrupted
    from apiece.cli._progress import Bar

    out = asked.out
    done = 0 if out is None else job.blocks - len(claim(job, out))
    # what Ray says of a worker that died would be part of the answer
    with Bar(job.blocks, done=done) as bar, redirect_stdout(sys.stderr):
        try:
            scores = train_shadows(
                job,
                folder=out,
                mapper=_mapper(asked),
                progress=lambda at, total: bar.advance(f"block {at} of {total}"),
            )
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(job, out)) from None
    if out is not None:
        scores.save(out / "scores.npz")
    return scores


def _interrupted(job: ShadowJob, out: Path | None) -> str:
    from apiece.audit import claim

    if out is None:
        return "interrupted; nothing is kept: with --out FOLDER the next call would go on"
    done = job.blocks - len(claim(job, out))
    return (
        f"interrupted with {done} of {job.blocks} blocks of models in {out}; the same command "
        "goes on from there"
    )


def _mapper(asked: Asked) -> Mapper:
    from apiece.audit import processes, serially

    if asked.ray:
        from apiece.adapters import cluster

        return cluster(asked.address)
    return serially if asked.processes == 1 else processes(asked.processes)
