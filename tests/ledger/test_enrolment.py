"""Opening accounts, and changing their terms: never below what is spent."""

import re
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import BudgetError, DataError, InputError
from apiece.filters import Costs
from apiece.filters.convert import gaussian_budget
from apiece.ledger import Ledger, accounts, codec
from apiece.ledger.accounts import amend_accounts, open_accounts
from apiece.ledger.directory import Directory
from apiece.ledger.schema import read_payloads
from refusals import refused

from .tables import SALT, START, pairs, terms


def test_budgets_change_but_not_below_what_is_spent(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("q", [1], 1.0, 5.0)
    with refused(BudgetError, 1, "epsilon", 0.1, "delta", 1e-06):
        ledger.enroll([3, 2, 1], [1.0, 0.5, 0.1], 1e-6)
    with pytest.raises(DataError, match="no account"):
        ledger.spent([3])  # nothing of the refused call was kept
    assert ledger.enroll([1, 2, 3], [2.0, 0.5, 1.0], 1e-6) == 1
    assert ledger.enroll([1, 2, 3], [2.0, 0.5, 1.0], 1e-6) == 0
    kinds = [entry.kind for entry in ledger.history()]
    assert kinds == ["init", "enroll", "reserve", "amend", "enroll"]
    assert ledger.remaining([1])[0] == pytest.approx(float(gaussian_budget(2.0, 1e-6, 1e-7)) - 0.04)
    assert ledger.verify().ok


def test_words_of_consent_open_accounts(ledger_url: str) -> None:
    ledger, form = Ledger.open(ledger_url), {"low": 1.0, "high": 8.0}
    ledger.enroll([1, 2, 3], ["high", "low", "high"], 1e-6, levels=form)
    as_numbers = [float(gaussian_budget(epsilon, 1e-6, 1e-7)) for epsilon in (8.0, 1.0, 8.0)]
    assert ledger.remaining([1, 2, 3]).tolist() == pytest.approx(as_numbers)
    with pytest.raises(BudgetError, match="1 of 2 rows name no declared level"):
        ledger.enroll([4, 5], ["low", "much"], 1e-6, levels=form)
    with pytest.raises(BudgetError, match="declare what they stand for"):
        ledger.enroll([4], ["low"], 1e-6)
    assert ledger.people == 3


def test_who_comes_later_is_put_behind_the_others(tables: sa.Connection) -> None:
    """A block that has room is filled up; what is there stays as it is."""
    directory, ids = Directory(SALT), np.arange(100, 100 + codec.BLOCK + 2)
    most = np.array([(1.0, 1e-6, 5, 0)] * ids.size, codec.TERMS)
    last = open_accounts(tables, SALT, START, ids[:3], most[:3])
    accounts.write_spent(tables, SALT, [(0, pairs(1, 2, 3))])
    directory.refresh(tables, last.people)
    last = open_accounts(tables, SALT, last, ids[3:], most[3:])
    assert last.people == ids.size
    directory.refresh(tables, last.people)
    assert directory.find(ids).tolist() == list(range(ids.size))
    spent, limit = accounts.read_balances(tables, SALT, np.arange(ids.size))
    assert spent.tolist() == pairs(1, 2, 3, *[0] * (ids.size - 3)).tolist()
    assert set(limit[:, 0].tolist()) == {5}
    nobody = np.zeros(0, dtype=np.int64)
    assert open_accounts(tables, SALT, last, nobody, most[:0]) is last


def test_only_what_differs_is_changed_and_recorded(tables: sa.Connection) -> None:
    ids, places = np.array([7, 8, 9]), np.arange(3)
    last = open_accounts(tables, SALT, START, ids, terms(5, 5, 5))
    accounts.write_spent(tables, SALT, [(0, pairs(4, 4, 4))])
    assert amend_accounts(tables, SALT, last, ids, places, terms(5, 5, 5)) is last
    with refused(BudgetError, 9, "epsilon", 1):
        amend_accounts(tables, SALT, last, ids, places, terms(6, 4, 3))
    assert accounts.read_balances(tables, SALT, places)[1].tolist() == pairs(5, 5, 5).tolist()
    after = amend_accounts(tables, SALT, last, ids, places, terms(5, 4, 8))
    assert accounts.read_balances(tables, SALT, places)[1].tolist() == pairs(5, 4, 8).tolist()
    mask, rest = codec.unpack_mask(dict(read_payloads(tables, after.number))[0])
    new = np.frombuffer(rest, codec.TERMS)
    assert (mask.tolist(), new["limit"].tolist()) == ([False, True, True], [4, 8])


def test_the_share_of_the_slack_is_everyone_s_own(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    ledger.enroll([1, 2, 3], 1.0, 1e-5, slack=[0.0, 0.1, 0.5])
    told = ledger.remaining_slack([1, 2, 3])
    assert told == pytest.approx([0.0, 1e-6, 5e-6], rel=1e-9)
    assert (told <= [0.0, 1e-6, 5e-6]).all()
    left = ledger.remaining([1, 2, 3])
    assert left == pytest.approx(gaussian_budget(1.0, 1e-5, [0.0, 1e-6, 5e-6]), rel=1e-9)
    assert left[0] > left[1] > left[2]
    ledger.reserve_costs("t", [1, 2, 3], Costs.fixed([1e-3] * 3, 9e-7))
    assert ledger.spent([1, 2, 3]).astype(bool).tolist() == [False, True, True]
    with pytest.raises(BudgetError, match=r"person 3: the new slack, .* is below what is spent"):
        ledger.enroll([3], 1.0, 1e-5, slack=0.05)
    head = ledger.head()
    assert ledger.enroll([1, 2, 3], 1.0, 1e-5) == 0  # who names no share changes none
    assert ledger.head() == head
    ledger.enroll([2, 3], [1.0, 1.2], 1e-5)
    assert ledger.balances([2, 3])[0][:, 1] * codec.SLACK_UNIT == pytest.approx([1e-6, 1e-6])
    for bad in (-0.1, 1.0, np.nan):
        with pytest.raises((BudgetError, InputError), match="slack"):
            ledger.enroll([4], 1.0, 1e-5, slack=bad)
    assert ledger.verify().ok


def test_a_budget_below_what_is_spent_is_told_in_epsilon(tmp_path: Path) -> None:
    """The epsilon that is named is the least that can be given, to its six digits."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll(["ann"], 1.0, 1e-5)
    ledger.reserve_costs("t", ["ann"], Costs.fixed([0.02], 0.0))
    with refused(BudgetError, "epsilon", 0.01, "delta", 1e-05) as e:
        ledger.enroll(["ann"], 0.01, 1e-5)
    least = float(re.search(r"spent, epsilon = ([\d.]+);", str(e.value))[1])  # type: ignore[index]
    with pytest.raises(BudgetError, match=f"spent, epsilon = {least}; .*: give at least that"):
        ledger.enroll(["ann"], least * (1 - 1e-5), 1e-5)
    ledger.enroll(["ann"], least, 1e-5)
