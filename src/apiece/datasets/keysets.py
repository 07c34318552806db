"""Sets of values from public files: the groups of a column, where there are too many to write."""

from __future__ import annotations

from pathlib import Path

from apiece.datasets.cells import Value
from apiece.datasets.tables import PLAIN, Dialect, read_table
from apiece.errors import DataError, as_given


def read_values(
    path: str | Path, column: str | None = None, dialect: Dialect = PLAIN
) -> tuple[Value, ...]:
    """Return the distinct values of a public file, in its order: a declaration of groups.

    Never give the table that is asked about: its values are data about people, and SELECT DISTINCT
    finds them with δ.

    Args:
        path: Of a table, as `read_table` takes it, or a text file (.txt) with a value a line.
        column: The table's column; None of a table that has one, and of a text file.
        dialect: How a CSV file is written.

    Raises:
        DataError: For a file that cannot be read, a column that it does not have, or no values.

    Guarantee:
        Empty cells and lines are no values.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.datasets import Categorical, read_values
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "towns.csv")
        ...     _ = path.write_text("town,region\\nBonn,west\\nJena,east\\nKöln,west\\n")
        ...     Categorical(read_values(path, "region")).values
        ('west', 'east')
    """
    file = Path(path)
    if file.suffix == ".txt":
        if column is not None:
            raise DataError(f"{file}: a text file has no column {column!r}; leave that out")
        cells = _read_lines(file)
    else:
        cells = _read_column(file, column, dialect)
    # Each value once, in the order of the file.
    values = dict.fromkeys(cells)
    if not values:
        raise DataError(f"{file}: has no values; give a file with some")
    return tuple(values)


def _read_lines(path: Path) -> list[Value]:
    """Return the lines of a text file that have something on them, without blanks around."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _read_column(path: Path, column: str | None, dialect: Dialect) -> list[Value]:
    """Return the cells of a table's column that have something in them."""
    table = read_table(path, dialect)
    names = [str(name) for name in table.columns]
    # A table of one column needs no name.
    if column is None and len(names) == 1:
        column = names[0]
    if column not in names:
        asked = "which column" if column is None else f"no column {column!r}"
        raise DataError(
            f"{path}: {asked}; name one of {', '.join(names[:8])}, "
            + as_given("read_values(path, 'town')", flag="as in @FILE::town")
        )
    # Numbers and booleans stay what they are, so that they are declared as such.
    cells = table[column].dropna().tolist()
    return [
        cell if isinstance(cell, (bool, int, float)) else str(cell) for cell in cells if cell != ""
    ]
