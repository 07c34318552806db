"""Parameters sharded over two processes: the run is that of one process, and its parts the same.

What one process makes of the plan is made here; two processes with `fully_shard` must make it too.
"""

import dataclasses
import functools
import os
import socket
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.errors import UnsupportedError
from apiece.plan import Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer, clip_and_sum
from apiece.training.processes import FullySharded

STEPS = 6


class Net(nn.Module):
    """Layers of several kinds, a table used twice, a scale of its own and an odd width."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 5)
        self.block = nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.LayerNorm(9), nn.Linear(9, 5))
        self.scale = nn.Parameter(torch.full((5,), 1.5))
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.block(self.table(x).mean(1)) * self.scale)


def setting(what):
    """Return model, optimizer, loss, plan, data and options of a setting."""
    torch.manual_seed(5)
    model, loss = Net(), nn.CrossEntropyLoss(reduction="none")
    x, y = torch.randint(0, 7, (41, 3)), torch.randint(0, 7, (41,))
    budgets, options = Budgets.from_groups([("a", 1.0, 20), ("b", 2.0, 21)], 41, 1e-5), {}
    rates, noise = np.ones(2), 0.5
    clips = np.array([0.05, 2.0])  # one clips, the other does not
    if what == "nobody":
        rates = np.full(2, 1e-12)
    if what == "people":
        people = np.repeat(np.arange(11), [3] * 8 + [1, 6, 10])
        people = np.random.default_rng(1).permutation(people)
        budgets = Budgets(np.ones(11), 1e-5, ids=np.arange(11))
        rates, clips = np.ones(1), np.ones(1)
        options = {"people": people, "physical_batch_size": 5}
    if what == "unfreeze":
        options = {"unfreeze": {0: ["block.3"], 2: ["block", "scale"], 4: [""]}}
    expected = float(rates @ budgets.groups.records)
    stage = Stage(STEPS, expected, noise, rates, clips)
    plan = Plan("t", 1.0, budgets.groups, (stage,)).bind(budgets)
    makes = {
        "momentum": lambda p: torch.optim.SGD(p, lr=0.5, momentum=0.9),
        "nobody": lambda p: torch.optim.SGD(p, lr=expected),  # each step moves by the noise
    }
    make = makes.get(what, lambda p: torch.optim.AdamW(p, lr=0.05))
    return model, lambda m: make(m.parameters()), loss, plan, (x, y), options


SLOW = ("momentum", "unfreeze", "people")
NAMES = ("nobody", "sum")  # the last one says its paths


def sharded(what):
    """Return the setting with its model sharded, as users do it: parts first, then the whole."""
    from torch.distributed.fsdp import fully_shard

    model, optimizer, *rest = setting(what)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (2,))
    if what != "momentum":  # a layer of its own; a few together; what is left
        fully_shard(model.block[0], mesh=mesh)
        fully_shard([model.block[2], model.block[3]], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, optimizer(model), *rest


def found(model):
    model.reshard()  # after the last evaluation
    return {n: p.full_tensor().detach().clone() for n, p in model.named_parameters()}


def evaluate(model, inputs, _progress):
    """Run the model between steps, as an evaluation does, on all processes."""
    model(inputs)


def child(folder, names):
    """Run every setting whole, and in two halves with a step in between that is made again."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for what in names:
        model, optimizer, loss, plan, data, options = sharded(what)
        looks = functools.partial(evaluate, model, data[0][:3])
        whole = Trainer(model, optimizer, loss, plan, data, seed=0, callbacks=[looks], **options)
        whole.fit()
        results[what] = found(model)
        model, optimizer, *_ = sharded(what)
        place = f"{folder}/{what}"
        half = Trainer(model, optimizer, loss, plan, data, seed=0, checkpoint=place, **options)
        half.fit(3)
        half.step()  # after the checkpoint: to be made again, and the journal has to agree
        model, optimizer, *_ = sharded(what)
        rest = Trainer.resume(place, model, optimizer, loss, plan, data, **options)
        assert rest.step_number == 3
        rest.fit()
        results[f"{what}, resumed"] = found(model)
        shapes = [p.to_local().numel() for p in model.parameters()]
        results[f"{what}, parts"] = torch.tensor(shapes)
        if optimizer.state_dict()["state"]:
            memory = next(iter(optimizer.state.values()))
            assert all(v.to_local().numel() < v.numel() for v in memory.values() if v.dim())
    results["proved"] = torch.tensor(whole.proof.proved)
    torch.save(results, f"{folder}/{dist.get_rank()}.pt")
    dist.destroy_process_group()


def two_processes(folder, names):
    """Return what each of two processes found of these settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, str(folder), *names],
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=240)[1] for process in children]
    assert not any(process.returncode for process in children), errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return what gives a setting's results; the slow ones are run when they are asked for."""
    run = functools.cache(lambda names: two_processes(tmp_path_factory.mktemp("sharded"), names))
    return lambda what: run(SLOW if what in SLOW else NAMES)


EVERY = [*NAMES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]


def alone(what):
    """Return what one process makes of the same plan with whole parameters, and the same noise."""
    model, optimizer, loss, plan, data, options = setting(what)
    Trainer(model, optimizer(model), loss, plan, data, seed=0, **options).fit()
    return {n: p.detach() for n, p in model.named_parameters()}


@pytest.mark.parametrize("what", EVERY)
def test_two_processes_make_what_one_makes(trained, what):
    """The noise is the same, so that the parameters agree to round-off, whatever the setting."""
    for name, one in alone(what).items():
        for each in trained(what):
            torch.testing.assert_close(each[what][name], one, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("what", EVERY)
def test_a_resumed_run_is_the_same_to_the_bit(trained, what):
    for each in trained(what):
        for name, one in each[what].items():
            assert torch.equal(one, each[f"{what}, resumed"][name])
            assert torch.equal(one, trained(what)[0][what][name])


def test_parameters_and_what_the_optimizer_remembers_stay_sharded(trained):
    whole = torch.tensor([p.numel() for p in Net().parameters()])
    parts = [each["sum, parts"] for each in trained("sum")]
    assert torch.equal(sum(parts), whole)
    assert all((part < whole).all() for part in parts)
    assert trained("sum")[0]["proved"]


def test_one_noise_in_all(trained):
    """Nobody takes part: six steps of noise alone, whose level a second draw would raise."""
    first = dict(setting("nobody")[0].named_parameters())
    moved = torch.cat(
        [(v - first[n]).flatten() for n, v in trained("nobody")[0]["nobody"].items()]
    ).detach()
    expected = 0.5 * STEPS**0.5
    assert abs(float(moved.std()) / expected - 1) < 4.5 / (2 * moved.numel()) ** 0.5
    assert 4.5 / (2 * moved.numel()) ** 0.5 < 2**0.5 - 1  # the control: two draws would show


@pytest.fixture
def one_process():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_what_is_sharded_otherwise_is_refused(one_process):
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    model = nn.Sequential(nn.Linear(3, 2))
    half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mesh=one_process, mp_policy=half)
    with pytest.raises(UnsupportedError, match="mp_policy"):
        FullySharded(model, 1)
    model = nn.Sequential(nn.Linear(3, 2))
    parallelize_module(model, one_process, {"0": ColwiseParallel()})
    with pytest.raises(UnsupportedError, match=r"0\.weight: is sharded as .*fully_shard alone"):
        FullySharded(model, 1)
    model = nn.Sequential(nn.Linear(3, 2))
    fully_shard(model, mesh=one_process)
    with pytest.raises(UnsupportedError, match="over 1 of 2 processes"):
        FullySharded(model, 2)
    with pytest.raises(UnsupportedError, match=r"0\.weight: is sharded .*DistributedData"):
        clip_and_sum(model, nn.MSELoss(reduction="none"), torch.ones(1, 3), torch.ones(1, 2), 1.0)


def test_plans_that_average_the_models_of_their_stages_are_refused(one_process):
    from torch.distributed.fsdp import fully_shard

    model, optimizer, loss, plan, data, _ = setting("sum")
    fully_shard(model, mesh=one_process)
    average = dataclasses.replace(plan, combine="average")
    with pytest.raises(UnsupportedError, match="averages the models of its stages"):
        Trainer(model, optimizer(model), loss, average, data, seed=0)


def test_the_model_is_an_ordinary_one_meanwhile_and_itself_again_after_an_error(one_process):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), mesh=one_process)
    kinds, before = [type(m) for m in model.modules()], list(model.parameters())
    hooks = [dict(m._forward_pre_hooks) for m in model.modules()]

    def fails():
        with FullySharded(model, 1).gather_parameters():
            assert type(model) is nn.Sequential
            assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
            assert all(type(p) is nn.Parameter for p in model.parameters())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert [type(m) for m in model.modules()] == kinds
    assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
    assert [dict(m._forward_pre_hooks) for m in model.modules()] == hooks
    model(torch.ones(1, 3)).sum().backward()


if __name__ == "__main__":
    child(sys.argv[1], sys.argv[2:])
