"""apiece audit: how much a model really leaks, and about whom; a sub-command a kind of audit."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._text import plain
from apiece.cli import Interrupted
from apiece.cli._command import (
    DIALECT,
    PATH,
    Bar,
    Command,
    Decorator,
    Output,
    dialect_from,
    emit,
    needed_delta,
    option,
    read_plan,
    read_text,
    renamed,
    table_options,
)
from apiece.errors import DataError, InputError, StateError, UnsupportedError, unknown

if TYPE_CHECKING:
    from apiece.audit import Findings, LowerBound, ShadowJob, ShadowScores, Stopped
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
FEW_MODELS = 32  # from here on the AUC of scores without signal is within 0.005 of 1/2
# What an audit is of, by the option that names it; without a sub-command it is told by these.
NAMED_BY = {
    "--model": "model",
    "--scores-in": "worlds",
    "--scores-out": "worlds",
    "--canaries": "canaries",
    "--shadows": "shadows",
}


class AuditGroup(click.Group):
    """The sub-commands, of which the first option or argument tells which is meant."""

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


class AuditCommand(Command):
    """One kind of audit: an option of another is refused with the kinds that it goes with."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments, or raise for an option of another kind."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            parent = ctx.parent.command if ctx.parent is not None else None
            kinds = parent.commands if isinstance(parent, click.Group) else {}
            owners = [
                name
                for name, kind in kinds.items()
                if any(error.option_name in option.opts for option in kind.params)
            ]
            if not owners:
                raise
            raise InputError(
                f"{error.option_name}: goes with {' or '.join(owners)}, not with {self.name}; "
                "leave it out"
            ) from None


@click.group(cls=AuditGroup, epilog=EXAMPLE)
def command() -> None:
    """Audit a run folder, a torch model, scores of many models, canaries of one run, or shadows.

    The sub-command may be left out: what is given tells it. Bounds say that ε is at least so much,
    with the stated confidence; those of the groups hold together. A group's ROC says how well its
    members can be told. No figure of a single person is printed.
    """


_delta = option("--delta", type=float)
_confidence = option("--confidence", type=float, default=0.95, help="Confidence of the bounds.")
_seed = option("--seed", type=int, default=0, help="Seed of the audit.")
_variant = option("--variant", default="online", help="Variant of LiRA: online or offline.")


def audit(name: str, short_help: str) -> Decorator:
    """Return a decorator that makes a kind of audit of a function that returns its findings."""

    def made(function: Any) -> click.Command:
        def run(as_json: bool, **asked: Any) -> None:
            found = function(**asked)
            emit(as_json, found.to_dict(), text(found))

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        kind: click.Command = command.command(name, short_help=short_help, cls=AuditCommand)(
            option("--json")(run)
        )
        kind.params.append(kind.params.pop(0))  # --json comes last
        return kind

    return made


@audit("run", "The model in a run folder, by its losses.")
@click.argument("run", type=PATH)
@_seed
@_delta
@_confidence
def of_run(run: Path, delta: float | None, confidence: float, seed: int) -> Findings:
    """Audit the model in a run folder by its loss on those trained on and those held out.

    With a ledger: without those who have withdrawn since.
    """
    import numpy as np

    from apiece.jobs.people import read_people

    job = _job_of(run)
    own = job.budgets.delta
    delta = needed_delta(delta, None if isinstance(own, str) else own)
    if job.run.seed is None and job.data.split_column is None:
        raise InputError(
            f"{run}: secret coins decided who was trained on, and a release does not keep them, so "
            "that members cannot be told from others; train with --split COLUMN, or audit a run "
            "with --seed"
        )
    people = _present(job, _of_classes(read_people(job)))
    from apiece.audit.findings import ModelScores, audit_scores
    from apiece.audit.membership import roc
    from apiece.audit.stacked_training import model_confidences
    from apiece.jobs import load_model

    network = load_model(run / "model.pt").network

    def side(records: Examples, groups: Any = None) -> ModelScores:
        good = ~records.faulty
        found = model_confidences(network, records.features[good], records.labels[good])
        person = None if records.person is None else records.person[good]
        return ModelScores.of(found, groups=None if groups is None else groups[good], people=person)

    names = people.budgets.groups.name[people.group_of_rows].astype(str)
    members, others = side(people.train, names), side(people.test)
    generator = np.random.default_rng(seed)
    found = audit_scores(members, others, delta=delta, confidence=confidence, generator=generator)
    rocs = dict(found.rocs)
    assert members.groups is not None
    for name in np.unique(members.groups).tolist():
        own = members.scores[members.groups == name]
        truth = np.repeat([True, False], [own.size, others.scores.size])
        rocs[name] = roc(np.concatenate([own, others.scores]), truth)
    return replace(found, audit="run folder", rocs=rocs)


def _job_of(run: Path) -> Job:
    """Return the job of a run folder, of which every file is what its statement is bound to."""
    from apiece.jobs import Run, read_job

    Run.load(run)
    return read_job(run / "config.toml")


def _of_classes(people: People) -> People:
    """Return the people of a run; raise `UnsupportedError` where its model predicts a number."""
    if not people.classes:
        raise UnsupportedError(
            f"run: its model predicts the number {people.label!r}, and scores of membership here "
            "are those of classes; audit scores of your own with --canaries"
        )
    return people


def _present(job: Job, people: People) -> People:
    """Return the people of a run without those who have withdrawn since, by its ledger.

    Raises `AnalysisError` where the ledger did not pay for the run.
    """
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


@audit("lira", "Shadow models of a run's table (LiRA).")
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

    With a ledger: without those who have withdrawn since.
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

    from apiece.jobs.people import read_people

    job = _job_of(run)
    from apiece.audit.shadows import half_plan, table_job
    from apiece.jobs.running import gone_from, ledger_of

    training, coins = job.training_of(job.training.strategy), job.run.seed
    people = _present(job, _of_classes(read_people(job, seed if coins is None else coins)))
    rows, whole, person = ~people.train.faulty, people.budgets, people.train.person
    budgets = whole.taken(rows if person is None else np.isin(whole.ids, person[rows]))
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
        people.train.features[rows],
        people.train.labels[rows],
        budgets,
        replace(plan, unit=job.data.unit),
        models=models,
        seed=seed,
        people=None if person is None else person[rows],
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

    def done() -> int:
        return 0 if out is None else job.blocks - len(claim(job, out))

    def told(at: int, total: int) -> None:
        bar.advance(f"block {at} of {total}")
        stay()

    # what Ray says of a worker that died would be part of the answer
    with Bar(job.blocks, done=done()) as bar, redirect_stdout(sys.stderr):
        try:
            scores = train_shadows(job, folder=out, mapper=mapper, progress=told)
        except KeyboardInterrupt:
            raise Interrupted(
                "interrupted; nothing is kept: with --out FOLDER the next call would go on"
                if out is None
                else f"interrupted with {done()} of {job.blocks} blocks of models in {out}; the "
                "same command goes on from there"
            ) from None
    if out is not None:
        scores.save(out / "scores.npz")
    return scores


@audit("model", "A torch model, by its losses.")
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
    help="Records trained on: .npz of inputs, targets, maybe groups, people.",
)
@option("--others", type=PATH, help="Records not trained on, in the same form.")
@_seed
@_delta
@_confidence
def of_model(
    model: Path,
    members: Path | None,
    others: Path | None,
    *,
    trusted: bool,
    delta: float | None,
    confidence: float,
    seed: int,
) -> Findings:
    """Audit a torch model by its loss on those trained on and on others."""
    import numpy as np

    from apiece.audit.findings import ModelScores, audit_scores
    from apiece.audit.records import read_arrays

    if members is None or others is None:
        raise InputError("--members, --others: missing; give the records trained on, and others")
    given = [read_arrays(path) for path in (members, others)]
    for path, arrays in zip((members, others), given, strict=True):
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
    from apiece.audit.stacked_training import exported_model, model_confidences

    network, sides = exported_model(model, trusted=trusted), []
    for arrays in given:
        inputs = arrays["inputs"].astype(np.float32)
        found = model_confidences(network, inputs, arrays["targets"])
        sides.append(
            ModelScores.of(found, groups=arrays.get("groups"), people=arrays.get("people"))
        )
    generator = np.random.default_rng(seed)
    delta = needed_delta(delta)
    return audit_scores(*sides, delta=delta, confidence=confidence, generator=generator)


@audit("worlds", "Scores of models with and without one record.")
@option("--scores-in", type=PATH, help="Scores of models with the target, one a line.")
@option("--scores-out", type=PATH, help="Scores of models without it, one a line.")
@option("--plan", "plans", type=PATH, multiple=True, help="Plan of each world; they must agree.")
@option("--anytime", is_flag=True, help="Read pairs until the claim of --epsilon or --plan breaks.")
@option("--epsilon", type=float, help="ε that is claimed at δ; with --anytime.")
@option("--group", help="Group of --plan whose curve is claimed; with --anytime.")
@_delta
@_confidence
def of_two_worlds(
    scores_in: Path | None,
    scores_out: Path | None,
    plans: tuple[Path, ...],
    *,
    delta: float | None,
    confidence: float,
    anytime: bool,
    epsilon: float | None,
    group: str | None,
) -> Findings:
    """Bound ε from the scores of models trained with and without one record."""
    from apiece.audit import Claim, Findings, lower_bound, one_plan, sequential

    if scores_in is None or scores_out is None:
        missing = "in" if scores_in is None else "out"
        raise InputError(f"--scores-{missing}: missing; give both files of scores")
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
        return _stopped(
            "two worlds",
            sequential(
                [{whose: (ins, outs)}], {whose: claim}, confidence=confidence,
                max_samples=max(len(ins), len(outs)), delta=delta,
            ),
        )  # fmt: skip
    if epsilon is not None or group is not None:
        raise InputError(
            f"--{'group' if epsilon is None else 'epsilon'}: goes with --anytime; add it"
        )
    bounds = tuple(
        lower_bound(ins, outs, delta=delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    return Findings(audit="two worlds", bounds=bounds)


def _stopped(audit: str, seen: Stopped) -> Findings:
    from apiece.audit import Findings

    bounds = {name: (bound,) for name, bound in seen.bounds.items()}
    return Findings(audit=audit, watched=seen.watched, bounds_by_group=bounds)


@audit("anytime", "The engine under a run's plan, until a claim breaks.")
@click.argument("run", type=PATH)
@option("--max-samples", type=int, default=2000, help="Pairs a group, at most.")
@_seed
@_delta
@_confidence
def of_engine(
    run: Path, max_samples: int, seed: int, delta: float | None, confidence: float
) -> Findings:
    """Release steps of a run's plan with and without a canary, until a claim breaks."""
    from apiece.audit import engine_rounds, sequential, step_claims

    _job_of(run)  # the plan is what its statement is bound to
    plan = read_plan(run / "plan.json")
    needed = needed_delta(delta, float(plan.budget_groups.delta.max()))
    seen = sequential(
        engine_rounds(plan, seed=seed), step_claims(plan), confidence=confidence,
        max_samples=max_samples, delta=needed,
    )  # fmt: skip
    found = _stopped("steps of the engine, with a canary in each group and without", seen)
    return replace(found, strategy=plan.strategy, steps=plan.steps)


def _numbers(path: Path) -> list[float]:
    lines = read_text(path).split()
    try:
        return [float(line := each) for each in lines]
    except ValueError:
        at = lines.index(line) + 1
        raise DataError(f"{path}, entry {at} = {line!r}: give one number a line") from None


@audit("canaries", "One run, on those included by fair coins.")
@option(
    "--canaries", type=PATH, required=True, help="CSV or Parquet, one canary a row, of one run."
)
@option("--coins", type=PATH, help="CSV or Parquet of who was included; joined by --ids.")
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
    from apiece.audit.records import read_canaries

    dialect = dialect_from({name: flags.pop(name) for name in DIALECT})
    scores, truth, names = read_canaries(**flags, dialect=dialect)
    delta, methods = needed_delta(delta), ("dp", "gdp")
    by_group, groups = {}, np.full(scores.size, "all") if names is None else names
    if names is not None:
        each = [
            one_run_by_group(scores, truth, names, delta=delta, confidence=confidence, method=m)
            for m in methods
        ]
        by_group = {name: tuple(bounds[name] for bounds in each) for name in each[0]}
    return Findings(
        audit="one run",
        unit=None if flags["person"] is None else "person",
        bounds=tuple(
            one_run(scores, truth, delta=delta, confidence=confidence, method=m) for m in methods
        ),
        bounds_by_group=by_group,
        rocs=roc_by_group(scores, truth, groups),
    )


@audit("shadows", "Stored shadow models (LiRA).")
@option("--shadows", type=PATH, required=True, help="Scores, as --out/scores.npz has them.")
@_variant
def of_shadows(shadows: Path, variant: str) -> Findings:
    """Attack each of many stored shadow models by all others (LiRA)."""
    from apiece.audit import ShadowScores
    from apiece.audit.findings import shadow_findings

    return shadow_findings(ShadowScores.load(shadows), variant=variant)


def text(found: Findings) -> str:
    """Return the findings for people to read."""
    by_group = found.bounds_by_group or {}
    by = f", by {found.unit}" if found.unit else ""
    lines = [found.audit + (f": {found.attack}" if found.attack else "") + by]
    lines += [
        f"  {each.group}: {each.claim} {'is broken' if each.rejected else 'is not refuted'}: "
        f"evidence {each.evidence:.4g} after {each.samples:,} of at most {each.most:,} pairs"
        for each in found.watched
    ]
    lines += map(_bound, found.bounds)
    lines += [_bound(bound, f"{name}: ") for name, each in by_group.items() for bound in each]
    lines += [
        f"  {name}: AUC {curve.auc:.4f}, balanced accuracy {curve.balanced_accuracy:.4f}, "
        f"TPR {curve.tpr_at(0.001):.4f} at FPR 0.001"
        for name, curve in found.rocs.items()
    ]
    lines += [
        f"  {name}: privacy score {score.mean:.4f} on average"
        for name, score in found.privacy_score.items()
    ]
    lines += [
        f"  {pair.groups[0]} against {pair.groups[1]}: t = {pair.test.statistic:.3f}, "
        f"p = {pair.test.p_value:.2g}"
        for pair in found.differences
        if pair.test is not None
    ]
    if found.models is not None and found.models < FEW_MODELS:
        lines.append(
            f"  Only {found.models} models: LiRA puts even what does not leak below AUC 1/2; "
            "train 64 or more."
        )
    return "\n".join(map(plain, [*lines, "", *verdict(found)]))


def verdict(found: Findings) -> list[str]:
    """Return in plain words what the findings show, and what they do not."""
    if found.watched:
        broken = [each for each in found.watched if each.rejected]
        if broken:
            return [
                f"Verdict: what is claimed of {', '.join(e.group for e in broken)} is broken, with "
                f"{broken[0].confidence:.4g} confidence."
            ]
        return ["Verdict: no claim is refuted. That is no proof of it: other canaries may do so."]
    by_group = found.bounds_by_group or {}
    every = [("", bound) for bound in found.bounds]
    every += [(f" of {name}", bound) for name, each in by_group.items() for bound in each]
    if every:
        whose, most = max(every, key=lambda pair: pair[1].epsilon)
        if most.epsilon > 0:
            return [
                f"Verdict: a leak is shown. The ε{whose} is at least {most.epsilon:.4g} with "
                f"{most.confidence:.4g} confidence;",
                "a promise below that is broken, one above it is not contradicted.",
            ]
        return [
            "Verdict: no leak is shown. That is no proof that there is none: a stronger attack",
            "may find one. What is promised rests on the plan's accounting, not on an audit.",
        ]
    if not found.rocs:
        return ["Verdict: nothing was measured."]
    name, roc = max(found.rocs.items(), key=lambda pair: pair[1].balanced_accuracy)
    right = math.ceil(1000 * roc.balanced_accuracy)
    return [
        f"Verdict: this attack tells those of {name} best. Of 1,000, 500 of them members, it is",
        f"right about {right}; blind guessing, about 500. A stronger attack may do better.",
    ]


def _bound(bound: LowerBound, group: str = "") -> str:
    return (
        f"  {group}epsilon >= {bound.epsilon:.4g} at delta = {bound.delta:g} with "
        f"{bound.confidence:.4g} confidence ({bound.method})"
    )
