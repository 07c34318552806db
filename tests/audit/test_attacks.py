"""The attacks of S5: published values in theory, one plan for both worlds in practice."""

from dataclasses import replace

import numpy as np
import pytest

from apiece import audit
from apiece.assignment import Sample, Scale, assign
from apiece.audit.attacks import one_plan
from apiece.audit.practice import target_job, target_scores
from apiece.audit.shadows import train_shadows
from apiece.audit.stacked import StackedMlp
from apiece.audit.stacked_training import Recipe
from apiece.budgets import Budgets
from apiece.errors import DataError, InputError
from apiece.plan import Plan

from .worlds import plan, pool

RUN = {"steps": 60, "expected_batch_size": 20, "clip_norm": 1.0}


def honest(size: int = 200, epsilon: float = 8.0, delta: float = 1e-6) -> Budgets:
    return Budgets(np.full(size, epsilon), delta, ids=np.arange(size) + 1000)


@pytest.mark.slow
def test_published_advantages() -> None:
    """S5 Fig. 3: B/n = 128/50,000, 5 epochs, δ = 1e-12, the victim asks 8; to two digits."""
    found = {}
    for decoy, shares in ((2.0, [0.2, 0.8]), (32.0, [0.2])):
        rows = audit.collusion(
            Budgets(np.full(5000, 8.0), 1e-12),
            17,
            epsilon=decoy,
            shares=shares,
            strategy=Sample(),
            steps=1953,
            expected_batch_size=12.8,
            clip_norm=1.0,
            generator=np.random.default_rng(0),
        )
        found |= {row.label: float(row.advantage.upper) for row in rows}
    published = {"as asked": 0.15, "20% ask 2": 0.17, "80% ask 2": 0.31, "20% ask 32": 0.06}
    assert found == pytest.approx(published, abs=0.006)


def test_manipulation_raises_the_advantage_with_sample() -> None:
    found = audit.budget_manipulation(
        honest(),
        1003,
        decoys=[4, 1],
        strategy="sample",
        **RUN,  # type: ignore[arg-type]
    )
    advantages = [e.advantage.upper for e in found]
    assert advantages == sorted(advantages)
    assert advantages[2] > advantages[0] + 0.02
    assert all(e.epsilon.upper <= 8.0 * (1 + 1e-9) for e in found)
    assert found[0].forward.upper < 1e-3 < found[1].forward.upper < found[2].forward.upper
    assert [e.to_dict()["others"] for e in found] == ["as asked", "at most 4", "at most 1"]


def test_manipulation_does_nothing_with_scale() -> None:
    found = audit.budget_manipulation(
        honest(),
        1003,
        decoys=[4, 1],
        strategy=Scale(),
        **RUN,  # type: ignore[arg-type]
    )
    for e in found:
        assert e.advantage.upper == pytest.approx(found[0].advantage.upper, abs=2e-3)
        assert e.forward.upper < 2e-3


def test_manipulation_keeps_smaller_requests() -> None:
    """A decoy above what a record asked leaves it alone: the adversary keeps every promise."""
    mixed = Budgets(np.r_[np.full(100, 1.0), np.full(100, 8.0)], 1e-6)
    found = audit.budget_manipulation(
        mixed,
        150,
        decoys=[2.0],
        strategy="sample",
        **RUN,  # type: ignore[arg-type]
    )
    groups = found[1].plan.budgets
    assert groups.epsilon.tolist() == [1.0, 2.0, 8.0]
    assert groups.records.tolist() == [100, 99, 1]


def test_collusion_can_also_raise_budgets_and_shelters_the_target() -> None:
    found = audit.collusion(
        honest(),
        1003,
        epsilon=40.0,
        shares=[0.5],
        strategy="sample",
        generator=np.random.default_rng(0),
        **RUN,  # type: ignore[arg-type]
    )
    assert found[1].advantage.upper < found[0].advantage.upper
    assert found[1].backward.upper > 0


def test_attack_bad_input() -> None:
    settings = {"strategy": "sample", **RUN}
    with pytest.raises(DataError, match="ids"):
        audit.budget_manipulation(honest(), 5, decoys=[1], **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="decoy"):
        audit.budget_manipulation(honest(), 1003, decoys=[0], **settings)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="share"):
        audit.collusion(
            honest(),
            1003,
            epsilon=1,
            shares=[1.5],
            generator=np.random.default_rng(0),
            **settings,  # type: ignore[arg-type]
        )
    with pytest.raises(DataError, match="1 record"):
        audit.budget_manipulation(honest(1), 1000, decoys=[1], **settings)  # type: ignore[arg-type]


def test_plans_that_differ_between_worlds_are_refused() -> None:
    with_target = assign(honest(40), Sample(), steps=5, expected_batch_size=8, clip_norm=1.0)
    without = assign(honest(39), Sample(), steps=5, expected_batch_size=8, clip_norm=1.0)
    assert one_plan(with_target, with_target) is with_target
    with pytest.raises(InputError, match="differs"):
        one_plan(with_target, without)
    other = replace(plan(size=40, batch=10.0), group_index=np.arange(40) % 2, ids=np.arange(40))
    swapped = replace(other, group_index=1 - np.arange(40) % 2)
    with pytest.raises(InputError, match="other groups"):
        one_plan(other, swapped)
    with pytest.raises(InputError, match="none"):
        one_plan()


def make_plan() -> Plan:
    budgets = Budgets.from_groups([("others", 39, 1.0), ("target", 1, 3.0)], 40, 1e-5)
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
        recipe=Recipe(),
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
        recipe=Recipe(),
        seed=1,
    )
    trained = train_shadows(job)
    planted = np.zeros_like(trained.confidences)
    planted += np.random.default_rng(0).normal(size=planted.shape) * 0.1
    planted[:8, 5] += 5.0 * trained.included[:8, 5]
    found = target_scores(replace(trained, confidences=planted), ids, models=8)
    assert found.score[0] > 5 > found.score[1]
    with pytest.raises(DataError, match="8 models for 1 targets"):
        target_scores(
            replace(trained, included=trained.included[:8], confidences=planted[:8]),
            ids[:1],
            models=4,
        )
    with pytest.raises(DataError, match="half"):
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
            recipe=Recipe(),
            seed=1,
        )
    with pytest.raises(DataError, match="ids"):
        target_job(
            data,
            make_plan(),
            ["nobody"],
            group=1,
            models=4,
            model=StackedMlp((7, 3)),
            recipe=Recipe(),
            seed=1,
        )


@pytest.mark.slow
def test_a_contract_holds_under_attack() -> None:
    """With Hybrid, the bound Δ̄ is kept whatever the others ask; with Sample it is not."""
    asked = Budgets(np.full(200, 8.0), 1e-6, excess=0.02)
    settings = {"decoys": [1.0], **RUN}
    kept = audit.budget_manipulation(asked, 3, strategy="hybrid", **settings)  # type: ignore[arg-type]
    broken = audit.budget_manipulation(asked, 3, strategy="sample", **settings)  # type: ignore[arg-type]
    assert max(e.forward.upper for e in kept) <= 0.02
    assert max(e.backward.upper for e in kept) <= 0.02
    assert broken[1].forward.lower > 0.02
