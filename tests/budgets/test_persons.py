"""Persons: what a person has once, and what is said where their rows contradict one another."""

import numpy as np
import pandas as pd
import pytest

from apiece.budgets import Units
from apiece.errors import DataError


def persons(*who: object) -> Units:
    return Units.of_column(pd.DataFrame({"who": list(who)}), "who")


def test_what_a_person_has_once_whatever_the_order() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        who = random.integers(0, 7, 40).astype(str)
        consent = dict(zip(np.unique(who), random.random(7), strict=False))
        found = persons(*who)
        assert found.ids.tolist() == sorted(set(who))
        once = found.once(np.array([consent[w] for w in who]), "consent")
        assert once.tolist() == [consent[i] for i in found.ids]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ([1.0, 1.0, 1.0, 2.0, 2.0], 0),
        ([1.0, 3.0, 1.0, 2.0, 2.0], 1),
        ([1.0, 1.0, 3.0, 2.0, 2.0], 1),
        ([3.0, 1.0, 1.0, 2.0, 1.0], 2),
        ([True, True, False, True, True], 1),
    ],
)
def test_a_contradiction_is_counted_and_names_nobody(values: list[float], count: int) -> None:
    found = persons("eve-7310", "eve-7310", "eve-7310", "bob-7310", "bob-7310")
    if not count:
        assert found.once(np.array(values), "consent").tolist() == [2.0, 1.0]
        return
    with pytest.raises(DataError, match=rf"consent: .*\({count} of 2 persons\)") as caught:
        found.once(np.array(values), "consent")
    assert "7310" not in str(caught.value)
    assert "row 1" not in str(caught.value)


@pytest.mark.parametrize(
    ("here", "there", "said"),
    [
        ("abc", "cab", None),
        ("aabc", "abc", None),
        ("abc", "ab", "visits: 1 of 3 persons have no row in people"),
        ("ab", "abcd", "people: 2 of 4 persons have no row in visits"),
        ("ab", "abb", "people: 1 of 2 persons have several rows"),
    ],
)
def test_two_tables_of_the_same_persons(here: str, there: str, said: str | None) -> None:
    one, other = persons(*here), persons(*there)
    if said is None:
        one.require_same(other, here="visits", there="people")
        assert one.ids.tolist() == other.ids.tolist()
    else:
        with pytest.raises(DataError, match=said):
            one.require_same(other, here="visits", there="people")


def test_ids_are_texts_and_none_is_missing() -> None:
    assert persons(7, 8, 7).ids.tolist() == ["7", "8"]
    assert persons("007", "7").ids.tolist() == ["007", "7"]
    with pytest.raises(DataError, match=r"person column 'who', row 2: empty \(2 such rows\)"):
        persons("a", None, " ")
    with pytest.raises(DataError, match="did you mean 'who'"):
        Units.of_column(pd.DataFrame({"who": ["a"]}), "whom")


def test_reprs_show_nobody() -> None:
    assert "eve" not in repr(persons("eve"))


@pytest.mark.parametrize("shape", [(), (2,), (3, 2), (0,)])
def test_what_a_person_has_once_may_be_several_values(shape: tuple[int, ...]) -> None:
    """Of each of them a row says its own, and none is mixed with another."""
    who = np.array(["b", "a", "b", "c", "a"])
    units = Units.of_column(pd.DataFrame({"who": who}), "who")
    of_person = np.random.default_rng(0).normal(size=(*shape, 3))
    by_row = of_person[..., np.searchsorted(["a", "b", "c"], who)]
    found = units.once(by_row, "scores")
    assert found.shape == (*shape, 3)
    assert (found == of_person).all()
    if by_row.size:
        contradicting = by_row.copy()
        contradicting[..., 4] += 1.0
        with pytest.raises(DataError, match="scores: rows of one person differ"):
            units.once(contradicting, "scores")
