"""What every command holds its arguments to: each is given once, and no output is an input."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from apiece._files import Kind, check_output, reading
from apiece._text import plain
from apiece.errors import InputError


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
