"""apiece register: a steward reads a table once, for the questions that will be asked of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click

from apiece._lazy import require
from apiece.cli._command import Command, Output, echo, emit, make_dialect, option
from apiece.cli._declaring import add_declaring_options, declare_table
from apiece.errors import InputError

EXAMPLE = """
\b
Example:
  apiece register visits.csv --person id --bounds cost=0:5000 --values ward=A,B \\
         --rows-per-person 5 --out visits.apiece
  apiece query visits.apiece "mean(cost) by ward" --epsilon 0.5 --delta 1e-6
"""


@click.command(cls=Command, epilog=EXAMPLE)
@click.argument("source")
@add_declaring_options
@option("--sha256", help="Digest of SOURCE; any other content is refused.")
@option(
    "--memory",
    type=float,
    help="GB of rows that duckdb keeps in memory; the rest goes to TMPDIR.  [default: 4]",
)
@option("--out", type=Output(None), required=True, help="New folder for the table; needed.")
@option("--json")
def command(
    source: str, sha256: str | None, memory: float | None, out: Path, as_json: bool, **flags: Any
) -> None:
    """Read the table SOURCE once, and keep what was read in a new folder.

    For the steward, who may see rows. The folder has the rows as they were read, what is declared
    about them, the digest of SOURCE and the steward's log, and is for its owner alone. Give it to
    `apiece query` as SOURCE: nothing is declared or read again, a table that cannot be read is
    refused here and not to an analyst, and an answer that the ledger has recorded is told at once.

    Messages about rows are printed here, and are in the log.
    """
    require("queries", "sqlalchemy", "duckdb", "pandas", "pyarrow")
    schema = declare_table(flags)
    if schema.person is None:
        raise InputError("--person: missing; name the column of people's ids, as in --person id")
    if memory is not None and not 0 < memory < math.inf:
        raise InputError(f"--memory = {memory:g}: must be a number of GB in (0, inf)")
    if out.resolve() == Path(source).resolve():
        raise InputError(f"--out {out}: is the table itself; give the name of a new folder")
    from apiece.queries import register

    # A steward sees messages about rows here, and nobody else does.
    table = register(
        source,
        schema,
        log=lambda message: echo(f"steward: {message}", err=True),
        fingerprint=sha256,
        memory=None if memory is None else math.ceil(memory * 1e9),
        dialect=make_dialect(flags | {"decimal": schema.decimal}),
        folder=out,
    )
    table.close()
    document = {"folder": str(out), "fingerprint": table.fingerprint}
    emit(as_json, document, [f"registered: {out}", f"fingerprint: {table.fingerprint}"])
