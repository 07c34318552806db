"""apiece reproduce: a table or a figure of a paper by one command, with results that are kept."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece.cli import Interrupted
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

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.reproduce import Done, Unit

EXAMPLE = """
\b
Examples:
  apiece reproduce --list
  apiece reproduce boenisch-2023-table2 --seeds 3
  apiece reproduce recipes --held-out
  apiece reproduce --page
"""
PAGE = Path("docs") / "results" / "papers.md"


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
@option(
    "--experiments",
    type=PATH,
    default=Path("experiments"),
    help="Folder of experiments, from apiece's repository.",
)
@option("--data", type=PATH, help="Folder of data sets.  [default: $APIECE_DATA]")
@option(
    "--work",
    type=Scratch(path_type=Path),
    default=Path("runs") / "reproduce",
    help="Folder for checkpoints and caches.",
)
@option("--out", type=Output(None), help="Folder of results.  [default: EXPERIMENTS/results]")
@option("--json")
def command(name: str | None, as_list: bool, as_page: bool, **flags: Any) -> None:
    """Run a table or a figure of a paper; each unit's result is stored as soon as it is there.

    Stored units are not run again, so that the same command goes on with what was interrupted.
    """
    if (name is not None) + as_list + as_page != 1:
        raise InputError("NAME: give that of one experiment, or --list, or --page")
    data = flags["data"] or Path(os.environ.get("APIECE_DATA", Path("..") / "shared" / "data"))
    out = flags["out"] or flags["experiments"] / "results"
    if name is not None:
        run_one(name, data, out, flags)
        return
    from apiece._files import Kind, write
    from apiece.reproduce import HEAD, Store, find, lacking, load, outline_of, section, state

    store, folder = Store(out), flags["experiments"]
    files = find(folder)
    if as_page:
        kind, text = Kind("the page of results", (".md",), HEAD.splitlines()[0].encode()), HEAD
        with Bar(len(files)) as bar:
            for each in files:
                text += section(load(folder, each), store.load(each))
                bar.advance(each)
        write(PAGE, text, kind)
        echo(f"{PAGE}")
        return
    rows = []
    for outline in map(outline_of, files.values()):
        row = asdict(outline)
        lacks = lacking(row.pop("needs"), data)
        rows.append(row | {"state": state(store.load(outline.name), lacks)})
    told = [
        f"{row['name']}\n  {row['paper']}: {row['shows']}\n  cost: {row['cost']}\n"
        f"  state: {row['state']}" + f"\n  open: {row['open']}" * bool(row["open"])
        for row in rows
    ]
    emit(flags["as_json"], {"experiments": rows}, "\n".join(told))


def run_one(name: str, data: Path, out: Path, flags: Flags) -> None:
    """Run the units of an experiment that are missing, and print its tables."""
    from apiece.reproduce import Place, Store, load, missing, run

    experiment = load(flags["experiments"], name)
    if flags["held_out"] and experiment.after is None:
        raise OptionError(f"--held-out: {name} has no trials on held-out records; leave it out")
    store, place = Store(out), Place(data, flags["work"] / name)
    again = not flags["resume"]
    wanted = chosen(experiment.wanted(flags["seeds"], flags["scale"]), flags["only"])

    def run_all(units: Sequence[Unit]) -> Sequence[Done]:
        left = units if again else missing(units, store.load(name))
        with Bar(len(left)) as bar:

            def watch(unit: Unit) -> None:
                bar.advance(lambda: ", ".join(f"{value}" for value in unit.values()))

            try:
                return run(experiment, units, store, place, again=again, watch=watch)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"interrupted after {bar.done} of {bar.total} units, which are in "
                    f"{store.path(name)}; the same command goes on"
                ) from None

    done = run_all(wanted)
    if experiment.after is not None and not flags["held_out"]:
        then = experiment.after(done, flags["seeds"] or experiment.seeds, flags["scale"])
        done = run_all(matching(then, flags["only"]))
    if flags["as_json"]:
        units = [{"unit": one.unit, "result": one.result, "seconds": one.seconds} for one in done]
        echo(json.dumps({"experiment": name, "units": units}, allow_nan=False))
        return
    for table in experiment.tables(done):
        echo(f"{table.title}\n" * bool(table.title), nl=False)
        echo("\n".join(format_table([table.head, *table.rows], width=120)) + "\n")


def chosen(units: Sequence[Unit], only: Sequence[str]) -> list[Unit]:
    """Return the units that have all values of --only."""
    kept = list(units)
    for text in only:
        slot, equals, _ = text.partition("=")
        if not equals or not any(slot in unit for unit in kept):
            known = sorted({key for unit in kept for key in unit})
            raise OptionError(f"--only {text}: give KEY=VALUE, KEY one of {', '.join(known)}")
        kept = matching(kept, [text])
        if not kept:
            raise OptionError(f"--only {text}: no unit has it; give another value")
    return kept


def matching(units: Sequence[Unit], only: Sequence[str]) -> list[Unit]:
    """Return the units that have all these values, KEY=VALUE."""
    pairs = [text.partition("=")[::2] for text in only]
    return [unit for unit in units if all(str(unit.get(k)) == v for k, v in pairs)]
