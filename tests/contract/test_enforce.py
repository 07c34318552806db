"""What `enforce` takes, what it says of the rest, and padding where that is the best."""

import sys

import numpy as np
import pytest

from apiece import contract
from apiece.budgets import Budgets
from apiece.contract.check import Clause
from apiece.errors import BudgetError, InfeasibleError, InputError
from apiece.plan import BoundPlan

PADDED = {"steps": 1, "expected_batch_size": 25, "clip_norm": 1.0}


@pytest.fixture(scope="module")
def budgets() -> Budgets:
    """A few victims among many strict records, of which only the victims ask for a bound."""
    epsilon = np.array([4.0] * 60 + [1.0] * 240)
    bound = np.where(epsilon == 4, 0.004, 1.0)
    ids = np.array([f"person {i}" for i in range(300)])
    labels = np.where(epsilon == 4, "victim", "others")
    return Budgets(epsilon, 1e-6, excess=bound, ids=ids, labels=labels)


def test_enforce_takes_padding_where_it_is_best(
    budgets: Budgets, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a coarser search, for speed; the function hides its module
    monkeypatch.setattr(sys.modules["apiece.contract.check"], "SPARE", 0.2)
    plan = contract.enforce(budgets, public=200, **PADDED)  # type: ignore[arg-type]
    assert plan.strategy == "sample"
    assert plan.records == 500
    assert plan.ids[:2].tolist() == ["person 0", "person 1"]
    assert plan.ids[-1] == "public:199"
    assert plan.verify().ok
    verdict = contract.check(plan)
    assert verdict.ok
    assert contract.check(plan, budgets) == verdict  # those who asked, without whom it added
    less = Budgets(budgets.epsilon / 2, 1e-6, ids=budgets.ids)
    assert [clause.kept for clause in contract.check(plan, less)].count(False) == 2
    for others in (budgets.taken(np.arange(299)), Budgets(1.0, 1e-6, ids=np.arange(300))):
        with pytest.raises(InputError, match="are missing"):
            plan.verify(others)
    assert {clause.group for clause in verdict} == {"victim", "others", "public"}
    # the public records ask as much as the bound allows, and no more
    assert 0.8 < max(clause.backward / clause.bound for clause in verdict) <= 1
    # the plan keeps everyone's own budget, joined by id
    asked = dict(
        zip(plan.budget_groups.name.tolist(), plan.budget_groups.epsilon.tolist(), strict=True)
    )
    assert asked["victim"] == 4
    assert asked["others"] == 1
    notes = "\n".join(plan.notes)
    assert "sample, 200 public records was taken" in notes
    assert "sample would break it: group victim" in notes
    for other in ("hybrid", "scale"):
        assert f"{other} would cost +" in notes


def test_public_records_that_do_not_help_are_not_added(budgets: Budgets) -> None:
    """Where even the smallest budget for them leaves too little noise."""
    tight = Budgets(budgets.epsilon, 1e-6, excess=1e-5)
    plan = contract.enforce(tight, public=2, **PADDED)  # type: ignore[arg-type]
    assert plan.records == 300
    assert "public" not in " ".join(plan.notes)
    assert contract.check(plan).ok


def test_what_breaks_is_neither_taken_nor_called_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each option's verdict counts, also one that its own strategy should have kept."""
    asked = Budgets([1.0] * 240 + [4.0] * 60, 1e-6, excess=1.0)
    breaks = {"sample", "hybrid"}

    def check(plan: BoundPlan) -> contract.Verdict:
        kept = plan.strategy not in breaks
        reason = "kept" if kept else "as planted"
        clause = Clause("a", 1.0, 1e-6, 0.01, 1.0, 0.0, 0.0, 0.0, kept, reason)
        return contract.Verdict((clause,))

    monkeypatch.setattr(sys.modules["apiece.contract.check"], "check", check)
    plan = contract.enforce(asked, method="rdp", **PADDED)  # type: ignore[arg-type]
    assert plan.strategy == "scale"
    assert plan.notes[1] == "sample would break it: group a: as planted"
    assert "hybrid would cost -" in plan.notes[2]
    assert plan.notes[2].endswith("noise over signal and break the contract")
    breaks.add("scale")
    with pytest.raises(InfeasibleError, match=r"not even scale keeps it \(as planted"):
        contract.enforce(asked, method="rdp", **PADDED)  # type: ignore[arg-type]


# few steps at a small δ: rates move a record's curve a good deal
SETTINGS = {"steps": 100, "expected_batch_size": 50, "clip_norm": 1.0}
DELTA = 1e-8


@pytest.fixture(scope="module")
def skewed() -> Budgets:
    return Budgets.from_groups([("victim", 4.0, 0.2), ("others", 1.0, 0.8)], 1000, DELTA)


def test_enforce_takes_sample_where_it_fits(skewed: Budgets) -> None:
    plan = contract.enforce(skewed, excess=1.0, **SETTINGS)
    assert plan.strategy == "sample"
    assert "sample keeps it" in plan.notes[0]


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("excess", "own"), [(0.3, 0.0), (1.0, [1.0] * 240 + [0.0] * 60)], ids=["all", "some"]
)
def test_a_bound_for_all_loosens_nobodys_own(excess: float, own: float | list[float]) -> None:
    """It put .3 in the place of stricter bounds, and all that verifies was content."""
    budgets = Budgets([1.0] * 240 + [4.0] * 60, 1e-6, excess=own)
    plan = contract.enforce(budgets, excess=excess, steps=1, expected_batch_size=25, clip_norm=1.0)
    assert plan.budget_groups.excess is not None
    assert (plan.budget_groups.excess <= budgets.groups.excess).all()
    plan.require()
    assert contract.check(plan, budgets).ok


def test_public_records_follow_with_a_budget_of_their_own(skewed: Budgets) -> None:
    from apiece.contract.check import add_public_records

    bounded = Budgets(skewed.epsilon, DELTA, excess=0.01, labels=skewed.labels)
    padded = add_public_records(bounded, 100, 8.0)
    assert len(padded) == 1100
    assert padded.ids.tolist() == list(range(1100))
    assert padded.excess is not None
    assert padded.excess[-1] == 1
    assert "public" in padded.groups.name.tolist()
    named = Budgets([1.0, 2.0], 1e-5, excess=0.1, ids=["a", "b"])
    assert add_public_records(named, 2, 1.0).ids.tolist() == ["a", "b", "public:0", "public:1"]
