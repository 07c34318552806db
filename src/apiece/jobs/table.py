"""Table: the rows of a job as they were read, with what is declared of their columns.

The header, the schema and the number of rows are public. What is said of cells is data about
people, for the steward's eyes only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from apiece._types import AnyArray
from apiece.datasets import (
    Categorical,
    Date,
    Numeric,
    Schema,
    Skip,
    load,
    packaged_schema,
    read_schema,
)
from apiece.datasets.cells import list_markers, locate_values, read_texts, select_column
from apiece.datasets.encode import Encoded, encode, encode_labels, encode_numbers
from apiece.datasets.packaged import PACKAGED, match_packaged
from apiece.datasets.schema import UNUSED, Feature, lint
from apiece.datasets.tables import read_table
from apiece.errors import DataError, InputError
from apiece.jobs.config import BudgetColumns, Data
from apiece.jobs.roster import Roster, read_roster

if TYPE_CHECKING:
    import pandas as pd

    Cells: TypeAlias = pd.Series[Any]

Columns = Mapping[str, Feature]
# Bytes of the features of all rows, at most.
_MAX_FEATURE_BYTES: Final = 2**32
# Bytes of one feature of one row.
_FEATURE_BYTES: Final = 4
# Declared values that a message names, at most.
_SHOWN_VALUES: Final = 4
# Rows from which on a column of different whole numbers looks like an id; of fewer rows even ages
# may all differ.
_ROWS_OF_AN_ID: Final = 20
# A number that is written with a decimal comma.
_COMMA_NUMBER: Final = re.compile(r"-?\d+,\d+")


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is declared of a table's columns: public, and the same whatever the rows hold.

    Attributes:
        schema: The public schema.
        label: The column that is predicted.
        target: Its declaration: the classes, or the range of a number.
        features: Column that is learned from → its declaration.
        roles: Column that is no feature → what it is instead, such as "epsilon".
    """

    schema: Schema
    label: str
    target: Categorical | Numeric
    features: dict[str, Feature]
    roles: Mapping[str, str]

    @property
    def classes(self) -> tuple[str, ...]:
        """The label's values; none of a number."""
        return self.target.labels if isinstance(self.target, Categorical) else ()

    def read_labels(self, frame: pd.DataFrame, decimal: str) -> AnyArray:
        """Return what is predicted of each row (n,): positions of classes, or numbers."""
        if isinstance(self.target, Numeric):
            return encode_numbers(frame, self.label, decimal=decimal)
        return encode_labels(frame, self.label, self.target.labels)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Table:
    """The rows of a job, read once, with what is declared of them; data about people.

    It is made by `read_job_table` alone, which refuses what cannot be used.
    """

    # How the job says that its tables are written, and where everyone's ε and δ come from.
    data: Data
    budgets: BudgetColumns
    declaration: Declaration
    # The rows, their columns under the names of the schema.
    frame: pd.DataFrame
    # (n,) Each row's class, as its position, or its number.
    labels: AnyArray
    roster: Roster

    @property
    def decimal(self) -> str:
        """The decimal mark of numbers that are texts."""
        return self.data.dialect_of(self.data.source).decimal

    def encode(self) -> Encoded:
        """Return the features of every row, each by itself and the public schema.

        Raises `DataError` for a column that could be read in no row at all.
        """
        columns = self.declaration.features
        encoded = encode(self.frame, columns, decimal=self.decimal)
        refuse_unread(self.frame, columns, encoded, self.decimal)
        return encoded

    def list_public_doubts(self, records: int) -> list[str]:
        """Return what looks like a mistake in the header and the schema: public, one line each.

        `records` is how many have a budget. A packaged table has no mistakes.
        """
        if self.data.packaged:
            return []
        declaration = self.declaration
        names = list(self.frame.columns)
        return lint(declaration.schema, names, taken=declaration.roles, records=records)

    def list_private_doubts(self, encoded: Encoded) -> list[str]:
        """Return what looks like a mistake in the rows: data about people, one line each."""
        if self.data.packaged:
            return []
        return describe_row_doubts(
            self.frame,
            self.declaration.features,
            encoded,
            self.decimal,
            with_ids=self.roster.ids is not None,
        )

    def read_companion(self, path: str) -> tuple[pd.DataFrame, str]:
        """Return the rows of another file with these columns, and its decimal mark."""
        dialect = self.data.dialect_of(path)
        frame = read_table(path, dialect)
        # A file whose columns are named otherwise than the schema's is renamed as the table was.
        if self.declaration.label not in frame:
            frame, _, _ = apply_schema(frame, self.data, self.budgets)
        return frame, dialect.decimal


def read_job_table(data: Data, budgets: BudgetColumns) -> Table:
    """Return the table of a job; raise `DataError` or `InputError` for what it lacks."""
    dialect = data.dialect_of(data.source)
    frame = load(data.source) if data.packaged else read_table(data.source, dialect)
    # The schema says how the table is read: its names, what is predicted, and what each column can
    # hold.
    frame, schema, label = apply_schema(frame, data, budgets)
    target = schema.target(label)
    roles = assign_roles(data, budgets, label)
    if schema.decimal not in (".", dialect.decimal):
        raise InputError(
            f"decimal: schema {schema.name} says {schema.decimal!r}, and the job says "
            f"{dialect.decimal!r}; pass --decimal {schema.decimal}, or leave it out of the schema"
        )
    # A person's id may stand in the schema, but only to be left out.
    person_column = schema.columns.get(data.person, Skip()) if data.person else Skip()
    if not isinstance(person_column, UNUSED):
        raise InputError(
            f"person column {data.person!r}: schema {schema.name} declares it as a feature, and "
            'ids are not to be learned from; declare it kind = "skip"'
        )
    # Before anything is encoded, since that takes the memory.
    features = schema.features(but=set(roles))
    refuse_too_wide(features, len(frame))
    declaration = Declaration(schema, label, target, features, roles)
    labels = declaration.read_labels(frame, dialect.decimal)
    return Table(data, budgets, declaration, frame, labels, read_roster(frame, data))


def apply_schema(
    frame: pd.DataFrame, data: Data, budgets: BudgetColumns
) -> tuple[pd.DataFrame, Schema, str]:
    """Return the rows under the names of the schema that describes them, it, and the label."""
    # Three sources of a schema: the packaged one of a packaged table, a file, and a packaged one
    # that fits the header of the table.
    if data.packaged and data.schema is None:
        label = data.label or PACKAGED[data.source].label
        return frame, packaged_schema(data.source), label
    if data.label is None:
        raise InputError("label: missing; give --label with the name of the column to predict")
    select_column(frame, data.label, "label")
    if data.schema is not None:
        return frame, read_schema(data.schema), data.label
    # A table with the columns of a packaged one is read by its schema, which is public.
    match = match_packaged(list(frame.columns), data.label)
    if match is None:
        columns = (budgets.epsilon, data.ids, data.person, data.split)
        skips = "".join(f" --skip {column}" for column in columns if column)
        raise DataError(
            f"schema: none given and no packaged one fits {data.source}; ranges and categories "
            "must be public, not read from people's rows: write a template with "
            f"`apiece schema {data.source} --label {data.label}{skips} --out schema.toml`, fill it "
            "in, and pass --schema schema.toml"
        )
    schema, names = match
    return frame.rename(columns=names), schema, names[data.label]


def assign_roles(data: Data, budgets: BudgetColumns, label: str) -> dict[str, str]:
    """Return the columns that are no features, and what each is instead.

    Raises `InputError` where one column has two roles.
    """
    delta = budgets.delta
    columns = {
        "epsilon": budgets.epsilon,
        "delta": delta if isinstance(delta, str) else None,
        "ids": data.ids,
        "person": data.person,
        "split": data.split,
    }
    roles = {label: "label"}
    for role, name in columns.items():
        if name in roles:
            raise InputError(
                f"column {name!r}: given both as {roles[name]} and as {role}; name one column each"
            )
        if name is not None:
            roles[name] = role
    return roles


def refuse_too_wide(columns: Columns, rows: int) -> None:
    """Raise `DataError` where the features would not fit into memory, with the widest column."""
    widths = {}
    # A categorical column becomes a feature for each value, any other one feature.
    for name, kind in columns.items():
        widths[name] = len(kind.labels) if isinstance(kind, Categorical) else 1
    width = sum(widths.values())
    size = _FEATURE_BYTES * rows * width
    if size > _MAX_FEATURE_BYTES:
        widest = max(widths, key=lambda name: widths[name])
        raise DataError(
            f"features: {width} for {rows} records are {size / 2**30:.1f} GiB; "
            f"column {widest!r} alone declares {widths[widest]} values: merge them, or declare it "
            'kind = "skip"'
        )


def refuse_unread(frame: pd.DataFrame, columns: Columns, encoded: Encoded, decimal: str) -> None:
    """Raise `DataError` for a feature that could be read in no row at all."""
    for name, count in encoded.unread.items():
        if count == len(frame):
            cells = select_column(frame, name, "feature")
            reason = _explain_unread(cells, columns[name], decimal)
            raise DataError(f'feature column {name!r}: {reason}or declare it kind = "skip"')


def _explain_unread(cells: Cells, kind: Feature, decimal: str) -> str:
    """Return why no cell of a column could be read, and what to do."""
    example = str(read_texts(cells)[0])
    if isinstance(kind, Date):
        return (
            f"in every row it is empty or no date written as {kind.format!r} (the first: "
            f"{example!r}); give its format, mend the column, "
        )
    if isinstance(kind, Categorical):
        declared = ", ".join(repr(value) for value in kind.labels[:_SHOWN_VALUES])
        case = "case matters; " if _count_other_case(cells, kind) else ""
        return (
            f"no cell is one of the declared values (the first: {example!r}; declared: "
            f"{declared}); {case}mend the schema's values, "
        )
    remedy = "mend the column, "
    if decimal == "." and _COMMA_NUMBER.fullmatch(example):
        remedy = f"if the comma is the decimal mark, pass --decimal ,; {remedy}"
    return f"in every row it is empty, infinite or no number (the first: {example!r}); {remedy}"


def describe_row_doubts(
    frame: pd.DataFrame, columns: Columns, encoded: Encoded, decimal: str, *, with_ids: bool
) -> list[str]:
    """Return what looks like a mistake in the rows: data about people, one line each."""
    size = len(frame)
    doubts = []
    for name, count in encoded.unread.items():
        if count:
            cells = select_column(frame, name, "feature")
            fault = _describe_unread(cells, columns[name], decimal)
            doubts.append(f"column {name!r}: {count} of {size} cells are no {fault}")
    for name, count in encoded.outside.items():
        if count:
            hint = "; is the range in other units?" if count == size else ""
            doubts.append(
                f"column {name!r}: {count} of {size} cells lie outside their declared range and "
                f"are clipped{hint}"
            )
        if _looks_like_ids(select_column(frame, name, "feature")):
            doubts.append(
                f"column {name!r}: a different whole number in every row, like an id; is it one?"
            )
    if not with_ids:
        copies = int(frame.duplicated().sum())
        if copies:
            doubts.append(
                f"{copies} rows are exact copies of others; without --ids or --person every row "
                "is promised its budget, and a person with several rows gets several"
            )
    return doubts


def _describe_unread(cells: Cells, kind: Feature, decimal: str) -> str:
    """Return what the unread cells of a column should be and are not, with hints."""
    words = read_texts(cells)
    fault = "finite number"
    if isinstance(kind, Categorical):
        fault = "declared value"
        other_case = _count_other_case(cells, kind)
        if other_case:
            fault += f", {other_case} of them but for their case"
    elif isinstance(kind, Date):
        fault = "date"
    elif decimal == ".":
        commas = sum(_COMMA_NUMBER.fullmatch(word) is not None for word in words)
        if commas:
            fault += f", {commas} of them with a comma: if it is the decimal mark, --decimal ,"
    # An empty cell that is declared as a marker was read.
    empty = int((words == "").sum())
    if empty and "" not in list_markers(kind.missing):
        fault += f", {empty} of them empty: declare missing = true to learn from such rows"
    return fault


def _looks_like_ids(cells: Cells) -> bool:
    """Whether a column of some length has a different whole number in every row."""
    if len(cells) < _ROWS_OF_AN_ID or not cells.is_unique:
        return False
    return all(word.isdecimal() for word in read_texts(cells))


def _count_other_case(cells: Cells, kind: Categorical) -> int:
    """Return how many cells are no declared value but would be in another case."""
    folded_values = {value.casefold() for value in kind.labels}
    # Cells that are no value, without those that are declared as missing.
    codes, absent = locate_values(cells, kind.labels, list_markers(kind.missing))
    words = read_texts(cells[(codes < 0) & ~absent])
    return sum(word.casefold() in folded_values for word in words.tolist())
