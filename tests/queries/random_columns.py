"""Random derived columns, and what each is of a row, computed in Python without a database."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta
from typing import Any

from apiece.datasets import Boolean, Categorical, Date, Numeric, Schema, Text

SCHEMA = Schema(
    {
        "x": Numeric(-3, 12),
        "y": Numeric(0, 1e9),
        "z": Numeric(),
        "town": Categorical(["Bonn", "Köln", "a'b", "07"]),
        "note": Text(),
        "smoker": Boolean(),
        "born": Date("1950-01-01", "1999-12-31"),
        "seen": Date("2020-01-01", "2021-06-30"),
    },
    person="id",
    rows_per_person=2,
)
MOST = 1e60
EPOCH = datetime(1970, 1, 1)
NUMBERS = [None, math.inf, -math.inf, 1e308, -1e308, 5e-324, -0.0, 0.0, 0.5, -2.5, 2.5, 7.0, 11.99]
TEXTS = [
    None,
    "Bonn",
    "Köln",
    "a'b",
    "07",
    "BONN",
    "",
    "1e999",
    "nan",
    "12.5",
    "1_0",
    "%",
    "_",
    "x" * 50,
]
DATES = [None, "0001-01-01", "9999-12-31 23:59:59", "1950-01-01", "1999-12-31 18:30", "2020-02-29",
         "2020-12-31", "2021-01-04", "1969-12-31 23:59:59.999999", "1975-07-05 12:00"]  # fmt: skip
Row = dict[str, Any]


def random_row(rng: random.Random) -> Row:
    """A row of cells as a table stores them, odd as often as not."""
    return {
        **{name: rng.choice([rng.choice(NUMBERS), rng.uniform(-5, 14)]) for name in "xyz"},
        "town": rng.choice(TEXTS),
        "note": rng.choice(TEXTS),
        "smoker": rng.choice([None, True, False]),
        "born": rng.choice(DATES),
        "seen": rng.choice(DATES),
    }


def cell(row: Row, name: str) -> Any:
    """What a cell means to an expression: clamped to its bounds, in the calendar."""
    value = row[name]
    if value is None or value == "":
        return None
    column = SCHEMA.columns[name]
    if isinstance(column, Numeric):
        low, high = (column.lower, column.upper) if column.has_range else (-MOST, MOST)
        return min(max(float(value), low), high)
    if isinstance(column, Date):
        moment = datetime.fromisoformat(value)
        first = datetime.combine(column.lower, datetime.min.time())
        last = datetime.combine(column.upper, datetime.min.time()) + timedelta(days=1)
        return min(max(moment, first), last - timedelta(microseconds=1))
    return value


def within(value: float | None) -> float | None:
    """A number that ends at ±1e60."""
    return None if value is None else min(max(value, -MOST), MOST)


Made = tuple[str, Any]  # SQL, and row → value


def number(rng: random.Random, depth: int) -> Made:
    """A random number of a row."""
    kind = rng.choice(["cell", "constant", "smoker"] if depth <= 0 else [*_NUMBERS])
    return _NUMBERS[kind](rng, depth - 1)


def _cell_number(rng: random.Random, _: int) -> Made:
    name = rng.choice("xyz")
    return name, lambda row: cell(row, name)


def _constant(rng: random.Random, _: int) -> Made:
    value = rng.choice([0.0, 1.0, 2.0, -1.5, 10.0, 0.1, 1e30, 365.25])
    return f"{value!r}", lambda _row: value


def _smoker(_rng: random.Random, _: int) -> Made:
    return "smoker", lambda row: None if row["smoker"] is None else float(row["smoker"])


def _arithmetic(rng: random.Random, depth: int) -> Made:
    (left, f), (right, g) = number(rng, depth), number(rng, depth)
    sign = rng.choice("+-*/%")

    def value(row: Row) -> float | None:
        a, b = f(row), g(row)
        if a is None or b is None:
            return None
        match sign:
            case "+":
                return within(a + b)
            case "-":
                return within(a - b)
            case "*":
                return within(a * b)
            case "/":
                return None if b == 0 else within(_quotient(a, b))
        return None if b == 0 else math.fmod(a, b)

    return f"({left} {sign} {right})", value


def _quotient(a: float, b: float) -> float:
    try:
        return a / b
    except OverflowError:
        return math.copysign(math.inf, a) * math.copysign(1, b)


def _one(rng: random.Random, depth: int) -> Made:
    inner, f = number(rng, depth)
    name = rng.choice(["floor", "ceil", "abs", "round", "sqrt", "-"])

    def value(row: Row) -> float | None:
        a = f(row)
        if a is None:
            return None
        match name:
            case "floor":
                return float(math.floor(a))
            case "ceil":
                return float(math.ceil(a))
            case "abs":
                return abs(a)
            case "round":
                whole = math.floor(abs(a))
                return math.copysign(whole + (abs(a) - whole >= 0.5), a)
            case "sqrt":
                return math.sqrt(a) if a >= 0 else None
        return 0.0 - a

    return f"{name}({inner})", value


def _several(rng: random.Random, depth: int) -> Made:
    parts = [number(rng, depth) for _ in range(rng.choice([2, 3]))]
    name = rng.choice(["least", "greatest", "coalesce"])

    def value(row: Row) -> float | None:
        values = [v for v in (f(row) for _, f in parts) if v is not None]
        if not values:
            return None
        return {"least": min, "greatest": max, "coalesce": lambda v: v[0]}[name](values)

    return f"{name}({', '.join(text for text, _ in parts)})", value


def _clamp(rng: random.Random, depth: int) -> Made:
    inner, f = number(rng, depth)

    def value(row: Row) -> float | None:
        a = f(row)
        return None if a is None else min(max(a, -2.0), 9.0)

    return f"clamp({inner}, -2, 9)", value


def _bucket(rng: random.Random, depth: int) -> Made:
    inner, f = number(rng, depth)

    def value(row: Row) -> float | None:
        a = f(row)
        if a is None:
            return None
        if a < -2:
            return 0.0
        return 5.0 if a >= 6 else min(math.floor((a + 2) * 4 / 8) + 1.0, 4.0)

    return f"width_bucket({inner}, -2, 6, 4)", value


def _choice(rng: random.Random, depth: int) -> Made:
    test, holds = condition(rng, depth)
    (first, f), (second, g) = number(rng, depth), number(rng, depth)
    return (
        f"CASE WHEN {test} THEN {first} ELSE {second} END",
        lambda row: f(row) if holds(row) else g(row),
    )


def _part(rng: random.Random, _: int) -> Made:
    name = rng.choice(["born", "seen"])
    part = rng.choice(["year", "month", "week", "dow", "isodow", "quarter", "day", "hour", "doy"])

    def value(row: Row) -> float | None:
        moment = cell(row, name)
        if moment is None:
            return None
        return float(
            {
                "year": moment.year,
                "month": moment.month,
                "week": moment.isocalendar().week,
                "dow": moment.isoweekday() % 7,
                "isodow": moment.isoweekday(),
                "quarter": (moment.month + 2) // 3,
                "day": moment.day,
                "hour": moment.hour,
                "doy": moment.timetuple().tm_yday,
            }[part]
        )

    return f"EXTRACT({part} FROM {name})", value


def _difference(rng: random.Random, _: int) -> Made:
    unit = rng.choice(["year", "month", "day", "week", "hour"])

    def value(row: Row) -> float | None:
        first, last = cell(row, "born"), cell(row, "seen")
        if first is None or last is None:
            return None
        if unit == "year":
            return float(last.year - first.year)
        if unit == "month":
            return float(12 * (last.year - first.year) + last.month - first.month)
        if unit == "hour":
            hours = [int((m - EPOCH).total_seconds() // 3600) for m in (first, last)]
            return float(hours[1] - hours[0])
        days = [m.toordinal() for m in (first, last)]
        if unit == "week":
            days = [(day - 1) // 7 for day in days]
        return float(days[1] - days[0])

    return f"date_diff('{unit}', born, seen)", value


def _length(rng: random.Random, depth: int) -> Made:
    inner, f = text(rng, depth)
    return f"length({inner})", lambda row: None if f(row) is None else float(len(f(row)))


def _cast(rng: random.Random, depth: int) -> Made:
    inner, f = text(rng, depth)

    def value(row: Row) -> float | None:
        a = f(row)
        try:
            parsed = None if a is None or "_" in a else float(a)
        except ValueError:
            return None
        return None if parsed is None or math.isnan(parsed) else within(parsed)

    return f"CAST({inner} AS DOUBLE)", value


_NUMBERS = {
    "cell": _cell_number,
    "constant": _constant,
    "smoker": _smoker,
    "arithmetic": _arithmetic,
    "arithmetic again": _arithmetic,
    "one": _one,
    "several": _several,
    "clamp": _clamp,
    "bucket": _bucket,
    "choice": _choice,
    "part": _part,
    "difference": _difference,
    "length": _length,
    "cast": _cast,
}


def text(rng: random.Random, depth: int) -> Made:
    """A random text of a row."""
    kind = rng.choice(["cell", "cell", "substr", "upper", "||", "coalesce", "case"])
    if depth <= 0 or kind == "cell":
        name = rng.choice(["town", "note"])
        return name, lambda row: cell(row, name)
    inner, f = text(rng, depth - 1)
    match kind:
        case "substr":
            return f"substr({inner}, 2, 3)", lambda row: None if f(row) is None else f(row)[1:4]
        case "upper":
            return f"lower({inner})", lambda row: None if f(row) is None else f(row).lower()
        case "||":
            return f"({inner} || '-x')", lambda row: None if f(row) is None else f(row) + "-x"
        case "coalesce":
            return f"coalesce({inner}, 'none')", lambda row: "none" if f(row) is None else f(row)
    test, holds = condition(rng, depth - 1)
    return (
        f"CASE WHEN {test} THEN {inner} ELSE 'else' END",
        lambda row: f(row) if holds(row) else "else",
    )


def condition(rng: random.Random, depth: int) -> Made:
    """A random condition of a row: true, false or None."""
    kind = rng.choice(["compare", "compare", "null", "like", "town", "date", "and", "or", "not"])
    if depth > 0 and kind in ("and", "or"):
        (left, f), (right, g) = condition(rng, depth - 1), condition(rng, depth - 1)
        return f"({left} {kind} {right})", lambda row: _join(kind, f(row), g(row))
    if depth > 0 and kind == "not":
        inner, f = condition(rng, depth - 1)
        return f"NOT ({inner})", lambda row: None if f(row) is None else not f(row)
    if kind == "null":
        inner, f = number(rng, depth)
        return f"{inner} IS NULL", lambda row: f(row) is None
    if kind == "like":
        inner, f = text(rng, depth)
        return f"{inner} LIKE 'B%'", lambda row: None if f(row) is None else f(row).startswith("B")
    if kind == "town":
        return (
            "town IN ('Bonn', '07')",
            lambda row: None if cell(row, "town") is None else row["town"] in ("Bonn", "07"),
        )
    if kind == "date":
        limit = datetime(2020, 12, 31)
        return (
            "seen + INTERVAL 3 DAY > '2020-12-31'",
            lambda row: (
                None if cell(row, "seen") is None else cell(row, "seen") + timedelta(days=3) > limit
            ),
        )
    (left, f), (right, g) = number(rng, depth), number(rng, depth)
    sign = rng.choice(["<", "<=", "=", "<>", ">"])

    def value(row: Row) -> bool | None:
        # Two plain cells beside literals are compared as they are; here both are derived.
        a, b = f(row), g(row)
        if a is None or b is None:
            return None
        return {"<": a < b, "<=": a <= b, "=": a == b, "<>": a != b, ">": a > b}[sign]

    return f"({left} + 0) {sign} ({right} * 1)", value


def _join(word: str, a: bool | None, b: bool | None) -> bool | None:
    if word == "and":
        if a is False or b is False:
            return False
        return None if a is None or b is None else True
    if a is True or b is True:
        return True
    return None if a is None or b is None else False
