"""An anchor: a file outside the database with the digest of every entry that this side wrote.

Whoever rewrites a ledger, digests and all, or puts an old copy of it in its place, would have to
change this file too: keep it on another machine or account than the database.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from apiece.errors import StateError
from apiece.ledger.chain import Head, Last

VARIABLE: Final = "APIECE_LEDGER_ANCHOR"
_LINE: Final = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")


def read_head(text: str) -> Head | None:
    """Return the head in `number:digest`; None where that is not what the text is.

    Args:
        text: A line, as `apiece ledger status` prints it.

    Example:
        >>> read_head("3:" + "0" * 64).number
        3
        >>> read_head("three") is None
        True
    """
    found = _LINE.fullmatch(text)
    return None if found is None else Head(int(found[1]), found[2])


@dataclass(frozen=True, slots=True)
class Anchor:
    """The heads kept in a file, one `number:digest` a line, as `apiece ledger status` prints it.

    path: None keeps nothing. The file must be there, unless the ledger is being made.
    """

    path: Path | None

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None) -> Anchor:
        """Return the anchor at `path`, or at the one that the environment names."""
        named = os.environ.get(VARIABLE) if path is None else path
        return cls(Path(named) if named else None)

    def read(self) -> dict[int, str]:
        """Return the digests kept, by number. Read it before the database is looked at."""
        if self.path is None:
            return {}
        try:
            lines = self.path.read_text(encoding="ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise StateError(
                f"anchor {self.path}: cannot be read ({type(error).__name__}); put it back, or "
                "begin a new one with the head that `apiece ledger status` prints, if you trust it"
            ) from None
        kept: dict[int, str] = {}
        for at, line in enumerate(lines, start=1):
            head = read_head(line)
            if head is None or kept.setdefault(*head) != head.digest:
                raise StateError(
                    f"anchor {self.path}, line {at}: not number:digest, or not that of an earlier "
                    "line; the ledger cannot be checked with it"
                )
        return kept

    def keep(self, last: Last, kept: dict[int, str]) -> None:
        """Add the last entry, if it is not kept, on the disk before this returns."""
        if self.path is None or last.number in kept:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            descriptor = os.open(self.path, flags, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write(f"{last.number}:{last.digest.hex()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StateError(
                f"anchor {self.path}: cannot be written ({error.strerror}); the ledger has the "
                "entry: mend the file and call again with the same analysis id"
            ) from None
