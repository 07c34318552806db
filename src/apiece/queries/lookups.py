"""Lookup tables: public columns that each row of the people's table has by one of its own cells.

A cell is looked up by itself, so that a row's public cells are a function of that row alone. Its
key is compared as a declared value is, whatever container the table lies in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apiece.datasets.cells import Date
from apiece.datasets.schema import Column, Numeric
from apiece.queries import reading, sources
from apiece.queries.declarations import Declarations, flag_of
from apiece.queries.sources import Columns
from apiece.tables.values import Declared, number_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Join:
    """A lookup table, ready for the rows of people."""

    # The people's column whose cells are looked up.
    on: str
    # What tells which key a cell is.
    keys: Declared
    # Column → its cells, in the order of the keys.
    cells: Mapping[str, pa.Array]
    # The column that is true where a row's key is in the table.
    flag: str

    def look_up(self, columns: Columns, declarations: Declarations) -> Columns:
        """Return the public cells of each row, null where its key is not in the table."""
        import pyarrow as pa
        import pyarrow.compute as pc

        cells = reading.unpack_cells(columns, self.on, declarations)
        found = sources.locate_declared(cells, self.keys)
        positions = pa.concat_arrays(found.chunks) if found.num_chunks else pa.array([], pa.int64())
        # A null position takes a null cell.
        joined = {
            column: pa.chunked_array([public.take(positions)])
            for column, public in self.cells.items()
        }
        # True or null, and never false: whether a row has a partner is asked by IS NULL.
        is_found = pc.if_else(pc.is_valid(positions), True, pa.scalar(None, pa.bool_()))
        return {**joined, self.flag: pa.chunked_array([is_found])}


def make_joins(declarations: Declarations) -> list[Join]:
    """Return the lookup tables of a table's declarations."""
    return [
        Join(
            lookup.on,
            declarations.lookup_keys(lookup),
            {
                column: _write_cells(lookup.cells[column], declared)
                for column, declared in lookup.columns.items()
            },
            flag_of(name, lookup),
        )
        for name, lookup in declarations.lookups.items()
    ]


def join_lookups(columns: Columns, joins: Sequence[Join], declarations: Declarations) -> Columns:
    """Return the columns of people's rows with those of all lookup tables."""
    joined = dict(columns)
    for join in joins:
        joined |= join.look_up(columns, declarations)
    return joined


def _write_cells(cells: Sequence[Any], declared: Column) -> pa.Array:
    """Return public cells as Arrow stores what they are declared as: numbers, days or texts."""
    import pyarrow as pa

    present = [cell for cell in cells if cell is not None]
    if all(isinstance(cell, bool) for cell in present):
        return pa.array(cells, pa.bool_())
    if isinstance(declared, Numeric):
        numbers = [None if cell is None else number_of(cell) for cell in cells]
        return pa.array([None if n is None else float(n) for n in numbers], pa.float64())
    if not isinstance(declared, Date) and all(isinstance(cell, int | float) for cell in present):
        return pa.array(cells, pa.float64())
    texts = [None if cell is None else str(cell) for cell in cells]
    return pa.array(texts, pa.large_string())
