"""Training on a ledger's account: charged first, once, for those who can pay; released once."""

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from apiece.audit.shadows import ShadowJob
from apiece.audit.stacked_training import model_confidences
from apiece.cli import run as main
from apiece.jobs.prepared import RunFolder
from apiece.ledger import Ledger
from sample_tables import AGE_AND_ANSWER as SCHEMA

from .options import ask, last

N = 120


@pytest.fixture
def setting(tmp_path: Path) -> Callable[..., list[str]]:
    """Write people and a ledger in which person 7 has next to no budget; return the arguments."""
    random = np.random.default_rng(3)
    age = random.integers(1, 99, N)
    frame = pd.DataFrame({"age": age, "answer": np.where(age > 50, "yes", "no")})
    frame["budget"], frame["person"] = 2.0, np.arange(N)
    frame["part"] = np.where(np.arange(N) % 4, "train", "test")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(np.arange(N), np.where(np.arange(N) == 7, 0.1, 40.0), 1e-4)

    def arguments(*more: str, out: str = "run") -> list[str]:
        frame.to_csv(tmp_path / "people.csv", index=False)
        return [
            "train", "--data", str(tmp_path / "people.csv"), "--schema",
            str(tmp_path / "schema.toml"), "--label", "answer", "--epsilon", "budget",
            "--delta", "1e-4", "--ids", "person", "--split", "part", "--strategy", "uniform",
            "--batch-size", "20", "--out", str(tmp_path / out), *more,
        ]  # fmt: skip

    arguments.frame = frame  # type: ignore[attr-defined]
    return arguments


def run(arguments: list[str], capsys: Any) -> tuple[int, str]:
    code = ask(arguments)
    said: str = capsys.readouterr().err
    assert "Traceback" not in said
    return code, said


def charged(tmp_path: Path, analysis: str = "model 1") -> list[str]:
    return ["--ledger", f"sqlite:///{tmp_path}/p.db", "--analysis", analysis]


def test_everyone_pays_once_for_the_whole_plan(setting: Any, tmp_path: Path, capsys: Any) -> None:
    arguments = setting("--steps", "6", *charged(tmp_path))
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    assert run(arguments, capsys)[0] == 0
    spent = ledger.spent(np.arange(N))
    trained = np.arange(N) % 4 > 0
    assert (spent[trained & (np.arange(N) != 7)] > 0).all()
    assert not spent[~trained].any()
    assert spent[7] == 0
    assert ledger.status("model 1") == "committed"
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["ledger"] == {"analysis": "model 1"}
    # The same name again, after the model went out: refused, and nothing is charged or written.
    code, said = run([*arguments, "--out", str(tmp_path / "again")], capsys)
    assert code == 2
    assert "already committed" in said
    assert ledger.spent(np.arange(N)).tolist() == spent.tolist()
    assert not (tmp_path / "again").exists()
    assert run(setting("--steps", "6", *charged(tmp_path, "model 2"), out="third"), capsys)[0] == 0
    np.testing.assert_allclose(ledger.spent(np.arange(N)), 2 * spent, rtol=1e-9)
    assert ledger.verify().ok


def test_every_model_of_a_job_is_charged(setting: Any, tmp_path: Path, capsys: Any) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    run(setting("--steps", "6", *charged(tmp_path)), capsys)
    one = ledger.spent([1])[0]
    run(setting("--steps", "6", "--seeds", "2", *charged(tmp_path, "m 2"), out="more"), capsys)
    assert 1.5 * one < ledger.spent([1])[0] <= 3 * one  # two together cost no more than apart


def test_who_cannot_pay_is_not_trained_on(
    setting: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the overspent person's row holds, the model is the same; a paying one's matters."""
    # No seed goes with a ledger, so that the operating system's randomness is made to repeat.
    monkeypatch.setattr("apiece.training.randomness.os.urandom", lambda size: b"\7" * size)
    models = {}
    for name, row in [("first", None), ("overspent", 7), ("paying", 5)]:
        if row is not None:
            setting.frame.loc[row, "age"] = 100 - setting.frame.loc[row, "age"]
        run(setting("--steps", "6", *charged(tmp_path, name), out=name), capsys)
        content = torch.load(tmp_path / name / "model.pt", weights_only=True)
        models[name] = content["state"]["0.weight"]
    assert torch.equal(models["first"], models["overspent"])
    assert not torch.equal(models["overspent"], models["paying"])


@pytest.mark.parametrize("resumes", [pytest.param(False, marks=pytest.mark.slow), True])
def test_killed_between_reserve_and_commit(
    resumes: bool, setting: Any, tmp_path: Path, capsys: Any
) -> None:
    """Started over in another folder, or gone on with in its own: it is charged once."""
    arguments = setting("--steps", "200", *charged(tmp_path))
    words = [sys.executable, "-c", "from apiece.cli import main; main()", *last(arguments)]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    log, waited = tmp_path / "run" / "log.jsonl", time.monotonic() + 120
    while not (log.exists() and '"trained"' in log.read_text()):
        assert time.monotonic() < waited
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    assert ledger.status("model 1") == "reserved"
    assert not (tmp_path / "run" / "model.pt").exists()
    spent = ledger.spent(np.arange(N))
    assert spent.any()
    # Other settings are another analysis; the same ones are not charged again.
    for more in (["--steps", "201"], ["--steps", "200", "--learning-rate", ".123"]):
        other = setting(*more, *charged(tmp_path), out="other")
        code, said = run(other, capsys)
        assert (code, "other terms" in said) == (2, True)
        assert not (tmp_path / "other").exists()
    again = [*arguments, "--out", str(tmp_path / "again")]
    assert run(["train", "--resume", str(tmp_path / "run")] if resumes else again, capsys)[0] == 0
    assert ledger.status("model 1") == "committed"
    assert ledger.spent(np.arange(N)).tolist() == spent.tolist()
    assert ledger.verify().ok


def test_cut_between_release_and_the_last_file(
    setting: Any, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run goes on, with those who paid; on other terms nothing does."""
    arguments, real = setting("--steps", "6", *charged(tmp_path)), RunFolder.write

    def cut(folder: RunFolder, name: str, content: Any) -> None:
        if name == "model.pt":
            raise KeyboardInterrupt
        real(folder, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "write", cut)
        assert run(arguments, capsys)[0] == 130
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    spent, released = ledger.spent(np.arange(N)).tolist(), ledger.result("model 1")
    config = tmp_path / "run" / "config.toml"
    written = config.read_text()
    config.write_text(written.replace("learning_rate = ", "learning_rate = 1"))
    assert config.read_text() != written
    code, said = run(["train", "--resume", str(tmp_path / "run")], capsys)
    assert (code, "other terms" in said) == (2, True)
    config.write_text(written)
    assert run(["train", "--resume", str(tmp_path / "run")], capsys)[0] == 0
    assert (tmp_path / "run" / "model.pt").exists()
    assert ledger.result("model 1") == released
    assert ledger.spent(np.arange(N)).tolist() == spent


def test_nobody_can_pay(setting: Any, tmp_path: Path, capsys: Any) -> None:
    Ledger.open(f"sqlite:///{tmp_path}/poor.db").enroll(np.arange(N), 0.01, 1e-9)
    poor = ["--ledger", f"sqlite:///{tmp_path}/poor.db", "--analysis", "m"]
    code, said = run(setting("--steps", "6", *poor), capsys)
    assert code == 2
    assert "nobody's account can bear the plan" in said
    assert not (tmp_path / "run").exists()


BAD = {
    "no name": (["--ledger", "DB"], "--analysis NAME together"),
    "no ledger": (["--analysis", "m"], "--ledger URL"),
    "not there": (["--ledger", "DB.none", "--analysis", "m"], "apiece ledger init"),
    "unknown person": (["--ledger", "DB", "--analysis", "m"], "has no account"),
    "words for numbers": (["--ledger", "DB", "--analysis", "m"], "whole numbers"),
    "drawn anew": (["--ledger", "DB", "--analysis", "m"], "give --split"),
    "a seed": (["--ledger", "DB", "--analysis", "m", "--seed", "0"], "leave the seed out"),
    "no ids": (["--ledger", "DB", "--analysis", "m"], "needs --ids"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, setting: Any, tmp_path: Path, capsys: Any) -> None:
    options, message = BAD[case]
    frame = setting.frame
    if case == "unknown person":
        frame.loc[1, "person"] = 5000
    if case == "words for numbers":
        frame["person"] = [f"p{i}" for i in range(N)]
    words = setting(*[o.replace("DB", f"sqlite:///{tmp_path}/p.db") for o in options])
    for name in {"drawn anew": ["--split"], "no ids": ["--ids"]}.get(case, []):
        place = words.index(name)
        del words[place : place + 2]
    if case == "drawn anew":
        frame.drop(columns="part").to_csv(tmp_path / "people.csv", index=False)
    code, said = run(words, capsys)
    assert code == 2
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_documented_order_of_things_works(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worked example of docs/ledger.md: a training asks for what the account holds."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(3)
    age = random.integers(1, 99, 600)
    consent = random.choice([2.0, 4.0, 6.0], 600)
    frame = pd.DataFrame({"age": age, "answer": np.where(age > 50, "yes", "no")})
    frame["person"] = [f"p{k}" for k in range(600)]
    frame["consent"], frame["this_training"] = consent, 0.98 * consent
    frame["part"] = np.where(np.arange(600) % 4, "train", "test")
    frame.to_csv("people.csv", index=False)
    Path("schema.toml").write_text(SCHEMA)
    guide = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text()
    block = guide[guide.index("<!-- worked example -->") :].split("```bash\n")[1].split("```")[0]
    commands = block.replace("\\\n", " ").strip().splitlines()
    assert len(commands) == 3
    for line in commands:
        words = shlex.split(line)
        assert words[0] == "apiece"
        assert ask(words[1:]) == 0, capsys.readouterr().err
    ledger = Ledger.open("people.db")
    trained = frame["part"] == "train"
    spent = ledger.spent(frame["person"][trained].tolist())
    left = ledger.remaining(frame["person"][trained].tolist())
    assert (spent > 0.9 * (spent + left)).all()
    assert ledger.verify().ok


def test_a_plan_that_nobody_can_pay_for_says_what_accounts_need(
    setting: Any, tmp_path: Path, capsys: Any
) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/low.db")
    ledger.enroll(np.arange(N), 1.9, 1e-4)  # less than the plan asks
    low = ["--ledger", f"sqlite:///{tmp_path}/low.db", "--analysis", "m"]
    code, said = run(setting("--steps", "6", *low), capsys)
    assert code == 2
    needs = float(re.findall(r"needs epsilon from ([0-9.]+)", said)[0])
    assert "under a new name" in said
    ledger.enroll(np.arange(N), needs * 1.001, 1e-4)
    assert run(setting("--steps", "6", *low[:-1], "m2"), capsys)[0] == 0
    assert (ledger.spent(np.arange(N)[np.arange(N) % 4 > 0]) > 0).all()


@pytest.mark.parametrize("unit", ["record", "person"])
def test_who_withdrew_is_in_no_shadow_model_and_no_score(
    setting: Any, tmp_path: Path, capsys: Any, monkeypatch: Any, unit: str
) -> None:
    """4 is held out, 5 and 6 are trained on: read from what models and scores are of."""
    arguments = setting("--steps", "2", *charged(tmp_path))
    if unit == "person":
        arguments = ["--person" if each == "--ids" else each for each in arguments]
        arguments += ["--rows-per-person", "1"]
    assert run(arguments, capsys)[0] == 0
    ledger, folder = Ledger.open(f"sqlite:///{tmp_path}/p.db"), str(tmp_path / "run")
    trained, scored = list[Any](), list[Any]()
    train_block = ShadowJob.train_block

    def noted(self: ShadowJob, block: int) -> Any:
        trained.append((set(map(int, self.pool.ids)), self.pool.inputs.shape[0], block))
        return train_block(self, block)

    def confidences(network: Any, features: Any, labels: Any) -> Any:
        scored.append(len(features))
        return model_confidences(network, features, labels)

    monkeypatch.setattr(ShadowJob, "train_block", noted)
    monkeypatch.setattr("apiece.audit.stacked_training.model_confidences", confidences)

    def audited(*words: str, code: int = 0) -> str:
        trained.clear()
        scored.clear()
        assert main(["audit", *words, "--json"]) == code
        said: str = capsys.readouterr().err
        return said

    everyone = {i for i in range(N) if i % 4}
    shadows = ["lira", folder, "--models", "20", "--out", str(tmp_path / "shadows")]
    audited(*shadows)
    assert trained == [(everyone, 90, 0), (everyone, 90, 1)]
    audited("run", folder)
    assert scored == [90, 30]
    ledger.withdraw([4, 5, 6])
    audited("run", folder)
    assert scored == [88, 29]
    assert "holds shadow models of another job" in audited(*shadows, code=2)
    shadows[-1] = str(tmp_path / "second")
    audited(*shadows)
    assert trained == [(everyone - {5, 6}, 88, 0), (everyone - {5, 6}, 88, 1)]

    def leaving(self: ShadowJob, block: int) -> Any:
        ledger.withdraw([9])
        return noted(self, block)

    monkeypatch.setattr(ShadowJob, "train_block", leaving)
    shadows[-1] = str(tmp_path / "third")
    said = audited(*shadows, code=1)
    assert "somebody in these shadow models has withdrawn" in said
    assert len(trained) == 1
    (tmp_path / "p.db").rename(tmp_path / "kept.db")
    (tmp_path / "p.db.head").rename(tmp_path / "kept.db.head")
    assert "no ledger there" in audited("run", folder, code=2)
    Ledger.open(f"sqlite:///{tmp_path}/p.db")  # another, from which nobody withdrew
    assert "unknown to this ledger" in audited("run", folder, code=2)
