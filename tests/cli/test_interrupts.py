"""Ctrl-C: either the whole answer and 0, or nothing and 130, and never a traceback."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from apiece import Ledger, cli
from apiece.cli import _command
from apiece.queries import Session

QUERY = "query t.csv count(persons) --person id --epsilon 0.5 --delta 0 --ledger l.db --json"
COMMANDS = (
    QUERY + " --analysis May",
    "account --noise-multiplier 1 --sampling-probability .02 --steps 99 --delta 1e-5 --json",
    "plan --records 900 --groups a:1:.5,b:3:.5 --delta 1e-5 --batch-size 9 --steps 99 --out p.json "
    "--json",
    "schema t.csv --label who --out s.toml",
    "ledger charge l.db --pure 0.1 --analysis own --json",
    "ledger export l.db --out accounts.parquet --json",
    "ledger verify l.db --json",
)


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    people = pd.DataFrame({"id": [f"p{k}" for k in range(500)], "who": "x"})
    people.to_csv("t.csv", index=False)
    Ledger.open("sqlite:///l.db").enroll(people["id"].to_list(), 9.0, 1e-5)
    return tmp_path


def test_what_is_being_printed_is_printed_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_command.Printed, "begun", False)
    with pytest.raises(KeyboardInterrupt):
        cli._handle_interrupt()
    assert _command.Printed.interrupted
    monkeypatch.setattr(_command.Printed, "begun", True)
    cli._handle_interrupt()


def test_a_query_that_is_interrupted_names_the_analysis_that_may_be_charged(
    there: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = Session._answer

    def late(*given: object) -> object:
        answered(*given)  # charged, and not yet recorded
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_answer", late)
        assert cli.run(QUERY.split(" ")) == 130
    out, err = capsys.readouterr()
    assert not out
    name = err.split("--analysis ")[1].split(" ")[0]
    spent = Ledger.open("sqlite:///l.db").spent(["p1"])
    assert cli.run([*QUERY.split(" "), "--analysis", name]) == 0
    assert json.loads(capsys.readouterr().out)["analysis_id"] == name
    assert Ledger.open("sqlite:///l.db").spent(["p1"]) == spent


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(line.split(" ")[:2]))
def test_ctrl_c_at_any_moment(line: str, there: Path) -> None:
    rng, words = random.Random(line), [sys.executable, "-m", "apiece", *line.split(" ")]
    begun = time.monotonic()
    subprocess.run(words, check=True, capture_output=True)
    whole = time.monotonic() - begun
    for _ in range(12):
        for path in (*there.glob("*.json"), *there.glob("*.parquet"), *there.glob("*.toml")):
            path.unlink()
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        time.sleep(rng.uniform(0.15, 1.1) * whole)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        if process.returncode == 0:
            assert not out if "--json" not in line else json.loads(out)
        else:
            # −2: Python itself had not begun
            assert process.returncode in (130, -signal.SIGINT), err
            assert not out
        if process.returncode != -signal.SIGINT:
            assert "Traceback" not in err, err
        for path in there.glob("*.json"):
            json.loads(path.read_text())
        for path in there.glob("*.parquet"):
            pd.read_parquet(path)
