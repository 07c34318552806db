"""Parts that commands share: options, what they read from them, what they print, and a bar.

Each option of a command is given once, and no output of it is an input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from textwrap import fill
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import click

from apiece._files import FIGURE, Kind, check_output, reading, require_own_place
from apiece._text import align_columns, plain, plain_lines
from apiece.errors import DataError, InputError, unknown

if TYPE_CHECKING:
    from rich.progress import Progress

    from apiece._types import Flags
    from apiece.datasets.tables import Dialect
    from apiece.plan import Plan

T = TypeVar("T")
Decorator = Callable[[Any], Any]
PATH = click.Path(path_type=Path)


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
        given = [(param.type, ctx.params.get(param.name or "")) for param in self.params]
        inputs = [
            text
            for kind, value in given
            if not isinstance(kind, Output | Scratch)
            for text in _texts(value)
        ]
        anchor = os.environ.get("APIECE_LEDGER_ANCHOR", "")
        with reading([path for text in (*inputs, anchor) for path in files_of(text)]):
            for kind, value in given:
                if isinstance(kind, Output) and value is not None:
                    if kind.kind is None:
                        require_own_place(Path(value))
                    else:
                        check_output(value, kind.kind)
            with Bar(None, ctx.command_path):
                return super().invoke(ctx)


class CommandGroup(click.Group):
    """A group of such commands."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return what is left of the arguments; print the help where there are none."""
        if not args:
            echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` start with, or raise with the nearest known one."""
        if args and not args[0].startswith("-") and args[0] not in self.list_commands(ctx):
            raise unknown("command", args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def _texts(value: object) -> Iterator[str]:
    """Yield the texts and paths in the value of a parameter."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _texts(part)


def files_of(text: str) -> list[Path]:
    """Return the files that a text may name: itself, and that of an SQLite address."""
    # Beside an SQLite file, which an address may name by its path alone, lies its head file.
    paths = [Path(text), Path(os.path.realpath(text) + ".head")] if text else []
    if "://" in text:
        from apiece.ledger.database import database_files

        paths += database_files(text)
    try:
        return [path for path in paths if path.exists()]
    except (OSError, ValueError):  # a name that no file can have
        return []


def number_or_name(text: str | None) -> float | str | None:
    """Return a number, a column's name, or None."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


NUMBER_OR_NAME = click.types.FuncParamType(number_or_name)
NUMBER_OR_NAME.name = "text"  # as the help calls it


def _natural(context: click.Context, param: click.Parameter, value: int) -> int:
    """Return a seed, which is at least 0."""
    from apiece import _check

    return _check.count(param.opts[0], value, least=0)


# Options of several commands, each in one wording: what `click.option` takes beside the flag.
SHARED: dict[str, Flags] = {
    "--json": {"is_flag": True, "help": "Print one JSON document."},
    "--records": {"type": int, "help": "Number of records."},
    "--groups": {"help": "Budget groups, as name:epsilon:share,…; shares sum to 1, or are counts."},
    "--data": {"type": PATH, "help": "CSV or Parquet file."},
    "--person": {"help": "Column of persons' ids. A person may have several rows."},
    "--levels": {"help": "Words of the budget column, as low=1,medium=3,high=8."},
    "--no-limit-cap": {"type": float, "help": "The ε to use where a budget is 'no limit' or inf."},
    "--delta": {"help": "δ of the guarantee; needed unless what is read states it."},
    "--batch-size": {"type": float, "help": "Expected batch size."},
    "--steps": {"type": int, "help": "Number of model updates."},
    "--clip-norm": {"type": float, "default": 1.0, "help": "Mean clip norm."},
    "--strategy": {
        "default": "sample",
        "help": "How budgets become a plan: uniform, scale, sample, hybrid, threshold, "
        "sequential, jorgensen, rounds, adapdp or allocate.",
    },
    "--option": {"multiple": True, "help": "Option of the strategy, as name=value; repeatable."},
    "--excess": {"type": float, "help": "Bound Δ̄ on everyone's excess risk."},
    "--figure": {"type": Output(FIGURE), "help": "Draw a figure here (.png, .svg or .pdf)."},
    "--seed": {"type": int, "default": 0, "callback": _natural},
    "--separator": {"help": "Cell separator of a CSV file: , ; or tab.  [default: ,]"},
    "--decimal": {"help": "Decimal mark of a CSV file: . or ,  [default: .]"},
    "--encoding": {"help": "Text encoding of a CSV file.  [default: utf-8]"},
}
DIALECT = ("separator", "decimal", "encoding")


def option(flag: str, *more: str, **how: Any) -> Decorator:
    """Return a decorator that adds an option: as `SHARED` has it, but for `how`."""
    how = SHARED.get(flag, {}) | how
    names = ("as_json",) if flag == "--json" else more
    shown = "default" in how and not how.get("is_flag") and how["default"] is not None
    return click.option(flag, *names, **({"show_default": True} if shown else {}) | how)


def table_options(command: object) -> Any:
    """Add the options that say how a CSV file is written."""
    for name in reversed(DIALECT):
        command = option(f"--{name}")(command)
    return command


def renamed(old: str, new: str) -> Decorator:
    """Return an option that refuses an older spelling, in a line that says what to write."""
    return gone(old, f"is called {new} in every command; write {new}")


def gone(old: str, remedy: str) -> Decorator:
    """Return an option that is refused with a remedy."""

    def refuse(_: click.Context, __: click.Parameter, value: object) -> None:
        if value is not None:
            raise InputError(f"{old}: {remedy}")

    name = old.removeprefix("--").replace("-", "_")
    return click.option(old, name, hidden=True, expose_value=False, is_eager=True, callback=refuse)


def flag_of(name: str) -> str:
    """Return the option of a parameter.

    >>> flag_of("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def refuse_given(names: Iterable[str], why: str) -> None:
    """Raise `InputError` where one of these parameters of the running command was given."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{flag_of(name)}: {why}")


def dialect_from(flags: Flags) -> Dialect:
    """Return how a CSV file is written, by the flags of `table_options`."""
    from apiece.datasets.tables import Dialect

    return Dialect(**{name: flags[name] for name in DIALECT if flags[name] is not None})


def needed_delta(given: T | None, own: T | None = None) -> T:
    """Return δ as it is given, else as what was read states it; it has no default anywhere."""
    delta = own if given is None else given
    if delta is None:
        raise InputError(
            "--delta: missing; an epsilon is a guarantee only with its delta; give one far below "
            "1 over the number of people, as 1e-6"
        )
    return delta


def misread(flag: str, text: str, form: str) -> InputError:
    """Return the error for a value that is not written as `form`, which ends with an example."""
    return InputError(f"{flag}: {text!r} is not {form}")


def groups_from(text: str) -> list[tuple[str, float, float]]:
    """Return (name, epsilon, share) of each group in `name:epsilon:share,…`."""
    groups = []
    for part in text.split(","):
        try:
            name, epsilon, share = part.split(":")
            if name != name.strip() or not name:
                raise ValueError
            groups.append((name, float(epsilon), float(share)))
        except ValueError:
            raise misread(
                "--groups", part, "name:epsilon:share with two numbers, as in strict:1:0.34"
            ) from None
    return groups


def numbers_from(flag: str, text: str) -> list[float]:
    """Return the numbers in `2,4,8`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise misread(flag, text, "a list of numbers, as in 2,4,8") from None


def assigned(flag: str, text: str, form: str, *, last: bool = False) -> tuple[str, str]:
    """Return the name and the value of `name=value`; last: the last = counts, not the first."""
    name, equals, value = text.rpartition("=") if last else text.partition("=")
    if not (name and equals):
        raise misread(flag, text, form)
    return name, value


def interval_from(flag: str, text: str, form: str) -> tuple[str, tuple[float, float]]:
    """Return the name and the ends of `name=low:high`."""
    name, ends = assigned(flag, text, form, last=True)
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise misread(flag, text, form) from None
    return name, (low, high)


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`, the value as JSON where it is."""
    name, value = assigned("--option", text, "name=value, as in noise=strictest")
    try:
        return name.replace("-", "_"), json.loads(value)
    except json.JSONDecodeError:
        return name.replace("-", "_"), value


def once(flag: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a dict; refuse a name that occurs twice.

    >>> once("--range", [("a", 1), ("b", 2)])
    {'a': 1, 'b': 2}
    """
    values: dict[str, T] = {}
    for name, value in pairs:
        if name in values:
            raise InputError(f"{flag}: {name!r} is given twice; give it once")
        values[name] = value
    return values


def read_plan(path: Path) -> Plan:
    """Return the plan in a file; raise `DataError` where there is none."""
    from apiece.plan import Plan

    text = read_text(path)
    try:
        return Plan.from_json(text)
    except InputError as error:
        raise type(error)(f"{path}: {error}") from None


# Bytes of a text that is read at once: a receipt of a hundred thousand charges has as many.
LARGEST = 2**28


def read_text(path: Path) -> str:
    """Return the text of a file; raise `DataError` where it cannot be read, or has no end."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise DataError(f"{path}: is larger than {LARGEST >> 20} MB; give another file")
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except IsADirectoryError:
        plan = path / "plan.json"
        raise DataError(
            f"{path}: is a folder; give {plan if plan.is_file() else 'a file'}"
        ) from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a file") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text; give a text file") from None


def read_stdin() -> str:
    """Return the text on standard input; raise `DataError` where it cannot be read."""
    try:
        if sys.stdin is not None:
            return sys.stdin.read()
        reason = "it is closed"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror or "" if isinstance(error, OSError) else "it is not UTF-8 text"
    raise DataError(f"stdin: cannot be read ({reason}); pipe JSON into the command")


class Printed:
    """How far the one command of this process is, for Ctrl-C: either the whole answer, or 130."""

    begun: ClassVar[bool] = False
    interrupted: ClassVar[bool] = False


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `click.echo` does; control characters in it are shown, not obeyed."""
    if Bar.innermost is not None:
        Bar.innermost.hide()
    Printed.begun = Printed.begun or not err
    click.echo(plain_lines(text), err=err, nl=nl)


def emit(as_json: bool, document: object, text: str | Sequence[str]) -> None:
    """Print an answer: one JSON document, or text for people, of which an entry is a line."""
    lines = text if isinstance(text, str) else "\n".join(map(plain, text))
    echo(json.dumps(document, allow_nan=False) if as_json else lines)


def warn(doubts: Iterable[str]) -> None:
    """Say on stderr, a line each, what was done as asked and looks like a mistake."""
    for doubt in doubts:
        echo(f"warning: {plain(doubt)}", err=True)


def columns(rows: Sequence[Sequence[str]], *, width: int = 80) -> list[str]:
    """Return rows as a table, the first as its head of one or more lines, with a rule below.

    The first column is to the left, and cut where the table would be wider than `width`, but for
    its first 12 letters.

    >>> print("\\n".join(columns([["group", "ε\\nasked"], ["strict", "1"]])))
                ε
    group   asked
    ──────  ─────
    strict      1
    """
    head, *body = rows
    depth = max(cell.count("\n") for cell in head) + 1
    tops = zip(*(([""] * depth + cell.split("\n"))[-depth:] for cell in head), strict=True)
    cells = [*map(list, tops), *([plain(cell) for cell in row] for row in body)]
    first, *rest = (max(map(len, column)) for column in zip(*cells, strict=True))
    first = min(first, max(width - sum(rest) - 2 * len(rest), 12))
    for row in cells:
        row[0] = row[0] if len(row[0]) <= first else row[0][: first - 1] + "…"
    cells.insert(depth, ["─" * each for each in (first, *rest)])
    return align_columns(cells)


def bullets(sentences: Iterable[str]) -> list[str]:
    """Return the lines of a list of sentences, 78 columns wide."""
    return [fill(each, 78, initial_indent="- ", subsequent_indent="  ") for each in sentences]


PATIENCE = 2.0  # seconds without a bar
LONGEST = 40  # characters beside the bar, so that all fits 80


class Bar:
    """A progress bar on stderr: on a terminal alone, without --json, after `PATIENCE` seconds."""

    # total: how many steps; None where nobody knows, and something moves. text: beside the bar. One
    # bar is on the terminal at a time, the innermost; what is printed takes it away until a step.

    innermost: ClassVar[Bar | None] = None

    def __init__(self, total: int | None, text: str = "", *, done: int = 0) -> None:
        self.total, self.text, self.done = total, text, done
        context = click.get_current_context(silent=True)
        for_machines = context is not None and context.params.get("as_json", False)
        self._begun, self._watched = time.monotonic(), sys.stderr.isatty() and not for_machines
        self._shown: Progress | None = None
        self._lock, self._timer = Lock(), Timer(PATIENCE, self._show)
        self._outer: Bar | None = None

    def advance(self, text: str | Callable[[], str]) -> None:
        """Count one step. text: beside the bar; a function is called only if it is shown."""
        self.done += 1
        if self._watched and time.monotonic() - self._begun >= PATIENCE:
            self.text = text if isinstance(text, str) else text()
            self._show()

    def _show(self) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

        said = plain(self.text)
        said = escape(said if len(said) <= LONGEST else said[: LONGEST - 1] + "…")
        with self._lock:
            if Bar.innermost is not self:
                return
            if self._shown is None:
                self._shown = Progress(
                    "{task.description}",
                    BarColumn(bar_width=20),
                    TaskProgressColumn(),
                    TimeRemainingColumn(),
                    console=Console(stderr=True),
                    transient=True,
                    redirect_stdout=False,
                    redirect_stderr=False,
                )
                self._shown.add_task(said, total=self.total)
                self._shown.start()
            self._shown.update(
                self._shown.task_ids[0], total=self.total, completed=self.done, description=said
            )

    def hide(self) -> None:
        """Take the bar away, until the next step."""
        self._timer.cancel()
        with self._lock:
            shown, self._shown = self._shown, None
        if shown is not None:
            shown.stop()

    def __enter__(self) -> Self:
        self._outer, Bar.innermost = Bar.innermost, self
        if self._outer is not None:
            self._outer.hide()
        if self._watched:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            Bar.innermost = self._outer
        self.hide()
