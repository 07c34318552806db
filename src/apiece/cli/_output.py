"""What commands print: every name from data shows itself, and no more, on the terminal."""

from __future__ import annotations

import click

from apiece._text import plain_lines


def echo(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text as `click.echo` does; control characters in it are shown, not obeyed."""
    click.echo(plain_lines(text), err=err, nl=nl)
