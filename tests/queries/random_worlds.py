# ruff: noqa: E501
"""Random tables with hostile rows, and random queries over them, for the law of stability."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from apiece.datasets import Categorical, Date, Numeric, Schema, Text
from apiece.queries.declarations import Declarations
from apiece.queries.sources import text_of

COLUMNS = ("id", "source", "x", 'y "z"', "city", "since")
SCHEMA = Schema(
    {
        "x": Numeric(0, 10),
        'y "z"': Numeric(-1.5, 4),
        "city": Categorical(["Bonn", "Köln", "7", "a'b"]),
        "source": Text(values=["a", "b", ""]),
        "since": Date(),
    },
    person="id",
    rows_per_person=2,
)
DECLARATIONS = Declarations.from_schema(SCHEMA)
HOSTILE = [
    "", "?", "nan", "NaN", "inf", "-inf", "1e999", "-1e-999", "9" * 400, "0x10", "1_000", "1,5",
    "5.", ".5", "+3", " 7 ", "\u0661\u0662", "\uff17", "\u221e", "1\u00a0000", "true", "NULL", "None",
    "07", "7.0", "7e0", "-0", "a'b", "a''b", "'; DROP TABLE rows; --", '"', '""', '"x', 'x"', 'a"b"c',
    "a,b", "a;b", "\ta", "a\nb", "a\r\nb", "a\rb", "v0,b,3,3,Bonn,2020-01-01", "\0", "a\0", "\x1b[31m",
    "\x85", "\u2028", "\ufeff7", "\u202eabc", "Ko\u0308ln", "K\u00f6ln ", "x" * 200, "2024-02-30",
    "2024-02-29", "2024-02-29 24:00", "infinity", "epoch", "10000-01-01", "2024-02-29T10:00:00Z",
    "\u0662\u0660\u0662\u0664-01-01", "$1", "{0}", "%s", "\\", "source", "rowid", "people", "c1",
]  # fmt: skip
ODD = [
    None, True, 7, 7.0, 7.5, 2**53 + 1.0, 10**30, 10**5000, float("nan"), float("inf"), np.float32(0.1),
    np.int64(3), pd.NaT, pd.NA, pd.Timestamp("2024-02-29"), pd.Timestamp("2024-02-29", tz="Asia/Tokyo"),
    np.datetime64("2024-01-01"), b"bytes", ["list"], object(), complex(1, 1), "\ud800", "a\ud800b",
]  # fmt: skip
LINES = [
    b"v0,a,1,1,Bonn", b"v0,a,1,1,Bonn,2020-01-01,more", b"v0", b",,,,,", b"", b"v0;a;1;1;Bonn;x",
    b"v0\ta\t1\t1\tBonn\tx", b'"v0","a","1","1","Bonn","2020-01-01"', b'v0,"a,b",1,1,Bonn,2020-01-01',
    b'v0,"a""b",1,1,Bonn,2020-01-01', b"v0,a,1,1,K\xf6ln,2020-01-01", b"\xff\xfe\x00v\x000\x00",
    b"v0,a,1\x00,1,Bonn,2020-01-01", b"v0,'a,1,1,Bonn,2020-01-01", b"id,source,x,y,city,since",
    b"# comment", b"v0,\\,1,1,Bonn,2020-01-01", b"\xef\xbb\xbfv0,a,1,1,Bonn,2020-01-01",
    b"v0,a,1,1,Bonn," + b"9" * 100_000, b"," * 5000,
]  # fmt: skip
UNCLEAR = [
    b'v0,"a,1,1,Bonn,2020-01-01', b'v0,a,1,1,Bonn,"2020', b'v0,a"b,1,1,Bonn,2020-01-01', b'"',
    b'v0,"a"b,1,1,Bonn,2020-01-01', b'v0,"a,1,1,Bonn,"2020"', b'v0,a" x,"b,1,1,2020', b"v0,a\rb,1,1,B,x",
    b'v0,"a\np0,b,10,4,Bonn,2020-01-01\nq",1,1,Bonn,2020-01-01', b'v0,""",1,1,Bonn,2020-01-01',
]  # fmt: skip
Row = list[Any]


@dataclass(frozen=True)
class World:
    """A table in one of its forms, without and with one person's rows; all in a random order."""

    form: str
    rows: list[Any]
    mine: list[Any]

    def source(self, folder: Path, *, mine: bool, seed: int) -> Any:
        rows = self.rows + (self.mine if mine else [])
        random.Random(seed).shuffle(rows)
        if self.form == "csv":
            path = folder / f"people[{int(mine)}]*.csv"
            path.write_bytes(b"\n".join([HEADER, *rows]) + b"\n" * (seed % 2))
            return path
        if self.form == "frame":
            return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)
        table = pa.table(
            [pa.array([r[i] for r in rows], TYPES[i]) for i in range(6)], list(COLUMNS)
        )
        if self.form == "arrow":
            return table
        path = folder / f"people?{int(mine)}.parquet"
        pq.write_table(table, path)
        return path


HEADER = b'id,source,x,"y ""z""",city,since'
TYPES = [pa.string(), pa.string(), pa.float64(), pa.string(), pa.string(), pa.timestamp("ms")]


def world(rng: random.Random) -> World:
    form = rng.choice(["csv", "csv", "frame", "arrow", "parquet"])
    people = [f"p{i}" if rng.random() < 0.8 else str(i) for i in range(rng.randint(1, 6))]
    rows = [_row(rng, p, form, 0.15) for p in people for _ in range(rng.randint(1, 4))]
    ids = [c for c in HOSTILE + (ODD if form == "frame" else []) if text_of(c) not in people]
    mine = [
        _row(rng, "v0" if rng.random() < 0.7 else rng.choice(ids), form, 0.6)
        for _ in range(rng.randint(1, 4))
    ]
    if form == "csv":
        rows = [_line(rng, r) for r in rows]
        lines = [rng.choice(LINES) if rng.random() < 0.4 else _line(rng, r) for r in mine]
        return World(form, rows, lines)
    return World(form, rows, mine)


def _row(rng: random.Random, person: str, form: str, hostile: float) -> Row:
    """Return a row of a person; odd in each cell but the id with probability `hostile`."""
    usual: Row = [
        person,
        rng.choice("abc"),
        str(rng.choice([rng.randint(-3, 14), rng.uniform(-3, 14)])),
        str(round(rng.uniform(-3, 6), 3)),
        rng.choice(["Bonn", "Köln", "Rom", "7"]),
        f"20{rng.randint(10, 29)}-0{rng.randint(1, 9)}-1{rng.randint(0, 9)}",
    ]
    pool = HOSTILE + (ODD if form == "frame" else [])
    row = [
        c if i == 0 or rng.random() >= hostile else rng.choice(pool) for i, c in enumerate(usual)
    ]
    if form == "csv":
        # Line breaks and stray quotes are what `UNCLEAR` is about.
        return [str(c).replace("\n", "").replace("\r", "") for c in row]
    if form != "frame":
        row[2] = rng.choice(
            [float("nan"), float("inf"), 1e308, -1e308, None, 3.0, rng.uniform(-3, 14)]
        )
        row[5] = rng.choice(
            [None, 0, 2**62, -(2**62), 1_600_000_000_000, -62_135_596_801_000, 1_700_000_000_000]
        )
    return row


def _line(rng: random.Random, row: Row) -> bytes:
    fields = []
    for cell in row:
        quote = rng.random() < 0.2 or set(cell) & set(',"')
        fields.append('"' + cell.replace('"', '""') + '"' if quote else cell)
    return ",".join(fields).encode()


def query(rng: random.Random) -> str:
    """Return a random query over the columns of `SCHEMA`."""
    y = '"y ""z"""'
    aggregate = rng.choice([
        "count()", "count(since)", "count(source)", "count(x)", "sum(x)", f"sum({y})", f"mean({y})",
        "variance(x)", f"covariance(x, {y})", "histogram(x, 3)", "quantile(x, 0.5)", "count(persons)", f"regression(x ~ {y})",
    ])  # fmt: skip
    by = rng.choice(["", "", " by city", " by source", " by (city, source)"])
    where = f" where {_condition(rng, 3)}" if rng.random() < 0.7 else ""
    return aggregate + by + where


def select(rng: random.Random) -> str:
    """Return a random SELECT over the columns of `SCHEMA`, with derived columns that go wrong."""
    y = '"y ""z"""'
    number = rng.choice([
        f"x / {y}", "1 / x", "x * 1e50 * x", f"sqrt({y})", f"x % {y}", "CAST(city AS DOUBLE)", "ln(x)",
        "CASE WHEN since > '2020-02-29' THEN x END", f"coalesce({y}, x)", "date_diff('day', since, DATE '2020-01-01')",
        "exp(x * 100)", "length(source || city)", "power(x, 20)", "round(x, 2)", f"least(x, {y})",
    ])  # fmt: skip
    statistics = rng.sample([
        "count(*)", f"avg(clamp({number}, -5, 5))", f"sum(clamp({number}, 0, 2))", "count(DISTINCT city)",
        f"stddev(x) FILTER (WHERE {number} > 1)", f"count({number})", "count(DISTINCT id)", "count(DISTINCT lower(city))",
    ], rng.randint(1, 2))  # fmt: skip
    group = rng.choice(["", "", "floor(x / 3)", "month(since)", "lower(city)", "substr(source, 1, 1)",
                        f"width_bucket({number}, 0, 4, 3)", f"CASE WHEN {number} > 1 THEN 'a' ELSE 'b' END",
                        "x > 3", "city"])  # fmt: skip
    where = rng.choice(["", f" WHERE {number} < 3", " WHERE city LIKE 'B%' OR x IS NULL", " WHERE NOT (x > since)",
                        " WHERE since + INTERVAL 3 DAY > '2020-01-01'", " WHERE lower(city) = 'bonn'"])  # fmt: skip
    by = f" GROUP BY {group}" if group else ""
    return f"SELECT {', '.join(statistics)} FROM people{where}{by}".replace(
        " WHERE NOT (x > since)", ""
    )


def _condition(rng: random.Random, depth: int) -> str:
    if depth and rng.random() < 0.5:
        left, right = _condition(rng, depth - 1), _condition(rng, depth - 1)
        return rng.choice([f"not ({left})", f"({left} and {right})", f"({left} or {right})"])
    name = rng.choice(["x", '"y ""z"""', "city", "source", "since", "id"])
    if rng.random() < 0.15:
        return f"{name} is {rng.choice(['', 'not '])}null"
    literals = {
        "city": ["'Bonn'", "'Köln'", "'7'", "'a''b'"],
        "source": ["'a'", "'b'", "'zzz'", "'source'"],
        "id": ["'v0'", "'p0'", "'p1'", "'7'", "'0'"],
        "since": ["'2015-01-01'", "'2020-02-29'", "'2020-09-13 12:26:40'"],
    }.get(name, ["0", "3", "2.5", "-1e300", "1e-320", "9007199254740993"])
    if rng.random() < 0.2:
        return f"{name} {rng.choice(['', 'not '])}in ({', '.join(rng.sample(literals, 2))})"
    return f"{name} {rng.choice(['=', '!=', '<>', '<', '<=', '>', '>='])} {rng.choice(literals)}"
