"""Units: who is promised what, and that nobody's rows move where another one goes."""

import numpy as np
import pandas as pd
import pytest

from apiece.errors import BudgetError, DataError
from apiece.jobs.config import BudgetColumns, Data
from apiece.jobs.roster import choose_trained, read_budgets, read_roster

WHO = [f"p{i:03}" for i in range(300)]
ROWS = np.random.default_rng(0).integers(1, 6, 300)
ASKED = BudgetColumns(epsilon="consent", delta="delta")


def visits() -> pd.DataFrame:
    who = np.repeat(WHO, ROWS)
    consent = np.repeat(np.resize([1.0, 2.0, 8.0], 300), ROWS)
    part = np.repeat(np.where(np.arange(300) % 3, "train", "test"), ROWS)
    frame = pd.DataFrame({"who": who, "consent": consent, "delta": 1e-5, "part": part})
    return frame.sample(frac=1, random_state=1, ignore_index=True)


def data(**more: str) -> Data:
    return Data(source="visits.csv", person="who", **more)  # type: ignore[arg-type]


def test_a_budget_that_was_not_on_offer_is_refused() -> None:
    units = read_roster(visits(), data())
    everyone = np.ones(300, dtype=bool)
    offered = BudgetColumns(epsilon="consent", delta=1e-5, levels=(8.0, 1, 2, 16))  # 16 nobody took
    assert list(offered.levels.values()) == [1.0, 2.0, 8.0, 16.0]  # type: ignore[union-attr]
    found = read_budgets(units, offered, everyone)
    assert found.groups.name.tolist() == ["ε = 1", "ε = 2", "ε = 8"]
    said = rf"column 'consent': \d+ of {len(visits())} rows name no declared level; declared: 1, 2;"
    with pytest.raises(BudgetError, match=said):
        read_budgets(
            units, BudgetColumns(epsilon="consent", delta=1e-5, levels=(1.0, 2.0)), everyone
        )


def test_the_budgets_of_persons_are_in_the_order_of_their_ids() -> None:
    units = read_roster(visits(), data())
    chosen = choose_trained(units, data(split="part"), None)
    found = read_budgets(units, ASKED, chosen)
    trained = [w for i, w in enumerate(WHO) if i % 3]
    assert found.ids.tolist() == trained
    assert (
        found.epsilon.tolist() == np.resize([1.0, 2.0, 8.0], 300)[np.arange(300) % 3 > 0].tolist()
    )
    rows = units.rows_of(chosen)
    assert rows.sum() == ROWS[np.arange(300) % 3 > 0].sum()
    assert units.person is not None
    assert set(units.person[rows]) == set(trained)
    assert not set(units.person[~rows]) & set(trained)


def test_a_coin_a_person_that_nobody_else_moves() -> None:
    """A law: without a person, with other rows, in another order, everyone else goes as before."""
    whole = read_roster(visits(), data())
    chosen = choose_trained(whole, data(), 5)
    assert 0.6 < chosen.mean() < 0.95
    where = dict(zip(whole.ids.tolist(), chosen, strict=True))  # type: ignore[union-attr]
    assert len({tuple(choose_trained(whole, data(), seed)) for seed in range(4)}) == 4
    for gone in WHO[:40]:
        less = visits()
        less = less[less["who"] != gone].sample(frac=1, random_state=2)
        less = pd.concat([less, less[less["who"] == WHO[77]]])
        units = read_roster(less, data())
        again = choose_trained(units, data(), 5)
        assert len(again) == 299
        assert all(where[i] == c for i, c in zip(units.ids, again, strict=True))  # type: ignore[arg-type]


def test_a_second_table_says_the_same_in_any_order(tmp_path) -> None:
    frame = visits()
    people = frame.drop_duplicates("who").sample(frac=1, random_state=3)
    people.to_csv(tmp_path / "people.csv", index=False)
    people.to_parquet(tmp_path / "people.parquet")
    one = read_roster(frame, data())
    for name in ("people.csv", "people.parquet"):
        given = data(people=str(tmp_path / name), split="part")
        units = read_roster(frame[["who"]], given)
        chosen = choose_trained(units, given, None)
        assert (chosen == choose_trained(one, data(split="part"), None)).all()
        two = read_budgets(units, ASKED, chosen)
        assert two.ids.tolist() == read_budgets(one, ASKED, chosen).ids.tolist()
        assert two.epsilon.tolist() == read_budgets(one, ASKED, chosen).epsilon.tolist()


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("consent", 99.0, "epsilon column 'consent': rows of one person differ"),
        ("delta", 1e-6, "delta column 'delta': rows of one person differ"),
        ("part", "test", "split column 'part': rows of one person differ"),
    ],
)
def test_what_a_person_says_twice_is_refused_and_names_nobody(
    column: str, value: object, said: str
) -> None:
    frame = visits()
    many = frame.index[
        frame["who"] == WHO[int(np.flatnonzero((ROWS > 1) & (np.arange(300) % 3 > 0))[0])]
    ]
    frame.loc[many[0], column] = value
    units = read_roster(frame, data())
    with pytest.raises(DataError, match=said) as caught:
        read_budgets(units, ASKED, choose_trained(units, data(split="part"), None))
    assert "1 of 300 persons" in str(caught.value)
    assert not any(who in str(caught.value) for who in WHO)


def test_one_row_a_person_is_as_records() -> None:
    frame = visits().drop_duplicates("who").sort_values("who", ignore_index=True)
    records = Data(source="visits.csv", ids="who", split="part")
    one, other = read_roster(frame, records), read_roster(frame, data())
    chosen = choose_trained(one, records, None)
    assert (chosen == choose_trained(other, data(split="part"), None)).all()
    first, second = read_budgets(one, ASKED, chosen), read_budgets(other, ASKED, chosen)
    assert first.ids.tolist() == second.ids.tolist()
    assert first.epsilon.tolist() == second.epsilon.tolist()
    assert one.person is None


def test_repeated_ids_of_records_are_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match="pass --person who in place of --ids"):
        read_roster(visits(), Data(source="visits.csv", ids="who"))
