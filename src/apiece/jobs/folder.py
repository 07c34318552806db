"""The run folder: every file in it is whole at any moment, also after Ctrl-C."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from apiece._files import Kind, append, write
from apiece.errors import DataError

_FILE = Kind("a run's file", mark=b"")  # the folder was empty when the run began
_LOG = Kind("a run's log", (".jsonl",), b'{"seconds": ')


class RunFolder:
    """The folder of one run, new or gone on with: files written whole, a log of whole lines.

    Nothing private goes into it: no losses or norms of training records, no counts of those who
    were sampled, no list of who has which budget.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"out = {path}: cannot be made ({error.strerror})") from None
        self.path = path
        self._start = time.monotonic()

    def write(self, name: str, content: str | bytes) -> None:
        """Write the file `name`, whole."""
        write(self.path / name, content, _FILE)

    def log(self, event: str, **values: Any) -> None:
        """Append one line to log.jsonl: seconds since the start, the event, public values."""
        seconds = round(time.monotonic() - self._start, 3)
        line = json.dumps({"seconds": seconds, "event": event, **values}, allow_nan=False)
        append(self.path / "log.jsonl", line, _LOG)

    def curve(self, strategy: str, repeat: int) -> dict[int, float]:
        """Return the figures that were logged as "tested" of one model, by step."""
        lines = (self.path / "log.jsonl").read_text(encoding="utf-8").splitlines()
        points = [e for e in map(json.loads, lines) if e["event"] == "tested"]
        of = (strategy, repeat)
        return {e["step"]: e["figure"] for e in points if (e["strategy"], e["repeat"]) == of}

    def files(self) -> list[str]:
        """Return the names of the files in the folder, sorted."""
        return sorted(p.name for p in self.path.iterdir())


def refuse_used(path: Path) -> None:
    """Raise `DataError` if `path` is a file, or a folder with something in it."""
    if path.is_dir() and not any(path.iterdir()):
        return
    if path.exists() or path.is_symlink():
        raise DataError(
            f"out = {path}: exists and is not empty; it is left untouched, choose another --out"
        )


def free_folder(parent: Path, name: str) -> Path:
    """Return parent/name, or the first of parent/name-2, parent/name-3, … that is free.

    Args:
        parent: It need not exist.
        name: Of the folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as parent:
        ...     (Path(parent) / "first").write_text("taken")
        ...     free_folder(Path(parent), "first").name
        5
        'first-2'
    """
    path, number = parent / name, 1
    while path.exists() and not (path.is_dir() and not any(path.iterdir())):
        number += 1
        path = parent / f"{name}-{number}"
    return path
