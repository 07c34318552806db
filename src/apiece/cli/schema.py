"""apiece schema: write a public-schema template for a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from apiece.cli._inputs import dialect_from, table_options
from apiece.cli._output import echo


@click.command(
    epilog="Example: apiece schema people.csv --label income --skip consent_epsilon "
    "--out people.toml"
)
@click.argument("data", type=click.Path(path_type=Path))
@click.option("--label", required=True, help="Column to predict; declared with its classes.")
@click.option(
    "--skip",
    multiple=True,
    help="A column that is no feature (budget, id, split); may be given more than once.",
)
@table_options
@click.option("--out", type=click.Path(path_type=Path), help="File to write; stdout if not given.")
def command(
    data: Path, label: str, skip: tuple[str, ...], out: Path | None, **written: Any
) -> None:
    """Write a public-schema template for the table DATA, to be filled in by you.

    Reads the header only: column names, and storage types where a Parquet file has them. No row
    is read, because ranges and categories copied from rows would leak them. A name given in DATA
    that is a packaged table (adult, german, credit_default) prints its filled-in schema instead.
    """
    from apiece._files import write_new
    from apiece.datasets import PACKAGED, read_header, require, schema_text, template

    if str(data) in PACKAGED:
        text = schema_text(str(data))
    else:
        header = read_header(data, dialect_from(written))
        for name in (label, *skip):
            require(name, list(header), "label" if name == label else "skipped")
        text = template(data.name, header, label=label, but=skip)
    if out is None:
        echo(text, nl=False)
    else:
        write_new(out, text)
        echo(f"{out}: fill in what is marked '?', then: --schema {out}", err=True)
