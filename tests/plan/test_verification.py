"""What a plan spends, recomputed: each route an upper bound, promises joined by id."""

import dataclasses
import math

import numpy as np
import pytest

from apiece.assignment import JorgensenSampling, Scale, assign
from apiece.budgets import Budgets
from apiece.errors import InputError, VerificationError
from apiece.plan import Verification
from apiece.plan.verification import amplified, spending, strictest

SETTINGS = {"steps": 3, "expected_batch_size": 10, "clip_norm": 1.0}


@pytest.mark.parametrize("joins", [1e-9, 0.3, 1.0])
def test_amplification_is_rounded_up_and_never_overflows(joins: float) -> None:
    epsilon = np.array([1e-12, 1e-3, 0.999, 1.0, 30.0, 700.0])
    found = amplified(epsilon, np.full(6, joins))
    exact = np.array([math.log1p(joins * math.expm1(e)) for e in epsilon])
    assert (found >= exact * (1 - 2.0**-50)).all()
    assert found == pytest.approx(exact, rel=1e-9)
    assert amplified(np.array([2000.0]), np.array([joins])) == pytest.approx(
        2000 + math.log(joins), rel=1e-12
    )


def test_a_coin_costs_what_the_mechanism_with_the_coin_costs() -> None:
    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-3)
    settings = SETTINGS | {"steps": 1, "expected_batch_size": 50}
    plan = assign(budgets, JorgensenSampling(3.0), **settings)  # type: ignore[arg-type]
    whole = [float(plan.curve(g).epsilon(1e-3).upper) for g in range(2)]
    assert spending(plan, "pld") == pytest.approx(whole, rel=2e-3)


def test_the_worst_broken_promise_is_named() -> None:
    names, asked = np.array(["a", "b", "c"]), np.array([1.0, 1.0, 2.0])
    spent = np.array([0.9, 1.5, 2.1])
    found = Verification(names, asked, np.full(3, 1e-5), spent, spent <= asked)
    assert not found.ok
    with pytest.raises(VerificationError, match=r"group b spends epsilon = 1.5 .*\(2 groups"):
        found.require()
    dataclasses.replace(found, kept=np.ones(3, bool)).require()


def test_the_strictest_of_each_group_by_id_wherever_it_stands() -> None:
    budgets = Budgets([3.0, 1.0, 2.0], [1e-5, 1e-4, 1e-6], ids=["x", "y", "z"])
    index, ids = np.array([0, 0, 1]), np.array(["z", "x", "y"])
    epsilon, delta = strictest(2, index, ids, budgets)
    assert (epsilon.tolist(), delta.tolist()) == ([2.0, 1.0], [1e-6, 1e-4])
    with pytest.raises(InputError, match="no record with id w"):
        strictest(2, index, np.array(["z", "w", "y"]), budgets)


def test_another_accountant_is_asked_by_name_and_not_remembered() -> None:
    plan = assign(Budgets([1.0] * 50, 1e-5), Scale(), **SETTINGS)  # type: ignore[arg-type]
    tight, loose = plan.verify(), plan.verify(method="rdp")
    assert loose.epsilon_spent[0] > tight.epsilon_spent[0]
    assert plan.verify().epsilon_spent is tight.epsilon_spent
