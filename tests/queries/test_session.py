"""Private queries: right on average, intervals that cover, charges that are each person's own."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from apiece.accounting import privacy_curve
from apiece.accounting.slack import gaussian_of_bounded_range, gaussian_of_laplace
from apiece.datasets import Categorical, Numeric, Schema
from apiece.errors import DataError, InputError, StateError
from apiece.filters.convert import gaussian_mu
from apiece.ledger import Ledger
from apiece.mechanisms import Laplace
from apiece.queries import Session, query_cost, register
from apiece.queries.table import Table
from refusals import refused

N = 4000


@pytest.fixture(scope="module")
def table(people: pd.DataFrame) -> Table:
    return register(people, SCHEMA)


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.uniform(18, 90, N)
    income = np.clip(rng.lognormal(10.3, 0.6, N) + 200 * (age - 50), 0, None)
    region = rng.choice(["north", "south", "east"], N, p=[0.5, 0.3, 0.2])
    return pd.DataFrame({"id": np.arange(N), "age": age, "income": income, "region": region})


SCHEMA = Schema(
    {
        "age": Numeric(0, 100),
        "income": Numeric(0, 200_000),
        "region": Categorical(["north", "south", "east"]),
    },
    person="id",
    rows_per_person=1,
)


def session(people: object, seed: int = 0, schema: Schema = SCHEMA, **more: object) -> Session:
    return Session(people, schema, seed=seed, **more)  # type: ignore[arg-type]


def truth(people: pd.DataFrame, aggregate: str) -> list[float]:
    income = people["income"].clip(0, 200_000)
    age = people["age"].clip(0, 100)
    slope, intercept = np.polyfit(age, income, 1)
    return {
        "count()": [float(len(people))],
        "sum(income)": [income.sum()],
        "mean(income)": [income.mean()],
        "variance(age)": [age.var(ddof=0)],
        "covariance(age, income)": [np.cov(age, income, ddof=0)[0, 1]],
        "quantile(income, 0.25)": [income.quantile(0.25)],
        "mean(age) by region": [
            age[people["region"] == r].mean() for r in ("north", "south", "east")
        ],
        "histogram(age, 5)": np.histogram(age, 5, (0, 100))[0].astype(float).tolist(),
        "regression(income ~ age)": [intercept, slope],
    }[aggregate]


def cells(groups: list[dict]) -> list[dict]:
    found = []
    for group in groups:
        if "bins" in group:
            found += group["bins"]
        elif "coefficients" in group:
            found += group["coefficients"].values()
        else:
            found.append(group)
    return found


QUERIES = [
    "count()",
    "sum(income)",
    "mean(income)",
    "variance(age)",
    "covariance(age, income)",
    "quantile(income, 0.25)",
    "mean(age) by region",
    "histogram(age, 5)",
    "regression(income ~ age)",
]


@pytest.mark.parametrize("query", [query for query in QUERIES if "quantile" not in query])
def test_intervals_cover(people: pd.DataFrame, table: Table, query: str) -> None:
    expected = truth(people, query)
    runs, covered, total = 16, 0, 0
    for seed in range(runs):
        found = cells(session(table, seed).ask(query, epsilon=1.0, delta=1e-6).groups)
        assert len(found) == len(expected)
        for cell, value in zip(found, expected, strict=True):
            low, high = cell["interval"]
            assert low <= cell["estimate"] <= high
            covered += low <= value <= high
            total += 1
    # 95 % nominal; a run of 16 falls below 11 once in 10⁵ if that holds.
    assert covered / total >= 11 / 16


def test_nearly_no_noise_gives_the_true_value(people: pd.DataFrame, table: Table) -> None:
    for query in QUERIES:
        found = cells(session(table).ask(query, epsilon=2e5, delta=1e-6).groups)
        for cell, value in zip(found, truth(people, query), strict=True):
            tolerance = 1e-2 * abs(value) + 1e-3
            assert cell["estimate"] == pytest.approx(value, abs=tolerance), query


def test_error_is_what_the_noise_says(table: Table) -> None:
    mu = float(gaussian_mu(0.5, 1e-6))
    errors = [
        session(table, seed).ask("count()", epsilon=0.5, delta=1e-6).groups[0]["estimate"] - N
        for seed in range(40)
    ]
    # A standard deviation from 40 draws lies within 45 % at four standard errors.
    assert np.std(errors) == pytest.approx(1 / mu, rel=0.45)


def test_rows_of_a_person_are_bounded() -> None:
    frame = pd.DataFrame({"id": ["a"] * 50 + ["b"] * 2, "x": [1.0] * 52})
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=3)
    answer = session(frame, schema=schema).ask("sum(x)", epsilon=1e5, delta=1e-6)
    assert answer.groups[0]["estimate"] == pytest.approx(5, abs=0.2)


def test_others_do_not_change_which_rows_are_kept() -> None:
    rng = np.random.default_rng(4)
    mine = pd.DataFrame({"id": 1, "x": rng.random(20)})
    others = pd.DataFrame({"id": np.repeat(np.arange(2, 40), 20), "x": rng.random(38 * 20)})
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=2)

    def total(frame: pd.DataFrame) -> float:
        answer = session(frame, schema=schema).ask("sum(x)", epsilon=1e8, delta=0.5)
        return float(answer.groups[0]["estimate"])

    both = pd.concat([others, mine]).sample(frac=1, random_state=1)
    assert total(both) == pytest.approx(total(mine) + total(others), abs=5e-2)


def test_missing_and_odd_values_contribute_nothing() -> None:
    frame = pd.DataFrame({"id": range(6), "x": [1.0, None, np.nan, np.inf, -np.inf, 0.5]})
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1)
    answer = session(frame, schema=schema).ask("sum(x)", epsilon=1e5, delta=1e-6)
    assert answer.groups[0]["estimate"] == pytest.approx(2.5, abs=0.05)  # inf is clamped to 1


def test_each_person_pays_for_their_own_contribution(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["low", "mid", "high", "none"], "x": [0.0, 50.0, 100.0, None]})
    schema = Schema({"x": Numeric(0, 100)}, person="id", rows_per_person=1)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(frame["id"], 1.0, 1e-6)
    asking = session(frame, schema=schema, ledger=ledger)
    asking.ask("sum(x)", epsilon=0.5, delta=1e-6, analysis_id="a")
    mu = float(gaussian_mu(0.5, 1e-6))
    assert ledger.spent(frame["id"]) == pytest.approx([0, mu**2 / 4, mu**2, 0], rel=1e-4)
    assert ledger.verify().ok


@pytest.mark.parametrize(
    "query", ["count()", "sum(income)", "count() by region", "histogram(age, 5)"]
)
def test_laplace_noise_where_delta_is_0(people: pd.DataFrame, table: Table, query: str) -> None:
    asked = {
        "count() by region": [
            float((people["region"] == r).sum()) for r in SCHEMA.columns["region"].values
        ]
    }
    expected = asked[query] if query in asked else truth(people, query)
    runs, covered = 24, 0
    for seed in range(runs):
        answer = session(table, seed).ask(query, epsilon=0.7, delta=0.0)
        for cell, value in zip(cells(answer.groups), expected, strict=True):
            low, high = cell["interval"]
            assert high - low == pytest.approx(2 * (high - cell["estimate"]))
            covered += low <= value <= high
    # 95 % nominal; 24 cells fall below 17 once in 10⁴ if that holds.
    assert covered / (runs * len(expected)) >= 17 / 24
    assert answer.noise_multiplier == pytest.approx(1 / 0.7)
    assert "(0.7, 0)-DP" in answer.guarantee
    assert "Laplace" in answer.guarantee


def test_laplace_noise_costs_each_their_own_and_what_is_counted_is_what_it_promises(
    tmp_path: Path,
) -> None:
    """Several rows of a person in several cells: their sizes add up, not their squares."""
    frame = pd.DataFrame(
        {"id": ["two"] * 2 + ["one", "half", "none"], "x": [100.0, 100.0, 100.0, 50.0, None],
         "g": ["a", "b", "a", "a", "a"]}
    )  # fmt: skip
    schema = Schema(
        {"x": Numeric(0, 100), "g": Categorical(["a", "b"])}, person="id", rows_per_person=2
    )
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    who = ["two", "one", "half", "none"]
    ledger.enroll(who, 6.0, 1e-6)
    asking = session(frame, schema=schema, ledger=ledger)
    first = asking.ask("sum(x) by g", epsilon=0.8, delta=0.0, analysis_id="a")
    assert asking.ask("sum(x) by g", epsilon=0.8, delta=0.0, analysis_id="a") == first
    mu = gaussian_of_laplace([0.8, 0.4, 0.2, 0.0])
    assert ledger.spent(who) == pytest.approx(mu**2, rel=1e-6)
    assert (ledger.spent(who) >= mu**2 * (1 - 1e-6)).all()
    needed = privacy_curve(Laplace(1 / 0.8)).epsilon(1e-6).upper
    assert gaussian_mu(needed, 1e-6) < mu[0]  # by its own ε alone it would be charged too little
    assert ledger.verify().ok


def test_a_quantile_is_within_its_margin_and_promises_no_delta(
    people: pd.DataFrame, table: Table
) -> None:
    ages = people["age"].clip(0, 100).to_numpy()
    within = 0
    for seed in range(24):
        answer = session(table, seed).ask("quantile(age, 0.25)", epsilon=0.1, delta=1e-6)
        (found,) = answer.groups
        below, upto = (ages < found["estimate"]).sum(), (ages <= found["estimate"]).sum()
        missed = max(below - 0.25 * len(ages), 0.25 * len(ages) - upto, 0)
        within += missed <= found["rank_margin"]
    assert within >= 17
    assert found["rank_margin"] < len(ages) / 4
    assert answer.delta == 0
    assert "(0.1, 0)-DP" in answer.guarantee
    assert "exponential mechanism" in answer.guarantee


def test_a_quantile_costs_each_by_their_rows(tmp_path: Path) -> None:
    frame = pd.DataFrame({"id": ["two"] * 3 + ["one", "none"], "x": [1.0, 2.0, 3.0, 50.0, None]})
    schema = Schema({"x": Numeric(0, 100)}, person="id", rows_per_person=2)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(["two", "one", "none", "absent"], 6.0, 1e-6)
    asking = session(frame, schema=schema, ledger=ledger)
    first = asking.ask("quantile(x, 0.5)", epsilon=0.8, delta=1e-6, analysis_id="a")
    assert asking.ask("quantile(x, 0.5)", epsilon=0.8, delta=1e-6, analysis_id="a") == first
    mu = gaussian_of_bounded_range([0.8, 0.4, 0.0, 0.0])
    assert ledger.spent(["two", "one", "none", "absent"]) == pytest.approx(mu**2, rel=1e-6)
    assert (ledger.spent(["two", "one", "none", "absent"]) >= mu**2 * (1 - 1e-9)).all()
    assert ledger.verify().ok


@pytest.mark.parametrize(
    ("query", "delta", "rows"),
    [("count()", 1e-6, 2), ("sum(x)", 0.0, 1), ("count(persons)", 0.0, 1), ("median(x)", 0.0, 2),
     ("quantile(x, .2, .5, .9)", 1e-6, 1), ("interval(x, .5)", 0.0, 1)],
)  # fmt: skip
def test_an_account_pays_as_often_as_the_cost_says(
    query: str, delta: float, rows: int, tmp_path: Path
) -> None:
    """Of the person who adds the most; the charges are what `spent` tells."""
    frame = pd.DataFrame({"id": ["ann"] * rows, "x": [10.0] * rows})
    schema = Schema({"x": Numeric(0, 10)}, person="id", rows_per_person=rows)
    cost = query_cost(query, schema, epsilon=0.5, delta=delta)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(["ann"], 6.0, 1e-6)
    asking = session(frame, schema=schema, ledger=ledger)
    paid, before = -1, -1.0
    while ledger.spent(["ann"])[0] > before:
        paid, before = paid + 1, ledger.spent(["ann"])[0]
        answer = asking.ask(query, epsilon=0.5, delta=delta)
    assert 1 < paid == cost.times(6.0, 1e-6)
    assert before == pytest.approx(paid * cost.mu**2, rel=1e-5)
    told = {name: getattr(answer, name) for name in ("delta", "noise_multiplier", "counted")}
    assert told == {name: getattr(cost, name) for name in told}


@pytest.mark.parametrize("epsilon", [0.12345649, 0.1, 1.00000049, 3.0])
def test_the_promise_in_words_is_never_below_the_promise(epsilon: float, table: Table) -> None:
    answer = session(table).ask("count()", epsilon=epsilon, delta=1.00000049e-6)
    said_epsilon, said_delta = answer.guarantee.split(")")[0][1:].split(", ")
    assert epsilon <= float(said_epsilon) <= epsilon * (1 + 1e-5)
    assert 1.00000049e-6 <= float(said_delta) <= 1.0001e-6


@pytest.mark.parametrize("query", ["mean(income)", "covariance(age, income)", "variance(age)"])
def test_what_has_gaussian_noise_needs_a_delta(people: pd.DataFrame, query: str) -> None:
    with refused(InputError, "delta", 0):
        session(people).ask(query, epsilon=1.0, delta=0.0)


def test_a_question_that_was_charged_and_not_answered_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of so many that threads find them in another order each time; nobody pays twice."""
    many = pd.DataFrame({"id": np.arange(300_000), "x": 1.0})
    schema = Schema({"x": Numeric(0, 1)}, person="id", rows_per_person=1)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/people.db")
    ledger.enroll(many["id"].to_numpy(), 2.0, 1e-6)
    terms = {"epsilon": 1.0, "delta": 1e-6, "analysis_id": "sum"}
    with monkeypatch.context() as killed:
        killed.setattr(Ledger, "commit", lambda *_: 1 / 0)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                session(many, schema=schema, ledger=ledger).ask("sum(x)", **terms)
    spent = ledger.spent(many["id"].to_numpy())
    found = session(many, schema=schema, ledger=ledger).ask("sum(x)", **terms)
    assert found.groups[0]["estimate"] == pytest.approx(300_000, abs=100)
    assert ledger.spent(many["id"].to_numpy()).tolist() == spent.tolist()


def test_answers_come_from_those_still_active(tmp_path: Path, people: pd.DataFrame) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(people["id"].to_numpy(), np.where(people["id"] < 1000, 0.1, 50.0), 1e-6)
    asking = session(people, ledger=ledger)
    answer = asking.ask("count()", epsilon=5.0, delta=1e-6, analysis_id="c")
    assert answer.groups[0]["estimate"] == pytest.approx(3000, abs=10)
    again = session(people, seed=99, ledger=ledger)
    assert again.ask("count()", epsilon=5.0, delta=1e-6, analysis_id="c") == answer
    with pytest.raises(StateError, match="in use for another analysis"):
        again.ask("sum(age)", epsilon=5.0, delta=1e-6, analysis_id="c")
    nobody = asking.ask("count() where age > 500", epsilon=1.0, delta=1e-6)
    assert abs(nobody.groups[0]["estimate"]) < 40


def test_bad_input(people: pd.DataFrame, tmp_path: Path) -> None:
    ask = {"epsilon": 1.0, "delta": 1e-6}
    with pytest.raises(DataError, match="no declared bounds"):
        Session(people, Schema({}, person="id", rows_per_person=1)).ask("mean(income)", **ask)
    with pytest.raises(DataError, match="no declared groups"):
        session(people).ask("count() by age", **ask)
    with pytest.raises(DataError, match="not in the source"):
        session(people, schema=Schema({"wage": Numeric(0, 1)}, person="id", rows_per_person=1)).ask(
            "sum(wage)", **ask
        )
    with pytest.raises(DataError, match="not in the source"):
        session(people, schema=Schema({}, person="person", rows_per_person=1)).ask("count()", **ask)
    with pytest.raises(InputError, match=r"neither a \.parquet"):
        session("DELETE FROM people").ask("count()", **ask)
    with pytest.raises(InputError, match=r"neither a \.parquet"):
        session("SELECT 1 AS id")
    with pytest.raises(InputError, match="not a path, a pandas or an Arrow table"):
        session([1, 2])
    with refused(DataError, "source"):
        session(tmp_path / "absent.parquet").ask("count()", **ask)
    with refused(InputError, "epsilon"):
        session(people).ask("count()", epsilon=0, delta=1e-6)
    with pytest.raises(InputError, match="must be less than"):
        Schema({"x": Numeric(3, 3)}, person="id", rows_per_person=1)
    with pytest.raises(InputError, match="low must be below high"):
        session(people, schema=Schema({"income": Numeric(0, 1e300)}, person="id"))
    with pytest.raises(InputError, match="finite"):
        Schema({"x": Numeric(0, float("inf"))}, person="id", rows_per_person=1)
    with pytest.raises(InputError, match="not the one"):
        Session(register(people, SCHEMA), Schema({}, person="id", rows_per_person=1))
    many = Schema(
        {"x": Numeric(0, 1), "g": Categorical(range(5000))}, person="id", rows_per_person=1
    )
    with pytest.raises(InputError, match="at most 4194304"):
        session(people.assign(x=0, g=0), schema=many).ask("histogram(x, 1000) by g", **ask)


@pytest.mark.parametrize(
    "query", ["count() by estimate", "count() by interval", "regression(x ~ intercept)"]
)
def test_a_column_named_as_a_part_of_the_answer(query: str) -> None:
    frame = pd.DataFrame({"id": [1], "estimate": 1, "interval": 1, "x": 1, "intercept": 1})
    schema = Schema(
        {
            "x": Numeric(0, 2),
            "intercept": Numeric(0, 2),
            "estimate": Categorical([1]),
            "interval": Categorical([1]),
        },
        person="id",
        rows_per_person=1,
    )
    with pytest.raises(InputError, match="rename the column"):
        session(frame, schema=schema).ask(query, epsilon=1.0, delta=1e-6)


def test_the_promise_says_what_was_spent_and_whether_a_ledger_bounds_the_rest(
    people: pd.DataFrame, tmp_path: Path
) -> None:
    few = people.head(50).astype({"id": str})
    promised = "(0.5, 1e-06)-DP under adding or removing all rows of a person"
    alone = session(few).ask("count()", epsilon=0.5, delta=1e-6)
    assert alone.guarantee.startswith(promised)
    assert alone.guarantee.endswith("; this query alone")
    ledger = Ledger.open(f"sqlite:///{tmp_path}/l.db")
    ledger.enroll(few["id"].to_numpy(), 1.0, 1e-5)
    charged = session(few, ledger=ledger).ask("count()", epsilon=0.5, delta=1e-6, analysis_id="a")
    assert charged.guarantee.startswith(promised)
    assert "each person's own budget" in charged.guarantee


VISITS = Schema(
    {"x": Numeric(0, 10), "ward": Categorical(["a", "b", "c"]), "sex": Categorical(["f", "m"])},
    person="id",
    rows_per_person=2,
)


def visits() -> pd.DataFrame:
    """Three people with 3, 2 and 1 rows; the first was in ward a twice."""
    columns = {"id": [1, 1, 1, 2, 2, 3], "ward": list("aababc"), "sex": list("ffffmm")}
    return pd.DataFrame(columns | {"x": [1.0, None, 3.0, 4.0, 5.0, 6.0]})


@pytest.mark.parametrize(
    ("query", "expected", "counted", "rows"),
    [
        ("count()", [5], "rows", 2),
        ("count(rows)", [5], "rows", 2),
        ("count(persons)", [3], "persons", 1),
        ("count(persons) where x < 4.5", [2], "persons", 1),
        ("count(persons) by ward", [2, 2, 1], "persons", 2),
        ("count(persons) by (ward, sex)", [2, 0, 1, 1, 0, 1], "persons", 2),
        ("count(rows) by ward, sex", [2, 0, 1, 1, 0, 1], "rows", 2),
        ("sum(x) by sex", [8, 11], "rows", 2),
        ("count() where x is null", [1], "rows", 2),
        ("mean(x) where ward = 'a'", [2.5], "rows", 2),
    ],
)
def test_what_is_counted(query: str, expected: list[float], counted: str, rows: int) -> None:
    answer = session(visits(), schema=VISITS).ask(query, epsilon=1e5, delta=1e-6)
    found = [group["estimate"] for group in answer.groups]
    assert found == pytest.approx(expected, abs=0.05)
    assert (answer.counted, answer.rows_per_person) == (counted, rows)
    if "by (ward" in query:
        assert [(each["ward"], each["sex"]) for each in answer.groups[:3]] == [
            ("a", "f"), ("a", "m"), ("b", "f"),
        ]  # fmt: skip


def test_a_person_is_counted_once_and_charged_once_in_each_of_their_wards(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([1, 2, 3], 6.0, 1e-6)
    asking = session(visits(), schema=VISITS, ledger=ledger)
    asking.ask("count(persons)", epsilon=0.5, delta=1e-6)
    one = gaussian_mu(0.5, 1e-6) ** 2
    assert ledger.spent([1, 2, 3]) == pytest.approx([one] * 3, rel=1e-4)
    asking.ask("count(persons) by ward", epsilon=0.5, delta=1e-6)
    more = ledger.spent([1, 2, 3]) - one
    # At most two wards: whoever is in both pays the whole, whoever is in one a half.
    assert more == pytest.approx([one, one, one / 2], rel=1e-4)


def test_without_rows_per_person_only_persons_can_be_counted(tmp_path: Path) -> None:
    """As in training: whatever the rows, and before one is read."""
    schema = Schema({"x": Numeric(0, 10), "ward": Categorical(["a", "b", "c"])}, person="id")
    asking = session(visits(), schema=schema)
    assert asking.ask("count(persons)", epsilon=1e5, delta=0.0).rows_per_person == 1
    for frame in (visits(), visits().drop_duplicates("id")):
        asking = session(frame, schema=schema)
        for query in ("count()", "count(rows)", "count(persons) by ward", "mean(x)", "median(x)"):
            with refused(InputError, "rows_per_person", 5):
                asking.ask(query, epsilon=1.0, delta=1e-6)


def test_several_levels_and_an_interval_cost_each_by_their_draws(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"id": range(6000), "x": rng.uniform(0, 100, 6000)})
    schema = Schema({"x": Numeric(0, 100)}, person="id", rows_per_person=1)
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([0, 1], 9.0, 1e-6)
    asking = session(frame, schema=schema, ledger=ledger)
    spent, quartiles = 0.0, "quantile(x, .75, .25, .5)"
    for query, draws in ((quartiles, 2), ("median(x)", 1), ("interval(x, .9)", 3)):
        answer = asking.ask(query, epsilon=0.8, delta=1e-6)
        spent += draws * float(gaussian_of_bounded_range(0.8 / draws)) ** 2
        assert ledger.spent([0, 1]) == pytest.approx([spent] * 2, rel=1e-6)
        assert (ledger.spent([0, 1]) >= spent * (1 - 1e-9)).all()
        assert "(0.8, 0)-DP" in answer.guarantee
    (told,) = session(frame, schema=schema).ask(quartiles, epsilon=2.0, delta=0.0).groups
    levels = {level: each["estimate"] for level, each in told["quantiles"].items()}
    assert levels == pytest.approx({"0.25": 25, "0.5": 50, "0.75": 75}, abs=2)
    (told,) = session(frame, schema=schema).ask("interval(x, .9)", epsilon=2.0, delta=0.0).groups
    low, high = told["interval"]
    assert low < frame["x"].quantile(0.9) < high < low + 10


def test_an_answer_of_before_is_replayed_and_says_what_it_counts(tmp_path: Path) -> None:
    """Its terms are as they were: the fields that are new follow from them."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([1, 2, 3], 9.0, 1e-6)
    table = register(visits(), VISITS)
    terms = {
        "query": "count() by ward",
        "schema": {
            "person": "id",
            "bounds": {"x": [0.0, 10.0]},
            "groups": {"ward": ["a", "b", "c"], "sex": ["f", "m"]},
            "rows_per_person": 2,
            "kinds": {},
        },
        "source": table.fingerprint,
        "epsilon": 0.5,
        "delta": 1e-6,
    }
    cell = {"estimate": 7.0, "interval": [6.0, 8.0]}
    old = {
        "query": "count() by ward", "analysis_id": "a", "groups": [{"ward": "a", **cell}],
        "epsilon": 0.5, "delta": 1e-6, "noise_multiplier": 9.0, "confidence": 0.95,
        "relation": "add_remove", "guarantee": "so",
    }  # fmt: skip
    ledger.reserve("a", [1, 2, 3], np.ones(3), 9.0, terms=terms)
    ledger.commit("a", old)
    asking = session(table, schema=VISITS, ledger=ledger)
    answer = asking.ask("count() by ward", epsilon=0.5, delta=1e-6, analysis_id="a")
    assert answer.to_dict() == old | {"counted": "rows", "rows_per_person": 2}
    with pytest.raises(StateError, match="in use for another"):
        asking.ask("count(rows) by ward", epsilon=0.5, delta=1e-6, analysis_id="a")
