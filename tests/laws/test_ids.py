"""Two ids never become one, on any path from a table to the ledger and the engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece import _check
from apiece.adapters.fitting import read_people
from apiece.assignment import assign
from apiece.audit.records import join
from apiece.budgets import Budgets, Ownership, Units
from apiece.budgets.units import read_ids
from apiece.datasets import Schema
from apiece.datasets.tables import read_table
from apiece.errors import ApieceError, DataError, InputError
from apiece.ledger import Ledger, LedgerFilter
from apiece.ledger.codec import parse_id
from apiece.queries import register

Ids = list[Any]
Path_ = Callable[[Ids], Ids]  # what each id has become; or it refuses them

NASTY = st.one_of(
    st.text("aA\0 \t17é\u0301\ud800", max_size=3),
    st.sampled_from(["1", "1.0", "01", "True", "nan", "None", "", "b'a'", "9007199254740993"]),
    st.integers(-2, 2),
    st.sampled_from([2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1]),
    st.sampled_from([1.0, 0.5, 2.0**53, True, False, b"a", b"a\0", float("nan"), None]),
)  # fmt: skip
TEXTS = st.text("a\0 1eé\u0301ﬁ\ud800", max_size=3)
WHOLE = st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1, 2**53 + 2, 2**63 - 1, 2**63])


def told_apart(value: Any) -> tuple[str, Any]:
    """By what two ids are two: 1, "1", 1.0 and True are four."""
    return type(value).__name__, "nan" if value != value else value


def lists_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Ids]:
    return st.lists(values, min_size=1, max_size=5, unique_by=told_apart)


def by_ledger(ids: Ids, url: str) -> Ids:
    """All at once, as a table is enrolled; each account by what was charged to it alone."""
    ledger = Ledger.open(url)
    ledger.enroll(ids, 1.0, 1e-6)
    for k, one in enumerate(ids):
        ledger.reserve(f"q{k}", [one], k + 1, 1e4)
    return [float(ledger.spent([one])[0]) for one in ids]


def in_turn(ids: Ids, url: str) -> Ids:
    """One after another with a budget each: the second must not change the first's."""
    ledger = Ledger.open(url)
    for k, one in enumerate(ids):
        ledger.enroll([one], 1.0 + k, 1e-6)
    return [float(ledger.remaining([one])[0]) for one in ids]


def by_filter(ids: Ids, url: str) -> Ids:
    """Each person's filter charges an account of their own."""
    ledger = Ledger.open(url)
    ledger.enroll(ids[:1], 1.0, 1e-6)
    paid = []
    for k, one in enumerate(ids):
        try:
            LedgerFilter(ledger, [one], f"run {k}").admit(1.0, 1e4)
        except DataError:
            paid.append(k)
        else:
            paid.append(0)  # from the account of the first
    return paid


def by_frame(ids: Ids) -> Ids:
    return read_ids(pd.DataFrame({"who": pd.Series(ids, dtype=object)}), "who").tolist()


def by_typed_frame(ids: Ids) -> Ids:
    """As pandas chooses the column's type itself."""
    try:
        table = pd.DataFrame({"who": ids})
    except UnicodeEncodeError as error:
        raise DataError("no table holds it") from error
    return Units.of_column(table, "who").owner.tolist()


def by_csv(ids: Ids) -> Ids:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.csv")
        try:
            pd.DataFrame({"who": ids, "n": 1}).to_csv(path, index=False)
        except UnicodeEncodeError as error:
            raise DataError("no file holds it") from error
        return read_ids(read_table(path), "who").tolist()


def by_parquet(ids: Ids, url: str) -> Ids:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.parquet")
        try:
            pq.write_table(pa.table({"who": ids}), path)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
            raise DataError("no file holds them") from error
        return by_ledger(Budgets.from_frame(
            pd.DataFrame({"who": read_table(path)["who"], "e": 1.0}), epsilon="e", delta=1e-6,
            ids="who",
        ).ids.tolist(), url)  # fmt: skip


def by_plan(ids: Ids) -> Ids:
    budgets = Budgets(np.linspace(1, 2, len(ids)), 1e-5, ids=ids)
    plan = assign(budgets, "scale", steps=2, expected_batch_size=len(ids) / 2, clip_norm=1.0)
    order = join("plan", plan.ids, "given", _check.ids("ids", ids))
    return order.tolist()


def by_people(ids: Ids) -> Ids:
    """One row a person: whose each is."""
    known = _check.record_ids("ids", ids)
    return Units.of(ids, known).rows.tolist()


def strangers(ids: Ids) -> Ids:
    """Only the first has a budget: rows of the others are refused, never counted as theirs."""
    Units.of(ids, ids[:1])
    return [0] * len(ids)


def by_query(ids: Ids) -> Ids:
    """A query reads ids as text, and leaves out a row whose id is none."""
    if not all(isinstance(one, str) for one in ids):
        raise DataError("texts alone: a number is the text that it is written as")
    table = register(
        pd.DataFrame({"id": pd.Series(ids, dtype=object)}),
        Schema({}, person="id", rows_per_person=1),
    )
    people = table.people.tolist()
    table.close()
    assert set(people) <= set(ids)
    return ids if len(people) == len(set(people)) else [0] * len(ids)


PATHS: dict[str, Callable[..., Ids]] = {
    "budgets": lambda ids: Budgets(1.0, 1e-5, ids=ids).ids.tolist(),
    "ledger": by_ledger,
    "one after another": in_turn,
    "filter": by_filter,
    "frame": by_frame,
    "typed frame": by_typed_frame,
    "csv": by_csv,
    "parquet": by_parquet,
    "plan": by_plan,
    "people": by_people,
    "strangers": strangers,
    "clipping": lambda ids: Units.in_turn(ids).owner.tolist(),
    "owners": lambda ids: Ownership([[one] for one in ids]).owner.tolist(),
    "pairs": lambda ids: Ownership.from_pairs(range(len(ids)), ids).owner.tolist(),
    "estimators": lambda ids: list(read_people(ids, len(ids))),
    "audit": lambda ids: Units.of(ids).mean(np.arange(len(ids))).tolist(),
    "query": by_query,
}


def holds(path: Callable[..., Ids], ids: Ids, url: str) -> None:
    """Refused in one line, or as many as there were."""
    call = partial(path, ids, url) if path.__code__.co_argcount == 2 else partial(path, ids)
    refusal = ""
    try:
        became = call()
    except ApieceError as error:
        refusal, became = str(error), ids
    assert "\n" not in refusal
    assert refusal or len(set(became)) == len(ids), (ids, became)


@pytest.mark.parametrize("name", PATHS)
@settings(max_examples=30, derandomize=True, deadline=None)
@given(ids=lists_of(TEXTS) | lists_of(WHOLE) | lists_of(NASTY))
def test_distinct_ids_stay_distinct_or_are_refused(name: str, ids: Ids) -> None:
    with tempfile.TemporaryDirectory() as folder:
        holds(PATHS[name], ids, f"{folder}/p.db")


@pytest.mark.parametrize("name", PATHS)
def test_plain_ids_pass_on_every_path(name: str, tmp_path: Path) -> None:
    """The law would hold of a path that refuses everything."""
    path = PATHS[name]
    for k, ids in enumerate((["ann", "bob", "é", "007", "7"], [7, -1, 2**53 + 1, 2**53])):
        url = f"{tmp_path}/{k}.db"
        if name == "strangers" or (name == "query" and k == 1):
            continue
        became = path(ids, url) if path.__code__.co_argcount == 2 else path(ids)
        assert len(set(became)) == len(ids)


@pytest.mark.parametrize(
    "name", ["one after another", "filter", "budgets", "clipping", "strangers"]
)
def test_the_law_sees_ids_that_numpy_merges(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the door planted open, as it was: whatever numpy makes of them."""
    monkeypatch.setattr(_check, "ids", lambda _n, values, **_: np.asarray(values))
    monkeypatch.setattr(_check, "record_ids", lambda _n, values: np.asarray(values))
    broken = 0
    for k, ids in enumerate((["a", "a\0"], ["a\0", "a"], ["", "\0"], [2**53, 2**53 + 1, 0.5])):
        try:
            holds(PATHS[name], ids, f"{tmp_path}/{k}.db")
        except (AssertionError, ValueError):
            broken += 1
    assert broken


@pytest.mark.parametrize("second", ["a\0", "a\0\0", "\0a\0", "a\ud800"])
def test_an_id_that_numpy_would_cut_is_refused_and_changes_nobody(
    second: str, tmp_path: Path
) -> None:
    ledger = Ledger.make(f"{tmp_path}/p.db", ["a"], 1.0, 1e-6)
    before = ledger.remaining(["a"]).tolist()
    for call in (
        lambda: ledger.enroll([second], 9.0, 1e-6),
        lambda: ledger.reserve("q", [second], 1.0, 10.0),
        lambda: ledger.enrolled([second]),
        lambda: Budgets(9.0, 1e-6, ids=[second]),
        lambda: Units.of([second], ["a"]),
    ):
        with pytest.raises(InputError, match="NUL or half a surrogate"):
            call()
    assert ledger.remaining(["a"]).tolist() == before


@pytest.mark.parametrize(
    ("text", "whole"),
    [("7", 7), ("-7", -7), ("0", 0), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63)),
     ("007", None), ("--5", None), ("-0", None), ("+7", None), ("７", None), ("7 ", None),
     ("7.0", None), ("", None), (str(2**63), None), ("1_0", None)],
)  # fmt: skip
def test_a_text_stands_for_a_whole_number_in_one_way(text: str, whole: int | None) -> None:
    assert parse_id(text, "integer") == whole
    assert parse_id(text, "text") == text


@pytest.mark.parametrize(
    "cells",
    [["ann", " ann"], ["ann\t"], [7, "7"], [7, 7.0], [True, 1], [0.5, 1.5], [2.0**53, 1.0],
     [b"a", b"b"], [pd.Timestamp(0), pd.Timestamp(1)]],
    ids=repr,
)  # fmt: skip
def test_a_column_whose_ids_could_be_read_as_others_is_refused(cells: Ids) -> None:
    table = pd.DataFrame({"who": pd.Series(cells, dtype=object)})
    for read in (lambda: read_ids(table, "who"), lambda: Units.of_column(table, "who")):
        with pytest.raises(DataError, match="column 'who'") as refused:
            read()
        assert "ann" not in str(refused.value)
