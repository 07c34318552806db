"""Exposure: the figures of one group of a plan, and the worst of several."""

import pytest

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.contract.exposure import exposure, worst
from apiece.errors import InputError
from apiece.plan.verification import compute_excess

PLAN = assign(
    Budgets([1.0] * 90 + [8.0] * 10, 1e-5), "sample", steps=10, expected_batch_size=20, clip_norm=1
)


def test_figures_are_those_of_the_plan() -> None:
    found = exposure(PLAN, 0, label="as asked", changed=3)
    curve = PLAN.curve(0)
    assert found.epsilon == curve.epsilon(1e-5)
    assert found.advantage == curve.advantage()
    assert found.forward == compute_excess(PLAN, 0, curve).forward
    assert not hasattr(found.plan, "ids")  # nothing of who is where
    told = found.to_dict()
    assert told["epsilon_spent"] == float(found.epsilon.upper) <= 1.0
    assert told["sampling_probability"] == PLAN.stages[0].sampling_probability[0]
    assert told["others"] == "as asked"
    assert repr(found) == "Exposure(label='as asked', changed=3)"


def test_the_worst_is_by_forward_excess_then_advantage() -> None:
    both = [exposure(PLAN, group, label=str(group)) for group in (0, 1)]
    most = max(both, key=lambda one: (one.forward.upper, one.advantage.upper))
    assert worst(both) is worst(both[::-1]) is most
    with pytest.raises(InputError, match="none given"):
        worst([])
