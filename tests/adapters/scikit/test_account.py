"""What fits spend together: held against compositions made by hand, never below them."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

from apiece.accounting import privacy_curve
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import StateError
from apiece.mechanisms import Composed
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage
from apiece.sklearn import Account
from sample_estimators import ROWS, classifier, features, people


def plan(epsilon: object, ids: object, *, steps: int = 4) -> BoundPlan:
    budgets = Budgets(epsilon, 1e-4, ids=ids)  # type: ignore[arg-type]
    return assign(budgets, "scale", steps=steps, expected_batch_size=10, clip_norm=1.0)


def spent(*plans: BoundPlan, group: int = 0) -> float:
    every = Composed(*(p.mechanism_for(group) for p in plans))
    return float(privacy_curve(every, method="pld").epsilon(1e-4).upper)


def noted(*plans: BoundPlan, named: bool = True) -> Account:
    account = Account()
    for each in plans:
        account.note(each, named=named)
    return account


FIRST = plan([1.0] * 60, range(60))
SECOND = plan([1.0] * 50, range(30, 80), steps=7)
ELSEWHERE = plan([1.0] * 60, range(100, 160), steps=3)


def test_folds_of_a_cross_validation_are_counted_for_each_person() -> None:
    account = Account()
    cross_val_score(
        classifier(account=account, steps=5),
        features(),
        people()["label"],
        params={"epsilon": np.ones(ROWS), "people": np.arange(ROWS)},
        cv=KFold(3),
    )
    assert len(account) == 3
    (found,) = account.together()
    assert (found.epsilon, found.fits) == (1.0, 2)  # each person is left out of one fold
    assert 1.0 < found.epsilon_spent < 2.0
    assert "3 fits" in account.table()


def test_named_people_pay_for_the_fits_that_they_were_in() -> None:
    (both,) = noted(FIRST, SECOND).together()
    assert both.fits == 2
    assert both.epsilon_spent == spent(FIRST, SECOND)
    (one,) = noted(FIRST, ELSEWHERE).together()
    assert one.fits == 1
    assert one.epsilon_spent == max(spent(FIRST), spent(ELSEWHERE))


def test_without_names_everybody_pays_for_all() -> None:
    (found,) = noted(FIRST, ELSEWHERE, named=False).together()
    assert found.fits == 2
    assert found.epsilon_spent == spent(FIRST, ELSEWHERE)
    mixed = Account()
    mixed.note(FIRST, named=True)
    mixed.note(ELSEWHERE, named=False)
    assert mixed.together() == (found,)


def test_other_budgets_without_names_are_refused() -> None:
    with pytest.raises(StateError, match="give fit people="):
        noted(FIRST, plan([2.0] * 60, range(60)), named=False).together()


def two_groups(noise: float, **columns: object) -> BoundPlan:
    """A plan in which the first of two groups of one (ε, δ) spends less than the second."""
    budgets = Budgets([1.0] * 60, 1e-4, ids=range(60), **columns)  # type: ignore[arg-type]
    stage = Stage(4, 60 * 0.1, noise, [0.1, 0.1], [0.5, 1.0])
    return Plan("own", 1.0, budgets.groups, (stage,)).bind(budgets)


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize(
    "columns", [{"excess": [0.2] * 30 + [0.9] * 30}, {"labels": ["a"] * 30 + ["b"] * 30}]
)
def test_groups_that_differ_in_more_than_epsilon_have_entries_of_their_own(
    columns: dict[str, object], named: bool
) -> None:
    plans = two_groups(4.0, **columns), two_groups(5.0, **columns)
    found = noted(*plans, named=named).together()
    assert [entry.name for entry in found] == plans[0].budget_groups.name.tolist()
    assert [entry.epsilon_spent for entry in found] == [spent(*plans), spent(*plans, group=1)]
    assert found[0].epsilon_spent < found[1].epsilon_spent


def test_without_names_nobody_knows_which_of_two_groups_a_record_was_in() -> None:
    other = two_groups(4.0, labels=["a"] * 30 + ["c"] * 30)
    with pytest.raises(StateError, match="give fit people="):
        noted(two_groups(4.0, labels=["a"] * 30 + ["b"] * 30), other, named=False).together()


def test_a_person_who_changed_their_budget_pays_for_both() -> None:
    other = plan([2.0] * 60, range(60))
    (found,) = noted(FIRST, other).together()
    assert found.epsilon == 1.0
    assert found.epsilon_spent == spent(FIRST, other) > 2.0


def test_many_histories_are_bounded_by_one_that_holds_them_all() -> None:
    """Of each person at least the total of the fits that they were in."""
    generator = np.random.default_rng(0)
    plans = [plan([1.0] * 15, generator.permutation(60)[:15], steps=2) for _ in range(9)]
    (found,) = noted(*plans).together()
    members = [set(p.ids.tolist()) for p in plans]
    most = max(range(60), key=lambda who: sum(who in m for m in members))
    own = [p for p, m in zip(plans, members, strict=True) if most in m]
    assert found.fits == len(own) < len(plans)
    assert spent(*own) <= found.epsilon_spent <= spent(*plans)


def test_of_many_budgets_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apiece.adapters.account._MOST_GROUPS", 2)
    many = plan(np.linspace(1, 2, 20), range(20))
    told = noted(many, many).together()
    assert len(told) == 2
    assert (told[0].epsilon, told[-1].epsilon) == (1.0, 2.0)
    assert all(s.epsilon < s.epsilon_spent < 2 * s.epsilon for s in told)


def test_copies_share_an_account_and_none_leaves_the_process() -> None:
    account = Account()
    model = classifier(epsilon=1.0, account=account)
    assert clone(model).account is clone(clone(model)).account is account
    assert copy.deepcopy(model).account is account
    with pytest.raises(StateError, match="leave n_jobs out"):
        pickle.dumps(model)
    pickle.dumps(model.set_params(account=None))


def test_its_repr_names_nobody() -> None:
    account = noted(plan([1.0] * 20, [f"person 7310429-{i}" for i in range(20)]))
    shown = f"{account} {account!r} {account.table()} {account.together()}"
    assert "7310429" not in shown
    assert repr(account) == "Account(1 fits)"
