"""Writing a ledger's accounts or its history to Parquet, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apiece.errors import DataError, unknown
from apiece.ledger import units

if TYPE_CHECKING:
    import pyarrow as pa

    from apiece.ledger.ledger import Ledger

TABLES = ("accounts", "history")


def export(ledger: Ledger, path: str | Path, table: str = "accounts") -> int:
    """Write `table` to a Parquet file; return its number of rows.

    "accounts": id, epsilon, delta, limit, spent (in the filter's unit), so data about people.
    "history": number, kind, at, analysis, digest, which holds nothing about a single person.

    Raises `OptionError` for another table, `DataError` where the file cannot be written.
    """
    import pyarrow.parquet as pq

    if table not in TABLES:
        raise unknown("table", table, TABLES)
    rows = _accounts(ledger) if table == "accounts" else _history(ledger)
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            pq.write_table(rows, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise DataError(f"{target}: cannot be written ({error.strerror or error})") from None
    return int(rows.num_rows)


def _accounts(ledger: Ledger) -> pa.Table:
    import pyarrow as pa

    parts = []
    for ids, rows, spent in ledger.account_blocks():
        parts.append(
            pa.table(
                {
                    "id": pa.array(ids),
                    "epsilon": np.ascontiguousarray(rows["epsilon"]),
                    "delta": np.ascontiguousarray(rows["delta"]),
                    "limit": rows["limit"] * units.UNIT,
                    "spent": spent * units.UNIT,
                }
            )
        )
    if not parts:
        raise DataError("ledger: it has no accounts to export; enroll people first")
    return pa.concat_tables(parts)


def _history(ledger: Ledger) -> pa.Table:
    import pyarrow as pa

    entries = list(ledger.history())
    return pa.table(
        {
            name: pa.array([getattr(entry, name) for entry in entries])
            for name in ("number", "kind", "at", "analysis", "digest")
        }
    )
