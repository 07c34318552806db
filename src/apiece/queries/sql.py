"""Questions in SQL, read by sqlglot: `SELECT town, avg(pay / 12) FROM people GROUP BY town`.

sqlglot makes a tree of the text, and this module makes questions of the tree: what it does not
know it refuses by its name, with the nearest that is answered. Nothing of the text reaches the
database but declared columns, numbers and quoted texts; the SQL that runs is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from apiece._lazy import require
from apiece.errors import InputError, unknown
from apiece.queries.derived import date_constant, write
from apiece.queries.expressions import (
    NULL,
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
from apiece.queries.functions import PARTS, UNITS
from apiece.queries.grammar import DEPTH, LEVELS, Join, ParsedQuery, check_text, parse

if TYPE_CHECKING:
    from sqlglot import exp

# Statistics of a question, at most: each has noise of its own, for which all share the budget.
STATISTICS: Final = 20
# The levels that stand for the least and the largest value. A true extreme is one person's value,
# which no noise of a useful size hides; these levels are the nearest that rest on many people.
EXTREMES: Final = {"min": 0.01, "max": 0.99}
# Escape sequences of terminals, which sqlglot puts into its messages.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*m")
# What a message shows where no nearer remedy is known.
_EXAMPLE: Final = "for instance: SELECT town, avg(pay) FROM people WHERE age >= 18 GROUP BY town"


@dataclass(frozen=True, slots=True)
class Order:
    """A column of the answer by which its groups are ordered."""

    # A label of a group or of a statistic.
    label: str
    descending: bool


@dataclass(frozen=True, slots=True)
class Limit:
    """A comparison of a noisy statistic with a number: which groups are shown."""

    label: str
    sign: str
    number: float


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic on the noisy numbers of an answer, such as a ratio of two sums."""

    # One of + - * / and round; "" for a number or a statistic.
    sign: str
    parts: tuple[Formula, ...] = ()
    number: float = 0.0
    # Number of a statistic of the statement; −1 for none.
    statistic: int = -1


@dataclass(frozen=True, slots=True)
class Statement:
    """What a text asks: statistics of the same groups, and how their answer is shown."""

    text: str
    # One query a statistic, in the order of the text; all of them have the same `by`.
    queries: tuple[ParsedQuery, ...]
    # The name of each statistic.
    labels: tuple[str, ...]
    # The numbers that the answer shows: name → what is calculated. None for the statistics alone.
    formulas: tuple[tuple[str, Formula], ...] | None = None
    # Column of `by` → its name in the answer.
    group_labels: dict[str, str] = field(default_factory=dict)
    orders: tuple[Order, ...] = ()
    limits: tuple[Limit, ...] = ()
    # How many groups are shown, at most.
    shown: int | None = None
    is_sql: bool = False
    # The table that SQL names after FROM; "" in the language of `grammar`.
    table: str = ""


def parse_statement(text: str) -> Statement:
    """Return what a text asks, in SQL or in the language of `grammar`.

    Raises `InputError` where it is no question, and `NotInstalledError` for SQL without sqlglot.
    """
    if not is_sql(text):
        query = parse(text)
        return Statement(query.text, (query,), (query.text,))
    check_text(text)
    return _Reader(text).read()


# Class of a node → the function of `FUNCTIONS` that it calls, of its arguments in order.
_FUNCTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Abs": ("abs", ("this",)),
    "Ceil": ("ceil", ("this",)),
    "Sign": ("sign", ("this",)),
    "Sqrt": ("sqrt", ("this",)),
    "Ln": ("ln", ("this",)),
    "Exp": ("exp", ("this",)),
    "Lower": ("lower", ("this",)),
    "Upper": ("upper", ("this",)),
    "Length": ("length", ("this",)),
    "Add": ("+", ("this", "expression")),
    "Sub": ("-", ("this", "expression")),
    "Mul": ("*", ("this", "expression")),
    "Div": ("/", ("this", "expression")),
    "Mod": ("%", ("this", "expression")),
    "Pow": ("power", ("this", "expression")),
    "Nullif": ("nullif", ("this", "expression")),
    "DPipe": ("||", ("this", "expression")),
    "Replace": ("replace", ("this", "expression", "replacement")),
    "WidthBucket": ("width_bucket", ("this", "min_value", "max_value", "num_buckets")),
    "Year": ("year", ("this",)),
    "Quarter": ("quarter", ("this",)),
    "Month": ("month", ("this",)),
    "Week": ("week", ("this",)),
    "WeekOfYear": ("week", ("this",)),
    "Day": ("day", ("this",)),
    "DayOfMonth": ("day", ("this",)),
    "DayOfYear": ("dayofyear", ("this",)),
    "DayOfWeek": ("weekday", ("this",)),
    "DayOfWeekIso": ("isoweekday", ("this",)),
    "Hour": ("hour", ("this",)),
    "Minute": ("minute", ("this",)),
}
# Functions that sqlglot has no node for: name → function, and how many arguments.
_ANONYMOUS: Final = {
    "clamp": ("clamp", 3),
    "width_bucket": ("width_bucket", 4),
    "trunc": ("trunc", 1),
    "weekday": ("weekday", 1),
    "isodow": ("isoweekday", 1),
    "minute": ("minute", 1),
    "log10": ("log10", 1),
}
# Word of EXTRACT and date_part → part of a date.
_PARTS: Final = {
    **{name: name for name in PARTS},
    "dow": "weekday",
    "dayofweek": "weekday",
    "isodow": "isoweekday",
    "doy": "dayofyear",
}
# Class of a node → sign of a comparison.
_COMPARISONS: Final = {
    "EQ": "=",
    "NEQ": "<>",
    "LT": "<",
    "LTE": "<=",
    "GT": ">",
    "GTE": ">=",
}
# Sign of a comparison → the sign that says the same with the sides swapped.
_SWAPPED: Final = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
# Class of a node → aggregate of a number.
_AGGREGATES: Final = {
    "Sum": "sum",
    "Avg": "mean",
    "Stddev": "sample_deviation",
    "StddevSamp": "sample_deviation",
    "StddevPop": "deviation",
    "Variance": "sample_variance",
    "VariancePop": "variance",
    "Median": "median",
    "Min": "min",
    "Max": "max",
}
# Aggregates that sqlglot has no node for; std and var are those of a sample, as in SQL and pandas.
_ANONYMOUS_AGGREGATES: Final = {
    "mean": "mean",
    "std": "sample_deviation",
    "stdev": "sample_deviation",
    "var": "sample_variance",
}
# Class of a node → aggregate of two columns.
_PAIRS: Final = {
    "Corr": "correlation",
    "CovarSamp": "sample_covariance",
    "CovarPop": "covariance",
}
# Class of a node → what to write in its place.
_NEAREST: Final = {
    "Star": "rows are never shown; ask for statistics, as count(*) or avg(pay)",
    "Window": "a window shows a value for each row; ask for a statistic with GROUP BY",
    "Subquery": "ask the inner question by itself, or write its columns as expressions",
    "Select": "ask the inner question by itself, or write its columns as expressions",
    "Exists": "write a condition on the row itself",
    "Join": "join a declared public table, as JOIN regions ON people.postcode = regions.postcode, "
    "or LEFT JOIN",
    "Union": "ask one question after the other",
    "With": "write the columns of the inner question as expressions",
    "Mode": "SELECT value, count(*) … GROUP BY value ORDER BY count(*) DESC LIMIT 1",
    "GroupConcat": "texts of rows are never shown; ask count(*) GROUP BY the column",
    "ArrayAgg": "values of rows are never shown; ask for quantiles or a histogram",
    "AnyValue": "values of rows are never shown; ask median(x), or count(*) GROUP BY it",
    "First": "values of rows are never shown; ask min(x), or count(*) GROUP BY it",
    "Last": "values of rows are never shown; ask max(x), or count(*) GROUP BY it",
    "CurrentDate": "a question means the same on every day; write DATE '2024-01-31'",
    "CurrentTimestamp": "a question means the same at any time; write TIMESTAMP '2024-01-31 18:30'",
    "Rand": "a random number is no function of a row; the answer's noise is added by itself",
    "RegexpLike": "write LIKE, as in name LIKE 'A%'",
    "RegexpExtract": "write substr(x, start, length)",
    "ILike": "write lower(x) LIKE 'a%'",
    "RegrSlope": "ask regression(y ~ x)",
    "RegrIntercept": "ask regression(y ~ x)",
    "Cube": "ask once for each GROUP BY",
    "Rollup": "ask once for each GROUP BY",
    "GroupingSets": "ask once for each GROUP BY",
    "JSONExtract": "make it a column of its own before",
    "Placeholder": "write the value itself",
    "Parameter": "write the value itself",
}


class _Aggregate(NamedTuple):
    """An aggregate with its columns, and its levels or number of bins."""

    name: str
    arguments: list[Expression]
    numbers: list[float]


class _Reader:
    """Reads a tree of sqlglot's into a statement."""

    def __init__(self, text: str) -> None:
        require("sql", "sqlglot")
        self.text = text.strip()
        # Alias → the node that it stands for.
        self.aliases: dict[str, exp.Expression] = {}
        # Alias of a joined public table → its join, and whether rows without a key are left out.
        self.joins: dict[str, tuple[Join, bool]] = {}
        # The people's table.
        self.table = ""
        # Name of a column of a query → the one expression that has it.
        self.names: dict[str, Expression] = {}
        # Formulas, expressions and conditions that are open, together: the depth of recursion.
        self.depth = 0

    def read(self) -> Statement:
        """Return the statement; raise `InputError` for what is not one."""
        select = self._parse()
        self._refuse_clauses(select)
        # Joins come before all expressions, which resolve the key of a joined table by them.
        self._read_joins(select)
        # Grouping comes before the statistics: it fills `aliases`, and each query carries all
        # groups.
        grouped = self._read_grouping(select)
        condition = self._read_where(select)
        if select.args.get("distinct"):
            return self._read_discovery(select, condition)
        queries: list[ParsedQuery] = []
        labels: list[str] = []
        formulas: list[tuple[str, Formula]] = []
        group_labels: dict[str, str] = {}
        # A selected node is one of three things: a grouping column, arithmetic on statistics, or a
        # single statistic.
        for node in select.expressions:
            label = node.alias if node.alias and _class_of(node) == "Alias" else ""
            inner = node.this if _class_of(node) == "Alias" else node
            name = self._match_group(inner, grouped)
            if name is not None:
                group_labels[name] = label or name
                continue
            if _is_arithmetic(inner):
                formula = self._read_formula(inner, grouped, condition, queries, labels)
                formulas.append((label or inner.sql(dialect="duckdb"), formula))
                continue
            query = self._read_statistic(inner, list(grouped), condition, grouped)
            shown = label or _label_of(query)
            # A statistic that is selected twice is answered once: a second draw of its noise would
            # be paid for again, and the two numbers would differ.
            number = _find_query(query, queries)
            if number < 0:
                number = len(queries)
                queries.append(query)
                labels.append(_free_label(shown, labels))
            formulas.append((shown, Formula("", statistic=number)))
        if not queries:
            raise InputError(
                "query: SELECT names no statistic; add one, as count(*) (rows are never shown)"
            )
        if len(queries) > STATISTICS:
            raise InputError(f"query: {len(queries)} statistics; give at most {STATISTICS}")
        # All groups are shown, in the order of GROUP BY, whether SELECT names them or not.
        group_labels = {name: group_labels.get(name, name) for name in grouped}
        names = [*group_labels.values(), *(shown for shown, _ in formulas)]
        for label in names:
            if names.count(label) > 1:
                raise InputError(
                    f"query: the answer has {label!r} twice; give one of them a name, with AS"
                )
        # Formulas that are the statistics themselves, in order, calculate nothing.
        is_plain = [formula.statistic for _, formula in formulas] == list(range(len(queries)))
        statement = Statement(
            self.text,
            tuple(queries),
            tuple(labels),
            None if is_plain else tuple(formulas),
            group_labels,
            is_sql=True,
            table=self.table,
        )
        return self._read_presentation(select, statement, grouped)

    def _read_formula(
        self,
        node: Any,
        grouped: dict[str, Expression],
        where: Condition | None,
        queries: list[ParsedQuery],
        labels: list[str],
    ) -> Formula:
        """Return arithmetic on statistics, which are added to the queries where they are new."""
        self.depth += 1
        if self.depth > DEPTH:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter")
        try:
            return self._read_formula_part(node, grouped, where, queries, labels)
        finally:
            self.depth -= 1

    def _read_formula_part(
        self,
        node: Any,
        grouped: dict[str, Expression],
        where: Condition | None,
        queries: list[ParsedQuery],
        labels: list[str],
    ) -> Formula:
        name = _class_of(node)
        is_cast = name in ("Cast", "TryCast") and str(node.args["to"].this.name) in _REAL_TYPES
        # Statistics have decimals already, and a division by zero has no number in any case.
        if name == "Paren" or is_cast or _is_null_if_zero(node):
            return self._read_formula(node.this, grouped, where, queries, labels)
        # A number is a leaf of the formula.
        if name == "Literal" and not node.is_string:
            return Formula("", number=self._read_number(node))
        if name in _ARITHMETIC:
            keys = ("this",) if name in ("Neg", "Round") else ("this", "expression")
            parts = [
                self._read_formula(node.args[key], grouped, where, queries, labels) for key in keys
            ]
            # −x is 0 − x, an empty formula being the number 0.
            if name == "Neg":
                parts = [Formula(""), *parts]
            # The digits are the second part of a formula that rounds, always there.
            if name == "Round":
                digits = node.args.get("decimals")
                number = 0.0 if digits is None else self._read_number(digits)
                if not (number.is_integer() and abs(number) <= 15):
                    raise InputError("query: round(x, digits): give whole digits from -15 to 15")
                parts = [*parts, Formula("", number=number)]
            return Formula(_ARITHMETIC[name], tuple(parts))
        # All else has to be a statistic, which the statement asks once, wherever it occurs.
        query = self._read_statistic(node, list(grouped), where, grouped)
        position = _find_query(query, queries)
        if position < 0:
            position = len(queries)
            queries.append(query)
            labels.append(_free_label(_label_of(query), labels))
        return Formula("", statistic=position)

    def _read_discovery(self, select: exp.Select, where: Condition | None) -> Statement:
        """Return the statement that finds the values of a column that nobody declared."""
        on = select.args["distinct"].args.get("on")
        if on is not None:
            raise self.refuse(on, "rows are never shown; write SELECT DISTINCT and one column")
        clauses = [name for name in ("group", "having", "order", "limit") if select.args.get(name)]
        nodes = select.expressions
        if clauses or len(nodes) != 1 or _has_aggregate(nodes[0]):
            raise InputError(
                "query: SELECT DISTINCT finds the values of one column, with WHERE alone; join "
                "two columns as a || '-' || b, or ask count(*) GROUP BY declared ones"
            )
        # The query of a discovery has no groups and no sums: its one column is what is looked for.
        node = nodes[0].this if _class_of(nodes[0]) == "Alias" else nodes[0]
        if _class_of(node) == "Star":
            raise self.refuse(node)
        expression = self.read_expression(node)
        name = self._name_column(expression)
        query = ParsedQuery(
            aggregate="discover",
            columns=(name,),
            numbers=(),
            by=(),
            where=where,
            text=self.text,
            derived={name: expression},
            is_sql=True,
            joins=tuple(join for join, _ in self.joins.values()),
        )
        label = nodes[0].alias or name
        labels = {name: label}
        return Statement(self.text, (query,), (label,), None, labels, is_sql=True, table=self.table)

    def _parse(self) -> exp.Select:
        """Return the tree of the text, which must be one SELECT."""
        import sqlglot
        from sqlglot import errors, exp

        try:
            trees = sqlglot.parse(self.text, read="duckdb")
        except errors.SqlglotError as error:
            raise InputError(f"query: {_describe(error)}; {_EXAMPLE}") from None
        except RecursionError:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter") from None
        # What follows a last semicolon is an empty statement.
        statements = [tree for tree in trees if tree is not None]
        if len(statements) != 1:
            raise InputError(f"query: {len(statements)} statements; ask one SELECT")
        (tree,) = statements
        if not isinstance(tree, exp.Select):
            raise self.refuse(tree, "ask one SELECT")
        return tree

    def refuse(self, node: Any, remedy: str = "") -> InputError:
        """Return the error for a part of SQL that is not answered, with the nearest that is."""
        name = _class_of(node)
        if name == "Anonymous":
            # What sqlglot has no node for is a function by its name, which may be misspelled.
            near = unknown("function", str(node.this).lower(), _known_names())
            return InputError(f"query: {near}")
        try:
            text = node.sql(dialect="duckdb")
        except Exception:  # sqlglot's generators raise what they like; the name is enough
            text = name
        text = text if len(text) <= 60 else text[:59] + "…"
        remedy = remedy or _NEAREST.get(name, "")
        tail = f"; {remedy}" if remedy else f"; {_EXAMPLE}"
        return InputError(f"query: {_spell(name)} is not answered ({text}){tail}")

    def _refuse_clauses(self, select: exp.Select) -> None:
        """Raise `InputError` for clauses of SELECT that have no meaning here."""
        # The list says what is read, not what is refused: a clause that a later sqlglot adds is
        # refused too, and never passed over in silence.
        allowed = {
            "expressions", "from", "from_", "where", "group", "having", "order", "limit", "kind",
            "hint", "operation_modifiers", "joins",
        }  # fmt: skip
        for name, value in select.args.items():
            if not value or name in allowed:
                continue
            if name == "distinct":
                continue
            nodes = value if isinstance(value, list) else [value]
            raise self.refuse(nodes[0])
        # Versions of sqlglot differ in the name of this argument.
        source = select.args.get("from_") or select.args.get("from")
        if source is None:
            raise InputError(f"query: SELECT without FROM; name the table; {_EXAMPLE}")
        table = source.this
        if _class_of(table) != "Table":
            raise self.refuse(table, _NEAREST["Subquery"])
        if _class_of(table.this) != "Identifier":
            raise self.refuse(table.this, "name the table that is asked")
        # What else stands at a table, such as a sample or a pivot, would change which rows are
        # asked.
        extra = [value for key, value in table.args.items() if value and key not in
                 ("this", "alias", "db", "catalog")]  # fmt: skip
        if extra:
            node = extra[0][0] if isinstance(extra[0], list) else extra[0]
            raise self.refuse(node)
        self.table = str(table.name)

    def _read_joins(self, select: exp.Select) -> None:
        """Read the joins with public tables, each by one column of the people's table."""
        for node in select.args.get("joins") or ():
            # A key occurs once in a declared public table, so that a join adds columns to a row and
            # never repeats one. A RIGHT or FULL join would add rows that are nobody's.
            side = str(node.args.get("side") or "").upper()
            kind = str(node.args.get("kind") or "").upper()
            table = node.this
            is_plain = _class_of(table) == "Table" and _class_of(table.this) == "Identifier"
            is_known = (side, kind) in (("", ""), ("", "INNER"), ("LEFT", ""), ("LEFT", "OUTER"))
            if not (is_plain and is_known) or node.args.get("method"):
                raise self.refuse(node)
            name = str(table.name)
            alias = str(table.alias or name)
            if alias in self.joins:
                raise InputError(f"query: {alias} is joined twice; join it once")
            using: list[Any] = node.args.get("using") or []
            # USING names one column for both sides.
            if len(using) == 1:
                on = key = str(using[0].name)
            else:
                on, key = self._read_key(node, alias)
            self.joins[alias] = Join(name, on, key), side == ""

    def _read_key(self, node: Any, alias: str) -> tuple[str, str]:
        """Return the people's column and the table's that ON compares."""
        equal = node.args.get("on")
        while _class_of(equal) == "Paren":
            equal = equal.this
        if _class_of(equal) != "EQ":
            raise self.refuse(node)
        sides = [equal.this, equal.expression]
        if any(_class_of(side) != "Column" for side in sides):
            raise self.refuse(node)
        # One side must be of the table that is joined, and the other of the people's table: neither
        # of this one nor of any that was joined before it.
        names = {str(side.table) for side in sides}
        if alias not in names or len(names) < 2 or names & self.joins.keys():
            raise InputError(
                f"query: JOIN {alias}: ON must compare a column of the people's table with one of "
                f"{alias}, as ON people.postcode = {alias}.postcode"
            )
        public, own = sides if sides[0].table == alias else sides[::-1]
        return str(own.name), str(public.name)

    def _read_where(self, select: exp.Select) -> Condition | None:
        """Return the condition of a row, which has the key of every table that is joined."""
        where = select.args.get("where")
        conditions = [] if where is None else [self.read_condition(where.this)]
        # A row without a partner has a null in the column of the key, and an inner join leaves it
        # out.
        conditions += [
            Negated(Missing(f"{join.table}.{join.key}"))
            for join, is_inner in self.joins.values()
            if is_inner
        ]
        if len(conditions) > 1:
            return Combined("and", tuple(conditions))
        return conditions[0] if conditions else None

    def _read_column(self, node: Any) -> Expression:
        """Return a column; a joined table's key is the people's column where a row has one."""
        name = str(node.name)
        join, is_inner = self.joins.get(str(node.table), (None, True))
        if join is None or name != join.key:
            return Cell(name)
        if is_inner:
            return Cell(join.on)
        # Of a LEFT JOIN the key of a row without a partner is null.
        found = Negated(Missing(f"{join.table}.{join.key}"))
        return Choice(((found, Cell(join.on)),), NULL)

    def _read_grouping(self, select: exp.Select) -> dict[str, Expression]:
        """Return the grouping columns: name → expression, in the order of GROUP BY."""
        self.aliases = {
            node.alias.lower(): node.this
            for node in select.expressions
            if _class_of(node) == "Alias"
        }
        group = select.args.get("group")
        grouped: dict[str, Expression] = {}
        if group is None:
            return grouped
        for key, value in group.args.items():
            if value and key != "expressions":
                if key == "all":
                    # GROUP BY ALL means every selected expression that has no statistic in it.
                    nodes = [
                        node.this if _class_of(node) == "Alias" else node
                        for node in select.expressions
                    ]
                    plain = [node for node in nodes if not _has_aggregate(node)]
                    group.set("expressions", plain)
                    continue
                node = value[0] if isinstance(value, list) else value
                raise self.refuse(node, _NEAREST["Rollup"])
        for node in group.expressions:
            # A column of GROUP BY is known by its canonical text, by which SELECT and ORDER BY find
            # it again.
            target = self._resolve_reference(node, select)
            if _has_aggregate(target) and _class_of(node) == "Column":
                # The name of a statistic may be that of a column.
                target = node
            if _has_aggregate(target):
                raise self.refuse(target, "group by a column or an expression of the row")
            expression = self.read_expression(target)
            name = self._name_column(expression)
            if name in grouped:
                raise InputError(f"query: GROUP BY has {name!r} twice; give it once")
            grouped[name] = expression
        return grouped

    def _resolve_reference(self, node: Any, select: exp.Select) -> Any:
        """Return what a number or an alias in GROUP BY stands for."""
        if _class_of(node) == "Literal" and not node.is_string:
            # GROUP BY 2 means the second selected column.
            number = int(node.this) if str(node.this).isdigit() else 0
            if not 1 <= number <= len(select.expressions):
                raise InputError(
                    f"query: GROUP BY {node.this}: SELECT has {len(select.expressions)} columns; "
                    "name the column"
                )
            target = select.expressions[number - 1]
            return target.this if _class_of(target) == "Alias" else target
        if _class_of(node) == "Column" and not node.table:
            return self.aliases.get(node.name.lower(), node)
        return node

    def _match_group(self, node: Any, grouped: dict[str, Expression]) -> str | None:
        """Return the grouping column that a selected expression is; None for a statistic."""
        if _has_aggregate(node):
            return None
        if _class_of(node) == "Star":
            raise self.refuse(node)
        name = self._name_column(self.read_expression(node))
        if name in grouped:
            return name
        raise InputError(
            f"query: SELECT {name}: neither a statistic nor in GROUP BY (rows are never shown); "
            f"add GROUP BY {name}, or a statistic of it, as avg({name})"
        )

    def _name_column(self, expression: Expression) -> str:
        """Return the name of a column of a query: of a plain one its own, else its text."""
        name = write(expression)
        # A declared column may be called as an expression is written, and names tell columns apart.
        if self.names.setdefault(name, expression) != expression:
            raise InputError(
                f"query: {name}: a column and an expression are written alike; ask for each in a "
                "question of its own"
            )
        return name

    def _read_statistic(
        self,
        node: Any,
        by: list[str],
        where: Condition | None,
        grouped: dict[str, Expression],
    ) -> ParsedQuery:
        """Return the query of one statistic."""
        condition = where
        while _class_of(node) == "Paren":
            node = node.this
        # FILTER and count_if are conditions of this statistic alone, on top of WHERE.
        if _class_of(node) == "Filter":
            inner = self.read_condition(node.expression.this)
            condition = inner if where is None else Combined("and", (where, inner))
            node = node.this
        if _class_of(node) == "CountIf":
            inner = self.read_condition(node.this)
            condition = inner if condition is None else Combined("and", (condition, inner))
            aggregate = _Aggregate("count", [], [])
        else:
            aggregate = self._read_aggregate(node)
        # Columns go by their canonical texts. Only those that are no plain column need an
        # expression, and equal texts are equal expressions.
        derived = {name: value for name, value in grouped.items() if _is_derived(value)}
        columns = []
        for argument in aggregate.arguments:
            name = self._name_column(argument)
            columns.append(name)
            if _is_derived(argument):
                derived[name] = argument
        if len(set(columns)) < len(columns):
            raise InputError(
                f"query: {aggregate.name} of {columns[0]} with itself; give two columns"
            )
        # Levels are sorted, so that the same levels in another order are the same query.
        return ParsedQuery(
            aggregate=aggregate.name,
            columns=tuple(columns),
            numbers=tuple(sorted(aggregate.numbers)),
            by=tuple(by),
            where=condition,
            text=self.text,
            derived=derived,
            is_sql=True,
            joins=tuple(join for join, _ in self.joins.values()),
        )

    def _read_aggregate(self, node: Any) -> _Aggregate:
        """Return an aggregate with its columns and its numbers."""
        name = _class_of(node)
        if name == "Count":
            return self._read_count(node)
        # Aggregates of one number, with or without a node of their own.
        if name in _AGGREGATES or self._anonymous_name(node) in _ANONYMOUS_AGGREGATES:
            aggregate = _AGGREGATES.get(name) or _ANONYMOUS_AGGREGATES[self._anonymous_name(node)]
            inner = node.this if name in _AGGREGATES else self._only_argument(node)
            if _class_of(inner) == "Distinct":
                raise self.refuse(node, "leave DISTINCT out, or ask count(DISTINCT …)")
            if node.args.get("expressions") and name != "Anonymous":
                raise self.refuse(node, "ask for the one value, or for quantile(x, level)")
            column = self.read_expression(inner)
            if aggregate == "median":
                return _Aggregate("quantile", [column], [0.5])
            if aggregate in EXTREMES:
                return _Aggregate("quantile", [column], [EXTREMES[aggregate]])
            return _Aggregate(aggregate, [column], [])
        if name in _PAIRS:
            columns = [self.read_expression(part) for part in (node.this, node.expression)]
            return _Aggregate(_PAIRS[name], columns, [])
        # Three spellings of a quantile: quantile(x, q), percentile_cont(x, q), and that one WITHIN
        # GROUP (ORDER BY x).
        if name in ("Quantile", "ApproxQuantile"):
            return self._read_quantile(node.this, node.args["quantile"])
        if name in ("PercentileCont", "PercentileDisc") and node.expression:
            return self._read_quantile(node.this, node.expression)
        if name == "WithinGroup" and _class_of(node.this) in ("PercentileCont", "PercentileDisc"):
            (ordered,) = node.expression.expressions
            if ordered.args.get("desc"):
                raise self.refuse(node, "order it the other way and take 1 − the level")
            return self._read_quantile(ordered.this, node.this.this)
        if self._anonymous_name(node) == "histogram":
            parts = list(node.expressions)
            if not 1 <= len(parts) <= 2:
                raise self.refuse(node, "write histogram(x, bins)")
            bins = [self._read_number(part) for part in parts[1:]]
            if bins and not (bins[0].is_integer() and 1 <= bins[0] <= 10_000):
                raise InputError("query: histogram(x, bins): give a whole number to 10,000")
            return _Aggregate("histogram", [self.read_expression(parts[0])], bins)
        if name == "ApproxDistinct":
            return _Aggregate("distinct", [self.read_expression(node.this)], [])
        raise self._refuse_statistic(node)

    def _refuse_statistic(self, node: Any) -> InputError:
        if _has_aggregate(node) and _class_of(node) not in _NEAREST:
            return self.refuse(
                node, "ask for each statistic by itself and calculate with the answers"
            )
        return self.refuse(node)

    def _read_count(self, node: Any) -> _Aggregate:
        inner = node.this
        # count(1) counts rows, as count(*) does.
        if inner is None or _class_of(inner) in ("Star", "Literal"):
            return _Aggregate("count", [], [])
        if _class_of(inner) == "Distinct":
            if len(inner.expressions) != 1:
                raise self.refuse(node, "count one column, or GROUP BY both")
            return _Aggregate("distinct", [self.read_expression(inner.expressions[0])], [])
        return _Aggregate("count", [self.read_expression(inner)], [])

    def _read_quantile(self, node: Any, level: Any) -> _Aggregate:
        parts = level.expressions if _class_of(level) in ("Array", "Tuple") else [level]
        numbers = [self._read_number(part) for part in parts]
        if not (numbers and all(0 < number < 1 for number in numbers)):
            raise InputError("query: quantile needs its level, in (0, 1); as in quantile(pay, 0.5)")
        if len(numbers) > LEVELS or len(set(numbers)) < len(numbers):
            raise InputError(f"query: give up to {LEVELS} levels, each of them once")
        return _Aggregate("quantile", [self.read_expression(node)], numbers)

    def _anonymous_name(self, node: Any) -> str:
        return str(node.this).lower() if _class_of(node) == "Anonymous" else ""

    def _only_argument(self, node: Any) -> Any:
        if len(node.expressions) != 1:
            raise self.refuse(node, f"write {node.this}(x)")
        return node.expressions[0]

    def _read_number(self, node: Any) -> float:
        value = self.read_expression(node)
        if isinstance(value, Constant) and isinstance(value.value, float):
            return value.value
        raise self.refuse(node, "write a number")

    # Expressions of one row.

    def read_expression(self, node: Any) -> Expression:
        """Return an expression of a row."""
        self.depth += 1
        if self.depth > DEPTH:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter")
        try:
            return self._read_expression(node)
        finally:
            self.depth -= 1

    def _read_expression(self, node: Any) -> Expression:
        name = _class_of(node)
        # Nodes that need more than their arguments in order; the others stand in `_FUNCTIONS`.
        readers: dict[str, Callable[[Any], Expression]] = {
            "Column": self._read_column,
            "Paren": lambda n: self.read_expression(n.this),
            "Literal": _read_literal,
            "Boolean": lambda n: Constant(float(bool(n.this)), "boolean"),
            "Null": lambda n: NULL,
            "Neg": self._read_negative,
            "Case": self._read_case,
            "If": lambda n: self._make_choice(
                [(self.read_condition(n.this), n.args["true"])], n.args.get("false")
            ),
            "Cast": self._read_cast,
            "TryCast": self._read_cast,
            "Round": self._read_round,
            "Floor": lambda n: self._read_step(n, "floor"),
            "Ceil": lambda n: self._read_step(n, "ceil"),
            "Log": self._read_log,
            "IntDiv": lambda n: Call("trunc", (Call("/", self._read_both(n)),)),
            "Sub": self._read_difference,
            "Add": self._read_sum,
            "Least": lambda n: Call("least", self._read_all(n)),
            "Greatest": lambda n: Call("greatest", self._read_all(n)),
            "Coalesce": lambda n: Call("coalesce", self._read_all(n)),
            "Concat": self._read_concat,
            "Substring": self._read_substring,
            "Left": lambda n: Call(
                "substr",
                (self.read_expression(n.this), Constant(1.0, "numeric"),
                 self.read_expression(n.expression)),
            ),
            "Trim": self._read_trim,
            "Extract": lambda n: self._read_part(n.this, n.expression),
            "DateTrunc": lambda n: self._read_trunc(n),
            "TimestampTrunc": lambda n: self._read_trunc(n),
            "DateDiff": self._read_date_diff,
            "TimestampDiff": self._read_date_diff,
            "Anonymous": self._read_anonymous,
        }  # fmt: skip
        if name in readers:
            return readers[name](node)
        if name in _FUNCTIONS:
            function, keys = _FUNCTIONS[name]
            parts = [node.args.get(key) for key in keys]
            # An argument that is not read here could change what the function means, so that it is
            # refused.
            # `_HARMLESS` are settings of the parser's, which say nothing that is not meant here.
            extra = [k for k, v in node.args.items() if v and k not in keys and k not in _HARMLESS]
            if None in parts or extra:
                raise self.refuse(node)
            return Call(function, tuple(self.read_expression(part) for part in parts))
        if name in _CONDITIONS:
            # A condition as a value is true, false or null.
            condition = self.read_condition(node)
            true = Constant(1.0, "boolean")
            false = Constant(0.0, "boolean")
            return Choice(((condition, true), (Negated(condition), false)), NULL)
        if _is_aggregate(node):
            raise self.refuse(node, "a statistic of a statistic; ask for each by itself")
        raise self.refuse(node)

    def _read_both(self, node: Any) -> tuple[Expression, Expression]:
        return self.read_expression(node.this), self.read_expression(node.expression)

    def _read_all(self, node: Any) -> tuple[Expression, ...]:
        # Some of these nodes have their first argument apart, others have all of them in one list.
        parts = [node.this, *node.expressions]
        return tuple(self.read_expression(part) for part in parts if part is not None)

    def _read_negative(self, node: Any) -> Expression:
        inner = self.read_expression(node.this)
        # A negative number stays a literal, so that a comparison with a plain column binds it to
        # the column's kind.
        if isinstance(inner, Constant) and isinstance(inner.value, float):
            return Constant(-inner.value, "numeric")
        return Call("-", (Constant(0.0, "numeric"), inner))

    def _read_case(self, node: Any) -> Expression:
        branches = []
        for branch in node.args["ifs"]:
            test = branch.this
            # CASE x WHEN v compares; CASE WHEN c has a condition.
            if node.this is not None:
                condition = self._make_comparison(node.this, "=", test)
            else:
                condition = self.read_condition(test)
            branches.append((condition, branch.args["true"]))
        return self._make_choice(branches, node.args.get("default"))

    def _make_choice(self, branches: list[tuple[Condition, Any]], default: Any) -> Expression:
        pairs = tuple((condition, self.read_expression(value)) for condition, value in branches)
        return Choice(pairs, NULL if default is None else self.read_expression(default))

    def _read_cast(self, node: Any) -> Expression:
        inner = self.read_expression(node.this)
        target = str(node.args["to"].this.name)
        is_text = isinstance(inner, Constant) and isinstance(inner.value, str)
        # A moment has one form here, microseconds since 1970, so that a cast to a timestamp changes
        # nothing and one to a date cuts off the time.
        if target in ("DATE", "DATETIME", "TIMESTAMP", "TIMESTAMPNTZ", "TIMESTAMPTZ"):
            if is_text:
                return date_constant(str(inner.value))  # type: ignore[union-attr]
            if target == "DATE":
                return Call("date_trunc_day", (inner,))
            return inner
        if target in _WHOLE_TYPES:
            # As DuckDB casts a double, a half goes to the even number; here it is `round`.
            return Call("round", (Call("cast_number", (inner,)),))
        if target in _REAL_TYPES:
            return Call("cast_number", (inner,))
        if target in ("TEXT", "VARCHAR", "CHAR", "NVARCHAR"):
            return Call("cast_text", (inner,))
        raise self.refuse(node, "cast to DOUBLE, INTEGER, VARCHAR or DATE")

    def _read_round(self, node: Any) -> Expression:
        inner = self.read_expression(node.this)
        decimals = node.args.get("decimals")
        if decimals is None:
            return Call("round", (inner,))
        return Call("round_digits", (inner, self.read_expression(decimals)))

    def _read_step(self, node: Any, function: str) -> Expression:
        # floor(x, digits) and floor(x TO unit) can be parsed; they are refused, not read as
        # floor(x).
        if node.args.get("decimals") is not None or node.args.get("to") is not None:
            raise self.refuse(node, f"write {function}(x / 10) * 10")
        return Call(function, (self.read_expression(node.this),))

    def _read_log(self, node: Any) -> Expression:
        # log(x) is to base 10, as in DuckDB and PostgreSQL.
        if node.expression is None:
            return Call("log10", (self.read_expression(node.this),))
        base = self.read_expression(node.this)
        if base == Constant(10.0, "numeric"):
            return Call("log10", (self.read_expression(node.expression),))
        raise self.refuse(node, "write ln(x) / ln(base)")

    def _read_difference(self, node: Any) -> Expression:
        return self._read_shift(node, -1.0) or Call("-", self._read_both(node))

    def _read_sum(self, node: Any) -> Expression:
        return self._read_shift(node, 1.0) or Call("+", self._read_both(node))

    def _read_shift(self, node: Any, sign: float) -> Expression | None:
        """Return a date that is moved by an interval; None where there is no interval."""
        interval = node.expression
        if _class_of(interval) != "Interval":
            return None
        unit = str(interval.args["unit"].name).lower().rstrip("s") if interval.unit else ""
        count = str(interval.this.name) if interval.this is not None else ""
        # A day has one length. A month has not, so that bounds would not move by a constant.
        if unit not in ("day", "week") or not count.lstrip("-").isdigit():
            raise self.refuse(interval, "give days or weeks, as INTERVAL 30 DAY")
        days = float(count) * (7 if unit == "week" else 1) * sign
        return Call("add_days", (self.read_expression(node.this), Constant(days, "numeric")))

    def _read_concat(self, node: Any) -> Expression:
        parts = [self.read_expression(part) for part in node.expressions]
        # concat passes over nulls, as in DuckDB and PostgreSQL.
        empty = Constant("", "text")
        texts = [
            part if isinstance(part, Constant) else Call("coalesce", (part, empty))
            for part in parts
        ]
        joined: Expression = texts[0]
        for text in texts[1:]:
            joined = Call("||", (joined, text))
        return joined

    def _read_substring(self, node: Any) -> Expression:
        # Without a length 1e6 characters stand for all that follow.
        start = node.args.get("start")
        length = node.args.get("length")
        limit = Constant(1e6, "numeric") if length is None else self.read_expression(length)
        begin = Constant(1.0, "numeric") if start is None else self.read_expression(start)
        for number in (begin, limit):
            if isinstance(number, Constant) and not (
                isinstance(number.value, float)
                and number.value.is_integer()
                and abs(number.value) <= 1e6
            ):
                raise self.refuse(node, "give whole numbers, as substr(x, 1, 2)")
        return Call("substr", (self.read_expression(node.this), begin, limit))

    def _read_trim(self, node: Any) -> Expression:
        if node.expression is not None or node.args.get("position"):
            raise self.refuse(node, "write trim(x), which takes blanks off both ends")
        return Call("trim", (self.read_expression(node.this),))

    def _read_part(self, part: Any, date: Any) -> Expression:
        word = str(part.name).lower()
        if word not in _PARTS:
            raise InputError(f"query: {unknown('part of a date', word, _PARTS)}")
        return Call(_PARTS[word], (self.read_expression(date),))

    def _read_unit(self, node: Any) -> str:
        unit = node.args.get("unit")
        word = str(unit.name).lower() if unit is not None else "day"
        # sqlglot has WEEK(MONDAY) and the like.
        word = re.sub(r"\W.*", "", word)
        if word not in UNITS:
            raise InputError(f"query: {unknown('unit of time', word, UNITS)}")
        return word

    def _read_trunc(self, node: Any) -> Expression:
        return Call(f"date_trunc_{self._read_unit(node)}", (self.read_expression(node.this),))

    def _read_date_diff(self, node: Any) -> Expression:
        # sqlglot has the later date first.
        last, first = self._read_both(node)
        return Call(f"date_diff_{self._read_unit(node)}", (first, last))

    def _read_anonymous(self, node: Any) -> Expression:
        name = self._anonymous_name(node)
        arguments = node.expressions
        if name in ("date_part", "datepart") and len(arguments) == 2:
            return self._read_part(arguments[0], arguments[1])
        if name not in _ANONYMOUS:
            raise self.refuse(node)
        function, count = _ANONYMOUS[name]
        if len(arguments) != count:
            raise InputError(
                f"query: {name} takes {count} arguments, not {len(arguments)}; give {count}"
            )
        return Call(function, tuple(self.read_expression(part) for part in arguments))

    # Conditions of one row.

    def read_condition(self, node: Any) -> Condition:
        """Return a condition of a row."""
        self.depth += 1
        if self.depth > DEPTH:
            raise InputError(f"query: nested more than {DEPTH} deep; write it flatter")
        try:
            return self._read_condition(node)
        finally:
            self.depth -= 1

    def _read_condition(self, node: Any) -> Condition:
        name = _class_of(node)
        # Brackets add nothing to a tree; each level of them counts towards the depth.
        if name == "Paren":
            return self.read_condition(node.this)
        if name in ("And", "Or"):
            parts = [self.read_condition(part) for part in _flatten(node, name)]
            return Combined(name.lower(), tuple(parts))
        if name == "Not":
            return Negated(self.read_condition(node.this))
        if name in _COMPARISONS:
            return self._make_comparison(node.this, _COMPARISONS[name], node.expression)
        if name == "Between":
            low = self._make_comparison(node.this, ">=", node.args["low"])
            high = self._make_comparison(node.this, "<=", node.args["high"])
            return Combined("and", (low, high))
        if name == "In":
            return self._read_in(node)
        if name == "Is":
            return self._read_is(node)
        if name == "Like":
            return self._read_like(node.this, node.expression, node)
        if name == "StartsWith":
            return self._read_like(node.this, node.expression, node, after="%")
        if name == "Contains":
            return self._read_like(node.this, node.expression, node, before="%", after="%")
        if name in ("Column", "Case", "If", "Boolean", "Coalesce", "Null"):
            # A boolean by itself.
            true = Constant(1.0, "boolean")
            return Relation(self.read_expression(node), "=", true)
        raise self.refuse(node)

    def _make_comparison(self, left: Any, sign: str, right: Any) -> Condition:
        """Return a comparison; of a plain column with a literal as a declared value is compared."""
        first = self.read_expression(left)
        second = self.read_expression(right)
        # The column comes first, so that 18 <= age and age >= 18 are one condition.
        if isinstance(second, Cell) and isinstance(first, Constant):
            first, second, sign = second, first, _SWAPPED[sign]
        if isinstance(first, Cell) and isinstance(second, Constant):
            literal = _literal_of(second)
            if literal is not None:
                return Compare(first.column, sign, (literal,))
        return Relation(first, sign, second)

    def _read_in(self, node: Any) -> Condition:
        if node.args.get("query") or node.args.get("unnest") or not node.expressions:
            raise self.refuse(node, "list the values, as town IN ('A', 'B')")
        first = self.read_expression(node.this)
        values = [self.read_expression(part) for part in node.expressions]
        literals = [_literal_of(v) if isinstance(v, Constant) else None for v in values]
        # A list of literals beside a plain column is bound to its kind as one; a list with an
        # expression in it is a chain of comparisons.
        known = [literal for literal in literals if literal is not None]
        if isinstance(first, Cell) and len(known) == len(values):
            return Compare(first.column, "in", tuple(known))
        relations = tuple(Relation(first, "=", value) for value in values)
        return relations[0] if len(relations) == 1 else Combined("or", relations)

    def _read_is(self, node: Any) -> Condition:
        inner = self.read_expression(node.this)
        kind = _class_of(node.expression)
        if kind == "Null":
            return Missing(inner.column) if isinstance(inner, Cell) else Lacking(inner)
        if kind == "Boolean":
            # IS TRUE is never null, so that NOT finds the rows without a value too.
            truth = Relation(inner, "=", Constant(float(bool(node.expression.this)), "boolean"))
            lacking = Missing(inner.column) if isinstance(inner, Cell) else Lacking(inner)
            return Combined("and", (truth, Negated(lacking)))
        raise self.refuse(node, "write IS NULL, IS TRUE or IS FALSE")

    def _read_like(
        self, left: Any, right: Any, node: Any, before: str = "", after: str = ""
    ) -> Condition:
        pattern = self.read_expression(right)
        if not (isinstance(pattern, Constant) and isinstance(pattern.value, str)):
            raise self.refuse(node, "compare with a text in quotes, as name LIKE 'A%'")
        if (before or after) and set(pattern.value) & {"%", "_"}:
            raise self.refuse(node, "write LIKE; there % stands for any letters and _ for one")
        return Matches(self.read_expression(left), f"{before}{pattern.value}{after}")

    # How an answer is shown.

    def _read_presentation(
        self, select: exp.Select, statement: Statement, grouped: dict[str, Expression]
    ) -> Statement:
        """Return the statement with its HAVING, ORDER BY and LIMIT, which cost nothing."""
        orders = []
        order = select.args.get("order")
        for node in [] if order is None else order.expressions:
            label = self._find_label(node.this, select, statement, grouped)
            orders.append(Order(label, bool(node.args.get("desc"))))
        limits: list[Limit] = []
        having = select.args.get("having")
        if having is not None:
            limits += [
                self._read_limit(node, select, statement, grouped)
                for node in _flatten(having.this, "And")
            ]
        shown = None
        limit = select.args.get("limit")
        if limit is not None:
            number = limit.expression
            if _class_of(number) != "Literal" or not str(number.this).isdigit():
                raise self.refuse(limit, "give a whole number, as LIMIT 10")
            shown = int(str(number.this))
        # What is shown of groups goes by their noisy numbers; without groups there is one row.
        if (shown is not None or limits or orders) and not grouped:
            raise InputError(
                "query: HAVING, ORDER BY and LIMIT are of groups, and there is no GROUP BY; leave "
                "them out"
            )
        return replace(statement, orders=tuple(orders), limits=tuple(limits), shown=shown)

    def _read_limit(
        self, node: Any, select: exp.Select, statement: Statement, grouped: dict[str, Expression]
    ) -> Limit:
        while _class_of(node) == "Paren":
            node = node.this
        name = _class_of(node)
        if name not in _COMPARISONS:
            raise self.refuse(node, "compare a selected statistic, as HAVING count(*) > 100")
        sign = _COMPARISONS[name]
        left, right = node.this, node.expression
        if _class_of(left) == "Literal":
            left, right, sign = right, left, _SWAPPED[sign]
        label = self._find_label(left, select, statement, grouped)
        if label in statement.group_labels.values():
            raise self.refuse(node, "write the condition of a group's own value in WHERE")
        return Limit(label, sign, self._read_number(right))

    def _find_label(
        self, node: Any, select: exp.Select, statement: Statement, grouped: dict[str, Expression]
    ) -> str:
        """Return the label of the answer that a node of ORDER BY or HAVING names."""
        target = self._resolve_reference(node, select)
        names = [name for name, _ in statement.formulas or ()]
        # By the name that the answer shows, else by the text of what is meant.
        for name in (
            node.name if _class_of(node) == "Column" else "",
            target.sql(dialect="duckdb"),
        ):
            if name in names:
                return str(name)
        if _has_aggregate(target):
            condition = self._read_where(select)
            # A statistic that is not selected has no noisy number yet, and would have to be paid
            # for.
            query = self._read_statistic(target, list(grouped), condition, grouped)
            number = _find_query(query, statement.queries)
            if number >= 0:
                return _name_shown(statement, number)
            raise InputError(
                f"query: {_label_of(query)} is not selected; add it to SELECT, so that it is "
                "answered once"
            )
        name = self._name_column(self.read_expression(target))
        if name in statement.group_labels:
            return statement.group_labels[name]
        raise InputError(f"query: {name} is neither selected nor in GROUP BY; add it to SELECT")


# Class of a node → the sign of arithmetic on statistics.
_ARITHMETIC: Final = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "Div": "/",
    "Neg": "-",
    "Round": "round",
}


def _is_arithmetic(node: Any) -> bool:
    """Return whether a selected node calculates with statistics."""
    while _class_of(node) == "Paren":
        node = node.this
    if _is_aggregate(node):
        return False
    name = _class_of(node)
    return name in (*_ARITHMETIC, "Cast", "TryCast", "Nullif") and _has_aggregate(node)


def _is_null_if_zero(node: Any) -> bool:
    if _class_of(node) != "Nullif" or _class_of(node.expression) != "Literal":
        return False
    return not node.expression.is_string and float(str(node.expression.this)) == 0


def _find_query(query: ParsedQuery, queries: Sequence[ParsedQuery]) -> int:
    """Return the number of the same query among several; −1 where there is none."""
    for number, candidate in enumerate(queries):
        # The other fields are the statement's own: groups, text and joins are those of all its
        # queries.
        same = (query.aggregate, query.columns, query.numbers, query.where)
        if same == (candidate.aggregate, candidate.columns, candidate.numbers, candidate.where):
            return number
    return -1


def _free_label(label: str, labels: Sequence[str]) -> str:
    """Return a label that no other statistic has."""
    number = 2
    free = label
    while free in labels:
        free = f"{label} #{number}"
        number += 1
    return free


def _name_shown(statement: Statement, number: int) -> str:
    """Return the name under which a statistic is shown, or by which it is known."""
    for name, formula in statement.formulas or ():
        if formula.statistic == number:
            return name
    if statement.formulas is not None:
        raise InputError(
            f"query: {statement.labels[number]} is only a part of what is selected; select it by "
            "itself too"
        )
    return statement.labels[number]


# Arguments of sqlglot's nodes that do not change what a function means here.
_HARMLESS: Final = ("typed", "safe", "big_int", "coalesce", "ignore_nulls", "encoding", "binary")
# Classes of nodes that are conditions, which as a value are true, false or null.
_CONDITIONS: Final = (
    "And", "Or", "Not", "EQ", "NEQ", "LT", "LTE", "GT", "GTE", "Between", "In", "Is", "Like",
    "StartsWith", "Contains",
)  # fmt: skip
# Types that a cast rounds to whole numbers for, and those that it does not.
_WHOLE_TYPES: Final = (
    "INT",
    "BIGINT",
    "SMALLINT",
    "TINYINT",
    "HUGEINT",
    "INT128",
    "UINT",
    "UBIGINT",
)
_REAL_TYPES: Final = ("DOUBLE", "FLOAT", "DECIMAL", "REAL")


def _known_names() -> list[str]:
    """Return the names of functions and statistics that SQL may call, for messages."""
    statistics = [
        "count", "sum", "avg", "median", "quantile", "stddev", "variance", "corr", "covar_samp",
        "min", "max", "histogram",
    ]  # fmt: skip
    functions = [name for name, _ in _FUNCTIONS.values() if name.isidentifier()]
    others = ["floor", "ceil", "round", "coalesce", "least", "greatest", "substr", "trim", "concat",
              "date_trunc", "date_diff", "date_part"]  # fmt: skip
    return sorted({*statistics, *functions, *others, *_ANONYMOUS})


def _class_of(node: Any) -> str:
    return type(node).__name__


def _spell(name: str) -> str:
    """Return the name of a class of nodes as SQL has it: `RowNumber` is ROW NUMBER."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).upper()


def _describe(error: Any) -> str:
    """Return what sqlglot says of a text that it cannot read, in one line."""
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        near = str(first.get("highlight") or "").strip()[:40]
        text = f"{first.get('description', 'cannot be read')}".rstrip(".")
        text = f"{text}, near {near!r} at character {first.get('col')}"
    else:
        text = str(error).splitlines()[0] if str(error) else "cannot be read"
    return "cannot read the SQL: " + _ESCAPES.sub("", text)[:200]


def _read_literal(node: Any) -> Expression:
    if node.is_string:
        return Constant(str(node.this), "text")
    value = float(str(node.this))
    if not abs(value) <= 1e60:
        raise InputError(f"query: {node.this}: a number beyond 1e60; give a smaller one")
    return Constant(value, "numeric")


def _literal_of(constant: Constant) -> float | str | None:
    """Return a constant as the literal of a comparison with a plain column."""
    match constant.kind:
        case "numeric":
            return float(constant.value or 0.0)
        case "text":
            return str(constant.value)
        case "boolean":
            return "true" if constant.value else "false"
    return None


def _flatten(node: Any, name: str) -> list[Any]:
    """Return the parts of a chain of ANDs or ORs, without recursion on its length."""
    pending = [node]
    parts: list[Any] = []
    while pending:
        # The right part is put on the stack first, so that parts come out from left to right.
        current = pending.pop()
        if _class_of(current) == name:
            pending += [current.expression, current.this]
        else:
            parts.append(current)
    return parts


def _is_aggregate(node: Any) -> bool:
    from sqlglot import exp

    if isinstance(node, exp.AggFunc | exp.WithinGroup | exp.Filter):
        return True
    name = str(node.this).lower() if _class_of(node) == "Anonymous" else ""
    return name in _ANONYMOUS_AGGREGATES or name == "histogram"


def _has_aggregate(node: Any) -> bool:
    return any(_is_aggregate(part) for part in node.walk())


def _is_derived(expression: Expression) -> bool:
    return not isinstance(expression, Cell)


# Aggregate → its name in SQL, for labels.
_NAMES: Final = {
    "mean": "avg",
    "sample_deviation": "stddev",
    "deviation": "stddev_pop",
    "sample_variance": "variance",
    "variance": "var_pop",
    "correlation": "corr",
    "sample_covariance": "covar_samp",
    "covariance": "covar_pop",
}


def _label_of(query: ParsedQuery) -> str:
    """Return the name of a statistic in an answer where it has no alias."""
    columns = ", ".join(query.columns)
    if query.aggregate == "count":
        return f"count({columns or '*'})"
    if query.aggregate == "distinct":
        return f"count(DISTINCT {columns})"
    if query.aggregate == "quantile" and len(query.numbers) == 1:
        (level,) = query.numbers
        words = {0.5: "median", EXTREMES["min"]: "min", EXTREMES["max"]: "max"}
        if level in words:
            return f"{words[level]}({columns})"
    numbers = "".join(f", {number:g}" for number in query.numbers)
    return f"{_NAMES.get(query.aggregate, query.aggregate)}({columns}{numbers})"
