"""A training run that is killed at random moments, for the fault tests.

python tests/faults/trainee.py KILLS STEPS SEED FOLDER [proved | alone]

Makes the first checkpoint of a release (key from the operating system) and copies it; trains one
copy to its end without a pause and the other with KILLS kills, each resumed; compares. Prints what
it found as JSON. Runs are forked from a process that has loaded torch, so that a kill falls into
the run and not into imports. The last argument is how the model's gradients can be clipped; each
of the models has dropout.
"""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from apiece.budgets import Budgets
from apiece.plan import Plan, Schedule
from apiece.plan.parts import Stage
from apiece.training import Trainer

SAVE_EVERY = 7


class Wary(nn.Module):
    """It looks at its values, so that records run alone."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = nn.Linear(6, 2), nn.Dropout(0.3)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x):
        assert float(x.sum()) < 1e9
        return self.drop(self.layer(x * self.scale)) + self.drop(x[:, :2])


MODELS = {
    "proved": lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 2)),
    "alone": Wary,
}


def parts(steps, path="proved"):
    """Return what a trainer is made of: two stages, Adam, dropout, a learning-rate schedule."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    budgets = Budgets.from_groups([("a", 1e3, 40), ("b", 2e3, 60)], 100, 1e-5)
    rates, clips = np.array([0.1, 0.3]), np.array([0.5, 1.0])
    half = steps // 2
    stages = [Stage(t, 22.0, z, rates, clips) for t, z in ((half, 1.0), (steps - half, 0.5))]
    rate = Schedule(((0, 0.1), (half, 1.0), (steps, 0.0)), "cosine")
    made = Plan("test", 1.0, budgets.groups, tuple(stages), learning_rate=rate)
    plan = made.bind(budgets)
    x = torch.randn(100, 6)
    model = MODELS[path]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer, nn.CrossEntropyLoss(reduction="none"), plan, (x, (x[:, 0] > 0).long())


def run(folder, steps, path, started):
    """Resume the run in `folder` and take it to its end."""
    given = parts(steps, path)
    started.set()
    trainer = Trainer.resume(folder, *given, save_every=SAVE_EVERY)
    trainer.fit()
    assert trainer.proof.proved == (path == "proved")
    torch.save(trainer.model.state_dict(), folder / "done")


def made(folder):
    """Return how many steps have been made, of which the last may not be applied yet."""
    journal = folder / "journal"
    return journal.stat().st_size // 16 if journal.exists() else 0


def kept(folder):
    """Return how many steps the checkpoint has."""
    return int(torch.load(folder / "state.pt", weights_only=True)["step"])


def interrupt(context, folder, steps, path, step, seconds):
    """Run until `step` is made and some seconds longer, then kill; return whether it was alive."""
    started = context.Event()
    process = context.Process(target=run, args=(folder, steps, path, started))
    process.start()
    while not started.wait(1):
        assert process.exitcode is None, process.exitcode
    while made(folder) < step and process.exitcode is None:
        time.sleep(2e-4)
    process.join(seconds)
    alive = process.exitcode is None
    if alive:
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return alive


def kill(kills, steps, seed, folder, path):
    """Return what came of a run that was killed `kills` times."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch._dynamo", "apiece.training"])
    whole, broken = folder / "whole", folder / "broken"
    Trainer(*parts(steps, path), checkpoint=whole).save()
    shutil.copytree(whole, broken)
    assert not interrupt(context, whole, steps, path, steps + 1, 0)
    dice, killed, again = random.Random(seed), 0, 0
    for step in sorted(dice.randrange(steps - steps // 50) for _ in range(kills)):
        killed += interrupt(context, broken, steps, path, step, dice.uniform(0, 5e-3))
        again += made(broken) - kept(broken)
    assert not interrupt(context, broken, steps, path, steps + 1, 0)
    one, other = (torch.load(f / "done", weights_only=True) for f in (whole, broken))
    return {
        "path": path,
        "steps": steps,
        "killed": killed,
        "steps_made_again": again,
        "identical": all(torch.equal(one[name], other[name]) for name in one),
        "journals_equal": (whole / "journal").read_bytes() == (broken / "journal").read_bytes(),
        "keys_deleted": not (whole / "key").exists() and not (broken / "key").exists(),
    }


if __name__ == "__main__":
    kills, steps, seed = map(int, sys.argv[1:4])
    path = sys.argv[5] if len(sys.argv) > 5 else "proved"
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    report = {
        "machine": {"cpu": models[0] if models else "unknown", "cores": os.cpu_count()},
        "command": f"python tests/faults/trainee.py {kills} {steps} {seed} FOLDER {path}",
        **kill(kills, steps, seed, Path(sys.argv[4]), path),
    }
    print(json.dumps(report, indent=1))
