"""Memory of a ledger outside its store, so that an older copy of it is not believed.

A process remembers the last entry that any of its objects wrote or read; the head file, beside an
SQLite file, has every entry's digest, and so has an anchor elsewhere: keep it on another machine or
account. Who puts an older copy in the ledger's place would have to replace each of these too. A
digest is written once its entry is durable, and an answer goes out once both are: a crash leaves a
file behind the store by one entry, which the next call adds; never before it.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from apiece import _files
from apiece.errors import DataError, StateError
from apiece.ledger.chain import Head, Tip
from apiece.ledger.database import head_file, is_there

# The environment variable that names an anchor.
VARIABLE: Final = "APIECE_LEDGER_ANCHOR"
# Bytes at the end of a file that are read at each call: some fifty entries.
TAIL: Final = 4096
# A head in one spelling: no leading zeros, lower case.
_LINE: Final = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")
# What a power cut leaves of a line.
_TORN: Final = re.compile(r"[0-9]{0,18}(:[0-9a-f]{0,64})?")
# Why a file that is there cannot be written to by this process.
_NOT_OURS: Final = (errno.EROFS, errno.EACCES, errno.EPERM)


def read_head(text: str) -> Head | None:
    """Return the head in `number:digest`; None where that is not what the text is."""
    result = _LINE.fullmatch(text)
    return None if result is None else Head(int(result[1]), result[2])


@dataclass(slots=True, repr=False)
class Memory:
    """What this process has last written to a ledger or read from it, in whichever thread."""

    tip: Tip | None = None
    # Held while an object of this process writes, so that no two of its threads do.
    writing: threading.RLock = field(default_factory=threading.RLock)

    def see(self, tip: Tip) -> None:
        """Remember an entry that is durable, unless a later one is remembered."""
        with _GUARD:
            if self.tip is None or tip.number > self.tip.number:
                self.tip = tip


# Guards which ledgers are remembered, and what of each.
_GUARD = threading.Lock()
_MEMORIES: dict[bytes, Memory] = {}


def memory_of(salt: bytes) -> Memory:
    """Return the memory of the ledger with this salt, by which it is known wherever it lies."""
    with _GUARD:
        return _MEMORIES.setdefault(salt, Memory())


def _renew_locks() -> None:
    """Free a forked child of locks that threads of its parent held; what was seen stays seen."""
    global _GUARD
    _GUARD = threading.Lock()
    for memory in _MEMORIES.values():
        memory.writing = threading.RLock()


os.register_at_fork(after_in_child=_renew_locks)


@dataclass(frozen=True, slots=True)
class HeadFile:
    """Digests of entries in a file, one `number:digest` a line; lines are added, never changed."""

    path: Path
    # The SQLite file beside it, whose permissions it gets; None of an anchor, which must exist.
    store: Path | None = None

    def read(self, *, whole: bool = False) -> dict[int, str]:
        """Return the last digests, or all, by number; none where a head file is not there."""
        try:
            data, is_whole = self._read_end(whole)
        except OSError as error:
            if self.store is not None and isinstance(error, FileNotFoundError):
                return {}
            raise StateError(
                f"{self.label}: cannot be read ({error.strerror}); put it back, or begin a new "
                "one with the head that `apiece ledger verify` prints, if you trust it"
            ) from None
        except DataError as error:
            raise StateError(f"{self.role} {error}") from None
        digests: dict[int, str] = {}
        # Zeros between lines are what a power cut left where others have written on.
        lines = data.replace(b"\0", b"").split(b"\n")
        # Unless the file is read from its start, the first line may be cut.
        for line in lines if is_whole else lines[1:]:
            text = line.decode("ascii", "replace")
            head = read_head(text)
            if head is None and _TORN.fullmatch(text):
                continue
            if head is None or digests.setdefault(*head) != head.digest:
                raise StateError(
                    f"{self.label}: a line of it is not number:digest, or not that of an earlier "
                    "line; the ledger cannot be checked with it: put it back"
                )
        # An empty anchor could be one that was emptied: it has to be begun by hand.
        if self.store is None and not digests:
            raise StateError(f"{self.label}: holds no head; begin it with one that you trust")
        return digests

    def _read_end(self, whole: bool) -> tuple[bytes, bool]:
        """Return the last `TAIL` bytes before the zeros at the end, and whether they are all.

        A power cut can leave zeros of any number at a file's end, where a line was to be.
        """
        status = _files.look_at(self.path)
        if status is None:
            raise FileNotFoundError(errno.ENOENT, "no such file")
        _files.require_regular(self.path, status)
        # Neither a link nor a pipe: the one could lead elsewhere, and the other would wait for a
        # writer.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(self.path, flags), "rb") as file:
            # Back over zeros, a window at a time, until some byte is left.
            end = file.seek(0, os.SEEK_END)
            while end:
                start = max(0, end - TAIL)
                file.seek(start)
                content = file.read(end - start).rstrip(b"\0")
                end = start + len(content)
                if content:
                    break
            start = 0 if whole else max(0, end - TAIL)
            file.seek(start)
            return file.read(end - start), start == 0

    def keep(self, tip: Tip, known: Mapping[int, str], *, must: bool = True) -> None:
        """Add the last entry, durably; must: it is an error that this process may not write."""
        if tip.number in known:
            return
        try:
            self._add(f"{tip.number}:{tip.digest.hex()}\n".encode())
        except DataError as error:
            if must:
                raise StateError(
                    f"{self.role} {error}; the ledger has the entry: mend the file and call again "
                    "with the same analysis id"
                ) from None
        except OSError as error:
            if must or error.errno not in _NOT_OURS:
                raise StateError(
                    f"{self.label}: cannot be written ({error.strerror}); the ledger has the "
                    "entry: mend the file and call again with the same analysis id"
                ) from None

    def check_writable(self) -> None:
        """Raise `StateError` where a line must not be added to what lies at the path."""
        try:
            _files.require_own(self.path, _files.look_at(self.path))
        except DataError as error:
            raise StateError(f"{self.role} {error}") from None

    def _add(self, line: bytes) -> None:
        # A line is appended in one piece where it can be, and is on the disk before this returns;
        # of a new file its name too.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        file, new = _files.open_own(self.path, flags)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":
                # After what a power cut left of a line.
                line = b"\n" + line
            # Who may read the ledger may read the file beside it, and nobody else.
            if new and self.store is not None and is_there(self.store):
                os.fchmod(file, self.store.stat().st_mode & 0o666)
            while line:
                line = line[os.write(file, line) :]
            os.fsync(file)
        finally:
            os.close(file)
        if new:
            folder = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    @property
    def role(self) -> str:
        """Return what the file is for: "anchor" or "head file"."""
        return "anchor" if self.store is None else "head file"

    @property
    def label(self) -> str:
        """Return the name that messages use."""
        return f"{self.role} {self.path}"


class Heads(NamedTuple):
    """The digests that were read from the head file and from the anchor, by number."""

    beside: Mapping[int, str]
    elsewhere: Mapping[int, str]

    @property
    def digests(self) -> dict[int, str]:
        """Return all of them by number."""
        return {**self.beside, **self.elsewhere}


NO_HEADS: Final = Heads({}, {})


@dataclass(frozen=True, slots=True)
class Anchor:
    """The files in which a ledger's heads are kept: beside an SQLite file, and elsewhere."""

    beside: HeadFile | None
    elsewhere: HeadFile | None

    @classmethod
    def of(cls, path: str | os.PathLike[str] | None, store: Path | None) -> Anchor:
        """Return the head file of an SQLite file, if any, and the anchor named or in VARIABLE."""
        anchor = os.environ.get(VARIABLE) if path is None else path
        beside = None if store is None else HeadFile(head_file(store), store)
        elsewhere = HeadFile(Path(anchor)) if anchor else None
        return cls(beside, elsewhere)

    @property
    def files(self) -> list[HeadFile]:
        """Return the files that are there or will be."""
        return [file for file in (self.beside, self.elsewhere) if file is not None]

    def read(self, *, whole: bool = False) -> Heads:
        """Return the digests kept. Read them before the database is looked at, or in its lock."""
        beside = {} if self.beside is None else self.beside.read(whole=whole)
        elsewhere = {} if self.elsewhere is None else self.elsewhere.read(whole=whole)
        for number, digest in beside.items():
            if elsewhere.get(number, digest) != digest:
                raise StateError(
                    f"ledger: entry {number} is not the same in its head file and its anchor; put "
                    "back the one that was edited"
                )
        return Heads(beside, elsewhere)

    def keep(self, tip: Tip, kept: Heads = NO_HEADS, *, must: bool = True) -> None:
        """Add the last entry where it is not kept, on the disk before this returns."""
        for file, known in ((self.beside, kept.beside), (self.elsewhere, kept.elsewhere)):
            if file is not None:
                file.keep(tip, known, must=must)

    def check_writable(self) -> None:
        """Raise `StateError` where one of the files is not one that may be written to."""
        for file in self.files:
            file.check_writable()

    def require_none(self, ledger: str) -> None:
        """Raise `StateError` where heads are kept of a ledger that is not there."""
        for file in self.files:
            if is_there(file.path) and file.read():
                raise StateError(
                    f"ledger {ledger}: is not there, but {file.label} is of one that was; put "
                    "that back, or, to begin anew without what it charged, remove the file"
                )

    def require_any(self, tip: Tip, kept: Heads, charged: bool) -> None:
        """Raise `StateError` where the head file is gone of a ledger that has charged somebody."""
        if charged and self.beside is not None and not kept.beside:
            raise StateError(
                f"{self.beside.label}: is missing or empty, so this may be an old copy of the "
                "ledger; put the newest copy back with it, or, if this is the newest, write into "
                f"it the line {tip.number}:{tip.digest.hex()}"
            )
