"""python -m research: lists, runs, goes on, and says what is wrong in one line."""

import json
from pathlib import Path

import pytest

from apiece.cli import run_command
from research import __main__ as program
from sample_experiments import folder


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder(tmp_path))
    monkeypatch.setattr(program, "EXPERIMENTS", tmp_path / "experiments")
    monkeypatch.setattr(program, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(program, "PAGE", tmp_path / "papers.md")
    monkeypatch.setattr(program, "GUIDE", tmp_path / "README.md")
    (tmp_path / "README.md").write_text("# Research\n")
    return tmp_path


def run(words: list[str]) -> int:
    return run_command(program.command, words, "python -m research")


def test_it_runs_once_and_goes_on(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["half-a-number", "--data", "data", "--seeds", "2"]
    assert run(line) == 0
    assert "0.5" in capsys.readouterr().out
    assert run([*line[:-1], "3", "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["experiments"]
    assert [one["result"] for one in found["units"]] == [0.0, 0.5, 1.0]
    assert (there / "runs/research/half-a-number/log").read_text() == "0 1 2 "
    assert run([*line, "--only", "seed=1", "--again"]) == 0
    assert (there / "runs/research/half-a-number/log").read_text() == "0 1 2 1 "


TUNED = """
from research.experiment import Experiment

EXPERIMENT = Experiment(
    name="tuned", paper="Nobody", shows="Table 1", cost="nothing", open="all of it",
    units=lambda seeds, scale: [{"strategy": s, "held out": True} for s in "ab"],
    run=lambda unit, place: 1,
    after=lambda done, seeds, scale: [
        {"strategy": one.unit["strategy"], "seed": k} for one in done for k in range(seeds)
    ],
    tables=lambda done: [],
)
"""


def test_the_test_part_is_read_after_the_trials_or_not_at_all(
    there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (there / "experiments/tuned.py").write_text(TUNED)
    line = ["tuned", "--seeds", "2", "--json"]
    assert run([*line, "--held-out"]) == 0
    assert len(json.loads(capsys.readouterr().out)["experiments"][0]["units"]) == 2
    assert run([*line, "--only", "strategy=a"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["experiments"]
    units = [one["unit"] for one in found["units"]]
    assert units[2:] == [{"strategy": "a", "seed": 0}, {"strategy": "a", "seed": 1}]
    assert run(["--list"]) == 0
    assert "open: all of it" in capsys.readouterr().out


def test_several_run_in_turn(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (there / "experiments/tuned.py").write_text(TUNED)
    assert run(["tuned", "half-a-number", "--data", "data", "--seeds", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["experiments"]
    assert [one["experiment"] for one in found] == ["tuned", "half-a-number"]


def test_it_lists(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--list", "--data", "data"]) == 0
    text = capsys.readouterr().out
    assert "half-a-number" in text
    assert "not run" in text
    assert run(["--list", "--data", "elsewhere", "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)["experiments"]
    assert one["state"] == "not run"
    assert (one["needs"], one["missing"]) == (["there"], ["there"])


def test_it_writes_the_page(there: Path) -> None:
    assert run(["half-a-number", "--data", "data"]) == 0
    assert run(["--page"]) == 2  # without its marks the guide is left as it is
    marks = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in ("tables", "benchmarks", "data"))
    (there / "README.md").write_text(f"# Research\n\n{marks}")
    assert run(["--page"]) == 0
    assert "3 halves." in (there / "papers.md").read_text()
    assert (
        "| `half-a-number` | Nobody: Table 0 | `there` | nothing | 3 units"
        in (there / "README.md").read_text()
    )


def test_an_interrupted_run_says_how_far(there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = there / "runs/research/half-a-number"
    work.mkdir(parents=True)
    (work / "stop").touch()
    assert run(["half-a-number", "--data", "data"]) == 130
    assert "1 of 3 units" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ([], "NAME"),
        (["half-a-number", "--list"], "NAME"),
        (["half-a-numbr"], "half-a-number"),
        (["half-a-number", "--seeds", "0"], "seeds"),
        (["half-a-number", "--scale", "2"], "scale"),
        (["half-a-number", "--only", "sed=1"], "--only"),
        (["half-a-number", "--only", "seed=9"], "--only"),
        (["half-a-number", "--held-out"], "no trials"),
        (["half-a-number", "--data", "elsewhere"], "no folder there"),
        (["half-a-number", "half-a-numbr"], "half-a-number"),
    ],
)
def test_mistakes_are_one_line(
    there: Path, capsys: pytest.CaptureFixture[str], line: list[str], said: str
) -> None:
    assert run([*line]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "\n" not in error
    assert not (there / "results").exists()
