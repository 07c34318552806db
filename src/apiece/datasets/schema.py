"""A public schema: what is known about a table's columns without looking at anybody's values.

Feature encoding that learns ranges or categories from private rows leaks them, and no ε accounts
for it. So every range, category and missing-value marker is declared here, in a TOML file:

    [columns.age]
    kind = "numeric"          # scaled from [lower, upper] to [-1, 1]; values outside are clipped
    lower = 16
    upper = 90

    [columns.capital_gain]
    kind = "numeric"
    lower = 0
    upper = 100000
    scale = "log"             # log(1 + value - lower), for long tails; lower at least 0

    [columns.workclass]
    kind = "categorical"      # one indicator a value; an undeclared value is none of them
    values = ["Private", "State-gov"]
    missing = ["?", ""]       # markers; "" is an empty cell or a null. They get their own indicator

    [columns.birth]
    kind = "date"             # as a number of days; dates outside are clipped
    lower = 1900-01-01
    upper = 2010-12-31
    format = "%d.%m.%Y"       # of texts; "%Y-%m-%d" if not given

    [columns.note]
    kind = "skip"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from apiece import _check
from apiece._json import read_toml
from apiece._types import Json
from apiece.datasets.dates import Date
from apiece.errors import DataError, unknown


@dataclass(frozen=True, slots=True)
class Numeric:
    """A column of numbers known to lie in [lower, upper].

    Args:
        lower: What smaller numbers are clipped to.
        upper: What larger numbers are clipped to.
        scale: "linear", or "log" for long tails.
        missing: Texts that stand for no value.

    Raises:
        DataError: Unless lower < upper, both finite, and for "log" lower at least 0.

    Example:
        >>> Numeric(16.0, 90.0).scale
        'linear'
    """

    lower: float
    upper: float
    scale: Literal["linear", "log"] = "linear"
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for end in ("lower", "upper"):
            number = _check.finite(end, getattr(self, end), error=DataError)
            object.__setattr__(self, end, number)
        object.__setattr__(self, "missing", tuple(self.missing))
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
        missing: Texts that stand for no value.

    Raises:
        DataError: For no value, one given twice, or one that is a missing marker.

    Example:
        >>> Categorical(("north", "south"), missing=("?",)).values
        ('north', 'south')
    """

    values: tuple[str, ...]
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "missing", tuple(self.missing))
        if not self.values or set(self.values) & set(self.missing):
            raise DataError("give at least one value, none of them a missing marker")
        if len(set(self.values)) < len(self.values):
            raise DataError("values: a value occurs twice; list each once")


@dataclass(frozen=True, slots=True)
class Skip:
    """A column that is not used.

    Example:
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
        >>> Schema("people", {"age": Numeric(0.0, 9.0), "note": Skip()}).features(but=set())
        {'age': Numeric(lower=0.0, upper=9.0, scale='linear', missing=())}
    """

    name: str
    columns: Mapping[str, Column]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str) -> Schema:
        """Return the schema in `data`.

        Args:
            data: With one key `columns`, which maps names to declarations, as in TOML.
            name: Of the schema, for messages.

        Raises:
            DataError: Where it holds anything else.

        Example:
            >>> age = {"kind": "numeric", "lower": 0, "upper": 9}
            >>> Schema.from_dict({"columns": {"age": age}}, "x").columns["age"]
            Numeric(lower=0.0, upper=9.0, scale='linear', missing=())
        """
        columns = data.get("columns")
        if not isinstance(columns, dict) or not columns or set(data) != {"columns"}:
            raise DataError(f"schema {name}: it must hold tables [columns.NAME] and nothing else")
        return cls(name, {key: _column(key, value, name) for key, value in columns.items()})

    def features(self, *, but: set[str]) -> dict[str, Feature]:
        """Return the columns that make features: all declared but skipped ones and those in `but`.

        Args:
            but: Names of columns with another use.

        Raises:
            DataError: Where none is left.
        """
        kept = {
            name: column
            for name, column in self.columns.items()
            if name not in but and not isinstance(column, Skip)
        }
        if not kept:
            raise DataError(f"schema {self.name}: it declares no feature column; declare one")
        return kept

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
            if column.missing:
                raise DataError(
                    f"label {label!r}: schema {self.name} declares missing = "
                    f"{list(column.missing)}; a row without a number to predict teaches nothing: "
                    "leave missing out, and such rows"
                )
            return column
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
        if not isinstance(column, Categorical):
            raise DataError(
                f"label {label!r}: schema {self.name} must declare it categorical with at least "
                "2 values; one class cannot be learned"
            )
        return column.values

    def to_dict(self) -> Json:
        """Return the schema as `from_dict` reads it."""
        return {"columns": {name: _column_dict(c) for name, c in self.columns.items()}}


def read_schema(path: str | Path) -> Schema:
    r"""Return the schema in a TOML file.

    Args:
        path: Of the file.

    Raises:
        DataError: Where it holds none.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "people.toml")
        ...     _ = path.write_text("[columns.age]\nkind = 'numeric'\nlower = 0\nupper = 9\n")
        ...     list(read_schema(path).columns)
        ['age']
    """
    path = Path(path)
    return Schema.from_dict(read_toml(path, "schema"), path.name)


_KEYS = {
    "numeric": {"kind", "lower", "upper", "scale", "missing"},
    "categorical": {"kind", "values", "missing"},
    "date": {"kind", "lower", "upper", "format", "missing"},
    "skip": {"kind", "missing"},
}


def _column(key: str, value: Any, schema: str) -> Column:
    where = f"schema {schema}, column {key!r}"
    if not isinstance(value, dict) or "kind" not in value:
        raise DataError(f"{where}: kind is missing; give one of {', '.join(map(repr, _KEYS))}")
    kind = value["kind"]
    if kind not in _KEYS:
        raise DataError(f"{where}: {unknown('kind', kind, _KEYS)}")
    for name in value:
        if name not in _KEYS[kind]:
            raise DataError(f"{where}: {unknown(f'key of a {kind} column', name, _KEYS[kind])}")
    missing = _texts(value.get("missing", []), f"{where}: missing")
    if kind == "skip":
        return Skip()
    try:
        if kind == "categorical":
            return Categorical(_texts(value.get("values", []), "values"), missing)
        return (_date if kind == "date" else _numeric)(value, missing)
    except DataError as error:
        raise DataError(f"{where}: {error}") from None


def _numeric(value: Mapping[str, Any], missing: tuple[str, ...]) -> Numeric:
    _require_ends(value)
    return Numeric(value["lower"], value["upper"], value.get("scale", "linear"), missing)


def _date(value: Mapping[str, Any], missing: tuple[str, ...]) -> Date:
    _require_ends(value)
    return Date(value["lower"], value["upper"], value.get("format", "%Y-%m-%d"), missing)


def _require_ends(value: Mapping[str, Any]) -> None:
    for end in ("lower", "upper"):
        if end not in value:
            raise DataError(f"{end} is missing; give the public range of the column")


def _texts(values: Any, where: str) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise DataError(f"{where} = {values!r}: must be a list")
    texts = tuple(str(v).strip() for v in values)
    if len(set(texts)) != len(texts):
        raise DataError(f"{where}: a value occurs twice; list each once")
    return texts


def _column_dict(column: Column) -> Json:
    match column:
        case Numeric(lower, upper, scale, missing):
            bounds = {"kind": "numeric", "lower": lower, "upper": upper, "scale": scale}
            return {**bounds, "missing": list(missing)}
        case Date(lower, upper, form, missing):
            ends = {"kind": "date", "lower": lower.isoformat(), "upper": upper.isoformat()}
            return {**ends, "format": form, "missing": list(missing)}
        case Categorical(values, missing):
            return {"kind": "categorical", "values": list(values), "missing": list(missing)}
        case Skip():
            return {"kind": "skip"}
