"""apiece risk: a table, JSON and a heat map from plans alone."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from apiece import cli
from apiece.cli.risk import command
from apiece.errors import InputError

from .options import instead

FLAGS = ["--records", "1000", "--epsilon", "4", "--delta", "1e-6", "--batch-size", "50"]
FLAGS += ["--steps", "100", "--others", "1,4", "--shares", "0.5"]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_and_heat_map(tmp_path: Path) -> None:
    path = tmp_path / "risk.png"
    data = json.loads(run(*FLAGS, "--json", "--figure", str(path)))
    assert data["victim_epsilon"] == 4
    assert len(data["advantage"]) == 1
    assert data["advantage"][0][0] > data["advantage"][0][1]
    assert data["advantage"][0][1] == pytest.approx(data["baseline_advantage"], rel=1e-2)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_table_for_people() -> None:
    text = run(*FLAGS, "--strategy", "scale")
    assert "epsilon 1" in text
    assert "all alike" in text
    assert "(0.000)" in text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--others", "one"], "--others"),
        (["--shares", "1.5"], "share"),
        (["--strategy", "scael"], "did you mean 'scale'"),
        (["--epsilon", "-1"], "epsilon of victim"),
    ],
)
def test_bad_input_is_a_typed_error(flags: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(*instead(FLAGS, *flags))


@pytest.mark.parametrize(
    "flags",
    [["--shares", "0"], ["--others", "0"], ["--batch-size", "2000"], ["--steps", "0"]],
    ids=lambda flags: flags[0],
)
def test_infeasible_from_the_command_line(
    flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = str(tmp_path / "risk.png")
    assert cli.run(["risk", *FLAGS, *flags, "--figure", figure, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
