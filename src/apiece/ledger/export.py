"""Writing a ledger's accounts or its history to Parquet, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from apiece._files import EXPORT, writing
from apiece._types import Integers
from apiece.errors import DataError
from apiece.ledger import units
from apiece.ledger.chain import Entry
from apiece.ledger.codec import Ids, Terms

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = ("accounts", "history", "paid")
GROUP: Final = 64  # blocks in one of a file's row groups: a quarter of a million people


def write(parts: Iterable[pa.Table], path: str | Path, inputs: Iterable[Path]) -> int:
    """Write the rows to a Parquet file as they come; return how many.

    inputs: that it must not replace. Raises `DataError` where it cannot be written.
    """
    import pyarrow.parquet as pq

    rows = 0
    with writing(path, EXPORT, inputs) as file, ExitStack() as opened:
        writer = None
        for part in parts:
            if writer is None:
                schema = part.schema.with_metadata({"apiece": "ledger export"})
                writer = opened.enter_context(pq.ParquetWriter(file, schema))
            writer.write_table(part.replace_schema_metadata(schema.metadata))
            rows += part.num_rows
    return rows


def accounts(blocks: Iterable[tuple[Ids, Terms, Integers]]) -> Iterator[pa.Table]:
    """Yield id, ε, δ, and of μ² and slack the limit and what is spent, some accounts at a time."""
    import pyarrow as pa

    several, none = iter(blocks), True
    while some := list(islice(several, GROUP)):
        ids, rows, spent = (np.concatenate(each) for each in zip(*some, strict=True))
        none = False
        yield pa.table(
            {
                "id": pa.array(ids),
                "epsilon": np.ascontiguousarray(rows["epsilon"]),
                "delta": np.ascontiguousarray(rows["delta"]),
                "limit": rows["limit"] * units.UNIT,
                "spent": spent[:, 0] * units.UNIT,
                "slack": rows["slack"] * units.SLACK_UNIT,
                "slack_spent": spent[:, 1] * units.SLACK_UNIT,
            }
        )
    if none:
        raise DataError("ledger: it has no accounts to export; enroll people first")


def paid(blocks: Iterable[Ids]) -> Iterator[pa.Table]:
    """Yield the ids of those who paid for an analysis, some thousands at a time."""
    import pyarrow as pa

    none = True
    for ids in blocks:
        none = False
        yield pa.table({"id": pa.array(ids)})
    if none:
        raise DataError("ledger: nobody paid for this analysis; there is nothing to export")


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
