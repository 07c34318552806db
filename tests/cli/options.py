"""Command lines in which options take the place of earlier ones, since each may be given once."""

from collections.abc import Iterable

REPEATED = ("--range", "--bounds", "--values", "--kind", "--option", "--skip", "--level", "--only")


def instead(words: Iterable[str], *more: str) -> list[str]:
    """Return words with more behind them, without the options of more that were there before."""
    found = list(words)
    for option in more:
        if option.startswith("--") and option not in REPEATED and option in found:
            at = found.index(option)
            found[at : at + 2] = []
    return [*found, *more]
