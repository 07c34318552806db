"""What apiece audit finds, from each kind of input."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from apiece import audit
from apiece.audit.records import ShadowScores
from apiece.audit.splits import biregular
from apiece.cli import run as main
from apiece.cli.audit import command as audit_command

from .audits import call, canaries, write

DELTA = ("--delta", "1e-5")


def test_two_worlds(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    ins, outs = generator.normal(3, 1, 300), generator.normal(size=300)
    files = [
        *DELTA,
        "--scores-in",
        write(tmp_path / "in", ins),
        "--scores-out",
        write(tmp_path / "out", outs),
    ]
    document = json.loads(call(audit_command, *files, "--json"))
    for found, method in zip(document["lower_bounds"], ("clopper-pearson", "gdp"), strict=True):
        assert found == audit.lower_bound(ins, outs, delta=1e-5, method=method).to_dict()
    assert "epsilon >=" in call(audit_command, *files)


def test_canaries_by_group(tmp_path: Path) -> None:
    file = canaries(tmp_path / "c.csv")
    document = json.loads(
        call(audit_command, *DELTA, "--canaries", file, "--group", "who", "--json")
    )
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
    files = [
        *DELTA,
        "--canaries",
        str(tmp_path / "scores.csv"),
        "--coins",
        str(tmp_path / "coins.csv"),
    ]
    joined = call(audit_command, *files, "--ids", "person", "--group", "who", "--json")
    assert joined == call(audit_command, *DELTA, "--canaries", whole, "--group", "who", "--json")
    assert "weak: epsilon >= " in call(audit_command, *files, "--ids", "person", "--group", "who")


def test_one_of_the_files_may_be_parquet_beside_a_csv_file_of_another_kind(tmp_path: Path) -> None:
    frame = pd.read_csv(canaries(tmp_path / "c.csv")).assign(id=lambda f: f.index + 7)
    frame[["id", "score"]].to_csv(tmp_path / "scores.csv", index=False, sep=";")
    frame.drop(columns="score").to_parquet(tmp_path / "coins.parquet")
    files = [
        *DELTA,
        "--canaries",
        str(tmp_path / "scores.csv"),
        "--coins",
        str(tmp_path / "coins.parquet"),
    ]
    whole = call(audit_command, *DELTA, "--canaries", str(tmp_path / "c.csv"), "--json")
    assert call(audit_command, *files, "--separator", ";", "--json") == whole


@pytest.mark.parametrize("key", ["--ids", "--person"])
@pytest.mark.parametrize("padded", ["scores.parquet", "coins.parquet"])
def test_ids_that_differ_in_blanks_are_not_merged(
    tmp_path: Path, key: str, padded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame({"who": ["a", "b", "c"], "score": [1.0, 2, 3], "included": [1, 0, 1]})
    for name in ("scores.parquet", "coins.parquet"):
        change = {"b": "a "} if name == padded else {}
        table.replace({"who": change}).to_parquet(tmp_path / name)
    files = [*DELTA, "--canaries", str(tmp_path / "scores.parquet")]
    files += ["--coins", str(tmp_path / "coins.parquet")]
    assert main(["audit", *files, key, "who"]) == 2
    assert "has blanks at an end" in capsys.readouterr().err


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
    whole = [*DELTA, "--canaries", str(folder / "rows.csv")]
    return whole, [
        *DELTA,
        "--canaries",
        str(folder / "scores.csv"),
        "--coins",
        str(folder / "coins.csv"),
    ]


def test_canaries_may_be_persons_with_many_rows(tmp_path: Path) -> None:
    for files in rows_of_canaries(tmp_path):
        said = call(audit_command, *files, "--person", "person", "--group", "who", "--json")
        found = json.loads(said)
        assert found.pop("unit") == "person"
        expected = call(
            audit_command, *DELTA, "--canaries", str(tmp_path / "c.csv"), "--group", "who", "--json"
        )
        assert found["lower_bounds"] == json.loads(expected)["lower_bounds"]
        assert found["lower_bounds_by_group"] == json.loads(expected)["lower_bounds_by_group"]
        assert "one run, by person" in call(audit_command, *files, "--person", "person")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"included": [1, 0, 1]}, "column 'included': rows of one person differ"),
        ({"who": ["a", "b", "a"]}, "column 'who': rows of one person differ"),
        ({"person": ["p", "", "q"]}, "column 'person', row 2: empty (1 such rows)"),
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
    words = [*DELTA, "--canaries", str(tmp_path / "c.csv"), "--person", "person", "--group", "who"]
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
        [*DELTA, "--trust-model", "--model", str(tmp_path / "m.pt2")],
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
    split = biregular(16, np.arange(60) % 2, generator=generator)
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
