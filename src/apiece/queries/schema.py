"""Declarations about a table before a private query: all of them public, none looked up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from apiece import _check
from apiece.datasets.blocks import UNREADABLE
from apiece.errors import DataError, InputError, as_given, unknown
from apiece.queries.sources import text_of

KINDS: Final = ("numeric", "text", "date")
# Of bounds, and of what they are apart its inverse: no estimate from any noisy sums overflows.
LARGEST: Final = 1e60


@dataclass(frozen=True, slots=True)
class Schema:
    """What is declared about a table: ids, bounds, groups and kinds; all of it public.

    Args:
        person: Column of the person's id.
        bounds: Column → (low, high), what its values are clamped to.
        groups: Column → its declared values; rows with others are left out.
        rows_per_person: How many rows one person brings at most; more are dropped, by a choice that
            other people's rows do not touch. Without it only `count(persons)` without "by" can be
            asked.
        kinds: Column → "numeric", "text" or "date", how `where` compares it. By default a column
            with bounds is numeric, one with groups and the person's are text; no other can be
            named.

    Raises:
        InputError: Where low ≥ high or bounds are beyond ±1e60, a group is declared twice,
            rows_per_person is below 1, or a name or value carries control characters.
        OptionError: For an unknown kind.

    Example:
        >>> Schema("id", bounds={"income": (0, 200_000)}, rows_per_person=1)
        Schema(person='id', bounds={'income': (0.0, 200000.0)}, groups={}, rows_per_person=1,
               kinds={})
    """

    person: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str | float]] = field(default_factory=dict)
    rows_per_person: int | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bounds = {}
        for name, (low, high) in self.bounds.items():
            low, high = _check.finite(f"{name} low", low), _check.finite(f"{name} high", high)
            if not (-LARGEST <= low < high <= LARGEST and high - low >= 1 / LARGEST):
                raise InputError(
                    f"bounds of {name!r}: {low:g} to {high:g}; low must be below high, by "
                    f"{1 / LARGEST:g} at least, and neither beyond {LARGEST:g}"
                )
            bounds[name] = (low, high)
        groups = {name: tuple(map(_plain, values)) for name, values in self.groups.items()}
        for name, values in groups.items():
            texts = [text_of(value) for value in values]
            if not texts or None in texts or len(set(texts)) != len(texts):
                raise InputError(f"groups of {name!r}: declare each value once, at least one")
            _refuse_unreadable(f"groups of {name!r}", [str(text) for text in texts])
        for kind in self.kinds.values():
            if kind not in KINDS:
                raise unknown("kind", kind, KINDS)
        _refuse_unreadable("column", [str(name) for name in self.columns])
        if self.rows_per_person is not None:
            _check.count("rows_per_person", self.rows_per_person)
        for attribute, value in (("bounds", bounds), ("groups", groups), ("kinds", self.kinds)):
            object.__setattr__(self, attribute, dict(value))

    def bounds_of(self, column: str) -> tuple[float, float]:
        """Return a column's bounds; they are never taken from the data.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        if column not in self.bounds:
            raise DataError(
                f"column {column!r}: no declared bounds; declare them from what is known without "
                "looking at the data, as in "
                + as_given("bounds", {column: (0, 100)}, flag=f"--bounds {column}=0:100")
            )
        return self.bounds[column]

    def groups_of(self, column: str) -> tuple[str | float, ...]:
        """Return a grouping column's declared values.

        Args:
            column: A name.

        Raises:
            DataError: Where none are declared.
        """
        if column not in self.groups:
            raise DataError(
                f"column {column!r}: no declared groups; declare them, as in "
                + as_given("groups", {column: ["A", "B"]}, flag=f"--values {column}=A,B")
            )
        return tuple(self.groups[column])

    def kind_of(self, column: str) -> str:
        """Return how a column is compared: "numeric", "text" or "date".

        Args:
            column: A name.

        Raises:
            DataError: Where nothing about it is declared.
        """
        if column in self.kinds:
            return self.kinds[column]
        if column in self.bounds:
            return "numeric"
        if column in self.groups or column == self.person:
            return "text"
        raise DataError(
            f"column {column!r}: no declared kind; declare numeric, text or date, as in "
            f"{as_given('kinds', {column: 'text'}, flag=f'--kind {column}=text')}, or its bounds "
            "or groups"
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The declared columns, the person's first: what is read from a table, and no more."""
        return tuple(dict.fromkeys((self.person, *self.bounds, *self.groups, *self.kinds)))

    @property
    def readings(self) -> tuple[tuple[str, str], ...]:
        """Every (column, kind) that a query can ask for."""
        pairs = [(column, self.kind_of(column)) for column in self.columns]
        pairs += [(column, "numeric") for column in self.bounds]
        return tuple(dict.fromkeys(pairs))

    def stored(self, column: str, kind: str) -> str:
        """Return the name of a reading in the registered table; no name of a user's enters SQL.

        Args:
            column: A declared column.
            kind: One that it can be read as.
        """
        return f"c{self.readings.index((column, kind))}"

    def stored_group(self, column: str) -> str:
        """Return the name of the numbers of a column's declared groups in the registered table.

        Args:
            column: A column with declared groups.
        """
        self.groups_of(column)
        return f"g{list(self.groups).index(column)}"


def _plain(value: object) -> str | float:
    """Return a declared value as plain Python, which an answer can hold."""
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (str, int, float)):
        raise InputError(f"groups: {value!r} is neither a text nor a number; give one")
    return value


def _refuse_unreadable(what: str, texts: Sequence[str]) -> None:
    for text in texts:
        if UNREADABLE.search(text):
            raise InputError(
                f"{what}: {text!r} is not plain text; give text without control characters"
            )
