"""apiece explain: sentences, a form, a picture, JSON; one line for each mistake."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apiece import cli
from apiece.assignment import Hybrid, Sample, Uniform, assign
from apiece.budgets import Budgets
from apiece.contract import Choices
from tests.sample_choices import sample_choices

GAUSSIAN = '{"gaussian": {"noise_multiplier": 4}}'


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5, labels=["strict"] * 50 + ["weak"] * 50)
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    made = assign(budgets, Sample(), steps=10, expected_batch_size=10, clip_norm=1.0)
    path.write_text(made.to_json())
    return path


def test_sentences_fit_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", "--epsilon", "1", "--delta", "1e-5"]) == 0
    out = capsys.readouterr().out
    assert "at most 732" in out
    assert "any mechanism that keeps it" in out
    assert max(map(len, out.splitlines())) <= 80


def test_json_has_the_counts_and_the_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["explain", "--epsilon", "1", "--delta", "1e-5", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["frequencies"]["harmed"] == 273
    assert all(sentence in found["consent"] for sentence in found["sentences"])


def test_the_form_names_the_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--epsilon", "1", "--delta", "1e-5", "--consent", "--purpose", "a study of sleep"]
    assert cli.run(["explain", *flags]) == 0
    assert "a study of sleep" in capsys.readouterr().out


def test_what_is_run_allows_less(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for flags in (
        ["--epsilon", "1", "--delta", "1e-5"],
        ["--epsilon", "1", "--delta", "1e-5", "--mechanism", GAUSSIAN],
        ["--delta", "1e-5", "--mechanism", GAUSSIAN],
        ["--plan", str(plan), "--group", "strict"],
    ):
        assert cli.run(["explain", *flags, "--json"]) == 0
        counts.append(json.loads(capsys.readouterr().out)["frequencies"]["right"])
    assert counts[:3] == [732, 550, 550]
    assert 500 < counts[3] < 732


@pytest.mark.parametrize("name", ["a.png", "a.svg", "a.pdf"])
def test_the_picture(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    assert cli.run(["explain", "--epsilon", "1", "--delta", "1e-5", "--figure", str(path)]) == 0
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "--delta"),
        (["--epsilon", "1"], "--delta"),
        (["--delta", "1e-5"], "--epsilon"),
        (["--epsilon", "0", "--delta", "1e-5"], "epsilon"),
        (["--epsilon", "nan", "--delta", "1e-5"], "epsilon"),
        (["--epsilon", "5000", "--delta", "1e-5"], "1000"),
        (["--epsilon", "1", "--delta", "1"], "delta"),
        (["--epsilon", "1", "--delta", "1e-5", "--purpose", "x"], "--consent"),
        (["--epsilon", "1", "--delta", "1e-5", "--consent", "--json"], "--consent"),
        (["--epsilon", "1", "--delta", "1e-5", "--group", "a"], "--group"),
        (["--epsilon", "0.5", "--delta", "1e-5", "--mechanism", GAUSSIAN], "spends"),
        (["--delta", "1e-5", "--mechanism", "{"], "--mechanism"),
        (["--epsilon", "1", "--delta", "1e-5", "--figure", "a.gif"], ".gif"),
        (["--plan", "nowhere.json", "--group", "a"], "nowhere.json"),
    ],
)
def test_mistakes(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.run(["explain", *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "strict, weak"),
        (["--group", "other"], "other"),
        (["--epsilon", "1"], "--plan"),
        (["--group", "weaks"], "the plan has no 'weaks'; give one of strict"),
    ],
)
def test_mistakes_with_a_plan(
    plan: Path, flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["explain", "--plan", str(plan), *flags]) == 2
    assert message in capsys.readouterr().err


def test_a_plan_that_breaks_its_promise_is_not_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
    loose = assign(budgets, Uniform("loosest"), steps=10, expected_batch_size=10, clip_norm=1.0)
    path = tmp_path / "plan.json"
    path.write_text(loose.to_json())
    assert cli.run(["explain", "--plan", str(path), "--group", "epsilon=1"]) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "more than 500" not in captured.err


OFFER = ["--groups", "strict:1:0.5,weak:3:0.5", "--records", "100", "--delta", "1e-5"]
OFFER += ["--batch-size", "10", "--steps", "5"]


@pytest.mark.parametrize("strategy", [[], ["--strategy", "scale"], ["--strategy", "allocate"]])
def test_the_contributor_s_page(
    strategy: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the strategy that will be run: the steward's to choose, and nobody else's."""
    path = tmp_path / "choose.html"
    assert cli.run(["explain", *OFFER, *strategy, "--page", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    page = path.read_text()
    assert found["names"] == ["strict", "weak"]
    assert len(found["outcomes"]) == 6
    assert "δ = 1 in 100,000" in page
    assert 'name="strategy"' not in page
    assert not re.search(r"\de-\d", page)
    name = strategy[1] if strategy else "sample"
    assert {o["strategy"] for o in found["outcomes"]} == {name}
    if "scale" in strategy:
        assert 'name="others"' not in page  # what they choose changes nothing
        assert "What others choose does not move the counts." in page
        return
    assert "all others choose “weak”" in page
    if not strategy:
        return
    for o in found["outcomes"]:
        assert o["explanation"]["taking_part"][1] == 5
        assert 0 <= o["unspent"] / 100 <= 1 - o["epsilon_spent"] / o["explanation"]["epsilon"]
        assert f"{o['unspent']} % unused" in page


def test_the_contributor_s_page_without_sampling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "choose.html"
    offer = [*OFFER[:-2], "--steps", "40", "--strategy", "epochs"]
    assert cli.run(["explain", *offer, "--noise", "correlated", "--page", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {outcome["strategy"] for outcome in found["outcomes"]} == {"epochs"}
    assert "passes over the data" in path.read_text()
    for words in (["--noise", "corelated", "--page", str(path), *OFFER],
                  ["--noise", "correlated", "--epsilon", "1", "--delta", "1e-5"]):  # fmt: skip
        assert cli.run(["explain", *words]) == 2
        assert "noise" in capsys.readouterr().err


def test_the_flags_of_an_offer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def choices(offered: Any, **settings: Any) -> Choices:
        settings.pop("progress")(1, 30)
        asked.extend([offered, settings])
        return sample_choices(("strict", "weak"), ("scale",))

    monkeypatch.setattr("apiece.cli.explain.choices", choices)
    path = tmp_path / "choose.html"
    hybrid = ["--strategy", "hybrid", "--excess", "0.02"]
    for offer in (OFFER, ["--levels", "weak=3,strict=1", *OFFER[2:]]):
        asked.clear()
        assert cli.run(["explain", *offer, *hybrid, "--page", str(path)]) == 0
        assert asked == [
            [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)],
            {
                "records": 100,
                "delta": 1e-5,
                "steps": 5,
                "expected_batch_size": 10.0,
                "bound": 0.02,
                "strategies": [Hybrid(0.02)],
                "noise": None,
            },
        ]
    assert path.read_text().startswith("<!doctype html>")
    assert str(path) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (OFFER, "--page: missing"),
        ([*OFFER, "--levels", "low=1", "--page", "a.html"], "in place of --groups"),
        ([*OFFER[2:], "--page", "a.html"], "--groups: missing"),
        ([*OFFER[:-2], "--page", "a.html"], "--steps: missing"),
        ([*OFFER, "--strategy", "hybrid", "--page", "a.html"], "--excess: missing"),
        ([*OFFER, "--excess", "0.1", "--page", "a.html"], "--excess: is the bound of --strategy"),
        ([*OFFER, "--strategy", "uniform", "--page", "a.html"], "strategy"),
        (["--epsilon", "1", "--delta", "1e-5", "--strategy", "scale"], "--strategy: goes with"),
        (["--page", "a.html"], "--groups, --records, --batch-size, --steps, --delta: missing"),
        (["--page", "a.html"], "as in --groups strict:1:0.5,weak:3:0.5 --records 50000"),
        (OFFER[:4], "--page, --batch-size, --steps, --delta: missing"),
        (["--groups", "a:1", "--page", "a.html"], "(2) --groups: 'a:1' is not name:epsilon:share"),
        ([*OFFER, "--page", "a.html", "--epsilon", "1"], "--epsilon"),
        ([*OFFER, "--page", "a.html", "--consent"], "--consent"),
        ([*OFFER, "--page", "a.html", "--figure", "a.png"], "--figure"),
        ([*OFFER, "--page", "a.html", "--purpose", "sleep"], "--purpose"),
        (["--groups", "a:1", *OFFER[2:], "--page", "a.html"], "name:epsilon:share"),
        (["--groups", "a:1:1", *OFFER[2:], "--page", "a.html"], "offer 2"),
        (["--epsilon", "1", "--delta", "1e-5", "--steps", "5"], "--steps"),
    ],
)
def test_mistakes_with_an_offer(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert cli.run(["explain", *flags]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_contributor_s_page_in_german(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "choose.html"
    words = ["explain", *OFFER, "--strategy", "scale", "--page", str(path)]
    assert cli.run([*words, "--language", "de"]) == 0
    page = path.read_text()
    assert '<html lang="de">' in page
    assert "Was kein Budget abdeckt" in page
    assert "What no budget covers" not in page
    assert cli.run([*words, "--language", "fr"]) == 2
    assert "--language = 'fr': must be en or de" in capsys.readouterr().err
    assert cli.run(["explain", "--epsilon", "1", "--delta", "1e-5", "--language", "de"]) == 2
    assert "--language: goes with --groups" in capsys.readouterr().err
