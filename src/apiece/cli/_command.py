"""Parts that commands share: options, what they read from them, what they print, and a bar.

Each option of a command is given once, and no output of it is an input.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import click

from apiece._files import FIGURE, Kind, check_output, reading, require_own_place
from apiece._text import align_columns, plain, plain_lines
from apiece.errors import DataError, InputError, unknown

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.datasets.tables import Dialect
    from apiece.plan import Plan

T = TypeVar("T")
Decorator = Callable[[Any], Any]
PATH = click.Path(path_type=Path)
# An address of an SQLite file in characters that mean themselves.
_PLAIN_FILE = re.compile(r"sqlite:///([\w./-]+)")


class Output(click.Path):
    """The type of an option that names a file to write.

    Args:
        kind: The kind of file; None for a folder.
    """

    def __init__(self, kind: Kind | None) -> None:
        super().__init__(path_type=Path)
        self.kind = kind


class Scratch(click.Path):
    """The type of an option that names a folder to work in, which is no input."""


class Command(click.Command):
    """A command whose options occur once, and whose outputs are no inputs of it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; refuse an option that is given twice, and a zero byte."""
        # click's parser takes words out of the list that it is given.
        words = list(args)
        for word in words:
            if "\0" in word:
                raise InputError(f"{plain(word)!r}: has a zero byte in it, which no name has")
        remaining = super().parse_args(ctx, args)
        # click keeps the last value of an option without a word; its parser tells how often each
        # parameter occurred.
        _, _, order = self.make_parser(ctx).parse_args(args=words)
        for param, count in Counter(order).items():
            if not isinstance(param, click.Option) or param.multiple or param.is_flag:
                continue
            if count > 1:
                raise InputError(f"{param.opts[0]}: given {count} times; give it once")
        return remaining

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, once its outputs are known to be none of its inputs."""
        inputs = []
        outputs = []
        for param in self.params:
            value = ctx.params.get(param.name or "")
            if isinstance(param.type, Output):
                if value is not None:
                    outputs.append((param.type.kind, value))
            elif not isinstance(param.type, Scratch):
                inputs += _list_texts(value)
        # The anchor of a ledger is read and written to without an option that names it.
        inputs.append(os.environ.get("APIECE_LEDGER_ANCHOR", ""))
        # Every text of the command may name a file that it reads. Outputs are held against them
        # all, before the command does anything.
        with reading([path for text in inputs for path in find_files(text)]):
            for kind, path in outputs:
                if kind is None:
                    require_own_place(Path(path))
                else:
                    check_output(path, kind)
            with Bar(None, ctx.command_path):
                return super().invoke(ctx)


class CommandGroup(click.Group):
    """A group of commands of class `Command`; without an argument it prints its help."""

    command_class = Command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; print the help where there are none."""
        if not args:
            echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` start with, or raise with the nearest known one."""
        names = self.list_commands(ctx)
        if args and not args[0].startswith("-") and args[0] not in names:
            raise unknown("command", args[0], names)
        return super().resolve_command(ctx, args)


def _list_texts(value: object) -> list[str]:
    """Return the texts and paths in the value of a parameter, however deep."""
    if isinstance(value, str | Path):
        return [str(value)]
    if isinstance(value, list | tuple):
        return [text for part in value for text in _list_texts(part)]
    return []


def find_files(text: str) -> list[Path]:
    """Return the files that a text may name: itself, and those of an SQLite address."""
    if not text:
        return []
    # Beside an SQLite file, which an address may name by its path alone, lies its head file.
    paths = [Path(text), Path(os.path.realpath(text) + ".head")]
    plain_file = _PLAIN_FILE.fullmatch(text)
    if plain_file is not None:
        # As most addresses are: nothing is imported to read it.
        paths += [Path(plain_file[1]), Path(os.path.realpath(plain_file[1]) + ".head")]
    elif "://" in text:
        from apiece.ledger.database import database_files

        paths += database_files(text)
    try:
        return [path for path in paths if path.exists()]
    except (OSError, ValueError):
        # A name that no file can have.
        return []


def parse_number_or_name(text: str | None) -> float | str | None:
    """Return a number, a column's name, or None."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


# A number, or the name of a column.
NUMBER_OR_NAME = click.types.FuncParamType(parse_number_or_name)
# What the help calls such a value.
NUMBER_OR_NAME.name = "text"


def _check_seed(context: click.Context, param: click.Parameter, value: int) -> int:
    """Return a seed, which is at least 0."""
    from apiece import _check

    return _check.count(param.opts[0], value, least=0)


# Options of several commands, each in one wording: the arguments of `click.option` beside the flag.
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
        "sequential, jorgensen, rounds, adapdp or allocate; for apiece plan with correlated noise "
        "also epochs.",
    },
    "--option": {"multiple": True, "help": "Option of the strategy, as name=value; repeatable."},
    "--excess": {"type": float, "help": "Bound Δ̄ on everyone's excess risk."},
    "--figure": {"type": Output(FIGURE), "help": "Draw a figure here (.png, .svg or .pdf)."},
    "--seed": {"type": int, "default": 0, "callback": _check_seed},
    "--separator": {"help": "Cell separator of a CSV file: , ; or tab.  [default: ,]"},
    "--decimal": {"help": "Decimal mark of a CSV file: . or ,  [default: .]"},
    "--encoding": {"help": "Text encoding of a CSV file.  [default: utf-8]"},
}
# The options that say how a CSV file is written.
DIALECT = ("separator", "decimal", "encoding")


def option(flag: str, *names: str, **settings: Any) -> Decorator:
    """Return a decorator that adds an option: as `SHARED` has it, but for `settings`."""
    settings = SHARED.get(flag, {}) | settings
    if flag == "--json":
        names = ("as_json",)
    if settings.get("default") is not None and not settings.get("is_flag"):
        settings = {"show_default": True} | settings
    return click.option(flag, *names, **settings)


def add_table_options(command: object) -> Any:
    """Add the options that say how a CSV file is written."""
    for name in reversed(DIALECT):
        command = option(f"--{name}")(command)
    return command


def make_flag(name: str) -> str:
    """Return the option of a parameter.

    >>> make_flag("batch_size")
    '--batch-size'
    """
    return f"--{name.replace('_', '-')}"


def refuse_given(names: Iterable[str], reason: str) -> None:
    """Raise `InputError` where one of these parameters of the running command was given."""
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise InputError(f"{make_flag(name)}: {reason}")


def make_dialect(flags: Flags) -> Dialect:
    """Return how a CSV file is written, by the flags of `add_table_options`."""
    from apiece.datasets.tables import Dialect

    return Dialect(**{name: flags[name] for name in DIALECT if flags[name] is not None})


def require_delta(flag: T | None, stated: T | None = None) -> T:
    """Return δ by its flag, else as what was read states it; it has no default anywhere."""
    delta = stated if flag is None else flag
    if delta is None:
        raise InputError(
            "--delta: missing; an epsilon is a guarantee only with its delta; give one far below "
            "1 over the number of people, as 1e-6"
        )
    return delta


def make_form_error(flag: str, text: str, form: str) -> InputError:
    """Return the error for a value that is not written as `form`, which ends with an example."""
    return InputError(f"{flag}: {text!r} is not {form}")


def parse_groups(text: str) -> list[tuple[str, float, float]]:
    """Return (name, epsilon, share) of each group in `name:epsilon:share,…`."""
    groups = []
    for part in text.split(","):
        try:
            name, epsilon, share = part.split(":")
            if name != name.strip() or not name:
                raise ValueError
            groups.append((name, float(epsilon), float(share)))
        except ValueError:
            raise make_form_error(
                "--groups", part, "name:epsilon:share with two numbers, as in strict:1:0.34"
            ) from None
    return groups


def parse_numbers(flag: str, text: str) -> list[float]:
    """Return the numbers in `2,4,8`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise make_form_error(flag, text, "a list of numbers, as in 2,4,8") from None


def parse_assignment(flag: str, text: str, form: str, *, last: bool = False) -> tuple[str, str]:
    """Return the name and the value of `name=value`.

    Args:
        flag: The option that has the text.
        text: As it was written.
        form: How it should be written, for the error.
        last: Whether the last equals sign separates them, and not the first.
    """
    # Names of columns may have equals signs in them, and so may values: which end is plain depends
    # on the option.
    name, equals, value = text.rpartition("=") if last else text.partition("=")
    if not (name and equals):
        raise make_form_error(flag, text, form)
    return name, value


def parse_interval(flag: str, text: str, form: str) -> tuple[str, tuple[float, float]]:
    """Return the name and the ends of `name=low:high`."""
    name, ends = parse_assignment(flag, text, form, last=True)
    try:
        low, high = map(float, ends.split(":"))
    except ValueError:
        raise make_form_error(flag, text, form) from None
    return name, (low, high)


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of `name=value`, the value as JSON where it is."""
    name, value = parse_assignment("--option", text, "name=value, as in noise=strictest")
    name = name.replace("-", "_")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def make_dict(flag: str, pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    """Return pairs as a dict; refuse a name that occurs twice.

    >>> make_dict("--range", [("a", 1), ("b", 2)])
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


# The largest text that is read, in bytes: a receipt of a hundred thousand charges has as many.
MAX_BYTES = 2**28


def read_text(path: Path) -> str:
    """Return the text of a file; raise `DataError` where it cannot be read, or has no end."""
    try:
        with path.open("rb") as file:
            # One byte more than is allowed tells a file that is too long, without its size: a pipe
            # has none.
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise DataError(f"{path}: is larger than {MAX_BYTES >> 20} MB; give another file")
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except IsADirectoryError:
        plan = path / "plan.json"
        suggestion = plan if plan.is_file() else "a file"
        raise DataError(f"{path}: is a folder; give {suggestion}") from None
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
    except OSError as error:
        reason = error.strerror or ""
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    raise DataError(f"stdin: cannot be read ({reason}); pipe JSON into the command")


class Printed:
    """How far the one command of this process is, for Ctrl-C: either the whole answer, or 130."""

    # Whether something stands on stdout, or the error on stderr: a Ctrl-C comes too late.
    begun: ClassVar[bool] = False
    # Whether a Ctrl-C came before.
    interrupted: ClassVar[bool] = False


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `click.echo` does; control characters in it are shown, not obeyed."""
    if Bar.innermost is not None:
        Bar.innermost.hide()
    Printed.begun = Printed.begun or not err
    click.echo(plain_lines(text), err=err, nl=nl)


def emit(as_json: bool, document: object, text: str | Sequence[str]) -> None:
    """Print an answer: one JSON document, or text for people, of which an entry is a line."""
    if as_json:
        echo(json.dumps(document, allow_nan=False))
    elif isinstance(text, str):
        echo(text)
    else:
        echo("\n".join(map(plain, text)))


def warn(doubts: Iterable[str]) -> None:
    """Print a line on stderr for each thing that was done as asked and looks like a mistake."""
    for doubt in doubts:
        echo(f"warning: {plain(doubt)}", err=True)


# The least width of the first column of a table, in characters.
MIN_FIRST_WIDTH = 12


def format_table(rows: Sequence[Sequence[str]], *, width: int = 80) -> list[str]:
    """Return the lines of a table; the first row is its head of one or more lines.

    The first column is to the left, and cut where the table would be wider than `width`, but for
    its first 12 letters.

    >>> print("\\n".join(format_table([["group", "ε\\nasked"], ["strict", "1"]])))
                ε
    group   asked
    ──────  ─────
    strict      1
    """
    head, *body = rows
    depth = max(cell.count("\n") for cell in head) + 1
    # Each cell of the head as `depth` lines, of which the first may be empty.
    stacks = [([""] * depth + cell.split("\n"))[-depth:] for cell in head]
    cells = [list(line) for line in zip(*stacks, strict=True)]
    cells += [[plain(cell) for cell in row] for row in body]
    first_width, *widths = (max(map(len, column)) for column in zip(*cells, strict=True))
    # Columns stand two blanks apart.
    available = width - sum(widths) - 2 * len(widths)
    first_width = min(first_width, max(available, MIN_FIRST_WIDTH))
    for row in cells:
        if len(row[0]) > first_width:
            row[0] = row[0][: first_width - 1] + "…"
    rule = ["─" * column_width for column_width in (first_width, *widths)]
    cells.insert(depth, rule)
    return align_columns(cells)


def format_bullets(sentences: Iterable[str]) -> list[str]:
    """Return the lines of a list of sentences, 78 columns wide."""
    return [
        fill(sentence, 78, initial_indent="- ", subsequent_indent="  ") for sentence in sentences
    ]


# How long a command runs before it shows a bar, in seconds.
PATIENCE = 2.0
# How often a bar that stands is drawn anew, in seconds.
REFRESH = 0.2
# The largest number of characters beside the bar, so that all fits 80.
MAX_TEXT = 40
# The width of the bar, in characters.
BAR_WIDTH = 20
# What a terminal takes as: to the beginning of the line, and: erase to its end.
LINE_START = "\r"
ERASE_TO_END = "\x1b[K"


class Bar:
    """A progress bar on stderr: on a terminal alone, without --json, after `PATIENCE` seconds.

    One bar is on the terminal at a time, the innermost; text that is printed takes it away until
    the next step.

    Args:
        total: How many steps; None where nobody knows, and the time so far is shown.
        text: Beside the bar.
        done: How many steps are done.
    """

    innermost: ClassVar[Bar | None] = None

    def __init__(self, total: int | None, text: str = "", *, done: int = 0) -> None:
        self.total = total
        self.text = text
        self.done = done
        # Nobody looks at a bar in a file, in the output of a program that reads JSON, or on a
        # terminal that cannot go back to the beginning of a line.
        context = click.get_current_context(silent=True)
        for_machines = context is not None and context.params.get("as_json", False)
        knows_lines = os.environ.get("TERM") != "dumb"
        self._visible = sys.stderr.isatty() and knows_lines and not for_machines
        self._started = time.monotonic()
        # Steps that were done before this bar: they say nothing about its speed.
        self._done_before = done
        # Whether the bar stands on the terminal.
        self.stands = False
        # Whether it is to be drawn: from the beginning on, and after each step.
        self._wanted = True
        # A thread draws the bar, the command's own takes it away.
        self._lock = Lock()
        self._closed = Event()
        self._outer: Bar | None = None

    def advance(self, text: str | Callable[[], str]) -> None:
        """Count one step.

        Args:
            text: Beside the bar; a function is called only if it is shown.
        """
        self.done += 1
        if not self._visible or time.monotonic() - self._started < PATIENCE:
            return
        self.text = text if isinstance(text, str) else text()
        self._wanted = True
        # In between the thread draws: steps may be many a second.
        if not self.stands or self.done == self.total:
            self._draw()

    def _redraw(self) -> None:
        """Draw the bar while it is wanted, until it is closed."""
        # First the patience, then the rhythm; closing ends either at once.
        delay = PATIENCE
        while not self._closed.wait(delay):
            delay = REFRESH
            if self._wanted:
                self._draw()

    def _draw(self) -> None:
        with self._lock:
            # Something may have been printed meanwhile, or another bar begun.
            if Bar.innermost is self and self._wanted:
                self.stands = True
                write_status(self._format())

    def _format(self) -> str:
        """Return the line: text, bar, per cent and the time that is left."""
        text = plain(self.text)
        if len(text) > MAX_TEXT:
            text = text[: MAX_TEXT - 1] + "…"
        elapsed = time.monotonic() - self._started
        if self.total is None:
            return f"{text} {format_seconds(elapsed)}"
        share = min(self.done / self.total, 1.0) if self.total else 1.0
        filled = "#" * int(share * BAR_WIDTH)
        steps = self.done - self._done_before
        remaining = "-:--:--"
        if steps > 0:
            remaining = format_seconds(elapsed / steps * max(self.total - self.done, 0))
        return f"{text} [{filled:-<{BAR_WIDTH}}] {int(100 * share)}% {remaining}"

    def hide(self) -> None:
        """Take the bar away, until the next step."""
        with self._lock:
            self._wanted = False
            if self.stands:
                write_status("")
            self.stands = False

    def __enter__(self) -> Self:
        self._outer = Bar.innermost
        Bar.innermost = self
        if self._outer is not None:
            self._outer.hide()
        if self._visible:
            # A daemon, so that a command that fails does not wait for its bar.
            Thread(target=self._redraw, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        # The thread ends at its next wake-up; under the lock it cannot be drawing any more.
        self._closed.set()
        with self._lock:
            Bar.innermost = self._outer
        self.hide()


def write_status(text: str) -> None:
    """Write a line on the terminal in place of the last one, cut to its width."""
    width = shutil.get_terminal_size().columns - 1
    # A terminal that is gone is no error of the command.
    with suppress(OSError, ValueError):
        sys.stderr.write(f"{LINE_START}{text[:width]}{ERASE_TO_END}")
        sys.stderr.flush()


def format_seconds(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    >>> format_seconds(3723.4)
    '1:02:03'
    """
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}"
