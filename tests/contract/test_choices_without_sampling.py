"""The contributor's page of plans without sampling, in its words."""

import numpy as np

from apiece import Budgets, Scale, assign
from apiece.assignment import Correlated
from apiece.contract import check, choices
from apiece.reporting.pages import contributor_page

OFFERED = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]


def test_people_are_told_in_how_many_passes_they_take_part() -> None:
    computed = choices(
        OFFERED,
        records=100,
        delta=1e-5,
        steps=40,
        expected_batch_size=10,
        bound=0.02,
        noise=Correlated(),
    )
    assert {outcome.strategy for outcome in computed.outcomes} == {"scale", "epochs"}
    sentences = {
        (outcome.strategy, outcome.budget): outcome.sentences[-1]
        for outcome in computed.outcomes
        if outcome.others is None
    }
    assert "at most 4 of 4 passes" in sentences["scale", 0]
    assert "at most 1 of 4 passes" in sentences["epochs", 0]
    assert "at most 4 of 4 passes" in sentences["epochs", 1]
    # Nobody's choice moves another: all counts of a budget are alike, and Δ is 0.
    for budget in range(2):
        found = [outcome for outcome in computed.outcomes if outcome.budget == budget]
        assert max(outcome.excess for outcome in found) < 1e-6
        assert len({outcome.explanation.frequencies.right for outcome in found}) == 1
        assert found[0].explanation.frequencies.right <= computed.guaranteed(budget, "epochs")
    page = contributor_page(computed, "epochs").html
    assert "You take part in at most 1 of 4 passes over the data" in page
    assert "the fewer passes over the data you take part in" in page


def test_a_bound_on_the_excess_is_kept_whatever_others_ask() -> None:
    """The contract's check of Scale without sampling: Δ is 0 in every population."""
    for others in (1.0, 2.0, 8.0):
        budgets = Budgets(np.array([1.0] * 20 + [others] * 80), 1e-5, excess=1e-4)
        plan = assign(
            budgets, Scale(), steps=40, expected_batch_size=10, clip_norm=1.0, noise=Correlated()
        )
        assert check(plan, budgets).ok
