"""Command lines in which options take the place of earlier ones, since each may be given once."""

from collections.abc import Iterable

from apiece import cli

REPEATED = (
    "--range", "--bounds", "--values", "--kind", "--option", "--skip", "--only", "--at",
    "--hidden", "--plan",
)  # fmt: skip


def instead(words: Iterable[str], *more: str) -> list[str]:
    """Return words with more behind them, without the options of more that were there before."""
    found = list(words)
    for option in more:
        if option.startswith("--") and option not in REPEATED and option in found:
            at = found.index(option)
            found[at : at + 2] = []
    return [*found, *more]


def last(words: Iterable[str]) -> list[str]:
    """Return words in which an option that occurs again has its last value alone."""
    found: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        once = word.startswith("--") and word not in REPEATED and rest
        if once and word in rest and not rest[0].startswith("--"):
            rest.pop(0)
        else:
            found.append(word)
    return found


def ask(words: Iterable[str]) -> int:
    """Run a command line whose options may occur again, and return its exit status."""
    return cli.run(last(words))
