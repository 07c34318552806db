"""Tables in memory, whatever library holds them, as one that is read here."""

from __future__ import annotations

from apiece._lazy import require


def pandas_of(table: object) -> object:
    """Return a table in memory as a pandas table, each cell as it is stored.

    Arrow, Polars and DuckDB tables are converted; anything else comes back as it is. A null makes
    no other person's whole number a float.
    """
    require("tables", "pandas")
    import pandas as pd

    # Any table of Arrow's stream protocol, Polars and DuckDB among them, goes through Arrow.
    if isinstance(table, pd.DataFrame):
        return table
    # A DuckDB relation is evaluated here, once.
    if hasattr(table, "to_arrow_table"):
        table = table.to_arrow_table()
    # Without the protocol a library may still have a conversion of its own.
    if not hasattr(table, "__arrow_c_stream__"):
        to_pandas = getattr(table, "to_pandas", None)
        return table if to_pandas is None else to_pandas()
    require("tables", "pyarrow")
    import pyarrow as pa

    return pa.table(table).to_pandas(ignore_metadata=True, integer_object_nulls=True)
