"""An analysis id stands for its terms: they are compared before a row is, and nothing else is told.

Under the same terms everybody gets the one answer that was recorded first; under others a constant
refusal, whatever was charged and wherever it was interrupted.
"""

from __future__ import annotations

import json
import math
import random
import secrets
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import Budgets, assign
from apiece.cli import run
from apiece.datasets import Categorical, Numeric, Schema, Text
from apiece.errors import AnalysisError, ApieceError, InputError
from apiece.ledger import Ledger, LedgerFilter
from apiece.ledger.plans import reserve_plan
from apiece.queries import Session, register, session
from apiece.queries.declarations import LARGEST, Declarations
from apiece.queries.estimates import estimate
from apiece.queries.grammar import parse
from apiece.queries.noise import draw_rounded_gaussians
from apiece.queries.quantiles import Grid, Segment, describe_group
from apiece.queries.question import resolve
from apiece.queries.table import Table
from refusals import refused

SIZE = 30
SCHEMA = Schema(
    {"age": Numeric(0, 100), "dx": Categorical(["flu", "HIV"])}, person="id", rows_per_person=1
)
COST = {"epsilon": 0.001, "delta": 1e-6}
WORLDS = ("flu", "HIV", None)  # p7's diagnosis; None: no row of theirs
Asking = Callable[[Session, Ledger], object]


def people(diagnosis: str | None, age: float = 27.0) -> pd.DataFrame:
    ids = [f"p{i}" for i in range(SIZE)]
    frame = pd.DataFrame({"id": ids, "age": [20.0 + i for i in range(SIZE)], "dx": "flu"})
    frame.loc[7, ["dx", "age"]] = diagnosis, age
    return frame if diagnosis else frame.drop(index=7)


def made(folder: Path, diagnosis: str | None, **more: Any) -> tuple[Session, Ledger]:
    ledger = Ledger.open(f"sqlite:///{folder}/{diagnosis}.db")
    ledger.enroll([f"p{i}" for i in range(SIZE)], 3.0, 1e-6)
    return Session(people(diagnosis), SCHEMA, ledger, **more), ledger


def ask(text: str, name: str = "a", **more: Any) -> Asking:
    return lambda asking, _: asking.ask(text, analysis_id=name, **{**COST, **more})


def interrupted(text: str, **more: Any) -> Asking:
    """Ask, and interrupt when the charge is made and the answer is not."""

    def asking(of: Session, ledger: Ledger) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(session, "draw_rounded_gaussians", _stop)
            with pytest.raises(KeyboardInterrupt):
                ask(text, **more)(of, ledger)

    return asking


def _stop(*_: object) -> Any:
    raise KeyboardInterrupt


def trained(_: Session, ledger: Ledger) -> None:
    ids = [f"p{i}" for i in range(SIZE)]
    plan = assign(
        Budgets(0.5, 1e-6, ids=ids), "scale", steps=1, expected_batch_size=SIZE, clip_norm=1.0
    )
    reserve_plan(ledger, "a", plan)


def filtered(_: Session, ledger: Ledger) -> None:
    accounts = LedgerFilter(ledger, [f"p{i}" for i in range(SIZE)], "a")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ledger, "commit", _stop)
        with pytest.raises(KeyboardInterrupt):
            accounts.admit(1.0, 9.0)


def outcome(asking: Asking, of: Session, ledger: Ledger) -> str:
    try:
        asking(of, ledger)
    except ApieceError as error:
        return f"{type(error).__name__}: {error}"
    return "an answer"


REFUSED = "AnalysisError: analysis {!r}: in use for another analysis or other terms; use a new id"
ORACLE = "count() where not (id = 'p7' and dx = 'HIV')"


@pytest.mark.parametrize(
    ("first", "then", "name"),
    [
        (interrupted("histogram(age, 10000) by dx"), ask(ORACLE), "a"),
        (interrupted("count()"), ask("count() where id != 'p7'"), "a"),
        (interrupted("sum(age) by dx"), ask("sum(age) where dx = 'flu'"), "a"),
        (interrupted("count()"), ask("count()", epsilon=0.002), "a"),
        (interrupted("count()"), ask("count()", delta=2e-6), "a"),
        (ask("count()"), ask(ORACLE), "a"),
        (trained, ask(ORACLE), "a"),
        (filtered, ask(ORACLE, "a/0"), "a/0"),
        (interrupted(ORACLE), trained, "a"),
        (
            lambda _, ledger: ledger.reserve("a", [f"p{i}" for i in range(SIZE)], 1.0, 1e4),
            ask(ORACLE),
            "a",
        ),
        (
            lambda _, ledger: ledger.reserve_everyone("a", 1.0, 1e4, terms={"census": 2026}),
            ask(ORACLE),
            "a",
        ),
    ],
)
def test_other_terms_are_refused_in_the_same_words_whatever_was_charged(
    first: Asking, then: Asking, name: str, tmp_path: Path
) -> None:
    seen = set()
    for diagnosis in WORLDS:
        asking, ledger = made(tmp_path, diagnosis)
        first(asking, ledger)
        before = ledger.head()
        with pytest.MonkeyPatch.context() as patched:  # before any row is read
            patched.setattr(Table, "contributions", lambda *_: 1 / 0)
            seen.add(outcome(then, asking, ledger))
        assert ledger.head() == before
    assert seen == {REFUSED.format(name)}


@pytest.mark.parametrize("other", ["rows", "kinds", "source"])
def test_schema_and_source_are_terms(other: str, tmp_path: Path) -> None:
    asking, ledger = made(tmp_path, "flu")
    interrupted("count()")(asking, ledger)
    schema, frame = SCHEMA, people("flu")
    if other == "rows":
        schema = SCHEMA.declare(rows_per_person=2)
    elif other == "kinds":
        schema = SCHEMA.declare({"dx": Text(values=["flu", "HIV"])})
    else:
        frame = people("flu", age=28.0)
    again = Session(frame, schema, ledger)
    assert outcome(ask("count()"), again, ledger) == REFUSED.format("a")
    assert outcome(ask("count()"), asking, ledger) == "an answer"


def test_who_is_enrolled_since_the_interruption_shows_in_nothing(tmp_path: Path) -> None:
    """The law of the same terms: their contributions differ, and nobody hears of it."""
    seen = []
    for diagnosis in WORLDS:
        ledger = Ledger.open(f"sqlite:///{tmp_path}/{diagnosis}.db")
        ids = [f"p{i}" for i in range(SIZE)]
        ledger.enroll([i for i in ids if i != "p7"], 3.0, 1e-6)
        asking = Session(people(diagnosis), SCHEMA, ledger, seed=5)
        interrupted("count() by dx")(asking, ledger)
        ledger.enroll(["p7"], 3.0, 1e-6)
        said: list[str] = []
        asking = Session(asking.source, SCHEMA, ledger, seed=6, log=said.append)
        seen.append(asking.ask("count() by dx", analysis_id="a", **COST))
        assert any("1 of 30 people have no budget" in line for line in said) == bool(diagnosis)
        assert ledger.spent(["p7"]).tolist() == [0.0]
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("at", ["norms", "noise"])
def test_whoever_comes_second_is_answered_with_what_was_first(
    at: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other asks all of it while this one scans, or when this one has charged already."""
    asking, ledger = made(tmp_path, "flu", seed=1)
    url = f"sqlite:///{tmp_path}/flu.db"
    other = Session(people("flu"), SCHEMA, Ledger.open(url), seed=2)
    answers, once = [], iter([True])
    where, name = {
        "norms": (session, "find_accounts"),
        "noise": (session, "draw_rounded_gaussians"),
    }[at]
    real = getattr(where, name)

    def overtaken(*given: Any) -> Any:
        if next(once, False):
            answers.append(other.ask("count()", analysis_id="a", **COST))
        return real(*given)

    monkeypatch.setattr(where, name, overtaken)
    own = asking.ask("count()", analysis_id="a", **COST)
    monkeypatch.undo()
    assert [own] == answers
    assert asking.ask("count()", analysis_id="a", **COST) == own
    assert [entry.kind for entry in ledger.history()].count("reserve") == 1
    assert ledger.verify().ok


def test_eight_processes_that_ask_at_once_hear_one_answer(ledger_url: str, tmp_path: Path) -> None:
    program = Path(__file__).with_name("crowd_asking.py")
    words = [sys.executable, str(program), ledger_url, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["answers"]) == 8
    assert len({json.dumps(answer, sort_keys=True) for answer in found["answers"]}) == 1
    assert found["kinds"].count("reserve") == found["kinds"].count("commit") == 1
    assert found["ok"]


@pytest.mark.slow
def test_of_eight_some_ask_on_other_terms(tmp_path: Path) -> None:
    """Who is first decides; all the others hear of their own terms only."""
    words = [sys.executable, str(Path(__file__).with_name("crowd_asking.py"))]
    words += [f"sqlite:///{tmp_path}/p.db", str(tmp_path), "mixed"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=True)
    found = json.loads(done.stdout)
    answers = [answer for answer in found["answers"] if isinstance(answer, dict)]
    refused = {answer for answer in found["answers"] if isinstance(answer, str)}
    assert answers
    assert all(answer == answers[0] for answer in answers)
    assert refused == {REFUSED.format("a").removeprefix("AnalysisError: ")}


def test_a_question_that_is_killed_is_refused_to_others_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code and words are those of the terms, in each world; then its own answer comes."""
    seen = set()
    for diagnosis in WORLDS:
        _, ledger = made(tmp_path, diagnosis)
        source = tmp_path / "people.csv"
        people(diagnosis).to_csv(source, index=False)
        words = ["--person", "id", "--bounds", "age=0:100", "--values", "dx=flu,HIV"]
        words += ["--epsilon", ".001", "--delta", "1e-6", "--analysis", "a"]
        words += ["--ledger", f"sqlite:///{tmp_path}/{diagnosis}.db", "--rows-per-person", "1"]
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(session, "draw_rounded_gaussians", _stop)
            first = run(["query", str(source), "histogram(age, 100) by dx", *words])
        second = run(["query", str(source), ORACLE, *words])
        said = capsys.readouterr()
        seen.add((first, second, said.out, said.err))
        assert ledger.status("a") == "reserved"
        assert run(["query", str(source), "histogram(age, 100) by dx", *words]) == 0
        assert ledger.status("a") == "committed"
        capsys.readouterr()
    assert len(seen) == 1
    assert next(iter(seen))[1] == 2


# No answer that is charged for fails to be recorded, whatever the noise is: an error that comes
# of one draw of it, and another draw at the next call, would tell more than was charged.


@pytest.mark.parametrize(
    "bounds", [(0, 1.7e308), (-1e300, 0), (1.6e308, 1.7e308), (0, 1.01e60), (0, 1e-61), (0, 5e-324)]
)
def test_bounds_with_which_an_answer_could_not_be_recorded_are_refused(
    bounds: tuple[float, float],
) -> None:
    with pytest.raises(InputError, match="low must be below high"):
        Declarations("id", bounds={"x": bounds}, rows_per_person=1)


QUERIES = [
    "count()", "sum(x)", "mean(x)", "variance(x)", "covariance(x, y)", "histogram(x, 4)",
    "quantile(x, 0.3)", "interval(x, 0.3)", "regression(x ~ y)", "regression(y ~ x)",
]  # fmt: skip
EXTREMES = [(-LARGEST, LARGEST), (0, LARGEST), (0, 1 / LARGEST), (-1 / LARGEST, 1), (0, 1)]
SUMS = st.sampled_from([0.0, 1.0, -1.0, 1e-9, 1e18, -1e18, 3.5, math.pi]) | st.floats(-1e18, 1e18)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(
    st.sampled_from([query for query in QUERIES if "0.3" not in query]),
    st.sampled_from(EXTREMES),
    st.sampled_from(EXTREMES),
    st.lists(SUMS, min_size=6, max_size=6),
    st.sampled_from([1e-6, 1.0, 1e9]),
)
def test_an_estimate_of_any_sums_can_be_recorded(
    text: str, x: Any, y: Any, sums: list[float], stddev: float
) -> None:
    schema = Schema({"x": Numeric(*x), "y": Numeric(*y)}, person="id", rows_per_person=1)
    question = resolve(parse(text), Declarations.from_schema(schema))
    noisy = np.resize(np.array(sums), question.shape[1:])
    json.dumps(estimate(question, noisy, stddev), allow_nan=False)


@settings(max_examples=12, derandomize=True, deadline=None)
@given(st.sampled_from(EXTREMES), st.data(), st.sampled_from([1e-5, 1.0, 1e6]))
def test_a_quantile_of_any_counts_can_be_recorded(
    bounds: tuple[float, float], data: Any, eta: float
) -> None:
    grid = Grid.from_bounds(*bounds)
    points = st.integers(0, grid.size - 1)
    counts = data.draw(st.dictionaries(points, st.integers(1, 10**5), max_size=5))
    cells = np.array(sorted(counts), np.int64)
    part = Segment(cells, np.array([counts[at] for at in cells], np.int64), 0, grid.size - 1)
    for text in ("median(x)", "interval(x, 0.3)", "quantile(x, .1, .2, .7)"):
        drawn = describe_group(grid, part, parse(text), eta, 3, secrets.randbits)
        for each in drawn.get("quantiles", {"": drawn}).values():
            assert bounds[0] <= each["estimate"] <= bounds[1]
        json.dumps(drawn, allow_nan=False)


@pytest.mark.parametrize("query", QUERIES)
def test_the_largest_bounds_are_answered_and_recorded(query: str, tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": range(20), "x": [1e300, -1e300] * 10, "y": [1e-300, 0.5] * 10})
    schema = Schema(
        {"x": Numeric(-LARGEST, LARGEST), "y": Numeric(0, 1 / LARGEST)},
        person="id",
        rows_per_person=1,
    )
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(range(20), 3.0, 1e-6)
    asking = Session(frame, schema, ledger)
    answer = asking.ask(query, epsilon=0.01, delta=1e-6, analysis_id="a")
    assert asking.ask(query, epsilon=0.01, delta=1e-6, analysis_id="a") == answer


def test_terms_that_are_no_json_are_refused(tmp_path: Path) -> None:
    _, ledger = made(tmp_path, "flu")
    for terms in (math.nan, object(), {"a": {1, 2}}):
        with refused(InputError, "terms", "JSON"):
            ledger.reserve("a", ["p1"], 1.0, 9.0, terms=terms)
    assert ledger.status("a") == "unknown"
    # in whatever order a value's keys were written, they are the same terms
    ledger.reserve("a", ["p1"], 1.0, 9.0, terms={"a": 1, "b": 2})
    assert ledger.status("a", {"b": 2, "a": 1}) == "reserved"
    assert ledger.reserve("a", ["p1"], 1.0, 9.0, terms={"b": 2, "a": 1}).tolist() == ["p1"]
    with pytest.raises(AnalysisError, match="other terms"):
        ledger.reserve("a", ["p1"], 1.0, 9.0)
    assert not any("p1" in str(entry) for entry in ledger.history())


def test_the_ledger_keeps_a_digest_of_terms_that_tells_nothing(tmp_path: Path) -> None:
    """Keyed with what stays inside: the same terms in two ledgers have nothing in common."""
    digests = set()
    for diagnosis in ("flu", "HIV"):
        asking, ledger = made(tmp_path, diagnosis)
        ledger.reserve("a", ["p1"], 1.0, 9.0, terms={"source": "a guess"})
        interrupted("count() where id = 'p9'", name="b")(asking, ledger)
        with ledger.engine.connect() as connection:
            bodies = connection.exec_driver_sql("SELECT body FROM apiece_entry").scalars().all()
        assert not any("p9" in body or asking.source.fingerprint in body for body in bodies)
        assert not any("a guess" in body for body in bodies)
        entries = [json.loads(body) for body in bodies]
        digests |= {entry["terms"] for entry in entries if entry.get("analysis") == "a"}
    assert len(digests) == 2


@cache
def table() -> Table:
    return register(people("flu"), SCHEMA)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: Session(table(), SCHEMA).ask("histogram(age, 20)", **COST).groups,
        lambda: draw_rounded_gaussians(20),
    ],
    ids=["a session", "the noise alone"],
)
def test_noise_is_drawn_from_the_operating_system(
    draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system gives decides it; the seeds of other generators do not."""

    def drawn(system: int, seed: int) -> Any:
        monkeypatch.setattr(random, "_urandom", random.Random(system).randbytes)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        return draw()

    assert drawn(1, 0) == drawn(1, 1)
    assert drawn(2, 0) != drawn(1, 0)
    monkeypatch.undo()
    random.seed(0)
    first = draw()
    random.seed(0)
    assert draw() != first
