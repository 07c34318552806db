"""Allocate: whole numbers of steps within every budget, and batches that keep them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from apiece import Budgets, Plan, assign, cli
from apiece.accounting import privacy_curve
from apiece.assignment import Allocate
from apiece.contract import choices, explain
from apiece.errors import InputError, UnsupportedError, VerificationError
from apiece.plan import BoundPlan
from apiece.plan.parts import allocated_steps
from apiece.reporting.pages import contributor_page
from apiece.training.batches import OneStream, PlannedSampler, draw_batches
from apiece.training.randomness import Streams
from refusals import refused

BUDGETS = Budgets.from_groups([("a", 1.0, 0.5), ("b", 2.5, 0.5)], 60, 1e-4)


@pytest.fixture(scope="module")
def plan() -> BoundPlan:
    return assign(BUDGETS, "allocate", steps=23, expected_batch_size=12, clip_norm=1.0)


def test_each_group_gets_the_most_whole_steps_that_its_budget_allows(plan: BoundPlan) -> None:
    stage, times = plan.stages[0], plan.stages[0].times
    assert plan.verify().ok
    assert times is not None
    assert times[0] < times[1]
    for g, k in enumerate(times.tolist()):
        more = privacy_curve(allocated_steps(stage.noise_stddev, k + 1, 23)).epsilon(1e-4)
        assert more.upper > plan.budget_groups.epsilon[g]
    assert sum("exactly" in note and "unspent" in note for note in plan.notes) == 2


def test_every_record_joins_exactly_its_steps_one_in_each_block(plan: BoundPlan) -> None:
    batches = list(draw_batches(plan, OneStream(np.random.default_rng(3))))
    joined = np.zeros((60, 23), dtype=int)
    for step, batch in enumerate(batches):
        joined[batch, step] += 1
    times = plan.stages[0].times[plan.group_index]
    assert (joined.sum(axis=1) == times).all()
    assert joined.max() == 1
    for record, k in enumerate(times):
        edges = [b * 23 // k for b in range(k)]
        assert (np.add.reduceat(joined[record], edges) == 1).all()


def test_steps_are_uniform_and_independent(plan: BoundPlan) -> None:
    generator, count = np.random.default_rng(11), 300
    share = np.zeros((60, 23))
    sizes = []
    for _ in range(count):
        for step, batch in enumerate(draw_batches(plan, OneStream(generator))):
            share[batch, step] += 1 / count
            sizes.append(batch.size)
    for g, k in enumerate(plan.stages[0].times.tolist()):
        edges = np.append([b * 23 // k for b in range(k)], 23)
        chance = np.repeat(1 / np.diff(edges), np.diff(edges))
        of_group = share[plan.group_index == g].mean(axis=0)
        error = np.sqrt(chance * (1 - chance) / (count * 30))
        assert (np.abs(of_group - chance) <= 4.5 * error + 1e-12).all()
    assert abs(np.mean(sizes) - plan.expected_batch_size) < 0.3
    assert np.std(sizes) > 1  # sizes vary as those of Poisson batches do


def test_a_step_is_drawn_again_alone_and_shards_make_the_whole(plan: BoundPlan) -> None:
    streams, everyone = Streams.from_seed(5), np.ones(60, dtype=bool)
    whole = PlannedSampler(plan, everyone)
    every = [whole.draw(step, streams).records for step in range(23)]
    for step in (17, 3, 22):
        again = PlannedSampler(plan, everyone).draw(step, streams).records
        assert np.array_equal(again, every[step])
        parts = [PlannedSampler(plan, everyone, (r, 2)).draw(step, streams) for r in (0, 1)]
        both = np.sort(np.concatenate([part.records for part in parts]))
        assert np.array_equal(both, every[step])
    left = everyone.copy()
    left[7] = False  # the neighbour's draws are the same, but for the record that is not there
    fewer = PlannedSampler(plan, left)
    for step in range(23):
        there = fewer.draw(step, streams).records
        assert np.array_equal(there, every[step][every[step] != 7])


def test_planned_spending_of_a_prefix_is_an_upper_bound_that_grows(plan: BoundPlan) -> None:
    for g in (0, 1):
        parts = [privacy_curve(plan.mechanism_at(g, n)).epsilon(1e-4) for n in (1, 8, 15, 23)]
        ends = [bounds.upper for bounds in parts]
        assert ends[-1] == pytest.approx(plan.epsilon_spent[g])
        assert ends == sorted(ends)


def test_json_keeps_the_numbers_and_what_is_not_so_is_refused(plan: BoundPlan) -> None:
    data = plan.to_dict()
    assert Plan.from_dict(data).to_dict() == data
    data["groups"][0]["times"] += 1
    with refused(InputError, "times"):
        Plan.from_dict(data)
    stage = plan.stages[0]
    with pytest.raises(InputError, match="whole number"):
        replace(stage, times=np.array([1.5, 2.0]))
    poisson = plan.to_dict()
    for group in poisson["groups"]:
        del group["times"]  # as coins it would cost another ε than is claimed
    with pytest.raises((InputError, VerificationError)):
        Plan.from_dict(poisson)
    many = Budgets(np.linspace(1, 3, 60), 1e-4)
    with pytest.raises(UnsupportedError, match="distinct budgets"):
        assign(many, Allocate(), steps=10, expected_batch_size=12, clip_norm=1.0)


def test_a_trainer_goes_on_to_the_bit(plan: BoundPlan, tmp_path: Path) -> None:
    from apiece.training import Trainer

    torch.manual_seed(0)
    x, y = torch.randn(60, 3), torch.randint(0, 2, (60,))
    data = torch.utils.data.TensorDataset(x, y)

    def parts() -> tuple[torch.nn.Linear, torch.optim.Optimizer, torch.nn.Module]:
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        return model, optimizer, torch.nn.CrossEntropyLoss(reduction="none")

    one, other, again = parts(), parts(), parts()
    Trainer(*one, plan, data, seed=4).fit()
    stopped = Trainer(*other, plan, data, seed=4)
    for _ in range(9):
        stopped.step()
    stopped.save(tmp_path / "there")
    Trainer.resume(tmp_path / "there", *again, plan, data).fit()
    assert torch.equal(one[0].weight, again[0].weight)


def test_contributors_are_told_in_how_many_steps(
    plan: BoundPlan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plan.json").write_text(plan.to_json())
    for name, k in zip("ab", plan.stages[0].times.tolist(), strict=True):
        flags = ["--plan", str(tmp_path / "plan.json"), "--group", name, "--json"]
        assert cli.run(["explain", *flags]) == 0
        found = json.loads(capsys.readouterr().out)
        assert f"takes part in exactly {k} of 23 steps, drawn at random." in found["consent"]
        assert found["taking_part"] == [k, 23]
    assert "exactly" not in explain(1.0, 1e-5).consent()
    for wrong in ((10, 9), (0, 9)):
        with refused(InputError, "taking_part"):
            explain(1.0, 1e-5, taking_part=wrong)


@pytest.mark.slow
def test_the_contributors_page_tells_it() -> None:
    offered = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]
    page = contributor_page(
        choices(
            offered, records=40, delta=1e-3, steps=2, expected_batch_size=30, bound=0.1,
            strategies=[Allocate()],
        )
    ).html  # fmt: skip
    assert "of 2 steps, drawn at random" in page
    assert "whole number of steps" in page


def test_a_batch_that_cannot_be_so_small_is_told() -> None:
    plan = assign(BUDGETS, Allocate(), steps=4, expected_batch_size=3, clip_norm=1.0)
    assert plan.expected_batch_size >= 15
    assert any("batches of" in note and "not of 3" in note for note in plan.notes)
