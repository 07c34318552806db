"""apiece query: one private query, charged to a ledger."""

from __future__ import annotations

import json
import math
import shlex
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._files import STEWARD_LOG, append
from apiece._lazy import require
from apiece._text import lossless, rounded_up, shown
from apiece.cli import Interrupted
from apiece.cli._command import (
    Command,
    Output,
    Printed,
    Scratch,
    emit,
    format_table,
    make_dialect,
    make_flag,
    option,
    refuse_given,
    require_delta,
)
from apiece.cli._declaring import DECLARING, add_declaring_options, declare_table
from apiece.errors import AnalysisError, ApieceError, InputError, together

if TYPE_CHECKING:
    from apiece._types import Flags, Json
    from apiece.datasets import Schema
    from apiece.ledger import Ledger
    from apiece.queries import QueryCost
    from apiece.queries.registration import Registration
    from apiece.queries.scan import Registered
    from apiece.queries.table import DeferredTable, Table

Log = Callable[[str], None]
# δ of the accounts that --cost takes as examples, and where --delta is missing.
EXAMPLE_DELTA = 1e-6
# Budgets of the accounts that --cost takes as examples.
EXAMPLE_BUDGETS = (0.5, 1, 2, 4, 8)
EXAMPLE = """
\b
Example:
  apiece query people.parquet "mean(income) by region" --person id \\
         --bounds income=0:200000 --values region=north,south --rows-per-person 1 \\
         --epsilon 0.5 --delta 1e-6 --ledger sqlite:///people.db
"""


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("source")
@click.argument("query")
@add_declaring_options
@option("--epsilon", type=float, help="ε of the query: the most it costs anyone; needed.")
@option(
    "--delta",
    type=float,
    help="δ of the query, needed; 0 for Laplace noise (count, sum, histogram), and of quantiles.",
)
@option("--split", help="Shares of several statistics in one SELECT, as 2,1,1; of the budget.")
@option(
    "--within",
    help="Find the least ε: half the width of the 95 % intervals, as 50 or 2%; in place of "
    "--epsilon.",
)
@option(
    "--rows",
    type=int,
    default=1000,
    help="Rows of a group that --cost and --within make up, where a width depends on rows.",
)
@option(
    "--share",
    type=float,
    help="Of SELECT DISTINCT, the most of anybody's account that it takes: smaller weights.",
)
@option("--again", is_flag=True, help="Ask and charge anew what was answered before.")
@option("--figure")
@option("--cost", "cost_only", is_flag=True, help="Print what the query costs, and ask nothing.")
@option("--ledger", "url", help="Ledger to charge: sqlite:///file.db or postgresql://…")
@option("--analysis", help="Name in the ledger; repeated, it returns the recorded answer.")
@option("--scope", help="Scope of the charge, as querier=clinic,purpose=care.")
@option("--sha256", help="Digest of SOURCE; any other content is refused.")
@option(
    "--engine",
    default="duckdb",
    help="duckdb; spark for Spark on this machine; spark://HOST:PORT for a cluster.",
)
@option(
    "--memory",
    type=float,
    help="GB of rows that duckdb keeps in memory; the rest goes to TMPDIR.  [default: 4]",
)
@option(
    "--workspace",
    type=Scratch(path_type=Path, file_okay=False, exists=True),
    help="Folder that the cluster's machines see and only the steward may read; with a cluster.",
)
@option(
    "--steward-log",
    type=Output(STEWARD_LOG),
    help="Add messages about rows to this file; they are not for analysts.",
)
@option("--json")
def command(
    source: str,
    query: str,
    engine: str,
    memory: float | None,
    workspace: Path | None,
    steward_log: Path | None,
    cost_only: bool,
    again: bool,
    figure: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Answer QUERY over SOURCE with differential privacy.

    SOURCE is a Parquet or CSV file, a folder of Parquet files, FILE::TABLE of a DuckDB or SQLite
    file, postgresql://…::TABLE, an Excel workbook (FILE.xlsx or FILE.xlsx::SHEET), or the folder of
    a table that `apiece register` has read: what is declared is in it.

    QUERY is SQL, as "SELECT region, avg(income / 12), count(*) FROM people WHERE age >= 18 GROUP BY
    region", which needs the extra sql; or the short form that follows.

    With --engine spark SOURCE is a Parquet file or a folder of them. What --schema declares is used
    as for `apiece train`: ranges are bounds, values are groups. The file may say person,
    rows_per_person and decimal too; options add to it, or stand in place of what it says.

    The short form is count, count(persons), count(rows), sum, mean, variance, covariance,
    histogram, median, quantile (of several levels), interval or regression, then maybe "by" columns
    with declared values and "where" a condition on columns with bounds, values or a kind.

    Cells that are not of their column's kind, and people without an account, are left out without
    a word here; the steward's log has them. --cost reads no row and no account.
    """
    require("queries", "sqlalchemy", "duckdb", "pandas", "pyarrow")
    _require_ledger(flags)
    registered = _find_registration(source)
    # A recorded answer is told before anything heavy is imported: neither DuckDB nor the rows are
    # needed.
    if registered is not None and not (cost_only or again or flags["within"] is not None):
        recorded = _tell_recorded(registered, query, flags)
        if recorded is not None:
            _show_answer(recorded, figure, as_json=as_json, charged=True)
            return
    from apiece.queries import Session, query_cost

    schema = declare_table(flags) if registered is None else registered.schema
    dialect = make_dialect(flags | {"decimal": schema.decimal})
    split = _parse_split(flags["split"])
    if flags["within"] is not None and flags["epsilon"] is not None:
        raise InputError("--within: finds --epsilon; leave one of them out")
    # All that can be refused without a row, before a ledger or a table is opened.
    _refuse_mistakes(query, schema, flags)
    _refuse_settings(engine, memory, workspace)
    _refuse_log_in_table(steward_log, source)
    delta = flags["delta"]
    epsilon = _find_epsilon(query, schema, flags, split)
    # Computed in any case: it raises what the question itself would, before a ledger is opened.
    cost = query_cost(query, schema, epsilon=epsilon, delta=delta, split=split, rows=flags["rows"])
    if cost_only:
        emit(as_json, asdict(cost), _format_cost(cost, delta or EXAMPLE_DELTA))
        return
    ledger = _open_ledger(flags["url"], flags["scope"])
    log = _open_log(steward_log)
    settings: Flags = {"log": log, "fingerprint": flags["sha256"], "dialect": dialect}
    analysis = str(uuid.uuid4()) if flags["analysis"] is None else flags["analysis"]
    try:
        with _register(source, schema, engine, memory, workspace, settings) as table:
            session = Session(table, schema, ledger, log=log)
            if ledger is not None and flags["analysis"] is None and not again:
                terms = table.declarations.terms
                # The name is a digest of all that the question says, so that the same one is found
                # again without a name.
                named = flags | {"epsilon": epsilon}
                analysis = _name_question(query, terms, table.fingerprint, named)
                _refuse_repeat(ledger, analysis)
            answer = session.ask(
                query,
                epsilon=epsilon,
                delta=delta,
                analysis_id=analysis,
                split=split,
                share=flags["share"],
            )
    except (KeyboardInterrupt, ApieceError) as error:
        # A library may make another error of a Ctrl-C.
        if not (Printed.interrupted or isinstance(error, KeyboardInterrupt)):
            raise
        raise _make_interrupted(analysis, charged=ledger is not None) from None
    if registered is not None and ledger is not None:
        asked = _digest_asked(registered, query, analysis, flags | {"epsilon": epsilon})
        # Which entry has the answer is noted in the table's folder, so that the next one who asks
        # the same is told without a look at the rows.
        number = ledger.find_entry(analysis)
        registered.note_answer(asked, flags["url"], number, answer.to_dict())
    _show_answer(answer.to_dict(), figure, as_json=as_json, charged=ledger is not None)


# The options that are of a ledger, each with what it is.
_OF_A_LEDGER = {
    "analysis": "names an entry of a ledger",
    "share": "is of the accounts of a ledger",
    "scope": "is of a charge to a ledger",
}


def _require_ledger(flags: Flags) -> None:
    """Raise `InputError` for an option that is of a ledger, without one."""
    if flags["url"] is not None:
        return
    for name, problem in _OF_A_LEDGER.items():
        if flags[name] is not None:
            raise InputError(f"--{name}: {problem}; give --ledger too")


def _refuse_log_in_table(steward_log: Path | None, source: str) -> None:
    """Raise `InputError` for a log that the next query would read as a part of the table."""
    if steward_log is not None and Path(source).resolve() in steward_log.resolve().parents:
        raise InputError(f"--steward-log {steward_log}: lies in the table {source}; give another")


def _find_epsilon(query: str, schema: Schema, flags: Flags, split: list[float] | None) -> float:
    """Return the ε of the query: as given, or the least one for the width of `--within`."""
    if flags["within"] is None:
        return float(flags["epsilon"])
    from apiece.queries import least_epsilon

    return least_epsilon(
        query,
        schema,
        within=flags["within"],
        delta=flags["delta"],
        rows=flags["rows"],
        split=split,
    )


def _open_ledger(url: str | None, scope: str | None) -> Ledger | None:
    """Return the ledger that is charged, in a scope where one is given; None without a ledger."""
    if url is None:
        return None
    from apiece.ledger import Ledger
    from apiece.ledger.scopes import read_scope

    ledger = Ledger.open(url, create=False)
    return ledger if scope is None else ledger.within(read_scope(scope))


def _make_interrupted(analysis: str, *, charged: bool) -> Interrupted:
    """Return the error for a query that is interrupted; charged: whether a ledger pays for it."""
    message = "interrupted, and nothing is answered"
    if charged:
        message += (
            f"; people may be charged: --analysis {shlex.quote(analysis)} asks again for no more"
        )
    return Interrupted(message)


def _find_registration(source: str) -> Registration | None:
    """Return the registered table that a source is, which no option may declare anew."""
    from apiece.queries.registration import Registration, is_registered

    if not is_registered(source):
        return None
    names = [*DECLARING, "engine", "workspace", "sha256"]
    refuse_given(names, "is as the table was registered; leave it out")
    return Registration.open(source)


def _tell_recorded(registered: Registration, query: str, flags: Flags) -> Json | None:
    """Return the answer that a ledger has recorded to this very question, if the table knows it.

    Raises `InputError` where it is asked again without a name, before it is charged twice.
    """
    url = flags["url"]
    if url is None or flags["epsilon"] is None or flags["delta"] is None:
        return None
    name = _name_question(query, registered.terms, registered.fingerprint, flags)
    analysis = name if flags["analysis"] is None else flags["analysis"]
    asked = _digest_asked(registered, query, analysis, flags)
    answer = registered.find_answer(asked, url)
    if answer is not None and flags["analysis"] is None:
        raise _refuse_twice(analysis)
    return answer


def _digest_asked(registered: Registration, query: str, analysis: str, flags: Flags) -> str:
    """Return the digest under which a registered table notes the answer to a question."""
    from apiece.queries.registration import digest_question

    name = _name_question(query, registered.terms, registered.fingerprint, flags)
    return digest_question(name, analysis, flags["url"], flags["scope"])


def _show_answer(document: Json, figure: Path | None, *, as_json: bool, charged: bool) -> None:
    """Draw and print an answer; charged: whether a ledger pays for it."""
    if figure is not None:
        from apiece.queries.adjusting import make_rows
        from apiece.reporting import save
        from apiece.reporting.plots import intervals

        rows = make_rows(document["groups"], document["query"], rounded=False)
        save(intervals(rows), figure)
    emit(as_json, document, _format_answer(document, charged=charged))


def _name_question(query: str, terms: Json, fingerprint: str, flags: Flags) -> str:
    """Return the name under which a question is asked that has none: a digest of all it says."""
    from apiece.queries.registration import name_question

    split = _parse_split(flags["split"])
    promise = (flags["epsilon"], flags["delta"])
    return name_question(query, terms, fingerprint, *promise, split, flags["share"])


def _refuse_repeat(ledger: Ledger, analysis: str) -> None:
    """Raise `InputError` where the same question was answered, before it is charged twice."""
    try:
        answered = ledger.status(analysis) == "committed"
    # Under this name stands another question: `ask` will say so.
    except AnalysisError:
        return
    if answered:
        raise _refuse_twice(analysis)


def _refuse_twice(analysis: str) -> InputError:
    """Return the error for a question that was answered, before it is charged twice."""
    return InputError(
        f"query: answered before, as {analysis}, and would be charged twice; give --analysis "
        f"{analysis} for that answer, which costs nothing, or --again for a new one"
    )


# The options that a question needs, each with its meaning and an example.
NEEDED = {
    "person": ("the column of people's ids", "--person id"),
    "epsilon": ("the most that the question costs anyone", "--epsilon 0.5"),
    "delta": ("a number far below 1 over the number of people", "--delta 1e-6"),
}


def _refuse_mistakes(query: str, schema: Schema, flags: Flags) -> None:
    """Raise `InputError` with all that is missing or wrong, before a row is read."""
    from apiece.queries.declarations import Declarations
    from apiece.queries.mistakes import find_mistakes

    mistakes: list[InputError] = []
    is_missing = {
        "person": schema.person is None,
        "epsilon": flags["epsilon"] is None and flags["within"] is None,
        "delta": flags["delta"] is None,
    }
    missing = [name for name in NEEDED if is_missing[name]]
    if missing == ["delta"]:
        try:
            require_delta(None)
        except InputError as error:
            mistakes.append(error)
    elif missing:
        explained = ", ".join(f"{make_flag(name)} ({NEEDED[name][0]})" for name in missing)
        example = " ".join(NEEDED[name][1] for name in missing)
        remedy = "give it" if len(missing) == 1 else "give them"
        mistakes.append(InputError(f"{explained}: missing; {remedy}, as in {example}"))
    # What is missing is replaced by something that no question refuses.
    declarations = Declarations.from_schema(
        schema.declare(person="id") if schema.person is None else schema
    )
    epsilon = 1.0 if flags["epsilon"] is None else flags["epsilon"]
    delta = EXAMPLE_DELTA if flags["delta"] is None else flags["delta"]
    mistakes += find_mistakes(query, declarations, epsilon=epsilon, delta=delta)
    if mistakes:
        raise together(mistakes)


def _parse_split(text: str | None) -> list[float] | None:
    """Return the shares of `--split`, or None where it is not given."""
    if text is None:
        return None
    try:
        return [float(share) for share in text.split(",")]
    except ValueError:
        raise InputError(f"--split {text!r}: give numbers, as in --split 2,1,1") from None


def _refuse_settings(engine: str, memory: float | None, workspace: Path | None) -> None:
    """Raise `InputError` for a setting of the other engine."""
    if memory is not None and engine != "duckdb":
        raise InputError("--memory: is for duckdb; Spark has settings of its own; leave it out")
    if memory is not None and not 0 < memory < math.inf:
        raise InputError(f"--memory = {memory:g}: must be a number of GB in (0, inf)")
    if workspace is not None and engine == "duckdb":
        raise InputError("--workspace: is for Spark; duckdb works in TMPDIR; leave it out")


@contextmanager
def _register(
    source: str,
    schema: Schema,
    engine: str,
    memory: float | None,
    workspace: Path | None,
    settings: Flags,
) -> Iterator[Registered]:
    """Register the table with an engine; at the end the engine's copies of rows are removed."""
    from apiece.datasets.tables import refuse_text_settings
    from apiece.queries.spark import register_on_spark, start_spark

    if engine == "duckdb":
        size = None if memory is None else math.ceil(memory * 1e9)
        with closing(_open_table(source, schema, size, settings)) as table:
            yield table
        return
    if engine != "spark" and not engine.startswith("spark://"):
        raise InputError(f"--engine {engine!r}: give duckdb, spark, or spark://HOST:PORT")
    if engine != "spark" and workspace is None:
        raise InputError("--engine spark://…: needs --workspace, a folder that its machines see")
    # The frozen rows of Spark go with the command.
    with tempfile.TemporaryDirectory(prefix="apiece-", dir=workspace) as folder:
        refuse_text_settings(Path(source), settings.pop("dialect"))
        spark = start_spark("local[*]" if engine == "spark" else engine)
        yield register_on_spark(source, schema, spark=spark, workspace=folder, **settings)


def _open_table(
    source: str, schema: Schema, size: int | None, settings: Flags
) -> Table | DeferredTable:
    """Return the table of a source; the rows of a file are read when a question needs them."""
    from apiece.queries import register
    from apiece.queries.registration import Registration, is_registered
    from apiece.queries.table import DeferredTable

    path = Path(source)
    if is_registered(source):
        return DeferredTable.from_registration(Registration.open(source), memory=size)
    # A digest that is asked for has to be compared, and what is no file has none before it is read.
    if settings["fingerprint"] is not None or not path.is_file():
        return register(source, schema, memory=size, **settings)

    def read_rows(digest: str) -> Table:
        return register(source, schema, memory=size, **(settings | {"fingerprint": digest}))

    return DeferredTable.from_file(path, schema, read_rows)


def _open_log(path: Path | None) -> Log:
    """Return a function that writes the steward's messages to a file for its owner alone."""
    if path is None:
        return lambda message: None
    # The first line is the mark by which a later command knows the file as a log.
    append(path, json.dumps("apiece query"), STEWARD_LOG)
    return lambda message: append(path, json.dumps(message, ensure_ascii=True), STEWARD_LOG)


def _format_cost(cost: QueryCost, delta: float) -> list[str]:
    """Return the cost of a question for people, with accounts of some ε at δ as examples."""
    counts = [f"{cost.times(epsilon, delta):,}" for epsilon in EXAMPLE_BUDGETS]
    rows = [
        ["ε of an untouched account", *map(str, EXAMPLE_BUDGETS)],
        ["such questions it pays", *counts],
    ]
    budget = f"({shown(cost.epsilon)}, {shown(cost.delta)})"
    return [
        f"costs nobody more than {budget}, charged as a Gaussian of μ = {rounded_up(cost.mu)}",
        _describe_counting(cost.counted, cost.rows_per_person),
        "each pays for what their own rows add; whoever cannot is left out, and nobody is told",
        *_format_widths(cost),
        "",
        *format_table(rows),
        f"(accounts with δ = {delta:g})",
    ]


def _format_widths(cost: QueryCost) -> list[str]:
    """Return the lines that say how wide each statistic's interval will be in one group."""
    lines = ["half the width of the 95 % interval in one group:"] if cost.widths else []
    for label, width in cost.widths.items():
        condition = "" if width.rows is None else f", with {width.rows:,} made-up rows"
        name = "" if len(cost.widths) == 1 else f"{label}: "
        lines.append(f"  {name}±{width.margin:.3g}{condition}")
    return lines


def _format_answer(answer: Json, *, charged: bool) -> list[str]:
    """Return the lines of an answer; charged: whether a ledger pays for it."""
    from apiece.queries.fields import FIELDS, labels_of

    lines = []
    for group in answer["groups"]:
        if not set(group) & FIELDS:
            # A value that was found.
            lines.append("  ".join(f"{name}={value}" for name, value in group.items()))
            continue
        labels_of_group = labels_of(group, answer["query"])
        labels = [f"{name}={value}" for name, value in labels_of_group.items()]
        numbers = {name: part for name, part in group.items() if name not in labels_of_group}
        for name, estimate in _list_statistics(numbers):
            words = [*labels, name] if name else labels
            lines.append("  ".join([*words, _format_estimate(estimate)]))
    left_out = "cells that are not of their declared kind"
    if charged:
        left_out += ", and people whose account is missing or has too little left"
    has_numbers = any(set(group) & FIELDS for group in answer["groups"])
    has_margins = any("  at most " in line for line in lines)
    what = "intervals and margins" if has_margins else "intervals"
    return [
        *lines,
        _describe_counting(answer["counted"], answer["rows_per_person"]),
        *([f"{what}: {answer['confidence']:.0%}, for the noise alone"] if has_numbers else []),
        f"left out: {left_out}",
        f"guarantee: {answer['guarantee']}",
    ]


def _format_estimate(estimate: Json) -> str:
    """Return a number with its margin or interval."""
    value = estimate["estimate"]
    if value is None:
        return "none (a division by 0)"
    text = f"{value:.6g}"
    if "rank_margin" in estimate:
        level = estimate.get("level")
        quantile = "the quantile" if level is None else f"the quantile of level {level:g}"
        text += f"  at most {estimate['rank_margin']:.3g} rows from {quantile}"
    elif "interval" in estimate:
        low, high = estimate["interval"]
        text += f"  [{low:.6g}, {high:.6g}]"
    return text


def _describe_counting(unit: str, limit: int | None) -> str:
    """Return what was counted, persons or rows, and how often a person is."""
    if unit != "persons":
        frequency = f"at most {limit} of a person"
    elif limit in (None, 1):
        frequency = "each once"
    else:
        frequency = f"each in at most {limit} groups"
    return f"counted: {unit}, {frequency}"


def _list_statistics(group: Json) -> list[tuple[str, Json]]:
    """Return all numbers of a group by name, of several statistics one after the other."""
    if "statistics" not in group:
        return _list_estimates(group)
    named = []
    for statistic, part in group["statistics"].items():
        named += [
            (f"{statistic} {name}".strip(), estimate) for name, estimate in _list_estimates(part)
        ]
    return named


def _list_estimates(group: Json) -> list[tuple[str, Json]]:
    """Return the numbers of a group by name: bins, coefficients, quantiles, or one without."""
    if "bins" in group:
        # The edges that rows were compared with, in all their digits.
        names = [f"{low} to {high}" for low, high in pairwise(map(lossless, group["edges"]))]
        return list(zip(names, group["bins"], strict=True))
    estimates = group.get("coefficients") or group.get("quantiles")
    return [("", group)] if estimates is None else list(estimates.items())
