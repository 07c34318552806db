"""Sixty questions of analysts in SQL, on two real tables: answered, or refused with a reason.

    python -m research.benchmarks.analysts --out research/results/analysts.json

The questions are in `analysts.toml`. Each is asked at a negligible noise. Where DuckDB runs the
same text on the table, with columns clamped to their bounds, numbers are compared with its own:
counts, sums, means, spreads and correlations to two thousandths. Quantiles and extremes, which are
drawn at ε = 100, are not compared.

Beside it stands what four tools' own documents have of what each question needs
(`analysts_tools.toml`): a question counts for a tool where all of it was found.
"""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd

from apiece.datasets import Categorical, Numeric, Schema, load, packaged_schema
from apiece.errors import ApieceError
from apiece.queries import Session
from apiece.queries.sql import is_sql

HERE = Path(__file__).parent
# A budget with which the noise is far below a thousandth of any number that is compared.
EPSILON = 1e7
DELTA = 1e-6
# Statistics that are drawn, and not compared.
DRAWN = ("median", "quantile", "percentile", "min(", "max(", "histogram", "DISTINCT")
DRAWN_EPSILON = 100.0
# Numbers agree within this, in proportion or in their own unit.
NEAR = 2e-3


def read_questions() -> list[dict[str, Any]]:
    """The questions, in order."""
    return list(tomllib.loads((HERE / "analysts.toml").read_text())["question"])


def read_tools() -> list[dict[str, Any]]:
    """The tools: what their documents have, by what a question may need."""
    return list(tomllib.loads((HERE / "analysts_tools.toml").read_text())["tool"])


def count_documented(tool: dict[str, Any], questions: list[dict[str, Any]]) -> dict[str, Any]:
    """How many questions a tool's documents have all of, and what the others lack."""
    lacking: dict[str, int] = {}
    documented = 0
    for question in questions:
        missing = [need for need in question["needs"] if tool[need][0] != "yes"]
        documented += not missing
        for need in missing:
            lacking[need] = lacking.get(need, 0) + 1
    return {
        "tool": tool["name"],
        "read": tool["read"],
        "documented": documented,
        "lacking": lacking,
    }


def make_tables() -> dict[str, tuple[Session, pd.DataFrame]]:
    """The two tables: a session, and the rows as DuckDB is to see them."""
    tables = {}
    for name, packaged in (("people", "adult"), ("cards", "credit_default")):
        frame = load(packaged)
        frame["person"] = [f"p{number}" for number in range(len(frame))]
        schema = Schema(packaged_schema(packaged).columns, person="person", rows_per_person=1)
        plain = frame.copy()
        for column, declared in schema.columns.items():
            if isinstance(declared, Numeric) and declared.has_range:
                plain[column] = plain[column].astype(float).clip(declared.lower, declared.upper)
            elif isinstance(declared, Categorical):
                texts = plain[column].astype(str)
                plain[column] = texts.where(texts.isin(map(str, declared.values)), None)
        tables[name] = Session(frame, schema, seed=0), plain
    return tables


def ask(question: dict[str, Any], session: Session, plain: pd.DataFrame) -> dict[str, Any]:
    """What became of a question."""
    text = question["sql"]
    outcome = {"ask": question["ask"], "sql": text}
    is_drawn = any(word in text for word in DRAWN)
    epsilon = DRAWN_EPSILON if is_drawn else EPSILON
    try:
        answer = session.ask(text, epsilon=epsilon, delta=DELTA)
    except ApieceError as error:
        return outcome | {"answered": False, "reason": str(error)}
    outcome |= {"answered": True, "groups": len(answer.groups)}
    if is_sql(text) and not is_drawn:
        outcome["agrees"] = agrees(answer.groups, text, plain)
    return outcome


def agrees(groups: list[dict[str, Any]], text: str, plain: pd.DataFrame) -> bool:
    """Whether the numbers are DuckDB's."""
    database = duckdb.connect()
    database.execute(
        "CREATE MACRO clamp(x, a, b) AS CASE WHEN x < a THEN a WHEN x > b THEN b ELSE x END"
    )
    database.execute(
        "CREATE MACRO width_bucket(x, a, b, n) AS CASE WHEN x < a THEN 0 WHEN x >= b THEN n + 1 "
        "ELSE floor((x - a) * n / (b - a)) + 1 END"
    )
    database.register("people", plain)
    database.register("cards", plain)
    cursor = database.execute(text)
    names = [column[0] for column in cursor.description]
    labels = [name for name in names if groups and name in groups[0]]
    rows = {}
    for row in cursor.fetchall():
        cells = dict(zip(names, row, strict=True))
        key = tuple(str_of(cells[name]) for name in labels)
        rows[key] = [cells[name] for name in names if name not in labels]
    for group in groups:
        numbers = group.get("statistics", {"": group}).values()
        estimates = [number["estimate"] for number in numbers]
        exact = rows.get(tuple(str_of(group[name]) for name in labels))
        if exact is None:
            # A group that nobody is in: its count is noise, its mean has no rows.
            continue
        for estimate, value in zip(estimates, exact, strict=True):
            if value is None:
                continue
            if not math.isclose(estimate, float(value), rel_tol=NEAR, abs_tol=NEAR):
                return False
    return True


def str_of(value: Any) -> str:
    """The text of a group's value, whole numbers without a point."""
    if isinstance(value, (bool, str)):
        return str(value)
    return f"{float(value):g}" if value is not None else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tables = make_tables()
    questions = read_questions()
    outcomes = [ask(question, *tables[question.get("table", "people")]) for question in questions]
    documented = [count_documented(tool, questions) for tool in read_tools()]
    result = {
        "questions": len(outcomes),
        "answered": sum(outcome["answered"] for outcome in outcomes),
        "compared": sum("agrees" in outcome for outcome in outcomes),
        "agree": sum(outcome.get("agrees", False) for outcome in outcomes),
        "documented": documented,
        "outcomes": outcomes,
    }
    for outcome in outcomes:
        state = "answered" if outcome["answered"] else f"refused: {outcome['reason']}"
        if outcome.get("agrees") is False:
            state += ", and not as DuckDB"
        print(f"{outcome['ask']}  {state}")
    print({key: value for key, value in result.items() if key != "outcomes"})
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
