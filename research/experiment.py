"""One table or figure of a paper as units of work, each of which runs alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apiece import _check
from apiece.errors import InputError

# The definition of one run, as JSON values; equal units have equal results.
Unit = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders that a unit reads and writes.

    Attributes:
        data: The folder of data sets.
        work: A folder of the experiment's own, for checkpoints and caches.

    Example:
        >>> from pathlib import Path
        >>> from research.experiment import Folders
        >>> Folders(Path("data"), Path("runs")).work.name
        'runs'
    """

    data: Path
    work: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """One unit that ran.

    Attributes:
        unit: Its definition.
        result: Its result, as JSON values.
        seconds: Its duration on the clock; None where that was not recorded.
        machine: The machine that it ran on.
        date: The day when it ended.

    Example:
        >>> from research.experiment import Outcome
        >>> Outcome({"seed": 0}, {"accuracy": 97.5}, 60.0, "a processor", "2026-01-02").unit["seed"]
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
        >>> from research.experiment import Table
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
        needs: Data sets that its units read, by the names of their folders.
        open: The parts of the paper that no stored run covers, and why.
        units: Takes the number of seeds and the scale in (0, 1]; returns the units to be run, in
            the order of running. All that a scale changes is part of a unit.
        run: Takes a unit and its folders; returns its result.
        tables: Takes the units that ran; returns the tables, with the published figures beside.
        after: Takes the units that ran, the number of seeds and the scale; returns the units that
            read the test part, at settings that trials on held-out records chose; None where
            `units` are no such trials.
        notes: Takes the units that ran; returns paragraphs in Markdown.
        reads: Takes a unit; returns the data sets that it reads, among `needs`. None where every
            unit reads all of them.
        seeds: Number of seeds where none is given.

    Raises:
        InputError: For a name that no command line takes.

    Example:
        >>> from research.experiment import Experiment, Table
        >>> half = Experiment(name="half", paper="Nobody", shows="Table 0", cost="nothing",
        ...                   units=lambda seeds, scale: [{"seed": s} for s in range(seeds)],
        ...                   run=lambda unit, folders: unit["seed"] / 2,
        ...                   tables=lambda done: [Table(["halves"], [[str(len(done))]])])
        >>> half.list_units(2, 1.0)
        [{'seed': 0}, {'seed': 1}]
    """

    units: Callable[[int, float], Sequence[Unit]]
    run: Callable[[Unit, Folders], object]
    tables: Callable[[Sequence[Outcome]], Sequence[Table]]
    after: Callable[[Sequence[Outcome], int, float], Sequence[Unit]] | None = None
    notes: Callable[[Sequence[Outcome]], str] = field(default=lambda done: "")
    reads: Callable[[Unit], Sequence[str]] | None = None
    seeds: int = 5

    def __post_init__(self) -> None:
        if not self.name or set(self.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-"):
            raise InputError(f"experiment {self.name!r}: use a to z, digits and -")

    def data_of(self, units: Sequence[Unit]) -> list[str]:
        """Return the data sets that units read, sorted.

        Args:
            units: Units of this experiment.
        """
        if self.reads is None:
            return sorted(self.needs) if units else []
        return sorted({name for unit in units for name in self.reads(unit)})

    def list_units(self, seeds: int | None, scale: float) -> Sequence[Unit]:
        """Return the units of so many seeds at a scale.

        Args:
            seeds: None for the experiment's own number.
            scale: 1 for the paper's setting.

        Raises:
            InputError: For no seed, or a scale outside (0, 1].
        """
        number = self.seeds if seeds is None else _check.count("seeds", seeds)
        return self.units(number, _check.probability("scale", scale, low_open=True))


def unit_key(unit: Unit) -> str:
    """Return a unit as one line, the same for equal units."""
    return json.dumps(unit, sort_keys=True, allow_nan=False)
