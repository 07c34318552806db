"""The lists of research/README.md: tables, benchmarks and data sets, as they are declared."""

from __future__ import annotations

import tomllib
from pathlib import Path

from apiece.errors import DataError
from research import ROOT
from research.data import DATA_SETS
from research.experiment import Table
from research.page import format_duration
from research.registry import find_experiments, read_outline
from research.store import Store

STORED = ROOT / "research" / "benchmarks" / "stored.toml"


def fill_guide(text: str, experiments: Path, store: Store) -> str:
    """Return the guide with its three lists made anew.

    Args:
        text: The guide as it is; a list stands between `<!-- NAME -->` and `<!-- end -->`.
        experiments: Folder of the experiments.
        store: Results of the experiments.

    Raises:
        DataError: For a guide without the marks of a list.
    """
    lists = {
        "tables": tabulate_experiments(experiments, store),
        "benchmarks": tabulate_benchmarks(),
        "data": tabulate_data_sets(),
    }
    for name, table in lists.items():
        opening = f"<!-- {name} -->\n"
        head, begins, tail = text.partition(opening)
        _, ends, following = tail.partition("<!-- end -->\n")
        if not begins or not ends:
            raise DataError(f"research/README.md: no list between <!-- {name} --> and <!-- end -->")
        text = f"{head}{opening}\n{table.markdown()}\n\n<!-- end -->\n{following}"
    return text


def tabulate_experiments(folder: Path, store: Store) -> Table:
    """Return the table of all experiments: what each shows, reads and costs."""
    rows = []
    for name, file in find_experiments(folder).items():
        outline = read_outline(file)
        reads = ", ".join(f"`{data}`" for data in outline.needs) or "–"
        stored = format_duration(store.load(name)) or "not run"
        shown = f"{outline.paper}: {outline.shows}"
        rows.append([f"`{name}`", shown, reads, outline.cost, stored])
    return Table(["Name", "Table or figure", "Data", "Time", "Stored"], rows)


def tabulate_benchmarks() -> Table:
    """Return the table of all other stored results, with the command that makes each."""
    content = tomllib.loads(STORED.read_text(encoding="utf-8"))
    rows = []
    for path, entry in content["results"].items():
        is_experiment = entry["command"].startswith("python -m research ")
        if not is_experiment:
            needs = [entry[key] for key in ("needs", "until") if key in entry]
            rows.append([f"`{Path(path).name}`", f"`{entry['command']}`", "; ".join(needs) or "–"])
    return Table(["Result", "Command", "Needs"], rows)


def tabulate_data_sets() -> Table:
    """Return the table of all data sets: folder, content, form and source."""
    rows = [
        [f"`{name}/`", data_set.title, data_set.files, data_set.source]
        for name, data_set in DATA_SETS.items()
    ]
    return Table(["Folder", "Content", "Files", "Where it is found, licence"], rows)
