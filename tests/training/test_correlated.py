"""Training with correlated noise: fixed batches, the recurrence, resumption to the bit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import solve_triangular, toeplitz
from torch import nn

from apiece import Budgets, Trainer, assign
from apiece.assignment import Correlated
from apiece.correlation.strategies import Banded, Buffered, NoiseStrategy
from apiece.errors import InputError, UnsupportedError
from apiece.plan import BoundPlan
from apiece.plan.correlated import CorrelatedNoise as PlannedNoise
from apiece.plan.parts import Stage
from apiece.training.batches import PlannedSampler, poisson_batches
from apiece.training.correlated import CorrelatedNoise, NoiseRecurrence
from apiece.training.fixed import FixedSampler
from apiece.training.randomness import Streams

RECORDS, STEPS = 60, 24


def make_plan(strategy: str = "scale", noise: Correlated | None = None) -> BoundPlan:
    budgets = Budgets([1.0] * 20 + [2.0] * 20 + [4.0] * 20, 1e-5)
    return assign(
        budgets,
        strategy,
        steps=STEPS,
        expected_batch_size=10,
        clip_norm=1.0,
        noise=noise or Correlated(),
    )


@settings(deadline=None, max_examples=200)
@given(
    steps=st.integers(1, 40),
    separation=st.integers(1, 12),
    times=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_nobody_takes_part_too_often_or_too_soon(
    steps: int, separation: int, times: list[int], seed: int
) -> None:
    possible = (steps - 1) // separation + 1
    counts = np.minimum(times, possible)
    noise = PlannedNoise(Banded([1.0]), separation)
    stage = Stage(
        steps, 1.0, 1.0, counts / steps, np.ones(counts.size), times=counts, correlated=noise
    )
    groups = np.arange(50) % counts.size
    sampler = FixedSampler(stage, groups, np.random.default_rng(seed))
    joined = [sampler.draw(step) for step in range(steps)]
    for record in range(50):
        taken = [step for step, batch in enumerate(joined) if record in batch]
        assert len(taken) <= counts[groups[record]]
        assert (np.diff(taken) >= separation).all()
        # A slot at the end may have one pass less.
        assert len(taken) >= min(counts[groups[record]], steps // separation)


def test_batches_are_of_equal_size() -> None:
    plan = make_plan("epochs")
    sampler = PlannedSampler(plan, np.ones(RECORDS, dtype=bool))
    sizes = [sampler.draw(step, Streams.from_seed(0)).records.size for step in range(STEPS)]
    assert sum(sizes) == pytest.approx(plan.expected_batch_size * STEPS)
    assert max(sizes) - min(sizes) <= 4


@pytest.mark.parametrize(
    "strategy",
    [
        Banded([1.0]),
        Banded.square_root(4),
        Banded.square_root(30),
        Buffered([0.9, 0.5], [0.25, 0.5]),
    ],
    ids=repr,
)
def test_noise_is_the_inverse_of_the_strategy_times_independent_noise(
    strategy: NoiseStrategy,
) -> None:
    fresh = torch.randn(12, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    recurrence = NoiseRecurrence(strategy)
    noise = torch.stack([recurrence.advance(row) for row in fresh])
    matrix = np.tril(toeplitz(strategy.first_column(12)))
    expected = solve_triangular(matrix, fresh.numpy(), lower=True)
    np.testing.assert_allclose(noise.numpy(), expected, atol=1e-12)


def test_noise_after_a_resumption_is_the_same() -> None:
    stages = make_plan().stages
    streams = Streams.from_seed(3)
    straight = CorrelatedNoise(stages)
    cpu = torch.device("cpu")
    every = [straight.at(step, streams).normals(5, cpu) for step in range(10)]  # type: ignore[union-attr]
    resumed = CorrelatedNoise(stages)
    assert torch.equal(resumed.at(9, streams).normals(5, cpu), every[9])  # type: ignore[union-attr]


def make_arguments() -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(RECORDS, 3, generator=generator)
    targets = (inputs[:, 0] > 0).long()
    loss = nn.CrossEntropyLoss(reduction="none")
    return model, optimizer, loss, make_plan(), (inputs, targets)


def test_a_training_resumes_to_the_bit(tmp_path: Path) -> None:
    whole = Trainer(*make_arguments(), seed=5)
    whole.fit()
    part = Trainer(*make_arguments(), seed=5, checkpoint=tmp_path, save_every=5)
    part.fit(13)
    again = Trainer.resume(tmp_path, *make_arguments())
    again.fit()
    for left, right in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_what_is_released_is_the_sum_with_correlated_noise() -> None:
    """Without gradients the parameters are the optimizer's sums of the noise alone."""
    plan = make_plan(noise=Correlated(strategy=Banded.square_root(4)))
    model = nn.Linear(3, 1, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    inputs = torch.zeros(RECORDS, 3)
    trainer = Trainer(
        model, optimizer, lambda o, t: o[:, 0] * 0 + 0 * t, plan, (inputs, inputs[:, 0]), seed=5
    )
    source = CorrelatedNoise(plan.stages)
    total = torch.zeros(3, dtype=torch.float64)
    for step in range(6):
        trainer.step()
        noise = source.at(step, Streams.from_seed(5)).normals(3, torch.device("cpu"))  # type: ignore[union-attr]
        total -= noise.double() * plan.noise_stddev / plan.expected_batch_size
        torch.testing.assert_close(model.weight.detach()[0].double(), total, atol=1e-4, rtol=1e-4)


def test_unfreezing_is_refused() -> None:
    inputs = torch.zeros(RECORDS, 3)
    model = nn.Linear(3, 2)
    with pytest.raises(InputError, match="unfreeze"):
        Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            nn.CrossEntropyLoss(reduction="none"),
            make_plan(),
            (inputs, inputs[:, 0].long()),
            unfreeze={0: ["bias"], 3: ["weight"]},
        )


def test_nobodys_absence_moves_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is left empty stays empty; dealt anew to those who are there, it would not."""

    def draw_without(left_out: list[int]) -> list[list[int]]:
        included = np.ones(RECORDS, dtype=bool)
        included[left_out] = False
        sampler = PlannedSampler(make_plan(), included)
        streams = Streams.from_seed(7)
        batches = [sampler.draw(step, streams).records.tolist() for step in range(STEPS)]
        return [[record for record in batch if record != 4] for batch in batches]

    assert draw_without([]) == draw_without([4])

    real = PlannedSampler._in_shard

    def deal_anew(self: PlannedSampler, records: np.ndarray) -> np.ndarray:
        # the planted break: who is there moves up
        present = np.flatnonzero(self._included)
        return real(self, present[records % present.size])

    monkeypatch.setattr(PlannedSampler, "_in_shard", deal_anew)
    assert draw_without([]) != draw_without([4])


def test_a_loop_of_ones_own_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="Trainer"):
        next(poisson_batches(make_plan(), seed=0))
