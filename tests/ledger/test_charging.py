"""Charging an analysis: who can bear it pays, nobody else, and whom it admitted is found again."""

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece.errors import AnalysisError
from apiece.ledger import accounts, chain, codec
from apiece.ledger.chain import Trail
from apiece.ledger.charging import Demand, charge, check_request, find_reservation, replay
from apiece.ledger.entries import Subject

from .tables import SALT, START, pairs, terms

units = st.integers(0, 100)


def one(charges: np.ndarray) -> Demand:
    """One pair a person."""
    return Demand(charges[:, None])


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(*[units] * 6), min_size=1, max_size=6), st.randoms())
def test_who_can_bear_it_pays_and_nobody_else(
    tables: sa.Connection, people: list[tuple[int, ...]], random
) -> None:
    columns = [np.array(each) for each in zip(*people, strict=True)]
    limits, spent, charges = (np.stack(columns[k : k + 2], axis=-1) for k in (0, 2, 4))
    spent = np.minimum(spent, limits)
    places = np.arange(len(people)) + np.arange(len(people)) % 2 * codec.BLOCK  # of two blocks
    both = [pairs(*[0] * 8), pairs(*[0] * 8)]
    most = [terms(*[0] * 8), terms(*[0] * 8)]
    for place, own, limit in zip(places, spent, limits, strict=True):
        both[place // codec.BLOCK][place % codec.BLOCK] = own
        most[place // codec.BLOCK][place % codec.BLOCK] = (1.0, 1e-6, *limit)
    accounts.write_people(tables, SALT, [(b, np.arange(8) + 8 * b, m) for b, m in enumerate(most)])
    accounts.write_spent(tables, SALT, list(enumerate(both)))
    order = np.array(random.sample(range(len(people)), len(people)))
    admitted, payloads = charge(tables, SALT, places[order], one(charges[order]))
    expected = (spent + charges <= limits).all(axis=1)
    assert admitted.tolist() == expected[order].tolist()
    after, _ = accounts.read_balances(tables, SALT, places)
    assert after.tolist() == (spent + charges * expected[:, None]).tolist()
    recorded = sum(codec.unpack_charges(data)[1].sum(axis=0) for _, data in payloads)
    assert np.array_equal(recorded, charges[expected].sum(axis=0))


def test_an_account_pays_the_pair_that_takes_the_least_share_of_it(tables: sa.Connection) -> None:
    """By its budget, whatever was charged before: so charges do not follow their order."""
    menu = np.array([[(100, 0), (50, 4), (40, 16)]])
    own = np.concatenate(
        [terms(100), terms(100, slack=8), terms(50, slack=100), terms(49, slack=3)]
    )
    accounts.write_people(tables, SALT, [(0, np.arange(4), own)])
    accounts.write_spent(tables, SALT, [(0, pairs(0, 10, 0, 0))])
    everyone = np.arange(4)
    asked = Demand(menu, np.zeros(4, np.int64))
    admitted, _ = charge(tables, SALT, everyone, asked)
    assert admitted.tolist() == [True, True, True, False]  # the last can pay none of them
    spent, _ = accounts.read_balances(tables, SALT, everyone)
    assert spent.tolist() == [[100, 0], [60, 4], [40, 16], [0, 0]]
    admitted, _ = charge(tables, SALT, everyone, asked)
    assert admitted.tolist() == [False] * 4  # the second has 40 left, and pays 50 or nothing


def test_whose_slack_is_gone_is_refused_and_whose_is_not_asked_for_is_not(
    tables: sa.Connection,
) -> None:
    accounts.write_people(tables, SALT, [(0, np.arange(2), terms(100, 100, slack=10))])
    accounts.write_spent(tables, SALT, [(0, np.array([(0, 5), (0, 6)]))])
    places = np.arange(2)
    admitted, _ = charge(tables, SALT, places, one(pairs(1, 1, slack=5)))
    assert admitted.tolist() == [True, False]
    assert charge(tables, SALT, places, one(pairs(1, 1)))[0].tolist() == [True, True]
    assert accounts.read_balances(tables, SALT, places)[0].tolist() == [[2, 10], [1, 6]]


def test_without_the_sum_of_slacks_the_same_people_would_be_overspent(
    tables: sa.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: a ledger that adds μ² alone lets a person be told everything, again and again."""
    accounts.write_people(tables, SALT, [(0, np.arange(1), terms(100, slack=10))])
    accounts.write_spent(tables, SALT, [(0, pairs(0))])
    asked, places = one(pairs(1, slack=6)), np.arange(1)
    write = accounts.write_spent

    def forgetful(connection: sa.Connection, salt: bytes, rows: list, scope: str) -> None:
        write(connection, salt, [(block, spent * [1, 0]) for block, spent in rows])

    with monkeypatch.context() as broken:
        broken.setattr(accounts, "write_spent", forgetful)
        told = sum(charge(tables, SALT, places, asked)[0].any() for _ in range(5)) * 6
    assert told > 10
    assert sum(charge(tables, SALT, places, asked)[0].any() for _ in range(5)) * 6 <= 10


def test_an_earlier_charge_is_found_again_and_only_for_what_it_was(tables: sa.Connection) -> None:
    accounts.write_people(tables, SALT, [(0, np.array([1, 2, 3]), terms(5, 9, 9))])
    accounts.write_spent(tables, SALT, [(0, pairs(0, 0, 0))])
    last = chain.append(tables, SALT, START._replace(people=3), {"kind": "init"}, [])
    places = np.array([2, 0])
    admitted, payloads = charge(tables, SALT, places, one(pairs(9, 6)))
    body = {"kind": "reserve", "analysis": "q", "request": "r"}
    last = chain.append(tables, SALT, last, body, payloads)
    trail = Trail(SALT)
    trail.follow(tables, {})
    assert admitted.tolist() == [True, False]
    stored, entry = find_reservation(tables, trail, "q", Subject())
    for some, charges, expected in (
        (places, [9, 6], [True, False]),
        (places[::-1], [6, 9], [False, True]),
        (places, [8, 0], [True, False]),  # who was charged more than this, and who was not at all
        (places, [10, 6], [False, False]),  # who was charged less
        (np.array([2, 1]), [9, 0], [True, False]),  # who was not asked
        (np.array([7, 2, codec.BLOCK]), [0, 9, 0], [False, True, False]),  # who came later
    ):
        found = replay(tables, trail, stored.number, some, one(pairs(*charges)), entry)
        assert found.tolist() == expected
    for menu, expected in (([(10, 0), (9, 0)], True), ([(10, 0), (9, 1)], False)):
        asked = Demand(np.array([menu]), np.zeros(1, np.int64))  # any pair that was paid will do
        assert replay(tables, trail, stored.number, places[:1], asked, entry).tolist() == [expected]
    check_request("q", entry, "r")
    with pytest.raises(AnalysisError, match="reserved with other people or norms"):
        check_request("q", entry, "other")
    with pytest.raises(AnalysisError, match="another analysis or other terms"):
        find_reservation(tables, trail, "q", Subject(terms="t"))
    chain.append(tables, SALT, last, {"kind": "commit", "analysis": "q", "result": 1}, [])
    trail.follow(tables, {})
    with pytest.raises(AnalysisError, match="already committed"):
        find_reservation(tables, trail, "q", Subject())
    with pytest.raises(AnalysisError, match="another analysis or other terms"):
        find_reservation(tables, trail, "q", Subject(terms="t"))
