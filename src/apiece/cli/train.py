"""apiece train: a table of people with a budget each → a trained model and an honest report."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.cli import Interrupted
from apiece.cli._inputs import number_or_name, table_options
from apiece.cli._output import echo
from apiece.cli._progress import Bar
from apiece.errors import InputError, OptionError

if TYPE_CHECKING:
    from apiece.jobs import Job, Prepared
    from apiece.training import PlannedSpending

EXAMPLE = """
\b
Examples:
  apiece train examples/adult.toml
  apiece train --data people.csv --label income --epsilon consent_epsilon --delta 1e-5 \\
               --strategy sample --batch-size 512 --steps 1000 --out runs/first
"""
COMPARED = ["uniform", "scale", "sample"]


@click.command(epilog=EXAMPLE)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@click.option("--data", help="CSV or Parquet, or packaged: adult, german, credit_default.")
@click.option("--label", help="Column to predict.")
@click.option("--epsilon", help="Column with each record's ε.")
@click.option("--delta", help="One δ for all, or the name of a column.  [default: 1e-5]")
@click.option("--ids", help="Column with unique record ids.")
@click.option("--split", help="Column that says 'train' or 'test'.")
@click.option("--test-share", type=float, help="Without --split: share held out.  [default: 0.2]")
@click.option("--schema", help="Public schema (TOML); see: apiece schema --help.")
@table_options
@click.option("--no-limit-cap", type=float, help="The ε that 'no limit' and inf are read as.")
@click.option("--strategy", help="uniform, scale, sample or threshold.  [default: sample]")
@click.option("--batch-size", type=float, help="Expected batch size.  [default: 512]")
@click.option("--steps", type=int, help="Number of updates.  [default: 1000]")
@click.option("--clip-norm", type=float, help="Mean clip norm.  [default: 1]")
@click.option("--learning-rate", type=float, help="Of plain SGD.  [default: 1]")
@click.option("--momentum", type=float, help="Of SGD.  [default: 0]")
@click.option("--hidden", multiple=True, type=int, help="Width of a hidden layer; repeatable.")
@click.option("--compare", is_flag=True, help="Train uniform, scale and sample side by side.")
@click.option("--seeds", type=int, help="How often to train each strategy.  [with --compare: 3]")
@click.option("--seed", type=int, help="Repeatable randomness: for experiments, not for release.")
@click.option("--ledger", help="Charge this ledger before the first step; needs --ids.")
@click.option("--analysis", help="The run's name in the ledger; repeated, it charges once.")
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Go on with an interrupted run, in its run folder; takes no other settings.",
)
@click.option("--out", help="Run folder, new or empty.  [default: the first free under runs/]")
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as one JSON document.")
def command(
    config: Path | None, as_json: bool, compare: bool, resume: Path | None, **flags: Any
) -> None:
    """Train on a table of people, each at their own privacy budget.

    Everything comes from CONFIG (a TOML file), from options, or both; an option wins. Writes a run
    folder: config.toml, plan.json, model.pt, metrics.json, log.jsonl and report.html.
    """
    from apiece.jobs import run
    from apiece.reporting import closing_table, render

    if resume is None:
        prepared, out = fresh(config, compare, flags)
    else:
        prepared, out = interrupted(resume, flags | {"config": config, "compare": compare}), resume
    job = prepared.job
    doubts = _doubts(prepared)
    models, begun = len(prepared.plans) * job.seeds, time.monotonic()
    spending: dict[str, PlannedSpending] = {}
    with Bar(prepared.steps, done=prepared.unfinished.made(), quiet=as_json) as bar:

        def watch(strategy: str, repeat: int, step: int, steps: int) -> None:
            _tell(doubts)

            def text() -> str:
                planned = _planned(spending, prepared, strategy, step)
                return f"{strategy} {repeat + 1}/{job.seeds} step {step}/{steps}, {planned}"

            bar.advance(text)

        try:
            metrics = run(prepared, out=out, render=render, watch=watch)
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(bar, out) + _still_charged(job)) from None
    _tell(doubts)
    if as_json:
        echo(json.dumps(metrics, allow_nan=False))
    else:
        echo(closing_table(metrics))
        echo(f"\n{models} model{'s' * (models > 1)} in {time.monotonic() - begun:.0f} s.", err=True)
        echo(f"Open the report: {out / 'report.html'}")


def _doubts(prepared: Prepared) -> list[str]:
    notes = prepared.private_notes
    return [
        *(f"warning: {doubt}" for doubt in prepared.people.warnings),
        *(f"private, not in the run folder: {note}" for note in notes),
    ]


def _tell(doubts: list[str]) -> None:
    """Say each doubt once: when training begins, so that a refusal before it stays one line."""
    while doubts:
        echo(doubts.pop(0), err=True)


def fresh(config: Path | None, compare: bool, flags: dict[str, Any]) -> tuple[Prepared, Path]:
    """Return the job of a config and options, checked, and the new run folder for it."""
    from apiece.jobs import free_folder, prepare

    job = job_from_flags(config, compare, flags)
    out = Path(job.out) if job.out else free_folder(Path("runs"), job.name)
    return prepare(job, out=out), out


def interrupted(out: Path, given: dict[str, Any]) -> Prepared:
    """Return the run that was interrupted in `out`; of all settings only --ledger may be given."""
    from apiece.jobs import prepare_again

    others = [k for k, value in given.items() if k != "ledger" and value not in (None, (), False)]
    if others:
        raise OptionError(
            f"--resume {out}: goes on with the settings in that folder; leave out {others[0]}"
        )
    return prepare_again(out, ledger=given["ledger"])


def _planned(
    spending: dict[str, PlannedSpending], prepared: Prepared, strategy: str, step: int
) -> str:
    """Return what a model has spent so far by its plan, whatever happened in training."""
    from apiece.training import PlannedSpending, describe

    if strategy not in spending:
        spending[strategy] = PlannedSpending(prepared.plans[strategy])
    return "planned " + ", ".join(map(describe, spending[strategy].at(step)))


def job_from_flags(config: Path | None, compare: bool, flags: dict[str, Any]) -> Job:
    """Return the job that a config and options describe; options win."""
    from apiece.jobs import job_from_dict, read_job

    changes = {name: value for name, value in flags.items() if value not in (None, ())}
    if "data" in changes:
        changes["source"] = changes.pop("data")
    if "delta" in changes:
        changes["delta"] = number_or_name(changes["delta"])
    if "epsilon" in changes:
        changes["epsilon"] = _column_name(changes["epsilon"])
        changes["groups"] = ()
    if compare:
        changes["strategies"] = COMPARED
        changes.setdefault("seeds", 3)
        if changes.get("strategy", "sample") not in COMPARED:
            changes["strategies"] = [*COMPARED, changes["strategy"]]
    if config is not None:
        return read_job(config, changes)
    name = Path(changes.get("source", "run")).stem
    return job_from_dict({}, name=name, changes=changes)


def _column_name(text: str) -> str:
    if isinstance(number_or_name(text), float):
        raise InputError(
            f"--epsilon = {text}: is a number, but must name the column with each record's ε; "
            "for one ε for all, add a column that holds it"
        )
    return text


def _interrupted(bar: Bar, out: Path) -> str:
    left = sorted(p.name for p in out.iterdir()) if out.is_dir() else []
    again = f"apiece train --resume {out}" if "checkpoints" in left else "the same command"
    return (
        f"interrupted after {bar.done} of {bar.total} steps; no model was written and nothing is "
        f"half-written: {out} holds {', '.join(left) or 'nothing'}; to go on: {again}"
    )


def _still_charged(job: Job) -> str:
    if job.analysis is None:
        return ""
    return f"; the ledger stays charged for it, and --analysis {job.analysis!r} charges no more"
