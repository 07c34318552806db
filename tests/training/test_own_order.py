"""Batches in an order of the user's own: checked as they come, refused before they are used."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from apiece import Budgets, Trainer, assign
from apiece.assignment import Correlated
from apiece.correlation.strategies import Banded
from apiece.errors import BudgetError, DataError, InputError, StateError
from apiece.plan import BoundPlan
from apiece.plan.correlated import CorrelatedNoise
from apiece.plan.parts import Stage
from apiece.training import RecordStream
from apiece.training.batches import PlannedSampler
from apiece.training.fixed import OwnOrder
from apiece.training.randomness import Streams

RECORDS, STEPS, SIZE = 60, 24, 10


def make_plan(separation: int | None = None, strategy: str = "scale") -> BoundPlan:
    budgets = Budgets([1.0] * 20 + [2.0] * 20 + [4.0] * 20, 1e-5)
    noise = Correlated(separation=separation)
    return assign(
        budgets, strategy, steps=STEPS, expected_batch_size=SIZE, clip_norm=1.0, noise=noise
    )


def make_arguments(plan: BoundPlan | None = None) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    inputs = torch.randn(RECORDS, 3, generator=torch.Generator().manual_seed(1))
    targets = (inputs[:, 0] > 0).long()
    loss = nn.CrossEntropyLoss(reduction="none")
    return model, optimizer, loss, plan or make_plan(), (inputs, targets)


def own_batches(plan: BoundPlan, seed: int) -> list[np.ndarray]:
    """The batches that the plan makes itself."""
    sampler = PlannedSampler(plan, np.ones(RECORDS, dtype=bool))
    return [sampler.draw(step, Streams.from_seed(seed)).records for step in range(plan.steps)]


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


def test_the_plans_order_from_outside_is_the_plans_own() -> None:
    plan = make_plan()
    inner = Trainer(*make_arguments(plan), seed=5)
    inner.fit()
    outer = Trainer(*make_arguments(plan), seed=5, order=own_batches(plan, 5))
    outer.fit()
    assert torch.equal(weights(inner), weights(outer))


def test_a_loader_in_one_order_runs_pass_after_pass() -> None:
    *arguments, data = make_arguments()
    loader = DataLoader(TensorDataset(*data), batch_size=SIZE)
    trainer = Trainer(*arguments, loader, seed=5, order=loader)
    trainer.fit()
    assert trainer.step_number == STEPS


def test_a_loader_that_shuffles_each_pass_is_refused_before_it_breaks_a_limit() -> None:
    *arguments, data = make_arguments()
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(*data), batch_size=SIZE, shuffle=True, generator=generator)
    trainer = Trainer(*arguments, loader, seed=5, order=loader)
    trainer.fit(6)
    before = weights(trainer).clone()
    with pytest.raises(BudgetError, match="separation"):
        trainer.fit()
    assert trainer.step_number == 6
    assert torch.equal(weights(trainer), before)
    # Nor does another attempt go on with the batch that comes next.
    with pytest.raises(StateError, match="order"):
        trainer.step()


def test_a_loader_may_shuffle_where_nothing_is_asked_of_the_separation() -> None:
    *arguments, data = make_arguments(make_plan(separation=1))
    generator = torch.Generator().manual_seed(3)
    loader = DataLoader(TensorDataset(*data), batch_size=SIZE, shuffle=True, generator=generator)
    Trainer(*arguments, loader, seed=5, order=loader).fit()


def test_nobody_takes_part_more_often_than_their_plan_says() -> None:
    plan = make_plan(strategy="epochs")
    times = plan.stages[0].times
    assert times is not None
    assert times[0] < times[2]
    batches = [np.arange(step % 6, RECORDS, 6) for step in range(STEPS)]
    trainer = Trainer(*make_arguments(plan), seed=5, order=batches)
    trainer.fit(6 * int(times[0]))
    with pytest.raises(BudgetError, match="as often as they may"):
        trainer.step()


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([0, 0], "twice"),
        ([60], "from 0 to 59"),
        ([-1], "from 0 to 59"),
        ([0.5], "whole numbers"),
        (["a"], "whole numbers"),
        ([[0], [1]], "whole numbers"),
    ],
)
def test_what_is_no_batch_is_refused(batch: object, message: str) -> None:
    trainer = Trainer(*make_arguments(), seed=5, order=[batch])
    with pytest.raises(DataError, match=message):
        trainer.step()


def test_an_order_that_ends_too_soon_is_refused() -> None:
    trainer = Trainer(*make_arguments(), seed=5, order=[[0], [1], []])
    trainer.fit(3)
    with pytest.raises(DataError, match="ended after 3"):
        trainer.step()


def test_an_order_is_for_fixed_steps_alone() -> None:
    budgets = Budgets([1.0] * RECORDS, 1e-5)
    sampled = assign(budgets, "sample", steps=9, expected_batch_size=6, clip_norm=1.0)
    with pytest.raises(InputError, match="Correlated"):
        Trainer(*make_arguments(sampled), seed=5, order=[[0]])
    with pytest.raises(InputError, match="DataLoader"):
        Trainer(*make_arguments(), seed=5, order=7)
    *_, data = make_arguments()
    sampler = DistributedSampler(TensorDataset(*data), num_replicas=2, rank=0)
    loader = DataLoader(TensorDataset(*data), batch_size=SIZE, sampler=sampler)
    with pytest.raises(InputError, match="DistributedSampler"):
        Trainer(*make_arguments(), seed=5, order=loader)


@settings(deadline=None, max_examples=150)
@given(
    steps=st.integers(1, 12),
    separation=st.integers(1, 5),
    times=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    seed=st.integers(0, 10**6),
)
def test_what_passes_keeps_every_limit(
    steps: int, separation: int, times: list[int], seed: int
) -> None:
    """Any order: what was used keeps the limits, and the first batch that does not is refused."""
    counts = np.minimum(times, (steps - 1) // separation + 1)
    stage = Stage(
        steps,
        1.0,
        1.0,
        counts / steps,
        np.ones(counts.size),
        times=counts,
        correlated=CorrelatedNoise(Banded([1.0]), separation),
    )
    groups = np.arange(6) % counts.size
    generator = np.random.default_rng(seed)
    batches = [np.flatnonzero(generator.random(6) < 0.3) for _ in range(steps)]
    order = OwnOrder(batches, stage, groups)
    used: list[np.ndarray] = []

    def keeps(candidate: list[np.ndarray]) -> bool:
        for record in range(6):
            taken = [step for step, batch in enumerate(candidate) if record in batch]
            if len(taken) > counts[groups[record]] or (np.diff(taken) < separation).any():
                return False
        return True

    for step in range(steps):
        if keeps([*used, batches[step]]):
            np.testing.assert_array_equal(order.draw(step), batches[step])
            np.testing.assert_array_equal(order.draw(step), batches[step])
            used.append(batches[step])
        else:
            with pytest.raises(BudgetError, match="limits"):
                order.draw(step)
            break


def test_a_training_resumes_in_its_order_to_the_bit(tmp_path: Path) -> None:
    plan = make_plan()
    batches = own_batches(plan, 9)
    whole = Trainer(*make_arguments(plan), seed=5, order=batches)
    whole.fit()
    part = Trainer(
        *make_arguments(plan), seed=5, order=iter(batches), checkpoint=tmp_path, save_every=5
    )
    part.fit(13)
    for other in (None, batches[::-1], own_batches(plan, 8)):
        with pytest.raises(StateError, match="order"):
            Trainer.resume(tmp_path, *make_arguments(plan), order=other)
    again = Trainer.resume(tmp_path, *make_arguments(plan), order=iter(batches))
    again.fit()
    assert torch.equal(weights(whole), weights(again))


def test_a_stream_trains_as_records_in_memory_do() -> None:
    plan = make_plan()
    *arguments, (inputs, targets) = make_arguments(plan)
    batches = own_batches(plan, 5)

    def arrive() -> Iterator[tuple[Any, Any, Any]]:
        for batch in batches:
            # In the order of arrival, which is not that of positions.
            members = batch[::-1].copy()
            yield members, inputs[members], targets[members]

    stream = RecordStream(arrive(), size=RECORDS)
    streamed = Trainer(*arguments, stream, seed=5, order=stream)
    streamed.fit()
    held = Trainer(*make_arguments(plan), seed=5, order=batches)
    held.fit()
    torch.testing.assert_close(weights(streamed), weights(held), rtol=0, atol=1e-6)


def test_a_stream_gives_what_is_there_alone() -> None:
    stream = RecordStream([([1], torch.ones(1, 2), torch.ones(1))], size=3)
    next(iter(stream))
    with pytest.raises(DataError, match="came last"):
        stream[0]
    broken = RecordStream([([1, 2], torch.ones(1, 2), torch.ones(1))], size=3)
    with pytest.raises(DataError, match="2 positions"):
        next(iter(broken))


def test_persons_with_many_rows_are_bounded_as_one() -> None:
    """Without the noise, which a second run with no data tells, a person moves by their bound."""
    plan = make_plan()
    people = np.repeat(np.arange(RECORDS), np.arange(RECORDS) % 4 + 1)
    rows = np.random.default_rng(0).permutation(people)

    def run(size: float) -> torch.Tensor:
        model = nn.Linear(RECORDS, 1, bias=False)
        nn.init.zeros_(model.weight)
        inputs = size * nn.functional.one_hot(torch.from_numpy(rows), RECORDS).float()
        trainer = Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=plan.expected_batch_size),
            lambda outputs, targets: outputs[:, 0] + 0 * targets,
            plan,
            (inputs, inputs[:, 0]),
            seed=5,
            people=rows,
        )
        trainer.fit()
        return model.weight.detach()[0].double()

    moved = (run(0.0) - run(50.0)).numpy()
    stage = plan.stages[0]
    assert stage.times is not None
    expected = (stage.times * stage.clip_norm)[plan.group_index]
    np.testing.assert_allclose(moved, expected, rtol=1e-4)


CHILD = """
import sys
import torch, torch.distributed as dist
from tests.training.test_own_order import make_arguments, make_plan, own_batches, weights
from apiece.training import Trainer

torch.set_num_threads(1)
dist.init_process_group("gloo")
found = []
for order in (None, own_batches(make_plan(), 9)):
    trainer = Trainer(*make_arguments(), seed=5, order=order)
    trainer.fit()
    found.append(weights(trainer))
torch.save(found, f"{sys.argv[1]}/{dist.get_rank()}.pt")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    root = Path(__file__).parents[2]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    shared["PYTHONPATH"] = f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path)],
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=240)
        assert child.returncode == 0, errors
    pairs = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for number, order in enumerate((None, own_batches(make_plan(), 9))):
        alone = Trainer(*make_arguments(), seed=5, order=order)
        alone.fit()
        for pair in pairs:
            torch.testing.assert_close(pair[number], weights(alone), rtol=0, atol=1e-5)
