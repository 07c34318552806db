"""Public schemas: what is known about a table's columns without looking at anybody's values.

Feature encoding that learns ranges or categories from private rows leaks them, and no ε accounts
for it. So every range, category and missing-value marker is declared, in a TOML file of tables
[columns.NAME]; the guide of the main job shows one, and `template` writes one to be filled in.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final, Literal

from apiece import _check
from apiece._json import read_toml
from apiece._lazy import require
from apiece._types import Json
from apiece.datasets.cells import Date, Missing, list_markers, normalize_texts
from apiece.errors import DataError, unknown


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers known to lie in [lower, upper].

    Args:
        lower: What smaller numbers are clipped to.
        upper: What larger numbers are clipped to.
        scale: "linear", or "log" for long tails.
        missing: True for empty cells, NaN and None, or the texts that stand for no value, of which
            "" is the empty cell. They become an indicator, and the middle of the scale in place of
            the number: a fill that no row has a say in.

    Raises:
        DataError: Unless lower < upper, both finite, and for "log" lower at least 0.

    Example:
        >>> from apiece.datasets import Numeric
        >>> Numeric(30.0, 200.0, missing=True)
        Numeric(lower=30.0, upper=200.0, scale='linear', missing=('',))
    """

    lower: float
    upper: float
    scale: Literal["linear", "log"] = "linear"
    missing: Missing = ()

    def __post_init__(self) -> None:
        for end in ("lower", "upper"):
            number = _check.finite(end, getattr(self, end), error=DataError)
            object.__setattr__(self, end, number)
        object.__setattr__(self, "missing", list_markers(self.missing))
        if not self.lower < self.upper:
            raise DataError(f"lower = {self.lower:g} must be less than upper = {self.upper:g}")
        if self.scale not in ("linear", "log"):
            raise DataError(str(unknown("scale", self.scale, ["linear", "log"])))
        if self.scale == "log" and self.lower < 0:
            raise DataError(
                f"lower = {self.lower:g} with scale = 'log', which is for amounts from 0 up; give "
                'a lower end of at least 0, or scale = "linear"'
            )


@dataclass(frozen=True, slots=True)
class Categorical:
    """A column of declared values, as texts.

    Args:
        values: What a cell may be; anything else is none of them.
        missing: True for empty cells, NaN and None, or the texts that stand for no value, of which
            "" is the empty cell. They become an indicator.

    Raises:
        DataError: For no value, one given twice, or one that is a missing marker.

    Example:
        >>> from apiece.datasets import Categorical
        >>> Categorical(("north", "south"), missing=("?",)).values
        ('north', 'south')
    """

    values: tuple[str, ...]
    missing: Missing = ()

    def __post_init__(self) -> None:
        markers = list_markers(self.missing)
        object.__setattr__(self, "values", normalize_texts("values", self.values))
        object.__setattr__(self, "missing", markers)
        if not self.values or set(self.values) & set(markers):
            raise DataError("give at least one value, none of them a missing marker")


@dataclass(frozen=True, slots=True)
class Skip:
    """A column that is not used.

    Example:
        >>> from apiece.datasets import Skip
        >>> Skip()
        Skip()
    """


Feature = Numeric | Categorical | Date
Column = Feature | Skip


@dataclass(frozen=True, slots=True)
class Schema:
    """The declared columns of a table, in order.

    Args:
        name: Of the schema, for messages.
        columns: Name → declaration.

    Example:
        >>> from apiece.datasets import Numeric, Schema, Skip
        >>> Schema("people", {"age": Numeric(0.0, 9.0), "note": Skip()}).features(but=set())
        {'age': Numeric(lower=0.0, upper=9.0, scale='linear', missing=())}
    """

    name: str
    columns: Mapping[str, Column]

    @classmethod
    def from_dict(cls, data: Mapping[str, object], name: str) -> Schema:
        """Return the schema in `data`.

        Args:
            data: With one key `columns`, which maps names to declarations, as in TOML.
            name: Of the schema, for messages.

        Raises:
            DataError: Where it holds anything else.
        """
        columns = data.get("columns")
        if not isinstance(columns, dict) or not columns or set(data) != {"columns"}:
            raise DataError(f"schema {name}: it must hold tables [columns.NAME] and nothing else")
        return cls(name, {key: _read_column(key, value, name) for key, value in columns.items()})

    def features(self, *, but: set[str]) -> dict[str, Feature]:
        """Return the declared columns that make features: all but skipped ones and those in `but`.

        Args:
            but: Names of columns with another use.

        Raises:
            DataError: Where none is left.
        """
        features = {
            name: column
            for name, column in self.columns.items()
            if name not in but and not isinstance(column, Skip)
        }
        if not features:
            raise DataError(f"schema {self.name}: it declares no feature column; declare one")
        return features

    def target(self, label: str) -> Categorical | Numeric:
        """Return the declaration of the label column: its classes, or the range of a number.

        Args:
            label: Its name.

        Raises:
            DataError: Where it is not declared, or not as such.
        """
        column = self.columns.get(label)
        if column is None:
            raise DataError(
                f"label {label!r}: not declared in schema {self.name}; "
                f'add [columns.{label}] with kind = "categorical" and its values, or "numeric" and '
                "its range"
            )
        if isinstance(column, Numeric):
            if not column.missing:
                return column
            raise DataError(
                f"label {label!r}: schema {self.name} declares that it may be missing; a row "
                "without a number to predict teaches nothing: leave missing out, and such rows"
            )
        if not isinstance(column, Categorical) or len(column.values) < 2:
            raise DataError(
                f"label {label!r}: schema {self.name} must declare it categorical with at least "
                "2 values (one class cannot be learned), or numeric with a range"
            )
        return column

    def classes(self, label: str) -> tuple[str, ...]:
        """Return the declared values of the label column, at least two.

        Args:
            label: Its name.

        Raises:
            DataError: Where it is not declared, or not as such.
        """
        column = self.target(label)
        if isinstance(column, Categorical):
            return column.values
        raise DataError(
            f"label {label!r}: schema {self.name} must declare it categorical with at least "
            "2 values; one class cannot be learned"
        )

    def to_dict(self) -> Json:
        """Return the schema as `from_dict` reads it."""
        return {"columns": {name: _write_column(c) for name, c in self.columns.items()}}


def read_schema(path: str | Path) -> Schema:
    r"""Return the schema in a TOML file.

    Args:
        path: Of the file.

    Raises:
        DataError: Where it holds none.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.datasets import read_schema
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.toml")
        ...     _ = path.write_text("[columns.age]\nkind = 'numeric'\nlower = 0\nupper = 9\n")
        ...     list(read_schema(path).columns)
        ['age']
    """
    path = Path(path)
    return Schema.from_dict(read_toml(path, "schema"), path.name)


# The word of a schema's file → the kind of a column.
_KINDS: Final[dict[str, type[Column]]] = {
    "numeric": Numeric,
    "categorical": Categorical,
    "date": Date,
    "skip": Skip,
}


def _read_column(key: str, value: object, schema: str) -> Column:
    """Return the declaration of a column in a schema's file, or raise `DataError`."""
    location = f"schema {schema}, column {key!r}"
    if not isinstance(value, dict) or "kind" not in value:
        raise DataError(f"{location}: kind is missing; give one of {', '.join(map(repr, _KINDS))}")
    kind = value["kind"]
    if kind not in _KINDS:
        raise DataError(f"{location}: {unknown('kind', kind, _KINDS)}")
    known = {"missing", *(field.name for field in fields(_KINDS[kind]))}
    settings = {name: setting for name, setting in value.items() if name != "kind"}
    for name in settings.keys() - known:
        raise DataError(f"{location}: {unknown(f'key of a {kind} column', name, known)}")
    if kind == "skip":
        return Skip()
    if kind == "categorical":
        settings.setdefault("values", [])
    else:
        for end in ("lower", "upper"):
            if end not in settings:
                raise DataError(
                    f"{location}: {end} is missing; give the public range of the column"
                )
    try:
        column: Column = _KINDS[kind](**settings)
    except DataError as error:
        raise DataError(f"{location}: {error}") from None
    return column


def _write_column(column: Column) -> Json:
    """Return the declaration of a column as JSON values."""
    settings: Json = {"kind": next(k for k, kind in _KINDS.items() if isinstance(column, kind))}
    for field in fields(column):
        value = getattr(column, field.name)
        if isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, datetime.date):
            value = value.isoformat()
        settings[field.name] = value
    return settings


# Comments at the top of a template.
_INTRO: Final = """\
# Public schema of {name}: fill in every line marked '?', then pass it with --schema.
# Written from the names in the file's header{types}; no row was read.
# Give only what you know without looking at the people in this table: a questionnaire's codes, an
# official code list, a plausible range. Ranges and categories taken from the rows themselves would
# leak them, and no epsilon would account for that.
#   kind = "numeric"      lower, upper; scale = "log" for long tails
#   kind = "categorical"  values = [...]
#   kind = "date"         lower = 1900-01-01, upper; format = "%d.%m.%Y" of texts
#   kind = "skip"         not used
# missing = true is proposed for cells that may be empty: they get a feature of their own, and the
# middle of the range as their number. For other markers too: missing = ["", "?", "NA"]. A row
# whose number or date cannot be read is left out of training.
"""


# Beginnings of the types that a Parquet file declares, and a template's lines for such columns.
_BY_STORAGE: Final = (
    (
        ("int", "uint", "float", "double", "half", "decimal"),
        'kind = "numeric"\nlower = "?"\nupper = "?"',
    ),
    (("date", "timestamp"), 'kind = "date"\nlower = "?"\nupper = "?"'),
    (("bool",), 'kind = "categorical"\nvalues = ["True", "False"]'),
    (("",), 'kind = "categorical"\nvalues = ["?"]'),
)


def write_template(
    name: str, header: dict[str, str | None], *, label: str, but: Collection[str]
) -> str:
    """Return a TOML schema with one entry for each column of `header`, blanks marked '?'."""
    require("tables", "tomli_w")
    import tomli_w

    has_types = any(header.values())
    parts = [_INTRO.format(name=name, types=" and its storage types" if has_types else "")]
    for column, stored in header.items():
        if column in but:
            continue
        # The name of a table of TOML, quoted where it has to be.
        head = tomli_w.dumps({"columns": {column: {}}}).rstrip()
        missing = "missing = true\n"
        if column == label:
            note = "  # the label: two classes or more, or numeric with a range"
            lines = 'kind = "categorical"\nvalues = ["?", "?"]'
            missing = ""
        elif stored is None:
            note = ""
            lines = 'kind = "?"'
        else:
            note = f"  # stored as {stored}"
            lines = next(lines for begins, lines in _BY_STORAGE if stored.startswith(begins))
        parts.append(f"{head}{note}\n{lines}\n{missing}")
    return "\n".join(parts)


# Declared values of a column, at most, that pass without a remark; fewer where records are fewer.
MANY_VALUES: Final = 1000
# Unused columns that a message names, at most.
_SHOWN: Final = 8
# Names of columns that look like ids, and like budgets.
_LIKE_IDS: Final = re.compile(
    r"(^|[_ ])(ids?|uu?id|guid|ssn|e-?mail)$|^(person|patient|user|name)$", re.I
)
_LIKE_BUDGETS: Final = re.compile(r"epsilon|budget|consent|privacy", re.I)
# Values that look like markers of missing values, in lower case.
_MARKERS: Final = {"", "?", "na", "n/a", "nan", "null", "missing"}


def lint(
    schema: Schema, names: Sequence[str], *, taken: Mapping[str, str], records: int | None = None
) -> list[str]:
    """Return the likely mistakes of a schema, one line each.

    `taken` maps the columns that have another use to that use, as "label".
    """
    notes = [*_lint_names(schema, names, taken)]
    for name in names:
        is_skipped = isinstance(schema.columns.get(name, Skip()), Skip)
        if is_skipped and name not in taken and _LIKE_IDS.search(name):
            notes.append(
                f"column {name!r} looks like an id, and each row is protected by itself; pass "
                f"--person {name} where a person has several rows, or --ids {name}"
            )
    for name, kind in schema.columns.items():
        if isinstance(kind, Skip) or taken.get(name) == "label":
            continue
        if name in taken:
            notes.append(
                f"schema {schema.name} declares {name!r} as a feature, but it is the {taken[name]} "
                'column and is left out; declare it kind = "skip"'
            )
            continue
        if _LIKE_IDS.search(name):
            notes.append(
                f"feature {name!r} looks like an id, and would be learned from; pass --ids {name}, "
                f'or --person {name} where a person has several rows, or declare it kind = "skip"'
            )
        elif _LIKE_BUDGETS.search(name):
            notes.append(
                f"feature {name!r} looks like a budget, and would be learned from; pass it as "
                '--epsilon or --delta, or declare it kind = "skip"'
            )
        if isinstance(kind, Categorical):
            notes += _lint_values(name, kind, records)
    return notes


def _lint_names(schema: Schema, names: Sequence[str], taken: Mapping[str, str]) -> Iterator[str]:
    """Yield where a schema's names of columns and a table's do not fit."""
    declared = schema.columns
    # Name in one case → undeclared column of the table that has no other use.
    free = {name.casefold(): name for name in names if name not in declared and name not in taken}
    for name, kind in declared.items():
        if name in names or isinstance(kind, Skip):
            continue
        near = free.pop(name.casefold(), None)
        hint = "" if near is None else f"; it has {near!r}: case matters"
        yield f"schema {schema.name} declares {name!r}, which is not in the table{hint}"
    unused = [name for name in names if name in free.values()]
    if unused:
        listed = ", ".join(map(repr, unused[:_SHOWN]))
        if len(unused) > _SHOWN:
            listed += ", …"
        yield (
            f"not in schema {schema.name} and so not used: {listed}; declare "
            'them, kind = "skip" where that is meant'
        )
    for first, second in _find_cased_pairs(declared):
        yield f"schema {schema.name}: the columns {first!r} and {second!r} differ in case alone"


def _lint_values(name: str, kind: Categorical, records: int | None) -> Iterator[str]:
    """Yield the likely mistakes of a categorical column's declared values."""
    for first, second in _find_cased_pairs(kind.values):
        yield (
            f"feature {name!r}: the values {first!r} and {second!r} differ in case alone; list "
            "one, or mend the cells"
        )
    for value in kind.values:
        if value.casefold() in _MARKERS:
            yield (
                f"feature {name!r}: its value {value!r} looks like a marker of missing values; "
                "declare it under missing"
            )
    if records is not None and len(kind.values) > min(MANY_VALUES, records):
        yield (
            f"feature {name!r}: {len(kind.values)} declared values for {records} records; most are "
            'too rare to learn from under noise: merge them, or declare it kind = "skip"'
        )


def _find_cased_pairs(texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each text that differs from an earlier one in case alone, after the earliest such."""
    earliest: dict[str, str] = {}
    for text in texts:
        known = earliest.setdefault(text.casefold(), text)
        if known != text:
            yield known, text
