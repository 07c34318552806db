"""apiece audit: one line for every mistake, and what is given tells the kind."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece import audit
from apiece.assignment import assign
from apiece.audit.anytime import Watched
from apiece.audit.splits import biregular
from apiece.budgets import Budgets
from apiece.cli import run as main
from apiece.cli.audit import _find_kind
from apiece.cli.audit import command as audit_command
from apiece.reporting import report
from apiece.reporting.closing import findings_text as audit_text
from apiece.training import loop

from .audits import call, canaries

WORLDS = ["--scores-in", "{good}", "--scores-out", "{good}"]


@pytest.fixture(scope="module")
def wrong_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A file for each mistake, by name."""
    folder = tmp_path_factory.mktemp("wrong")
    texts = {"bad": "1 x 3", "good": "1 2 3", "nan": "1 nan 3"}
    for strategy, name in (("scale", "plan"), ("sample", "other_plan")):
        budgets = Budgets.from_groups([("a", 1.0, 0.5), ("b", 3.0, 0.5)], 40, 1e-5)
        made = assign(budgets, strategy, steps=4, expected_batch_size=8, clip_norm=1.0)
        texts[name] = made.to_json()
    for name, text in texts.items():
        (folder / name).write_text(text)
    people = pd.DataFrame({"id": range(6), "score": 0.0, "included": [0, 1] * 3})
    people.to_csv(folder / "people", index=False)
    people[:5].to_csv(folder / "fewer", index=False)
    pd.concat([people, people]).to_csv(folder / "twice", index=False)
    people.replace({"score": {0.0: np.nan}}).to_csv(
        folder / "nan_canaries", index=False, na_rep="nan"
    )
    groups = np.repeat(["a", "b"], 4)
    split = biregular(8, np.repeat([0, 1], 4), generator=np.random.default_rng(0))
    lopsided = np.roll(split, 2, axis=1)
    for name, included, phi in (
        ("few_models", split[:4], 0.0),
        ("lopsided", lopsided, 0.0),
        ("nan_shadows", split, np.nan),
    ):
        arrays = {"ids": np.arange(8), "groups": groups, "included": included}
        np.savez(folder / name, **arrays, confidences=np.full(included.shape, phi))
    canaries(folder / "canaries")
    made_files = [*texts, "people", "fewer", "twice", "nan_canaries", "canaries"]
    return {name: str(folder / name) for name in made_files} | {
        name: str(folder / f"{name}.npz") for name in ("few_models", "lopsided", "nan_shadows")
    }


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "name one of"),
        (["--canaries", "a", "--shadows", "b"], "name one of"),
        (["--scores-in", "none.txt"], "Missing option '--scores-out'"),
        (["--scores-in", "none.txt", "--scores-out", "none.txt"], "none.txt"),
        (["--shadows", "none.npz"], "No such file"),
        (["--canaries", "none.csv"], "none.csv"),
        (["no-such-run"], "is no run folder"),
        (["--canaries", "{canaries}", "--score", "x"], "column 'x'"),
        (["--canaries", "{canaries}", "--score", "who"], "not a number"),
        (["--canaries", "{canaries}", "--included", "score"], "0 or 1"),
        (["--scores-in", "{bad}", "--scores-out", "{bad}"], "entry 2 = 'x'"),
        (["--canaries", "{canaries}", "--delta", "2"], "delta"),
        (
            ["--scores-in", "{nan}", "--scores-out", "{good}", "--delta", "1e-5"],
            "scores_in[1] = nan",
        ),
        (["--canaries", "{nan_canaries}", "--delta", "1e-5"], "nan"),
        (["--canaries", "{people}", "--coins", "{twice}"], "id 0 occurs 2 times"),
        (["--canaries", "{people}", "--coins", "{fewer}"], "ids do not match: 5 is in"),
        (["--shadows", "{few_models}"], "needs at least 3"),
        (["no-such-run", "--models", "5"], "models = 5: must be at least 6"),
        (
            ["--shadows", "{lopsided}", "--plan", "{plan}"],
            "goes with worlds",
        ),
        (["--shadows", "{good}"], "good: not a .npz file"),
        (
            ["--shadows", "{lopsided}", "--models", "8"],
            "--models: goes with lira",
        ),
        (["no-such-run", "--out", "x"], "--out: goes with lira, not with run"),
        (
            ["no-such-run", "--models", "8", "--delta", "1e-3"],
            "--delta: goes with run or model or worlds or anytime or canaries, not with lira",
        ),
        ([*WORLDS, "--coins", "{fewer}"], "goes with canaries, not with worlds"),
        (["--shadows", "{lopsided}"], "half full"),
        (["--shadows", "{nan_shadows}"], "NaN"),
        ([*WORLDS, "--plan", "{plan}", "--plan", "{other_plan}"], "plan of world 1: differs"),
        ([*WORLDS, "--plan", "{good}"], "plan: not JSON"),
        (
            ["--trust-model", "--model", "{good}", "--members", "{good}", "--others", "{good}"],
            "not a .npz file",
        ),
        (["--model", "{good}"], "Missing option '--members'"),
    ],
)
def test_audit_mistakes(
    arguments: list[str],
    words: str,
    wrong_files: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["audit", *(a.format(**wrong_files) for a in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["runs/first", "--delta", "1e-5"], "run"),
        (["runs/first", "--models=64"], "lira"),
        (["--model", "m.pt2"], "model"),
        (["--scores-out", "o.txt"], "worlds"),
        (["--json", "--canaries=c.csv"], "canaries"),
        (["--shadows", "s.npz"], "shadows"),
    ],
)
def test_what_is_given_tells_the_kind(given: list[str], meant: str) -> None:
    assert _find_kind(given) == meant


def test_every_kind_has_its_own_help_and_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--help"]) == 0
    assert "apiece audit run runs/first" in capsys.readouterr().out
    for name, kind in audit_command.commands.items():
        assert main(["audit", name, "--help"]) == 0
        said = capsys.readouterr().out
        assert all(option.opts[0] in said for option in kind.params if option.opts[0][0] == "-")
    file = canaries(tmp_path / "c.csv")
    named = call(audit_command, "canaries", "--canaries", file, "--delta", "1e-5", "--json")
    assert named == call(audit_command, "--canaries", file, "--delta", "1e-5", "--json")


@pytest.mark.parametrize(
    ("epsilon", "said"), [(0.0, "no leak is shown"), (0.7, "ε of weak is at least 0.7")]
)
def test_a_plain_verdict(epsilon: float, said: str) -> None:
    bound = audit.LowerBound(epsilon, 1e-5, 0.95, "x", 1, None, None, 9, 9)
    text = audit_text(audit.Findings(audit="x", bounds_by_group={"weak": (bound,)}))
    assert said in " ".join(text.split())
    assert "Verdict: nothing" in audit_text(audit.Findings(audit="x"))


def test_pairs_are_read_until_a_claim_breaks(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    files = []
    for side, shift in (("in", 4.0), ("out", 0.0)):
        path = tmp_path / side
        path.write_text("\n".join(map(str, generator.normal(shift, size=200))))
        files += [f"--scores-{side}", str(path)]
    given = [*files, "--delta", "1e-5", "--anytime"]
    broken = call(audit_command, *given, "--epsilon", "1")
    assert "all: (1, 1e-05)-DP is broken: evidence" in broken
    assert "of at most 200 pairs" in broken
    assert "Evidence of x or more comes once in x audits at most" in broken
    assert "Verdict: what is claimed of all is broken" in broken
    assert "no claim is refuted" in call(audit_command, *given, "--epsilon", "30")
    budgets = Budgets.from_groups([("a", 1.0, 0.5), ("b", 3.0, 0.5)], 40, 1e-5)
    made = assign(budgets, "scale", steps=4, expected_batch_size=8, clip_norm=1.0)
    (tmp_path / "plan.json").write_text(made.to_json())
    of_plan = [*given, "--plan", str(tmp_path / "plan.json")]
    assert "a: the plan's trade-off curve is broken" in call(
        audit_command, *of_plan, "--group", "a"
    )
    for more in (given, of_plan, [*files, "--delta", "1e-5", "--epsilon", "1"]):
        assert main(["audit", "worlds", *more]) == 2


def test_the_engine_under_a_run_is_audited_until_a_claim_breaks(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["audit", "anytime", str(run_folder)]
    for more in (["--max-samples", "0"], ["--confidence", "2"], ["--seed", "x"]):
        assert main([*words, *more]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
    assert main([*words, "--max-samples", "64"]) == 0
    assert "Verdict: no claim is refuted" in capsys.readouterr().out
    real = loop.noisy_mean

    def half(clipped: Any, stddev: float, divisor: float, *, generator: Any) -> Any:
        return real(clipped, stddev / 2, divisor, generator=generator)

    monkeypatch.setattr(loop, "noisy_mean", half)
    assert main([*words, "--max-samples", "1000", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    weak = document["watched"][1]
    assert (weak["group"], weak["rejected"]) == ("epsilon=8", True)
    assert weak["samples"] < 1000
    watched = tuple(Watched(**each) for each in document["watched"])
    page = report(audit.Findings(audit=document["audit"], watched=watched)).html
    assert 'aria-label="Claims watched"' in page
    assert ">broken<" in page

    def pressed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "noisy_mean", pressed)
    assert main(words) == 130
    assert not capsys.readouterr().out


def test_groups_of_canaries_are_in_either_file(tmp_path: Path, capsys: Any) -> None:
    """Groups stand beside the scores or beside the coins, and the findings are the same."""
    draws = np.random.default_rng(0)
    coins = draws.random(60) < 0.5
    table = pd.DataFrame({"id": range(60), "score": draws.normal(size=60) + coins})
    table["level"] = np.where(np.arange(60) % 2, "high", "low")
    table["included"] = coins.astype(int)
    found = []
    for own, others in ((["level"], []), ([], ["level"])):
        table[["id", "score", *own]].to_csv(tmp_path / "scores.csv", index=False)
        mixed = table[["id", "included", *others]].sample(frac=1, random_state=1)
        mixed.to_csv(tmp_path / "coins.csv", index=False)
        files = [str(tmp_path / "scores.csv"), "--coins", str(tmp_path / "coins.csv")]
        words = ["--ids", "id", "--group", "level", "--delta", "1e-5"]
        assert main(["audit", "canaries", "--canaries", *files, *words]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert "high: epsilon" in found[0]
