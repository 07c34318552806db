"""What every command holds its arguments to: each is given once, and no output is an input."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

import click

from apiece._files import Kind, check_output, reading
from apiece._text import plain, plain_lines
from apiece.errors import DataError, InputError

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.datasets.tables import Dialect

WIDTH = 80  # of a terminal
LEAST = 12  # characters of a first column that is cut


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `click.echo` does; control characters in it are shown, not obeyed."""
    click.echo(plain_lines(text), err=err, nl=nl)


def columns(rows: Sequence[Sequence[str]], *, width: int = WIDTH) -> list[str]:
    """Return rows as a table, the first as its head of one or more lines, with a rule below.

    The first column is cut where the table would be wider than `width`, but for its first letters.

    >>> print("\\n".join(columns([["group", "ε\\nasked"], ["strict", "1"]])))
                ε
    group   asked
    ──────  ─────
    strict      1
    """
    head, *body = rows
    depth = max(cell.count("\n") for cell in head) + 1
    tops = [([""] * depth + cell.split("\n"))[-depth:] for cell in head]
    cells = [[plain(cell) for cell in row] for row in body]
    widths = [max(map(len, [*tops[i], *(row[i] for row in cells)])) for i in range(len(head))]
    widths[0] = min(widths[0], max(width - sum(widths[1:]) - 2 * len(widths[1:]), LEAST))
    ruled = ["─" * w for w in widths]
    return [_line(line, widths) for line in (*zip(*tops, strict=True), ruled, *cells)]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Return one line of a table: the first cell to the left, and cut, the others to the right."""
    first = cells[0] if len(cells[0]) <= widths[0] else cells[0][: widths[0] - 1] + "…"
    rest = (cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))
    return "  ".join([first.ljust(widths[0]), *rest]).rstrip()


class Output(click.Path):
    """The type of an option that names a file to write. kind: of the file; None of a folder."""

    def __init__(self, kind: Kind | None) -> None:
        super().__init__(path_type=Path)
        self.kind = kind


class Scratch(click.Path):
    """The type of an option that names a folder to work in, which is no input."""


class Command(click.Command):
    """A command whose options occur once, and whose outputs are no inputs of it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments; refuse an option that is given twice."""
        words = list(args)
        for word in words:
            if "\0" in word:
                raise InputError(f"{plain(word)!r}: has a zero byte in it, which no name has")
        left = super().parse_args(ctx, args)
        _, _, order = self.make_parser(ctx).parse_args(args=words)
        for param, times in Counter(order).items():
            option = isinstance(param, click.Option) and not (param.multiple or param.is_flag)
            if option and times > 1:
                raise InputError(f"{param.opts[0]}: given {times} times; give it once")
        return left

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, after its outputs were held against everything else that it is given."""
        outputs = {
            param.name: param.type for param in self.params if isinstance(param.type, Output)
        }
        others = (
            text
            for param in self.params
            if not isinstance(param.type, Output | Scratch)
            for text in _texts(ctx.params.get(param.name or ""))
        )
        anchor = os.environ.get("APIECE_LEDGER_ANCHOR", "")
        with reading([path for text in (*others, anchor) for path in files_of(text)]):
            for name, of in outputs.items():
                value = ctx.params.get(name or "")
                if value is not None and of.kind is not None:
                    check_output(value, of.kind)
            return super().invoke(ctx)


class Group(click.Group):
    """A group of such commands."""

    command_class = Command


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts and paths in the value of a parameter."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def files_of(text: str) -> Iterable[Path]:
    """Return the files that a text may name: itself, and that of an SQLite address."""
    found = [Path(text)] if text else []
    if "://" in text:
        from apiece.ledger import database_files

        found += database_files(text)
    try:
        return [path for path in found if path.exists()]
    except (OSError, ValueError):  # a name that no file can have
        return []


T = TypeVar("T")
DIALECT = ("separator", "decimal", "encoding")  # the options of `table_options`


def table_options(command: Any) -> Any:
    """Add the options that say how a CSV file is written."""
    for option in (
        click.option("--encoding", help="Of a CSV file.  [default: utf-8]"),
        click.option("--decimal", help="Decimal mark in a CSV file: . or ,  [default: .]"),
        click.option("--separator", help="Of a CSV file's cells: , ; or tab.  [default: ,]"),
    ):
        command = option(command)
    return command


def renamed(old: str, new: str) -> Callable[[Any], Any]:
    """Return an option that refuses an older spelling, in a line that says what to write."""
    return gone(old, f"is called {new} in every command; write {new}")


def gone(old: str, remedy: str) -> Callable[[Any], Any]:
    """Return an option that is refused with a remedy."""

    def refuse(_: click.Context, __: click.Parameter, value: Any) -> None:
        if value is not None:
            raise InputError(f"{old}: {remedy}")

    name = old.removeprefix("--").replace("-", "_")
    return click.option(old, name, hidden=True, expose_value=False, is_eager=True, callback=refuse)


def dialect_from(flags: Flags) -> Dialect:
    """Return how a CSV file is written, by the flags of `table_options`."""
    from apiece.datasets.tables import Dialect

    return Dialect(**{name: flags[name] for name in DIALECT if flags[name] is not None})


def groups_from(text: str) -> list[tuple[str, float, float]]:
    """Return (name, epsilon, share) of each group in `name:epsilon:share,…`.

    >>> groups_from("strict:1:0.34,weak:3:0.66")
    [('strict', 1.0, 0.34), ('weak', 3.0, 0.66)]
    """
    found = []
    for part in text.split(","):
        name, *numbers = part.split(":")
        if len(numbers) != 2 or name != name.strip() or not name:
            raise InputError(f"--groups: {part!r} is not name:epsilon:share, as in strict:1:0.34")
        try:
            found.append((name, float(numbers[0]), float(numbers[1])))
        except ValueError:
            raise InputError(
                f"--groups: {part!r}: epsilon and share must be numbers, as in strict:1:0.34"
            ) from None
    return found


def warn(doubts: Iterable[str]) -> None:
    """Say on stderr, a line each, what was done as asked and looks like a mistake."""
    for doubt in doubts:
        echo(f"warning: {plain(doubt)}", err=True)


def number_or_name(text: str | None) -> Any:
    """Return a number, a column's name, or None.

    >>> number_or_name("1e-5"), number_or_name("consent")
    (1e-05, 'consent')
    """
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        return text


def read_text(path: Path) -> str:
    """Return the text of a file; raise `DataError` where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read ({error}); give a readable file") from None


def refuse_given(names: Iterable[str], why: str) -> None:
    """Raise `InputError` where one of these parameters of the running command was given."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"--{name.replace('_', '-')}: {why}")


def once(flag: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a dict; refuse a name that occurs twice.

    >>> once("--range", [("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    found: dict[str, T] = {}
    for name, value in pairs:
        if name in found:
            raise InputError(f"{flag}: {name!r} is given twice; give it once")
        found[name] = value
    return found


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`, the value as JSON where it is."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--option: {text!r} is not name=value, as in noise=strictest")
    try:
        return name.replace("-", "_"), json.loads(value)
    except json.JSONDecodeError:
        return name.replace("-", "_"), value


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
