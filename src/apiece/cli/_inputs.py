"""What several commands read from their flags."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from apiece._text import plain
from apiece.cli._output import echo
from apiece.errors import DataError, InputError

if TYPE_CHECKING:
    from apiece._types import Flags
    from apiece.datasets import Dialect


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
    from apiece.datasets import Dialect

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
