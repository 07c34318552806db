"""Targets attacked one by one with models that differ in the target alone."""

from dataclasses import replace

import numpy as np
import pytest

from apiece.assignment import Sample, assign
from apiece.audit.shadows import target_job, target_scores, train_shadows
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.plan import Plan
from apiece.training.stacked import StackedMlp
from refusals import refused

from .worlds import pool


def make_plan() -> Plan:
    budgets = Budgets.from_groups([("others", 1.0, 39), ("target", 3.0, 1)], 40, 1e-5)
    return assign(budgets, Sample(), steps=6, expected_batch_size=5, clip_norm=1.0)


def test_worlds_differ_in_the_target_alone() -> None:
    data = replace(pool(), groups=np.zeros(40, dtype=np.int64))
    own, ids = make_plan(), data.ids[[5, 17, 30]]
    job = target_job(
        data,
        [own, own],
        ids,
        group=1,
        models=8,
        model=StackedMlp((7, 6, 3)),
        recipe=UpdateRule(),
        seed=1,
    )
    assert job.included.shape == (24, 40)
    for t, column in enumerate([5, 17, 30]):
        rows = slice(8 * t, 8 * t + 8)
        assert np.delete(job.included[rows], column, axis=1).all()
        assert job.included[rows, column].sum() == 4
        assert job.groups is not None
        assert (np.flatnonzero(job.groups[8 * t]) == [column]).all()
    scores = target_scores(train_shadows(job), ids, models=8)
    assert scores.ids.tolist() == ids.tolist()
    assert (scores.score >= 0).all()


def test_target_scores_come_from_the_targets_own_models() -> None:
    data = replace(pool(), groups=np.zeros(40, dtype=np.int64))
    ids = data.ids[[5, 17]]
    job = target_job(
        data,
        make_plan(),
        ids,
        group=1,
        models=8,
        model=StackedMlp((7, 6, 3)),
        recipe=UpdateRule(),
        seed=1,
    )
    trained = train_shadows(job)
    planted = np.zeros_like(trained.confidences)
    planted += np.random.default_rng(0).normal(size=planted.shape) * 0.1
    planted[:8, 5] += 5.0 * trained.included[:8, 5]
    found = target_scores(replace(trained, confidences=planted), ids, models=8)
    assert found.score[0] > 5 > found.score[1]
    with refused(DataError, 8, "models", 1, "targets"):
        target_scores(
            replace(trained, included=trained.included[:8], confidences=planted[:8]),
            ids[:1],
            models=4,
        )
    with refused(DataError, "half"):
        target_scores(trained, ids[::-1], models=8)


def test_a_plan_for_other_counts_is_refused() -> None:
    data = pool()
    with pytest.raises(InputError, match="made for"):
        target_job(
            data,
            make_plan(),
            data.ids[:1],
            group=1,
            models=4,
            model=StackedMlp((7, 3)),
            recipe=UpdateRule(),
            seed=1,
        )
    with refused(DataError, "ids"):
        target_job(
            data,
            make_plan(),
            ["nobody"],
            group=1,
            models=4,
            model=StackedMlp((7, 3)),
            recipe=UpdateRule(),
            seed=1,
        )
    with refused(InputError, "models", 1, 2):
        target_job(
            data,
            make_plan(),
            data.ids[:1],
            group=1,
            models=1,
            model=StackedMlp((7, 3)),
            recipe=UpdateRule(),
            seed=1,
        )
