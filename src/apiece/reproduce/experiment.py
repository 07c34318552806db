"""What an experiment is: a table or figure of a paper, as units that each run alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apiece import _check
from apiece.errors import InputError

Unit = Mapping[str, Any]  # what defines one run, as JSON values; equal units have equal results
Cells = Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a unit runs.

    Attributes:
        data: The folder of data sets.
        work: A folder of the experiment's own, for checkpoints and caches.

    Example:
        >>> Place(Path("data"), Path("runs")).work.name
        'runs'
    """

    data: Path
    work: Path


@dataclass(frozen=True, slots=True)
class Done:
    """One unit that ran.

    Attributes:
        unit: What defines it.
        result: What came of it, as JSON values.
        seconds: That it took on the clock; None where that was not recorded.
        machine: On which.
        date: When it ended.

    Example:
        >>> Done({"seed": 0}, {"accuracy": 97.5}, 60.0, "a processor", "2026-01-02").unit["seed"]
        0
    """

    unit: Unit
    result: Any
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
        >>> print(Table(["a", "b"], [["1", "2"]]).markdown())
        | a | b |
        |---|---|
        | 1 | 2 |
    """

    head: Sequence[str]
    rows: Cells
    title: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.head):
                raise InputError(f"table {self.title!r}: {len(row)} cells under {len(self.head)}")

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.head, ["---"] * len(self.head), *self.rows]
        text = ["|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|"
                for line in lines]  # fmt: skip
        return "\n".join([f"**{self.title}**", ""] * bool(self.title) + text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One table or figure of a paper, or several that are made together.

    Attributes:
        name: Of the file, and on the command line.
        paper: Author and year.
        shows: Which table or figure, on which data.
        cost: What a unit takes, for people.
        units: Takes the number of seeds and the scale in (0, 1]; returns what is to be run, in
            the order of running. What a scale changes is part of a unit.
        run: Takes a unit and a place; returns its result.
        tables: Takes what is done; returns the tables, with the published figures beside.
        notes: Takes what is done; returns paragraphs in Markdown.
        seeds: How many are run where none is asked for.
        needs: Takes the folder of data; returns what is missing there, or None.

    Raises:
        InputError: For a name that no command line takes.

    Example:
        >>> half = Experiment(name="half", paper="Nobody", shows="Table 0", cost="nothing",
        ...                   units=lambda seeds, scale: [{"seed": s} for s in range(seeds)],
        ...                   run=lambda unit, place: unit["seed"] / 2,
        ...                   tables=lambda done: [Table(["halves"], [[str(len(done))]])])
        >>> half.wanted(2, 1.0)
        [{'seed': 0}, {'seed': 1}]
    """

    name: str
    paper: str
    shows: str
    cost: str
    units: Callable[[int, float], Sequence[Unit]]
    run: Callable[[Unit, Place], Any]
    tables: Callable[[Sequence[Done]], Sequence[Table]]
    notes: Callable[[Sequence[Done]], str] = field(default=lambda done: "")
    seeds: int = 5
    needs: Callable[[Path], str | None] = field(default=lambda data: None)

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


def key(unit: Unit) -> str:
    """Return a unit as one line, the same for equal units.

    Args:
        unit: Of JSON values.

    Example:
        >>> key({"seed": 0, "data": "mnist"})
        '{"data": "mnist", "seed": 0}'
    """
    return json.dumps(unit, sort_keys=True, allow_nan=False)
