"""The statement of a synthetic table: what was promised to whom, and which file it speaks of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from apiece._text import shown
from apiece._types import Json
from apiece.errors import DataError
from apiece.synthesis.charges import Charges

# Names the form of a statement, so that a reader knows what to expect in it.
STATEMENT: Final = "apiece statement of a synthetic table 1"
# Distinct budgets that are listed one by one, at most.
_LISTED: Final = 20
# Bytes that are read at a time.
_PART: Final = 1 << 20


def make_statement(
    public: Json,
    charges: Charges,
    released: str,
    warnings: Sequence[str],
    table: str | Path | None,
) -> Json:
    """Return the statement of a synthesis, bound to a file where one is given.

    Args:
        public: What was public before a row was read.
        charges: What each budget spent.
        released: The hash of all that was released.
        warnings: What whoever uses the table has to know.
        table: The file.
    """
    # By ε and δ alone, without the names of budgets.
    levels = [
        {"epsilon": float(epsilon), "delta": float(delta)}
        for epsilon, delta in zip(charges.epsilon, charges.delta, strict=True)
    ]
    unit = "all rows of a person" if public["person"] is not None else "a row"
    statement: Json = {
        "statement": STATEMENT,
        "promise": (
            "Everybody's own (epsilon, delta)-differential privacy under adding or removing "
            f"{unit}, whatever is done with the table"
        ),
        "budgets": levels if len(levels) <= _LISTED else [],
        "largest_budget": {
            "epsilon": shown(float(charges.epsilon.max())),
            "delta": shown(float(charges.delta.max())),
        },
        "relation": "add_remove",
        "mechanism": (
            "weighted marginals with exact Gaussian noise, chosen by an exact exponential "
            "mechanism; charged by one Gaussian filter with a budget each"
        ),
        "released": released,
        # The name alone, without folders.
        "table": None if table is None else {"name": Path(table).name, "sha256": hash_file(table)},
        "warnings": list(warnings),
        "signature": (
            "its author's word: without a signature nothing shows who wrote this statement, nor "
            "that the table was made as it says"
        ),
    }
    # Over everything else, so that a changed word shows.
    return {**statement, "digest": hash_values(statement)}


def require_bound(statement: Json, table: str | Path) -> None:
    """Check that a statement is whole, and speaks of this table.

    Args:
        statement: As `Synthetic.statement` made it.
        table: The file.

    Raises:
        DataError: Where a word of it was changed, and for another table.

    Example:
        >>> from apiece.errors import DataError
        >>> from apiece.synthesis.statement import require_bound
        >>> try:
        ...     require_bound({"promise": "much", "digest": "none"}, "table.csv")
        ... except DataError as error:
        ...     print(error)
        statement: a word of it was changed; ask its author for the statement
    """
    content = {key: value for key, value in statement.items() if key != "digest"}
    if statement.get("digest") != hash_values(content):
        raise DataError("statement: a word of it was changed; ask its author for the statement")
    bound = statement.get("table")
    if bound is None or bound["sha256"] != hash_file(table):
        raise DataError(f"{table}: is not the table that the statement speaks of; give that file")


def hash_file(path: str | Path) -> str:
    """Return the SHA-256 of a file; raise `DataError` where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as file:
            # In parts: tables may be larger than memory.
            while part := file.read(_PART):
                digest.update(part)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file") from None
    return digest.hexdigest()


def hash_values(value: Json) -> str:
    """Return the SHA-256 of JSON values, whatever the order of their names."""
    # Sorted names and no blanks: one text for one value.
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
