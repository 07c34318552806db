"""What the noise hides is what a person can add: never less, and not a hundredth more.

Tables hold one person for each way to bring rows, so the widest of them is the worst neighbour.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_laplace
from apiece.datasets import Categorical, Lookup, Numeric, Schema
from apiece.filters.convert import gaussian_mu
from apiece.ledger import Ledger
from apiece.queries import Session, quantiles, query_cost, register
from apiece.queries.declarations import Declarations
from apiece.queries.parts import Part
from apiece.queries.quantiles import Grid, Law, Segment
from apiece.queries.question import Question
from apiece.queries.session import _Request

EPSILON = 0.7
DELTA = 1e-6
# Values at the bounds, where a contribution is the largest, and between them.
CORNERS = {"x": [-2.0, 6.0, 1.0], "y": [0.0, 10.0]}
SUMS = ["count()", "count(persons)", "count(x)", "sum(x)", "histogram(x, 3)"]
MOMENTS = ["mean(x)", "variance(x)", "covariance(x, y)", "regression(y ~ x)"]
BY = {"": 1, " by g": 2, " by g, h": 4}


def schema_of(rows: int, groups: int = 2) -> Schema:
    return Schema(
        {
            "x": Numeric(-2, 6),
            "y": Numeric(0, 10),
            "g": Categorical([str(each) for each in range(groups)]),
            "h": Categorical(["u", "v"]),
        },
        person="person",
        rows_per_person=rows,
    )


def every_person(rows: int) -> pd.DataFrame:
    """Return a table with a person for each bag of at most one more than so many rows."""
    corners = list(itertools.product(*CORNERS.values(), "01", "uv"))
    if rows > 1:  # of many bags those at the bounds
        corners = [row for row in corners if row[0] != 1.0 and row[1] != 0.0]
    bags = [
        bag
        for size in range(1, rows + 2)
        for bag in itertools.combinations_with_replacement(corners, size)
    ]
    cells = [(number, *row) for number, bag in enumerate(bags) for row in bag]
    return pd.DataFrame(cells, columns=["person", "x", "y", "g", "h"])


def used(table: Any, asked: Part) -> float:
    """Return the share of the sensitivity behind the noise that the widest person uses."""
    with table.contributions(asked.question, asked.grid) as held:
        _, steps = held.norms(1 if asked.pure else 2)
    # Laplace noise of scale b hides an ℓ1 norm of ε·b, Gaussian noise of σ an ℓ2 norm of μ·σ.
    hidden = asked.scale * (asked.epsilon if asked.pure else 1 / asked.multiplier)
    return float(steps.max(initial=0.0) * asked.grid / hidden)


def ask_of(text: str, schema: Schema, delta: float) -> Part:
    request = _Request.from_text(
        text, Declarations.from_schema(schema), EPSILON, delta, analysis_id="", source=""
    )
    (part,) = request.parts
    return part


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_norms_are_those_of_the_guide(rows: int) -> None:
    schema = schema_of(rows, groups=7)
    groups = min(rows, 7)
    expected = {
        "count(persons)": (1.0, 1.0),
        "count(persons) by g": (float(groups), math.sqrt(groups)),
        "count(rows) by g": (float(rows), float(rows)),
        "sum(x)": (float(rows), float(rows)),
        "histogram(x, 3) by g": (float(rows), float(rows)),
        "mean(x)": (None, rows * math.sqrt(2)),
        "variance(x)": (None, rows * math.sqrt(3)),
        "covariance(x, y)": (None, rows * 2.0),
        "regression(y ~ x)": (None, rows * math.sqrt(6)),
    }
    for text, norms in expected.items():
        question = ask_of(text, schema, DELTA).question
        for power, norm in enumerate(norms, start=1):
            if norm is not None:
                assert question.sensitivity(power)[0] == pytest.approx(norm, rel=1e-12), text


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_widest_person_uses_what_the_noise_hides(rows: int) -> None:
    schema = schema_of(rows)
    table = register(every_person(rows), schema)
    for text, by in itertools.product([*SUMS, *MOMENTS], BY):
        for delta in (DELTA, 0.0) if text in SUMS else (DELTA,):
            share = used(table, ask_of(text + by, schema, delta))
            assert 0.99 < share <= 1 + 1e-9, (text + by, rows, delta, share)


# Derived columns that overflow, divide by zero or are cast, and rows that a public table matches.
EXPRESSIONS = (
    "x * y", "clamp(1 / (x - 1), -3, 3)", "clamp(x / y, 0, 2)", "clamp(x * 1e60 * y, 0, 4)",
    "CASE WHEN y > 3 THEN x / 7 END", "clamp(CAST(g AS DOUBLE) / x, -1, 9)", "floor(y / 4)",
    "clamp(exp(x * 400), 0, 3)", "abs(x) - y", "weight", "x * weight", "coalesce(weight, y)",
)  # fmt: skip
STATISTICS = ("sum({})", "avg({})", "var_pop({})", "count({})", "histogram({}, 3)")
FROM = (
    "people",
    "people JOIN codes ON people.g = codes.code",
    "people LEFT JOIN codes ON people.g = codes.code",
    "people JOIN codes ON people.g = codes.code WHERE x / y > .4 GROUP BY kind",
    "people LEFT JOIN codes ON people.g = codes.code GROUP BY floor(y / 6)",
)


def joined_schema(rows: int) -> Schema:
    codes = {"code": ["0", "9"], "weight": [-2.5, 8.0], "kind": ["a", "b"]}
    return schema_of(rows).declare(lookups={"codes": Lookup(codes, "code", "g")})


@pytest.mark.parametrize("rows", [1, 2])
def test_the_widest_person_of_a_derived_column_is_hidden(rows: int) -> None:
    """Every person of those tables, over the grammar of SQL; some person comes near."""
    schema = joined_schema(rows)
    table = register(every_person(rows), schema)
    widest = 0.0
    for number, expression in enumerate(EXPRESSIONS):
        for offset, statistic in enumerate(STATISTICS):
            source = FROM[(number + offset) % len(FROM)]
            text = f"SELECT {statistic.format(expression)} FROM {source}"
            share = used(table, ask_of(text, schema, DELTA))
            assert 0 <= share <= 1 + 1e-9, (text, rows, share)
            widest = max(widest, share)
    assert widest > 0.99


@pytest.mark.parametrize(("rows", "groups"), [(50, 50), (3, 50), (50, 3), (7, 7)])
@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_a_person_in_many_groups(rows: int, groups: int, delta: float) -> None:
    """One spreads rows over the groups, one brings all of them to one group."""
    schema = schema_of(rows, groups)
    spread = pd.DataFrame({"person": "spread", "g": [str(k % groups) for k in range(rows)]})
    heaped = pd.DataFrame({"person": "heaped", "g": ["0"] * rows})
    frame = pd.concat([spread, heaped]).assign(x=6.0, y=10.0, h="u")
    table = register(frame, schema)
    for text in ("count(persons) by g", "count(rows) by g", "sum(x) by g", "histogram(x, 4) by g"):
        assert 0.99 < used(table, ask_of(text, schema, delta)) <= 1 + 1e-9, text


def test_a_sum_without_a_person_lacks_what_the_person_is_charged_for() -> None:
    """Tables with and without the widest person and others: their sums differ by the norm."""
    schema = schema_of(2)
    frame = every_person(2)
    whole = register(frame, schema)
    for text in ("count(persons) by g", "sum(x) by g", "variance(x)", "histogram(x, 3) by h"):
        asked = ask_of(text, schema, DELTA)
        with whole.contributions(asked.question, asked.grid) as held:
            ids, norms = held.norms(2)
            everybody = held.totals(None)
        people = ids.to_pylist()
        for person in (people[int(norms.argmax())], "0", "17"):
            rest = register(frame[frame["person"].astype(str) != person], schema)
            with rest.contributions(asked.question, asked.grid) as held:
                others = held.totals(None)
            lacks = [
                here - there
                for cell, sums in everybody.items()
                for here, there in zip(sums, others.get(cell, [0] * len(sums)), strict=True)
            ]
            expected = norms[people.index(person)]
            assert math.hypot(*map(float, lacks)) == pytest.approx(expected, rel=1e-9), text


@pytest.mark.parametrize("delta", [DELTA, 0.0])
def test_noise_of_persons_by_group_is_as_wide_as_the_promise_needs(delta: float) -> None:
    """The error of 50 groups: √50 of one group's where it is Gaussian, 50 where it is Laplace."""
    schema = Schema({"g": Categorical([*map(str, range(50))])}, person="p", rows_per_person=50)
    frame = pd.DataFrame({"p": np.arange(100), "g": np.arange(100) % 50})
    session = Session(frame.astype(str), schema, seed=1)
    errors = [
        group["estimate"] - 2
        for _ in range(40)
        for group in session.ask("count(persons) by g", epsilon=EPSILON, delta=delta).groups
    ]
    expected = math.sqrt(2) * 50 / EPSILON
    if delta:
        expected = math.sqrt(50) / float(gaussian_mu(EPSILON, delta))
    # Of 2,000 draws the standard deviation lies within 8 % at four standard errors, or more.
    assert np.std(errors) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("text", "delta"),
    [
        *itertools.product([*SUMS, "count(persons) by g", "sum(x) by g, h"], [DELTA, 0.0]),
        *itertools.product([*MOMENTS, "mean(x) by g"], [DELTA]),
        ("median(x)", 0.0),
        ("quantile(x, .2, .5, .9) by g", 0.0),
        ("interval(x, .5)", 0.0),
    ],
)
def test_the_widest_person_is_charged_what_the_guide_says(
    text: str, delta: float, tmp_path: Path
) -> None:
    """μ of the question's (ε, δ), as `query_cost` has it; nobody else is charged more."""
    schema = schema_of(2)
    frame = every_person(2)
    people = frame["person"].unique().tolist()
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(people, 6.0, DELTA)
    Session(frame, schema, ledger).ask(text, epsilon=EPSILON, delta=delta)
    cost = query_cost(text, schema, epsilon=EPSILON, delta=delta)
    promised = float(gaussian_mu(EPSILON, delta)) if delta else float(gaussian_of_laplace(EPSILON))
    if "median" in text or "quantile" in text or "interval" in text:
        draws = {"median": 1, "quantile": 2, "interval": 3}[text.split("(")[0]]
        promised = float(gaussian_of_bounded_range(EPSILON / draws)) * math.sqrt(draws)
    assert cost.mu == pytest.approx(promised, rel=1e-9)
    assert ledger.spent(people).max() == pytest.approx(promised**2, rel=1e-5)


# Quantiles: the exponential mechanism's norm is the range of the loss.


MANY = Grid.from_points(0, 2**22, 0)
PROBES = (0, 1, 2, 3, 2**22 - 4, 2**22 - 3, 2**22 - 2, 2**22 - 1)


def losses(before: Segment, after: Segment, level: float, rows: int) -> np.ndarray:
    """Return the log-ratio of each probe's chance between two tables."""
    rate = quantiles.compute_rate(level, EPSILON, rows)
    logs = []
    for part in (before, after):
        law = Law.from_segment(MANY, part, quantiles.quantize_level(level) * part.rows, rate)
        falls = [
            fall
            for point in PROBES
            for place, fall in zip(law.stretches, law.decays, strict=True)
            if place.low <= point <= place.high
        ]
        logs.append(np.log(np.array(falls, float)) - math.log(sum(law.weights)))
    return np.asarray(logs[0] - logs[1])


@pytest.mark.parametrize("level", [0.05, 0.25, 0.5, 0.9])
@pytest.mark.parametrize(("rows", "own"), [(1, 1), (4, 4), (4, 1)])
def test_a_draw_uses_its_whole_range_and_its_whole_epsilon(
    level: float, rows: int, own: int
) -> None:
    """Rows on one point of many; those added lie below it, on it or above it."""
    odds = [level / (1 - level), (1 - level) / level]
    counts = {math.ceil(own * odd - 1e-9) * times for odd in odds for times in (0, 1, 2)}
    widest = largest = 0.0
    for count, middle, end in itertools.product(counts, (2, 2**22 - 3), PROBES):
        points = np.array([middle] if count else [], np.int64)
        before = Segment(points, points * 0 + count, 0, MANY.size - 1)
        loss = losses(before, before.with_rows(end, own), level, rows)
        widest = max(widest, float(np.ptp(loss)))
        largest = max(largest, float(np.abs(loss).max()))
    assert 0.99 < widest / (EPSILON * own / rows) <= 1 + 1e-9
    assert 0.99 < largest / (EPSILON * own / rows) <= 1 + 1e-9


# Planted breaks: norms of another kind than the noise. Both sides of the law find them.


@pytest.mark.parametrize("kind", ["too much", "too little", "the other norm"])
def test_planted_norms_are_found(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Question.sensitivity

    def planted(question: Question, power: int) -> tuple[float, float]:
        if kind == "the other norm":
            return real(question, 3 - power)
        norm, steps = real(question, power)
        return norm * (question.rows if kind == "too much" else 1 / question.rows), steps

    monkeypatch.setattr(Question, "sensitivity", planted)
    schema = schema_of(2)
    table = register(every_person(2), schema)
    shares = [used(table, ask_of("count(persons) by g", schema, delta)) for delta in (DELTA, 0.0)]
    assert any(not 0.99 < share <= 1 + 1e-9 for share in shares)
