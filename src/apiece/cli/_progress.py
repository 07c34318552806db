"""A progress bar on stderr: only on a terminal, and only for what takes longer than two seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Self

from apiece._text import plain

PATIENCE = 2.0
LONGEST = 40  # characters beside the bar, so that all fits 80


class Bar:
    """Counts steps; shows them once the work has lasted `PATIENCE` seconds, if anyone watches."""

    def __init__(self, total: int, *, done: int = 0, quiet: bool = False) -> None:
        self.total, self.done = total, done
        self._watched = sys.stderr.isatty() and not quiet
        self._begun = time.monotonic()
        self._shown: Any = None
        self._task: Any = None

    def advance(self, text: str | Callable[[], str]) -> None:
        """Count one step. text: beside the bar; a function is called only if it is shown."""
        self.done += 1
        if self._shown is None:
            if not self._watched or time.monotonic() - self._begun < PATIENCE:
                return
            self._open()
        from rich.markup import escape

        said = plain(text if isinstance(text, str) else text())
        said = escape(said if len(said) <= LONGEST else said[: LONGEST - 1] + "…")
        self._shown.update(self._task, completed=self.done, description=said)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        self._shown = Progress(
            "{task.description}",
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._shown.add_task("", total=self.total)
        self._shown.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()
