"""How a text table is written is declared, in a few words, and anything else is refused."""

import pytest

from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import DataError


@pytest.mark.parametrize(
    ("said", "meant"),
    [("tab", "\t"), ("\\t", "\t"), ("comma", ","), ("semicolon", ";"), ("|", "|"), (";", ";")],
)
def test_separators_have_names(said: str, meant: str) -> None:
    assert Dialect(separator=said).separator == meant


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("separator", ""),
        ("separator", "ab"),
        ("separator", "a"),
        ("separator", '"'),
        ("separator", "."),
        ("separator", "\n"),
        ("separator", 7),
        ("decimal", ";"),
        ("decimal", None),
        ("encoding", "klingon"),
        ("encoding", "base64"),
        ("encoding", None),
    ],
)
def test_anything_else_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(DataError, match=f"{name} = "):
        Dialect(**{name: value})  # type: ignore[arg-type]


def test_what_is_not_said_is_the_plain_one() -> None:
    assert Dialect() == PLAIN
    assert (PLAIN.separator, PLAIN.decimal, PLAIN.encoding) == (None, ".", "utf-8")
