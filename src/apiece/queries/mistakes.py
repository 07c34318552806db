"""Mistakes of a question and gaps in its declarations: all at once, before a row is read.

Everything here follows from the question and the declarations, so that anybody may read it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apiece import _check
from apiece.errors import DataError, InputError, as_given
from apiece.queries.declarations import EXAMPLE_BOUNDS, EXAMPLE_VALUES, Declarations
from apiece.queries.grammar import (
    Combined,
    Compare,
    Condition,
    Missing,
    Negated,
    ParsedQuery,
    parse,
)
from apiece.queries.question import bind_literals, count_rows, needs_rows

# Aggregates of which a row adds to one sum alone: these need no δ.
PURE: Final = ("count", "sum", "histogram", "quantile", "interval")
# Declarations of an example: nobody's rows or ids.
_ROWS: Final = 5
_PERSON: Final = "id"
# A word, a quoted name or text, or a sign.
_WORD: Final = re.compile(r"""\w+|"[^"]*"|'[^']*'|\S""")
# Beginnings of a text that are tried, at most.
_CUTS: Final = 40


def find_mistakes(
    text: str, declarations: Declarations, *, epsilon: float, delta: float
) -> list[InputError]:
    """Return every mistake of a question, in the order of its text, then of its declarations.

    Where the text is no question, the longest beginning that is one shows what is to be declared.
    """
    mistakes: list[InputError] = []
    query: ParsedQuery | None = None
    try:
        query = parse(text)
    except InputError as error:
        mistakes.append(error)
        query = _parse_beginning(text)
    with _collect(mistakes):
        _check.positive("epsilon", epsilon)
    with _collect(mistakes):
        _require_delta(query, delta)
    if query is not None:
        mistakes += _find_undeclared(query, declarations)
        mistakes += _find_unfit_literals(query, declarations)
    return mistakes


def _parse_beginning(text: str) -> ParsedQuery | None:
    """Return the longest beginning of a text that is a query, if need be with a bracket closed."""
    ends = [word.end() for word in _WORD.finditer(text)]
    for end in reversed(ends[-_CUTS:]):
        for bracket in ("", ")"):
            try:
                return parse(text[:end] + bracket)
            except InputError:
                continue
    return None


@contextmanager
def _collect(mistakes: list[InputError]) -> Iterator[None]:
    """Add an `InputError` to the mistakes instead of raising it."""
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


def _yield_leaves(condition: Condition | None) -> Iterator[Compare | Missing]:
    """Yield the parts of a condition that name a column, from left to right."""
    match condition:
        case Combined(_, parts):
            for part in parts:
                yield from _yield_leaves(part)
        case Negated(part):
            yield from _yield_leaves(part)
        case Compare() | Missing():
            yield condition


def _find_unfit_literals(query: ParsedQuery, declarations: Declarations) -> list[InputError]:
    """Return the error of each comparison with a literal of another kind or of no group."""
    mistakes: list[InputError] = []
    for leaf in _yield_leaves(query.where):
        if leaf.column in declarations.columns:
            with _collect(mistakes):
                bind_literals(leaf, declarations)
    return mistakes


@dataclass(frozen=True, slots=True)
class _Gaps:
    """The declarations that a query needs and a table lacks."""

    # Whether the column of people's ids is lacking.
    person: bool
    # Columns that need bounds, and columns that need groups.
    bounds: list[str]
    groups: list[str]
    # Column that needs a kind → the kind that its literals suggest.
    kinds: dict[str, str]
    # Whether the number of rows of a person is lacking.
    rows: bool

    @classmethod
    def from_query(cls, query: ParsedQuery, declarations: Declarations) -> _Gaps:
        """Return what a query needs and is not declared; of a column that has nothing, one gap."""
        bounds: list[str] = []
        kinds: dict[str, str] = {}
        if query.aggregate == "count":
            kinds = dict.fromkeys(query.columns, "text")
        else:
            bounds = [name for name in query.columns if name not in declarations.bounds]
        groups = [name for name in query.by if name not in declarations.groups]
        for leaf in _yield_leaves(query.where):
            kinds[leaf.column] = _guess_kind(leaf)
        declared = {*declarations.columns, *bounds, *groups}
        return cls(
            person=not declarations.person,
            bounds=bounds,
            groups=groups,
            kinds={name: kind for name, kind in kinds.items() if name not in declared},
            rows=needs_rows(query) and declarations.rows_per_person is None,
        )


def _find_undeclared(query: ParsedQuery, declarations: Declarations) -> list[InputError]:
    """Return one error that names all declarations that are missing, or none."""
    gaps = _Gaps.from_query(query, declarations)
    errors: list[InputError] = []
    with _collect(errors):
        declarations.require_person()
    for name in gaps.bounds:
        with _collect(errors):
            declarations.bounds_of(name)
    for name in gaps.groups:
        with _collect(errors):
            declarations.groups_of(name)
    for name in gaps.kinds:
        with _collect(errors):
            declarations.kind_of(name)
    with _collect(errors):
        count_rows(query, declarations)
    # A single gap has its own, more exact message.
    return errors if len(errors) < 2 else [_join_gaps(gaps, declarations)]


def _join_gaps(gaps: _Gaps, declarations: Declarations) -> DataError:
    """Return the error that names several gaps, with one example that fills them all."""
    lacking: list[str] = []
    flags: list[str] = []
    settings: list[str] = []
    if gaps.person:
        lacking.append("the column of people's ids")
        flags.append(f"--person {_PERSON}")
        settings.append(f"person={_PERSON!r}")
    if gaps.bounds:
        lacking.append(f"bounds of {_join_names(gaps.bounds)}")
        low, high = EXAMPLE_BOUNDS
        flags.append(_join_flags("--bounds", [f"{name}={low}:{high}" for name in gaps.bounds]))
    if gaps.groups:
        lacking.append(f"values of {_join_names(gaps.groups)}")
        values = ",".join(EXAMPLE_VALUES)
        flags.append(_join_flags("--values", [f"{name}={values}" for name in gaps.groups]))
    if gaps.kinds:
        lacking.append(f"kind of {_join_names(list(gaps.kinds))}")
        kinds = [f"{name}={kind}" for name, kind in gaps.kinds.items()]
        flags.append(_join_flags("--kind", kinds))
    if gaps.rows:
        lacking.append("how many rows a person brings at most")
        flags.append(f"--rows-per-person {_ROWS}")
        settings.append(f"rows_per_person={_ROWS}")
    names = dict.fromkeys([*gaps.bounds, *gaps.groups, *gaps.kinds])
    columns = []
    for name in names:
        column = declarations.write_example(
            name,
            needs_bounds=name in gaps.bounds,
            needs_groups=name in gaps.groups,
            kind=gaps.kinds.get(name),
        )
        columns.append(f"{name!r}: {column}")
    arguments = [f"{{{', '.join(columns)}}}", *settings] if columns else settings
    example = as_given(f"schema.declare({', '.join(arguments)})", flag=" ".join(flags))
    return DataError(
        f"not declared: {'; '.join(lacking)}; declare them from what is known without looking "
        f"at the data, as in {example}"
    )


def _join_flags(flag: str, values: list[str]) -> str:
    """Return an option of the command line, once for each value."""
    return " ".join(f"{flag} {shlex.quote(value)}" for value in values)


def _guess_kind(leaf: Compare | Missing) -> str:
    """Return the kind that an example declares a column as, by what it is compared with."""
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


def _join_names(names: list[str]) -> str:
    return ", ".join(map(repr, names))
