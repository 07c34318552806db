"""apiece schema: write a public-schema template for a table, or look for mistakes in a schema."""

from pathlib import Path

import click

from apiece._files import SCHEMA, write
from apiece.cli._command import (
    PATH,
    Command,
    Output,
    add_table_options,
    echo,
    emit,
    make_dialect,
    option,
)
from apiece.datasets import read_schema
from apiece.datasets.cells import require_column
from apiece.datasets.packaged import PACKAGED, read_schema_text
from apiece.datasets.schema import lint, write_template
from apiece.datasets.tables import read_header
from apiece.errors import InputError

EXAMPLE = """
\b
Examples:
  apiece schema people.csv --label income --epsilon consent_epsilon --out people.toml
  apiece schema people.csv --label income --epsilon consent_epsilon --check people.toml
"""


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("data", type=PATH)
@option("--label", required=True, help="Column to predict.")
@option("--skip", multiple=True, help="Column that is no feature; repeatable.")
@option("--person", help="Column of persons' ids, which is no feature and which the schema names.")
@option("--ids", help="Column of record ids, which is no feature.")
@option("--epsilon", help="Column of budgets, which is no feature.")
@add_table_options
@option(
    "--check",
    type=PATH,
    metavar="SCHEMA",
    help="Look for mistakes in this schema; nothing is written.",
)
@option("--json", help="Print one JSON document; with --check.")
@option("--out", type=Output(SCHEMA), help="File to write.  [default: standard output]")
def command(
    data: Path,
    label: str,
    skip: tuple[str, ...],
    person: str | None,
    ids: str | None,
    epsilon: str | None,
    check: Path | None,
    as_json: bool,
    out: Path | None,
    **dialect: object,
) -> None:
    """Write a public-schema template for the table DATA, for you to fill in.

    Reads the header only: column names, and storage types where a Parquet file has them. No row
    is read, because ranges and categories copied from rows would leak them. Where DATA
    names a packaged table (adult, german, credit_default), its filled-in schema is printed instead.

    With --check SCHEMA it says what looks like a mistake there: columns that are not declared, or
    declared and not in the table, names and values that differ in case alone, an id or a budget as
    a feature, markers of missing values among the values.
    """
    if check is None and as_json:
        raise InputError("--json: a template is TOML; give it with --check")
    if str(data) in PACKAGED and check is None:
        _write_schema(read_schema_text(str(data)), out)
        return
    # The header is public; a row is not looked at.
    header = read_header(data, make_dialect(dialect))
    skip += tuple(name for name in (person, ids, epsilon) if name is not None)
    if label in skip:
        raise InputError(
            f"--label = {label!r}: is the column of another option too; give two columns"
        )
    for name in (label, *skip):
        require_column(name, list(header), "label" if name == label else "skipped")
    if check is None:
        _write_schema(write_template(data.name, header, label=label, but=skip, person=person), out)
        return
    if out is not None:
        raise InputError("--check: nothing is written; leave --out out")
    # The columns that are no features, with the reason.
    roles = {label: "label"} | dict.fromkeys(skip, "skipped")
    schema = read_schema(check)
    # Both raise where the schema does not fit the columns that the options name.
    schema.target(label)
    schema.features(but=set(roles))
    doubts = lint(schema, list(header), taken=roles)
    text = "\n".join(doubts) or f"{check}: nothing looks like a mistake"
    emit(as_json, {"schema": str(check), "doubts": doubts}, text)


def _write_schema(text: str, out: Path | None) -> None:
    """Write a schema to a file, or print it."""
    if out is None:
        echo(text, nl=False)
    else:
        write(out, text, SCHEMA)
        echo(f"{out}: fill in what is marked '?', then: --schema {out}", err=True)
