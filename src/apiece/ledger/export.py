"""Writing a ledger's accounts or its history to Parquet, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from apiece._types import Integers
from apiece.errors import DataError
from apiece.ledger import units
from apiece.ledger.chain import Entry
from apiece.ledger.codec import Ids, Terms

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("accounts", "history")


def write(rows: pa.Table, path: str | Path) -> int:
    """Write the rows to a Parquet file; return how many. `DataError` where it cannot be written."""
    import pyarrow.parquet as pq

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


def accounts(blocks: Iterable[tuple[Ids, Terms, Integers]]) -> pa.Table:
    """Return id, epsilon, delta, limit and spent (in the filter's unit) of everyone's account."""
    import pyarrow as pa

    parts = []
    for ids, rows, spent in blocks:
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


def history(entries: Iterable[Entry]) -> pa.Table:
    """Return number, kind, at, analysis and digest of every entry; nothing about one person."""
    import pyarrow as pa

    kept = list(entries)
    return pa.table(
        {
            name: pa.array([getattr(entry, name) for entry in kept])
            for name in ("number", "kind", "at", "analysis", "digest")
        }
    )
