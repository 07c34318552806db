"""apiece train: a table of people with a budget each → a trained model and an honest report."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from apiece._json import read_toml
from apiece.cli import Interrupted
from apiece.cli._command import (
    NUMBER_OR_NAME,
    PATH,
    Bar,
    Command,
    echo,
    make_flag,
    option,
    parse_number_or_name,
    require_delta,
)
from apiece.errors import InputError, OptionError, unknown

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.jobs import Job, Prepared, Run

EXAMPLE = """
\b
Examples:
  apiece train examples/adult.toml
  apiece train --data people.csv --label income --epsilon consent_epsilon --delta 1e-5 \\
               --strategy sample --batch-size 512 --steps 1000 --out runs/first
"""
COMPARED = {"dp-sgd": ["uniform", "scale", "sample"], "pate": ["uniform", "upsample", "weight"]}


class TrainCommand(Command):
    """A command with an option for every setting of a job."""

    _params: list[click.Parameter]
    _whole: bool

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters; the settings are loaded when these are first asked for."""
        if not self._whole:
            self._whole = True
            self._params[1:1] = setting_options()  # after CONFIG
        return self._params

    @params.setter
    def params(self, own: list[click.Parameter]) -> None:
        self._params, self._whole = own, False


def setting_options() -> list[click.Parameter]:
    """Return an option for every setting of a job that has one, in the order of the config."""
    from apiece.budgets.levels import Levels
    from apiece.jobs.config import SETTINGS

    options: list[click.Parameter] = []
    for name, how in SETTINGS.items():
        if how.help is None:
            continue
        default = how.value if how.default is None else how.default
        shown = f"{default:g}" if isinstance(default, int | float) else default
        text = f"{how.help}  [default: {shown}]" if shown else how.help
        kind: object = {object: NUMBER_OR_NAME, Levels: str}.get(how.kind, how.kind)
        names = [make_flag(how.flag or name), name]
        options.append(click.Option(names, type=kind, multiple=how.repeatable, help=text))
    return options


@click.command(cls=TrainCommand, epilog=EXAMPLE)
@click.argument("config", required=False, type=PATH)
@option(
    "--compare",
    is_flag=True,
    help="Train uniform, scale and sample; with --method pate uniform, upsample and weight.",
)
@option(
    "--resume",
    type=PATH,
    metavar="FOLDER",
    help="Go on with the interrupted run in this folder; takes no other settings.",
)
@option(
    "--tune",
    type=PATH,
    metavar="FILE",
    help="Search the settings in this file (TOML): the best of a random number of runs.",
)
@option("--json", help="Print the metrics as one JSON document.")
def command(
    config: Path | None,
    as_json: bool,
    compare: bool,
    resume: Path | None,
    tune: Path | None,
    **flags: object,
) -> None:
    """Train on a table of people, each at their own privacy budget.

    Everything comes from CONFIG (a TOML file), from options, or both; an option wins. Writes a run
    folder: config.toml, plan.json, model.pt, metrics.json, log.jsonl and report.html.
    """
    from apiece.assignment.unspent import silence_shortfalls
    from apiece.jobs.prepared import free_folder, prepare
    from apiece.jobs.results import REPORT

    if resume is None:
        job = job_from_flags(config, compare, flags, tune)
        out = Path(job.run.out) if job.run.out else free_folder(Path("runs"), job.name)
        with silence_shortfalls():  # told with the other doubts, once training has begun
            prepared = prepare(job, out=out)
    else:
        out = resume
        given = flags | {"config": config, "compare": compare, "tune": tune}
        with silence_shortfalls():
            prepared = interrupted(out, given)
    from apiece.reporting import report
    from apiece.reporting.closing import closing_table

    begun = time.monotonic()
    results = _run(prepared, out)
    report(results).save(out / REPORT)
    if as_json:
        echo(results.to_json())
    else:
        echo(closing_table(results))
        many = f"{results.models} model{'s' * (results.models > 1)}"
        echo(f"\n{many} in {time.monotonic() - begun:.0f} s.", err=True)
        echo(f"Open the report: {out / REPORT}")


def _run(prepared: Prepared, out: Path) -> Run:
    """Run the job with a bar on the terminal, and say each doubt once training has begun."""
    from apiece.assignment.unspent import describe_shortfall
    from apiece.jobs import run
    from apiece.training import PlannedSpending
    from apiece.training.callbacks import describe_spending

    job, spending = prepared.job, cache(lambda name: PlannedSpending(prepared.plans[name]))
    short = [
        text for plan in prepared.plans.values() if (text := describe_shortfall(plan)) is not None
    ]
    doubts = [f"warning: {doubt}" for doubt in (*prepared.people.warnings, *short)]
    doubts += [f"private, not in the run folder: {note}" for note in prepared.private_notes]

    def tell() -> None:  # not before, so that a refusal stays one line
        while doubts:
            echo(doubts.pop(0), err=True)

    def planned(strategy: str, step: int) -> str:  # whatever happened in training
        # With PATE steps are lessons: votes are cast between those of teachers and student.
        at = prepared.plans[strategy].steps if prepared.votes else step
        return "planned " + ", ".join(map(describe_spending, spending(strategy).at(at)))

    with Bar(prepared.steps, done=prepared.unfinished.made()) as bar:

        def watch(strategy: str, repeat: int, step: int, steps: int) -> None:
            tell()
            at = f"{strategy} {repeat + 1}/{job.compare.seeds} step {step}/{steps}"
            if prepared.candidates is None:
                bar.advance(lambda: f"{at}, {planned(strategy, step)}")
            else:
                bar.advance(f"search, step {step}/{steps} of a run")

        try:
            results = run(prepared, out=out, watch=watch)
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(bar, out, job)) from None
    tell()
    return results


def _interrupted(bar: Bar, out: Path, job: Job) -> str:
    left = sorted(p.name for p in out.iterdir()) if out.is_dir() else []
    again = f"apiece train --resume {out}" if "checkpoints" in left else "the same command"
    charged = (
        ""
        if job.run.analysis is None
        else f"; the ledger stays charged for it, and --analysis {job.run.analysis!r} charges no "
        "more"
    )
    done = "" if bar.total is None else f" after {bar.done} of {bar.total} steps"
    return (
        f"interrupted{done}; no model was written and nothing is "
        f"half-written: {out} holds {', '.join(left) or 'nothing'}; to go on: {again}{charged}"
    )


def _search(tune: Path, changes: Flags) -> Flags:
    """Return the settings of a search in a file, which names none that an option fixes."""
    from apiece.jobs.config import SearchSettings
    from apiece.jobs.settings import settings_of

    search, known = read_toml(tune, "search"), [name for name, _ in settings_of(SearchSettings)]
    for name in search:
        if name not in known:
            raise unknown(f"key in {tune}", name, known)
    SearchSettings(**{"space": {}, **search})
    if fixed := [name for name in search["space"] if name in changes]:
        raise OptionError(
            f"{make_flag(fixed[0])}: is searched in {tune}; leave it out, or take it out of there"
        )
    return search


def interrupted(out: Path, given: Flags) -> Prepared:
    """Return the run that was interrupted in `out`; of all settings only --ledger may be given."""
    from apiece.jobs import prepare_again
    from apiece.jobs.config import SETTINGS

    others = [k for k, value in given.items() if k != "ledger" and value not in (None, (), False)]
    if others:
        flags = {name: how.flag or name for name, how in SETTINGS.items()}
        left_out = flags.get(others[0], others[0]).replace("_", "-")
        raise OptionError(
            f"--resume {out}: goes on with the settings in that folder; leave out {left_out}"
        )
    return prepare_again(out, ledger=given["ledger"])


def job_from_flags(
    config: Path | None, compare: bool, flags: Flags, tune: Path | None = None
) -> Job:
    """Return the job that a config, options and a file of a search describe; options win."""
    from apiece.jobs import job_from_dict, read_job

    changes = {name: value for name, value in flags.items() if value not in (None, ())}
    if "epsilon" in changes:
        if isinstance(parse_number_or_name(changes["epsilon"]), float):
            raise InputError(
                f"--epsilon = {changes['epsilon']}: is a number, but must name the column with "
                "each record's ε; for one ε for all, add a column that holds it"
            )
        changes["groups"] = ()
    if tune is not None:
        changes |= _search(tune, changes)
    if compare:
        method = changes.get("method", "dp-sgd")
        if config is not None and "method" not in changes:
            method = read_job(config, changes | {"strategies": ()}).training.method
        beside = COMPARED.get(method, [])  # of an unknown one the job is refused
        own = [changes["strategy"]] if "strategy" in changes else []
        changes["strategies"] = list(dict.fromkeys([*beside, *own]))
        changes.setdefault("seeds", 3)
    if config is None:
        job = job_from_dict({}, name=Path(changes.get("source", "run")).stem, changes=changes)
        stated = {}
    else:
        job, stated = read_job(config, changes), read_toml(config, "config").get("budgets", {})
    require_delta(changes.get("delta", stated.get("delta")))
    return job
