"""apiece report: a run folder or a plan becomes one file, whole; bad input is one line."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece import cli
from apiece.errors import OptionError, StateError
from apiece.jobs import Run, load_model, read_job
from apiece.jobs.prepared import RunFolder
from apiece.reporting import papers
from sample_runs import sample_plan
from sample_tables import X_AND_Y as SCHEMA


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder, as apiece train leaves it."""
    place = tmp_path_factory.mktemp("made")
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"x": random.random(60), "y": random.choice(["a", "b"], 60)})
    frame.assign(e=np.where(np.arange(60) % 2, 1.0, 4.0)).to_csv(place / "t.csv", index=False)
    (place / "s.toml").write_text(SCHEMA)
    words = ["train", "--data", place / "t.csv", "--schema", place / "s.toml", "--label", "y"]
    words += ["--epsilon", "e", "--delta", "1e-3", "--steps", "2", "--batch-size", "10"]
    words += ["--levels", "1,4", "--purpose", "to see", "--out", place / "run"]
    assert cli.run(list(map(str, words))) == 0
    return place / "run"


def test_both_editions_are_written(folder: Path, capsys: Any) -> None:
    assert cli.run(["report", str(folder), "--edition", "public"]) == 0
    assert "report-public.html" in capsys.readouterr().out
    trained = (folder / "report.html").read_text()
    assert cli.run(["report", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"edition": "internal", "report": str(folder / "report.html")}
    assert (folder / "report.html").read_text() == trained
    public = (folder / "report-public.html").read_text()
    assert "to see" in public
    assert "ε = 4" in public
    assert "t.csv" not in public


def test_a_statement_for_people_and_machines(folder: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("typst", reason="typst is not installed")
    trained = (folder / "statement.json").read_text()
    assert cli.run(["report", str(folder), "--as", "statement"]) == 0
    assert "statement.pdf" in capsys.readouterr().out
    assert (folder / "statement.json").read_text() == trained
    assert json.loads(trained) == load_model(folder / "model.pt").statement
    page = (folder / "statement.pdf").read_bytes()
    assert (
        cli.run(["report", str(folder), "--as", "statement", "--out", str(tmp_path), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert Path(told["statement.pdf"]).read_bytes() == page
    assert sorted(p.name for p in tmp_path.iterdir()) == ["statement.json", "statement.pdf"]
    german = ["report", str(folder), "--as", "statement", "--language", "de", "--json"]
    assert cli.run([*german, "--out", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["statement.pdf"]) == tmp_path / "statement.de.pdf"
    assert (tmp_path / "statement.de.pdf").read_bytes() != page
    assert (tmp_path / "statement.pdf").read_bytes() == page


@pytest.mark.parametrize(
    ("kind", "name"),
    [("registry", "registry.yaml"), ("card", "card.md"), ("cyclonedx", "model.cdx.json")],
)
def test_papers_of_a_run(kind: str, name: str, folder: Path, tmp_path: Path, capsys: Any) -> None:
    """In the run folder or where --out says, twice the same, and never over another file."""
    for words, at in (([], folder / name), (["--out", str(tmp_path / name)], tmp_path / name)):
        for _ in range(2):
            assert cli.run(["report", str(folder), "--as", kind, *words]) == 0
            assert capsys.readouterr().out == f"Open {at}\n"
    assert (folder / name).read_text() == (tmp_path / name).read_text()
    (tmp_path / name).write_text("of somebody")
    assert cli.run(["report", str(folder), "--as", kind, "--out", str(tmp_path / name)]) != 0
    assert (tmp_path / name).read_text() == "of somebody"


def test_a_card_in_german_stands_beside_the_english_one(
    folder: Path, tmp_path: Path, capsys: Any
) -> None:
    for name, words in (("card.md", []), ("card.de.md", ["--language", "de"])):
        out = folder / name
        assert cli.run(["report", str(folder), "--as", "card", *words]) == 0
        assert capsys.readouterr().out == f"Open {out}\n"
    assert "## Verwendung" in (folder / "card.de.md").read_text()
    assert "## Uses" in (folder / "card.md").read_text()
    one = tmp_path / "README.md"
    words = ["report", str(folder), "--as", "card", "--language", "de", "--out", str(one)]
    assert cli.run(words) == 0
    assert one.read_text() == (folder / "card.de.md").read_text()


def test_a_statement_as_one_file(folder: Path, tmp_path: Path, capsys: Any) -> None:
    pytest.importorskip("typst", reason="typst is not installed")
    for name in ("out.pdf", "out.json"):
        words = ["report", str(folder), "--as", "statement", "--out", str(tmp_path / name)]
        assert cli.run(words) == 0
        assert capsys.readouterr().out == f"Open {tmp_path / name}\n"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.json", "out.pdf"]
    words = ["report", str(folder), "--as", "statement", "--out", str(tmp_path / "out.docx")]
    assert cli.run(words) == 2
    said = capsys.readouterr().err
    assert ".json is for machines and .pdf is the page for people" in said
    assert said.count("\n") == 1


def test_a_statement_without_the_library_writes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setitem(sys.modules, "typst", None)
    assert cli.run(["report", str(folder), "--as", "statement", "--out", str(tmp_path)]) == 2
    assert "pip install typst" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_plan(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "plan.json").write_text(sample_plan("scale").to_json())
    words = ["report", str(tmp_path / "plan.json"), "--edition", "public"]
    words += ["--levels", "1:1e-3,3:1e-3", "--out", str(tmp_path / "p.html")]
    assert cli.run(words) == 0
    assert "ε = 3" in (tmp_path / "p.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{none}"], "is not there; give a run folder, as runs/first"),
        (["{text}"], "is no run folder; for the page of a plan give --out FILE"),
        (["{run}/metrics.json"], "is a file of a run; give its folder, "),
        (["{run}", "--contact", "a", "--levels", "a=1"], "a run has those of its config"),
        (["{run}", "--valid-until", "2020-01-01"], "is past; give a day from 20"),
        (["{run}", "--valid-until", "1.1.2030"], "must be a day, as 2026-01-31"),
        (["{plan}", "--contact", "a", "--out", "{out}"], "--contact: is for a run folder"),
        (["{empty}"], "is no run folder, it has no metrics.json"),
        (["{text}", "--out", "{out}"], "not JSON"),
        (["{run}", "--edition", "pubic"], "must be internal or public"),
        (["{run}", "--levels", "1:1e-3", "--out", "{out}"], "a run has those of its config"),
        (["{run}", "--levels", "one", "--out", "{out}"], "a run has those of its config"),
        (["{plan}", "--levels", "1:2:3", "--out", "{out}"], "or ε:δ, as 1:1e-5"),
        (["{plan}", "--levels", "1:1e-3", "--out", "{out}"], "is none of them"),
        (["{run}", "--out", "{text}/x.html"], "cannot be used"),
        (["{plan}", "--as", "statement", "--out", "{out}"], "--as statement: is of a run folder"),
        (["{run}", "--as", "statement", "--edition", "public"], "leave out --edition"),
        (["{none}", "--as", "statement", "--out", "{out}"], "is not there"),
        (["{empty}", "--as", "statement"], "it has no metrics.json"),
        (["{run}", "--as", "statement", "--out", "{text}"], "cannot be written"),
        (["{run}", "--as", "statement", "--language", "fr"], "--language = 'fr'"),
        (["{run}", "--as", "registry", "--language", "de"], "the registry is in English"),
        (["{run}", "--language", "de"], "the page is in English"),
        (["{run}", "--as", "pdf"], "must be page, statement, registry, card, cyclonedx"),
        (["{run}", "--as", "card", "--out", "{text}"], "is not a model card"),
        (["{run}", "--as", "cyclonedx", "--out", "{out}"], "give a name ending in .json"),
        ([], "Missing argument"),
    ],
)
def test_mistakes(words: list[str], says: str, folder: Path, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no plan")
    (tmp_path / "plan.json").write_text(sample_plan("scale").to_json())
    places = {name: str(tmp_path / name) for name in ("none", "empty", "text")}
    places |= {"run": str(folder), "plan": str(tmp_path / "plan.json")}
    places["out"] = str(tmp_path / "out.html")
    before = sorted(tmp_path.iterdir())
    assert cli.run(["report", *(word.format(**places) for word in words)]) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(tmp_path.iterdir()) == before


WORDS = ["--controller", "County Hospital", "--contact", "a@b.org", "--valid-until", "2099-12-31"]


def test_papers_are_completed_after_a_training(folder: Path, tmp_path: Path) -> None:
    """The four words change, wherever they stand; weights, plan, promises and figures do not."""
    pytest.importorskip("typst", reason="typst is not installed")
    own = Path(shutil.copytree(folder, tmp_path / "run"))
    assert cli.run(["report", str(own), "--as", "statement", *WORDS]) == 0
    before, after = Run.load(folder), Run.load(own)
    assert (after.purpose, after.controller, after.contact, after.valid_until) == (
        "to see", "County Hospital", "a@b.org", "2099-12-31"
    )  # fmt: skip
    words = dict.fromkeys(("controller", "contact", "valid_until", "bound"))
    assert replace(after, **words).to_dict() == replace(before, **words).to_dict()
    assert after.bound is not None
    assert before.bound is not None
    assert after.bound == replace(before.bound, config=after.bound.config)
    assert (own / "plan.json").read_bytes() == (folder / "plan.json").read_bytes()
    old, new = (json.loads((place / "statement.json").read_text()) for place in (folder, own))
    differ = {name for name in old if old[name] != new[name]}
    assert differ == {"controller", "contact", "valid_until", "bound_to", "digest"}
    assert load_model(own / "model.pt").statement == new
    assert read_job(own / "config.toml").run.controller == "County Hospital"
    assert "County Hospital" in (own / "report.html").read_text()
    assert b"apiece statement" in (own / "statement.pdf").read_bytes()


# Before the first new file, at one in the middle, at the last; the slow tests have the others.
STOPS = ["rename", "model.pt", "rmtree"]


@pytest.mark.parametrize(
    "stop",
    [
        *STOPS,
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("metrics.json", "statement.json")
        ),
    ],
)
def test_completing_that_is_stopped_leaves_the_old_or_is_ended(
    stop: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Path(shutil.copytree(folder, tmp_path / "run"))
    write, place = RunFolder.write, papers.shutil

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def cut(self: RunFolder, name: str, content: str | bytes) -> None:
        stopped() if self.path == own and name == stop else write(self, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write", cut)
        if stop in ("rename", "rmtree"):
            patched.setattr(Path if stop == "rename" else place, stop, stopped)
        assert cli.run(["report", str(own), *WORDS]) == 130
    if stop == "rename":
        assert Run.load(own).controller is None
        return
    with pytest.raises(StateError, match="completing its papers was interrupted; apiece report"):
        Run.load(own)
    assert cli.run(["report", str(own)]) == 0
    assert Run.load(own).controller == "County Hospital"
    assert not (own / "papers.ready").exists()


def test_a_word_that_there_is_not_names_the_nearest(folder: Path) -> None:
    with pytest.raises(OptionError, match="'contrller'; did you mean 'controller'"):
        papers.complete_papers(folder, contrller="x")
