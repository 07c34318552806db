"""Rounds and AdaPDP: sound, and what they say of what is left."""

import pytest

from apiece.assignment import AdaPDP, Rounds, Strategy

from .plans import BUDGETS, plan_of


@pytest.mark.parametrize("strategy", [Rounds(), Rounds(loss="adaptive"), AdaPDP()], ids=repr)
def test_sound_rounds_never_exceed(strategy: Strategy) -> None:
    plan = plan_of(strategy)
    verification = plan.verify(BUDGETS)
    assert verification.ok
    # the noise is lowered until the first budget is used up
    ratio = verification.epsilon_spent / verification.epsilon
    assert ratio.max() >= 0.995
    # it does not claim to spend the others, and says what it does spend
    assert ratio.min() < 0.995
    assert "only the budget that binds first" in plan.notes[0]
    for name, share in zip(plan.budget_groups.name, ratio, strict=True):
        assert f"{name} {100 * share:.1f} %" in plan.notes[0]
    assert "do not spend all they allow" in " ".join((Rounds.__doc__ or "").split())
    assert plan.combine == ("average" if isinstance(strategy, AdaPDP) else "continue")
    assert sum(stage.steps for stage in plan.stages) == 200
