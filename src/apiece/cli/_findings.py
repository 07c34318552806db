"""What `apiece audit` finds, one function a kind of input; heavy imports stay inside."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece import _check
from apiece.errors import DataError, InputError, UnsupportedError, unknown

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.datasets.tables import Dialect
    from apiece.jobs import Records
    from apiece.jobs.people import People
if TYPE_CHECKING:
    from apiece.audit import Findings, ShadowJob, ShadowScores
    from apiece.audit.shadows import Mapper


def of_two_worlds(
    scores_in: Path | None,
    scores_out: Path | None,
    plans: tuple[Path, ...],
    *,
    delta: float,
    confidence: float,
) -> Findings:
    """Bounds from the scores of models trained with and without one record."""
    from apiece.audit import Findings, lower_bound

    for name, path in (("in", scores_in), ("out", scores_out)):
        if path is None:
            raise InputError(f"--scores-{name}: missing; give both files of scores")
    assert scores_in is not None
    assert scores_out is not None
    _one_plan(plans)
    ins, outs = _numbers(scores_in), _numbers(scores_out)
    bounds = tuple(
        lower_bound(ins, outs, delta=delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    return Findings(audit="two worlds", bounds=bounds)


def _one_plan(paths: tuple[Path, ...]) -> None:
    from apiece.audit import one_plan
    from apiece.cli._command import read_text
    from apiece.plan import Plan

    if paths:
        one_plan(*(Plan.from_json(read_text(path)) for path in paths))


def _numbers(path: Path) -> list[float]:
    from apiece.cli._command import read_text

    found = []
    for at, line in enumerate(read_text(path).split(), start=1):
        try:
            found.append(float(line))
        except ValueError:
            raise DataError(f"{path}, entry {at} = {line!r}: not a number") from None
    return found


@dataclass(frozen=True, slots=True)
class Canaries:
    """Where canaries, their coins and their scores stand: files, names of columns, dialect."""

    canaries: Path
    coins: Path | None
    id_column: str
    score: str
    included: str
    group: str | None
    person: str | None
    dialect: Dialect

    @property
    def coined(self) -> list[str]:
        """The columns of what was decided for a canary: the coin, and maybe the group."""
        return [self.included, *([self.group] if self.group else [])]

    @property
    def key(self) -> str | None:
        """The column that says whose a row is, or joins the two files; None where there is none."""
        return self.id_column if self.person is None and self.coins is not None else self.person

    def columns(self, path: Path, names: list[str]) -> Any:
        """Return these columns of a file; raise `DataError` for one that it lacks."""
        from apiece.datasets import read_table
        from apiece.datasets.cells import column
        from apiece.datasets.tables import PLAIN, is_parquet

        mixed = self.coins is not None and is_parquet(self.coins) != is_parquet(self.canaries)
        table = read_table(path, PLAIN if mixed and is_parquet(path) else self.dialect)
        for name in names:
            column(table, name, f"{path.name}:")
        return table[list(dict.fromkeys(names))]


def of_canaries(given: Canaries, *, delta: float, confidence: float) -> Findings:
    """Bounds, by group too, and ROC curves from canaries that were included by fair coins."""
    import numpy as np

    from apiece.audit import Findings, one_run, one_run_by_group, roc_by_group

    scores, truth, names = _canaries(given)
    asked: Any = {"delta": delta, "confidence": confidence}
    methods = ("dp", "gdp")
    by_group, groups = {}, np.full(scores.size, "all") if names is None else names
    if names is not None:
        each = [one_run_by_group(scores, truth, groups, method=m, **asked) for m in methods]
        by_group = {name: tuple(bounds[name] for bounds in each) for name in each[0]}
    return Findings(
        audit="one run",
        unit=None if given.person is None else "person",
        bounds=tuple(one_run(scores, truth, method=m, **asked) for m in methods),
        bounds_by_group=by_group,
        rocs=roc_by_group(scores, truth, groups),
    )


def _canaries(given: Canaries) -> tuple[Any, Any, Any]:
    """Return scores, coins and maybe groups, one a canary; with --person one a person.

    With --coins, the two files are joined by id, whatever the order of their rows.
    """
    from apiece.audit.records import join
    from apiece.budgets import Units
    from apiece.budgets.frames import ids_column, person_column
    from apiece.datasets.cells import texts

    coined, person, coins, key = given.coined, given.person, given.coins, given.key
    wanted = [given.score, *(coined if coins is None else []), *([key] if key else [])]
    table = given.columns(given.canaries, wanted)
    scores = _score_column(table, given)
    read: Any = ids_column if person is None else person_column
    ids: Any = read(table, key).astype(str) if key else None
    values = [texts(table[name]).astype(str) for name in coined] if coins is None else []
    if person is not None:
        units = Units.of(ids)
        ids, scores = units.ids, units.mean(scores)
        values = [
            units.once(own, f"column {name!r}") for name, own in zip(coined, values, strict=False)
        ]
    if coins is not None and key is not None:
        other = given.columns(coins, [key, *coined])
        known = ids_column(other, key).astype(str)
        order = join(str(coins), known, str(given.canaries), ids)
        values = [texts(other[name]).astype(str)[order] for name in coined]
    return scores, _coins(given.included, values[0]), values[1] if given.group else None


def _coins(name: str, values: Any) -> Any:
    import numpy as np

    words = np.char.lower(values)
    if not np.isin(words, ["0", "1", "true", "false"]).all():
        raise DataError(f"column {name!r}: give 0 or 1, true or false")
    return np.isin(words, ["1", "true"])


def _score_column(table: Any, given: Canaries) -> Any:
    import numpy as np

    from apiece.datasets.cells import as_numbers, texts

    cells = texts(table[given.score])
    scores = as_numbers(cells, given.dialect.decimal)
    bad = np.flatnonzero(np.isnan(scores))
    if bad.size:
        raise DataError(
            f"column {given.score!r}, row {int(bad[0]) + 1} = {cells[bad[0]]!r}: not a number "
            f"({bad.size} such rows); give every canary a score"
        )
    return scores


def of_shadows(path: Path, variant: str) -> Findings:
    """LiRA by group from the stored confidences of shadow models."""
    from apiece.audit import ShadowScores
    from apiece.audit.findings import shadow_findings

    return shadow_findings(ShadowScores.load(path), variant=variant)


def of_model(
    model: Path,
    members: Path | None,
    others: Path | None,
    *,
    trusted: bool,
    delta: float,
    confidence: float,
    seed: int,
) -> Findings:
    """The loss-threshold test of a model of torch.export, with one-run bounds."""
    import numpy as np

    from apiece.audit.findings import Side, audit_scores
    from apiece.audit.records import read_arrays
    from apiece.audit.stacked_training import exported_model, model_confidences

    if members is None or others is None:
        raise InputError("--members, --others: missing; give the records trained on, and others")
    network, sides = exported_model(model, trusted=trusted), []
    for path in (members, others):
        arrays = read_arrays(path)
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
        inputs = arrays["inputs"].astype(np.float32)
        found = model_confidences(network, inputs, arrays["targets"])
        sides.append(Side.of(found, groups=arrays.get("groups"), people=arrays.get("people")))
    generator = np.random.default_rng(seed)
    return audit_scores(*sides, delta=delta, confidence=confidence, generator=generator)


def of_run(run: Path, *, delta: float, confidence: float, seed: int) -> Findings:
    """The loss-threshold test of a run's model by group, with one-run bounds."""
    import numpy as np

    from apiece.audit.findings import Side, audit_scores
    from apiece.audit.membership import roc
    from apiece.audit.stacked_training import model_confidences
    from apiece.jobs import Run, load_model, read_job, read_people

    Run.load(run)  # every file in it is what its statement is bound to
    job = read_job(run / "config.toml")
    if job.run.seed is None and job.data.split_column is None:
        raise InputError(
            f"{run}: secret coins decided who was trained on, and a release does not keep them, so "
            "that members cannot be told from others; train with --split COLUMN, or audit a run "
            "with --seed"
        )
    people = of_classes(read_people(job))
    network = load_model(run / "model.pt").network

    def side(records: Records, groups: Any = None) -> Side:
        good = ~records.faulty
        found = model_confidences(network, records.features[good], records.labels[good])
        person = None if records.person is None else records.person[good]
        return Side.of(found, groups=None if groups is None else groups[good], people=person)

    members, others = (
        side(people.train, people.budgets.groups.name[people.group_of_rows].astype(str)),
        side(people.test),
    )
    generator = np.random.default_rng(seed)
    found = audit_scores(members, others, delta=delta, confidence=confidence, generator=generator)
    rocs = dict(found.rocs)
    assert members.groups is not None
    for name in np.unique(members.groups).tolist():
        own = members.scores[members.groups == name]
        truth = np.repeat([True, False], [own.size, others.scores.size])
        rocs[name] = roc(np.concatenate([own, others.scores]), truth)
    return replace(found, audit="run folder", rocs=rocs)


def of_classes(people: People) -> People:
    """Return the people of a run; raise `UnsupportedError` where its model predicts a number."""
    if not people.classes:
        raise UnsupportedError(
            f"run: its model predicts the number {people.label!r}, and scores of membership here "
            "are those of classes; audit scores of your own with --canaries"
        )
    return people


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
    from apiece.audit.findings import shadow_findings

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

    from apiece.audit.findings import LEAST_MODELS
    from apiece.audit.membership import VARIANTS
    from apiece.audit.shadows import half_plan, table_job

    pass
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
    from apiece.audit import train_shadows
    from apiece.audit.shadows import claim
    from apiece.cli import Interrupted
    from apiece.cli._command import Bar

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
    from apiece.audit.shadows import claim

    if out is None:
        return "interrupted; nothing is kept: with --out FOLDER the next call would go on"
    done = job.blocks - len(claim(job, out))
    return (
        f"interrupted with {done} of {job.blocks} blocks of models in {out}; the same command "
        "goes on from there"
    )


def _mapper(asked: Asked) -> Mapper:
    from apiece.audit import processes
    from apiece.audit.shadows import serially

    if asked.ray:
        from apiece.adapters import cluster

        return cluster(asked.address)
    return serially if asked.processes == 1 else processes(asked.processes)
