"""apiece train: a table of people with a budget each → a trained model and an honest report."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import click

from apiece._json import read_toml
from apiece._lazy import require
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
    from apiece.jobs import Job, Run
    from apiece.jobs.prepared import Prepared

EXAMPLE = """
\b
Examples:
  apiece train examples/adult.toml
  apiece train --data people.csv --label income --epsilon consent_epsilon --delta 1e-5 \\
               --strategy sample --batch-size 512 --steps 1000 --out runs/first
"""
# The strategies that --compare trains, by method.
COMPARED = {"dp-sgd": ["uniform", "scale", "sample"], "pate": ["uniform", "upsample", "weight"]}


class TrainCommand(Command):
    """A command with an option for every setting of a job."""

    _params: list[click.Parameter]
    # Whether the options of the settings are among them.
    _has_settings: bool

    @property
    def params(self) -> list[click.Parameter]:
        """All parameters; the settings are loaded when these are first asked for."""
        if not self._has_settings:
            self._has_settings = True
            # After CONFIG.
            self._params[1:1] = make_setting_options()
        return self._params

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._params = params
        self._has_settings = False


def make_setting_options() -> list[click.Parameter]:
    """Return an option for every setting of a job that has one, in the order of the config."""
    from apiece.budgets.levels import Levels
    from apiece.jobs.config import SETTINGS

    options: list[click.Parameter] = []
    for name, setting in SETTINGS.items():
        if setting.help is None:
            continue
        default = setting.value if setting.default is None else setting.default
        default_text = f"{default:g}" if isinstance(default, int | float) else default
        text = setting.help
        if default_text:
            text += f"  [default: {default_text}]"
        kind: object = setting.kind
        if kind is object:
            kind = NUMBER_OR_NAME
        elif kind is Levels:
            kind = str
        flags = [make_flag(setting.flag or name), name]
        # No option has a default of click's: what is not given is left to the config, and to the
        # job.
        options.append(click.Option(flags, type=kind, multiple=setting.repeatable, help=text))
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
    # All but what single settings need, before any file is read.
    needed = ("torch", "cryptography", "pandas", "pyarrow", "tomli_w", "jinja2", "matplotlib")
    require("train", *needed)
    from apiece.assignment.unspent import silence_shortfalls
    from apiece.jobs.prepared import find_free_folder, prepare
    from apiece.jobs.results import REPORT

    # Shortfalls are warned of with the other doubts, once training has begun.
    if resume is None:
        job = make_job(config, compare, flags, tune)
        out = Path(job.run.out) if job.run.out else find_free_folder(Path("runs"), job.name)
        with silence_shortfalls():
            prepared = prepare(job, out=out)
    else:
        out = resume
        settings = flags | {"config": config, "compare": compare, "tune": tune}
        with silence_shortfalls():
            prepared = prepare_resumed(out, settings)
    from apiece.reporting import report
    from apiece.reporting.closing import closing_table

    start = time.monotonic()
    results = _run(prepared, out)
    report(results).save(out / REPORT)
    if as_json:
        echo(results.to_json())
        return
    echo(closing_table(results))
    unit = "models" if results.models > 1 else "model"
    echo(f"\n{results.models} {unit} in {time.monotonic() - start:.0f} s.", err=True)
    echo(f"Open the report: {out / REPORT}")


def _run(prepared: Prepared, out: Path) -> Run:
    """Run the job with a bar on the terminal; print each doubt once training has begun."""
    from apiece.jobs import run
    from apiece.training.callbacks import PlannedSpending, describe_spending

    job = prepared.job
    doubts = _list_doubts(prepared)

    # Not before training begins, so that a refusal stays one line.
    def print_doubts() -> None:
        while doubts:
            echo(doubts.pop(0), err=True)

    @cache
    def make_spending(strategy: str) -> PlannedSpending:
        return PlannedSpending(prepared.plans[strategy])

    # Of plans alone: the bar shows nothing of what happened in training.
    def describe_plan(strategy: str, step: int) -> str:
        # With PATE steps are lessons: votes are cast between those of teachers and student.
        if prepared.votes:
            step = prepared.plans[strategy].steps
        return "planned " + ", ".join(map(describe_spending, make_spending(strategy).at(step)))

    with Bar(prepared.steps, done=prepared.unfinished.count_steps()) as bar:

        def report_progress(strategy: str, repeat: int, step: int, steps: int) -> None:
            print_doubts()
            if prepared.candidates is not None:
                bar.advance(f"search, step {step}/{steps} of a run")
                return
            position = f"{strategy} {repeat + 1}/{job.compare.seeds} step {step}/{steps}"
            bar.advance(lambda: f"{position}, {describe_plan(strategy, step)}")

        try:
            results = run(prepared, out=out, progress=report_progress)
        except KeyboardInterrupt:
            raise Interrupted(_describe_interruption(bar, out, job.run.analysis)) from None
    print_doubts()
    return results


def _list_doubts(prepared: Prepared) -> list[str]:
    """Return a line for each thing about the people and plans that looks like a mistake."""
    from apiece.assignment.unspent import describe_shortfall

    warnings = list(prepared.people.warnings)
    for plan in prepared.plans.values():
        shortfall = describe_shortfall(plan)
        if shortfall is not None:
            warnings.append(shortfall)
    doubts = [f"warning: {warning}" for warning in warnings]
    doubts += [f"private, not in the run folder: {note}" for note in prepared.private_notes]
    return doubts


def _describe_interruption(bar: Bar, out: Path, analysis: str | None) -> str:
    """Return what an interrupted run left behind, and how to go on."""
    files = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    progress = "" if bar.total is None else f" after {bar.done} of {bar.total} steps"
    remedy = f"apiece train --resume {out}" if "checkpoints" in files else "the same command"
    message = (
        f"interrupted{progress}; no model was written and nothing is half-written: {out} holds "
        f"{', '.join(files) or 'nothing'}; to go on: {remedy}"
    )
    if analysis is not None:
        message += f"; the ledger stays charged for it, and --analysis {analysis!r} charges no more"
    return message


def _read_search(tune: Path, changes: Flags) -> Flags:
    """Return the settings of a search in a file, which names none that an option fixes."""
    from apiece.jobs.config import SearchSettings
    from apiece.jobs.settings import settings_of

    search = read_toml(tune, "search")
    names = [name for name, _ in settings_of(SearchSettings)]
    for name in search:
        if name not in names:
            raise unknown(f"key in {tune}", name, names)
    # Raises for values out of bounds.
    SearchSettings(**{"space": {}, **search})
    fixed = [name for name in search["space"] if name in changes]
    if fixed:
        raise OptionError(
            f"{make_flag(fixed[0])}: is searched in {tune}; leave it out, or take it out of there"
        )
    return search


def prepare_resumed(out: Path, settings: Flags) -> Prepared:
    """Return the run that was interrupted in `out`; raise for settings other than --ledger."""
    from apiece.jobs.config import SETTINGS
    from apiece.jobs.prepared import prepare_again

    for name, value in settings.items():
        # The address of a ledger may be given again: it is not kept where it has a password.
        if name == "ledger" or value in (None, (), False):
            continue
        setting = SETTINGS.get(name)
        flag = name if setting is None else setting.flag or name
        raise OptionError(
            f"--resume {out}: goes on with the settings in that folder; leave out "
            f"{flag.replace('_', '-')}"
        )
    return prepare_again(out, ledger=settings["ledger"])


def make_job(config: Path | None, compare: bool, flags: Flags, tune: Path | None = None) -> Job:
    """Return the job that a config, options and a file of a search describe; options win."""
    from apiece.jobs import read_job
    from apiece.jobs.config import job_from_dict

    # An option that was not given changes nothing in the config.
    changes = {name: value for name, value in flags.items() if value not in (None, ())}
    if "epsilon" in changes:
        if isinstance(parse_number_or_name(changes["epsilon"]), float):
            raise InputError(
                f"--epsilon = {changes['epsilon']}: is a number, but must name the column with "
                "each record's ε; for one ε for all, add a column that holds it"
            )
        # A column of budgets takes the place of simulated groups in the config.
        changes["groups"] = ()
    if tune is not None:
        changes |= _read_search(tune, changes)
    if compare:
        method = changes.get("method", "dp-sgd")
        if config is not None and "method" not in changes:
            # The config is read for its method alone, without strategies that may be of another
            # one.
            method = read_job(config, changes | {"strategies": ()}).training.method
        # None for an unknown method, for which the job is refused.
        strategies = list(COMPARED.get(method, []))
        if "strategy" in changes and changes["strategy"] not in strategies:
            strategies.append(changes["strategy"])
        changes["strategies"] = strategies
        changes.setdefault("seeds", 3)
    if config is None:
        job = job_from_dict({}, name=Path(changes.get("source", "run")).stem, changes=changes)
        stated_delta = None
    else:
        job = read_job(config, changes)
        # The job's own δ has a default, with which nobody may train unawares.
        stated_delta = read_toml(config, "config").get("budgets", {}).get("delta")
    require_delta(changes.get("delta", stated_delta))
    return job
