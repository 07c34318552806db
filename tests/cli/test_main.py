"""The group: finding commands, exit statuses, one-line errors."""

import subprocess
import sys

import click
import pytest

from apiece import cli
from apiece.errors import InputError, StateError


def test_every_command_has_help_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    names = cli.group.list_commands(click.Context(cli.group))
    assert "schema" in names
    for name in names:
        assert cli.run([name, "--help"]) == 0
        assert "Example" in capsys.readouterr().out, f"apiece {name} --help shows no example"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from apiece import cli; cli.run(['--help']);"
        "print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_a_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["ledger"]):
        assert cli.run(words) == 0
        captured = capsys.readouterr()
        assert "Usage: apiece" in captured.out
        assert captured.err == ""


PLAN = ["plan", "--records", "9", "--groups", "a:1:.5,b:2:.5", "--delta", "1e-5"]
PLAN += ["--batch-size", "3", "--steps", "2", "--strategy"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["shema"], "did you mean 'schema'"),
        (["schema", "adult", "--lable", "x"], "--label"),
        (["schema", "adult"], "--label"),
        (["--nonsense"], "--nonsense"),
        (["ledger", "inti"], "did you mean 'init'"),
        ([*PLAN, "scale", "--option", "size=1"], "there are none; leave it out"),
        ([*PLAN, "hybrid"], "give --option excess=0.02"),
    ],
)
def test_misspelled_names_get_the_nearest_right_one(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert hint in captured.err


@pytest.mark.parametrize(
    ("error", "status"),
    [(InputError("x"), 2), (StateError("x"), 1), (KeyboardInterrupt(), 130), (click.Abort(), 130)],
)
def test_statuses(
    error: BaseException,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(cli.group, "main", fail)
    assert cli.run(["schema"]) == status
    assert capsys.readouterr().err.startswith("apiece schema: ")


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(cli.group, "main", fail)
    with pytest.raises(ZeroDivisionError):
        cli.run(["schema"])


@pytest.mark.parametrize("arguments", [[], ["audit"], ["ledger"]])
def test_lists_of_commands_fit_and_are_not_cut(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run([*arguments, "--help"]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert not [line for line in listed if line.endswith("...")]
    assert max(map(len, listed)) <= 100


def test_each_command_is_under_a_verb(capsys: pytest.CaptureFixture[str]) -> None:
    names = cli.group.list_commands(click.Context(cli.group))
    assert sorted(name for names in cli.VERBS.values() for name in names) == names
    assert cli.run(["--help"]) == 0
    out = capsys.readouterr().out
    assert [v for v in cli.VERBS if f"\n{v}:\n" in out] == list(cli.VERBS)
    assert "More:" not in out
