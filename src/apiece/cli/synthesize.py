"""apiece synthesize: a synthetic table of people with their own budgets."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from apiece._files import PAGE, Kind, check_output, write, writing
from apiece._lazy import require
from apiece._text import shown
from apiece.cli._command import (
    PATH,
    Bar,
    Command,
    Output,
    add_table_options,
    emit,
    format_bullets,
    format_table,
    make_dialect,
    make_form_error,
    option,
    parse_assignment,
    parse_number_or_name,
    require_delta,
    warn,
)
from apiece.errors import InputError, StewardWarning

if TYPE_CHECKING:
    import pandas as pd

    from apiece._types import Flags, Json
    from apiece.budgets import Budgets
    from apiece.datasets import Schema
    from apiece.datasets.tables import Dialect
    from apiece.synthesis import Step, Synthetic
    from apiece.synthesis.domain import Bins

# A synthetic table is never written over what is there.
_TABLE = Kind("a synthetic table", (".parquet", ".csv"))
_STATEMENT = Kind("a statement", (".json",))
_BINS = "column=COUNT or column=EDGE,EDGE,…, as in age=18,30,45,65"
# Rounds that the bar is drawn for.
_PERCENT = 100
EXAMPLE = """
\b
Example:
  apiece synthesize people.csv --schema people.toml --person id --epsilon consent \\
         --levels low=0.5,high=2 --delta 1e-6 --out synthetic.parquet
"""


@click.command(
    cls=Command, short_help="A synthetic table, everybody at their own budget.", epilog=EXAMPLE
)
@click.argument("source", type=PATH)
@option("--schema", type=PATH, required=True, help="TOML file that declares the columns.")
@option("--person")
@option("--rows-per-person", type=int, help="The most rows of a person that count; public.")
@option("--epsilon", required=True, help="Column of budgets ε, or one number for all.")
@option("--delta", help="δ: a number for all, or a column; needed.")
@option("--levels")
@option("--no-limit-cap")
@option("--workload", default="pairs", help="Which marginals matter: columns, pairs or triples.")
@option(
    "--bins", multiple=True, help="Bins: a number for all, or column=COUNT or edges; repeatable."
)
@option(
    "--rule",
    "rules",
    multiple=True,
    help="What no row can be, as 'age < 18 and marital = married'; repeatable.",
)
@option("--without", multiple=True, help="Declared column that is not synthesized; repeatable.")
@option("--rake", type=float, help="Share of every budget for everybody's columns, as 0.2.")
@option("--rounds", type=int, help="Rounds for which noise is planned.  [default: 16 a column]")
@option("--records", type=int, help="Synthetic rows.  [default: as many as the table, by estimate]")
@option("--ledger", "url", help="Ledger to charge: sqlite:///file.db or postgresql://…")
@option("--analysis", help="Name in the ledger, under which it is charged once.")
@option(
    "--checkpoint", type=PATH, help="File from which the same command goes on where it stopped."
)
@option("--seed", default=None, callback=None, help="For tests alone: repeats the noise.")
@option("--cost", "cost_only", is_flag=True, help="Print the promised errors; count no row.")
@option("--edition", default="public", help="Of --page: public, or internal, for the steward.")
@option("--page", type=Output(PAGE), help="Write the report here (.html).")
@option(
    "--out",
    type=Output(_TABLE),
    help="Write the synthetic table here (.parquet or .csv), beside it its statement and model.",
)
@add_table_options
@option("--json")
def command(source: Path, as_json: bool, **flags: Any) -> None:
    """Make a synthetic table from SOURCE (CSV or Parquet), everybody at their own budget.

    Each person counts with a weight by their budget ε and spends exactly that. The schema declares
    ranges, values and gaps; what is not declared is not used. Beside --out come its statement
    (NAME.statement.json), bound to the table's hash, and all that was released (NAME.model.json),
    from which more rows can be drawn for nothing.
    """
    require("synthesis", "mbi", "jax", "sqlalchemy", "duckdb", "pandas", "pyarrow")
    from apiece.datasets import read_schema
    from apiece.synthesis.front import expect_errors

    if flags["out"] is None and not flags["cost_only"]:
        raise InputError("--out: missing; give a file, as synthetic.parquet, or --cost")
    if flags["analysis"] is not None and flags["url"] is None:
        raise InputError("--analysis: names an entry of a ledger; give --ledger too")
    schema = read_schema(flags["schema"]).declare(
        person=flags["person"], rows_per_person=flags["rows_per_person"], decimal=flags["decimal"]
    )
    if schema.person is not None and schema.rows_per_person is None:
        raise InputError(
            "--rows-per-person: missing; say how many rows of a person count at most, 1 where each "
            "has one"
        )
    dialect = replace(make_dialect(flags), decimal=schema.decimal)
    budgets = _read_budgets(source, schema.person, flags, dialect)
    # Columns of budgets are no columns of the synthetic table.
    unused = [name for name in (flags["epsilon"], flags["delta"]) if name in schema.columns]
    settings: Flags = {
        "workload": flags["workload"],
        "bins": _parse_bins(flags["bins"]),
        "rules": flags["rules"],
        "left_out": [*flags["without"], *unused],
        "rake": flags["rake"],
        "rounds": flags["rounds"],
    }
    if flags["cost_only"]:
        errors = expect_errors(schema, budgets, **settings)
        emit(as_json, {"columns": errors}, _format_errors(errors))
        return
    # All names are checked before the long part begins.
    names = _name_files(flags["out"], source)
    synthetic = _synthesize(source, schema, budgets, dialect, settings, flags)
    table = synthetic.frame(flags["records"], seed=flags["seed"])
    _write_table(table, names["table"], source)
    synthetic.save(names["model"])
    statement = synthetic.statement(names["table"])
    write(names["statement"], json.dumps(statement, indent=2, ensure_ascii=False), _STATEMENT)
    if flags["page"] is not None:
        synthetic.report(flags["edition"]).save(flags["page"])
    document = {
        "rows": len(table),
        "marginals": len(synthetic.measurements),
        "columns": synthetic.promise(),
        "files": {name: str(path) for name, path in names.items()},
        "warnings": synthetic.warnings(),
    }
    emit(as_json, document, _format_result(synthetic, document))


def _synthesize(
    source: Path,
    schema: Schema,
    budgets: Budgets,
    dialect: Dialect,
    settings: Flags,
    flags: Flags,
) -> Synthetic:
    """Return what is released, with a bar on the terminal; print its warnings in the end."""
    from apiece.ledger import Ledger
    from apiece.synthesis import synthesize

    ledger = None if flags["url"] is None else Ledger.open(flags["url"], create=False)
    with warnings.catch_warnings(record=True) as caught, Bar(_PERCENT, "budgets spent") as bar:
        # Caught and printed at the end: in between the bar is on the terminal.
        warnings.simplefilter("always", StewardWarning)
        synthetic = synthesize(
            source,
            schema,
            budgets,
            **settings,
            ledger=ledger,
            analysis_id=flags["analysis"],
            checkpoint=flags["checkpoint"],
            progress=_make_progress(bar),
            dialect=dialect,
            seed=flags["seed"],
        )
    if flags["seed"] is not None:
        warn(["--seed: whoever knows it can take the noise off; leave it out of a release"])
    warn(str(w.message) for w in caught if issubclass(w.category, StewardWarning))
    return synthetic


def _read_budgets(source: Path, person: str | None, flags: Flags, dialect: Dialect) -> Budgets:
    """Return everybody's budget, from columns of the table or one for all."""
    from apiece import Budgets

    delta = parse_number_or_name(require_delta(flags["delta"]))
    epsilon = parse_number_or_name(flags["epsilon"])
    assert delta is not None
    assert epsilon is not None
    if isinstance(epsilon, str):
        return Budgets.from_frame(
            source,
            epsilon=epsilon,
            delta=delta,
            person=person,
            levels=flags["levels"],
            no_limit_cap=flags["no_limit_cap"],
            dialect=dialect,
        )
    if isinstance(delta, str):
        raise InputError("--delta: names a column, and --epsilon a number; give both as columns")
    from apiece.budgets.frames import read_frame
    from apiece.budgets.units import Units

    table = read_frame(source, dialect)
    # One budget for all: it is enough to know who there is.
    ids = None if person is None else Units.of_column(table, person).ids
    size = len(table) if ids is None else len(ids)
    return Budgets([epsilon] * size, delta, ids=ids)


def _parse_bins(texts: tuple[str, ...]) -> Bins:
    """Return bins: one number for all, or columns with a number or edges."""
    from apiece.synthesis.domain import DEFAULT_BINS

    if not texts:
        return DEFAULT_BINS
    if len(texts) == 1 and texts[0].isdigit():
        return int(texts[0])
    bins: dict[str, int | list[float]] = {}
    for text in texts:
        name, value = parse_assignment("--bins", text, _BINS, last=True)
        if name in bins:
            raise InputError(f"--bins: {name!r} is given twice; give it once")
        try:
            edges = [float(part) for part in value.split(",")]
        except ValueError:
            raise make_form_error("--bins", text, _BINS) from None
        bins[name] = int(value) if value.isdigit() else edges
    return bins


def _name_files(out: Path, source: Path) -> dict[str, Path]:
    """Return the table's path and those of what is written beside it, all of which are free."""
    names = {
        "table": out,
        "statement": out.with_name(f"{out.stem}.statement.json"),
        "model": out.with_name(f"{out.stem}.model.json"),
    }
    for name in ("statement", "model"):
        check_output(names[name], _STATEMENT, [source])
    return names


def _write_table(table: pd.DataFrame, path: Path, source: Path) -> None:
    """Write the synthetic rows."""
    with writing(path, _TABLE, [source]) as file:
        if path.suffix.lower() == ".csv":
            file.write(table.to_csv(index=False).encode())
        else:
            table.to_parquet(file, index=False)


def _make_progress(bar: Bar) -> Any:
    """Return a function that moves a bar to the share of the budgets that is spent."""
    done = 0

    def show(step: Step) -> None:
        nonlocal done
        # A round may spend several per cent, or less than one.
        while done < int(step.spent * _PERCENT):
            bar.advance(f"round {step.round}: {', '.join(step.columns[:2])}")
            done += 1

    return show


def _format_errors(errors: list[Json]) -> list[str]:
    """Return the promised errors as a table."""
    rows = [["column", "cells", "error\nby noise"]]
    rows += [[e["column"], str(e["cells"]), f"{e['by_noise']:.4f}"] for e in errors]
    return [
        *format_table(rows),
        "(total variation from 0 to 1, of each column by itself, by its first noise alone)",
    ]


def _format_result(synthetic: Synthetic, document: Json) -> list[str]:
    """Return what was made, for people."""
    charges = synthetic.charges
    low = shown(float(charges.epsilon.min()))
    high = shown(float(charges.epsilon.max()))
    budgets = f"ε = {low}" if low == high else f"ε from {low} to {high}"
    return [
        f"{document['rows']} synthetic rows from {document['marginals']} noisy marginals; "
        f"everybody at their own budget, {budgets}",
        "",
        *_format_errors(document["columns"]),
        "",
        *(f"{name}: {path}" for name, path in document["files"].items()),
        "",
        *(line for bullet in format_bullets(document["warnings"]) for line in bullet.splitlines()),
    ]
