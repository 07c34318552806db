"""A run killed at any moment and resumed ends in the same parameters, bit by bit."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import torch

CHILD = """
import sys
import numpy as np, torch
from torch import nn
from apiece.budgets import Budgets
from apiece.plan import Plan, Stage
from apiece.training import Trainer

folder, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.manual_seed(0)
budgets = Budgets.from_groups([("a", 40, 1.0), ("b", 60, 2.0)], 100, 1e-5)
stage = Stage(steps, 40 * .1 + 60 * .3, 1.0, np.array([.1, .3]), np.array([.5, 1.]))
plan = Plan("t", 1.0, budgets.groups, (stage,), np.zeros(2, bool), budgets.group_index, budgets.ids)
x = torch.randn(100, 6)
data = (x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(.3), nn.Tanh(), nn.Linear(8, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=.01)
loss = nn.CrossEntropyLoss(reduction="none")
from pathlib import Path
if (Path(folder) / "state.pt").exists():
    trainer = Trainer.resume(folder, model, optimizer, loss, plan, data, save_every=7)
else:
    trainer = Trainer(model, optimizer, loss, plan, data, seed=3, checkpoint=folder, save_every=7)
print("ready", flush=True)
trainer.fit()
torch.save(model.state_dict(), folder + "/done.pt")
"""


def start(folder, steps):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(folder), str(steps)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def kill_and_resume(tmp_path, kills, steps):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    begun = time.monotonic()
    process = start(whole, steps)
    process.stdout.readline()
    ready = time.monotonic()
    finish(process)
    length = time.monotonic() - ready
    dice = random.Random(0)
    for _ in range(kills):
        process = start(broken, steps)
        process.stdout.readline()
        time.sleep(dice.uniform(0, 2 * length / (kills + 1)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        if (broken / "done.pt").exists():
            break
    if not (broken / "done.pt").exists():
        finish(start(broken, steps))
    assert time.monotonic() > begun
    one, other = (torch.load(f / "done.pt", weights_only=True) for f in (whole, broken))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (whole / "key").exists()


def test_killed_a_few_times(tmp_path):
    kill_and_resume(tmp_path, kills=3, steps=150)


@pytest.mark.slow
def test_killed_a_hundred_times(tmp_path):
    kill_and_resume(tmp_path, kills=100, steps=4000)
