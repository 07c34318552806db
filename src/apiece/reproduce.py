"""Tables and figures of papers, each by one command, with results that are stored.

An experiment is one file in the `experiments` folder of the repository: a table or figure, as units
that each run alone. Results are one JSON file each, written whole after every unit, and the page of
results is made from them alone.
"""

from __future__ import annotations

import ast
import datetime
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from apiece import _check
from apiece._files import Kind, write
from apiece.errors import DataError, InputError, unknown

__all__ = [
    "Done",
    "Experiment",
    "Place",
    "Store",
    "Table",
    "Unit",
    "interval",
    "load",
    "run",
    "signed",
    "spread",
]

# The definition of one run, as JSON values; equal units have equal results.
Unit = Mapping[str, Any]

# The line by which the file of an experiment is known.
MARK = "EXPERIMENT = Experiment("
HEAD = """# The papers' tables and figures

Made from the stored results by `apiece reproduce --page`: every measured figure in a table is read
from them. Published figures are beside those found; where settings differ, or a run is smaller than
the paper's, the text says so. `apiece reproduce --list` lists the experiments, and `apiece
reproduce NAME` runs the missing units of one.
"""
_RESULTS = Kind("results of an experiment", (".json",), b'{"experiment": ')


@dataclass(frozen=True, slots=True)
class Place:
    """The folders that a unit reads and writes.

    Attributes:
        data: The folder of data sets.
        work: A folder of the experiment's own, for checkpoints and caches.

    Example:
        >>> from pathlib import Path
        >>> from apiece.reproduce import Place
        >>> Place(Path("data"), Path("runs")).work.name
        'runs'
    """

    data: Path
    work: Path


@dataclass(frozen=True, slots=True)
class Done:
    """One unit that ran.

    Attributes:
        unit: Its definition.
        result: Its result, as JSON values.
        seconds: Its duration on the clock; None where that was not recorded.
        machine: The machine that it ran on.
        date: The day when it ended.

    Example:
        >>> from apiece.reproduce import Done
        >>> Done({"seed": 0}, {"accuracy": 97.5}, 60.0, "a processor", "2026-01-02").unit["seed"]
        0
    """

    unit: Unit
    result: object
    seconds: float | None
    machine: str
    date: str


@dataclass(frozen=True, slots=True)
class Table:
    """A table of a page: its head, its rows, and a title above it.

    Attributes:
        head: Names of the columns.
        rows: Texts, as many in each row as there are columns.
        title: Above it; "" for none.

    Raises:
        InputError: For a row of another length.

    Example:
        >>> from apiece.reproduce import Table
        >>> print(Table(["a", "b"], [["1", "2"]]).markdown())
        | a | b |
        |---|---|
        | 1 | 2 |
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise InputError(f"table {self.title!r}: {len(row)} cells under {len(self.head)}")

    def markdown(self) -> str:
        """Return the table in Markdown."""
        head, *rows = [f"| {' | '.join(line)} |" for line in (self.head, *self.rows)]
        rule = "|" + "---|" * len(self.head)
        title = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*title, head, rule, *rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """The literals in an experiment's file, which are read without running it."""

    name: str
    paper: str
    shows: str
    cost: str
    needs: Sequence[str] = ()
    open: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Outline):
    """One table or figure of a paper, or several that are made together.

    Attributes:
        name: Of the file, and on the command line.
        paper: Author and year.
        shows: The table or figure, and its data.
        cost: The time and memory of a unit, in words.
        needs: Folders of data that it reads.
        open: The parts of the paper that no stored run covers, and why.
        units: Takes the number of seeds and the scale in (0, 1]; returns the units to be run, in
            the order of running. All that a scale changes is part of a unit.
        run: Takes a unit and a place; returns its result.
        tables: Takes the units that ran; returns the tables, with the published figures beside.
        after: Takes the units that ran, the number of seeds and the scale; returns the units that
            read the test part, at settings that trials on held-out records chose; None where
            `units` are no such trials.
        notes: Takes the units that ran; returns paragraphs in Markdown.
        seeds: Number of seeds where none is given.

    Raises:
        InputError: For a name that no command line takes.

    Example:
        >>> from apiece.reproduce import Experiment, Table
        >>> half = Experiment(name="half", paper="Nobody", shows="Table 0", cost="nothing",
        ...                   units=lambda seeds, scale: [{"seed": s} for s in range(seeds)],
        ...                   run=lambda unit, place: unit["seed"] / 2,
        ...                   tables=lambda done: [Table(["halves"], [[str(len(done))]])])
        >>> half.wanted(2, 1.0)
        [{'seed': 0}, {'seed': 1}]
    """

    units: Callable[[int, float], Sequence[Unit]]
    run: Callable[[Unit, Place], object]
    tables: Callable[[Sequence[Done]], Sequence[Table]]
    after: Callable[[Sequence[Done], int, float], Sequence[Unit]] | None = None
    notes: Callable[[Sequence[Done]], str] = field(default=lambda done: "")
    seeds: int = 5

    def __post_init__(self) -> None:
        if not self.name or set(self.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-"):
            raise InputError(f"experiment {self.name!r}: use a to z, digits and -")

    def wanted(self, seeds: int | None, scale: float) -> Sequence[Unit]:
        """Return the units of so many seeds at a scale.

        Args:
            seeds: None for the experiment's own number.
            scale: 1 for the paper's setting.

        Raises:
            InputError: For no seed, or a scale outside (0, 1].
        """
        number = self.seeds if seeds is None else _check.count("seeds", seeds)
        return self.units(number, _check.probability("scale", scale, low_open=True))


def lacking(needs: Sequence[str], data: Path) -> str | None:
    """Return the first folder that is missing among the data sets, in words; None for none."""
    for name in needs:
        if not (data / name).is_dir():
            return f"no folder {name} in {data}"
    return None


def key(unit: Unit) -> str:
    """Return a unit as one line, the same for equal units."""
    return json.dumps(unit, sort_keys=True, allow_nan=False)


def find(folder: Path) -> dict[str, Path]:
    """Return the file of each experiment by its name, without running any.

    An experiment NAME is in `NAME.py`, with _ for -; other files are helpers. Raises `DataError`
    where there is no such folder, or no experiment in it.
    """
    paths = {
        path.stem.replace("_", "-"): path
        for path in sorted(folder.glob("*.py"))
        if f"\n{MARK}" in f"\n{path.read_text(encoding='utf-8')}"
    }
    if not paths:
        raise DataError(
            f"{folder}: no experiments in it; they come with apiece's repository, whose folder "
            "`experiments` --experiments names"
        )
    return paths


def outline_of(path: Path) -> Outline:
    """Return the outline in an experiment's file; raise `DataError` where it is no literal."""
    names = Outline.__slots__
    try:
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        call = next(
            node
            for node in nodes
            if isinstance(node, ast.Call) and f"EXPERIMENT = {ast.unparse(node.func)}(" == MARK
        )
        arguments = {str(keyword.arg): keyword.value for keyword in call.keywords}
        literals = {name: ast.literal_eval(arguments[name]) for name in names if name in arguments}
        return Outline(**literals)
    except (SyntaxError, ValueError, TypeError) as error:
        raise DataError(
            f"{path}: its experiment's {', '.join(names)} are no literals ({error}); write them out"
        ) from None


def load(folder: Path, name: str) -> Experiment:
    """Return an experiment; its file is run as Python, as any script that one starts.

    Args:
        folder: Folder of the experiments, one file each.
        name: Name of the experiment.

    Raises:
        OptionError: For a name that there is not, with the nearest one.
        DataError: For a folder without experiments, or a file whose experiment is called otherwise.

    Example:
        >>> from pathlib import Path
        >>> from apiece.reproduce import load
        >>> load(Path("experiments"), "recipes").paper  # doctest: +SKIP
        'ours'
    """
    files = find(folder)
    if name not in files:
        raise unknown("experiment", name, files)
    path = files[name].resolve()
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # experiments share helpers that lie beside them
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    experiment: Experiment = module.EXPERIMENT
    if experiment.name != name:
        raise DataError(f"{path}: its experiment is called {experiment.name!r}; name the file so")
    return experiment


@dataclass(frozen=True, slots=True)
class Store:
    """The results of experiments in a folder.

    Attributes:
        folder: Its path.

    Example:
        >>> from pathlib import Path
        >>> from apiece.reproduce import Store
        >>> Store(Path("experiments/results")).path("boenisch-2023-table2").name
        'boenisch-2023-table2.json'
    """

    folder: Path

    def path(self, name: str) -> Path:
        """Return the file of an experiment.

        Args:
            name: Name of the experiment.
        """
        return self.folder / f"{name}.json"

    def load(self, name: str) -> list[Done]:
        """Return the units of an experiment that ran; none where there is no file.

        Args:
            name: Name of the experiment.

        Raises:
            DataError: For a file that holds something else.
        """
        path = self.path(name)
        if not path.exists():
            return []
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["experiment"] != name:
                raise ValueError(f"it is of {content['experiment']!r}")
            return [Done(**entry) for entry in content["units"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}: no results of {name} ({error}); move it away") from None

    def save(self, name: str, done: Sequence[Done]) -> None:
        """Write the units of an experiment that ran, all or none.

        Args:
            name: Name of the experiment.
            done: All its units that ran.

        Raises:
            DataError: Where the folder cannot be written to.
        """
        lines = ",\n".join(json.dumps(asdict(entry), allow_nan=False) for entry in done)
        text = f'{{"experiment": {json.dumps(name)}, "units": [\n{lines}\n]}}\n'
        write(self.path(name), text, _RESULTS)


def missing(units: Sequence[Unit], done: Sequence[Done]) -> list[Unit]:
    """Return the units that have no result yet, in order, each once."""
    stored = {key(entry.unit) for entry in done}
    by_key = {key(unit): unit for unit in units}
    return [unit for unit_key, unit in by_key.items() if unit_key not in stored]


def run(
    experiment: Experiment,
    units: Sequence[Unit],
    store: Store,
    place: Place,
    *,
    again: bool = False,
    watch: Callable[[Unit], object] = lambda unit: None,
) -> list[Done]:
    """Run each unit that has no result, and store each result at once.

    Args:
        experiment: The experiment.
        units: Those of its units that are to be run.
        store: The store of the results.
        place: The folders that units read and write.
        again: Whether units that have a result are run too.
        watch: Called with each unit that ended.

    Returns:
        All units of the experiment in the store.

    Raises:
        DataError: For data that is not there.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.reproduce import Experiment, Place, Store, run
        >>> half = Experiment(name="half", paper="", shows="", cost="", tables=lambda done: [],
        ...                   units=lambda seeds, scale: [{"seed": seed} for seed in range(seeds)],
        ...                   run=lambda unit, place: unit["seed"] / 2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     place = Place(Path(folder), Path(folder))
        ...     [one.result for one in run(half, half.wanted(2, 1.0), Store(Path(folder)), place)]
        [0.0, 0.5]
    """
    lacks = lacking(experiment.needs, place.data)
    if lacks is not None:
        raise DataError(f"{experiment.name}: {lacks}")
    pending = list(units) if again else missing(units, store.load(experiment.name))
    for unit in pending:
        start = time.monotonic()
        result = experiment.run(unit, place)
        # Read again: other processes may have added units meanwhile.
        done = [entry for entry in store.load(experiment.name) if key(entry.unit) != key(unit)]
        seconds = round(time.monotonic() - start, 1)
        today = datetime.datetime.now(datetime.UTC).date().isoformat()
        done.append(Done(dict(unit), result, seconds, machine(), today))
        store.save(experiment.name, done)
        watch(unit)
    return store.load(experiment.name)


def machine() -> str:
    """Return the processor's model, threads and torch, without the host's name."""
    model = platform.processor() or platform.machine()
    cpus = Path("/proc/cpuinfo")
    if cpus.exists():
        for line in cpus.read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return model
    return f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def interval(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean, half the width of its 95 % interval by Student's t, and the sample's size.

    Two values get no interval: it would be wider than the values differ.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> from apiece.reproduce import interval
        >>> interval([97.0, 98.0, 99.0]), interval([97.0]), interval([])
        ('98.00 ± 2.48 (3)', '97.00 (1)', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    if len(values) > 2:
        text += f" ± {reach(values):.{digits}f}"
    return f"{text} ({len(values)})"


def signed(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the text of `interval`, with a sign.

    Args:
        values: Differences, one a seed.
        digits: After the point.

    Example:
        >>> from apiece.reproduce import signed
        >>> signed([0.25, 0.5, 0.75])
        '+0.50 ± 0.62 (3)'
    """
    text = interval(values, digits=digits)
    return text if text[:1] in "-–" else f"+{text}"


def reach(values: Sequence[float]) -> float:
    """Return half the width of the 95 % interval of the mean of two values or more."""
    from scipy import stats

    error: float = statistics.stdev(values) / float(len(values)) ** 0.5
    return float(stats.t.ppf(0.975, len(values) - 1)) * error


def spread(values: Sequence[float], *, digits: int = 2) -> str:
    """Return the mean and the standard deviation over seeds, as papers print them.

    Args:
        values: One a seed.
        digits: After the point.

    Example:
        >>> from apiece.reproduce import spread
        >>> spread([97.0, 98.0, 99.0]), spread([])
        ('98.00 ± 1.00', '–')
    """
    if not values:
        return "–"
    text = f"{statistics.fmean(values):.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {statistics.stdev(values):.{digits}f}"


def section(experiment: Experiment, done: Sequence[Done]) -> str:
    """Return an experiment's part of the page; without results it says "not run"."""
    origin = provenance(done) if done else f"not run ({experiment.cost})."
    lines = [
        f"\n## {experiment.paper}: {experiment.shows}\n",
        f"`apiece reproduce {experiment.name}`: {origin}",
    ]
    if done:
        lines += [f"\n{table.markdown()}" for table in experiment.tables(done)]
        if notes := experiment.notes(done):
            lines.append(f"\n{notes}")
    return "\n".join(lines) + "\n"


def provenance(done: Sequence[Done]) -> str:
    """Return the number of units that ran, their duration, their days and their machines.

    >>> provenance([Done({}, 1.0, 90.0, "a processor", "2026-01-02")])
    '1 unit, 1.5 minutes in all, 2026-01-02, on: a processor.'
    """
    durations = [entry.seconds for entry in done if entry.seconds is not None]
    days = sorted({entry.date for entry in done if entry.date})
    machines = sorted({entry.machine for entry in done if entry.machine})
    plural = "s" if len(done) > 1 else ""
    parts = [f"{len(done)} unit{plural}"]
    if durations:
        scope = "" if len(durations) == len(done) else f" of {len(durations)} of them"
        parts.append(f"{sum(durations) / 60:.1f} minutes in all{scope}")
    if days:
        parts.append(days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}")
    if machines:
        parts.append(f"on: {'; '.join(machines)}")
    return ", ".join(parts) + "."


def state(done: Sequence[Done], lacks: str | None) -> str:
    """Return the progress of an experiment in words; lacks: the data that is missing, or None.

    >>> state([], None), state([Done({}, 1, None, "", "")], "no folder svhn")
    ('not run', '1 unit; no folder svhn')
    """
    text = provenance(done).rstrip(".") if done else "not run"
    return text if lacks is None else f"{text}; {lacks}"
