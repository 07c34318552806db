"""The trainer runs the plan: rates, bounds, one noise, the expected batch size, every step."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import InputError, StateError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer
from apiece.training.batches import OneStream, draw_batches
from apiece.training.randomness import Streams
from apiece.training.sources import source_of

N = 60


def plan(rates=(0.2, 0.5), clips=(0.5, 1.0), noise=1e-9, steps=6, stages=1, participation=None):
    budgets = Budgets.from_groups([("a", 1.0, 20), ("b", 2.0, 40)], N, 1e-5)
    joins = np.ones(2) if participation is None else participation
    expected = float(np.array([20, 40]) @ (np.array(rates) * joins))
    stage = Stage(steps, expected, noise, np.array(rates), np.array(clips), participation)
    made = Plan("test", 1.0, budgets.groups, (stage,) * stages)
    return made.bind(budgets)


def data():
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(N, 4, generator=generator)
    return x, (x[:, 0] > 0).float()


def loss_fn(outputs, targets):
    return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets, reduction="none")


def trainer(the_plan, seed=0, **options):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    return Trainer(model, optimizer, loss_fn, the_plan, data(), seed=seed, **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_equals_one_record_at_a_time_in_double_precision():
    the_plan = plan()
    run = trainer(the_plan, physical_batch_size=7)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)).double()
    x, y = (t.double() for t in data())
    streams, stage = Streams.from_seed(0), the_plan.stages[0]
    from apiece.training.batches import PoissonSampler

    sampler = PoissonSampler(stage, the_plan.group_index)
    for step in range(the_plan.steps):
        total = [torch.zeros_like(p) for p in model.parameters()]
        for i in sampler.draw(streams.sampling(step)):
            loss = loss_fn(model(x[i : i + 1]), y[i : i + 1]).sum()
            found = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.sqrt(sum(g.square().sum() for g in found))
            bound = stage.clip_norm[the_plan.group_index[i]]
            for sum_, g in zip(total, found, strict=True):
                sum_ += g * min(1, bound / norm)
        with torch.no_grad():
            for p, sum_ in zip(model.parameters(), total, strict=True):
                p -= 0.3 * sum_ / stage.expected_batch_size
    run.fit()
    torch.testing.assert_close(flat(run.model).double(), flat(model), rtol=1e-4, atol=1e-6)


def test_an_empty_batch_is_a_step_of_noise():
    rare = 1e-9
    run = trainer(plan(rates=(rare, rare), noise=2.0))
    before = flat(run.model)
    run.step()
    moved = (flat(run.model) - before) / (0.3 * 2.0 / (60 * rare))
    assert 0.5 < moved.std() < 1.6
    assert run.step_number == 1


def test_physical_batch_size_does_not_change_the_mechanism():
    runs = [trainer(plan(noise=0.1), physical_batch_size=width) for width in (3, 1000)]
    for run in runs:
        run.fit()
    torch.testing.assert_close(flat(runs[0].model), flat(runs[1].model), rtol=1e-4, atol=1e-5)


def test_runs_every_stage_and_not_one_step_more():
    run = trainer(plan(steps=2, stages=3))
    seen = []
    run._loop.callbacks = (lambda progress: seen.append((progress.step, progress.stage)),)
    run.fit()
    assert seen == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]
    with pytest.raises(StateError, match="all 6 steps"):
        run.step()


def test_participation_is_one_coin_a_stage():
    half = plan(rates=(1.0, 1.0), steps=3, stages=2, participation=np.array([0.5, 0.0]))
    batches = list(draw_batches(half, OneStream(np.random.default_rng(0))))
    assert [np.array_equal(batches[0], b) for b in batches] == [True, True, True] + [False] * 3
    assert all((half.group_index[b] == 0).all() for b in batches)
    assert 0 < batches[0].size < 20


def test_a_record_that_is_not_finite_is_left_out_and_counted():
    x, y = data()
    run = trainer(plan(rates=(1.0, 1.0)))
    x[3] = float("nan")
    x[7, 1] = float("inf")
    run._loop.sums.source = source_of((x, y))
    run.fit(2)
    assert run.rejected == 4
    assert torch.isfinite(flat(run.model)).all()


def test_seeds():
    same = [flat_after(seed) for seed in (3, 3, 4, None, None)]
    assert torch.equal(same[0], same[1])
    assert not any(torch.equal(same[0], other) for other in same[2:])
    assert not torch.equal(same[3], same[4])


def flat_after(seed):
    run = trainer(plan(noise=20.0), seed=seed)  # a release keeps every promise
    run.fit(2)
    return flat(run.model)


def test_the_ambient_random_state_is_neither_used_nor_changed():
    run = trainer(plan(noise=1.0))
    run.model.append(nn.Dropout(0.5))
    torch.manual_seed(77)
    before = torch.get_rng_state()
    run.fit(1)
    assert torch.equal(before, torch.get_rng_state())


def test_refuses_what_does_not_fit():
    small = Budgets(np.ones(5), 1e-5)
    stage = Stage(1, 1.0, 1.0, np.array([0.2]), np.array([1.0]))
    with pytest.raises(InputError, match="60 records, but the plan is for"):
        trainer(Plan("t", 1.0, small.groups, (stage,)).bind(small))
    with pytest.raises(InputError, match="bind"):
        trainer(plan().public())
    model = nn.Linear(4, 1)
    partial = torch.optim.SGD([model.weight], lr=0.1)
    with pytest.raises(InputError, match="'bias'"):
        Trainer(model, partial, loss_fn, plan(), data(), seed=0)
    mean = nn.BCEWithLogitsLoss()
    whole = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match="did you mean 'proved'"):
        Trainer(model, whole, loss_fn, plan(), data(), method="proven", seed=0)
    run = Trainer(model, whole, lambda o, t: mean(o[:, 0], t), plan((1.0, 1.0)), data(), seed=0)
    with pytest.raises(InputError, match="one loss a record"):
        run.fit()


def test_a_plan_that_averages_trains_one_model_a_stage(tmp_path):
    several = dataclasses.replace(plan(steps=3, stages=2, noise=0.5), combine="average")
    run = trainer(several)
    first = flat(run.model)
    run.fit(3)
    one = flat(run.model)
    run.fit()
    whole = run.average()
    assert torch.equal(flat(whole.models[0]), one)
    assert torch.equal(flat(whole.models[1]), flat(run.model))
    alone = trainer(plan(steps=3, noise=0.5))
    alone.fit()
    assert torch.equal(flat(alone.model), one)
    assert not torch.equal(first, one)
    x = data()[0]
    torch.testing.assert_close(whole(x), (whole.models[0](x) + whole.models[1](x)) / 2)
    with pytest.raises(InputError, match="one model through all stages"):
        alone.average()
    stopped = trainer(several, checkpoint=tmp_path)
    stopped.fit(4)
    again = trainer(several)
    again = Trainer.resume(tmp_path, again.model, again.optimizer, loss_fn, several, data())
    again.fit()
    assert torch.equal(flat(again.average()), flat(whole))


def test_a_plan_with_objections_runs_as_an_experiment_only():
    broken = dataclasses.replace(plan(), objections=("it breaks a promise",))
    trainer(broken, seed=1).step()
    with pytest.raises(InputError, match="it breaks a promise"):
        trainer(broken, seed=None)


def test_who_is_left_out_is_in_no_batch_and_changes_nothing_else():
    """The same as with their gradients at zero, at the plan's own noise and normaliser."""
    included = np.arange(N) % 3 > 0
    left_out = trainer(plan(rates=(1.0, 1.0), noise=0.3), included=included)
    left_out.fit()
    everyone = trainer(plan(rates=(1.0, 1.0), noise=0.3))
    inputs, targets = data()
    inputs[torch.from_numpy(~included)] = torch.nan  # a record that is not finite is left out too
    everyone._loop.sums.source = source_of((inputs, targets))
    everyone.fit()
    torch.testing.assert_close(flat(left_out.model), flat(everyone.model))
    assert not torch.allclose(flat(left_out.model), flat(fitted(plan(rates=(1.0, 1.0), noise=0.3))))


@pytest.mark.parametrize("bad", [np.ones(N), np.ones(N - 1, bool)])
def test_included_must_be_one_boolean_a_record(bad):
    with pytest.raises(InputError, match="included"):
        trainer(plan(), included=bad)


def fitted(the_plan):
    run = trainer(the_plan)
    run.fit()
    return run.model


def test_each_stage_has_its_own_noise():
    rare = 1e-9
    quiet = plan(rates=(rare, rare), noise=1.0, steps=2)
    stages = [dataclasses.replace(quiet.stages[0], noise_stddev=z) for z in (5.0, 0.2)]
    run = trainer(dataclasses.replace(quiet, stages=tuple(stages)))
    moves = []
    for _ in range(4):
        before = flat(run.model)
        run.step()
        moves.append(float((flat(run.model) - before).std()) * 60 * rare / 0.3)
    assert moves == pytest.approx([5.0, 5.0, 0.2, 0.2], rel=0.6)


def wrapped(model):
    return torch.compile(model, backend="eager")


def in_place(model):
    model.compile(backend="eager")
    return model


def in_part(model):
    model[0] = torch.compile(model[0], backend="eager")
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compiles", [wrapped, in_place, in_part])
def test_a_compiled_model_is_trained_as_it_is_without_and_runs_with_its_new_parameters(
    compiles, tmp_path
):
    def made(compiles=None):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        model = model if compiles is None else compiles(model)
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    the_plan, (x, y) = plan(noise=0.1), data()
    model, optimizer = made()
    Trainer(model, optimizer, loss_fn, the_plan, (x, y), seed=0).fit()
    fast, optimizer = made(compiles)
    seen = []
    looks = [lambda _: seen.append(fast(x).detach())]  # by the compiled code, between steps
    half = Trainer(
        fast, optimizer, loss_fn, the_plan, (x, y), seed=0, checkpoint=tmp_path, callbacks=looks
    )
    half.fit(3)
    assert half.proof.proved
    fast, optimizer = made(compiles)
    Trainer.resume(tmp_path, fast, optimizer, loss_fn, the_plan, (x, y), callbacks=looks).fit()
    room = 0 if compiles is not in_part else 1e-6  # in part, no chain of plain layers
    torch.testing.assert_close(flat(fast), flat(model), rtol=room, atol=room)
    assert torch.equal(seen[-1], fast(x))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(seen))
    if compiles is not in_part:  # whose names are others
        again, optimizer = made()
        done = Trainer.resume(tmp_path, again, optimizer, loss_fn, the_plan, (x, y))
        assert done.step_number == the_plan.steps
        assert torch.equal(flat(again), flat(model))
