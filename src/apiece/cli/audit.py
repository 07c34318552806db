"""apiece audit: how much a model really leaks, and about whom; a sub-command a kind of audit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
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
    add_table_options,
    emit,
    make_dialect,
    option,
    read_plan,
    read_text,
    refuse_given,
    require_delta,
)
from apiece.errors import DataError, InputError, StateError, UnsupportedError, unknown

if TYPE_CHECKING:
    from apiece.audit import Claim, Findings, ShadowJob, ShadowScores
    from apiece.audit.findings import ModelScores
    from apiece.audit.shadows import Mapper
    from apiece.jobs.config import Job
    from apiece.jobs.people import Examples, People
    from apiece.plan import Plan

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
# The sub-command that an option is of; where none is named, these options tell which is meant.
KIND_BY_OPTION = {
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

    def __init__(self, name: str, callback: Callable[..., Findings], **settings: Any) -> None:
        def run(as_json: bool, **parameters: Any) -> None:
            from apiece.reporting.closing import findings_text

            findings = callback(**parameters)
            emit(as_json, findings.to_dict(), findings_text(findings))

        super().__init__(name, callback=run, **settings)
        self.params.append(click.Option(["--json", "as_json"], **SHARED["--json"]))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; say with which kinds an option of another kind goes."""
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
        asks_help = args in (["--help"], ["-h"])
        if not asks_help and (not args or args[0] not in self.commands):
            # `apiece audit runs/first` is short for `apiece audit run runs/first`.
            args = [_find_kind(args), *args]
        return super().parse_args(ctx, args)


def _find_kind(args: list[str]) -> str:
    """Return the sub-command that arguments without one are for."""
    flags = [word.partition("=")[0] for word in args if word.startswith("--")]
    telling = [flag for flag in flags if flag in KIND_BY_OPTION]
    kinds = {KIND_BY_OPTION[flag] for flag in telling}
    if not kinds and args and not args[0].startswith("-"):
        # The arguments begin with a run folder.
        if "--models" in flags:
            return "lira"
        return "anytime" if "--max-samples" in flags else "run"
    if len(kinds) != 1:
        listed = " and ".join(telling) or "nothing"
        raise InputError(f"{listed} given; name one of RUN, {', '.join(KIND_BY_OPTION)}")
    return kinds.pop()


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
def audit_run(run: Path, delta: float | None, confidence: float, seed: int) -> Findings:
    """Audit the model in a run folder by its loss on people trained on and people held out.

    People who have withdrawn from the run's ledger since are left out.
    """
    import numpy as np

    job = _read_job(run)
    # A run whose δ is a column has none of its own.
    stated = None if isinstance(job.budgets.delta, str) else job.budgets.delta
    delta = require_delta(delta, stated)
    # Members are told from others by a column, or by coins that a seed repeats.
    if job.run.seed is None and job.data.split_column is None:
        raise InputError(
            f"{run}: secret coins decided who was trained on, and a release does not keep them, so "
            "that members cannot be told from others; train with --split COLUMN, or audit a run "
            "with --seed"
        )
    people = _read_people(job)
    from apiece.audit.findings import ModelScores, audit_scores
    from apiece.audit.stacked_training import model_confidences
    from apiece.jobs import load_model

    network = load_model(run / "model.pt").network

    def score(records: Examples, groups: Any = None) -> ModelScores:
        usable = ~records.faulty
        examples = records.select(usable)
        confidences = model_confidences(network, examples.features, examples.labels)
        if groups is not None:
            groups = groups[usable]
        return ModelScores.of(confidences, groups=groups, people=examples.person)

    names = people.budgets.groups.name[people.group_of_rows].astype(str)
    findings = audit_scores(
        score(people.train, names),
        score(people.test),
        delta=delta,
        confidence=confidence,
        generator=np.random.default_rng(seed),
    )
    return replace(findings, audit="run folder")


def _read_job(run: Path) -> Job:
    """Return the job of a run folder, of which every file is what its statement is bound to."""
    from apiece.jobs import Run, read_job

    Run.load(run)
    return read_job(run / "config.toml")


def _read_people(job: Job, coins: int | None = None) -> People:
    """Return the people of a run without those who have withdrawn since, by its ledger.

    Args:
        job: The run's.
        coins: The seed of the coins that split members from others; None for the run's own.

    Raises:
        UnsupportedError: Where the run's model predicts a number.
        AnalysisError: Where the ledger did not pay for the run.
    """
    from apiece.jobs.people import read_people

    people = read_people(job, coins)
    if not people.declaration.classes:
        raise UnsupportedError(
            f"run: its model predicts the number {people.declaration.label!r}, and scores of "
            "membership here are those of classes; audit scores of your own with --canaries"
        )
    from apiece.jobs.running import find_withdrawn, open_ledger

    ledger = open_ledger(job.run)
    if ledger is None:
        return people
    # Raises where the ledger does not know the run: it is another one, without its withdrawals.
    ledger.result(str(job.run.analysis))

    def leave_out(records: Examples) -> Examples:
        if records.ids is None:
            return records
        return records.select(~find_withdrawn(ledger, records.ids))

    return replace(
        people,
        train=leave_out(people.train),
        test=leave_out(people.test),
        budgets=people.budgets.taken(~find_withdrawn(ledger, people.budgets.ids)),
    )


@command.command("lira", short_help="Shadow models of a run's table (LiRA).")
@click.argument("run", type=PATH)
@option("--models", type=int, default=64, help="Number of models to train.")
@option("--processes", type=int, default=1, help="Number of processes that train them.")
@option("--ray", "--cluster", "ray", is_flag=True, help="Train them on a Ray cluster.")
@option("--address", help="Address of the Ray cluster.  [default: one that is started here]")
@_seed
@option("--out", type=Output(None), help="Folder of shadow models; resumed if it has some.")
@_variant
def audit_by_shadows(
    run: Path,
    models: int,
    processes: int,
    address: str | None,
    seed: int,
    out: Path | None,
    variant: str,
    *,
    ray: bool,
) -> Findings:
    """Train shadow models on a run's table, and attack each by all others (LiRA).

    People who have withdrawn from the run's ledger since are left out.
    """
    from apiece import _check
    from apiece.audit.findings import LEAST_MODELS, shadow_findings
    from apiece.audit.membership import VARIANTS

    models = _check.count("models", models, least=LEAST_MODELS)
    processes = _check.count("processes", processes)
    if ray and processes > 1:
        raise InputError("--processes: with --cluster Ray decides; leave it out")
    if address is not None and not ray:
        raise InputError("--address: is of a Ray cluster; add --cluster to train there")
    if variant not in VARIANTS:
        raise unknown("variant", variant, VARIANTS)
    job, refuse_withdrawn = _make_shadow_job(run, models, seed)
    mapper = _make_mapper(processes, address, ray=ray)
    scores = _train_shadows(job, out, mapper, refuse_withdrawn)
    return replace(
        shadow_findings(scores, variant=variant),
        audit="shadow models of a run's table",
        unit=None if job.pool.people is None else "person",
        strategy=job.plan.strategy,
        steps=job.plan.steps,
    )


def _make_mapper(processes: int, address: str | None, *, ray: bool) -> Mapper:
    """Return the way in which blocks of shadow models are trained: here, or on a Ray cluster."""
    if ray:
        from apiece.adapters import cluster

        return cluster(address)
    from apiece.audit.shadows import processes as map_in_processes
    from apiece.audit.shadows import serially

    return serially if processes == 1 else map_in_processes(processes)


def _make_shadow_job(run: Path, models: int, seed: int) -> tuple[ShadowJob, Callable[[], None]]:
    """Return the shadow models of a run's table, and a check that nobody in them has withdrawn.

    Mistakes are found before training.
    """
    import numpy as np

    job = _read_job(run)
    # Shadow models draw their own members, so that coins of the audit's seed may stand for those
    # that a release has forgotten.
    people = _read_people(job, seed if job.run.seed is None else None)
    from apiece.audit.shadows import half_plan, table_job
    from apiece.jobs.prepared import choose_batch_size
    from apiece.jobs.running import find_withdrawn, open_ledger

    job = choose_batch_size(job, people.budgets)
    training = job.training_of(job.training.strategy)
    assert training.batch_size is not None  # set by `choose_batch_size`
    # Persons of whom no row is usable are left out of the budgets too.
    usable = ~people.train.faulty
    train = people.train.select(usable)
    if train.person is not None:
        usable = np.isin(people.budgets.ids, train.person)
    budgets = people.budgets.taken(usable)
    plan = half_plan(
        budgets,
        training.strategy,
        steps=training.steps,
        expected_batch_size=training.batch_size / 2,
        clip_norm=training.clip_norm,
    )
    ledger = open_ledger(job.run)

    def refuse_withdrawn() -> None:
        if ledger is not None and find_withdrawn(ledger, budgets.ids).any():
            raise StateError(
                f"{run}: somebody in these shadow models has withdrawn; delete them, and repeat "
                "the command with another --out"
            )

    rows_per_person = training.rows_per_person
    shadow_job = table_job(
        train.features,
        train.labels,
        budgets,
        replace(plan, unit=job.data.unit),
        models=models,
        seed=seed,
        people=train.person,
        rows_per_person=rows_per_person if isinstance(rows_per_person, int) else None,
    )
    return shadow_job, refuse_withdrawn


def _train_shadows(
    job: ShadowJob, out: Path | None, mapper: Mapper, refuse_withdrawn: Callable[[], None]
) -> ShadowScores:
    """Return the scores of all models of a job; blocks that an earlier call left in `out` stay.

    Args:
        job: The shadow models.
        out: The folder of their blocks and scores; None to keep none.
        mapper: Trains the blocks.
        refuse_withdrawn: Called after each block of models.
    """
    from apiece.audit import train_shadows
    from apiece.audit.shadows import claim

    def advance(block: int, total: int) -> None:
        bar.advance(f"block {block} of {total}")
        refuse_withdrawn()

    # What an earlier call has left there is not trained again, and the bar begins behind it.
    finished = 0 if out is None else job.blocks - len(claim(job, out))
    # Ray's message on a worker that died would be part of the answer on stdout.
    with Bar(job.blocks, done=finished) as bar, redirect_stdout(sys.stderr):
        try:
            scores = train_shadows(job, folder=out, mapper=mapper, progress=advance)
        except KeyboardInterrupt:
            if out is None:
                message = (
                    "interrupted; nothing is kept: with --out FOLDER the next call would go on"
                )
            else:
                message = (
                    f"interrupted with {bar.done} of {job.blocks} blocks of models in {out}; the "
                    "same command goes on from there"
                )
            raise Interrupted(message) from None
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
def audit_model(
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

    member_arrays = read_arrays(members)
    other_arrays = read_arrays(others)
    # The files are checked before the model is loaded, which takes long and may run code.
    for path, arrays in ((members, member_arrays), (others, other_arrays)):
        if not {"inputs", "targets"} <= set(arrays):
            raise DataError(f"{path}: has {sorted(arrays)}; give arrays inputs and targets")
    from apiece.audit.stacked_training import exported_model, model_confidences

    network = exported_model(model, trusted=trusted)

    def score(arrays: Mapping[str, Any]) -> ModelScores:
        inputs = arrays["inputs"].astype(np.float32)
        confidences = model_confidences(network, inputs, arrays["targets"])
        return ModelScores.of(confidences, groups=arrays.get("groups"), people=arrays.get("people"))

    return audit_scores(
        score(member_arrays),
        score(other_arrays),
        delta=require_delta(delta),
        confidence=confidence,
        generator=np.random.default_rng(seed),
    )


@command.command("worlds", short_help="Scores of models with and without one record.")
@option(
    "--scores-in", type=PATH, required=True, help="Scores of models with the target, one a line."
)
@option("--scores-out", type=PATH, required=True, help="Scores of models without it, one a line.")
@option("--plan", "paths", type=PATH, multiple=True, help="Plan of each world; they must agree.")
@option("--anytime", is_flag=True, help="Read pairs until the claim of --epsilon or --plan breaks.")
@option("--epsilon", type=float, help="ε that is claimed at δ; with --anytime.")
@option("--group", help="Group of --plan whose curve is claimed; with --anytime.")
@_delta
@_confidence
def audit_worlds(
    scores_in: Path,
    scores_out: Path,
    paths: tuple[Path, ...],
    *,
    delta: float | None,
    confidence: float,
    anytime: bool,
    epsilon: float | None,
    group: str | None,
) -> Findings:
    """Bound ε from the scores of models trained with and without one record."""
    from apiece.audit import Findings, lower_bound
    from apiece.audit.splits import one_plan

    plans = [read_plan(path) for path in paths]
    if plans:
        one_plan(*plans)
    # Plans state δ where it is the same for every group.
    deltas = {float(delta) for plan in plans for delta in plan.budget_groups.delta}
    inside = _read_numbers(scores_in)
    outside = _read_numbers(scores_out)
    delta = require_delta(delta, deltas.pop() if len(deltas) == 1 else None)
    if anytime:
        name, claim = _make_claim(plans, epsilon, delta, group)
        return _watch_claims(
            "two worlds",
            [{name: (inside, outside)}],
            {name: claim},
            max_samples=max(len(inside), len(outside)),
            confidence=confidence,
            delta=delta,
        )
    refuse_given(("epsilon", "group"), "goes with --anytime; add it")
    bounds = tuple(
        lower_bound(inside, outside, delta=delta, confidence=confidence, method=method)
        for method in ("clopper-pearson", "gdp")
    )
    return Findings(audit="two worlds", bounds=bounds)


def _make_claim(
    plans: list[Plan], epsilon: float | None, delta: float, group: str | None
) -> tuple[str, Claim]:
    """Return the claim that is audited and whose it is: of ε, or of a group of the first plan."""
    from apiece.audit import Claim

    if epsilon is not None:
        return "all", Claim.budget(epsilon, delta)
    if not plans:
        raise InputError("--anytime: no claim; give --epsilon, or --plan")
    names = plans[0].budget_groups.name
    if group is None and len(names) > 1:
        raise InputError("--group: missing; say whose claim in --plan is audited")
    name = group or str(names[0])
    return name, Claim.curve(plans[0].curve(name), "the plan's trade-off curve")


def _watch_claims(
    audit: str,
    rounds: Any,
    claims: dict[str, Claim],
    *,
    max_samples: int,
    confidence: float,
    delta: float,
) -> Findings:
    """Return the findings on each claim until it broke, or the rounds ended."""
    from apiece.audit import Findings, sequential

    result = sequential(rounds, claims, max_samples=max_samples, confidence=confidence, delta=delta)
    bounds = {name: (bound,) for name, bound in result.bounds.items()}
    return Findings(audit=audit, watched=result.watched, bounds_by_group=bounds)


@command.command("anytime", short_help="The engine under a run's plan, until a claim breaks.")
@click.argument("run", type=PATH)
@option("--max-samples", type=int, default=2000, help="Largest number of pairs for each group.")
@_seed
@_delta
@_confidence
def audit_engine(
    run: Path, max_samples: int, seed: int, delta: float | None, confidence: float
) -> Findings:
    """Release steps of a run's plan with and without a canary, until a claim breaks."""
    from apiece.audit.anytime import engine_rounds, step_claims

    # Raises where the plan is not the one that the run's statement is bound to.
    _read_job(run)
    plan = read_plan(run / "plan.json")
    findings = _watch_claims(
        "steps of the engine, with a canary in each group and without",
        engine_rounds(plan, seed=seed),
        step_claims(plan),
        confidence=confidence,
        max_samples=max_samples,
        delta=require_delta(delta, float(plan.budget_groups.delta.max())),
    )
    return replace(findings, strategy=plan.strategy, steps=plan.steps)


def _read_numbers(path: Path) -> list[float]:
    """Return the numbers in a file, one a line."""
    numbers = []
    for entry, word in enumerate(read_text(path).split(), start=1):
        try:
            numbers.append(float(word))
        except ValueError:
            raise DataError(f"{path}, entry {entry} = {word!r}: give one number a line") from None
    return numbers


@command.command("canaries", short_help="One run, on canaries included by fair coins.")
@option(
    "--canaries", type=PATH, required=True, help="CSV or Parquet of one run's canaries, one a row."
)
@option("--coins", type=PATH, help="CSV or Parquet that says who was included; joined by --ids.")
@option("--ids", "id_column", default="id", help="Column of ids that joins --coins.")
@option("--score", default="score", help="Column of scores in --canaries.")
@option("--included", default="included", help="Column of coins in --canaries or --coins.")
@option("--group", help="Column of budget groups in --canaries or --coins.")
@option(
    "--person",
    help="Column of persons' ids, in place of --ids; a canary is a person with many rows.",
)
@add_table_options
@_delta
@_confidence
def audit_canaries(delta: float | None, confidence: float, **flags: Any) -> Findings:
    """Bound ε from one run, on records or persons that were included by fair coins."""
    import numpy as np

    from apiece.audit import Findings, one_run, one_run_by_group, roc_by_group
    from apiece.audit.membership import WHOLE, groups_without_roc
    from apiece.audit.records import read_canaries

    dialect = make_dialect({name: flags.pop(name) for name in DIALECT})
    # The other options have the names of its parameters.
    scores, truth, names = read_canaries(**flags, dialect=dialect)
    delta = require_delta(delta)
    if names is not None:
        # Half of the error is for all canaries together and half for the groups, so that all bounds
        # of a method hold together with the confidence asked.
        confidence = 1 - (1 - confidence) / 2
    methods = ("dp", "gdp")
    findings = Findings(
        audit="one run",
        unit=None if flags["person"] is None else "person",
        bounds=tuple(
            one_run(scores, truth, delta=delta, confidence=confidence, method=method)
            for method in methods
        ),
    )
    if names is None:
        everyone = np.full(scores.size, WHOLE)
        # Of one group, whatever its name, the ROC of all is the answer.
        rocs = roc_by_group(scores, truth, everyone)
        return replace(findings, rocs={WHOLE: rocs[WHOLE]})
    bounds_by_method = [
        one_run_by_group(scores, truth, names, delta=delta, confidence=confidence, method=method)
        for method in methods
    ]
    bounds_by_group = {}
    for name in bounds_by_method[0]:
        bounds_by_group[name] = tuple(bounds[name] for bounds in bounds_by_method)
    return replace(
        findings,
        bounds_by_group=bounds_by_group,
        rocs=roc_by_group(scores, truth, names),
        without_roc=groups_without_roc(truth, names),
    )


@command.command("shadows", short_help="Stored shadow models (LiRA).")
@option("--shadows", type=PATH, required=True, help="scores.npz in the --out folder of audit lira.")
@_variant
def audit_shadows(shadows: Path, variant: str) -> Findings:
    """Attack each of many stored shadow models by all others (LiRA)."""
    from apiece.audit import ShadowScores
    from apiece.audit.findings import shadow_findings

    return shadow_findings(ShadowScores.load(shadows), variant=variant)
