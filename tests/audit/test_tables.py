"""Shadow models for a table: a plan from public sizes, rows that stay with their person."""

import numpy as np
import pytest

from apiece.assignment import Uniform
from apiece.audit.shadows import HIDDEN, half_plan, table_job
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.errors import DataError
from apiece.plan import Plan

BUDGETS = Budgets(np.array([1.0] * 7 + [3.0] * 4), 1e-5, ids=np.arange(11) + 50)


def plan(budgets: Budgets = BUDGETS) -> Plan:
    return half_plan(budgets, Uniform(), steps=3, expected_batch_size=2.0, clip_norm=1.0)


def rows(size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(size, 5)).astype(np.float32), np.arange(size) % 3


def test_the_plan_is_for_half_of_each_group_rounded_up() -> None:
    made = plan()
    assert made.budget_groups.records.tolist() == [4, 2]
    assert made.budget_groups.epsilon.tolist() == [1.0, 3.0]
    assert (made.steps, made.stages[0].expected_batch_size) == (3, 2.0)
    assert made.verify().ok


def test_it_depends_on_public_sizes_alone() -> None:
    """Who is in which group, or in which order, or named how, does not change it."""
    order = np.random.default_rng(0).permutation(11)
    mixed = Budgets(BUDGETS.epsilon[order], 1e-5, ids=np.arange(11))
    one, other = plan(), plan(mixed)
    assert one.public().to_json() == other.public().to_json()


def test_each_record_is_in_half_of_the_models_and_each_model_has_half_of_each_group() -> None:
    features, targets = rows(11)
    job = table_job(features, targets, BUDGETS, plan(), models=8, seed=3)
    assert job.included.shape == (8, 11)
    assert (job.included.sum(axis=0) == 4).all()
    for group, least in ((0, 3), (1, 2)):
        inside = job.included[:, BUDGETS.group_index == group].sum(axis=1)
        assert set(inside.tolist()) <= {least, 4 - group * 2}
    assert job.model.sizes == (5, *HIDDEN, 3)
    assert job.recipe == UpdateRule()
    assert job.pool.ids.tolist() == BUDGETS.ids.tolist()
    again = table_job(features, targets, BUDGETS, plan(), models=8, seed=3)
    other = table_job(features, targets, BUDGETS, plan(), models=8, seed=4)
    assert (again.included == job.included).all()
    assert not (other.included == job.included).all()


def test_persons_keep_their_rows() -> None:
    whose = np.random.default_rng(1).permutation(np.repeat(BUDGETS.ids, 2))
    features, targets = rows(22)
    job = table_job(
        features, targets, BUDGETS, plan(), models=6, seed=0, people=whose, rows_per_person=1
    )
    assert job.included.shape == (6, 11)
    people = job.pool.people
    assert people is not None
    assert people.most == 1
    for person in range(11):
        own = people.rows[slice(*people.starts[person : person + 2])]
        assert set(whose[own].tolist()) == {BUDGETS.ids[person]}


def test_tables_that_do_not_fit_are_refused() -> None:
    features, targets = rows(11)
    for parts in ((features[:5], targets), (features, targets[:5]), (features[:5], targets[:5])):
        with pytest.raises(DataError, match=r"rows of features, .* give one of each a record"):
            table_job(*parts, BUDGETS, plan(), models=6, seed=0)
    stranger = np.append(np.repeat(BUDGETS.ids, 1)[:-1], 999)
    with pytest.raises(DataError):
        table_job(features, targets, BUDGETS, plan(), models=6, seed=0, people=stranger)
