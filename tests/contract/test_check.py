"""The contract (ε_i, δ_i, Δ̄_i): checked, enforced, and out of a coalition's reach."""

import numpy as np
import pytest

from apiece import contract
from apiece.assignment import Hybrid, Sample, Scale, Uniform, assign
from apiece.budgets import Budgets
from apiece.contract.check import Clause
from apiece.errors import VerificationError
from refusals import refused

# Few steps at a small δ: rates move a record's curve a good deal.
SETTINGS = {"steps": 100, "expected_batch_size": 50, "clip_norm": 1.0}
DELTA = 1e-8


def population(share: float, others: float, victim: float = 4.0, size: int = 1000) -> Budgets:
    return Budgets.from_groups(
        [("victim", victim, 1 - share), ("others", others, share)], size, DELTA
    )


@pytest.fixture(scope="module")
def skewed() -> Budgets:
    return population(0.8, 1.0)


def victim_clause(verdict: contract.Verdict) -> Clause:
    return next(clause for clause in verdict if clause.group == "victim")


def test_scale_keeps_every_contract(skewed: Budgets) -> None:
    verdict = contract.check(assign(skewed, Scale(), **SETTINGS))
    # Noise is rounded towards privacy: nobody is more vulnerable, and next to nothing less.
    assert all(clause.forward == 0 for clause in verdict)
    assert all(0 < clause.backward < 1e-10 for clause in verdict)
    bounded = Budgets(skewed.epsilon, DELTA, excess=0.0, labels=skewed.labels)
    assert contract.check(assign(bounded, Scale(), **SETTINGS), bounded).ok


def test_sample_makes_a_minority_more_vulnerable(skewed: Budgets) -> None:
    plan = assign(skewed, Sample(), **SETTINGS)
    loose = victim_clause(contract.check(plan))
    assert loose.kept  # no bound was asked
    assert loose.forward > 0.005
    bounded = Budgets(skewed.epsilon, DELTA, excess=0.002, labels=skewed.labels)
    verdict = contract.check(plan, bounded)
    assert not victim_clause(verdict).kept
    assert "more vulnerable" in victim_clause(verdict).reason
    with refused(VerificationError, "group"):
        verdict.require()


def test_uniform_is_less_vulnerable_than_promised(skewed: Budgets) -> None:
    clause = victim_clause(contract.check(assign(skewed, Uniform(), **SETTINGS)))
    assert clause.forward == pytest.approx(0, abs=1e-6)
    assert clause.backward > 0.01
    assert clause.symmetric == clause.backward


@pytest.mark.parametrize("bound", [0.0, 0.005])
@pytest.mark.parametrize("asked", ["with the plan", "later"])
def test_less_vulnerable_than_promised_breaks_a_contract_too(
    skewed: Budgets, bound: float, asked: str
) -> None:
    """It is not the mechanism that was promised: the victim's data count for less."""
    bounds = np.where(skewed.epsilon == 4, bound, 1.0)
    budgets = Budgets(skewed.epsilon, DELTA, excess=bounds, labels=skewed.labels)
    made_for = budgets if asked == "with the plan" else skewed
    verdict = contract.check(assign(made_for, Uniform(), **SETTINGS), budgets)
    clause = victim_clause(verdict)
    assert clause.forward <= 1e-5 < clause.backward
    assert [broken.group for broken in verdict.broken] == ["victim"]
    assert "less vulnerable than promised" in clause.reason


def test_a_broken_epsilon_is_a_broken_contract(skewed: Budgets) -> None:
    verdict = contract.check(assign(skewed, Uniform("loosest"), **SETTINGS))
    broken = [clause.group for clause in verdict.broken]
    assert broken == ["others"]
    assert "spends epsilon" in verdict.broken[0].reason


@pytest.mark.slow
def test_no_coalition_breaks_hybrid() -> None:
    """A search over shares and budgets of colluders finds nothing above the bound."""
    bound, worst = 0.005, 0.0
    for share, asked in ((0.9, 0.5), (0.9, 20.0)):
        plan = assign(population(share, asked), Hybrid(bound), **SETTINGS)
        worst = max(worst, victim_clause(contract.check(plan)).symmetric)
    assert 0 < worst <= bound
    free = assign(population(0.9, 0.5), Sample(), **SETTINGS)
    assert victim_clause(contract.check(free)).symmetric > bound
