"""A record's teachers: of its own pool, as many as its copies, by its own coins."""

import numpy as np
import pytest

from apiece.errors import DataError
from apiece.pate import Upsample, plan_votes
from apiece.pate.strategies import VOTERS, Voters
from apiece.pate.teaching import Shares, deal_rows

from .worlds import budgets, plan

KEY = bytes(range(32))


def holders(shares: Shares, row: int) -> list[int]:
    teacher = np.repeat(np.arange(shares.sizes.size), shares.sizes)
    return sorted(teacher[shares.rows == row].tolist())


@pytest.mark.parametrize("strategy", [*VOTERS, Upsample(2)], ids=str)
def test_each_record_has_its_copies_in_its_pool(strategy: str | Voters) -> None:
    votes = plan(strategy)
    shares = deal_rows(votes, key=KEY)
    for row in range(60):
        g, held = int(votes.plan.group_index[row]), holders(shares, row)
        assert len(held) == len(set(held)) == votes.seats.copies[g]
        assert {int(votes.pool_of_teacher[t]) for t in held} == {int(votes.seats.pool[g])}


@pytest.mark.parametrize("strategy", VOTERS)
@pytest.mark.parametrize("gone", [0, 17, 59])
def test_nobody_elses_teachers_depend_on_a_record(strategy: str, gone: int) -> None:
    votes = plan(strategy)
    there = np.arange(60) != gone
    shares, without = deal_rows(votes, key=KEY), deal_rows(votes, key=KEY, included=there)
    assert holders(without, gone) == []
    assert all(holders(shares, row) == holders(without, row) for row in range(60) if row != gone)


def test_all_rows_of_a_person_go_to_the_persons_teachers() -> None:
    asked = budgets(60, ids=True)
    votes = plan_votes(asked, "weight", teachers=12, questions=5, unit="person")
    owner = np.random.default_rng(0).permutation(np.concatenate([np.arange(60), np.arange(60)]))
    shares = deal_rows(votes, key=KEY, people=asked.ids[owner])
    assert shares.rows.size == 120
    for person in range(60):
        held = [holders(shares, int(row)) for row in np.flatnonzero(owner == person)]
        assert len(held) == 2
        assert held[0] == held[1]
        assert len(held[0]) == 1


def test_another_key_is_another_choice() -> None:
    votes = plan()
    one, other = deal_rows(votes, key=KEY), deal_rows(votes, key=bytes(32))
    assert any(holders(one, row) != holders(other, row) for row in range(60))


def test_draws_are_of_a_models_own_rows_at_both_ends_of_the_coins() -> None:
    shares = Shares(np.array([5, 6, 9]), np.array([0, 2, 2, 3, 3]))
    coins = np.tile([0.0, 0.5, np.nextafter(1, 0)], (4, 1))
    assert shares.draw_rows(coins).tolist() == [[5, 6, 6], [0, 0, 0], [9, 9, 9], [0, 0, 0]]
    nobody = Shares(np.zeros(0, dtype=np.int64), np.zeros(3, dtype=np.int64))
    assert nobody.draw_rows(coins[:2]).tolist() == [[0, 0, 0]] * 2


def test_every_teacher_is_as_likely() -> None:
    votes = plan_votes(budgets(6000), "uniform", teachers=12, questions=5)
    sizes = deal_rows(votes, key=KEY).sizes
    assert abs(sizes - 500).max() < 5 * 500**0.5


def test_people_are_of_plans_of_persons() -> None:
    with pytest.raises(DataError, match="the plan is of records"):
        deal_rows(plan(), key=KEY, people=np.arange(60))
    of_persons = plan_votes(budgets(), "weight", teachers=12, questions=5, unit="person")
    with pytest.raises(DataError, match="the plan is of persons"):
        deal_rows(of_persons, key=KEY)
