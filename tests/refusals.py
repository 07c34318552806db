"""Errors are tested by their type and by the facts that they name, not by their wording.

A fact is what the message is about (a parameter, a column, a person), the value, the bound, or the
remedy's command. A phrase is compared only where nothing else tells two errors of a subject apart.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

Fact = str | int | float
NUMERAL = re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d+)?")


def unnamed_facts(message: str, facts: tuple[Fact, ...]) -> list[Fact]:
    """The facts that a message does not name: a text as whole words, a number in any form."""
    numbers = {float(numeral.replace(",", "")) for numeral in NUMERAL.findall(message)}
    lacking: list[Fact] = []
    for fact in facts:
        if isinstance(fact, str):
            named = re.search(rf"(?<!\w){re.escape(fact)}(?!\w)", message) is not None
        else:
            named = float(fact) in numbers
        if not named:
            lacking.append(fact)
    return lacking


@contextmanager
def refused(kind: type[Exception], *facts: Fact) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error of this kind whose message names each of the facts."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    lacking = unnamed_facts(message, facts)
    assert not lacking, f"{kind.__name__}: {message!r} does not name {lacking}"
