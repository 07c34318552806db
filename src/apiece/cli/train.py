"""apiece train: a table of people with a budget each → a trained model and an honest report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.cli import Interrupted
from apiece.cli._command import Bar, Command, echo, number_or_name
from apiece.errors import InputError, OptionError
from apiece.jobs import Job, Run
from apiece.jobs.config import PARTS
from apiece.jobs.results import REPORT
from apiece.jobs.settings import Setting, settings_of

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.jobs import Prepared
    from apiece.training import PlannedSpending

EXAMPLE = """
\b
Examples:
  apiece train examples/adult.toml
  apiece train --data people.csv --label income --epsilon consent_epsilon --delta 1e-5 \\
               --strategy sample --batch-size 512 --steps 1000 --out runs/first
"""
COMPARED = {"dp-sgd": ["uniform", "scale", "sample"], "pate": ["uniform", "upsample", "weight"]}


def job_options(command: Any) -> Any:
    """Add a flag for every setting of a job that has one, in the order of the config."""
    every = [each for part in PARTS.values() for each in settings_of(part)]
    for name, how in reversed(every):
        if how.help is not None:
            flag = f"--{_flag(name, how)}"
            option = click.option(
                flag, name, type=how.kind, multiple=how.repeatable, help=_help(how)
            )
            command = option(command)
    return command


def _flag(name: str, how: Setting) -> str:
    return (how.flag or name).replace("_", "-")


def _help(how: Setting) -> str:
    default = how.value if how.default is None else how.default
    shown = f"{default:g}" if isinstance(default, int | float) else default
    return f"{how.help}  [default: {shown}]" if shown else str(how.help)


@click.command(
    cls=Command, short_help="Train on a table of people, each at their own budget.", epilog=EXAMPLE
)
@click.argument("config", required=False, type=click.Path(path_type=Path))
@job_options
@click.option(
    "--compare",
    is_flag=True,
    help="Train uniform, scale and sample side by side; with pate upsample and weight.",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Go on with an interrupted run, in its run folder; takes no other settings.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the metrics as one JSON document.")
def command(
    config: Path | None, as_json: bool, compare: bool, resume: Path | None, **flags: Any
) -> None:
    """Train on a table of people, each at their own privacy budget.

    Everything comes from CONFIG (a TOML file), from options, or both; an option wins. Writes a run
    folder: config.toml, plan.json, model.pt, metrics.json, log.jsonl and report.html.
    """
    from apiece.reporting import report
    from apiece.reporting.closing import closing_table

    if resume is None:
        prepared, out = fresh(config, compare, flags)
    else:
        prepared, out = interrupted(resume, flags | {"config": config, "compare": compare}), resume
    begun = time.monotonic()
    found = _run(prepared, out, quiet=as_json)
    report(found).save(out / REPORT)
    if as_json:
        echo(found.to_json())
    else:
        echo(closing_table(found))
        many = f"{found.models} model{'s' * (found.models > 1)}"
        echo(f"\n{many} in {time.monotonic() - begun:.0f} s.", err=True)
        echo(f"Open the report: {out / REPORT}")


def _run(prepared: Prepared, out: Path, *, quiet: bool) -> Run:
    """Run the job with a bar on the terminal, and say each doubt once it has begun."""
    from apiece.jobs import run

    job, doubts = prepared.job, _doubts(prepared)
    spending: dict[str, PlannedSpending] = {}
    with Bar(prepared.steps, done=prepared.unfinished.made(), quiet=quiet) as bar:

        def watch(strategy: str, repeat: int, step: int, steps: int) -> None:
            _tell(doubts)

            def text() -> str:
                planned = _planned(spending, prepared, strategy, step)
                of = f"{repeat + 1}/{job.compare.seeds}"
                return f"{strategy} {of} step {step}/{steps}, {planned}"

            bar.advance(text)

        try:
            found = run(prepared, out=out, watch=watch)
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(bar, out) + _still_charged(job)) from None
    _tell(doubts)
    return found


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


def fresh(config: Path | None, compare: bool, flags: Flags) -> tuple[Prepared, Path]:
    """Return the job of a config and options, checked, and the new run folder for it."""
    from apiece.jobs import prepare
    from apiece.jobs.prepared import free_folder

    job = job_from_flags(config, compare, flags)
    out = Path(job.run.out) if job.run.out else free_folder(Path("runs"), job.name)
    return prepare(job, out=out), out


def interrupted(out: Path, given: Flags) -> Prepared:
    """Return the run that was interrupted in `out`; of all settings only --ledger may be given."""
    from apiece.jobs import prepare_again

    others = [k for k, value in given.items() if k != "ledger" and value not in (None, (), False)]
    if others:
        flags = {k: _flag(k, how) for part in PARTS.values() for k, how in settings_of(part)}
        left_out = flags.get(others[0], others[0])
        raise OptionError(
            f"--resume {out}: goes on with the settings in that folder; leave out {left_out}"
        )
    return prepare_again(out, ledger=given["ledger"])


def _planned(
    spending: dict[str, PlannedSpending], prepared: Prepared, strategy: str, step: int
) -> str:
    """Return what a model has spent so far by its plan, whatever happened in training."""
    from apiece.training import PlannedSpending, describe

    if strategy not in spending:
        spending[strategy] = PlannedSpending(prepared.plans[strategy])
    if prepared.votes:  # its steps are lessons: votes are cast between those of the two
        step = prepared.plans[strategy].steps
    return "planned " + ", ".join(map(describe, spending[strategy].at(step)))


def job_from_flags(config: Path | None, compare: bool, flags: Flags) -> Job:
    """Return the job that a config and options describe; options win."""
    from apiece.jobs import job_from_dict, read_job

    changes = {name: value for name, value in flags.items() if value not in (None, ())}
    if "delta" in changes:
        changes["delta"] = number_or_name(changes["delta"])
    if "rows_per_person" in changes:
        changes["rows_per_person"] = number_or_name(changes["rows_per_person"])
    if "epsilon" in changes:
        changes["epsilon"] = _column_name(changes["epsilon"])
        changes["groups"] = ()
    if compare:
        changes |= _compared(config, changes)
    if config is not None:
        return read_job(config, changes)
    name = Path(changes.get("source", "run")).stem
    return job_from_dict({}, name=name, changes=changes)


def _compared(config: Path | None, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the strategies that --compare puts side by side, and how often each is trained."""
    from apiece.jobs import read_job

    method = changes.get("method")
    if method is None:
        method = "dp-sgd"
        if config is not None:
            method = read_job(config, changes | {"strategies": ()}).training.method
    beside = COMPARED.get(method, [])  # of an unknown one the job is refused
    own = changes.get("strategy")
    more = [] if own is None or own in beside else [own]
    return {"strategies": [*beside, *more], "seeds": changes.get("seeds", 3)}


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
    if job.run.analysis is None:
        return ""
    return f"; the ledger stays charged for it, and --analysis {job.run.analysis!r} charges no more"
