"""`--json` of every command prints one JSON document on stdout, and nothing else."""

import json
from pathlib import Path

import click
import pytest

from apiece import Ledger, cli

from .test_outputs import OFFER, commands, folder, made

__all__ = ["folder", "made"]  # the fixtures

SCALE = "--strategy scale --batch-size 6 --steps 2 --delta 1e-5"
LINES = {
    "account": ["account plan.json", "account --noise-multiplier 2 --delta 1e-5"],
    "audit canaries": ["audit canaries --canaries c.csv --delta 1e-5"],
    "audit run": ["audit run run"],
    "audit worlds": ["audit worlds --scores-in in.txt --scores-out out.txt --delta 1e-5"],
    "explain": ["explain --epsilon 1 --delta 1e-5", "explain --plan plan.json --group epsilon=2"],
    "ledger backup": ["ledger backup l.db --out l.backup"],
    "ledger charge": ["ledger charge l.db --pure .1 --analysis own"],
    "ledger commit": ["ledger commit l.db --analysis first --result 3"],
    "ledger export": ["ledger export l.db --out accounts.parquet"],
    "ledger head": ["ledger head l.db"],
    "ledger history": ["ledger history l.db"],
    "ledger init": ["ledger init new.db --data t.csv --person id --epsilon e --delta 1e-5"],
    "ledger policy": ["ledger policy l.db policy.toml"],
    "ledger receipt": ["ledger receipt l.db p7"],
    "ledger status": ["ledger status l.db", "ledger status l.db --analysis first"],
    "ledger verify": ["ledger verify l.db"],
    "plan": [
        f"plan --data t.csv --epsilon e {SCALE}",
        f"plan --data t.csv --epsilon e {SCALE} --gaussian",
        f"plan --data t.csv --epsilon e {SCALE} --compare",
    ],
    "query": ["query t.csv count(persons) --person id --epsilon 1 --delta 0 --ledger l.db"],
    "report": ["report plan.json --out page.html"],
    "risk": [f"risk --epsilon 2 --others 1 --shares 0.5 {OFFER}"],
    "schema": ["schema t.csv --label y --check s.toml"],
    "sensitivity": ["sensitivity a*b --range a=1:2 --range b=1:2"],
    "train": [
        (train := f"train --data t.csv --schema s.toml --label y --epsilon e --ids id {SCALE}"),
        f"{train} --tune space.toml",
    ],
    "withdraw": ["withdraw l.db p7"],
}
# Held by other tests, which make what these need.
ELSEWHERE = {
    "ledger enroll": "test_ledger.py",
    "audit lira": "test_shadow_audit.py", "audit model": "test_findings.py",
    "audit shadows": "test_audit.py", "audit anytime": "test_audit.py",
    "ledger check": "test_ledger.py", "synthesize": "test_synthesize.py",
    "register": "../queries/test_registration.py",
}  # fmt: skip


def test_every_command_that_has_json_is_asked() -> None:
    having = {
        name
        for name, one in commands()
        if any(isinstance(p, click.Option) and "--json" in p.opts for p in one.params)
    }
    # a restore names the head of its backup, which no line here knows: tests/ledger/test_copies.py
    assert having - {"ledger restore"} == {*LINES, *ELSEWHERE}
    for name in ELSEWHERE.values():
        assert (
            '"--json"' in (text := (Path(__file__).parent / name).read_text()) or "--json" in text
        )


@pytest.mark.parametrize("line", [line for lines in LINES.values() for line in lines])
def test_one_document_and_nothing_else(
    line: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in Path().glob("l.db*"):  # a copy would be an older state to a process that knows it
        path.unlink()
    ledger = Ledger.open("sqlite:///l.db")
    ledger.enroll([f"p{i}" for i in range(60)], 8.0, 1e-5)
    ledger.reserve("first", ["p7"], 1.0, 9.0)
    Path("in.txt").write_text("\n".join(map(str, range(40))))
    Path("out.txt").write_text("\n".join(map(str, range(40))))
    Path("policy.toml").write_text('version = 1\n[querier."*"]\nquota = 0.3\n')
    Path("space.toml").write_text("runs = 3\n[space]\nlearning_rate = [1, 2]\n")
    Path("c.csv").write_text("score,included\n" + "1,1\n0,0\n" * 40)
    assert cli.run([*line.split(" "), "--json"]) == 0, capsys.readouterr().err
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert isinstance(json.loads(out), dict | list)
