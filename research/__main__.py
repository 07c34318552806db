"""python -m research: a table or a figure of a paper by one command, with results that are kept."""

from __future__ import annotations

import json
import os
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

if TYPE_CHECKING:
    from apiece._types import Flags
    from research.experiment import Done, Unit

EXAMPLE = """
\b
Examples:
  python -m research --list
  python -m research boenisch-2023-table2 --seeds 3
  python -m research recipes --held-out
  python -m research --page
"""
# Where --page writes.
PAGE = ROOT / "docs" / "results" / "papers.md"


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("name", required=False)
@option("--list", "as_list", is_flag=True, help="List all experiments, with cost and state.")
@option("--page", "as_page", is_flag=True, help="Write the page of all stored results.")
@option("--seeds", type=int, help="Number of seeds.  [default: the experiment's own]")
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
@option("--data", type=PATH, help="Folder of data sets.  [default: $APIECE_DATA]")
@option(
    "--work",
    type=Scratch(path_type=Path),
    default=Path("runs") / "research",
    help="Folder for checkpoints and caches.",
)
@option("--out", type=Output(None), help="Folder of results.  [default: research/results]")
@option("--json")
def command(name: str | None, as_list: bool, as_page: bool, **flags: Any) -> None:
    """Run a table or a figure of a paper; each unit's result is stored as soon as it is there.

    Stored units are not run again, so that the same command goes on with what was interrupted.
    """
    if [name is not None, as_list, as_page].count(True) != 1:
        raise InputError("NAME: give that of one experiment, or --list, or --page")
    data = flags["data"] or Path(os.environ.get("APIECE_DATA", ROOT.parent / "shared" / "data"))
    out = flags["out"] or RESULTS
    if name is not None:
        run_experiment(name, data, out, flags)
    elif as_page:
        write_page(EXPERIMENTS, out)
    else:
        list_experiments(EXPERIMENTS, data, out, as_json=flags["as_json"])


def write_page(folder: Path, out: Path) -> None:
    """Write the page of all results that are stored in `out`."""
    from apiece._files import Kind, write
    from research.page import HEAD, section
    from research.registry import find, load
    from research.store import Store

    store = Store(out)
    names = find(folder)
    text = HEAD
    with Bar(len(names)) as bar:
        for name in names:
            text += section(load(folder, name), store.load(name))
            bar.advance(name)
    # Only a page that begins so is overwritten.
    mark = HEAD.splitlines()[0].encode()
    write(PAGE, text, Kind("the page of results", (".md",), mark))
    echo(f"{PAGE}")


def list_experiments(folder: Path, data: Path, out: Path, *, as_json: bool) -> None:
    """Print every experiment with its cost and state."""
    from research.experiment import lacking
    from research.page import state
    from research.registry import find, outline_of
    from research.store import Store

    store = Store(out)
    documents = []
    lines = []
    for file in find(folder).values():
        document = asdict(outline_of(file))
        missing_data = lacking(document.pop("needs"), data)
        document["state"] = state(store.load(document["name"]), missing_data)
        documents.append(document)
        lines += [
            document["name"],
            f"  {document['paper']}: {document['shows']}",
            f"  cost: {document['cost']}",
            f"  state: {document['state']}",
        ]
        if document["open"]:
            lines.append(f"  open: {document['open']}")
    emit(as_json, {"experiments": documents}, "\n".join(lines))


def run_experiment(name: str, data: Path, out: Path, flags: Flags) -> None:
    """Run the units of an experiment that are missing, and print its tables."""
    from research.experiment import Place
    from research.registry import load
    from research.store import Store, missing, run

    experiment = load(EXPERIMENTS, name)
    if flags["held_out"] and experiment.after is None:
        raise OptionError(f"--held-out: {name} has no trials on held-out records; leave it out")
    store = Store(out)
    folders = Place(data, flags["work"] / name)
    again = not flags["resume"]

    def run_units(units: Sequence[Unit]) -> Sequence[Done]:
        remaining = units if again else missing(units, store.load(name))
        with Bar(len(remaining)) as bar:

            def watch(unit: Unit) -> None:
                bar.advance(lambda: ", ".join(f"{value}" for value in unit.values()))

            try:
                return run(experiment, units, store, folders, again=again, watch=watch)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted after {bar.done} of {bar.total} units, which are in "
                    f"{store.path(name)}; the same command goes on"
                ) from None

    units = experiment.wanted(flags["seeds"], flags["scale"])
    results = run_units(choose_units(units, flags["only"]))
    if experiment.after is not None and not flags["held_out"]:
        seeds = flags["seeds"] or experiment.seeds
        later_units = experiment.after(results, seeds, flags["scale"])
        results = run_units(match_units(later_units, flags["only"]))
    if flags["as_json"]:
        documents = [
            {"unit": result.unit, "result": result.result, "seconds": result.seconds}
            for result in results
        ]
        echo(json.dumps({"experiment": name, "units": documents}, allow_nan=False))
        return
    for table in experiment.tables(results):
        if table.title:
            echo(table.title)
        echo("\n".join(format_table([table.head, *table.rows], width=120)) + "\n")


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
