"""Models trained as one are the loop over them; worlds differ in their members alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from apiece.audit import stacked_training
from apiece.audit.stacked_training import (
    BlockStreams,
    UpdateRule,
    draw_rows,
    scale_logits,
    stage_rates,
    train,
)
from apiece.budgets import Units
from apiece.errors import InputError, OptionError, UnsupportedError
from apiece.plan import Schedule
from refusals import refused
from tests.training.stacks import MLP, loop_sum, mlp_module

from .worlds import plan, pool


def test_training_is_the_loop_with_the_same_coins_and_noise() -> None:
    """The reference trains one model after another, with torch's modules and optimizer."""
    own, data, module = plan(), pool(), mlp_module()
    included = np.random.default_rng(5).random((4, len(data))) < 0.5
    for recipe in (
        UpdateRule(),
        UpdateRule(optimizer="sgd", schedule="constant", learning_rate=0.1),
    ):
        ours = train(
            MLP,
            (data.inputs, data.targets),
            own,
            groups=data.groups,
            included=included,
            recipe=recipe,
            seed=3,
        )
        streams, stage = BlockStreams.from_seed(3, 0), own.stages[0]
        start = MLP.initial(4, streams.start)
        rates, clips = stage_rates(stage, data.groups, included, streams.sampling)
        batches = list(stacked_training.batches(rates, stage.steps, streams.sampling))
        noises = [torch.empty(4, MLP.parameters).normal_(generator=streams.noise) for _ in batches]
        for k in range(4):
            row = start[k].clone()
            optimizer = recipe.start(row)
            for t, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
                chosen = batch.records[k][batch.real[k]]
                total = loop_sum(
                    module,
                    row,
                    data.inputs[chosen],
                    data.targets[chosen],
                    torch.from_numpy(clips[k, chosen]).float(),
                )
                row.grad = (total + stage.noise_stddev * noise[k]) / stage.expected_batch_size
                optimizer.param_groups[0]["lr"] = recipe.rate(t, own.steps)
                optimizer.step()
            torch.testing.assert_close(ours[k], row, rtol=2e-3, atol=2e-4)


def test_records_outside_a_world_have_no_influence() -> None:
    own, data = plan(), pool()
    included = np.ones((2, len(data)), dtype=bool)
    included[:, 7] = False
    settings = {"groups": data.groups, "included": included, "recipe": UpdateRule()}
    first = train(MLP, (data.inputs, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    changed = data.inputs.clone()
    changed[7] = 1e6
    second = train(MLP, (changed, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    included[0, 7] = True
    third = train(MLP, (changed, data.targets), own, seed=1, **settings)  # type: ignore[arg-type]
    assert not torch.equal(first[0], third[0])


def test_streams_of_blocks_differ_and_repeat() -> None:
    one, again, other = (BlockStreams.from_seed(1, b) for b in (0, 0, 1))
    assert one.sampling.random() == again.sampling.random() != other.sampling.random()
    draws = [torch.randn(3, generator=s.noise) for s in (one, again, other)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert not torch.equal(draws[0], torch.randn(3, generator=one.start))


def test_stages_and_participation() -> None:
    """Two stages run one after the other; a record that does not join one is never sampled."""
    own = plan(steps=2)
    second = replace(
        own.stages[0], steps=3, expected_batch_size=3.5, participation=np.array([0.0, 1.0])
    )
    both = replace(own, stages=(own.stages[0], second))
    data, included = pool(), np.ones((3, 40), dtype=bool)
    rates, _ = stage_rates(second, data.groups, included, np.random.default_rng(0))
    assert (rates[:, data.groups == 0] == 0).all()
    assert (rates[:, data.groups == 1] > 0).all()
    flat = train(
        MLP,
        (data.inputs, data.targets),
        both,
        groups=data.groups,
        included=included,
        recipe=UpdateRule(),
        seed=1,
    )
    assert torch.isfinite(flat).all()


def test_the_plan_s_own_learning_rates_multiply_the_recipe_s() -> None:
    """SGD after one step at factor ½ has gone half as far; at factor 0 it stays."""
    own, data, included = plan(steps=1), pool(), np.ones((2, 40), dtype=bool)

    def moved(factor: float | None) -> torch.Tensor:
        schedule = None if factor is None else Schedule(((0, factor),))
        after = train(
            MLP,
            (data.inputs, data.targets),
            replace(own, learning_rate=schedule),
            groups=data.groups,
            included=included,
            recipe=UpdateRule(optimizer="sgd", schedule="constant", weight_decay=0.0),
            seed=1,
        )
        return after - MLP.initial(2, BlockStreams.from_seed(1, 0).start)

    torch.testing.assert_close(moved(0.5), moved(None) / 2, rtol=1e-4, atol=1e-6)
    assert moved(None).norm() > 0 == moved(0.0).norm()


def test_plans_that_average_models_are_refused() -> None:
    own, data = plan(), pool()
    averaged = replace(own, stages=own.stages * 2, combine="average")
    with refused(UnsupportedError, "average"):
        train(
            MLP,
            (data.inputs, data.targets),
            averaged,
            groups=data.groups,
            included=np.ones((2, 40), dtype=bool),
            recipe=UpdateRule(),
            seed=1,
        )


def test_logit_scaled_is_the_log_odds_without_cancellation() -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0], [60.0, 0.0, 0.0]])
    p = torch.softmax(logits[0].double(), 0)[0]
    found = scale_logits(logits, torch.tensor([0, 0]))
    assert found[0] == pytest.approx(float(torch.log(p / (1 - p))), rel=1e-6)
    assert found[1] == pytest.approx(60 - np.log(2), rel=1e-6)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda: UpdateRule(learning_rate=float("nan")), InputError),
        (lambda: UpdateRule(weight_decay=-1.0), InputError),
        (lambda: UpdateRule(optimizer="adam"), OptionError),
        (lambda: UpdateRule(schedule="cosin"), OptionError),
    ],
)
def test_bad_input(build: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        build()  # type: ignore[operator]


def of_persons(rows: int = 60, persons: int = 12) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    generator = np.random.default_rng(2)
    whose = np.concatenate([np.arange(persons), generator.integers(0, persons, rows - persons)])
    x = torch.from_numpy(generator.normal(size=(rows, 7)).astype(np.float32))
    return x, torch.from_numpy(generator.integers(0, 3, rows)), whose


@pytest.mark.parametrize("most", [None, 2])
def test_persons_bring_their_own_rows(most: int | None) -> None:
    _, _, whose = of_persons()
    of = replace(Units.of(whose, np.arange(12)), most=most)
    batch = stacked_training.PaddedBatch(
        np.array([[3, 5, 0], [1, 2, 4]]), np.array([[True, True, False], [True] * 3])
    )
    drawn, rows, owner = draw_rows(batch, of, np.random.default_rng(0))
    assert drawn.records.shape == (2, 4)
    assert owner is not None
    for k, persons in enumerate(([3, 5], [1, 2, 4])):
        for place, person in enumerate(persons):
            mine = rows[k, owner[k] == place]
            assert (whose[mine] == person).all()
            held = int((whose == person).sum())
            assert len(set(mine.tolist())) == mine.size == (held if most is None else min(held, 2))
        padding = owner[k] >= len(persons)
        assert not drawn.real[k, owner[k, padding]].any()


def test_persons_outside_a_world_have_no_influence() -> None:
    own, (x, y, whose) = plan(size=12, batch=3.0), of_persons()
    included = np.ones((2, 12), dtype=bool)
    included[:, 7] = False
    settings = {
        "groups": np.arange(12) % 2, "recipe": UpdateRule(),
        "people": replace(Units.of(whose, np.arange(12)), most=3),
    }  # fmt: skip
    first = train(MLP, (x, y), own, seed=1, included=included, **settings)  # type: ignore[arg-type]
    x = x.clone()
    x[torch.from_numpy(whose == 7)] = 1e6
    second = train(MLP, (x, y), own, seed=1, included=included, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    included[0, 7] = True
    third = train(MLP, (x, y), own, seed=1, included=included, **settings)  # type: ignore[arg-type]
    assert not torch.equal(first[0], third[0])


def test_logit_scaled_reads_the_last_axis_of_any_number_of_models() -> None:
    logits = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([[0, 1, 2, 0, 1], [2, 2, 1, 0, 0]])
    found = scale_logits(logits, targets)
    for model in range(2):
        assert np.array_equal(found[model], scale_logits(logits[model], targets[model]))
