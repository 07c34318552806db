"""`plan.groups`: a tuple, of plans of one stage and of several."""

import numpy as np
import pytest

from apiece.assignment import Rounds, Sample, Sequential, Strategy, Threshold, assign
from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.plan import Group, Plan

BUDGETS = Budgets(np.repeat([1.0, 3.0], [30, 10]), 1e-4)


def made(strategy: Strategy) -> Plan:
    return assign(BUDGETS, strategy, steps=4, expected_batch_size=8, clip_norm=2.0)


@pytest.mark.parametrize("strategy", [Sample(), Threshold(3.0), Sequential(), Rounds(2)])
def test_groups_are_a_tuple_with_the_plans_own_numbers(strategy: Strategy) -> None:
    plan = made(strategy)
    assert isinstance(plan.groups, tuple)
    assert plan.groups is plan.groups
    assert [len(plan.groups), len(list(plan.groups)), len(list(plan.groups))] == [2, 2, 2]
    assert sum(group.records for group in plan.groups) == 40
    assert Plan.from_json(plan.to_json()).groups == plan.groups
    for g, group in enumerate(plan.groups):
        assert group.epsilon == plan.budget_groups.epsilon[g]
        assert len(group.stages) == len(plan.stages)
        for part, stage in zip(group.stages, plan.stages, strict=True):
            assert part.steps == stage.steps
            assert part.sampling_probability * part.participation == stage.chances()[g]
            assert part.noise_multiplier * part.clip_norm == pytest.approx(stage.noise_stddev)


def test_one_value_for_all_stages_where_there_is_one() -> None:
    single = made(Sample()).groups[1]
    assert single.noise_multiplier == single.stages[0].noise_multiplier
    weak = made(Sequential()).groups[1]
    assert len(weak.stages) == 2
    assert weak.clip_norm == 2.0
    for name in ("sampling_probability", "noise_multiplier"):
        with pytest.raises(InputError, match=f"{name} differs between its stages"):
            getattr(weak, name)


def test_groups_say_what_is_public() -> None:
    group = made(Sample()).groups[0]
    assert isinstance(group, Group)
    assert repr(group).startswith("Group(name='epsilon=1', records=30, epsilon=1.0")
