"""How a text table is written: declared by whoever reads it, never guessed from its rows."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

from apiece.errors import DataError

_NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}


@dataclass(frozen=True, slots=True)
class Dialect:
    r"""What separates cells, what marks decimals, and the encoding of a text table.

    Parquet files say all of this themselves.

    Args:
        separator: One character, or "tab"; None is a tab for .tsv and a comma for all else.
        decimal: "." or ","; under "," a number with a point is no number, because it might be
            thousands.
        encoding: A name that Python knows; a byte-order mark is accepted under utf-8.

    Raises:
        DataError: For anything else.

    Example:
        >>> Dialect(separator="tab").separator
        '\t'
    """

    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"

    def __post_init__(self) -> None:
        for name in ("separator", "decimal", "encoding"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "separator" and value is None):
                raise DataError(f"{name} = {value!r}: must be a text; put it in quotes")
        if self.separator is not None:
            plain = _NAMED.get(self.separator, self.separator)
            if len(plain) != 1 or plain.isalnum() or plain in "\"'\r\n.+- ":
                raise DataError(
                    f"separator = {self.separator!r}: must be one character such as ',', ';' "
                    "or 'tab'"
                )
            object.__setattr__(self, "separator", plain)
        if self.decimal not in (".", ","):
            raise DataError(f"decimal = {self.decimal!r}: must be '.' or ','")
        try:
            "".encode(codecs.lookup(self.encoding).name)
        except (LookupError, ValueError):
            raise DataError(
                f"encoding = {self.encoding!r}: unknown; give utf-8, latin-1, cp1252 or utf-16"
            ) from None


PLAIN = Dialect()
