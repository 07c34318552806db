"""What is declared about a table before a private query: all of it public, none of it looked up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from apiece import _check
from apiece.errors import DataError, InputError


@dataclass(frozen=True, slots=True)
class Schema:
    """person: column of the person's id. bounds: column → (low, high), what values are clamped to.

    groups: column → its declared values; rows with others are left out. rows_per_person: more
    rows of one person than this are dropped, by a choice that other people's rows do not touch.

    Raises `InputError` where low ≥ high, or a group is declared twice.

    >>> Schema("id", bounds={"income": (0, 200_000)}, groups={"region": ["north", "south"]})
    Schema(person='id', bounds={'income': (0.0, 200000.0)}, groups={'region': ('north', 'south')}, \
rows_per_person=1)
    """

    person: str
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    groups: Mapping[str, Sequence[str | int]] = field(default_factory=dict)
    rows_per_person: int = 1

    def __post_init__(self) -> None:
        bounds = {}
        for name, (low, high) in self.bounds.items():
            low, high = _check.finite(f"{name} low", low), _check.finite(f"{name} high", high)
            if not (low < high and math.isfinite(high - low)):
                raise InputError(f"bounds of {name!r}: {low:g} to {high:g}; low must be below high")
            bounds[name] = (low, high)
        groups = {name: tuple(values) for name, values in self.groups.items()}
        for name, values in groups.items():
            if not values or len(set(map(str, values))) != len(values):
                raise InputError(f"groups of {name!r}: declare each value once, at least one")
        object.__setattr__(self, "bounds", bounds)
        object.__setattr__(self, "groups", groups)
        _check.count("rows_per_person", self.rows_per_person)

    def bounds_of(self, column: str) -> tuple[float, float]:
        """Return a column's bounds; they are never taken from the data."""
        if column not in self.bounds:
            raise DataError(
                f"column {column!r}: no declared bounds; declare them (--bounds {column}=LOW:HIGH) "
                "from what is known without looking at the data"
            )
        return self.bounds[column]

    def groups_of(self, column: str) -> tuple[str | int, ...]:
        """Return a grouping column's declared values."""
        if column not in self.groups:
            raise DataError(
                f"column {column!r}: no declared groups; declare them (--values {column}=A,B,…)"
            )
        return tuple(self.groups[column])
