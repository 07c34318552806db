"""python -m research: tables and figures of papers, each by one command, with stored results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.cli import Interrupted, run_program
from apiece.cli._command import (
    PATH,
    Bar,
    Command,
    Output,
    Scratch,
    echo,
    emit,
    format_table,
    option,
)
from apiece.errors import InputError, OptionError
from research import EXPERIMENTS, RESULTS, ROOT
from research.data import find_data, find_missing

if TYPE_CHECKING:
    from apiece._types import Flags
    from research.experiment import Experiment, Folders, Outcome, Unit
    from research.store import Store

EXAMPLE = """
\b
Examples:
  python -m research --list
  python -m research mueller-2021-fig1 kaiser-2026-theory
  python -m research boenisch-2023-table2 --seeds 3
  python -m research recipes --held-out --only 'task=Adult, 1/2/3'
  python -m research --page

research/README.md says what each table reads, where it is found, and how long a run takes.
"""
# The page of results and the guide, which --page writes.
PAGE = ROOT / "docs" / "results" / "papers.md"
GUIDE = ROOT / "research" / "README.md"


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@option("--list", "as_list", is_flag=True, help="List all tables: data, time and state.")
@option("--page", "as_page", is_flag=True, help="Write the pages of all stored results.")
@option("--seeds", type=int, help="Number of seeds.  [default: the table's own]")
@option("--scale", type=float, default=1.0, help="Size of the setting; 1 is the paper's.")
@option(
    "--only", multiple=True, metavar="KEY=VALUE", help="Run the units that have it; repeatable."
)
@option("--held-out", is_flag=True, help="Only choose settings; leave the test part unread.")
@option(
    "--resume/--again",
    default=True,
    help="Keep stored units and go on from checkpoints, or run the units anew.",
)
@option("--data", type=PATH, help="Folder of data sets.  [default: $APIECE_DATA, or data]")
@option(
    "--work",
    type=Scratch(path_type=Path),
    default=Path("runs") / "research",
    help="Folder for checkpoints and caches.",
)
@option("--out", type=Output(None), help="Folder of results.  [default: research/results]")
@option("--json")
def command(names: tuple[str, ...], as_list: bool, as_page: bool, **flags: Any) -> None:
    """Run tables and figures of papers; each unit's result is stored as soon as it is there.

    Stored units are not run again: the same command goes on with what was interrupted.
    """
    if [bool(names), as_list, as_page].count(True) != 1:
        raise InputError("NAME: give those of tables, or --list, or --page")
    data = find_data(flags["data"])
    out = flags["out"] or RESULTS
    if as_page:
        write_pages(out)
    elif as_list:
        list_experiments(data, out, as_json=flags["as_json"])
    else:
        run_experiments(names, data, out, flags)


def write_pages(out: Path) -> None:
    """Write the page of all results that are stored in `out`, and the guide's lists."""
    from apiece._files import Kind, write
    from research.guide import fill_guide
    from research.page import HEAD, format_section
    from research.registry import find_experiments, load_experiment
    from research.store import Store

    store = Store(out)
    names = find_experiments(EXPERIMENTS)
    text = HEAD
    with Bar(len(names)) as bar:
        for name in names:
            text += format_section(load_experiment(EXPERIMENTS, name), store.load(name))
            bar.advance(name)
    # Only a page that begins so is overwritten.
    mark = HEAD.splitlines()[0].encode()
    write(PAGE, text, Kind("the page of results", (".md",), mark))
    echo(f"{PAGE}")
    guide = fill_guide(GUIDE.read_text(encoding="utf-8"), EXPERIMENTS, store)
    write(GUIDE, guide, Kind("the guide", (".md",), b"# "))
    echo(f"{GUIDE}")


def list_experiments(data: Path, out: Path, *, as_json: bool) -> None:
    """Print every experiment with its data, its cost and its state."""
    from research.page import describe_state
    from research.registry import find_experiments, read_outline
    from research.store import Store

    store = Store(out)
    documents = []
    lines = []
    for file in find_experiments(EXPERIMENTS).values():
        document = asdict(read_outline(file))
        document["state"] = describe_state(store.load(document["name"]))
        document["missing"] = find_missing(document["needs"], data)
        documents.append(document)
        reads = ", ".join(document["needs"]) or "nothing beside the package"
        if document["missing"]:
            reads += f"; not in {data}: {', '.join(document['missing'])}"
        lines += [
            document["name"],
            f"  {document['paper']}: {document['shows']}",
            f"  reads: {reads}",
            f"  cost: {document['cost']}",
            f"  state: {document['state']}",
        ]
        if document["open"]:
            lines.append(f"  open: {document['open']}")
    emit(as_json, {"experiments": documents}, "\n".join(lines))


def run_experiments(names: Sequence[str], data: Path, out: Path, flags: Flags) -> None:
    """Run the missing units of experiments in turn, and print the tables of each."""
    from research.experiment import Folders
    from research.registry import load_experiment
    from research.store import Store

    # All names and options are looked at before anything runs.
    experiments = [load_experiment(EXPERIMENTS, name) for name in dict.fromkeys(names)]
    for experiment in experiments:
        if flags["held_out"] and experiment.after is None:
            raise OptionError(
                f"--held-out: {experiment.name} has no trials on held-out records; leave it out"
            )
        choose_units(experiment.list_units(flags["seeds"], flags["scale"]), flags["only"])
    store = Store(out)
    documents = []
    for experiment in experiments:
        folders = Folders(data, flags["work"] / experiment.name)
        outcomes = run_experiment(experiment, store, folders, flags)
        if flags["as_json"]:
            units = [
                {"unit": outcome.unit, "result": outcome.result, "seconds": outcome.seconds}
                for outcome in outcomes
            ]
            documents.append({"experiment": experiment.name, "units": units})
            continue
        for table in experiment.tables(outcomes):
            if table.title:
                echo(table.title)
            echo("\n".join(format_table([table.head, *table.rows], width=120)) + "\n")
    if flags["as_json"]:
        echo(json.dumps({"experiments": documents}, allow_nan=False))


def run_experiment(
    experiment: Experiment, store: Store, folders: Folders, flags: Flags
) -> Sequence[Outcome]:
    """Run the missing units of an experiment: those of its trials, then those that follow."""
    from research.store import missing_units, run_units

    again = not flags["resume"]

    def run_with_bar(units: Sequence[Unit]) -> Sequence[Outcome]:
        pending = units if again else missing_units(units, store.load(experiment.name))
        with Bar(len(pending)) as bar:

            def report_unit(unit: Unit) -> None:
                bar.advance(lambda: ", ".join(f"{value}" for value in unit.values()))

            try:
                return run_units(
                    experiment, units, store, folders, again=again, progress=report_unit
                )
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted after {bar.done} of {bar.total} units, which are in "
                    f"{store.path(experiment.name)}; the same command goes on"
                ) from None

    units = experiment.list_units(flags["seeds"], flags["scale"])
    outcomes = run_with_bar(choose_units(units, flags["only"]))
    if experiment.after is None or flags["held_out"]:
        return outcomes
    seeds = flags["seeds"] or experiment.seeds
    later_units = experiment.after(outcomes, seeds, flags["scale"])
    return run_with_bar(match_units(later_units, flags["only"]))


def choose_units(units: Sequence[Unit], only: Sequence[str]) -> list[Unit]:
    """Return the units that have all values of --only; raise where there is none."""
    chosen = list(units)
    for text in only:
        key, equals, _ = text.partition("=")
        if not equals or not any(key in unit for unit in chosen):
            keys = sorted({key for unit in chosen for key in unit})
            raise OptionError(f"--only {text}: give KEY=VALUE, KEY one of {', '.join(keys)}")
        chosen = match_units(chosen, [text])
        if not chosen:
            raise OptionError(f"--only {text}: no unit has it; give another value")
    return chosen


def match_units(units: Sequence[Unit], only: Sequence[str]) -> list[Unit]:
    """Return the units that have all these values, KEY=VALUE."""
    pairs = []
    for text in only:
        key, _, value = text.partition("=")
        pairs.append((key, value))
    return [unit for unit in units if all(str(unit.get(key)) == value for key, value in pairs)]


if __name__ == "__main__":
    run_program(command, "python -m research")
