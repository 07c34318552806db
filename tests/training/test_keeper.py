"""Checkpoints: resumed runs go on exactly; whatever does not fit is refused."""

import dataclasses
import os

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import InputError, StateError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer, clip_and_sum
from apiece.training.checkpoints import CheckpointFolder
from apiece.training.clipping import ambient

BUDGETS = Budgets.from_groups([("a", 50.0, 20), ("b", 100.0, 40)], 60, 1e-5)


def plan(noise=1.0, steps=10):
    stage = Stage(steps, 20 * 0.2 + 40 * 0.5, noise, np.array([0.2, 0.5]), np.array([0.5, 1.0]))
    return Plan("test", 1.0, BUDGETS.groups, (stage,)).bind(BUDGETS)


def data(shift=0.0):
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(5)) + shift
    return x, (x[:, 0] > 0).long()


def parts():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.2), nn.Linear(3, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)


LOSS = nn.CrossEntropyLoss(reduction="none")


def unseen(outputs, targets):
    """A loss that changes by what no identity sees of it."""
    return float(os.environ["SCALE"]) * LOSS(outputs, targets)


def begin(folder, seed=0):
    return Trainer(*parts(), LOSS, plan(), data(), seed=seed, checkpoint=folder, save_every=3)


def flat(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@pytest.mark.parametrize("seed", [0, None])
def test_resumes_bit_identically_from_an_earlier_step(tmp_path, seed):
    run = begin(tmp_path / "c", seed)
    run.fit(4)
    run.step()  # past the checkpoint, and before the next
    again = Trainer.resume(tmp_path / "c", *parts(), LOSS, plan(), data())
    assert again.step_number == 4
    again.fit(1)
    assert torch.equal(flat(run), flat(again))


def test_steps_write_the_checkpoints_that_are_due(tmp_path):
    run = begin(tmp_path / "c")
    for _ in range(5):
        run.step()
    assert Trainer.resume(tmp_path / "c", *parts(), LOSS, plan(), data()).step_number == 3


def test_a_step_is_never_made_twice_in_two_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALE", "1")
    run = Trainer(*parts(), unseen, plan(), data(), seed=0, checkpoint=tmp_path, save_every=3)
    run.fit(3)
    run.step()
    monkeypatch.setenv("SCALE", "0.1")
    other = Trainer.resume(tmp_path, *parts(), unseen, plan(), data())
    before = flat(other)
    with pytest.raises(StateError, match="step 3 was made before and now comes out differently"):
        other.step()
    assert torch.equal(before, flat(other))


def test_refuses_what_is_not_the_run(tmp_path):
    begin(tmp_path).fit(3)
    for other, given in ((plan(2.0), data()), (plan(), data(1e-3))):
        with pytest.raises(StateError, match="is not the one given here"):
            Trainer.resume(tmp_path, *parts(), LOSS, other, given)
    moved = plan().public().bind(Budgets(BUDGETS.epsilon[::-1], 1e-5))
    with pytest.raises(StateError, match="data is not the one"):
        Trainer.resume(tmp_path, *parts(), LOSS, moved, data())
    with pytest.raises(StateError, match="holds a checkpoint already"):
        begin(tmp_path)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with pytest.raises(StateError, match="its model is not the one"):
        Trainer.resume(tmp_path, model, optimizer, LOSS, plan(), data())
    with pytest.raises(StateError, match="no checkpoint"):
        Trainer.resume(tmp_path / "none", *parts(), LOSS, plan(), data())
    (tmp_path / "state.pt").write_bytes(b"damaged")
    with pytest.raises(StateError, match="not a readable checkpoint"):
        Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())


def test_the_key_is_the_owners_alone_and_gone_at_the_end(tmp_path):
    run = begin(tmp_path, None)
    run.fit(3)
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "state.pt").stat().st_mode & 0o777 == 0o600
    run.fit()
    assert not (tmp_path / "key").exists()


def test_a_finished_run_comes_back_finished(tmp_path):
    run = begin(tmp_path)
    run.fit()
    again = Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())
    assert again.step_number == 10
    assert torch.equal(flat(run), flat(again))
    again.fit()
    with pytest.raises(StateError, match="all 10 steps"):
        again.step()


@pytest.mark.parametrize("wiped", [True, False])
def test_killed_between_the_last_checkpoint_and_the_deletion_of_the_key(
    tmp_path, wiped, monkeypatch
):
    run = begin(tmp_path)
    with monkeypatch.context() as killed:
        killed.setattr(CheckpointFolder, "finish", lambda folder: None)
        run.fit()
    if wiped:
        (tmp_path / "key").write_bytes(bytes(32))
    again = Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())
    again.fit()
    assert torch.equal(flat(run), flat(again))
    assert wiped or not (tmp_path / "key").exists()


def test_a_lost_key_stops_a_run_that_is_not_finished(tmp_path):
    begin(tmp_path).fit(3)
    (tmp_path / "key").unlink()
    with pytest.raises(StateError, match="key of the randomness is gone"):
        Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())


def test_the_first_checkpoint_comes_before_the_first_update(tmp_path):
    run = begin(tmp_path, None)
    run._loop.callbacks = (stop,)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    again = Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())
    assert again.step_number == 0
    again.step()
    assert torch.equal(flat(run), flat(again))


def stop(progress):
    raise KeyboardInterrupt


def test_a_key_without_a_state_has_made_nothing(tmp_path):
    (tmp_path / "key").write_bytes(b"k" * 32)
    begin(tmp_path, None).fit(1)
    other = begin(tmp_path / "other", None)
    other.save()
    (tmp_path / "other" / "key").write_bytes(b"k" * 32)
    with pytest.raises(StateError, match="another run"):
        other.save()


def test_an_update_that_was_interrupted_is_not_made_again(tmp_path):
    run = begin(tmp_path)
    run.fit(2)
    step, run.optimizer.step = run.optimizer.step, lambda: stop(None)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    run.optimizer.step = step
    for go_on in (run.step, run.save):
        with pytest.raises(StateError, match="interrupted half-way"):
            go_on()
    again = Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())
    again.fit()
    whole = begin(tmp_path.parent / "without")
    whole.fit()
    assert torch.equal(flat(again), flat(whole))


def test_one_run_has_one_folder(tmp_path, monkeypatch):
    run = begin(tmp_path / "a")
    with pytest.raises(InputError, match="leave it out"):
        run.save(tmp_path / "b")
    monkeypatch.setenv("SCALE", "1")
    free = Trainer(*parts(), unseen, plan(), data(), seed=0)
    free.save(tmp_path / "c")
    free.step()
    monkeypatch.setenv("SCALE", "0.1")
    other = Trainer.resume(tmp_path / "c", *parts(), unseen, plan(), data())
    with pytest.raises(StateError, match="comes out differently"):
        other.step()


def test_resume_takes_seed_and_folder_from_the_checkpoint(tmp_path):
    begin(tmp_path).fit(3)
    with pytest.raises(InputError, match="seed"):
        Trainer.resume(tmp_path, *parts(), LOSS, plan(), data(), seed=0)


def test_an_experiment_with_objections_is_resumed(tmp_path):
    broken = dataclasses.replace(plan(), objections=("it breaks a promise",))
    run = Trainer(*parts(), LOSS, broken, data(), seed=0, checkpoint=tmp_path)
    run.fit(3)
    again = Trainer.resume(tmp_path, *parts(), LOSS, broken, data())
    assert again.step_number == 3
    again.fit(1)
    assert again.step_number == 4


def test_saving_needs_a_folder():
    with pytest.raises(InputError, match="no folder"):
        Trainer(*parts(), LOSS, plan(), data(), seed=0).save()


def test_a_full_disk_leaves_the_last_checkpoint(tmp_path, monkeypatch):
    run = begin(tmp_path)
    run.fit(3)
    whole = begin(tmp_path.parent / "whole")
    whole.fit()

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(StateError, match="No space left on device"):
            run.fit()
    again = Trainer.resume(tmp_path, *parts(), LOSS, plan(), data())
    assert again.step_number == 3
    again.fit()
    assert torch.equal(flat(again), flat(whole))


def test_the_generators_of_the_model_s_devices_are_set_and_put_back(monkeypatch):
    """A GPU's generator, played by one of the CPU."""
    gpu = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "default_generators", (gpu,))
    before = gpu.get_state(), torch.get_rng_state()
    devices = [torch.device("cuda", 0), torch.device("cpu"), torch.device("cuda", 0)]
    drawn = []
    for _ in range(2):
        with ambient.model_randomness(5, devices):
            drawn.append((torch.rand(3, generator=gpu), torch.rand(3)))
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))
    assert torch.equal(gpu.get_state(), before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


class Wary(nn.Module):
    """A parameter of its own, with dropout; it looks at values, so that records run alone."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(4, 2), nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        assert float(x.sum()) < 1e9
        return self.drop(self.layer(self.drop(x * self.scale)))


def dropped(proved):
    torch.manual_seed(1)
    chain = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh(), nn.Linear(4, 2))
    return chain if proved else Wary()


@pytest.mark.parametrize(
    ("stop_at", "proved"),
    [
        (1, True),
        (1, False),
        *(pytest.param(4, proved, marks=pytest.mark.slow) for proved in (True, False)),
    ],
)
def test_dropout_is_drawn_again_whatever_the_path(tmp_path, proved, stop_at):
    def trainer(make, *where, **options):
        model = dropped(proved)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        # Alone, each record of each step has a process of its own: one step after the pause.
        steps = 10 if proved else stop_at + 1
        return make(*where, model, optimizer, LOSS, plan(steps=steps), data(), **options)

    whole = trainer(Trainer, seed=3)
    whole.fit()
    first = trainer(Trainer, checkpoint=tmp_path, save_every=3, seed=3)
    first.fit(stop_at)
    again = trainer(Trainer.resume, tmp_path)
    again.fit()
    assert torch.equal(flat(whole), flat(again))
    assert again.proof.proved == proved


@pytest.mark.parametrize("proved", [True, False])
def test_a_capture_draws_nothing(proved):
    """The sum of a model's first batch is that of a model whose graph is known."""
    model, (x, y) = dropped(proved), (part[:10] for part in data())
    sums = []
    for _ in range(2):
        torch.manual_seed(5)
        sums.append(clip_and_sum(model, LOSS, x, y, 1.0).gradients)
    for name, first in sums[0].items():
        assert torch.equal(first, sums[1][name])
