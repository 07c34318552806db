"""One word a thing on the command line: every flag of every command is in this list."""

from collections.abc import Iterator

import click
import pytest

from apiece import cli

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
    ("arguments", "write"),
    [
        ("account --noise-multiplier 1 --delta 1e-5 --plot a.png", "--figure"),
        ("ledger init sqlite:///l.db --data a.csv --ids who", "--person"),
        ("audit canaries --canaries a.csv --id who", "--ids"),
        ("audit --canaries a.csv --id who", "--ids"),
    ],
)
def test_older_words_are_refused_with_the_remedy(
    arguments: str, write: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments.split()) == 2
    captured = capsys.readouterr()
    assert f"write {write}" in captured.err
    assert captured.err.count("\n") == 1
