"""What commands print: every name from data shows itself, and no more, on the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import click

from apiece._text import plain, plain_lines

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
