"""Rounds as published: the guarantee that truly holds, and the counterexample to the claim."""

import math
from dataclasses import replace

import pytest

from apiece.accounting import privacy_curve
from apiece.assignment import AdaPDP, Rounds, assign
from apiece.assignment.front import make_strategy
from apiece.assignment.rounds import list_paths
from apiece.budgets import Budgets
from apiece.mechanisms import Composed
from apiece.plan import Plan

from .plans import plan_of


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Rounds, AdaPDP])
def test_published_rounds_exceed_and_say_so(strategy: type[Rounds]) -> None:
    plan = plan_of(strategy(charging="joined"))
    assert plan.strategy == f"published_{strategy.name}"
    verification = plan.verify()
    assert not plan.releasable
    assert "worst path" in plan.objections[0]
    assert not verification.ok
    assert verification.epsilon_spent.max() > verification.epsilon.min()
    strict = [g for g, n in enumerate(plan.budget_groups.name) if str(n).startswith("s joined")]
    assert (verification.epsilon_spent[strict] > 1.0).all()
    back = Plan.from_json(plan.to_json())
    assert back.verify().epsilon_spent == pytest.approx(verification.epsilon_spent)


def randomized_response_rounds(epsilon: float, tau: float, rounds: int) -> float:
    """The exact ε of Heo et al. 2023's rounds for a record that tries until it has joined once.

    Each round: with probability π the record is in a τ-randomized response, then never again.
    """
    join = math.expm1(epsilon) / math.expm1(tau)
    truth = math.exp(tau) / (1 + math.exp(tau))
    worst = 0.0
    for outcome in range(2**rounds):
        bits = [outcome >> k & 1 for k in range(rounds)]
        absent = math.prod(1 - truth if b else truth for b in bits)
        there = (1 - join) ** rounds * absent
        for k, b in enumerate(bits):
            swap = (truth if b else 1 - truth) / (1 - truth if b else truth)
            there += (1 - join) ** k * join * absent * swap
        worst = max(worst, abs(math.log(there / absent)))
    return worst


def test_the_counterexample_to_rounds_as_published() -> None:
    """Methods §4: ε_i = .5, τ = 2, randomized response inside; the promise was .5."""
    found = [randomized_response_rounds(0.5, 2.0, k) for k in (1, 2, 5, 10)]
    assert found == pytest.approx([0.5, 0.803, 1.295, 1.648], abs=1e-3)
    # what the library states instead, with the coins revealed, is above the truth: one join at τ
    for rounds in (1, 2, 5, 10):
        worst = max(sum(path) for path in list_paths(0.5, [2.0] * rounds))
        assert worst * 2.0 >= randomized_response_rounds(0.5, 2.0, rounds)


def test_paths_are_all_ways_that_coins_can_fall() -> None:
    assert set(list_paths(3.0, [2.0, 2.0])) == {(True, True), (True, False)}
    assert set(list_paths(2.0, [2.0, 2.0])) == {(True, False)}
    assert len(set(list_paths(0.5, [2.0] * 4))) == 5


def test_a_plan_is_called_by_who_pays() -> None:
    """Not by the name under which the strategy was asked for."""
    settings = {"steps": 10, "expected_batch_size": 20, "clip_norm": 1.0}
    asked = Budgets([1.0] * 50 + [3.0] * 50, 1e-5)
    plan = assign(asked, make_strategy("published_rounds", charging="everyone"), **settings)
    assert (plan.strategy, plan.releasable) == ("rounds", True)
    plan = assign(asked, Rounds(charging="joined"), **settings)
    assert (plan.strategy, plan.releasable) == ("published_rounds", False)


@pytest.mark.parametrize("seed", range(3))
def test_a_worst_path_costs_no_less_than_what_anybodys_coins_gave(seed: int) -> None:
    """Each group's records could have been any other's of their budget: theirs is the bound."""
    asked = Budgets([0.5] * 40 + [1.0] * 40 + [3.0] * 20, 1e-4)
    settings = {"steps": 9, "expected_batch_size": 10, "clip_norm": 1.0}
    plan = assign(asked, Rounds(3, charging="joined", seed=seed), **settings)
    groups = plan.budget_groups
    spent = {
        float(epsilon): float(plan.epsilon_spent[groups.epsilon == epsilon].min())
        for epsilon in groups.epsilon
    }
    compared = 0
    for g, epsilon in enumerate(groups.epsilon.tolist()):
        joined = [
            replace(stage, participation=None).mechanism(g)
            for stage in plan.stages
            if stage.participation is not None and stage.participation[g] == 1
        ]
        parts = [part for part in joined if part is not None]
        assert len(parts) == len(joined)
        if parts:
            cost = float(privacy_curve(Composed(*parts)).epsilon(1e-4).lower)
            assert spent[epsilon] >= cost * (1 - 1e-6)
            compared += 1
    assert compared > len(spent)
