"""Random tables of people as programs write them, random questions, and pandas' own answers.

A survey holds what its cells mean: numbers, texts, days. It is stored in random dtypes and in a
random container. `Survey.differences` asks a session and compares with pandas on what is meant.
"""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from apiece.datasets import Categorical, Date, Numeric, Schema, Text
from apiece.filters.convert import gaussian_mu
from apiece.queries import Session, register

# Noise so small that counts, and sums of numbers of this size, are exact but for rounding.
DELTA = 1e-6
GAUSSIAN_EPSILON = 3e11
LAPLACE_EPSILON = 1e6
MU = float(gaussian_mu(GAUSSIAN_EPSILON, DELTA))
# Of so many standard deviations or scales no noise in all runs together is seen.
REACH = 40.0

CONTAINERS = ["pandas", "csv", "parquet", "arrow", "arrow in parts", "duckdb"]

DAYS = [dt.date(2023, 12, 30) + dt.timedelta(days=each) for each in range(5)]
WORDS = ["north", "south", "it's", "Zürich", "a,b", 'say "x"', "7"]
UNREADABLE = ["?", "n/a", "1,5", ""]


@dataclass(frozen=True)
class Column:
    """A column: what its cells mean (None where they are missing), and how they are stored."""

    name: str
    kind: str  # numeric, text, date
    meant: list[Any]
    stored: Any  # a pandas Series, of any dtype
    bounds: tuple[float, float] | None = None
    groups: list[Any] | None = None

    def declare(self) -> Numeric | Categorical | Text | Date:
        """The declaration in a schema."""
        if self.bounds is not None:
            return Numeric(*self.bounds, values=self.groups or ())
        if self.groups is not None:
            return Categorical(self.groups)
        return {"text": Text, "date": Date}[self.kind]()


@dataclass(frozen=True)
class Survey:
    """A table with its declarations, in one of its containers."""

    seed: int
    container: str
    columns: list[Column]
    schema: Schema
    meant: pd.DataFrame = field(repr=False)

    def source(self, folder: Path) -> Any:
        """Return the table as its container holds it."""
        frame = pd.DataFrame({each.name: each.stored for each in self.columns})
        frame = frame.sample(frac=1, random_state=self.seed)
        match self.container:
            case "pandas":
                return frame
            case "csv":
                path = folder / f"survey-{self.seed}.csv"
                frame.to_csv(path, index=False)
                return path
        table = pa.Table.from_pandas(frame, preserve_index=False)
        match self.container:
            case "arrow":
                return table
            case "arrow in parts":
                half = len(frame) // 2
                return pa.concat_tables([table.slice(0, half), table.slice(half)])
            case "duckdb":
                import duckdb

                return duckdb.from_arrow(table)
            case "polars":
                import polars

                return polars.from_arrow(table)
        path = folder / f"survey-{self.seed}.parquet"
        pq.write_table(table, path, row_group_size=random.Random(self.seed).choice([3, 1000]))
        return path

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        return next(each for each in self.columns if each.name == name)

    def differences(self, folder: Path, questions: int) -> Iterator[str]:
        """Yield each question whose answer is not pandas', with both."""
        rng = random.Random(self.seed + 1)
        table = register(self.source(folder), self.schema)
        session = Session(table, self.schema, seed=self.seed)
        for _ in range(questions):
            question = random_question(rng, self)
            reason = compare(session, self, question)
            if reason:
                yield f"seed {self.seed}, {self.container}: {question.text}: {reason}"
        table.close()


@dataclass(frozen=True)
class Question:
    """A question as text, and its parts for pandas."""

    aggregate: str
    columns: tuple[str, ...]
    numbers: tuple[float, ...]
    by: tuple[str, ...]
    where: Callable[[pd.DataFrame], pd.Series] | None
    delta: float
    text: str


# Tables


def random_survey(seed: int) -> Survey:
    """Return the table of a seed."""
    rng = random.Random(seed)
    container = rng.choice(CONTAINERS)
    people = rng.choice([0, 1, 5, 40, 120])
    most = rng.choice([1, 1, 3, 6])
    owners = [person for person in range(people) for _ in range(rng.randint(1, most))]
    rng.shuffle(owners)
    size = len(owners)
    columns = [
        id_column(rng, owners, container),
        number_column(rng, "x", size, container),
        number_column(rng, "y z", size, container),
        group_column(rng, "g", size, container),
        group_column(rng, "h", size, container),
        word_column(rng, "note", size),
        day_column(rng, "since", size),
    ]
    declared = {each.name: each.declare() for each in columns[1:]}
    schema = Schema(declared, person="who", rows_per_person=most)
    meant = pd.DataFrame({"who": pd.Series([*columns[0].meant], dtype="string")})
    for each in columns[1:]:
        dtype = {"numeric": "Float64", "text": "string", "date": "datetime64[us]"}[each.kind]
        meant[each.name] = pd.Series(each.meant, dtype=dtype)
    return Survey(seed, container, columns, schema, meant)


def id_column(rng: random.Random, owners: list[int], container: str) -> Column:
    """Return ids: numbers or texts, some of them missing."""
    if rng.random() < 0.3:
        values = [each * 7 for each in owners]
        return Column(
            "who", "text", [str(each) for each in values], pd.Series(values, dtype=np.int64)
        )
    texts: list[str | None] = [f"p {each}" for each in owners]
    for place in range(len(texts)):
        if rng.random() < 0.05:
            texts[place] = None
    dtype = rng.choice(["object", "string", "category"])
    return Column("who", "text", texts, pd.Series(texts, dtype="object").astype(dtype))


def number_column(rng: random.Random, name: str, size: int, container: str) -> Column:
    """Return numbers: on bounds and edges, repeated, beyond the bounds, missing."""
    low, high = rng.choice(
        [(0, 10), (0, 1), (-1, 1), (0.1, 1.3), (17, 90), (-50.5, -0.5), (0, 1e6)]
    )
    storages = ["float64", "float32", "Float64", "decimal", "text", "object", "double[pyarrow]"]
    if float(low).is_integer() and high <= 100:
        storages += ["int64", "Int64", "int8"]
        storages += ["bool", "boolean"]
    storage = rng.choice(storages)
    whole = storage in ("int64", "Int64", "int8")
    width = high - low

    def number() -> float:
        chance = rng.random()
        if storage in ("bool", "boolean"):
            return float(rng.random() < 0.5)
        if whole:
            return float(rng.randint(math.floor(low) - 2, math.ceil(high) + 2))
        if chance < 0.5:  # as people write them: on edges of 5, 10 or 20 bins
            return round(low + width * rng.randint(-1, 21) / 20, 6)
        if chance < 0.6:
            return low if chance < 0.55 else high
        return round(rng.uniform(low - width / 10, high + width / 10), 3)

    gaps = 0.15 if storage not in ("int64", "int8", "bool") else 0.0
    numbers = [None if rng.random() < gaps else number() for _ in range(size)]
    match storage:
        case "float32":
            # They are read as the shortest decimals that only this float32 has.
            numbers = [None if each is None else float(str(np.float32(each))) for each in numbers]
            stored = pd.Series(numbers, dtype="float32")
        case "decimal":
            numbers = [None if each is None else round(each, 6) for each in numbers]
            cells = [None if each is None else Decimal(repr(each)) for each in numbers]
            stored = pd.Series(cells, dtype="object")
        case "text":
            texts = [rng.choice(UNREADABLE) if each is None else repr(each) for each in numbers]
            stored = pd.Series(texts, dtype="object")
        case "object":
            stored = pd.Series(numbers, dtype="object")
        case "int64" | "int8":
            stored = pd.Series(numbers, dtype="float64").astype(storage)
        case "bool":
            stored = pd.Series(numbers, dtype="float64").astype(bool)
        case _:
            stored = pd.Series(numbers, dtype="float64").astype(storage)
    if not size and storage in ("decimal", "object"):
        stored = stored.astype("float64")
    return Column(name, "numeric", numbers, stored, bounds=(low, high))


def group_column(rng: random.Random, name: str, size: int, container: str) -> Column:
    """Return groups: texts, codes or days; some undeclared, some never seen, some missing."""
    storages = ["object", "string", "category", "int64", "Int64"]
    storages += ["days", "bool", "codes with gaps"]
    storage = rng.choice(storages)
    pool: list[Any] = WORDS
    if storage in ("int64", "Int64", "codes with gaps"):
        pool = [1, 2, 3, 10, 20, -1]
    elif storage == "bool":
        pool = [True, False]
    elif storage == "days":
        pool = DAYS
    declared = rng.sample(pool, rng.randint(1, min(4, len(pool))))
    gaps = 0.15 if storage not in ("int64", "bool") else 0.0
    cells = [None if rng.random() < gaps else rng.choice(pool) for _ in range(size)]
    dtype = {"codes with gaps": "float64", "days": "object"}.get(storage, storage)
    stored = pd.Series(cells, dtype="object")
    if dtype != "object":
        stored = (
            stored.astype("float64").astype(dtype) if dtype == "int64" else stored.astype(dtype)
        )

    def label(cell: Any) -> str:
        return str(cell).lower() if isinstance(cell, bool) else str(cell)

    groups = declared
    if storage in ("days", "bool") or rng.random() < 0.3:
        groups = [label(each) for each in declared]
    empty = None
    if rng.random() < 0.2:
        # The empty cell is a group of its own.
        groups = [*groups, ""]
        empty = ""
    meant = [empty if each is None else label(each) for each in cells]
    return Column(name, "text", meant, stored, groups=groups)


def word_column(rng: random.Random, name: str, size: int) -> Column:
    words = [None if rng.random() < 0.2 else rng.choice(WORDS) for _ in range(size)]
    dtype = rng.choice(["object", "string", "category"])
    return Column(name, "text", words, pd.Series(words, dtype="object").astype(dtype))


def day_column(rng: random.Random, name: str, size: int) -> Column:
    days = [None if rng.random() < 0.2 else rng.choice(DAYS) for _ in range(size)]
    storage = rng.choice(["date", "text", "datetime64[ns]", "datetime64[ms]"])
    stored = pd.Series(days, dtype="object")
    if storage == "text":
        stored = pd.Series(
            [None if each is None else each.isoformat() for each in days], dtype="object"
        )
    elif storage != "date":
        stored = pd.Series(pd.to_datetime(days), dtype=storage)
    meant = [None if each is None else pd.Timestamp(each) for each in days]
    return Column(name, "date", meant, stored)


# Questions


def quoted(name: str) -> str:
    return f'"{name}"'


def random_question(rng: random.Random, survey: Survey) -> Question:
    """Return a question over a survey's columns."""
    aggregate = rng.choice([
        "count", "count", "persons", "rows", "sum", "mean", "variance", "covariance", "histogram",
        "histogram", "quantile", "quantile", "interval", "regression",
    ])  # fmt: skip
    x, y = rng.sample(["x", "y z"], 2)
    columns: tuple[str, ...] = (x,)
    numbers: tuple[float, ...] = ()
    match aggregate:
        case "count":
            columns = rng.choice([(), (x,), ("note",), ("since",), ("g",)])
            inside = ", ".join(map(quoted, columns))
        case "persons" | "rows":
            columns = ()
            inside = aggregate
        case "histogram":
            numbers = (rng.choice([1, 4, 5, 10, 20]),)
            inside = f"{quoted(x)}, {numbers[0]}"
        case "quantile":
            levels = rng.sample([0.05, 0.25, 0.5, 0.75, 0.9], rng.choice([1, 1, 2, 3]))
            numbers = tuple(sorted(levels))
            inside = ", ".join([quoted(x), *map(str, levels)])
        case "interval":
            numbers = (rng.choice([0.25, 0.5, 0.9]),)
            inside = f"{quoted(x)}, {numbers[0]}"
        case "covariance":
            columns = (x, y)
            inside = f"{quoted(x)}, {quoted(y)}"
        case "regression":
            columns = (y, x)
            inside = f"{quoted(y)} ~ {quoted(x)}"
        case _:
            inside = quoted(x)
    name = "count" if aggregate in ("persons", "rows") else aggregate
    by = rng.choice([(), (), ("g",), ("h",), ("g", "h")])
    text = f"{name}({inside})"
    if by:
        text += " by " + ", ".join(map(quoted, by))
    where = None
    if rng.random() < 0.6:
        condition, where = random_condition(rng, survey, 2)
        text += f" where {condition}"
    pure = aggregate in ("count", "persons", "rows", "sum", "histogram")
    delta = 0.0 if pure and rng.random() < 0.5 else DELTA
    return Question(aggregate, columns, numbers, by, where, delta, text)


Where = Callable[[pd.DataFrame], pd.Series]


def random_condition(rng: random.Random, survey: Survey, depth: int) -> tuple[str, Where]:
    """Return a condition as text, and as pandas' nullable truth of each row."""
    if depth and rng.random() < 0.5:
        one, first = random_condition(rng, survey, depth - 1)
        if rng.random() < 0.3:
            return f"not ({one})", lambda frame: ~first(frame)
        two, second = random_condition(rng, survey, depth - 1)
        if rng.random() < 0.5:
            return f"({one} and {two})", lambda frame: first(frame) & second(frame)
        return f"({one} or {two})", lambda frame: first(frame) | second(frame)
    names = ["x", "y z", "note", "since", "g"]
    name = rng.choice(names)
    if rng.random() < 0.2:
        if rng.random() < 0.5:
            return f"{quoted(name)} is null", lambda frame: frame[name].isna().astype("boolean")
        return f"{quoted(name)} is not null", lambda frame: frame[name].notna().astype("boolean")
    column = survey.column(name)
    literals = [literal_of(rng, column) for _ in range(2)]
    if rng.random() < 0.2:
        listed = ", ".join(text for text, _ in literals)
        negated = rng.random() < 0.5

        def among(frame: pd.DataFrame) -> pd.Series:
            one, two = (compared(frame[name], "=", value) for _, value in literals)
            return ~(one | two) if negated else one | two

        return f"{quoted(name)} {'not ' * negated}in ({listed})", among
    sign = rng.choice(["=", "!=", "<>", "<", "<=", ">", ">="])
    text, value = literals[0]
    return f"{quoted(name)} {sign} {text}", lambda frame: compared(frame[name], sign, value)


def literal_of(rng: random.Random, column: Column) -> tuple[str, Any]:
    """Return a literal as text and as pandas compares it; often one of the cells."""
    cells = [each for each in column.meant if each is not None]
    if column.groups is not None:
        value = str(rng.choice(column.groups))
    elif column.kind == "text":
        value = rng.choice(WORDS)
    elif column.kind == "date":
        day = rng.choice(DAYS)
        return f"'{day.isoformat()}'", pd.Timestamp(day)
    else:
        number = rng.choice(cells) if cells and rng.random() < 0.7 else 0.5
        return repr(float(number)), float(number)
    escaped = value.replace("'", "''")
    return f"'{escaped}'", value


def compared(cells: pd.Series, sign: str, value: Any) -> pd.Series:
    """Return pandas' comparison, missing where a cell is."""
    operation = {"=": "eq", "!=": "ne", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
    truth = getattr(cells, operation[sign])(value).astype("boolean")
    return truth.mask(cells.isna())


# Answers


def compare(session: Session, survey: Survey, question: Question) -> str:
    """Return how an answer differs from pandas', or nothing."""
    if question.aggregate in ("quantile", "interval") or question.delta == 0:
        epsilon, noise = LAPLACE_EPSILON, 1 / LAPLACE_EPSILON
    else:
        epsilon, noise = GAUSSIAN_EPSILON, 1 / MU
    answer = session.ask(question.text, epsilon=epsilon, delta=question.delta)
    frame = survey.meant[survey.meant["who"].notna()]
    if question.where is not None:
        frame = frame[question.where(frame).fillna(False).astype(bool)]
    for name in question.columns:
        frame = frame[frame[name].notna()]
    labels = [[str(each) for each in survey.column(name).groups or []] for name in question.by]
    seen = [tuple(str(group[name]) for name in question.by) for group in answer.groups]
    expected = list(pd.MultiIndex.from_product(labels)) if labels else [()]
    if seen != [tuple(each) for each in expected]:
        return f"groups {seen}, not {expected}"
    rows = answer.rows_per_person
    for labelled, group in zip(seen, answer.groups, strict=True):
        part = frame
        for name, value in zip(question.by, labelled, strict=True):
            part = part[part[name].eq(value).fillna(False).astype(bool)]
        reason = compare_group(survey, question, part, group, noise * rows)
        if reason:
            return f"{dict(zip(question.by, labelled, strict=True))}: {reason}"
    return ""


def compare_group(
    survey: Survey, question: Question, part: pd.DataFrame, group: dict[str, Any], noise: float
) -> str:
    """Return how one group differs. noise: scale of a sum of ones, before the aggregate's norm."""
    clipped = [
        part[name].astype("float64").clip(*survey.column(name).bounds)
        for name in question.columns
        if survey.column(name).bounds is not None and question.aggregate != "count"
    ]
    near = REACH * noise
    match question.aggregate:
        case "count" | "rows":
            return off(group["estimate"], len(part), near)
        case "persons":
            return off(group["estimate"], part["who"].nunique(), near)
        case "sum":
            size = max(map(abs, survey.column(question.columns[0]).bounds or ()))
            return off(group["estimate"], clipped[0].sum(), near * size)
        case "histogram":
            expected, _ = np.histogram(clipped[0], bins=group["edges"])
            found = [each["estimate"] for each in group["bins"]]
            if len(found) != len(expected):
                return f"{len(found)} bins, not {len(expected)}"
            return "".join(off(*pair, near) for pair in zip(found, expected, strict=True))
        case "quantile" | "interval":
            return compare_ranks(clipped[0], question, group)
    if part.empty:  # noise over noise
        return ""
    half = math.prod(each_half(survey, name) for name in question.columns)
    match question.aggregate:
        case "mean":
            return off(group["estimate"], clipped[0].mean(), 4 * near * half / len(part))
        case "variance":
            near = 8 * near * half**2 / len(part)
            return off(group["estimate"], clipped[0].var(ddof=0), near)
        case "covariance":
            expected = float(np.cov(clipped[0], clipped[1], ddof=0)[0, 1])
            return off(group["estimate"], expected, 8 * near * half / len(part))
    return compare_line(survey, question, clipped, group)


def each_half(survey: Survey, name: str) -> float:
    low, high = survey.column(name).bounds or (0.0, 0.0)
    return (high - low) / 2


def off(found: float, expected: float, near: float) -> str:
    """Return what was found where it is not near to what is expected."""
    near += 1e-9 * max(1.0, abs(float(expected)))
    return "" if abs(found - float(expected)) <= near else f"{found} where pandas has {expected}; "


def compare_ranks(values: pd.Series, question: Question, group: dict[str, Any]) -> str:
    """Return which level's point is no quantile: too many rows lie beyond it."""
    # Rows lie on a grid of this step, so a row may move by half of it.
    step = group["resolution"] * (0.5 + 1e-6)
    points = [each["estimate"] for each in group.get("quantiles", {"": group}).values()]
    for level, point in zip(question.numbers, points, strict=True):
        rank = level * len(values)
        below, upto = (values < point - step).sum(), (values <= point + step).sum()
        # A level is kept to 30 bits; one of several is asked of the rows beside the others.
        slack = 1e-6 if len(points) == 1 else 1.0
        if not below - slack <= rank <= upto + slack:
            return f"level {level}: {point} has {below} rows below it and {upto} up to it; "
    if "interval" in group:
        low, high = group["interval"]
        rank = question.numbers[0] * len(values)
        if not low <= points[0] <= high:
            return f"{points[0]} lies outside {low} to {high}; "
        # Each end is further out by the rank margin, which is less than a row, and one row.
        outside = (values < low - step).sum() - rank, rank - (values <= high + step).sum()
        inside = rank - (values < high - step).sum(), (values <= low + step).sum() - rank
        if max(outside) > 0:
            return f"{low} to {high} does not cover the quantile; "
        if min(inside) < -4:
            return f"{low} to {high} is too wide; "
    return ""


def compare_line(
    survey: Survey, question: Question, clipped: list[pd.Series], group: dict[str, Any]
) -> str:
    """Return how least squares differ, where the columns determine them."""
    response, column = clipped
    low, high = survey.column(question.columns[1]).bounds or (0.0, 0.0)
    scaled = (column - (low + high) / 2) / each_half(survey, question.columns[1])
    design = np.column_stack([np.ones(len(scaled)), scaled])
    # Below 1 an eigenvalue is raised to it: too few rows, or all at one value.
    if np.linalg.eigvalsh(design.T @ design)[0] < 1:
        return ""
    slope, intercept = np.polyfit(column, response, 1)
    found = group["coefficients"]
    near = 1e-4 * each_half(survey, question.columns[0])
    half = each_half(survey, question.columns[1])
    reasons = [
        off(found["intercept"]["estimate"], intercept, near * (1 + abs(low + high) / half)),
        off(found[question.columns[1]]["estimate"], slope, near / half),
    ]
    return "".join(reasons)
