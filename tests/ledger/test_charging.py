"""Charging an analysis: who can bear it pays, nobody else, and whom it admitted is found again."""

import numpy as np
import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apiece.errors import AnalysisError
from apiece.ledger import accounts, chain, codec
from apiece.ledger.charging import charge, check_request, replay, reserved
from apiece.ledger.trail import Trail

from .tables import SALT, START, terms

units = st.integers(0, 100)


@settings(
    max_examples=25,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.tuples(units, units, units), min_size=1, max_size=6), st.randoms())
def test_who_can_bear_it_pays_and_nobody_else(
    tables: sa.Connection, people: list[tuple[int, int, int]], random
) -> None:
    limits, spent, charges = (np.array(each) for each in zip(*people, strict=True))
    spent = np.minimum(spent, limits)
    places = np.arange(len(people)) + np.arange(len(people)) % 2 * codec.BLOCK  # of two blocks
    both = [np.zeros(8, np.int64), np.zeros(8, np.int64)]
    most = [block.copy() for block in both]
    for place, own, limit in zip(places, spent, limits, strict=True):
        both[place // codec.BLOCK][place % codec.BLOCK] = own
        most[place // codec.BLOCK][place % codec.BLOCK] = limit
    accounts.write_people(
        tables, SALT, [(b, np.arange(8) + 8 * b, terms(*m)) for b, m in enumerate(most)]
    )
    accounts.write_spent(tables, SALT, list(enumerate(both)))
    order = np.array(random.sample(range(len(people)), len(people)))
    admitted, payloads = charge(tables, SALT, places[order], charges[order])
    expected = spent + charges <= limits
    assert admitted.tolist() == expected[order].tolist()
    after, _ = accounts.read_balances(tables, SALT, places)
    assert after.tolist() == (spent + charges * expected).tolist()
    recorded = sum(codec.unpack_masked(data, "<i8")[1].sum() for _, data in payloads)
    assert recorded == charges[expected].sum()


def test_an_earlier_charge_is_found_again_and_only_for_what_it_was(tables: sa.Connection) -> None:
    accounts.write_people(tables, SALT, [(0, np.array([1, 2, 3]), terms(5, 9, 9))])
    accounts.write_spent(tables, SALT, [(0, np.zeros(3, np.int64))])
    last = chain.append(tables, SALT, START._replace(people=3), {"kind": "init"}, [])
    places = np.array([2, 0])
    admitted, payloads = charge(tables, SALT, places, np.array([9, 6]))
    body = {"kind": "reserve", "analysis": "q", "request": "r"}
    last = chain.append(tables, SALT, last, body, payloads)
    trail = Trail(SALT)
    trail.follow(tables, {})
    assert admitted.tolist() == [True, False]
    number, entry = reserved(tables, trail, "q", {})
    for some, charges, expected in (
        (places, [9, 6], [True, False]),
        (places[::-1], [6, 9], [False, True]),
        (places, [8, 0], [True, False]),  # who was charged more than this, and who was not at all
        (places, [10, 6], [False, False]),  # who was charged less
        (np.array([2, 1]), [9, 0], [True, False]),  # who was not asked
        (np.array([7, 2, codec.BLOCK]), [0, 9, 0], [False, True, False]),  # who came later
    ):
        found = replay(tables, trail, number, some, np.array(charges))
        assert found.tolist() == expected
    check_request("q", entry, "r")
    with pytest.raises(AnalysisError, match="reserved with other people or norms"):
        check_request("q", entry, "other")
    with pytest.raises(AnalysisError, match="another analysis or other terms"):
        reserved(tables, trail, "q", {"terms": "t"})
    chain.append(tables, SALT, last, {"kind": "commit", "analysis": "q", "result": 1}, [])
    trail.follow(tables, {})
    with pytest.raises(AnalysisError, match="already committed"):
        reserved(tables, trail, "q", {})
    with pytest.raises(AnalysisError, match="another analysis or other terms"):
        reserved(tables, trail, "q", {"terms": "t"})
