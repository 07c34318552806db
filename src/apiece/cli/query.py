"""apiece query: one private query, charged to a ledger."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import click

from apiece.errors import InputError

EXAMPLE = """
\b
Example:
  apiece query people.parquet "mean(income) by region" --person id \\
         --bounds income=0:200000 --values region=north,south \\
         --epsilon 0.5 --delta 1e-6 --ledger sqlite:///people.db
"""


@click.command(epilog=EXAMPLE)
@click.argument("source")
@click.argument("query")
@click.option("--person", required=True, help="Column with the persons' ids.")
@click.option("--bounds", multiple=True, help="column=LOW:HIGH, declared; repeatable.")
@click.option("--values", multiple=True, help="column=A,B,…: declared groups; repeatable.")
@click.option("--rows-per-person", type=int, default=1, show_default=True, help="At most.")
@click.option("--epsilon", type=float, required=True, help="Most that the query costs anyone.")
@click.option("--delta", type=float, required=True, help="Most that the query costs anyone.")
@click.option("--ledger", "url", help="Charge this ledger: sqlite:///file.db or postgresql://…")
@click.option("--analysis", help="Its name in the ledger; repeated, the answer is the recorded.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    source: str,
    query: str,
    person: str,
    bounds: tuple[str, ...],
    values: tuple[str, ...],
    rows_per_person: int,
    epsilon: float,
    delta: float,
    url: str | None,
    analysis: str | None,
    as_json: bool,
) -> None:
    """Answer QUERY over SOURCE (Parquet, CSV, JSON, or one SELECT) with differential privacy.

    count, sum, mean, variance, covariance, histogram, quantile, regression; "by" a column with
    declared values, "where" a condition.
    """
    from apiece.ledger import Ledger
    from apiece.queries import Schema, Session

    if analysis is not None and url is None:
        raise InputError("--analysis: names an entry of a ledger; give --ledger too")
    schema = Schema(
        person,
        bounds=dict(_bounds(text) for text in bounds),
        groups=dict(_values(text) for text in values),
        rows_per_person=rows_per_person,
    )
    ledger = None if url is None else Ledger.open(url, create=False)
    answer = Session(source, schema, ledger).ask(
        query, epsilon=epsilon, delta=delta, analysis_id=analysis
    )
    click.echo(json.dumps(answer.to_dict()) if as_json else _table(answer.to_dict()))


def _bounds(text: str) -> tuple[str, tuple[float, float]]:
    name, equals, rest = text.rpartition("=")
    low, colon, high = rest.partition(":")
    try:
        if not (equals and colon):
            raise ValueError
        return name, (float(low), float(high))
    except ValueError:
        raise InputError(f"--bounds: {text!r} is not column=LOW:HIGH, as in income=0:200000") from (
            None
        )


def _values(text: str) -> tuple[str, list[str]]:
    name, equals, rest = text.partition("=")
    if not (equals and name and rest):
        raise InputError(f"--values: {text!r} is not column=A,B, as in region=north,south")
    return name, rest.split(",")


def _table(answer: dict[str, Any]) -> str:
    lines = []
    for group in answer["groups"]:
        labels = [f"{k}={v}" for k, v in group.items() if k not in _FIELDS]
        for name, cell in _cells(group):
            low, high = cell["interval"]
            text = f"{cell['estimate']:.6g}  [{low:.6g}, {high:.6g}]"
            lines.append("  ".join([*labels, *([name] if name else []), text]))
    lines.append(f"intervals: {answer['confidence']:.0%}, of the noise")
    lines.append(f"guarantee: {answer['guarantee']}")
    return "\n".join(lines)


_FIELDS = ("estimate", "interval", "edges", "bins", "coefficients", "resolution")


def _cells(group: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if "bins" in group:
        edges = group["edges"]
        names = [f"{a:g} to {b:g}" for a, b in pairwise(edges)]
        return list(zip(names, group["bins"], strict=True))
    if "coefficients" in group:
        return list(group["coefficients"].items())
    return [("", group)]
