"""What a question lacks or gets wrong: all of it at once, before a row is read.

Everything here follows from the question and the declarations, so that it may be told to anybody.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Final

from apiece import _check
from apiece.errors import DataError, InputError, as_given
from apiece.queries import scan
from apiece.queries.grammar import (
    Combined,
    Compare,
    Condition,
    Missing,
    Negated,
    ParsedQuery,
    parse,
)
from apiece.queries.schema import Schema

# Aggregates of which a row adds to one sum alone: these need no δ.
PURE: Final = ("count", "sum", "histogram", "quantile", "interval")
# What an example declares: nobody's bounds, values or rows.
_BOUNDS: Final = (0, 100)
_VALUES: Final = ("A", "B")
_ROWS: Final = 5
# A word, a quoted name or text, or a sign.
_WORD: Final = re.compile(r"""\w+|"[^"]*"|'[^']*'|\S""")
# Beginnings of a text that are tried, at most.
_CUTS: Final = 40


def find_mistakes(text: str, schema: Schema, *, epsilon: float, delta: float) -> list[InputError]:
    """Return everything about a question that is to be mended; what is read first comes first.

    Of a text that is no question, the part before the mistake tells what is to be declared.
    """
    mistakes: list[InputError] = []
    query: ParsedQuery | None = None
    try:
        query = parse(text)
    except InputError as error:
        mistakes.append(error)
        query = _readable_part(text)
    with _noting(mistakes):
        _check.positive("epsilon", epsilon)
    with _noting(mistakes):
        _require_delta(query, delta)
    if query is not None:
        mistakes += _undeclared(query, schema)
        mistakes += _unfit_literals(query, schema)
    return mistakes


def _readable_part(text: str) -> ParsedQuery | None:
    """Return the question that a beginning of the text is, the longest of them, or None."""
    ends = [word.end() for word in _WORD.finditer(text)]
    for end in reversed(ends[-_CUTS:]):
        for closed in ("", ")"):
            try:
                return parse(text[:end] + closed)
            except InputError:
                continue
    return None


@contextmanager
def _noting(mistakes: list[InputError]) -> Iterator[None]:
    """Add what is raised to the mistakes, and go on."""
    try:
        yield
    except InputError as error:
        mistakes.append(error)


def _require_delta(query: ParsedQuery | None, delta: float) -> None:
    """Raise `InputError` for a δ out of bounds, and for δ = 0 where the noise is Gaussian."""
    delta = _check.probability("delta", delta, high_open=True)
    if delta == 0 and query is not None and query.aggregate not in PURE:
        raise InputError(
            f"delta = 0: {query.aggregate} has Gaussian noise, which needs one; give a delta, "
            f"such as 1e-6 ({', '.join(PURE)} may have 0, for Laplace noise)"
        )


def _leaves(condition: Condition | None) -> Iterator[Compare | Missing]:
    """Yield the parts of a condition that name a column, from left to right."""
    match condition:
        case Combined(_, parts):
            for part in parts:
                yield from _leaves(part)
        case Negated(part):
            yield from _leaves(part)
        case Compare() | Missing():
            yield condition


def _unfit_literals(query: ParsedQuery, schema: Schema) -> list[InputError]:
    """Return the error of each comparison with a literal of another kind or of no group."""
    mistakes: list[InputError] = []
    for leaf in _leaves(query.where):
        if leaf.column in schema.columns:
            with _noting(mistakes):
                scan.resolved(leaf, schema)
    return mistakes


def _undeclared(query: ParsedQuery, schema: Schema) -> list[InputError]:
    """Return one error that names all declarations that are missing, or none."""
    counts = query.aggregate == "count"
    bounds = [] if counts else [name for name in query.columns if name not in schema.bounds]
    groups = [name for name in query.by if name not in schema.groups]
    kinds = {}
    for name in query.columns if counts else ():
        kinds[name] = "text"
    for leaf in _leaves(query.where):
        kinds[leaf.column] = _kind_like(leaf)
    declared = {*schema.columns, *bounds, *groups}
    kinds = {name: kind for name, kind in kinds.items() if name not in declared}
    rows = scan.needs_rows(query) and schema.rows_per_person is None
    alone: list[InputError] = []
    for name in bounds:
        with _noting(alone):
            schema.bounds_of(name)
    for name in groups:
        with _noting(alone):
            schema.groups_of(name)
    for name in kinds:
        with _noting(alone):
            schema.kind_of(name)
    with _noting(alone):
        scan.rows_of(query, schema)
    if len(alone) < 2:
        return alone
    lacking: list[str] = []
    line: list[str] = []
    if bounds:
        lacking.append(f"bounds of {_listed(bounds)}")
        flags = [f"--bounds {shlex.quote(f'{name}={_BOUNDS[0]}:{_BOUNDS[1]}')}" for name in bounds]
        whole = {**schema.bounds, **dict.fromkeys(bounds, _BOUNDS)}
        line.append(as_given("bounds", whole, flag=" ".join(flags)))
    if groups:
        lacking.append(f"values of {_listed(groups)}")
        example = ",".join(_VALUES)
        flags = [f"--values {shlex.quote(f'{name}={example}')}" for name in groups]
        values = {name: list(each) for name, each in schema.groups.items()}
        whole_groups = {**values, **{name: list(_VALUES) for name in groups}}
        line.append(as_given("groups", whole_groups, flag=" ".join(flags)))
    if kinds:
        lacking.append(f"kind of {_listed(list(kinds))}")
        flags = [f"--kind {shlex.quote(f'{name}={kind}')}" for name, kind in kinds.items()]
        line.append(as_given("kinds", {**schema.kinds, **kinds}, flag=" ".join(flags)))
    if rows:
        lacking.append("how many rows a person brings at most")
        line.append(as_given("rows_per_person", _ROWS))
    joined = as_given(", ".join(line), flag=" ".join(line))
    return [
        DataError(
            f"not declared: {'; '.join(lacking)}; declare them from what is known without looking "
            f"at the data, as in {joined}"
        )
    ]


def _kind_like(leaf: Compare | Missing) -> str:
    """Return the kind of a column that is compared so, as an example declares it."""
    if isinstance(leaf, Missing):
        return "text"
    literal = leaf.literals[0]
    if isinstance(literal, float):
        return "numeric"
    try:
        datetime.fromisoformat(literal)
    except ValueError:
        return "text"
    return "date"


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
