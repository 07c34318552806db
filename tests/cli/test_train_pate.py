"""`apiece train --method pate`: the run folder, what is refused, and what a kill leaves behind."""

import json
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

from apiece import report
from apiece.errors import DataError, StateError
from apiece.jobs import Run, load_model, prepare, read_job, run
from apiece.jobs.prepared import Prepared, prepare_again
from apiece.ledger import Ledger
from apiece.pate import teaching
from apiece.pate.teaching import deal_rows
from apiece.reporting.pages import render
from apiece.training.charging import weights_digest
from tests.pate.worlds import passed

from .options import ask

SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.answer]
kind = "categorical"
values = ["no", "yes"]
"""
BASE = (
    "--label answer --delta 1e-4 --schema schema.toml --epsilon budget --method pate --steps 8 "
    "--batch-size 8 --learning-rate 2"
)
OWN = "--split part --teachers 10 --questions 40 --public-share 0.5"
N = 400


def visits(rows: int = N, people: int = N) -> pd.DataFrame:
    random = np.random.default_rng(0)
    who = np.arange(rows) % people
    age = random.integers(1, 99, rows)
    return pd.DataFrame(
        {
            "age": age,
            "answer": np.where(age > 50, "yes", "no"),
            "patient": who,
            "budget": np.resize([1.0, 3.0], people)[who],
            "part": np.where(np.arange(people) % 4 < 2, "train", "test")[who],
        }
    )


@pytest.fixture
def train(tmp_path: Path, monkeypatch: Any) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("apiece.reporting.pages.render", lambda *_: "tested below")
    Path("schema.toml").write_text(SCHEMA)
    visits(120)[["age"]].to_csv("public.csv", index=False)

    def call(words: str = OWN, frame: pd.DataFrame | None = None, out: str = "run") -> int:
        (visits() if frame is None else frame).to_csv("visits.csv", index=False)
        return ask(["train", "--data", "visits.csv", *BASE.split(), *words.split(),
                        "--out", out])  # fmt: skip

    return call


def test_a_run_folder_as_of_any_training(train: Any, capsys: Any) -> None:
    assert train(f"{OWN} --threshold 0.6 --answers 20 --json") == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["training"]["method"] == "pate"
    found = Run.load("run")
    assert found.method == "pate"
    assert found.to_dict() == metrics
    assert [stage.steps for stage in found.kept.plan.stages] == [40, 20]
    assert all(p.epsilon_spent <= p.epsilon for p in found.kept.promises)
    assert (found.kept.plan.measures.forward < 1e-4).all()  # type: ignore[operator]
    assert sorted(p.name for p in Path("run").iterdir()) == [
        "config.toml", "log.jsonl", "metrics.json", "model.pt", "plan.json", "report.html",
        "statement.json",
    ]  # fmt: skip
    said = load_model("run/model.pt").predict(pd.DataFrame({"age": ["3", "97"]}))
    assert set(said) <= {"no", "yes"}


def test_pages_speak_of_votes_and_not_of_gradients(train: Any, monkeypatch: Any) -> None:
    assert train() == 0
    monkeypatch.setattr("apiece.reporting.pages.render", render)
    found = Run.load("run")
    for edition in ("internal", "public"):
        page = report(found, edition=edition).html
        assert "PATE" in page
        assert "gradient" not in page
        assert "Poisson" not in page
        assert "declared public" in page
    statement = (Path("run") / "statement.json").read_text()
    assert "PATE" in statement
    assert "Poisson" not in statement
    assert "public rows" in statement


def test_a_public_table_and_the_strategies_side_by_side(train: Any, capsys: Any) -> None:
    words = "--split part --teachers 10 --questions 100 --public public.csv --seed 0"
    assert train(f"{words} --compare --seeds 2 --semi-supervised true") == 0
    assert "upsample against uniform" in capsys.readouterr().out
    found = Run.load("run")
    assert [s.strategy for s in found.strategies] == ["uniform", "upsample", "weight"]
    assert set(found.data.fingerprints) == {"visits.csv", "public.csv"}
    assert found.kept.settings["semi_supervised"] == 1


def weights(folder: str) -> str:
    return weights_digest(load_model(f"{folder}/model.pt").network.state_dict())


def test_a_seed_repeats_and_a_config_runs_again(train: Any) -> None:
    assert train(f"{OWN} --seed 3") == 0
    assert ask(["train", "run/config.toml", "--out", "again"]) == 0
    one, two = (Run.load(folder) for folder in ("run", "again"))
    assert one.kept.test_accuracy == two.kept.test_accuracy
    assert weights("run") == weights("again")


def test_a_persons_rows_are_one_persons(train: Any) -> None:
    assert train(f"{OWN} --person patient", visits(1200)) == 0
    found = Run.load("run")
    assert found.data.unit == "person"
    assert found.kept.plan.unit == "person"
    assert found.data.training_records == 200
    assert len(found.kept.test_accuracy_by_person) == 1


def test_a_ledger_is_charged_and_who_cannot_pay_teaches_nobody(
    train: Any, monkeypatch: Any
) -> None:
    ledger = Ledger.open("sqlite:///p.db")
    ledger.enroll(np.arange(N), np.where(np.arange(N) == 5, 0.01, 9.0), 1e-4)
    seen: list[Any] = []

    def spy(plan: Any, **options: Any) -> Any:
        seen.append((plan, options["included"]))
        return deal_rows(plan, **options)

    monkeypatch.setattr("apiece.pate.teaching.deal_rows", spy)
    words = f"{OWN} --ids patient --ledger sqlite:///p.db --analysis first"
    assert train(words) == 0
    ((plan, included),) = seen
    assert (
        np.flatnonzero(~included).tolist()
        == np.flatnonzero(plan.plan.ids.astype(str) == "5").tolist()
    )
    assert ledger.status("first") == "committed"
    assert passed(plan) == []


BAD = [
    ("--split part --questions 40 --public-share 0.5", "teachers: missing"),
    ("--split part --teachers 10 --questions 40", "public: the student learns from public rows"),
    (f"{OWN} --public public.csv", "one of the two"),
    ("--split part --teachers 201 --questions 40 --public-share 0.5", "there are 200 records"),
    ("--split part --teachers 10 --questions 900 --public-share 0.5", "for 900 questions"),
    ("--split part --teachers 10 --questions 121 --public public.csv", "120 usable rows for 121"),
    ("--split part --teachers 10 --questions 40 --public none.csv", "none.csv"),
    ("--split part --teachers 10 --questions 40 --public-share 1.5", "public_share = 1.5"),
    ("--split part --teachers 0 --questions 40 --public-share 0.5", "teachers = 0"),
    (
        "--split part --teachers 1 --questions 40 --public-share 0.5 --strategy weight",
        "fewer than the 2 budget groups",
    ),
    (f"{OWN} --threshold 1.5", "threshold = 1.5"),
    (f"{OWN} --threshold nan", "threshold = nan"),
    (f"{OWN} --answers 5", "without a threshold"),
    (f"{OWN} --threshold 0.5 --answers 41", "at most questions = 40"),
    (f"{OWN} --strategy sample", "unknown name 'sample'"),
    (f"{OWN} --batch-size 7.5", "whole number"),
    (f"{OWN} --person patient --rows-per-person 3", "rows_per_person: is for DP-SGD"),
    (f"{OWN} --method dp-sgd", "is for PATE"),
    (f"{OWN} --method pat", "did you mean 'pate'"),
    ("--test-share 0 --teachers 10 --public-share 0.5", "none is public"),
]


@pytest.mark.parametrize(("words", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_input_is_one_clear_line(train: Any, capsys: Any, words: str, says: str) -> None:
    assert train(words) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert says in shown.err
    assert len(shown.err.strip().splitlines()) == 1
    assert not Path("run").exists()


@pytest.mark.parametrize(("levels", "teachers"), [([0.1, 10.0, 10.5], 2), ([1.0, 2.0, 3.0], 2)])
def test_fewer_teachers_than_groups(
    train: Any, capsys: Any, levels: list[float], teachers: int
) -> None:
    """It ended with a model, said to be for release, in which .1 had become 10."""
    words = f"--split part --teachers {teachers} --questions 10 --public-share 0.5"
    table = visits().assign(budget=np.resize(levels, N))
    for strategy in ("", "--strategy weight"):
        assert train(f"{words} {strategy}", table) == 2
        error = capsys.readouterr().err
        assert f"teachers = {teachers}: fewer than the {len(levels)} budget groups" in error
        assert len(error.strip().splitlines()) == 1
        assert not Path("run").exists()


def test_other_bad_tables(train: Any, capsys: Any) -> None:
    few = visits().assign(budget=np.where(np.arange(N) < 5, 0.5, 3.0))
    assert train(OWN, few) == 2
    assert "too few for a teacher" in capsys.readouterr().err
    assert train(OWN, visits().assign(answer="maybe")) == 2
    assert "maybe" in capsys.readouterr().err
    numbers = SCHEMA.replace('kind = "categorical"\nvalues = ["no", "yes"]',
                             'kind = "numeric"\nlower = 0\nupper = 9')  # fmt: skip
    Path("schema.toml").write_text(numbers)
    assert train(OWN, visits().assign(answer=3)) == 2
    assert "teachers vote for classes" in capsys.readouterr().err


class Killed(BaseException):
    pass


def prepared(train: Any, monkeypatch: Any, seed: str = "") -> Callable[[], Prepared]:
    """Make the tables, and return how a job of small blocks is prepared anew."""
    monkeypatch.setattr(teaching, "BLOCK", 10)
    assert train(f"{OWN} {seed}", out="first") == 0

    def make() -> Prepared:
        job = read_job("first/config.toml", {"out": "run"})
        return prepare(job, out=Path("run"))

    return make


@pytest.mark.parametrize("block", [0, 1, 3])
def test_a_kill_leaves_answers_alone_and_is_gone_on_with(
    train: Any, monkeypatch: Any, block: int
) -> None:
    make, written = prepared(train, monkeypatch, "--seed 4"), [0]
    write = teaching.KeptAnswers.write

    def dying(self: teaching.KeptAnswers, answers: Any) -> None:
        if written[0] == block:
            raise Killed
        written[0] += 1
        write(self, answers)

    with monkeypatch.context() as patch:
        patch.setattr(teaching.KeptAnswers, "write", dying)
        with pytest.raises(Killed):
            run(make(), out=Path("run"))
    left = [p for p in (Path("run") / "checkpoints").rglob("*") if p.is_file()]
    assert sorted(p.name for p in left) == ["answers.json"] * (block > 0) + ["job.json"]
    assert all(p.stat().st_mode & 0o077 == 0 for p in left)
    run(prepare_again(Path("run")), out=Path("run"))
    assert weights("run") == weights("first")
    assert not (Path("run") / "checkpoints").exists()


def test_who_withdraws_after_a_kill_teaches_nobody_and_no_answer_is_given_anew(
    train: Any, monkeypatch: Any
) -> None:
    ledger = Ledger.open("sqlite:///p.db")
    ledger.enroll(np.arange(N), 9.0, 1e-4)
    monkeypatch.setattr(teaching, "BLOCK", 10)
    assert train(f"{OWN} --ids patient --ledger sqlite:///p.db --analysis one", out="first") == 0
    job = read_job("first/config.toml", {"out": "run", "analysis": "two"})
    write, kept, dealt = teaching.KeptAnswers.write, list[Any](), list[Any]()

    def noted(self: teaching.KeptAnswers, answers: Any) -> None:
        write(self, answers)
        kept.append(answers.tolist())
        if len(kept) == 2:
            raise Killed

    def spy(plan: Any, **options: Any) -> Any:
        dealt.append((plan.plan.ids.astype(int), deal_rows(plan, **options)))
        return dealt[-1][1]

    monkeypatch.setattr(teaching.KeptAnswers, "write", noted)
    monkeypatch.setattr("apiece.pate.teaching.deal_rows", spy)
    with pytest.raises(Killed):
        run(prepare(job, out=Path("run")), out=Path("run"))
    spent = ledger.spent(np.arange(N)).tolist()
    ledger.withdraw([4, 5])
    run(prepare_again(Path("run")), out=Path("run"))
    ids, before, after = dealt[0][0], *(set(shares.rows.tolist()) for _, shares in dealt)
    assert before == set(range(ids.size))
    assert {int(ids[row]) for row in before - after} == {4, 5}
    assert [len(each) for each in kept] == [10, 20, 30, 40]
    assert kept[-1][:20] == kept[1]
    assert ledger.spent(np.arange(N)).tolist() == spent
    assert ledger.status("two") == "committed"


@pytest.mark.parametrize("step", [1, 8, 9, 15])
def test_ctrl_c_in_a_lesson_of_teachers_or_student(train: Any, monkeypatch: Any, step: int) -> None:
    make = prepared(train, monkeypatch)

    def dying(strategy: str, repeat: int, now: int, steps: int) -> None:
        if now == step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make(), out=Path("run"), progress=dying)
    again = prepare_again(Path("run"))
    kept = Path("run/checkpoints/weight-1/answers.json")
    before = json.loads(kept.read_text())["answers"] if kept.exists() else None
    assert (before is None) == (step <= 8)
    with monkeypatch.context() as patch:
        if before is not None:  # all questions are answered: nobody may be asked again
            patch.setattr(
                "apiece.pate.teaching.predict_classes", lambda *_: pytest.fail("asked again")
            )
        run(again, out=Path("run"))
    assert Run.load("run").method == "pate"


def test_a_changed_table_is_seen_on_the_way(train: Any, monkeypatch: Any) -> None:
    make = prepared(train, monkeypatch)

    def dying(strategy: str, repeat: int, now: int, steps: int) -> None:
        if now == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(make(), out=Path("run"), progress=dying)
    visits().assign(age=7).to_csv("visits.csv", index=False)
    with pytest.raises(StateError, match="start a new run"):
        run(prepare_again(Path("run")), out=Path("run"))


@pytest.mark.slow
@pytest.mark.parametrize("wait", [0.0, 0.2, 0.6, 1.2])
def test_sigkill_at_any_moment(train: Any, wait: float) -> None:
    assert train(f"{OWN} --steps 400 --teachers 20", out="first") == 0
    words = [sys.executable, "-c", "from apiece.cli import main; main()", "train",
             "first/config.toml", "--out", "run"]  # fmt: skip
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    note = Path("run/checkpoints/job.json")
    while not note.exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(wait)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if note.exists():
        names = {p.name for p in Path("run/checkpoints").rglob("*") if p.is_file()}
        assert names <= {"job.json", "answers.json", ".answers.json.new"}
        assert ask(["train", "--resume", "run"]) == 0
    assert Run.load("run").method == "pate"


def test_a_folder_that_says_what_is_not_so(train: Any) -> None:
    assert train(f"{OWN} --threshold 0.6 --answers 20") == 0
    path = Path("run/metrics.json")
    text = path.read_text()
    for true, other in [
        ('"questions": 40', '"questions": 4'),
        ('"method": "pate"', '"method": "dp-sgd"'),
        ('"threshold": 0.6', '"threshold": 0.7'),
        ('"answers": 20', '"answers": 19'),
        ('"teachers": 10', '"teachers": 11'),
    ]:
        assert true in text
        path.write_text(text.replace(true, other))
        with pytest.raises(DataError):
            Run.load("run")
