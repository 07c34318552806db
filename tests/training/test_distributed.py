"""Two processes train one model: the same mechanism as one, with one noise in total."""

import os
import socket
import subprocess
import sys

import torch

CHILD = """
import sys
import numpy as np, torch, torch.distributed as dist
from torch import nn
from apiece.budgets import Budgets
from apiece.plan import Plan, Stage
from apiece.training import Trainer

folder, what = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)  # different first parameters: process 0's must win
model = nn.Linear(5, 400, bias=False)
n, noise = (41, 1e-9) if what == "sum" else (1, 3.0)
rate = 1.0 if what == "sum" else 1e-12
budgets = Budgets(np.ones(n), 1e-5)
stage = Stage(4, n * rate, noise, np.array([rate]), np.array([0.5]))
plan = Plan("t", 1.0, budgets.groups, (stage,), np.zeros(1, bool), budgets.group_index, budgets.ids)
x = torch.randn(n, 5, generator=torch.Generator().manual_seed(9))
first = model.weight.detach().clone()
dist.broadcast(first, 0)
loss = lambda o, t: o.square().sum(1) / 400
lr = .5 if what == "sum" else rate
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
wrapped = nn.parallel.DistributedDataParallel(model)
half = Trainer(wrapped, optimizer, loss, plan, (x, x), seed=0, checkpoint=folder + "/c")
half.fit(2)
model2 = nn.Linear(5, 400, bias=False)
optimizer2 = torch.optim.SGD(model2.parameters(), lr=lr)
rest = Trainer.resume(folder + "/c", model2, optimizer2, loss, plan, (x, x))
rest.fit()
torch.save([first, model2.weight.detach(), torch.tensor(rest.step_number)], f"{folder}/{rank}.pt")
dist.destroy_process_group()
"""


def run(folder, what):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    children = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", CHILD, str(folder), what],
            env=os.environ | shared | {"RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for child in children:
        _, errors = child.communicate(timeout=120)
        assert child.returncode == 0, errors
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_add_up_to_one(tmp_path):
    """With every record in every step and next to no noise the result is that of one process."""
    (first, one, steps), (_, other, _) = run(tmp_path, "sum")
    assert int(steps) == 4
    assert torch.equal(one, other)
    weight = first.clone().double().requires_grad_()
    x = torch.randn(41, 5, generator=torch.Generator().manual_seed(9)).double()
    for _ in range(4):
        total = torch.zeros_like(weight)
        for row in x:
            (g,) = torch.autograd.grad((weight @ row).square().sum() / 400, weight)
            total += g * min(1, 0.5 / g.norm())
        weight = (weight - 0.5 * total / 41).detach().requires_grad_()
    torch.testing.assert_close(one.double(), weight.detach(), rtol=1e-4, atol=1e-5)


def test_the_noise_is_drawn_once_and_fresh_after_a_resume(tmp_path):
    """Without records each step moves 2000 parameters by N(0, 3²): four steps, N(0, 4·3²)."""
    (first, one, _), (_, other, _) = run(tmp_path, "noise")
    assert torch.equal(one, other)
    spread = float((one - first).double().std())
    assert abs(spread / 6.0 - 1) < 5 / (2 * 2000) ** 0.5
