"""What correlated noise costs a step, and what it remembers, beside independent noise.

A step of a network of a million parameters by `Trainer`, under plans of the same fixed batches that
differ in their noise alone: independent (one band), a few bands, four buffers. Steps of the kinds
take turns, so that a busy machine slows all alike; the figure is the median ratio to independent
noise. Memory is what the recurrence holds, in bytes a parameter.

    python -m research.benchmarks.recurrence --out research/results/recurrence.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from apiece import Budgets, Trainer, assign
from apiece.assignment import Correlated
from research.machine import describe_machine

KINDS = {
    "independent": Correlated(bands=1),
    "4 bands": Correlated(bands=4),
    "16 bands": Correlated(bands=16),
    "4 buffers": Correlated(buffers=4),
}
RECORDS, STEPS, BATCH, WARM = 2000, 200, 100, 3


def make_trainer(noise: Correlated) -> Trainer:
    """Return a trainer of a network of a million parameters."""
    torch.manual_seed(0)
    budgets = Budgets([1.0] * 1000 + [4.0] * 1000, 1e-5)
    plan = assign(
        budgets, "scale", steps=STEPS, expected_batch_size=BATCH, clip_norm=1.0, noise=noise
    )
    model = nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 200))
    data = torch.randn(RECORDS, 784), torch.randint(0, 200, (RECORDS,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, optimizer, nn.CrossEntropyLoss(reduction="none"), plan, data, seed=None)


def measure(rounds: int) -> dict[str, Any]:
    """Return ratios of a step's time, and the memory of each kind."""
    trainers = {name: make_trainer(noise) for name, noise in KINDS.items()}
    for trainer in trainers.values():
        trainer.fit(WARM)
    seconds: dict[str, list[float]] = {name: [] for name in KINDS}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            start = time.perf_counter()
            trainer.step()
            seconds[name].append(time.perf_counter() - start)
    found: dict[str, Any] = {}
    parameters = sum(p.numel() for p in trainers["independent"].model.parameters())
    for name, trainer in trainers.items():
        pairs = zip(seconds[name], seconds["independent"], strict=True)
        stage = trainer.plan.stages[0]
        assert stage.correlated is not None
        memory = stage.correlated.strategy.memory
        recurrence = trainer._loop.correlated._recurrence  # type: ignore[union-attr]
        held = 0
        if recurrence is not None and recurrence._memory is not None:
            held = recurrence._memory.numel() * recurrence._memory.element_size()
        found[name] = {
            "ratio": round(statistics.median(own / plain for own, plain in pairs), 3),
            "milliseconds": round(1000 * statistics.median(seconds[name]), 1),
            "copies": memory,
            "bytes a parameter": held / parameters,
        }
    return {"parameters": parameters, "batch": BATCH, "kinds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    document = measure(arguments.rounds) | {"machine": describe_machine()}
    arguments.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
