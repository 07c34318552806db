"""The main job as a user meets it: what it writes, what it refuses, what Ctrl-C leaves."""

import io
import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.errors import OptionError, StewardWarning
from apiece.plan import Plan

from .options import ask, last

SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.town]
kind = "categorical"
values = ["A", "B"]
missing = ["", "?"]
[columns.answer]
kind = "categorical"
values = ["no", "maybe", "yes"]
"""
FILES = [
    "config.toml",
    "log.jsonl",
    "metrics.json",
    "model.pt",
    "plan.json",
    "report.html",
    "statement.json",
]
BASE = ["--label", "answer", "--epsilon", "budget", "--delta", "1e-3"]
QUICK = ["--strategy", "uniform", "--batch-size", "60", "--steps", "6", "--learning-rate", "2"]


def people(n: int = 300) -> pd.DataFrame:
    random = np.random.default_rng(3)
    age = random.integers(1, 99, n)
    answer = np.array(["no", "maybe", "yes"])[np.minimum(age // 33, 2)]
    return pd.DataFrame(
        {
            "age": age.astype(str),
            "town": random.choice(["A", "B", "?", ""], n),
            "answer": answer,
            "budget": random.choice([1.0, 8.0], n),
            "person": np.arange(n) + 1000,
            "part": np.where(random.random(n) < 0.25, "test", "train"),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., list[str]]:
    """Write the people, changed by `change`, and return the arguments that train on them."""
    (tmp_path / "schema.toml").write_text(SCHEMA)

    def write(change: Callable[[pd.DataFrame], Any] = lambda frame: None) -> list[str]:
        frame = people()
        changed = change(frame)
        frame = frame if changed is None else changed
        frame.to_csv(tmp_path / "people.csv", index=False)
        schema = ["--schema", str(tmp_path / "schema.toml"), "--split", "part"]
        out = ["--out", str(tmp_path / "run")]
        return ["train", "--data", str(tmp_path / "people.csv"), *BASE, *QUICK, *schema, *out]

    return write


def test_a_table_of_ones_own(table: Any, tmp_path: Path, capsys: Any) -> None:
    asked = np.resize([0.5, 1.0, 2.0, 8.0], 300)
    arguments = table(lambda frame: frame.assign(budget=asked))
    assert ask([*arguments, "--strategy", "sample", "--ids", "person", "--json"]) == 0
    captured = capsys.readouterr()
    metrics = json.loads(captured.out)
    out = tmp_path / "run"
    assert sorted(p.name for p in out.iterdir()) == FILES
    assert metrics == json.loads((out / "metrics.json").read_text())
    groups = metrics["strategies"][0]["plan"]["groups"]
    assert [g["epsilon"] for g in groups] == [0.5, 1.0, 2.0, 8.0]
    assert all(g["epsilon_spent"] <= g["epsilon"] for g in groups)
    plan = Plan.from_json((out / "plan.json").read_text())
    assert plan.verify().ok
    for line in (out / "log.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_run_folder_runs_again_and_gives_the_same(table: Any, tmp_path: Path) -> None:
    assert ask([*table(), "--seed", "5"]) == 0
    first = tmp_path / "run"
    assert "seed" in tomllib.loads((first / "config.toml").read_text())["run"]
    again = ["train", str(first / "config.toml"), "--out", str(tmp_path / "again")]
    assert ask(again) == 0
    one, two = (
        json.loads((folder / "metrics.json").read_text())["strategies"][0]["test_accuracy"]
        for folder in (first, tmp_path / "again")
    )
    assert one == two
    assert (first / "plan.json").read_text() == (tmp_path / "again" / "plan.json").read_text()


def test_the_model_loads_and_predicts(table: Any, tmp_path: Path) -> None:
    import torch

    from apiece.jobs import load_model

    assert ask([*table(), "--hidden", "4"]) == 0
    content = torch.load(tmp_path / "run" / "model.pt", weights_only=True)
    assert content["classes"] == ["no", "maybe", "yes"]
    model = load_model(tmp_path / "run" / "model.pt")
    with pytest.warns(StewardWarning, match="1 of 2 rows are not predicted"):
        said = model.predict(pd.DataFrame({"age": ["3", "nan"], "town": ["A", "B"]}))
    assert said[0] in content["classes"]
    assert said[1] is None


def test_compare_trains_three_side_by_side(table: Any, tmp_path: Path, capsys: Any) -> None:
    assert ask([*table(), "--strategy", "sample", "--compare", "--seed", "0"]) == 0
    shown = capsys.readouterr().out
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert [s["strategy"] for s in metrics["strategies"]] == ["uniform", "scale", "sample"]
    assert [len(s["test_accuracy"]) for s in metrics["strategies"]] == [3, 3, 3]
    seeds = [seed for s in metrics["strategies"] for seed in s["seeds"]]
    assert len(set(seeds)) == 9, "models that share noise do not compose"
    assert metrics["all_models"]["models"] == 9
    for alone, together in zip(
        metrics["strategies"][2]["plan"]["groups"], metrics["all_models"]["groups"], strict=True
    ):
        assert together["epsilon_spent"] > alone["epsilon_spent"]
        assert alone["name"] in shown
    for word in ("uniform", "scale", "sample", "±", "ε asked", "report.html"):
        assert word in shown


def test_the_design_s_command_on_adult_as_csv(tmp_path: Path, capsys: Any) -> None:
    from apiece.datasets import load

    frame = load("adult").iloc[::40].drop(columns="split")
    budgets = np.random.default_rng(0).choice([0.5, 1.0, 2.0], len(frame))
    frame.assign(consent_epsilon=budgets).to_csv(tmp_path / "people.csv", index=False)
    done = ask(
        [
            *("train", "--data", str(tmp_path / "people.csv"), "--label", "income"),
            *("--epsilon", "consent_epsilon", "--delta", "1e-5", "--strategy", "sample"),
            *("--batch-size", "128", "--steps", "5", "--seed", "0"),
            *("--out", str(tmp_path / "first")),
        ]
    )
    assert done == 0, capsys.readouterr().err
    assert sorted(p.name for p in (tmp_path / "first").iterdir()) == FILES


def cell(column: str, value: Any, row: int = 7) -> Callable[[pd.DataFrame], Any]:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame = frame.astype({column: object})
        frame.loc[row, column] = value
        return frame

    return change


BAD_TABLES = {
    "epsilon zero": (cell("budget", 0), "row 8 = 0", "(0, inf)"),
    "epsilon negative": (cell("budget", -1), "row 8 = -1", "budget"),
    "epsilon nan": (cell("budget", "nan"), "row 8", "budget"),
    "epsilon infinite": (cell("budget", "inf"), "row 8 = inf", "budget"),
    "epsilon missing": (cell("budget", ""), "row 8", "empty"),
    "epsilon a word": (cell("budget", "much"), "'much'", "not a number"),
    "budget column gone": (lambda f: f.rename(columns={"budget": "budgets"}), "budgets", "mean"),
    "feature column gone": (lambda f: f.drop(columns="age"), "'age'", "not in the table"),
    "label column gone": (lambda f: f.drop(columns="answer"), "'answer'", "not in the table"),
    "no rows": (lambda f: f.iloc[:0], "no rows", "row"),
    "one class": (lambda f: f.assign(answer="no"), "'no'", "one class"),
    "label undeclared": (cell("answer", "perhaps"), "'perhaps'", "declared"),
    "label unseen": (
        lambda f: f[~((f["answer"] == "yes") & (f["part"] == "train"))],
        "'yes'",
        "never in training",
    ),
    "split unknown": (cell("part", "later"), "'later'", "train"),
    "all faulty": (lambda f: f.assign(age="inf"), "feature column 'age'", "infinite"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables_are_refused(case: str, table: Any, tmp_path: Path, capsys: Any) -> None:
    change, *words = BAD_TABLES[case]
    refused(table(change), words, tmp_path, capsys)


BAD_OPTIONS = {
    "delta zero": (["--delta", "0"], "delta = 0"),
    "delta one": (["--delta", "1"], "(0, 1)"),
    "delta nan": (["--delta", "nan"], "delta = nan"),
    "delta negative": (["--delta", "-0.1"], "delta = -0.1"),
    "delta infinite": (["--delta", "inf"], "delta = inf"),
    "delta a word": (["--delta", "tiny"], "'tiny'"),
    "epsilon a number": (["--epsilon", "1.0"], "column"),
    "steps zero": (["--steps", "0"], "steps = 0"),
    "batch above n": (["--batch-size", "100000"], "100000"),
    "batch zero": (["--batch-size", "0"], "batch_size = 0"),
    "strategy unknown": (["--strategy", "sampel"], "did you mean 'sample'"),
    "option misspelled": (["--bach-size", "3"], "--batch-size"),
    "no such file": (["--data", "/nowhere/people.csv"], "cannot be read"),
    "a folder as data": (["--data", "/tmp"], "cannot be read"),
    "no such schema": (["--schema", "/nowhere/s.toml"], "cannot be read"),
    "ids repeated": (["--ids", "age"], "occurs"),
    "ids unknown": (["--ids", "persn"], "did you mean 'person'"),
    "seed negative": (["--seed", "-1"], "seed = -1"),
    "clip nan": (["--clip-norm", "nan"], "clip_norm = nan"),
    "rate a word": (["--learning-rate", "fast"], "fast"),
    "out not writable": (["--out", "/proc/nowhere/run"], "/proc/nowhere/run"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options_are_refused(case: str, table: Any, tmp_path: Path, capsys: Any) -> None:
    options, *words = BAD_OPTIONS[case]
    refused([*table(), *options], words, tmp_path, capsys)


def refused(arguments: list[str], words: list[str], tmp_path: Path, capsys: Any) -> None:
    before = sorted(tmp_path.rglob("*"))
    status = ask(arguments)
    captured = capsys.readouterr()
    assert status == 2, captured.err
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("apiece train: ")
    for word in words:
        assert word in captured.err
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_an_empty_file_is_refused(table: Any, tmp_path: Path, capsys: Any) -> None:
    arguments = table()
    (tmp_path / "people.csv").write_text("")
    refused(arguments, ["cannot be read"], tmp_path, capsys)


def test_a_config_s_misspelled_key_gets_the_right_one(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "job.toml"
    path.write_text('[data]\nsource = "german"\n[training]\nbatchsize = 3\n')
    refused(["train", str(path)], ["did you mean 'batch_size'"], tmp_path, capsys)


def scheduled(learning_rate: str, noise: str) -> str:
    return f"[training]\nlearning_rate_schedule = {learning_rate}\nnoise_schedule = {noise}\n"


def test_schedules_are_part_of_the_plan(table: Any, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    rate = '{ points = [[0, 0.5], [6, 1]], between = "cosine" }'
    path.write_text(scheduled(rate, '{ points = [[0, 2], [4, 1]], between = "hold" }'))
    assert ask([*table(), str(path), "--strategy", "scale", "--seed", "5"]) == 0
    text = (tmp_path / "run" / "plan.json").read_text()
    plan = Plan.from_json(text)
    assert [stage.steps for stage in plan.stages] == [4, 2]
    assert plan.stages[0].noise_stddev > 1.5 * plan.stages[1].noise_stddev
    assert plan.learning_rate is not None
    assert plan.learning_rate.at(3) == pytest.approx(0.75)
    assert plan.verify().ok
    again = ["train", str(tmp_path / "run" / "config.toml"), "--out", str(tmp_path / "again")]
    assert ask(again) == 0
    assert text == (tmp_path / "again" / "plan.json").read_text()


BAD_SCHEDULES = {
    "a number": ("2", "{ points = [[0, 1]] }", "learning_rate_schedule = 2"),
    "no points": ("{ between = 'hold' }", "{ points = [[0, 1]] }", "must have points"),
    "another key": ("{ points = [[0, 1]], at = 3 }", "{ points = [[0, 1]] }", "must have points"),
    "falling": ("{ points = [[5, 1], [3, 1]] }", "{ points = [[0, 1]] }", "rising order"),
    "between": ("{ points = [[0, 1]], between = 'cosin' }", "{ points = [[0, 1]] }", "'cosine'"),
    "a word": ("{ points = [[0, 'x']] }", "{ points = [[0, 1]] }", "learning_rate_schedule: "),
    "not held": ("{ points = [[0, 1]] }", "{ points = [[0, 2], [3, 1]] }", "noise_schedule: "),
    "too late": (
        "{ points = [[0, 1]] }",
        "{ points = [[0, 2], [9, 1]], between = 'hold' }",
        "6 steps",
    ),
    "no noise": ("{ points = [[0, 1]] }", "{ points = [[0, 0]] }", "= 0"),
}


@pytest.mark.parametrize("case", BAD_SCHEDULES)
def test_bad_schedules_are_refused(case: str, table: Any, tmp_path: Path, capsys: Any) -> None:
    rate, noise, words = BAD_SCHEDULES[case]
    (tmp_path / "job.toml").write_text(scheduled(rate, noise))
    refused([*table(), str(tmp_path / "job.toml")], [words], tmp_path, capsys)


def test_a_strategy_s_own_settings_and_an_option_over_them() -> None:
    from apiece.jobs.config import job_from_dict

    sections = {
        "data": {"source": "german"},
        "budgets": {"epsilon": "e"},
        "compare": {"settings": {"scale": {"steps": 7, "learning_rate": 3.0}}},
    }
    job = job_from_dict(sections, name="x", changes={})
    assert (job.training_of("scale").steps, job.training_of("sample").steps) == (7, 1000)
    assert job_from_dict(job.to_dict(), name="x", changes={}) == job
    changed = job_from_dict(sections, name="x", changes={"steps": 5})
    assert changed.training_of("scale").steps == 5
    assert changed.training_of("scale").learning_rate == 3.0
    sections["compare"] = {"settings": {"scale": {"stepps": 7}}}
    with pytest.raises(OptionError, match="did you mean 'steps'"):
        job_from_dict(sections, name="x", changes={})


def test_a_used_folder_is_left_untouched(table: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("keep")
    refused(table(), ["not empty", "untouched", "--out"], tmp_path, capsys)
    assert (tmp_path / "run" / "mine.txt").read_text() == "keep"


def test_without_a_schema_the_template_is_named(table: Any, tmp_path: Path, capsys: Any) -> None:
    arguments = table()
    at = arguments.index("--schema")
    refused(arguments[:at] + arguments[at + 2 :], ["apiece schema", "--out"], tmp_path, capsys)


@pytest.mark.parametrize("value", ["-inf", "", "old"])
def test_a_faulty_record_is_counted_aloud_and_nowhere_written(
    value: str, table: Any, tmp_path: Path, capsys: Any
) -> None:
    row = int(np.flatnonzero(people()["part"] == "train")[0])
    assert ask([*table(cell("age", value, row)), "--seed", "0"]) == 0
    said = capsys.readouterr().err
    assert "private" in said
    assert "1 of" in said
    for name in ("metrics.json", "plan.json", "log.jsonl", "report.html", "config.toml"):
        assert "contribute" not in (tmp_path / "run" / name).read_text()


def test_a_faulty_record_changes_nothing_for_others(tmp_path: Path) -> None:
    """With one record faulty, the model is the one of a run in which it cannot contribute."""
    import torch

    from apiece.jobs import prepare, run
    from apiece.jobs.config import job_from_dict
    from apiece.jobs.prepared import Prepared

    (tmp_path / "schema.toml").write_text(SCHEMA)
    people().to_csv(tmp_path / "people.csv", index=False)
    settings = {
        "source": str(tmp_path / "people.csv"),
        "label": "answer",
        "epsilon": "budget",
        "schema": str(tmp_path / "schema.toml"),
        "split": "part",
        "batch_size": 60,
        "steps": 15,
        "strategy": "uniform",
        "seed": 0,
    }
    job = job_from_dict({}, name="people", changes=settings)
    states = []
    for name, bad in (("nan", float("nan")), ("inf", float("inf")), ("clean", None)):
        ready: Prepared = prepare(job, out=tmp_path / name)
        if bad is not None:
            ready.people.train.features[0] = bad
        run(ready, out=tmp_path / name)
        content = torch.load(tmp_path / name / "model.pt", weights_only=True)
        states.append(content["state"]["0.weight"])
    assert torch.isfinite(states[0]).all()
    assert torch.equal(states[0], states[1])
    assert not torch.equal(states[0], states[2]), "the record took part while it was sound"


def interrupted(arguments: list[str], out: Path, *, models: int = 1) -> tuple[int, str]:
    """Run until the last of so many models has been begun; press Ctrl-C; return what came."""
    process = subprocess.Popen(
        [sys.executable, "-c", "from apiece.cli import main; main()", *last(arguments)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # a shell lets what it starts in the background ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    waited = time.monotonic() + 120
    while len(list(out.glob("checkpoints/*/journal"))) < models:
        assert time.monotonic() < waited, "it never began to train"
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said
    return process.returncode, said


def state(out: Path) -> dict[str, Any]:
    import torch

    found: dict[str, Any] = torch.load(out / "model.pt", weights_only=True)["state"]
    return found


def test_an_interrupted_run_goes_on_bit_by_bit(table: Any, tmp_path: Path, capsys: Any) -> None:
    """Stopped by Ctrl-C in its second model, resumed, and beside it a run without a pause."""
    arguments, out = table(), tmp_path / "run"
    at = arguments.index("--split")
    del arguments[at : at + 2]
    arguments += ["--seeds", "2", "--steps", "150", "--seed", "4", "--json"]
    code, said = interrupted(arguments, out, models=2)
    assert code == 130
    *warnings, last = said.splitlines()
    assert all(line.startswith("warning: ") for line in warnings)
    assert last.startswith("apiece train: interrupted after ")
    assert f"to go on: apiece train --resume {out}" in last
    assert sorted(p.name for p in out.iterdir()) == ["checkpoints", *FILES[:2], "plan.json"]
    assert json.loads((out / "log.jsonl").read_text().splitlines()[-1])["event"] == "interrupted"
    assert Plan.from_json((out / "plan.json").read_text()).verify().ok
    secret = [p for p in out.rglob("checkpoints/**/*") if p.is_file()] + [out / "checkpoints"]
    assert {p.stat().st_mode & 0o077 for p in secret} == {0}
    assert ask(["train", "--resume", str(out), "--json"]) == 0
    resumed = json.loads(capsys.readouterr().out)
    arguments[arguments.index("--out") + 1] = str(tmp_path / "whole")
    assert ask(arguments) == 0
    whole = json.loads(capsys.readouterr().out)
    one, other = state(out), state(tmp_path / "whole")
    assert all(bool((one[name] == other[name]).all()) for name in one)
    for metrics in (resumed, whole):
        for strategy in metrics["strategies"]:
            del strategy["seconds"]
    assert resumed == whole
    assert sorted(p.name for p in out.iterdir()) == FILES


def test_a_release_goes_on_with_the_same_people_and_no_others(
    table: Any, tmp_path: Path, capsys: Any
) -> None:
    """Its split was drawn by the operating system, and is drawn again as it was."""
    from apiece.cli.train import make_job
    from apiece.jobs import prepare, run
    from apiece.jobs.prepared import prepare_again

    table()
    settings = {"source": str(tmp_path / "people.csv"), "label": "answer", "epsilon": "budget"}
    settings |= {"schema": str(tmp_path / "schema.toml"), "strategy": "uniform", "delta": 1e-3}
    job = make_job(None, False, settings | {"batch_size": 20.0, "steps": 3})
    out = tmp_path / "run"
    first = prepare(job, out=out)

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(first, out=out, progress=stop)
    again = prepare_again(out)
    assert np.array_equal(again.people.train.features, first.people.train.features)
    assert not np.array_equal(
        prepare(job, out=tmp_path / "b").people.train.labels, first.people.train.labels
    )
    table(lambda frame: frame.assign(age=frame["age"].iloc[::-1].values))
    assert ask(["train", "--resume", str(out)]) == 1
    assert "its data is not the one given here" in capsys.readouterr().err
    config = (out / "config.toml").read_text()
    (out / "config.toml").write_text(config.replace("steps = 3", "steps = 4"))
    assert ask(["train", "--resume", str(out)]) == 1
    assert "its plan is not the one given here" in capsys.readouterr().err


def test_resume_refuses(table: Any, tmp_path: Path, capsys: Any) -> None:
    assert ask(table()) == 0
    assert ask(["train", "--resume", str(tmp_path / "run")]) == 1
    assert "was finished" in capsys.readouterr().err
    assert ask(["train", "--resume", str(tmp_path / "none")]) == 1
    assert "is no interrupted run" in capsys.readouterr().err
    assert ask(["train", "--resume", str(tmp_path / "run"), "--steps", "5"]) == 2
    assert "leave out steps" in capsys.readouterr().err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("quiet", [[], pytest.param(["--json"], marks=pytest.mark.slow)])
def test_the_bar_on_a_terminal_says_what_was_planned(
    quiet: list[str], table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from apiece.cli import _command

    terminal = Terminal()
    monkeypatch.setattr(_command, "PATIENCE", 0.0)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("COLUMNS", "200")
    assert ask([*table(), *quiet]) == 0
    assert ("step 6/6, planned ε 1 of 1" in terminal.getvalue()) == (not quiet)


def test_a_search_from_a_file(table: Any, tmp_path: Path, capsys: Any) -> None:
    arguments, space = table(), tmp_path / "space.toml"
    space.write_text("runs = 3\n[space]\nclip_norm = [1.0]\nlearning_rate = { uniform = [1, 3] }\n")
    tune = ["--tune", str(space)]
    assert ask([*arguments, *tune]) == 2
    assert "--learning-rate: is searched in" in capsys.readouterr().err
    at = arguments.index("--learning-rate")
    arguments = [*arguments[:at], *arguments[at + 2 :]]
    assert ask([*arguments, *tune, "--compare"]) == 2
    assert "chooses one model" in capsys.readouterr().err
    assert ask([*arguments, *tune, "--json"]) == 0
    metrics = json.loads(capsys.readouterr().out)
    (kept,) = metrics["strategies"]
    assert kept["plan"]["selection"]["runs"]["mean"] == 3
    assert 1 <= kept["settings"]["learning_rate"] <= 3
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == FILES
    space.write_text("runs = 3\nspaec = 1\n")
    assert ask([*arguments, *tune]) == 2
    assert "did you mean 'space'" in capsys.readouterr().err
