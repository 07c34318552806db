"""apiece audit: how much a model really leaks, and about whom; a sub-command a kind of audit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.cli import Interrupted
from apiece.cli._command import (
    DIALECT,
    PATH,
    SHARED,
    Bar,
    Command,
    Output,
    dialect_from,
    emit,
    needed_delta,
    option,
    read_plan,
    read_text,
    refuse_given,
    renamed,
    table_options,
)
from apiece.errors import DataError, InputError, StateError, UnsupportedError, unknown

if TYPE_CHECKING:
    from apiece.audit import Claim, Findings, ShadowJob, ShadowScores
    from apiece.audit.shadows import Mapper
    from apiece.jobs.config import Job
    from apiece.jobs.people import Examples, People

EXAMPLE = """
\b
Examples:
  apiece audit run runs/first
  apiece audit lira runs/first --models 64 --processes 2 --out audits/first
  apiece audit model --model model.pt2 --trust-model --members train.npz \\
                     --others test.npz --delta 1e-5
  apiece audit worlds --scores-in with.txt --scores-out without.txt --plan a.json --json
  apiece audit canaries --canaries scores.csv --coins coins.csv --ids person \\
                        --group consent --delta 1e-5
  apiece audit shadows --shadows audits/first/scores.npz
  apiece audit anytime runs/first --max-samples 2000
"""
# What an audit is of, by the option that names it; without a sub-command it is told by these.
NAMED_BY = {
    "--model": "model",
    "--scores-in": "worlds",
    "--scores-out": "worlds",
    "--canaries": "canaries",
    "--shadows": "shadows",
}


class AuditCommand(Command):
    """One kind of audit, whose function returns its findings, which are printed.

    An option of another kind is refused with the kinds that it goes with.
    """

    def __init__(self, name: str, callback: Callable[..., Findings], **how: Any) -> None:
        def run(as_json: bool, **asked: Any) -> None:
            from apiece.reporting.closing import findings_text

            findings = callback(**asked)
            emit(as_json, findings.to_dict(), findings_text(findings))

        super().__init__(name, callback=run, **how)
        self.params.append(click.Option(["--json", "as_json"], **SHARED["--json"]))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments, or raise for an option of another kind."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            owners = [
                name
                for name, kind in command.commands.items()
                if any(error.option_name in option.opts for option in kind.params)
            ]
            if not owners:
                raise
            raise InputError(
                f"{error.option_name}: goes with {' or '.join(owners)}, not with {self.name}; "
                "leave it out"
            ) from None


class AuditGroup(click.Group):
    """The sub-commands, of which the first option or argument tells which is meant."""

    command_class = AuditCommand

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the sub-command first, where it is not there."""
        helped = args in (["--help"], ["-h"])
        if not helped and (not args or args[0] not in self.commands):
            args = [_kind_of(args), *args]
        return super().parse_args(ctx, args)


def _kind_of(args: list[str]) -> str:
    """Return the sub-command that arguments without one are for."""
    options = [word.partition("=")[0] for word in args if word.startswith("--")]
    given = list(dict.fromkeys(NAMED_BY[name] for name in options if name in NAMED_BY))
    if not given and args and not args[0].startswith("-"):
        kinds = {"--models": "lira", "--max-samples": "anytime"}
        return next((kind for name, kind in kinds.items() if name in options), "run")
    if len(given) != 1:
        named = " and ".join(name for name in options if name in NAMED_BY) or "nothing"
        raise InputError(f"{named} given; name one of RUN, {', '.join(NAMED_BY)}")
    return given[0]


@click.group(cls=AuditGroup, epilog=EXAMPLE)
def command() -> None:
    """Audit a run folder, a torch model, scores of many models, canaries of one run, or shadows.

    The sub-command may be left out: the options tell which is meant. A bound says that ε is at
    least so much, with the stated confidence; the groups' bounds hold together. A group's ROC shows
    how well this attack tells its members from others. No single person's figure is printed.
    """


_delta = option("--delta", type=float)
_confidence = option("--confidence", type=float, default=0.95, help="Confidence of the bounds.")
_seed = option("--seed", help="Seed of the audit.")
_variant = option("--variant", default="online", help="Variant of LiRA: online or offline.")


@command.command("run", short_help="The model in a run folder, by its losses.")
@click.argument("run", type=PATH)
@_seed
@_delta
@_confidence
def of_run(run: Path, delta: float | None, confidence: float, seed: int) -> Findings:
    """Audit the model in a run folder by its loss on people trained on and people held out.

    People who have withdrawn from the run's ledger since are left out.
    """
    import numpy as np

    job = _job_of(run)
    own = job.budgets.delta
    delta = needed_delta(delta, None if isinstance(own, str) else own)
    if job.run.seed is None and job.data.split_column is None:
        raise InputError(
            f"{run}: secret coins decided who was trained on, and a release does not keep them, so "
            "that members cannot be told from others; train with --split COLUMN, or audit a run "
            "with --seed"
        )
    people = _people_of(job)
    from apiece.audit.findings import ModelScores, audit_scores
    from apiece.audit.stacked_training import model_confidences
    from apiece.jobs import load_model

    network = load_model(run / "model.pt").network

    def side(records: Examples, groups: Any = None) -> ModelScores:
        usable = records.of(~records.faulty)
        phi = model_confidences(network, usable.features, usable.labels)
        own = None if groups is None else groups[~records.faulty]
        return ModelScores.of(phi, groups=own, people=usable.person)

    names = people.budgets.groups.name[people.group_of_rows].astype(str)
    sides, generator = (side(people.train, names), side(people.test)), np.random.default_rng(seed)
    findings = audit_scores(*sides, delta=delta, confidence=confidence, generator=generator)
    return replace(findings, audit="run folder")


def _job_of(run: Path) -> Job:
    """Return the job of a run folder, of which every file is what its statement is bound to."""
    from apiece.jobs import Run, read_job

    Run.load(run)
    return read_job(run / "config.toml")


def _people_of(job: Job, coins: int | None = None) -> People:
    """Return the people of a run without those who have withdrawn since, by its ledger.

    Raises `UnsupportedError` where its model predicts a number, and `AnalysisError` where the
    ledger did not pay for it.
    """
    from apiece.jobs.people import read_people

    people = read_people(job, coins)
    if not people.classes:
        raise UnsupportedError(
            f"run: its model predicts the number {people.label!r}, and scores of membership here "
            "are those of classes; audit scores of your own with --canaries"
        )
    from apiece.jobs.running import gone_from, ledger_of

    ledger = ledger_of(job)
    if ledger is None:
        return people
    ledger.result(str(job.run.analysis))  # or it is another ledger, which knows of no withdrawal
    train, test = (
        each if each.ids is None else each.of(~gone_from(ledger, each.ids))
        for each in (people.train, people.test)
    )
    budgets = people.budgets.taken(~gone_from(ledger, people.budgets.ids))
    return replace(people, train=train, test=test, budgets=budgets)


@command.command("lira", short_help="Shadow models of a run's table (LiRA).")
@click.argument("run", type=PATH)
@option("--models", type=int, default=64, help="Number of models to train.")
@option("--processes", type=int, default=1, help="Number of processes that train them.")
@option("--ray", "--cluster", "ray", is_flag=True, help="Train them on a Ray cluster.")
@option("--address", help="Address of the Ray cluster.  [default: one that is started here]")
@_seed
@option("--out", type=Output(None), help="Folder of shadow models; resumed if it has some.")
@_variant
def of_shadow_run(variant: str, out: Path | None, **asked: Any) -> Findings:
    """Train shadow models on a run's table, and attack each by all others (LiRA).

    People who have withdrawn from the run's ledger since are left out.
    """
    from apiece import _check
    from apiece.audit.findings import LEAST_MODELS, shadow_findings
    from apiece.audit.membership import VARIANTS

    models = _check.count("models", asked["models"], least=LEAST_MODELS)
    count = _check.count("processes", asked["processes"])
    if asked["ray"] and count > 1:
        raise InputError("--processes: with --cluster Ray decides; leave it out")
    if asked["address"] is not None and not asked["ray"]:
        raise InputError("--address: is of a Ray cluster; add --cluster to train there")
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    job, stay = _shadow_job(asked["run"], models, asked["seed"])
    mapper: Mapper
    if asked["ray"]:
        from apiece.adapters import cluster

        mapper = cluster(asked["address"])
    else:
        from apiece.audit.shadows import processes, serially

        mapper = serially if count == 1 else processes(count)
    return replace(
        shadow_findings(_shadow_scores(job, out, mapper, stay), variant=variant),
        audit="shadow models of a run's table",
        unit=None if job.pool.people is None else "person",
        strategy=job.plan.strategy,
        steps=job.plan.steps,
    )


def _shadow_job(run: Path, models: int, seed: int) -> tuple[ShadowJob, Callable[[], None]]:
    """Return the shadow models of a run's table, and what raises where somebody has withdrawn.

    What is wrong is found before training.
    """
    import numpy as np

    job = _job_of(run)
    people = _people_of(job, seed if job.run.seed is None else None)
    from apiece.audit.shadows import half_plan, table_job
    from apiece.jobs.prepared import with_batch
    from apiece.jobs.running import gone_from, ledger_of

    job = with_batch(job, people.budgets)
    training = job.training_of(job.training.strategy)
    assert training.batch_size is not None  # as it is by now
    usable, whole = ~people.train.faulty, people.budgets
    train = people.train.of(usable)
    budgets = whole.taken(usable if train.person is None else np.isin(whole.ids, train.person))
    plan = half_plan(
        budgets,
        training.strategy,
        steps=training.steps,
        expected_batch_size=training.batch_size / 2,
        clip_norm=training.clip_norm,
    )
    most, ledger = training.rows_per_person, ledger_of(job)

    def stay() -> None:
        if ledger is not None and gone_from(ledger, budgets.ids).any():
            raise StateError(
                f"{run}: somebody in these shadow models has withdrawn; delete them, and repeat "
                "the command with another --out"
            )

    made = table_job(
        train.features,
        train.labels,
        budgets,
        replace(plan, unit=job.data.unit),
        models=models,
        seed=seed,
        people=train.person,
        rows_per_person=most if isinstance(most, int) else None,
    )
    return made, stay


def _shadow_scores(
    job: ShadowJob, out: Path | None, mapper: Mapper, stay: Callable[[], None]
) -> ShadowScores:
    """Return the scores of all models of `job`; what an earlier call left in `out` is kept.

    stay: called after each block of models.
    """
    from apiece.audit import train_shadows
    from apiece.audit.shadows import claim

    def told(at: int, total: int) -> None:
        bar.advance(f"block {at} of {total}")
        stay()

    kept = 0 if out is None else job.blocks - len(claim(job, out))
    # What Ray says of a worker that died would be part of the answer.
    with Bar(job.blocks, done=kept) as bar, redirect_stdout(sys.stderr):
        try:
            scores = train_shadows(job, folder=out, mapper=mapper, progress=told)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; nothing is kept: with --out FOLDER the next call would go on"
                if out is None
                else f"interrupted with {bar.done} of {job.blocks} blocks of models in {out}; the "
                "same command goes on from there"
            ) from None
    if out is not None:
        scores.save(out / "scores.npz")
    return scores


@command.command("model", short_help="A torch model, by its losses.")
@option("--model", type=PATH, required=True, help="Model, as torch.export.save wrote it (.pt2).")
@option(
    "--trust-model",
    "trusted",
    is_flag=True,
    help="Load --model though such a file can run any code of its writer's, as you.",
)
@option(
    "--members",
    type=PATH,
    required=True,
    help="Records trained on: .npz of inputs and targets; groups and people if known.",
)
@option("--others", type=PATH, required=True, help="Records not trained on, in the same form.")
@_seed
@_delta
@_confidence
def of_model(
    model: Path,
    members: Path,
    others: Path,
    *,
    trusted: bool,
    delta: float | None,
    confidence: float,
    seed: int,
) -> Findings:
    """Audit a torch model by its loss on records it was trained on and on others."""
    import numpy as np

    from apiece.audit.findings import ModelScores, audit_scores
    from apiece.audit.records import read_arrays

    given = [read_arrays(path) for path in (members, others)]
    for path, arrays in zip((members, others), given, strict=True):
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
    from apiece.audit.stacked_training import exported_model, model_confidences

    network, generator = exported_model(model, trusted=trusted), np.random.default_rng(seed)
    sides = []
    for arrays in given:
        inputs = arrays["inputs"].astype(np.float32)
        phi = model_confidences(network, inputs, arrays["targets"])
        whose = {name: arrays.get(name) for name in ("groups", "people")}
        sides.append(ModelScores.of(phi, **whose))
    delta = needed_delta(delta)
    return audit_scores(*sides, delta=delta, confidence=confidence, generator=generator)


@command.command("worlds", short_help="Scores of models with and without one record.")
@option(
    "--scores-in", type=PATH, required=True, help="Scores of models with the target, one a line."
)
@option("--scores-out", type=PATH, required=True, help="Scores of models without it, one a line.")
@option("--plan", "plans", type=PATH, multiple=True, help="Plan of each world; they must agree.")
@option("--anytime", is_flag=True, help="Read pairs until the claim of --epsilon or --plan breaks.")
@option("--epsilon", type=float, help="ε that is claimed at δ; with --anytime.")
@option("--group", help="Group of --plan whose curve is claimed; with --anytime.")
@_delta
@_confidence
def of_two_worlds(
    scores_in: Path,
    scores_out: Path,
    plans: tuple[Path, ...],
    *,
    delta: float | None,
    confidence: float,
    anytime: bool,
    epsilon: float | None,
    group: str | None,
) -> Findings:
    """Bound ε from the scores of models trained with and without one record."""
    from apiece.audit import Claim, Findings, lower_bound, one_plan

    read = [read_plan(path) for path in plans]
    if read:
        one_plan(*read)
    stated = {float(each) for plan in read for each in plan.budget_groups.delta}
    ins, outs = _numbers(scores_in), _numbers(scores_out)
    delta = needed_delta(delta, stated.pop() if len(stated) == 1 else None)
    if anytime:
        if epsilon is not None:
            whose, claim = "all", Claim.budget(epsilon, delta)
        elif read:
            whose = group or str(read[0].budget_groups.name[0])
            if group is None and len(read[0].budget_groups) > 1:
                raise InputError("--group: missing; say whose claim in --plan is audited")
            claim = Claim.curve(read[0].curve(whose), "the plan's trade-off curve")
        else:
            raise InputError("--anytime: no claim; give --epsilon, or --plan")
        most = max(len(ins), len(outs))
        rounds, how = [{whose: (ins, outs)}], {"confidence": confidence, "delta": delta}
        return _watched("two worlds", rounds, {whose: claim}, max_samples=most, **how)
    refuse_given(("epsilon", "group"), "goes with --anytime; add it")
    bounds = tuple(
        lower_bound(ins, outs, delta=delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    return Findings(audit="two worlds", bounds=bounds)


def _watched(audit: str, rounds: Any, claims: dict[str, Claim], **how: Any) -> Findings:
    """Return what was seen of each claim until it broke, or the rounds ended."""
    from apiece.audit import Findings, sequential

    seen = sequential(rounds, claims, **how)
    bounds = {name: (bound,) for name, bound in seen.bounds.items()}
    return Findings(audit=audit, watched=seen.watched, bounds_by_group=bounds)


@command.command("anytime", short_help="The engine under a run's plan, until a claim breaks.")
@click.argument("run", type=PATH)
@option("--max-samples", type=int, default=2000, help="Largest number of pairs for each group.")
@_seed
@_delta
@_confidence
def of_engine(
    run: Path, max_samples: int, seed: int, delta: float | None, confidence: float
) -> Findings:
    """Release steps of a run's plan with and without a canary, until a claim breaks."""
    from apiece.audit import engine_rounds, step_claims

    _job_of(run)  # the plan is what its statement is bound to
    plan = read_plan(run / "plan.json")
    findings = _watched(
        "steps of the engine, with a canary in each group and without",
        engine_rounds(plan, seed=seed),
        step_claims(plan),
        confidence=confidence,
        max_samples=max_samples,
        delta=needed_delta(delta, float(plan.budget_groups.delta.max())),
    )
    return replace(findings, strategy=plan.strategy, steps=plan.steps)


def _numbers(path: Path) -> list[float]:
    lines = read_text(path).split()
    try:
        return [float(line := each) for each in lines]
    except ValueError:
        at = lines.index(line) + 1
        raise DataError(f"{path}, entry {at} = {line!r}: give one number a line") from None


@command.command("canaries", short_help="One run, on canaries included by fair coins.")
@option(
    "--canaries", type=PATH, required=True, help="CSV or Parquet of one run's canaries, one a row."
)
@option("--coins", type=PATH, help="CSV or Parquet that says who was included; joined by --ids.")
@option("--ids", "id_column", default="id", help="Column of ids that joins --coins.")
@renamed("--id", "--ids")
@option("--score", default="score", help="Column of scores in --canaries.")
@option("--included", default="included", help="Column of coins in --canaries or --coins.")
@option("--group", help="Column of budget groups in --canaries or --coins.")
@option(
    "--person",
    help="Column of persons' ids, in place of --ids; a canary is a person with many rows.",
)
@table_options
@_delta
@_confidence
def of_canaries(delta: float | None, confidence: float, **flags: Any) -> Findings:
    """Bound ε from one run, on records or persons that were included by fair coins."""
    import numpy as np

    from apiece.audit import Findings, one_run, one_run_by_group, roc_by_group
    from apiece.audit.membership import WHOLE, groups_without_roc
    from apiece.audit.records import read_canaries

    dialect = dialect_from({name: flags.pop(name) for name in DIALECT})
    scores, truth, names = read_canaries(**flags, dialect=dialect)
    delta = needed_delta(delta)
    methods = ("dp", "gdp")
    unit = None if flags["person"] is None else "person"
    if names is None:
        bounds = tuple(
            one_run(scores, truth, delta=delta, confidence=confidence, method=method)
            for method in methods
        )
        whole = np.full(scores.size, WHOLE)
        rocs = {WHOLE: roc_by_group(scores, truth, whole)[WHOLE]}
        return Findings(audit="one run", unit=unit, bounds=bounds, rocs=rocs)
    # Half of the error is for all canaries together and half for the groups, so that all bounds of
    # a method hold together with the confidence asked.
    half = 1 - (1 - confidence) / 2
    bounds = tuple(
        one_run(scores, truth, delta=delta, confidence=half, method=method) for method in methods
    )
    by_method = [
        one_run_by_group(scores, truth, names, delta=delta, confidence=half, method=method)
        for method in methods
    ]
    return Findings(
        audit="one run",
        unit=unit,
        bounds=bounds,
        bounds_by_group={
            name: tuple(bounds[name] for bounds in by_method) for name in by_method[0]
        },
        rocs=roc_by_group(scores, truth, names),
        without_roc=groups_without_roc(truth, names),
    )


@command.command("shadows", short_help="Stored shadow models (LiRA).")
@option("--shadows", type=PATH, required=True, help="scores.npz in the --out folder of audit lira.")
@_variant
def of_shadows(shadows: Path, variant: str) -> Findings:
    """Attack each of many stored shadow models by all others (LiRA)."""
    from apiece.audit import ShadowScores
    from apiece.audit.findings import shadow_findings

    return shadow_findings(ShadowScores.load(shadows), variant=variant)
