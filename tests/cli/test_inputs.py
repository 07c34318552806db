"""What several commands read from their flags: the same words, and one line where they are none."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.cli._command import (
    add_table_options,
    make_dialect,
    parse_groups,
    parse_number_or_name,
    parse_option,
    read_text,
    warn,
)
from apiece.datasets.tables import PLAIN
from apiece.errors import DataError, InputError

group = st.tuples(
    st.text(st.characters(exclude_characters=",:"), min_size=1, max_size=4).filter(
        lambda name: name == name.strip()
    ),
    st.floats(0),
    st.floats(0, 1),
)


@settings(derandomize=True, max_examples=50, deadline=None)
@given(st.lists(group, min_size=1, max_size=4))
def test_groups_come_back(groups: list[tuple[str, float, float]]) -> None:
    text = ",".join(f"{name}:{epsilon!r}:{share!r}" for name, epsilon, share in groups)
    assert parse_groups(text) == groups


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not name:epsilon:share"),
        ("a:1", "'a:1' is not name:epsilon:share"),
        ("a:1:1,b:1:1:1", "'b:1:1:1' is not name:epsilon:share"),
        ("a:one:1", "with two numbers"),
    ],
)
def test_groups_that_are_none(text: str, said: str) -> None:
    with pytest.raises(InputError, match=f"^--groups: .*{said}"):
        parse_groups(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [(None, None), ("1e-5", 1e-5), ("inf", float("inf")), ("consent", "consent"), ("", "")],
)
def test_a_number_or_a_name(text: str | None, found: float | str | None) -> None:
    assert parse_number_or_name(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("noise=strictest", ("noise", "strictest")),
        ("keep-noise=true", ("keep_noise", True)),
        ("at=[1, 2]", ("at", [1, 2])),
        ("name=a=b", ("name", "a=b")),
        ("name=", ("name", "")),
    ],
)
def test_options_of_strategies(text: str, found: tuple[str, object]) -> None:
    assert parse_option(text) == found


def test_an_option_without_a_value_is_none() -> None:
    with pytest.raises(InputError, match="--option: 'noise' is not name=value"):
        parse_option("noise")


def test_files_of_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ε\n", encoding="utf-8")
    assert read_text(tmp_path / "a") == "ε\n"
    (tmp_path / "b").write_bytes(b"\xff")
    for path in (tmp_path / "b", tmp_path / "none", tmp_path):
        with pytest.raises(DataError, match=r"cannot be read|not UTF-8 text|is a folder"):
            read_text(path)


def test_a_csv_file_is_as_the_flags_say_and_plain_otherwise() -> None:
    seen = []

    @click.command()
    @add_table_options
    def command(**flags: str | None) -> None:
        seen.append(make_dialect(flags))

    for words in ([], ["--separator", ";", "--decimal", ",", "--encoding", "latin-1"]):
        assert CliRunner().invoke(command, words).exit_code == 0
    assert seen[0] == PLAIN
    assert (seen[1].separator, seen[1].decimal, seen[1].encoding) == (";", ",", "latin-1")


def test_warnings_are_a_line_each_whatever_they_name(capsys: pytest.CaptureFixture[str]) -> None:
    warn(["one", "a\nb\x1b[0m"])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 2
    assert said.err.startswith("warning: one\nwarning: a")
    assert "\x1b" not in said.err
