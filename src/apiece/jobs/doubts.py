"""What in a table and its schema looks like a mistake: of the header aloud, of rows in private.

The header, the schema and the number of records are public; what is said of cells is data about
people, for the steward's eyes only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from apiece.datasets import Categorical, Date, Encoded, Feature, Schema, Skip, column, texts
from apiece.errors import DataError, InputError
from apiece.jobs.config import Job

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Feature]
MOST_BYTES = 2**32  # of features


def roles(job: Job, label: str) -> dict[str, str]:
    """Return the columns that are no features, and what each is instead.

    Raises `InputError` where one column is given two roles.
    """
    data, budgets = job.data, job.budgets
    delta = budgets.delta if isinstance(budgets.delta, str) else None
    given = {"epsilon": budgets.epsilon, "delta": delta, "ids": data.ids, "person": data.person}
    given["split"] = data.split
    found = {label: "label"}
    for role, name in given.items():
        if name is None:
            continue
        if name in found:
            raise InputError(
                f"column {name!r}: given both as {found[name]} and as {role}; name one column each"
            )
        found[name] = role
    return found


def refuse_person_as_feature(person: str | None, schema: Schema) -> None:
    """Raise `InputError` where the schema declares the persons' ids as something to learn from."""
    if person is not None and not isinstance(schema.columns.get(person, Skip()), Skip):
        raise InputError(
            f"person column {person!r}: schema {schema.name} declares it as a feature, and ids are "
            'not to be learned from; declare it kind = "skip"'
        )


def refuse_too_wide(columns: Columns, rows: int) -> None:
    """Raise `DataError` where the features would not fit into memory, with the widest column."""
    widths = {n: len(k.values) if isinstance(k, Categorical) else 1 for n, k in columns.items()}
    size = 4 * rows * sum(widths.values())
    if size > MOST_BYTES:
        widest = max(widths, key=lambda name: widths[name])
        raise DataError(
            f"features: {sum(widths.values())} for {rows} records are {size / 2**30:.1f} GiB; "
            f"column {widest!r} alone declares {widths[widest]} values: merge them, or declare it "
            'kind = "skip"'
        )


def refuse_unread(frame: pd.DataFrame, columns: Columns, encoded: Encoded, decimal: str) -> None:
    """Raise `DataError` for a feature that could be read in no row at all."""
    for name, count in encoded.unread.items():
        if count < len(frame):
            continue
        kind, first = columns[name], str(texts(column(frame, name, "feature"))[0])
        if isinstance(kind, Date):
            why = (
                f"in every row it is empty or no date written as {kind.format!r} (the first: "
                f"{first!r}); give its format, mend the column, "
            )
        elif not isinstance(kind, Categorical):
            comma = decimal == "." and re.fullmatch(r"-?\d+,\d+", first)
            why = (
                f"in every row it is empty, infinite or no number (the first: {first!r}); "
                + ("if the comma is the decimal mark, pass --decimal ,; " if comma else "")
                + "mend the column, "
            )
        else:
            shown = ", ".join(repr(v) for v in kind.values[:4])
            case = "case matters; " if _but_for_case(frame, name, kind) else ""
            why = (
                f"no cell is one of the declared values (the first: {first!r}; declared: {shown}); "
                f"{case}mend the schema's values, "
            )
        raise DataError(f'feature column {name!r}: {why}or declare it kind = "skip"')


def of_rows(
    frame: pd.DataFrame, columns: Columns, encoded: Encoded, *, with_ids: bool
) -> list[str]:
    """Return what looks like a mistake in the rows: data about people, one line each."""
    found, size = [], len(frame)
    for name, count in encoded.unread.items():
        kind = columns[name]
        if count and isinstance(kind, Categorical):
            cased = _but_for_case(frame, name, kind)
            hint = f", {cased} of them but for their case" if cased else ""
            found.append(f"column {name!r}: {count} of {size} cells are no declared value{hint}")
        elif count:
            what = "date" if isinstance(kind, Date) else "finite number"
            found.append(f"column {name!r}: {count} of {size} cells are no {what}")
    for name, count in encoded.outside.items():
        if count == size:
            found.append(
                f"column {name!r}: every cell lies outside its declared range and is clipped; is "
                "the range in other units?"
            )
        cells = column(frame, name, "feature")
        if size >= 20 and cells.is_unique and all(c.isdecimal() for c in texts(cells)):
            found.append(
                f"column {name!r}: a different whole number in every row, like an id; is it one?"
            )
    if not with_ids and (copies := int(frame.duplicated().sum())):
        found.append(
            f"{copies} rows are exact copies of others; without --ids or --person every row is "
            "promised its budget, and a person with several rows gets several"
        )
    return found


def _but_for_case(frame: pd.DataFrame, name: str, kind: Categorical) -> int:
    """Return how many cells are no declared value but would be in another case."""
    known, alike = {*kind.values, *kind.missing}, {value.casefold() for value in kind.values}
    cells = texts(column(frame, name, "feature"))
    return sum(cell not in known and cell.casefold() in alike for cell in cells.tolist())
