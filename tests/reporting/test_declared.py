"""What a page is of: a plan, a run, findings, and nothing else."""

from typing import Any

import pytest

from apiece.errors import InputError
from apiece.reporting.sections import subject_of
from sample_runs import sample_plan, sample_run


def test_a_run_tells_its_own_levels() -> None:
    with pytest.raises(InputError, match="a run has those of its config"):
        subject_of(sample_run(), [(1.0, 1e-3)])


def test_every_budget_of_a_plan_is_among_its_levels() -> None:
    subject = subject_of(sample_plan("scale"), [(1.0, 1e-3), (3.0, 1e-3), (8.0, 1e-3)])
    assert [level.name for level in subject.declared.levels] == ["ε = 1", "ε = 3", "ε = 8"]
    for levels in ([(1.0, 1e-3)], [(1.0, 1e-3), (3.0, 1e-4)]):
        with pytest.raises(InputError, match="is none of them"):
            subject_of(sample_plan("scale"), levels)


@pytest.mark.parametrize("value", [None, 3, "runs/first", {"a": 1}])
def test_what_is_none_of_these(value: Any) -> None:
    with pytest.raises(InputError, match="is no plan, run, findings, fitted estimator or answer"):
        subject_of(value, [])


def test_plans_are_in_the_order_of_the_run_and_one_is_kept() -> None:
    run = sample_run()
    assert list(subject_of(run, []).plans) == ["uniform", "scale"]
    assert subject_of(run, []).plan is run.kept.plan
