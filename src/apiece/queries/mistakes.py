"""Mistakes of a question and gaps in its declarations: all at once, before a row is read.

Everything here follows from the question and the declarations, so that anybody may read it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from apiece import _check
from apiece.errors import DataError, InputError, as_given
from apiece.queries.declarations import EXAMPLE_BOUNDS, EXAMPLE_VALUES, Declarations
from apiece.queries.expressions import (
    Call,
    Cell,
    Choice,
    Combined,
    Compare,
    Condition,
    Constant,
    Expression,
    Lacking,
    Matches,
    Missing,
    Negated,
    Relation,
)
from apiece.queries.fields import is_sql
from apiece.queries.functions import FUNCTIONS
from apiece.queries.grammar import ParsedQuery, parse
from apiece.queries.question import (
    bind_literals,
    check_joins,
    count_rows,
    make_view,
    needs_rows,
    settle_query,
)
from apiece.queries.sql import parse_statement

# Aggregates of which a row adds to one sum alone: these need no δ.
PURE: Final = ("count", "distinct", "sum", "histogram", "quantile", "interval")
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
    queries: list[ParsedQuery] = []
    try:
        statement = parse_statement(text)
        queries = [settle_query(query, declarations) for query in statement.queries]
    except InputError as error:
        mistakes.append(error)
        # A question that stops being one still shows what of it has to be declared.
        beginning = None if is_sql(text) else _parse_beginning(text)
        if beginning is not None:
            queries = [beginning]
    with _collect(mistakes):
        _check.positive("epsilon", epsilon)
    with _collect(mistakes):
        _require_delta(queries, delta)
    for query in queries:
        with _collect(mistakes):
            check_joins(query, declarations)
    undeclared = _find_undeclared(queries, declarations)
    mistakes += undeclared
    for query in queries:
        mistakes += _find_unfit_literals(query, declarations)
        # What is derived has bounds and groups only where its columns are declared.
        if query.is_sql and not undeclared:
            mistakes += _find_unfit_values(query, declarations)
    # What several statistics have in common is said once.
    return list({str(mistake): mistake for mistake in mistakes}.values())


def _find_unfit_values(query: ParsedQuery, declarations: Declarations) -> list[InputError]:
    """Return the error of each derived column without bounds or groups, or of unlike values."""
    mistakes: list[InputError] = []
    try:
        view = make_view(query, declarations)
    except InputError as error:
        return [error]
    # What is added up or ranked needs bounds; groups, and values that are counted, need to be
    # listed.
    if query.aggregate not in ("count", "distinct", "discover"):
        for name in query.columns:
            with _collect(mistakes):
                view.bounds_of(name)
    for name in query.by if query.aggregate != "distinct" else (*query.by, *query.columns):
        with _collect(mistakes):
            view.groups_of(name)
    for name in query.derived:
        with _collect(mistakes):
            view.kind_of(name)
    # Only where its columns have what they need, so that one gap is told once.
    if query.where is not None and not mistakes:
        with _collect(mistakes):
            view.check_condition(bind_literals(query.where, declarations))
    return mistakes


def _parse_beginning(text: str) -> ParsedQuery | None:
    """Return the longest beginning of a text that is a query, if need be with a bracket closed."""
    # A beginning ends where a word does. Each try parses the text anew, so they are few.
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


def _require_delta(queries: Sequence[ParsedQuery], delta: float) -> None:
    """Raise `InputError` for a δ out of bounds, and for δ = 0 where the noise is Gaussian."""
    delta = _check.probability("delta", delta, high_open=True)
    gaussian = [query.aggregate for query in queries if query.aggregate not in PURE]
    if delta == 0 and gaussian:
        if "discover" in gaussian:
            raise InputError(
                "delta = 0: SELECT DISTINCT needs one, the chance that a value of a single person "
                "is told; give a delta, such as 1e-6"
            )
        name = gaussian[0].replace("_", " ")
        raise InputError(
            f"delta = 0: {name} has Gaussian noise, which needs one; give a delta, "
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
        case Relation(left, _, right):
            yield from _yield_inner_leaves(left)
            yield from _yield_inner_leaves(right)
        case Lacking(expression) | Matches(expression):
            yield from _yield_inner_leaves(expression)


def _yield_inner_leaves(expression: Expression) -> Iterator[Compare | Missing]:
    """Yield the comparisons with a plain column in an expression, from left to right."""
    # Only the conditions of a CASE compare a column itself; what else is in an expression is
    # computed.
    match expression:
        case Call(_, arguments):
            for argument in arguments:
                yield from _yield_inner_leaves(argument)
        case Choice(branches, otherwise):
            for condition, value in branches:
                yield from _yield_leaves(condition)
                yield from _yield_inner_leaves(value)
            yield from _yield_inner_leaves(otherwise)


def _find_unfit_literals(query: ParsedQuery, declarations: Declarations) -> list[InputError]:
    """Return the error of each comparison with a literal of another kind or of no group."""
    mistakes: list[InputError] = []
    leaves = [*_yield_leaves(query.where)]
    for expression in query.derived.values():
        leaves += _yield_inner_leaves(expression)
    for leaf in leaves:
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
    def from_queries(cls, queries: Sequence[ParsedQuery], declarations: Declarations) -> _Gaps:
        """Return what queries need and is not declared; of a column that has nothing, one gap."""
        bounds: dict[str, None] = {}
        groups: dict[str, None] = {}
        kinds: dict[str, str] = {}
        for query in queries:
            _add_gaps(query, declarations, bounds, groups, kinds)
        # Bounds or groups say the kind too.
        declared = {*declarations.columns, *bounds, *groups}
        return cls(
            person=not declarations.person,
            bounds=list(bounds),
            groups=list(groups),
            kinds={name: kind for name, kind in kinds.items() if name not in declared},
            rows=any(map(needs_rows, queries)) and declarations.rows_per_person is None,
        )


def _add_gaps(
    query: ParsedQuery,
    declarations: Declarations,
    bounds: dict[str, None],
    groups: dict[str, None],
    kinds: dict[str, str],
) -> None:
    """Add the columns that a query needs bounds, groups or a kind of."""
    plain = [name for name in query.columns if name not in query.derived]
    booleans = [name for name in (*plain, *query.by) if declarations.kinds.get(name) == "boolean"]
    # In SQL a boolean needs neither bounds nor groups.
    is_bare = query.is_sql
    # A count asks of a cell only whether there is one, for which a text will do.
    if query.aggregate == "count":
        kinds |= dict.fromkeys(plain, "text")
    elif query.aggregate == "distinct":
        groups |= dict.fromkeys(
            name
            for name in plain
            if name not in declarations.groups and not (is_bare and name in booleans)
        )
    else:
        bounds |= dict.fromkeys(
            name
            for name in plain
            if name not in declarations.bounds and not (is_bare and name in booleans)
        )
    groups |= dict.fromkeys(
        name
        for name in query.by
        if name not in query.derived
        and name not in declarations.groups
        and not (is_bare and name in booleans)
    )
    # What a column is compared with tells more of its kind than that it is counted.
    for leaf in _yield_leaves(query.where):
        kinds[leaf.column] = _guess_kind(leaf)
    for expression in query.derived.values():
        for column, kind in _guess_kinds(expression, "text"):
            # A number that is calculated with needs bounds, or nothing that follows has some.
            if kind == "numeric" and column not in declarations.columns:
                bounds[column] = None
            else:
                kinds.setdefault(column, kind)
    for expression, context in _yield_compared(query.where):
        for column, kind in _guess_kinds(expression, context):
            kinds.setdefault(column, kind)


def _yield_compared(condition: Condition | None) -> Iterator[tuple[Expression, str]]:
    """Yield the expressions of a condition, with the kind that the other side suggests."""
    match condition:
        case Combined(_, parts):
            for part in parts:
                yield from _yield_compared(part)
        case Negated(part):
            yield from _yield_compared(part)
        case Relation(left, _, right):
            yield left, _kind_of_constant(right)
            yield right, _kind_of_constant(left)
        case Lacking(expression) | Matches(expression):
            yield expression, "text"


def _kind_of_constant(expression: Expression) -> str:
    if isinstance(expression, Constant) and expression.kind != "null":
        return expression.kind
    return "numeric"


def _guess_kinds(expression: Expression, context: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of an expression with the kind that each is used as."""
    match expression:
        case Cell(column):
            yield column, context
        case Call(name, arguments):
            # A cast is not settled yet, and what it casts is guessed to be a text.
            expected = FUNCTIONS[name].kinds if name in FUNCTIONS else ("text",)
            for index, argument in enumerate(arguments):
                # The last kind stands for all arguments that follow.
                kind = expected[min(index, len(expected) - 1)]
                # An argument of any kind is used as the call is.
                yield from _guess_kinds(argument, context if kind == "any" else kind)
        # What a CASE gives is most often a number; a wrong guess makes a worse example, and no
        # answer.
        case Choice(branches, otherwise):
            for condition, value in branches:
                for leaf in _yield_leaves(condition):
                    yield leaf.column, _guess_kind(leaf)
                for compared, kind in _yield_compared(condition):
                    yield from _guess_kinds(compared, kind)
                yield from _guess_kinds(value, "numeric")
            yield from _guess_kinds(otherwise, "numeric")


def _find_undeclared(
    queries: Sequence[ParsedQuery], declarations: Declarations
) -> list[InputError]:
    """Return one error that names all declarations that are missing, or none."""
    if not queries:
        return []
    gaps = _Gaps.from_queries(queries, declarations)
    errors: list[InputError] = []
    with _collect(errors):
        declarations.require_person()
    for name in gaps.bounds:
        with _collect(errors):
            declarations.bounds_of(name)
    for name in gaps.groups:
        with _collect(errors):
            declarations.groups_of(name)
    for name, kind in gaps.kinds.items():
        with _collect(errors):
            declarations.kind_of(name, example=kind)
    for query in queries:
        with _collect(errors):
            count_rows(query, declarations)
        # How many rows a person brings is lacking once, for all statistics.
        if gaps.rows and needs_rows(query):
            break
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
    # A date in a question is a text that can be read as one.
    try:
        datetime.fromisoformat(literal)
    except ValueError:
        return "text"
    return "date"


def _join_names(names: list[str]) -> str:
    return ", ".join(map(repr, names))
