"""What holds of every command: one rule for δ, two names of a ledger, mistakes before torch."""

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from apiece.cli import run

PLAN = "--batch-size 20 --steps 3"
WITHOUT_DELTA = [
    f"plan --records 1000 --groups a:1:1 {PLAN}",
    "account --noise-multiplier 1",
    "explain --epsilon 1",
    f"risk --records 500 --epsilon 2 --others 1 {PLAN}",
    f"risk --each --records 500 --epsilon 2 --others 1 {PLAN}",
    "train --data people.csv --label answer --epsilon budget",
    "train first.toml",
    "query people.csv count(persons) --person who --epsilon 1",
    "ledger init people.db --data people.csv --person who --epsilon budget",
    "audit canaries --canaries scores.csv",
    "audit worlds --scores-in in.txt --scores-out in.txt",
]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    people = {"who": ["a", "b"], "budget": ["1", "2"], "answer": ["no", "yes"]}
    pd.DataFrame(people).to_csv("people.csv", index=False)
    pd.DataFrame({"score": [0.1, 0.9], "included": [0, 1]}).to_csv("scores.csv", index=False)
    Path("in.txt").write_text("1\n2\n")
    Path("first.toml").write_text('[data]\nsource = "german"\n[budgets]\nepsilon = "budget"\n')
    return tmp_path


@pytest.mark.parametrize("line", WITHOUT_DELTA)
def test_delta_has_no_default(line: str, there: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(there.iterdir())
    assert run(line.split(" ")) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "--delta: missing; an epsilon is a guarantee only with its delta" in captured.err
    assert sorted(there.iterdir()) == before


LEDGER = [
    "ledger init {} --data people.csv --person who --epsilon budget --delta 1e-5 --json",
    "ledger charge {} --analysis mine --pure 0.1 --json",
    "ledger commit {} --analysis mine --result 41 --json",
    "ledger status {} --json",
    "ledger receipt {} a --json",
    "ledger history {} --json",
    "ledger verify {} --json",
    "ledger export {} --out accounts.parquet --json",
    "query people.csv count(persons) --person who --rows-per-person 1 --epsilon 0.1 --delta 0 "
    "--ledger {} --json",
]


@pytest.mark.parametrize("address", ["people.db", "sqlite:///people.db"])
def test_a_ledger_is_named_by_its_path_or_its_address(
    address: str, there: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for line in LEDGER:
        assert run(line.format(address).split(" ")) == 0, capsys.readouterr().err
        json.loads(capsys.readouterr().out)
    out = f"ledger export {address} --out people.db.head"
    assert run(out.split(" ")) == 2, "its head file is no output"
    assert "people.db.head" in capsys.readouterr().err


MISTAKES = [
    "train nothing.toml",
    "train --data nothing.csv --label x --epsilon y --delta 1e-5 --schema s.toml",
    "train --resume nothing",
    "audit run nothing",
    "audit lira nothing",
    "audit model --model nothing.pt2 --members x.npz --others y.npz --delta 1e-5",
    "audit canaries --canaries nothing.csv --delta 1e-5",
    "audit shadows --shadows nothing.npz",
    "audit worlds --scores-in nothing.txt --scores-out in.txt --delta 1e-5",
    "report nothing",
    "plan --from nothing.json",
    "account nothing.json",
    "explain --plan nothing.json --group a",
    "query nothing.csv count(persons) --person who --rows-per-person 1 --epsilon 1 --delta 1e-6",
    "ledger status nothing.db",
    "schema nothing.csv --label x",
    "sensitivity a**2",
]


def test_mistakes_in_files_are_told_before_torch_is_imported(there: Path) -> None:
    code = (
        "import sys\n"
        "from apiece.cli import run\n"
        "for line in sys.argv[1:]:\n"
        "    print(run(line.split(' ')) > 0, 'torch' in sys.modules, line)"
    )
    words = [sys.executable, "-c", code, *MISTAKES]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == [f"True False {line}" for line in MISTAKES], found.stderr
    assert len(found.stderr.splitlines()) == len(MISTAKES)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("account - --delta 1e-5 <&-", "stdin: cannot be read (it is closed)"),
        ("account - --delta 1e-5 < no.txt", "stdin: cannot be read (it is not UTF-8 text)"),
        ("explain --epsilon 1 --delta 1e-5 > /dev/full", "standard output: cannot be written"),
        ("--help > /dev/full", "standard output: cannot be written"),
    ],
)
def test_a_stream_that_cannot_be_used_is_told_in_one_line(
    line: str, words: str, there: Path
) -> None:
    Path("no.txt").write_bytes(b"\xff\xfe")
    command = f"PYTHONIOENCODING=utf-8:strict {sys.executable} -m apiece {line}"
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
