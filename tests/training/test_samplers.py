"""Samplers: each record at its own rate, once a step, and what a draw says is the plan's."""

import numpy as np
import pytest
from scipy import stats

from apiece.budgets import Budgets
from apiece.errors import InputError
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage
from apiece.training.batches import EqualSampler, PlannedSampler
from apiece.training.randomness import Streams

N = 60
GROUPS = Budgets.from_groups([("a", 1.0, 20), ("b", 2.0, 40)], N, 1e-5)
EVERYONE = np.ones(N, bool)


def plan(*stages: Stage) -> BoundPlan:
    return Plan("test", 1.0, GROUPS.groups, stages).bind(GROUPS)


def stage(steps: int = 3, rates: tuple[float, float] = (0.2, 0.7), **more: object) -> Stage:
    joins = np.asarray(more.get("participation", np.ones(2)))
    size = float(np.array([20.0, 40.0]) @ (np.array(rates) * joins))
    return Stage(steps, size, 1.5, np.array(rates), np.array([0.5, 3.0]), **more)  # type: ignore[arg-type]


def test_a_draw_holds_the_numbers_of_its_stage() -> None:
    two = plan(stage(), stage(2, (1.0, 0.0)))
    sampler, streams = PlannedSampler(two, EVERYONE), Streams.from_seed(0)
    draws = [sampler.draw(step, streams) for step in range(5)]
    assert [(d.stage, d.step_of_stage) for d in draws] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]
    for draw in draws:
        assert np.array_equal(draw.records, np.unique(draw.records))
        own = np.where(two.group_index[draw.records] == 0, 0.5, 3.0)
        assert np.array_equal(draw.clip_norms, own)
        assert (draw.noise_stddev, draw.expected_batch_size) == (
            1.5,
            two.stages[draw.stage].expected_batch_size,
        )
    assert np.array_equal(draws[4].records, np.flatnonzero(two.group_index == 0))
    with pytest.raises(InputError, match="beyond the last"):
        sampler.draw(5, streams)


def test_everyone_is_drawn_at_their_own_rate() -> None:
    steps = 4000
    one = plan(stage(steps))
    sampler, streams = PlannedSampler(one, EVERYONE), Streams.from_seed(1)
    counts = np.zeros(N)
    for step in range(steps):
        counts[sampler.draw(step, streams).records] += 1
    rates = np.where(one.group_index == 0, 0.2, 0.7)
    scores = (counts - steps * rates) / np.sqrt(steps * rates * (1 - rates))
    assert stats.kstest(scores, "norm").pvalue > 1e-4
    assert stats.kstest(scores + 1.5, "norm").pvalue < 1e-4  # the control: rates 1.5 deviations off


def test_a_draw_is_a_function_of_the_key_and_the_step() -> None:
    """So that a resumed run draws again what it drew, without the steps before."""
    halves = plan(stage(4), stage(4, participation=np.array([0.5, 0.5])))
    straight = PlannedSampler(halves, EVERYONE)
    drawn = [straight.draw(step, Streams.from_seed(2)).records for step in range(8)]
    for step in (6, 1, 7, 3):
        again = PlannedSampler(halves, EVERYONE).draw(step, Streams.from_seed(2)).records
        assert np.array_equal(again, drawn[step])


def test_who_is_not_included_is_never_drawn_and_the_others_are_as_before() -> None:
    full = plan(stage(2, (1.0, 1.0)))
    some = np.arange(N) % 3 > 0
    draw = PlannedSampler(full, some).draw(0, Streams.from_seed(0))
    assert np.array_equal(draw.records, np.flatnonzero(some))
    assert draw.expected_batch_size == 60.0
    assert some.sum() == 40  # the mask is not written to
    assert np.array_equal(some, np.arange(N) % 3 > 0)


def test_participation_is_one_coin_a_stage() -> None:
    half = plan(*[stage(3, (1.0, 1.0), participation=np.array([0.5, 1.0]))] * 2)
    sampler, streams = PlannedSampler(half, EVERYONE), Streams.from_seed(3)
    found = [sampler.draw(step, streams).records for step in range(6)]
    first, second = found[:3], found[3:]
    assert all(np.array_equal(first[0], other) for other in first)
    assert all(np.array_equal(second[0], other) for other in second)
    assert not np.array_equal(first[0], second[0])
    assert 40 < first[0].size < 60


def test_shards_share_the_records_out() -> None:
    full = plan(stage(1, (1.0, 1.0)))
    parts = [
        PlannedSampler(full, EVERYONE, (rank, 3)).draw(0, Streams.from_seed(0)).records
        for rank in range(3)
    ]
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(N))
    assert all((part % 3 == rank).all() for rank, part in enumerate(parts))


def test_equal_chances() -> None:
    bounds = np.linspace(1, 2, 500)
    sampler, streams = EqualSampler(bounds, 0.3, 2.0, 150.0), Streams.from_seed(0)
    draws = [sampler.draw(step, streams) for step in range(40)]
    counts = np.array([draw.records.size for draw in draws])
    assert abs(counts.mean() / 150 - 1) < 5 * (0.7 / 0.3 / 500 / 40) ** 0.5
    assert not np.array_equal(draws[0].records, draws[1].records)
    assert np.array_equal(draws[3].clip_norms, bounds[draws[3].records])
    assert {(d.noise_stddev, d.expected_batch_size, d.stage) for d in draws} == {(2.0, 150.0, 0)}


def test_the_full_batch_takes_no_coin() -> None:
    streams = Streams.from_seed(0)
    draw = EqualSampler(np.ones(5), 1.0, 2.0, 5.0).draw(0, streams)
    assert np.array_equal(draw.records, np.arange(5))
    assert streams.sampling(0).uniform(1) == Streams.from_seed(0).sampling(0).uniform(1)


def test_draws_show_nobody() -> None:
    draw = EqualSampler(np.full(5, 7310429.0), 1.0, 2.0, 5.0).draw(0, Streams.from_seed(0))
    assert "7310429" not in repr(draw)
