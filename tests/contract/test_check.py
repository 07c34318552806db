"""The contract (ε_i, δ_i, Δ̄_i): checked, enforced, and out of a coalition's reach."""

import itertools

import pytest

from apiece import contract
from apiece.assignment import Hybrid, Sample, Scale, Uniform, assign
from apiece.budgets import Budgets
from apiece.errors import BudgetError, InputError, VerificationError
from apiece.plan import Plan

# Few steps at a small δ: rates move a record's curve a good deal.
SETTINGS = {"steps": 100, "expected_batch_size": 50, "clip_norm": 1.0}
DELTA = 1e-8


def population(share: float, others: float, victim: float = 4.0, size: int = 1000) -> Budgets:
    return Budgets.from_groups(
        [("victim", 1 - share, victim), ("others", share, others)], size, DELTA
    )


@pytest.fixture(scope="module")
def skewed() -> Budgets:
    return population(0.8, 1.0)


def cost(plan: Plan) -> float:
    """Noise over signal."""
    stage = plan.stages[0]
    signal = plan.budget_groups.records @ (stage.sampling_probability * stage.clip_norm)
    return float(stage.noise_stddev / signal)


def victim_clause(verdict: contract.Verdict) -> contract.Clause:
    return next(clause for clause in verdict if clause.group == "victim")


def test_scale_keeps_every_contract(skewed: Budgets) -> None:
    verdict = contract.check(assign(skewed, Scale(), **SETTINGS))
    assert all(clause.symmetric == 0 for clause in verdict)
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
    with pytest.raises(VerificationError, match="group"):
        verdict.require()


def test_uniform_is_less_vulnerable_than_promised(skewed: Budgets) -> None:
    clause = victim_clause(contract.check(assign(skewed, Uniform(), **SETTINGS)))
    assert clause.forward == pytest.approx(0, abs=1e-6)
    assert clause.backward > 0.01
    assert clause.symmetric == clause.backward


def test_a_broken_epsilon_is_a_broken_contract(skewed: Budgets) -> None:
    verdict = contract.check(assign(skewed, Uniform("loosest"), **SETTINGS))
    broken = [clause.group for clause in verdict.broken]
    assert broken == ["others"]
    assert "spends epsilon" in verdict.broken[0].reason


def test_hybrid_goes_from_scale_to_sample(skewed: Budgets) -> None:
    bounds = (0.0, 0.002, 0.01, 1.0)
    plans = [assign(skewed, Hybrid(bound), **SETTINGS) for bound in bounds]
    scale, sample = (assign(skewed, s, **SETTINGS) for s in (Scale(), Sample()))
    for end, whole in ((plans[0], scale), (plans[-1], sample)):
        one, other = end.stages[0], whole.stages[0]
        assert one.noise_stddev == pytest.approx(other.noise_stddev, rel=2e-3)
        assert one.sampling_probability == pytest.approx(other.sampling_probability, rel=3e-3)
        assert one.clip_norm == pytest.approx(other.clip_norm, rel=2e-3)
    costs = [cost(plan) for plan in plans]
    assert all(b < a for a, b in itertools.pairwise(costs))
    for bound, plan in zip(bounds, plans, strict=True):
        assert all(clause.symmetric <= bound for clause in contract.check(plan))
        stage = plan.stages[0]
        share = plan.budget_groups.records / plan.records
        assert share @ stage.sampling_probability == pytest.approx(0.05, rel=1e-6)
        assert share @ stage.clip_norm == pytest.approx(1.0, rel=1e-6)


def test_enforce_takes_sample_where_it_fits(skewed: Budgets) -> None:
    plan = contract.enforce(skewed, excess=1.0, **SETTINGS)
    assert plan.strategy == "sample"
    assert "sample keeps it" in plan.notes[0]


def test_enforce_says_what_it_took_and_what_others_cost(skewed: Budgets) -> None:
    plan = contract.enforce(skewed, excess=0.004, **SETTINGS)
    assert contract.check(plan).ok
    assert plan.strategy == "hybrid"
    text = " ".join(plan.notes)
    assert "hybrid was taken" in text
    assert "sample would break it" in text
    assert "scale would cost +" in text
    with pytest.raises(BudgetError, match="no bound"):
        contract.enforce(skewed, **SETTINGS)


def test_public_records_follow_with_a_budget_of_their_own(skewed: Budgets) -> None:
    from apiece.contract.enforce import with_public

    bounded = Budgets(skewed.epsilon, DELTA, excess=0.01, labels=skewed.labels)
    padded = with_public(bounded, 100, 8.0)
    assert len(padded) == 1100
    assert padded.ids.tolist() == list(range(1100))
    assert padded.excess is not None
    assert padded.excess[-1] == 1
    assert "public" in padded.groups.name.tolist()
    named = Budgets([1.0, 2.0], 1e-5, excess=0.1, ids=["a", "b"])
    assert with_public(named, 2, 1.0).ids.tolist() == ["a", "b", "public:0", "public:1"]


def test_no_coalition_breaks_hybrid() -> None:
    """A search over shares and budgets of colluders finds nothing above the bound."""
    bound, worst = 0.005, 0.0
    for share, asked in ((0.9, 0.5), (0.9, 20.0)):
        plan = assign(population(share, asked), Hybrid(bound), **SETTINGS)
        worst = max(worst, victim_clause(contract.check(plan)).symmetric)
    assert 0 < worst <= bound
    free = assign(population(0.9, 0.5), Sample(), **SETTINGS)
    assert victim_clause(contract.check(free)).symmetric > bound


def test_risk_table_moves_the_right_way() -> None:
    table = contract.risk_table(
        records=1000, victim_epsilon=4.0, delta=DELTA, shares=[0.2, 0.8], epsilons=[1.0, 12.0],
        steps=100, expected_batch_size=50,
    )  # fmt: skip
    assert table.advantage[1, 0] > table.advantage[0, 0] > table.baseline
    assert table.advantage[1, 1] < table.advantage[0, 1] < table.baseline
    assert (table.forward[:, 0] > table.forward[:, 1]).all()
    with pytest.raises(InputError, match="share"):
        contract.risk_table(
            records=10, victim_epsilon=1, delta=DELTA, shares=[1.0], epsilons=[1],
            steps=1, expected_batch_size=1,
        )  # fmt: skip
