"""One word a thing on the command line: every flag of every command is in this list."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from apiece import cli
from apiece.accounting.choose import METHODS
from apiece.assignment.front import STRATEGIES

# What several commands share, and in which words; a flag of one command alone is not listed.
WORDS = {
    "--person": "ids",
    "--figure": "draw",
    "--out": "",
    "--groups": "name:epsilon:share",
    "--json": "one JSON document",
}
# Other words for the same, which no command takes.
REFUSED = {"--plot", "--plots", "--chart", "--id", "--people-ids", "--output", "--eps", "--user"}


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli.group)
    for name in cli.group.list_commands(context):
        command = cli.group.get_command(context, name)
        assert command is not None
        inner = command.commands if isinstance(command, click.Group) else {"": command}
        for part, each in inner.items():
            yield f"{name} {part}".strip(), each


def options() -> list[tuple[str, click.Option]]:
    return [
        (name, option)
        for name, command in commands()
        for option in command.params
        if isinstance(option, click.Option) and not option.hidden
    ]


@pytest.mark.parametrize("flag", WORDS)
def test_a_flag_means_one_thing(flag: str) -> None:
    helps = {name: o.help or "" for name, o in options() if flag in o.opts}
    assert len(helps) >= 2
    said = WORDS[flag].lower()
    assert {n: h for n, h in helps.items() if said not in h.lower()} == {}


def test_no_other_words() -> None:
    assert [(name, o.opts) for name, o in options() if REFUSED & set(o.opts)] == []


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("account --noise-multiplier 1 --delta 1e-5 --plot a.png", "--plot"),
        ("ledger init sqlite:///l.db --data a.csv --ids who", "--ids"),
        ("ledger init sqlite:///l.db --method renyi", "--method"),
        ("ledger status sqlite:///l.db --person eve", "--person"),
        ("audit canaries --canaries a.csv --id who", "--id"),
        ("audit --canaries a.csv --id who", "--id"),
        ("attack --records 60 --epsilon 2", "'attack'"),
    ],
)
def test_other_words_are_refused_in_one_line(
    arguments: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert word in captured.err
    assert captured.err.count("\n") == 1


def test_the_help_names_every_strategy_and_method() -> None:
    """The lists stand in the help as texts, so that it loads nothing."""
    helps = {(name, o.opts[0]): o.help or "" for name, o in options()}
    known = [name for name in STRATEGIES if not name.startswith("published")]
    assert [name for name in known if name not in helps["plan", "--strategy"]] == []
    assert [name for name in METHODS if name not in helps["account", "--method"]] == []
    assert [name for name in STRATEGIES if name in helps["train", "--strategy"]]


def test_mistakes_in_a_file_are_told_before_torch_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("[training]\nstepz = 3\n")
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    table = ["--data", "bad.csv", "--label", "c", "--epsilon", "b", "--schema", "none.toml"]
    for words in (["bad.toml"], table):
        code = f"import sys; from apiece.cli import run; s = run(['train', *{words!r}]);"
        code += "print(s, 'torch' in sys.modules)"
        out = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
        )
        assert out.stdout == "2 False\n", out.stderr
