"""apiece train on a number: errors with intervals, a model that predicts it, a report of both."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.errors import DataError, InputError, StewardWarning
from apiece.jobs import Run, load_model

from .options import ask

ROWS = 600
SCHEMA = """
[columns.age]
kind = "numeric"
lower = 0
upper = 100
[columns.since]
kind = "date"
lower = 2000-01-01
upper = 2020-01-01
format = "%d.%m.%Y"
missing = [""]
[columns.pay]
kind = "numeric"
lower = 0
upper = 300
"""


def people() -> pd.DataFrame:
    generator = np.random.default_rng(0)
    age, days = generator.uniform(0, 100, ROWS), generator.integers(0, 7000, ROWS)
    since = pd.Timestamp("2000-01-01") + pd.to_timedelta(days, unit="D")
    pay = age + days / 70 + generator.normal(0, 5, ROWS)
    written = [day.strftime("%d.%m.%Y") for day in since]
    columns = {"age": age.round(2), "since": written, "pay": pay.round(2)}
    return pd.DataFrame({**columns, "consent": 3.0, "part": np.arange(ROWS) % 3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("regression")
    frame = people()
    frame["part"] = np.where(frame["part"] > 0, "train", "test")
    frame.to_csv(place / "people.csv", index=False)
    (place / "s.toml").write_text(SCHEMA)
    assert train(place, place / "run", "--seed", "0") == 0
    return place


def train(place: Path, out: Path, *more: str) -> int:
    words = f"train --data {place}/people.csv --schema {place}/s.toml --label pay --epsilon consent"
    words += (
        f" --delta 1e-4 --split part --strategy uniform --batch-size 200 --steps 60 --out {out}"
    )
    return ask([*words.split(), "--learning-rate", "0.5", *more])


def test_errors_have_intervals(folder: Path) -> None:
    run = Run.load(folder / "run")
    (errors,) = run.kept.test_errors
    assert run.data.target_range == (0.0, 300.0)
    assert run.data.classes == run.kept.test_accuracy == ()
    assert 0 < errors.mean_absolute.value < 25
    assert 0.5 < errors.r2.value < 1
    for each in (errors.mean_absolute, errors.r2):
        assert each.lower < each.value < each.upper
    assert run.kept.promises[0].epsilon_spent <= 3.0


def test_the_model_predicts_numbers_in_the_range(folder: Path) -> None:
    model = load_model(folder / "run" / "model.pt")
    frame = pd.DataFrame({"age": [50, 1e9, np.nan], "since": ["01.01.2010", "", "01.01.2010"]})
    with pytest.warns(StewardWarning, match="1 of 3 rows are not predicted"):
        found = model.predict(frame)
    assert found[2] is None
    numbers = [n for n in found if isinstance(n, float)]
    assert len(numbers) == 2
    assert all(0 <= n <= 300 for n in numbers)
    assert abs(numbers[0] - 100) < 40
    with pytest.raises(InputError, match="ask predict"):
        model.probabilities(frame)


def test_the_report_and_the_closing_table_say_so(folder: Path) -> None:
    from apiece.reporting.closing import closing_table

    page = (folder / "run" / "report.html").read_text()
    for words in ("mean absolute error", "R²", "a number from", "95 % interval"):
        assert words in page
    assert "classes" not in page.split("<header>")[1].split("</header>")[0]
    table = closing_table(Run.load(folder / "run"))
    assert "mean absolute error" in table
    assert "test accuracy" not in table


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["test_errors"][0]["r2"].update(lower=0.99), "does not hold its value"),
        (lambda s: s["test_errors"][0].pop("r2"), "r2"),
        (lambda s: s["test_errors"].append(s["test_errors"][0]), "test_errors"),
        (lambda s: s.update(test_accuracy=[0.5]), "test_accuracy"),
    ],
)
def test_a_changed_folder_is_refused(
    folder: Path, change: Any, message: str, tmp_path: Path
) -> None:
    for file in (folder / "run").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    told = json.loads((tmp_path / "metrics.json").read_text())
    change(told["strategies"][0])
    (tmp_path / "metrics.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=message):
        Run.load(tmp_path)


def test_what_teaches_nothing_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(folder / "people.csv", dtype=str, keep_default_na=False)
    (tmp_path / "s.toml").write_text(SCHEMA)
    for cell in ("", "much", "inf"):
        frame.loc[7, "pay"] = cell
        frame.to_csv(tmp_path / "people.csv", index=False)
        assert train(tmp_path, tmp_path / "run") == 2
        said = capsys.readouterr().err
        assert f"label column 'pay', row 8 = {cell!r}: no finite number" in said
        assert said.count("\n") == 1
        assert not (tmp_path / "run").exists()


def test_an_audit_of_classes_refuses_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(["audit", str(folder / "run")]) == 2
    said = capsys.readouterr().err
    assert "predicts the number 'pay'" in said
    assert said.count("\n") == 1
