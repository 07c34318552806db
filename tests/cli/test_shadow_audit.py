"""apiece audit RUN --models K: shadow models of a run's table."""

import json
from pathlib import Path

import pytest

from apiece import audit
from apiece.audit.shadows import Arrays, ShadowJob
from apiece.cli import run as main
from apiece.reporting.closing import findings_text as audit_text

from .options import last


def test_a_release_with_a_drawn_split_is_not_audited_on_other_coins(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Drawn anew, the split compared members with members: nothing could leak."""
    released = tmp_path / "released"
    config = (run_folder / "config.toml").read_text()
    assert "seed = 0\n" in config
    (tmp_path / "job.toml").write_text(config.replace("seed = 0\n", ""))
    assert main(["train", str(tmp_path / "job.toml"), "--out", str(released)]) == 0
    capsys.readouterr()
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
        (["--processes", "2", "--cluster"], "--processes: with --cluster Ray decides"),
        (["--address", "127.0.0.1:1"], "add --cluster to train there"),
    ):
        assert main(last([*arguments, str(mine), *changed])) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1
        assert words in captured.err
    assert {path.name: path.read_bytes() for path in mine.iterdir()} == before


def test_what_is_said_in_training_is_no_part_of_the_answer(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    original = ShadowJob.train_block

    def talking(self: ShadowJob, block: int) -> Arrays:
        print("(raylet) a worker died")
        return original(self, block)

    monkeypatch.setattr(ShadowJob, "train_block", talking)
    assert main(["audit", str(run_folder), "--models", "6", "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["models"] == 6
    assert "a worker died" in said.err


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
