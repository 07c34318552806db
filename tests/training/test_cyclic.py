"""Training where parts take turns: who joins, and that it resumes to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from apiece import Budgets, Trainer, assign
from apiece.assignment import Correlated
from apiece.errors import InputError
from apiece.plan import BoundPlan
from apiece.training.batches import PlannedSampler
from apiece.training.randomness import Streams

RECORDS, STEPS, PARTS = 90, 600, 3


def make_plan(steps: int = STEPS) -> BoundPlan:
    budgets = Budgets([1.0] * 30 + [2.0] * 30 + [4.0] * 30, 1e-5)
    noise = Correlated(sampled=True, separation=PARTS)
    return assign(budgets, "sample", steps=steps, expected_batch_size=6, clip_norm=1.0, noise=noise)


def draw_all(plan: BoundPlan, seed: int, included: np.ndarray) -> np.ndarray:
    sampler = PlannedSampler(plan, included)
    joined = np.zeros((plan.steps, RECORDS), dtype=bool)
    for step in range(plan.steps):
        joined[step, sampler.draw(step, Streams.from_seed(seed)).records] = True
    return joined


def test_everyone_joins_the_steps_of_one_part_at_their_own_rate() -> None:
    plan = make_plan()
    joined = draw_all(plan, 3, np.ones(RECORDS, dtype=bool))
    steps = np.arange(STEPS) % PARTS
    parts = [set(steps[joined[:, record]].tolist()) for record in range(RECORDS)]
    assert all(len(part) == 1 for part in parts)
    sizes = np.bincount([part.pop() for part in parts], minlength=PARTS)
    assert sizes.max() - sizes.min() <= 1
    rates = plan.stages[0].of_turns()[1][plan.group_index]
    counts = joined.sum(axis=0)
    expected = rates * STEPS / PARTS
    chi = ((counts - expected) ** 2 / (expected * (1 - rates))).sum()
    assert 1e-4 < stats.chi2(RECORDS).sf(chi) < 1 - 1e-4
    # The control: at the mean rate they would not join.
    mean = np.full(RECORDS, rates.mean()) * STEPS / PARTS
    assert stats.chi2(RECORDS).sf(((counts - mean) ** 2 / (mean * (1 - rates.mean()))).sum()) < 1e-6


def test_absence_moves_nobody_to_another_part() -> None:
    plan = make_plan(30)
    everyone = np.ones(RECORDS, dtype=bool)
    without = everyone.copy()
    without[7] = False
    parts = [
        {tuple(np.flatnonzero(row) % PARTS) for row in draw_all(plan, 3, mask).T[:7]}
        for mask in (everyone, without)
    ]
    # Their coins differ, the steps that they may join do not.
    assert [max(len(set(part)) for part in found) for found in parts] == [1, 1]
    samplers = [PlannedSampler(plan, mask) for mask in (everyone, without)]
    for sampler in samplers:
        sampler.draw(0, Streams.from_seed(3))
    first, second = (sampler._entered[1]._parts for sampler in samplers)  # type: ignore
    np.testing.assert_array_equal(first, second)


def make_arguments() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(1))
    loss = nn.CrossEntropyLoss(reduction="none")
    return model, optimizer, loss, make_plan(20), (inputs, (inputs[:, 0] > 0).long())


def test_a_training_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = Trainer(*make_arguments(), seed=5)
    whole.fit()
    part = Trainer(*make_arguments(), seed=5, checkpoint=tmp_path, save_every=5)
    part.fit(13)
    again = Trainer.resume(tmp_path, *make_arguments())
    again.fit()
    for left, right in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_an_order_of_ones_own_is_refused() -> None:
    with pytest.raises(InputError, match="chance"):
        Trainer(*make_arguments(), seed=5, order=[[0]])
