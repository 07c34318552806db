"""`apiece train --person`: every promise, figure and file of a run speaks of persons."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.errors import StateError
from apiece.jobs import Run, load_model, read_job, run
from apiece.jobs.people import read_people
from apiece.jobs.prepared import prepare_again
from apiece.plan import Plan
from sample_tables import AGE_AND_ANSWER as SCHEMA

from .options import ask

BASE = (
    "--label answer --delta 1e-4 --strategy uniform --batch-size 30 --steps 8 --person patient "
    "--learning-rate 2 --schema schema.toml"
)
OWN = "--epsilon budget --split part --rows-per-person 3"
N = 120
Change = Callable[[pd.DataFrame], pd.DataFrame]


def visits() -> pd.DataFrame:
    random = np.random.default_rng(0)
    who = np.repeat(np.arange(N), random.integers(1, 7, N))
    age = random.integers(1, 99, who.size)
    return pd.DataFrame(
        {
            "age": age,
            "answer": np.where(age > 50, "yes", "no"),
            "patient": [f"p{w:03}" for w in who],
            "budget": np.resize([1.0, 8.0], N)[who],
            "part": np.where(np.arange(N) % 4, "train", "test")[who],
        }
    ).sample(frac=1, random_state=1)


@pytest.fixture
def train(tmp_path: Path, monkeypatch: Any) -> Callable[..., int]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("apiece.reporting.pages.render", lambda *_: "tested elsewhere")
    Path("schema.toml").write_text(SCHEMA)

    def call(out: str, words: str = OWN, frame: pd.DataFrame | None = None) -> int:
        (visits() if frame is None else frame).to_csv("visits.csv", index=False)
        return ask(["train", "--data", "visits.csv", *BASE.split(), *words.split(), "--out", out])

    return call


def metrics(out: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(out, "metrics.json").read_text())
    return found


def test_a_run_speaks_in_persons(train: Any, capsys: Any) -> None:
    assert train("run") == 0
    said = capsys.readouterr().out
    assert "persons" in said
    assert "test accuracy by row" in said
    assert "test accuracy by person" in said
    found = metrics("run")
    assert found["data"]["unit"] == "person"
    assert found["data"]["training_records"] == 90
    assert found["data"]["test_records"] == 30
    assert found["training"]["rows_per_person"] == 3
    plan = Plan.from_json(Path("run/plan.json").read_text())
    assert plan.records == 90
    assert plan.verify().ok
    assert Run.load("run").to_dict() == found
    job = read_job("run/config.toml")
    assert (job.data.person, job.training.rows_per_person) == ("patient", 3)


def test_accuracy_by_row_and_by_person_are_what_they_say(train: Any) -> None:
    frame = visits()
    frame.loc[frame["patient"] == "p004", "age"] = 50  # one person's rows are on the fence
    assert train("run", frame=frame) == 0
    found = metrics("run")["strategies"][0]
    model, held = load_model("run/model.pt"), frame[frame["part"] == "test"]
    right = pd.Series(model.predict(held[["age"]])).to_numpy() == held["answer"].to_numpy()
    assert found["test_accuracy"] == [pytest.approx(right.mean())]
    by_person = pd.Series(right).groupby(held["patient"].to_numpy()).mean().mean()
    assert found["test_accuracy_by_person"] == [pytest.approx(by_person)]


def test_people_out_of_order_give_the_same_run(train: Any) -> None:
    """The second table lies in any order and says the same as the first's columns."""
    frame = visits()
    assert train("one", f"{OWN} --seed 4".replace("person 3", "person all"), frame) == 0
    people = frame.drop_duplicates("patient").sample(frac=1, random_state=9)
    people.rename(columns={"budget": "consent", "part": "fold"}).to_csv("people.csv", index=False)
    words = "--people people.csv --epsilon consent --split fold --rows-per-person all --seed 4"
    assert train("two", words, frame.drop(columns=["budget", "part"])) == 0
    one, two = Path("one/plan.json").read_text(), Path("two/plan.json").read_text()
    assert one == two
    left, right = (load_model(f"{out}/model.pt").network.state_dict() for out in ("one", "two"))
    assert all(np.array_equal(left[name], right[name]) for name in left)
    assert Path("people.csv").resolve() == Path(str(read_job("two/config.toml").data.people))


def says(count: int, text: str) -> bool:
    """Whether a text has this number; 1.733 is not 733."""
    return re.search(rf"(?<![.\d]){count}(?!\d)", text) is not None


def test_who_has_how_many_rows_is_in_no_file(train: Any) -> None:
    """A person with 300 rows more: the same files, but for time, accuracy and the model."""
    frame = visits()
    more = pd.concat([frame, *[frame[frame["patient"] == "p002"].head(1)] * 300])
    for out, table in (("one", frame), ("two", more)):
        assert train(out, f"{OWN} --seed 1", table) == 0
    assert Path("one/plan.json").read_text() == Path("two/plan.json").read_text()
    one, two = metrics("one"), metrics("two")
    for found in (one, two):
        for name in ("test_accuracy", "test_accuracy_mean", "test_accuracy_by_person", "seconds"):
            del found["strategies"][0][name]
        del found["tested"], found["data"]["fingerprints"]  # figures without noise, and a hash
        del found["bound"]["weights"]  # of the model
    assert one == two
    told = [Path(out, "config.toml").read_text().replace(out, "") for out in ("one", "two")]
    assert told[0] == told[1]
    for name in ("metrics.json", "config.toml", "log.jsonl"):
        assert not says(len(more), Path("two", name).read_text())


def test_an_interrupted_run_goes_on_bit_for_bit(train: Any, monkeypatch: Any) -> None:
    assert train("whole", f"{OWN} --seed 6") == 0
    monkeypatch.setattr("apiece.jobs.running.SAVE_EVERY", 2)

    def stop(prepared: Any, **given: Any) -> None:
        def watch(strategy: str, repeat: int, step: int, steps: int) -> None:
            if step == 5:
                raise KeyboardInterrupt

        run(prepared, out=given["out"], progress=watch)

    with monkeypatch.context() as patch:
        patch.setattr("apiece.jobs.running.run", stop)
        patch.setattr("apiece.jobs.run", stop, raising=False)
        assert train("part", f"{OWN} --seed 6") == 130
    moved = visits()
    person = moved["patient"].to_numpy().copy()
    a, b = np.flatnonzero((moved["budget"] == 8.0) & (moved["part"] == "train"))[:2]
    moved.loc[moved.index[a], "patient"] = person[b]
    moved.to_csv("visits.csv", index=False)
    with pytest.raises(StateError, match="data"):
        run(prepare_again(Path("part")), out=Path("part"))
    visits().to_csv("visits.csv", index=False)
    assert ask(["train", "--resume", "part"]) == 0
    left, right = (load_model(f"{out}/model.pt").network.state_dict() for out in ("whole", "part"))
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_an_unreadable_row_costs_a_person_that_row_alone(train: Any, capsys: Any) -> None:
    """Before, the whole sum of a person was left out where one of the rows was."""
    frame = visits().astype({"age": object})
    held = frame[frame["part"] == "train"]["patient"].value_counts()
    own = frame.index[frame["patient"] == held.index[0]]
    lone = frame.index[frame["patient"] == "p006"]  # everything of this person is unreadable
    assert len(own) > 1
    assert lone[0] not in own
    frame.loc[[own[0], *lone], "age"] = "nan"
    assert train("one", f"{OWN} --seed 8", frame) == 0
    assert f"{1 + len(lone)} of" in capsys.readouterr().err
    assert train("two", f"{OWN} --seed 8", frame.drop(own[0])) == 0
    left, right = (load_model(f"{out}/model.pt").network.state_dict() for out in ("one", "two"))
    assert all(np.array_equal(left[name], right[name]) for name in left)
    assert Path("one/plan.json").read_text() == Path("two/plan.json").read_text()


def test_a_ledger_charges_persons(train: Any) -> None:
    frame = visits()
    people = frame.drop_duplicates("patient")
    people.assign(budget=4 * people["budget"]).to_csv("accounts.csv", index=False)
    words = (
        "ledger init sqlite:///l.db --data accounts.csv --person patient --epsilon budget "
        "--delta 1e-4"
    )
    assert ask(words.split()) == 0
    assert train("run", f"{OWN} --ledger sqlite:///l.db --analysis first", frame) == 0
    assert metrics("run")["ledger"] == {"analysis": "first"}
    from apiece.ledger import Ledger

    ledger = Ledger.open("sqlite:///l.db", create=False)
    trained = people.loc[people["part"] == "train", "patient"].tolist()
    held = people.loc[people["part"] == "test", "patient"].tolist()
    assert (ledger.spent(trained) > 0).sum() > 0
    assert (ledger.spent(held) == 0).all()


def test_one_row_a_person_is_a_run_of_records(train: Any) -> None:
    frame = visits().drop_duplicates("patient").sort_values("patient")
    assert train("one", f"{OWN} --seed 2", frame) == 0
    frame.to_csv("visits.csv", index=False)
    words = BASE.replace("--person", "--ids") + " --epsilon budget --split part --seed 2 --out two"
    assert ask(["train", "--data", "visits.csv", *words.split()]) == 0
    left, right = (load_model(f"{out}/model.pt").network.state_dict() for out in ("one", "two"))
    assert all(np.array_equal(left[name], right[name]) for name in left)
    assert (
        metrics("one")["strategies"][0]["test_accuracy_by_person"]
        == metrics("two")["strategies"][0]["test_accuracy"]
    )


def test_a_drawn_split_keeps_a_person_s_rows_together(train: Any) -> None:
    assert train("run", OWN.replace("--split part", "--test-share 0.3") + " --seed 3") == 0
    people = read_people(read_job("run/config.toml"))
    assert people.train.person is not None
    assert people.test.person is not None
    assert not set(people.train.person) & set(people.test.person)
    assert people.train.units + people.test.units == N
    assert 15 <= people.test.units <= 60


def test_the_report_speaks_in_persons(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("schema.toml").write_text(SCHEMA)
    visits().to_csv("visits.csv", index=False)
    words = ["train", "--data", "visits.csv", *BASE.split(), *OWN.split(), "--out", "run"]
    assert ask(words) == 0
    page = " ".join(Path("run/report.html").read_text().split())
    for words in (
        "90 people trained on",
        "all rows of one person, however many, added or removed under this one plan",
        "at most 3 of their rows",
        "who has how many rows",
        "test accuracy by person",
        "people like you",
    ):
        assert words in page
    assert not says(len(visits()), re.sub("<svg.*?</svg>", "", page))


def test_a_run_s_audits_are_of_persons_however_many_rows_are_faulty(
    train: Any, capsys: Any
) -> None:
    frame = visits().astype({"age": object})
    held = frame[frame["part"] == "train"]["patient"].value_counts()
    frame.loc[frame.index[frame["patient"] == held.index[0]][0], "age"] = "nan"  # one of several
    frame.loc[frame["patient"] == held.index[-1], "age"] = "nan"  # every row of a person
    assert train("one", f"{OWN} --seed 3", frame) == 0
    for words in ("--delta 1e-3", "--models 6"):
        capsys.readouterr()
        assert ask(["audit", "one", *words.split(), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["unit"] == "person"
