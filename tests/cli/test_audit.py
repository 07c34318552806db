"""apiece audit and apiece attack: what they print, and one line for every mistake."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import CliRunner

from apiece import audit
from apiece.assignment import assign
from apiece.audit.records import ShadowScores
from apiece.audit.shadows import Arrays, ShadowJob
from apiece.budgets import Budgets
from apiece.cli import run as main
from apiece.cli.attack import command as attack_command
from apiece.cli.audit import _kind_of
from apiece.cli.audit import command as audit_command
from apiece.cli.audit import text as audit_text

ATTACK = [
    "--records",
    "200",
    "--epsilon",
    "8",
    "--delta",
    "1e-6",
    "--others",
    "1,4",
    "--batch-size",
    "20",
    "--steps",
    "60",
    "--strategy",
    "scale",
]


def call(command: Any, *arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def write(path: Path, values: np.ndarray) -> str:
    path.write_text("\n".join(f"{v:.17g}" for v in values) + "\n")
    return str(path)


def test_two_worlds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    ins, outs = generator.normal(3, 1, 300), generator.normal(size=300)
    files = [
        "--scores-in",
        write(tmp_path / "in", ins),
        "--scores-out",
        write(tmp_path / "out", outs),
    ]
    document = json.loads(call(audit_command, *files, "--delta", "1e-5", "--json"))
    for found, method in zip(document["lower_bounds"], ("clopper-pearson", "gdp"), strict=True):
        assert found == audit.lower_bound(ins, outs, delta=1e-5, method=method).to_dict()
    assert "epsilon >=" in call(audit_command, *files)


def canaries(path: Path, size: int = 400) -> str:
    generator = np.random.default_rng(1)
    included = generator.random(size) < 0.5
    group = np.where(np.arange(size) % 2, "weak", "strict")
    score = generator.normal(size=size) + included * np.where(group == "weak", 6.0, 0.0)
    pd.DataFrame({"score": score, "included": included, "who": group}).to_csv(path, index=False)
    return str(path)


def test_canaries_by_group(tmp_path: Path) -> None:
    file = canaries(tmp_path / "c.csv")
    document = json.loads(call(audit_command, "--canaries", file, "--group", "who", "--json"))
    groups = document["lower_bounds_by_group"]
    assert groups["weak"][0]["epsilon"] > 1
    assert groups["strict"][0]["epsilon"] == 0
    assert document["roc"]["weak"]["auc"] > 0.95 > document["roc"]["all"]["auc"]
    assert document["lower_bounds"][0]["epsilon"] > 0


def test_coins_are_joined_by_id(tmp_path: Path) -> None:
    """The rows of the two files stand in different orders, and nothing changes."""
    whole = canaries(tmp_path / "c.csv")
    frame = pd.read_csv(whole)
    frame["person"] = [f"p{i}" for i in range(len(frame))]
    frame[["person", "score"]].to_csv(tmp_path / "scores.csv", index=False)
    mixed = frame[["person", "included", "who"]].sample(frac=1, random_state=0)
    mixed.to_csv(tmp_path / "coins.csv", index=False)
    files = ["--canaries", str(tmp_path / "scores.csv"), "--coins", str(tmp_path / "coins.csv")]
    joined = call(audit_command, *files, "--ids", "person", "--group", "who", "--json")
    assert joined == call(audit_command, "--canaries", whole, "--group", "who", "--json")
    assert "weak: epsilon >= " in call(audit_command, *files, "--ids", "person", "--group", "who")


def rows_of_canaries(folder: Path) -> tuple[list[str], list[str]]:
    """Write a table of rows of persons, whole and with the coins apart; and of means a person."""
    frame = pd.read_csv(canaries(folder / "c.csv"))
    frame["person"] = [f"p{i:03d}" for i in range(len(frame))]
    rows = frame.loc[frame.index.repeat(np.arange(len(frame)) % 3 + 1)]
    step = np.array([-1.0, 1.0, 0.0])[rows.groupby("person").cumcount()]  # means stay
    step[(rows.groupby("person").score.transform("size") == 1).to_numpy()] = 0
    rows = rows.assign(score=rows.score + step).sample(frac=1, random_state=0)
    rows.to_csv(folder / "rows.csv", index=False)
    rows[["person", "score"]].to_csv(folder / "scores.csv", index=False)
    frame.sample(frac=1, random_state=1).to_csv(folder / "coins.csv", index=False)
    whole = ["--canaries", str(folder / "rows.csv")]
    return whole, ["--canaries", str(folder / "scores.csv"), "--coins", str(folder / "coins.csv")]


def test_canaries_may_be_persons_with_many_rows(tmp_path: Path) -> None:
    for files in rows_of_canaries(tmp_path):
        said = call(audit_command, *files, "--person", "person", "--group", "who", "--json")
        found = json.loads(said)
        assert found.pop("unit") == "person"
        expected = call(
            audit_command, "--canaries", str(tmp_path / "c.csv"), "--group", "who", "--json"
        )
        assert found["lower_bounds"] == json.loads(expected)["lower_bounds"]
        assert found["lower_bounds_by_group"] == json.loads(expected)["lower_bounds_by_group"]
        assert "one run, by person" in call(audit_command, *files, "--person", "person")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"included": [1, 0, 1]}, "column 'included': differs between the rows of one person"),
        ({"who": ["a", "b", "a"]}, "column 'who': differs"),
        ({"person": ["p", "", "q"]}, "column 'person': 1 rows name no person"),
        ({"score": [1.0, None, 2.0]}, "not a number"),
        ({"included": ["yes", "yes", "no"]}, "0 or 1"),
    ],
)
def test_canaries_that_are_no_persons(
    tmp_path: Path,
    change: dict[str, Any],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = {
        "person": ["p", "p", "q"],
        "score": [1.0, 2, 3],
        "included": [1, 1, 0],
        "who": ["a"] * 3,
    }
    pd.DataFrame({**table, **change}).to_csv(tmp_path / "c.csv", index=False)
    words = ["--canaries", str(tmp_path / "c.csv"), "--person", "person", "--group", "who"]
    assert main(["audit", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert message in captured.err


def test_torch_model(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(model, (torch.randn(5, 4),), dynamic_shapes=batch)
    torch.export.save(program, tmp_path / "m.pt2")
    generator, arguments = (
        np.random.default_rng(4),
        ["--trust-model", "--model", str(tmp_path / "m.pt2")],
    )
    for name in ("members", "others"):
        inputs, targets = generator.normal(size=(60, 4)), generator.integers(0, 3, 60)
        groups = np.where(np.arange(60) % 2, "weak", "strict")
        np.savez(tmp_path / f"{name}.npz", inputs=inputs, targets=targets, groups=groups)
        arguments += [f"--{name}", str(tmp_path / f"{name}.npz")]
    document = json.loads(call(audit_command, *arguments, "--json"))
    assert set(document["roc"]) == {"all", "strict", "weak"}
    assert document["canaries"] == 60
    assert [b["epsilon"] for b in document["lower_bounds"]] == [0, 0]


def test_shadows(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    split = audit.biregular(16, np.arange(60) % 2, generator=generator)
    groups = np.where(np.arange(60) % 2, "weak", "strict")
    confidences = generator.normal(size=split.shape) + split * np.where(groups == "weak", 3.0, 0.0)
    ShadowScores(np.arange(60), groups, split, confidences).save(tmp_path / "s.npz")
    output = call(audit_command, "--shadows", str(tmp_path / "s.npz"), "--json")
    document = json.loads(output)
    assert document["roc"]["weak"]["auc"] > 0.9
    assert 0.35 < document["roc"]["strict"]["auc"] < 0.65
    assert document["privacy_score"]["weak"]["mean"] > document["privacy_score"]["strict"]["mean"]
    assert document["differences"][0]["groups"] == ["strict", "weak"]
    assert document["differences"][0]["p_value"] < 1e-6
    assert "weak: AUC" in call(audit_command, "--shadows", str(tmp_path / "s.npz"))


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run on a small table in which the label is easy to learn by heart."""
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(3)
    frame = pd.DataFrame(
        {
            "x": generator.normal(size=160).round(4),
            "y": generator.normal(size=160).round(4),
            "label": generator.integers(0, 2, 160).astype(str),
            "budget": np.where(np.arange(160) % 2, 8, 2),
        }
    )
    frame.to_csv(folder / "people.csv", index=False)
    (folder / "people.toml").write_text(
        '[columns.x]\nkind = "numeric"\nlower = -4\nupper = 4\n'
        '[columns.y]\nkind = "numeric"\nlower = -4\nupper = 4\n'
        '[columns.label]\nkind = "categorical"\nvalues = ["0", "1"]\n'
    )
    status = main(
        [
            "train",
            "--data",
            str(folder / "people.csv"),
            "--schema",
            str(folder / "people.toml"),
            "--label",
            "label",
            "--epsilon",
            "budget",
            "--delta",
            "1e-5",
            "--strategy",
            "scale",
            "--batch-size",
            "32",
            "--steps",
            "8",
            "--seed",
            "0",
            "--test-share",
            "0.4",
            "--out",
            str(folder / "run"),
        ]
    )
    assert status == 0
    return folder / "run"


def test_run_folder(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(run_folder), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["roc"]) >= {"all"}
    curves = document["roc"]
    assert curves["all"]["members"] + curves["all"]["others"] == 160
    assert (
        curves["epsilon=2"]["members"] + curves["epsilon=8"]["members"]
        == (curves["all"]["members"])
    )
    assert [b["method"] for b in document["lower_bounds"]] == ["one-run dp", "one-run gdp"]


def test_a_release_with_a_drawn_split_is_not_audited_on_other_coins(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn anew, the split compared members with members: nothing could leak."""
    released = tmp_path / "released"
    shutil.copytree(run_folder, released)
    config = (released / "config.toml").read_text()
    assert "seed = 0\n" in config
    (released / "config.toml").write_text(config.replace("seed = 0\n", ""))
    assert main(["audit", str(released)]) == 2
    said = capsys.readouterr().err
    assert "secret coins" in said
    assert "--split COLUMN" in said
    # shadow models are trained anew, on coins of the audit's own seed: the same each time
    arguments = ["audit", str(released), "--models", "8", "--out", str(tmp_path / "b"), "--json"]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first


def test_shadow_models_of_a_run(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", str(run_folder), "--models", "8", "--out", str(tmp_path / "a"), "--json"]
    assert main(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["models"] == 8
    assert "Only 8 models" in audit_text(audit.Findings(audit="x", models=8))
    assert "Only" not in audit_text(audit.Findings(audit="x", models=64))
    assert first["records"] == first["roc"]["all"]["members"] / 8 * 2
    stamp = (tmp_path / "a" / "block-000000.npz").stat().st_mtime_ns
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert (tmp_path / "a" / "block-000000.npz").stat().st_mtime_ns == stamp
    assert main(["audit", "--shadows", str(tmp_path / "a" / "scores.npz"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["roc"] == first["roc"]


def test_shadow_models_in_a_folder_that_is_of_no_use(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["audit", str(run_folder), "--models", "6", "--out"]
    mine = tmp_path / "mine"
    assert main([*arguments, str(mine)]) == 0
    before = {path.name: path.read_bytes() for path in mine.iterdir()}
    capsys.readouterr()
    (tmp_path / "file").write_text("x")
    for changed, words in (
        (["--seed", "1"], f"{mine}: holds shadow models of another job (6 models, this one has 6;"),
        (["--models", "8"], f"{mine}: holds shadow models of another job (6 models, this one has"),
        (["--out", str(tmp_path / "file")], "file/job.json: cannot be written"),
        (["--variant", "onlin"], "did you mean 'online'"),
        (["--processes", "0"], "processes = 0"),
    ):
        assert main([*arguments, str(mine), *changed]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert words in captured.err
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before


def test_an_interrupted_shadow_audit_says_what_is_kept_and_goes_on(
    run_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ["audit", str(run_folder), "--models", "32", "--json"]
    out = tmp_path / "a"
    original, trained = ShadowJob.train_block, list[int]()

    def interrupted(self: ShadowJob, block: int) -> Arrays:
        if block == 1:
            raise KeyboardInterrupt
        return original(self, block)

    def counted(self: ShadowJob, block: int) -> Arrays:
        trained.append(block)
        return original(self, block)

    monkeypatch.setattr(ShadowJob, "train_block", interrupted)
    assert main([*arguments, "--out", str(out)]) == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert f"interrupted with 1 of 2 blocks of models in {out}" in said.err
    assert main(arguments) == 130
    assert "nothing is kept: with --out" in capsys.readouterr().err
    monkeypatch.setattr(ShadowJob, "train_block", counted)
    assert main([*arguments, "--out", str(out)]) == 0
    assert trained == [1]
    resumed = json.loads(capsys.readouterr().out)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out) == resumed


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
    split = audit.biregular(8, np.repeat([0, 1], 4), generator=np.random.default_rng(0))
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
        (["--scores-in", "none.txt"], "--scores-out: missing"),
        (["--scores-in", "none.txt", "--scores-out", "none.txt"], "none.txt"),
        (["--shadows", "none.npz"], "No such file"),
        (["--canaries", "none.csv"], "none.csv"),
        (["no-such-run"], "config"),
        (["--canaries", "{canaries}", "--score", "x"], "column 'x'"),
        (["--canaries", "{canaries}", "--score", "who"], "not a number"),
        (["--canaries", "{canaries}", "--included", "score"], "0 or 1"),
        (["--scores-in", "{bad}", "--scores-out", "{bad}"], "entry 2 = 'x'"),
        (["--canaries", "{canaries}", "--delta", "2"], "delta"),
        (["--scores-in", "{nan}", "--scores-out", "{good}"], "scores_in[1] = nan"),
        (["--canaries", "{nan_canaries}"], "nan"),
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
            "--delta: goes with run or model or worlds or canaries, not with lira",
        ),
        ([*WORLDS, "--coins", "{fewer}"], "goes with canaries, not with worlds"),
        (["--shadows", "{lopsided}"], "half full"),
        (["--shadows", "{nan_shadows}"], "NaN"),
        ([*WORLDS, "--plan", "{plan}", "--plan", "{other_plan}"], "plan of world 1: differs"),
        ([*WORLDS, "--plan", "{good}"], "plan: not JSON"),
        (
            ["--trust-model", "--model", "{good}", "--members", "{good}", "--others", "{good}"],
            "not a zip file",
        ),
        (["--model", "{good}"], "--members, --others: missing"),
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


def test_attack_prints_the_exposures() -> None:
    document = json.loads(call(attack_command, *ATTACK, "--json"))
    assert document["attack"] == "budget manipulation"
    assert [row["others"] for row in document["rows"]] == ["as asked", "at most 1", "at most 4"]
    for row in document["rows"]:
        assert row["epsilon_spent"] <= 8 * (1 + 1e-9)
        assert 0 < row["advantage"] < 1
    assert "as asked" in call(attack_command, *ATTACK)
    shares = json.loads(call(attack_command, *ATTACK, "--shares", "0.5,1", "--json"))
    assert shares["attack"] == "collusion"
    assert len(shares["rows"]) == 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (["--others", "two"], "--others"),
        (["--others", "-1"], "decoy"),
        (["--strategy", "scael"], "did you mean 'scale'"),
        (["--shares", "2"], "share"),
        (["--records", "1"], "--records"),
        (["--strategy", "hybrid"], "--excess: missing"),
        (["--excess", "0.02"], "--excess: scale keeps no bound"),
    ],
)
def test_attack_mistakes(change: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["attack", *ATTACK, *change]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err


def test_attack_needs_no_torch() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from apiece.cli import run\n"
        f"status = run(['attack', *{ATTACK!r}, '--json'])\n"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


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
    assert _kind_of(given) == meant


def test_every_kind_has_its_own_help_and_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", "--help"]) == 0
    assert "apiece audit run runs/first --delta 1e-5" in capsys.readouterr().out
    for name, kind in audit_command.commands.items():
        assert main(["audit", name, "--help"]) == 0
        said = capsys.readouterr().out
        assert all(option.opts[0] in said for option in kind.params if option.opts[0][0] == "-")
    file = canaries(tmp_path / "c.csv")
    named = call(audit_command, "canaries", "--canaries", file, "--json")
    assert named == call(audit_command, "--canaries", file, "--json")


@pytest.mark.parametrize(
    ("epsilon", "said"), [(0.0, "no leak is shown"), (0.7, "ε of weak is at least 0.7")]
)
def test_a_plain_verdict(epsilon: float, said: str) -> None:
    bound = audit.LowerBound(epsilon, 1e-5, 0.95, "x", 1, None, None, 9, 9)
    text = audit_text(audit.Findings(audit="x", bounds_by_group={"weak": (bound,)}))
    assert said in " ".join(text.split())
    assert "Verdict: nothing" in audit_text(audit.Findings(audit="x"))
