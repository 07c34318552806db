"""Values that nobody declared: told where enough people have them, each person charged alike."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

from apiece.cli import run
from apiece.datasets import Numeric, Schema, Text
from apiece.errors import InputError
from apiece.ledger import Ledger
from apiece.numerics.gaussian import gaussian_delta
from apiece.queries import Session, discovery, query_cost, register
from apiece.queries.declarations import Declarations
from apiece.queries.discovery import Discovery
from apiece.queries.noise import BITS
from apiece.queries.question import resolve
from apiece.queries.sql import parse_statement

pytest.importorskip("sqlglot", reason="needs the extra sql")
SCHEMA = Schema({"w": Text(), "x": Numeric(0, 9)}, person="id", rows_per_person=3)
SELECT = "SELECT DISTINCT w FROM t"


def frame_of(people: dict[str, str]) -> pd.DataFrame:
    rows = [(name, word) for name, words in people.items() for word in words]
    return pd.DataFrame(rows, columns=["id", "w"]).assign(x=1.0)


def passing(weights: dict[str, float], found: Discovery) -> dict[str, float]:
    """The chance that each value is told, of its weight in units of a person's."""
    threshold = found.threshold / 2.0**BITS
    return {w: float(norm.sf(threshold - v / found.scale)) for w, v in weights.items()}


@pytest.mark.parametrize("values", [1, 2, 3, 7])
def test_a_person_alone_is_told_with_at_most_the_slack(values: int) -> None:
    found = Discovery.from_budget(values, 1.0, 1e-5)
    most = 0.0
    for k in range(1, values + 1):
        chance = norm.sf(found.threshold / 2.0**BITS - 1 / math.sqrt(k) / found.scale)
        most = max(most, k * chance)
    assert 0.99e-6 < most <= 1e-6


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-3), (1.0, 1e-2), (2.0, 1e-2)])
def test_small_cases_are_private_exactly(epsilon: float, delta: float) -> None:
    """Over all sets of told values of small tables, with and without each person."""
    found = Discovery.from_budget(2, epsilon, delta)
    tables = [
        {"p": "a", "q": "ab", "r": "b"},
        {"p": "ab"},
        {"p": "a", **{f"q{k}": "a" for k in range(int(found.threshold / 2.0**BITS * found.scale))}},
        {"p": "ab", **{f"q{k}": "ab" for k in range(6)}},
        {"p": "ab", **{f"q{k}": "a" for k in range(6)}},
    ]
    for people in tables:
        worlds = []
        for table in (people, {n: w for n, w in people.items() if n != "p"}):
            weights = dict.fromkeys("ab", 0.0)
            for words in table.values():
                for word in words:
                    weights[word] += 1 / math.sqrt(len(words))
            # A value that nobody has is never told.
            chances = passing(weights, found)
            chances = {w: c if weights[w] > 0 else 0.0 for w, c in chances.items()}
            outcomes = []
            for told in itertools.product([True, False], repeat=2):
                factors = [c if t else 1 - c for c, t in zip(chances.values(), told, strict=True)]
                outcomes.append(math.prod(factors))
            worlds.append(np.array(outcomes))
        for p, q in (worlds, worlds[::-1]):
            assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= delta * (1 + 1e-9)


def test_the_charge_is_that_of_the_promise() -> None:
    """s + (1 − s)·G_μ(ε) is δ for the widest person, and no more."""
    for values in (1, 3, 10):
        found = Discovery.from_budget(values, 0.7, 1e-5)
        counts = np.arange(1, values + 1)
        loss, slack = found.costs(counts, found.count_steps(counts))
        mu = math.sqrt(float(loss.max()))
        s = float(slack.max())
        total = s + (1 - s) * float(gaussian_delta(mu, 0.7).upper)
        assert 0.98e-5 < total <= 1e-5
        assert s <= 1e-6


def test_what_is_told_is_what_the_noise_says() -> None:
    """Monte Carlo: the share of runs in which a value is told is the chance of its weight."""
    found = Discovery.from_budget(3, 2.0, 0.01)
    near = round(found.threshold / 2.0**BITS * found.scale)
    people = {f"p{k}": "a" for k in range(near)} | {f"q{k}": "b" for k in range(near + 2)}
    people |= {f"r{k}": "cd" for k in range(near)}
    table = register(frame_of(people), SCHEMA)
    runs = 150
    told = dict.fromkeys("abcd", 0)
    for seed in range(runs):
        answer = Session(table, SCHEMA, seed=seed).ask(SELECT, epsilon=2.0, delta=0.01)
        for group in answer.groups:
            told[group["w"]] += 1
    expected = passing(
        {"a": near, "b": near + 2, "c": near / math.sqrt(2), "d": near / math.sqrt(2)}, found
    )
    for word, count in told.items():
        assert abs(count / runs - expected[word]) < 4.5 * math.sqrt(0.25 / runs)


def test_a_planted_threshold_without_the_persons_weight_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def planted(count: int, scale: float, slack: float) -> float:
        return scale * float(norm.isf(slack / count))

    monkeypatch.setattr(discovery, "_find_threshold", planted)
    with pytest.raises(AssertionError):
        test_a_person_alone_is_told_with_at_most_the_slack(3)


def test_which_values_of_a_person_count_is_that_persons_own(tmp_path: Path) -> None:
    """Others' weights are the same to the bit without a person, and at most three values count."""
    people = {"p": "abcdefg", "q": "ax", "r": "bxy"}
    question = resolve(parse_statement(SELECT).queries[0], Declarations.from_schema(SCHEMA))
    found = []
    for names in ("pqr", "qr"):
        table = register(frame_of({n: people[n] for n in names}), SCHEMA)
        with table.values(question) as values:
            ids, counts = values.people()
            weights = dict(values.weights(None, 1000 // counts))
        found.append((ids.to_pylist(), counts.tolist(), weights))
    (_, counts, with_p), (_, _, without_p) = found
    assert counts == [3, 2, 3]
    difference = {w: n - without_p.get(w, 0) for w, n in with_p.items()}
    moved = [n for n in difference.values() if n]
    assert moved == [333] * 3
    assert set(without_p) <= set(with_p)


def test_each_pays_for_their_own_values(tmp_path: Path) -> None:
    people = {f"p{k}": "a" for k in range(300)} | {f"q{k}": "abc" for k in range(300)}
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([*people], [8.0] * 300 + [1e-3] * 300, 1e-4)
    session = Session(frame_of(people), SCHEMA, ledger, seed=1)
    answer = session.ask(SELECT, epsilon=2.0, delta=1e-5, analysis_id="w")
    # Those with three values cannot pay, so b and c are nobody's.
    assert [group["w"] for group in answer.groups] == ["a"]
    spent = np.asarray(ledger.spent([*people]))
    cost = query_cost(SELECT, SCHEMA, epsilon=2.0, delta=1e-5)
    assert spent[:300] == pytest.approx(cost.mu**2, rel=1e-6)
    assert (spent[300:] == 0).all()
    assert session.ask(SELECT, epsilon=2.0, delta=1e-5, analysis_id="w").groups == answer.groups
    assert "threshold" in answer.guarantee


def test_a_slack_beyond_the_account_is_not_paid(tmp_path: Path) -> None:
    people = {f"p{k}": "a" for k in range(300)}
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([*people], 50.0, 1e-9)
    session = Session(frame_of(people), SCHEMA, ledger, seed=1)
    assert session.ask(SELECT, epsilon=2.0, delta=1e-3, analysis_id="w").groups == []


@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-3), (2.0, 1e-2)])
def test_small_cases_with_weights_are_within_each_persons_charge(
    epsilon: float, delta: float
) -> None:
    """Over all sets of told values, without each person: at most their own Gaussian and slack."""
    check_weights(Discovery.from_budget(2, epsilon, delta))


def check_weights(found: Discovery) -> None:
    """Compare worlds of unequal weights with what each person is charged."""
    grid = 2.0**BITS
    crowd = int(found.threshold / grid * found.scale)
    words = {"p": "a", "q": "ab", "r": "b", **{f"s{k}": "ab" for k in range(crowd)}}
    people = [*words]
    counts = np.array([len(words[name]) for name in people])
    weights = np.array([1.0, 0.5, 0.01] + [0.7] * crowd)
    steps = found.count_steps(counts, weights)
    losses, slacks = found.costs(counts, steps)

    def chances(absent: str) -> np.ndarray:
        totals = {
            word: sum(int(s) for name, s in zip(people, steps, strict=True)
                      if word in words[name] and name != absent)
            for word in "ab"
        }  # fmt: skip
        # Noise is rounded to whole steps: more than the threshold is half a step more, or more.
        passes = [
            norm.sf((found.threshold + 0.5 - t) / grid) if t else 0.0 for t in totals.values()
        ]
        outcomes = itertools.product([True, False], repeat=2)
        return np.array([
            math.prod(c if t else 1 - c for c, t in zip(passes, told, strict=True))
            for told in outcomes
        ])  # fmt: skip

    everybody = chances("")
    for name, loss, slack in zip(people[:4], losses, slacks, strict=False):
        without = chances(name)
        for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
            allowed = slack + (1 - slack) * float(gaussian_delta(math.sqrt(loss), epsilon).upper)
            for p, q in ((everybody, without), (without, everybody)):
                assert np.maximum(p - math.exp(epsilon) * q, 0).sum() <= allowed * (1 + 1e-9)


def test_a_planted_charge_for_the_weight_alone_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charged as if the weight were of a single value, a person with two pays too little."""
    right = Discovery.costs

    def planted(self: Discovery, counts: np.ndarray, steps: np.ndarray) -> object:
        return right(self, np.ones_like(counts), steps // 4)

    monkeypatch.setattr(Discovery, "costs", planted)
    with pytest.raises(AssertionError):
        check_weights(Discovery.from_budget(2, 2.0, 1e-2))


def test_with_a_share_everybody_takes_part_by_their_own_account(tmp_path: Path) -> None:
    people = {f"p{k}": "ab" for k in range(300)} | {f"q{k}": "ac" for k in range(300)}
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([*people], [16.0] * 300 + [0.5] * 300, 1e-4)
    session = Session(frame_of(people), SCHEMA, ledger, seed=1)
    answer = session.ask(SELECT, epsilon=2.0, delta=1e-5, analysis_id="w", share=0.2)
    found = Discovery.from_budget(3, 2.0, 1e-5)
    limits, spent = ledger.balances([*people])
    shares = spent[:, 0] / limits[:, 0]
    # The small accounts pay a fifth of themselves, the large ones the whole price, which is less.
    assert shares[300:] == pytest.approx(0.2, rel=1e-5)
    assert (shares[300:] <= 0.2).all()
    cost, _ = found.costs(np.array([2]), found.count_steps(np.array([2])))
    assert spent[:300, 0] * 2.0**-50 == pytest.approx(cost[0])
    assert (spent[:, 1] > 0).all()
    assert {group["w"] for group in answer.groups} >= {"a", "b"}
    # Charged alike, the small accounts cannot pay, and their value c is nobody's.
    uniform = Session(frame_of(people), SCHEMA, ledger, seed=1)
    told = uniform.ask(SELECT, epsilon=2.0, delta=1e-5, analysis_id="u").groups
    assert {group["w"] for group in told} == {"a", "b"}


def test_weighted_chances_are_those_of_the_weights(tmp_path: Path) -> None:
    """Monte Carlo: a value of people with small accounts is told as its total weight says."""
    people = {f"p{k}": "a" for k in range(200)}
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([*people], 1.0, 1e-2)
    found = Discovery.from_budget(3, 2.0, 0.001)
    limits, _ = ledger.balances(["p0"])
    budget = limits[:, 0] * 2.0**-50
    # The share with which 200 people reach the threshold.
    weight = found.threshold / 2.0**BITS * found.scale / 200
    share = float((weight / found.scale) ** 2 / budget[0])
    assert found.weigh(budget, share)[0] == pytest.approx(weight)
    table = register(frame_of(people), SCHEMA)
    told = 0
    for seed in range(60):
        session = Session(table, SCHEMA, ledger, seed=seed)
        answer = session.ask(SELECT, epsilon=2.0, delta=0.001, analysis_id=f"a{seed}", share=share)
        told += len(answer.groups)
        ledger.enroll([*people], 1.0 + 1e-9 * (seed + 1), 1e-2)
        if seed * share > 0.5:
            break
    assert abs(told / (seed + 1) - 0.5) < 4.5 * math.sqrt(0.25 / (seed + 1))


@pytest.mark.parametrize(
    ("sql", "share", "word"),
    [(SELECT, 0.0, "share"), (SELECT, 1.5, "share"), ("SELECT count(*) FROM t", 0.1, "DISTINCT")],
)
def test_a_share_is_of_an_account(tmp_path: Path, sql: str, share: float, word: str) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", ["p"], 1.0, 1e-6)
    frame = frame_of({"p": "a"})
    with pytest.raises(InputError, match=word):
        Session(frame, SCHEMA, ledger).ask(sql, epsilon=1.0, delta=1e-6, share=share)
    with pytest.raises(InputError, match="ledger"):
        Session(frame, SCHEMA).ask(SELECT, epsilon=1.0, delta=1e-6, share=0.5)


def test_derived_values_are_found_too() -> None:
    people = {f"p{k}": "aB" for k in range(200)} | {"z": "Q"}
    session = Session(frame_of(people), SCHEMA, seed=1)
    answer = session.ask(
        "SELECT DISTINCT lower(w) AS word FROM t WHERE x > 0", epsilon=2.0, delta=1e-5
    )
    assert answer.groups == [{"word": "a"}, {"word": "b"}]
    assert answer.counted == "values"
    assert answer.frame(rounded=True).to_dict("list") == {"word": ["a", "b"]}


@pytest.mark.parametrize(
    ("sql", "delta", "word"),
    [
        (SELECT, 0.0, "give a delta"),
        ("SELECT DISTINCT w, x FROM t", 1e-5, "one column"),
        ("SELECT DISTINCT w, count(*) FROM t GROUP BY w", 1e-5, "one column"),
        ("SELECT DISTINCT * FROM t", 1e-5, "never shown"),
        ("SELECT DISTINCT w FROM t LIMIT 3", 1e-5, "WHERE alone"),
    ],
)
def test_what_cannot_be_found_is_refused(sql: str, delta: float, word: str) -> None:
    with pytest.raises(InputError, match=word):
        query_cost(sql, SCHEMA, epsilon=1.0, delta=delta)


def test_the_command_prints_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.csv"
    frame_of({f"p{k}": "ab" for k in range(200)}).to_csv(path, index=False)
    words = ["query", str(path), SELECT, "--person", "id", "--rows-per-person", "2",
             "--kind", "w=text", "--epsilon", "2", "--delta", "1e-5"]  # fmt: skip
    assert run([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == [{"w": "a"}, {"w": "b"}]
    assert run(words) == 0
    shown = capsys.readouterr().out
    assert "w=a\nw=b" in shown
    assert "intervals" not in shown
    figure = tmp_path / "w.svg"
    assert run([*words, "--figure", str(figure)]) == 2
    assert "no numbers" in capsys.readouterr().err
    assert not figure.exists()
