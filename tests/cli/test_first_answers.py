"""From the README to the first right answer, as three people go: at most two refusals.

Each of them adds only what the message before has named.
"""

from __future__ import annotations

import json
import random
import shlex
from pathlib import Path

import pytest

from apiece.cli import run

pytest.importorskip("sqlglot", reason="needs the extra sql")


@pytest.fixture(autouse=True)
def in_a_fresh_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def take(command: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Run a command as it is typed; return its status, answer and message."""
    status = run(shlex.split(command))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_a_statistician_with_a_survey(capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(1)
    rows = [f"{k},{rng.choice(['North', 'South'])},{rng.randint(1, 9)}e4" for k in range(2000)]
    Path("survey.csv").write_text("\n".join(["respondent,region,income", *rows]))
    question = 'query survey.csv "SELECT region, avg(income) FROM survey GROUP BY region" --json'
    status, _, message = take(question, capsys)
    assert status == 2
    named = ("--person", "--epsilon", "--delta", "--bounds income=0:100", "--values region=A,B",
             "--rows-per-person")  # fmt: skip
    assert [flag for flag in named if flag not in message] == []
    # All at once, so that the second time is right.
    status, answer, _ = take(
        f"{question} --person respondent --epsilon 1 --delta 1e-6 --bounds income=0:100000 "
        "--values region=North,South --rows-per-person 1",
        capsys,
    )
    assert status == 0
    for group in json.loads(answer)["groups"]:
        exact = [float(r.split(",")[2]) for r in rows if group["region"] in r]
        assert group["estimate"] == pytest.approx(sum(exact) / len(exact), rel=0.1)


def test_a_hospitals_analyst_with_visits(capsys: pytest.CaptureFixture[str]) -> None:
    """A table as a German program writes it, with several rows a patient, and dates."""
    rng = random.Random(2)
    rows = [
        f"P{k:04d};{rng.choice('AB')};2025-{rng.randint(1, 12):02d}-15;{rng.randint(1, 99)},5"
        for k in range(900)
        for _ in range(2)
    ]
    Path("visits.csv").write_text("\n".join(["patient;ward;admitted;cost", *rows]))
    base = "--person patient --epsilon 3 --delta 1e-6 --json"
    question = (
        'query visits.csv "SELECT month(admitted) AS month, avg(cost) FROM visits GROUP BY month"'
    )
    refusals = []
    status, _, message = take(f"{question} {base}", capsys)
    refusals.append(message)
    assert status == 2
    for flag in ("--bounds cost=0:100", "--kind admitted=date", "--rows-per-person"):
        assert flag in message
    base += " --bounds cost=0:100 --kind admitted=date --rows-per-person 2"
    status, _, message = take(f"{question} {base}", capsys)
    refusals.append(message)
    # The header shows what separates; what numbers look like is asked with it.
    assert status == 2
    assert "--separator ';'" in message
    assert "--decimal ," in message
    status, answer, _ = take(f"{question} {base} --separator ';' --decimal ,", capsys)
    assert status == 0
    assert len(refusals) == 2
    groups = json.loads(answer)["groups"]
    assert [group["month"] for group in groups] == list(range(1, 13))
    for group in groups:
        month = f"-{int(group['month']):02d}-15"
        costs = [float(r.split(";")[3].replace(",", ".")) for r in rows if month in r]
        assert group["estimate"] == pytest.approx(sum(costs) / len(costs), abs=15)


def test_a_privacy_officer_with_consents(capsys: pytest.CaptureFixture[str]) -> None:
    """Accounts, a registered table, a question that is charged, and what one person is told."""
    Path("consent.csv").write_text(
        "\n".join(["person,epsilon", *(f"p{k},{[0.5, 4][k % 2]}" for k in range(400))])
    )
    Path("people.csv").write_text(
        "\n".join(["person,age", *(f"p{k},{20 + k % 60}" for k in range(400))])
    )
    init = "ledger init people.db --data consent.csv --person person --epsilon epsilon"
    status, _, message = take(init, capsys)
    assert status == 2
    assert "--delta" in message
    assert take(f"{init} --delta 1e-5", capsys)[0] == 0
    register = (
        "register people.csv --person person --bounds age=0:100 --rows-per-person 1 "
        "--out people.apiece"
    )
    assert take(register, capsys)[0] == 0
    question = (
        'query people.apiece "SELECT avg(age) FROM people" --epsilon 0.4 --delta 1e-6 '
        "--ledger people.db"
    )
    status, answer, _ = take(f"{question} --json", capsys)
    assert status == 0
    assert json.loads(answer)["groups"][0]["estimate"] == pytest.approx(49, abs=12)
    # Asked again it names the answer that costs nothing, and charges nobody.
    status, _, message = take(question, capsys)
    assert status == 2
    analysis = message.split("--analysis ")[1].split()[0]
    status, again, _ = take(f"{question} --json --analysis {analysis}", capsys)
    assert (status, again) == (0, answer)
    status, receipt, _ = take("ledger receipt people.db p0", capsys)
    assert status == 0
    assert "ε = 0.5" in receipt
    assert "answer released" in receipt
