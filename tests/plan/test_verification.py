"""What a plan spends, recomputed: each route an upper bound, promises joined by id."""

import dataclasses
import math

import numpy as np
import pytest

from apiece import contract
from apiece.accounting import privacy_curve
from apiece.assignment import JorgensenSampling, Sample, Scale, Uniform, assign
from apiece.budgets import BudgetGroups, Budgets
from apiece.errors import InputError, VerificationError
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage, sampled_steps
from apiece.plan.verification import Verification, compute_spending, find_limits
from refusals import refused

SETTINGS = {"steps": 3, "expected_batch_size": 10, "clip_norm": 1.0}


@pytest.mark.parametrize("joins", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("noise", [100.0, 1.0, 0.02])
def test_amplification_is_rounded_up_and_never_overflows(joins: float, noise: float) -> None:
    groups = BudgetGroups(np.array(["a"]), np.ones(1), np.full(1, 1e-11), None, np.array([100]))
    whole, coin = np.ones(1), np.full(1, joins)
    plan = Plan("by hand", 1.0, groups, (Stage(1, 100 * joins, noise, whole, whole, coin),))
    run = float(privacy_curve(sampled_steps(noise, 1, 1)).epsilon(1e-11 / joins).upper)
    exact = math.log1p(joins * math.expm1(run)) if run < 700 else run + math.log(joins)
    (spent,) = compute_spending(plan, "pld")
    assert spent >= exact * (1 - 2.0**-50)
    assert spent == pytest.approx(exact, rel=1e-9)


def test_a_coin_costs_what_the_mechanism_with_the_coin_costs() -> None:
    budgets = Budgets([1.0] * 50 + [3.0] * 50, 1e-3)
    settings = SETTINGS | {"steps": 1, "expected_batch_size": 50}
    plan = assign(budgets, JorgensenSampling(3.0), **settings)  # type: ignore[arg-type]
    whole = [float(plan.curve(g).epsilon(1e-3).upper) for g in range(2)]
    assert compute_spending(plan, "pld") == pytest.approx(whole, rel=2e-3)


def test_the_worst_broken_promise_is_named() -> None:
    names, asked = np.array(["a", "b", "c"]), np.array([1.0, 1.0, 2.0])
    spent = np.array([0.9, 1.5, 2.1])
    found = Verification(names, asked, np.full(3, 1e-5), spent, spent <= asked)
    assert not found.ok
    with refused(VerificationError, "group b", "epsilon", 1.5, 2):
        found.require()
    dataclasses.replace(found, kept=np.ones(3, bool)).require()


def test_the_group_furthest_beyond_its_bound_is_named() -> None:
    names, asked, ones = np.array(["a", "b", "c"]), np.array([1.0, 1.0, 2.0]), np.ones(3)
    bound, forward = np.array([0.9, 0.1, 1.0]), np.array([0.95, 0.3, 1.0])
    kept = np.array([False, False, True])
    found = Verification(names, asked, 1e-5 * ones, 0.9 * asked, kept, bound, forward)
    with refused(VerificationError, "group b", "excess", 0.3, 2):
        found.require()


def test_groups_that_may_take_the_same_stages_spend_by_their_own_settings() -> None:
    """Coins that are revealed: what tells groups apart is the stages and what is done in each."""
    plan = assign(Budgets([1.0] * 20 + [3.0] * 20 + [3.1] * 20, 1e-5), Scale(), **SETTINGS)  # type: ignore[arg-type]
    for paths in ([[True], [True], [True]], [[True], [False], [True]]):
        shown = dataclasses.replace(
            plan, worst_paths=np.array(paths), objections=("coins are revealed",)
        )
        alone = [
            float(privacy_curve(shown.mechanism_for(g)).epsilon(1e-5).upper) if paths[g][0] else 0.0
            for g in range(3)
        ]
        assert compute_spending(shown, "pld") == pytest.approx(alone, rel=1e-9)


def test_the_strictest_of_each_group_by_id_wherever_it_stands() -> None:
    budgets = Budgets([3.0, 1.0, 2.0], [1e-5, 1e-4, 1e-6], excess=[1, 0.2, 0], ids=["x", "y", "z"])
    free = Budgets([9.0, 8.0, 0.5], 1e-3, excess=[1, 1, 0.1], ids=["z", "x", "y"])
    groups = Budgets([4.0, 4.0, 7.0], 0.01).groups
    allows = free.consents.lowered_to(budgets)
    assert allows.ids.tolist() == ["z", "x", "y"]
    limits = find_limits(groups, np.array([0, 0, 1]), allows)
    assert limits.epsilon.tolist() == [2.0, 0.5]
    assert limits.delta.tolist() == [1e-6, 1e-4]
    assert limits.excess.tolist() == [0.0, 0.1]
    asked = find_limits(groups)
    assert asked.epsilon.tolist() == [4.0, 7.0]
    assert asked.delta.tolist() == [0.01, 0.01]
    assert asked.excess.tolist() == [1.0, 1.0]
    with pytest.raises(InputError, match="no record with id w"):
        free.consents.with_ids(np.array(["z", "w", "y"])).lowered_to(budgets)


def loose(budgets: Budgets) -> BoundPlan:
    free = Budgets(budgets.epsilon, budgets.delta.max(), ids=budgets.ids)
    return assign(free, Scale(), **SETTINGS)  # type: ignore[arg-type]


@pytest.mark.parametrize("who", [0, 30, 49])
def test_a_smaller_delta_of_one_record_is_a_broken_promise(who: int) -> None:
    """The plan spends no more ε than was asked, but at a δ that this record did not allow."""
    delta = np.full(50, 1e-5)
    delta[who] = 9e-6
    order = np.random.default_rng(who).permutation(50)
    budgets = Budgets(np.full(50, 2.0), delta[order], ids=order)
    found = loose(budgets).verify(budgets)
    assert (found.epsilon_spent <= found.epsilon).all()
    assert not found.ok
    with refused(VerificationError, "delta", 1e-05):
        found.require()
    verdict = contract.check(loose(budgets), budgets)
    assert not verdict.ok
    assert "larger delta" in verdict.broken[0].reason


def test_the_bound_of_one_record_is_verified_with_a_baseline_of_its_own() -> None:
    """Who is taken more often than their own ε would be, though the plan keeps that ε."""
    skewed = Budgets([1.0] * 45 + [4.0] * 5, 1e-5)
    plan = assign(skewed, Sample(), **(SETTINGS | {"expected_batch_size": 5, "steps": 1}))  # type: ignore[arg-type]
    plan = dataclasses.replace(plan, stages=(less(plan.stages[0]),))
    lower, bounds = skewed.epsilon.copy(), np.ones(50)
    lower[-1], bounds[-1] = float(plan.epsilon_spent[1]) * 1.0001, 0.03
    assert plan.verify(Budgets(lower, 1e-5)).ok
    assert plan.verify(Budgets(skewed.epsilon, 1e-5, excess=bounds)).ok  # of the larger ε
    found = plan.verify(Budgets(lower, 1e-5, excess=bounds))
    assert found.forward is not None
    assert found.forward[1] > 0.03
    assert found.kept.tolist() == [True, False]
    with pytest.raises(VerificationError, match=r"forward excess .* bound 0.03"):
        found.require()


def test_many_groups_at_once_spend_what_each_spends_alone() -> None:
    asked = np.geomspace(0.5, 4, 36)
    budgets = Budgets(np.repeat(asked, 3), np.repeat(np.geomspace(1e-7, 1e-4, 36), 3))
    plan = assign(budgets, Scale(), **(SETTINGS | {"expected_batch_size": 108}))  # type: ignore[arg-type]
    assert (plan.epsilon_spent <= plan.budget_groups.epsilon).all()
    for g in (0, 1, 17, 35):
        delta = float(plan.budget_groups.delta[g])
        alone = privacy_curve(plan.mechanism_for(g)).epsilon(delta)
        assert alone.lower <= plan.epsilon_spent[g] <= alone.upper * (1 + 1e-3)


@pytest.mark.parametrize("batch", [300, 30])
def test_who_is_given_more_noise_than_they_asked_stands_apart_from_the_uniform(batch: int) -> None:
    """However little: Δ is 0 in both directions only for the mechanism that is the baseline."""
    budgets = Budgets([1.0] * 100 + [1.02] * 100 + [3.0] * 100, 1e-5)
    settings = SETTINGS | {"expected_batch_size": batch}
    measured = assign(budgets, Uniform("strictest"), **settings).measures  # type: ignore[arg-type]
    assert measured.forward is not None
    assert measured.backward is not None
    assert measured.forward.tolist() == [0.0, 0.0, 0.0]
    assert measured.backward[0] == 0 < 1e-5 < measured.backward[1] < 0.1 * measured.backward[2]


def less(stage: Stage) -> Stage:
    return dataclasses.replace(stage, noise_stddev=stage.noise_stddev * 2.5)


def test_another_accountant_is_asked_by_name_and_not_remembered() -> None:
    plan = assign(Budgets([1.0] * 50, 1e-5), Scale(), **SETTINGS)  # type: ignore[arg-type]
    tight, loose = plan.verify(), plan.verify(method="rdp")
    assert loose.epsilon_spent[0] > tight.epsilon_spent[0]
    assert plan.verify().epsilon_spent is tight.epsilon_spent


def test_only_public_records_may_be_missing_from_the_budgets_of_all_others() -> None:
    asked = np.repeat([1.0, 4.0, 2.0], 10)
    names = np.repeat(["strict", "weak", "public"], 10)
    settings = {"steps": 1, "expected_batch_size": 6.0, "clip_norm": 1.0}
    plan = assign(Budgets(asked, 1e-5, labels=names), "scale", **settings)  # type: ignore[arg-type]
    assert plan.verify(Budgets(asked[:20], 1e-5)).ok
    assert not plan.verify(Budgets(asked[:20] / 2, 1e-5)).ok
    for fewer in (Budgets(asked[:19], 1e-5), Budgets(asked[10:], 1e-5, ids=np.arange(10, 30))):
        with pytest.raises(InputError, match="are missing"):
            plan.verify(fewer)
    more = Budgets(np.append(asked[:20], 1.0), 1e-5, ids=[*range(20), 77])
    with pytest.raises(InputError, match="are missing"):
        plan.verify(more)  # of somebody else too
