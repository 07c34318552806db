"""What each part of a small private step costs: the MLP of training.py under `Trainer`.

Parts are timed by the processor inside the same steps, a part at a time in turn, so that one is not
charged with the clock of another; beside them the plain step on the same batches.

    python -m research.benchmarks.step_parts --out research/results/step_parts.json     # a minute
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from research.benchmarks import training

training.bind(1)

import numpy as np  # noqa: E402
import torch  # noqa: E402

from apiece import Budgets, Sample, assign  # noqa: E402
from apiece.training import Trainer, clip_and_sum, loop, sums  # noqa: E402
from research.benchmarks.training_contenders import LOSS, mlp, plain  # noqa: E402

STEPS, WARM, ROWS, BATCH = 120, 20, 20_000, 512
PARTS = ("draw", "fetch", "clip and sum", "noise", "update", "whole step")


def trainer(steps: int) -> Trainer:
    torch.manual_seed(0)
    x, y = torch.randn(ROWS, 59), torch.randint(0, 2, (ROWS,))
    budgets = Budgets([1.0] * (ROWS // 2) + [3.0] * (ROWS // 2), 1e-5)
    plan = assign(budgets, Sample(), steps=steps, expected_batch_size=BATCH, clip_norm=1.0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Trainer(model, optimizer, LOSS, plan, (x, y), seed=None)


def timed(function: Callable[..., Any], took: list[float]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        begun = time.process_time()
        found = function(*args, **kwargs)
        took.append(time.process_time() - begun)
        return found

    return call


def places(run: Trainer) -> dict[str, tuple[Any, str]]:
    """Return where each part is called from."""
    held = run._loop
    return {
        "draw": (held.sampler, "draw"),
        "fetch": (type(held.sums.source), "fetch"),
        "clip and sum": (sums, "clip_and_sum"),
        "noise": (loop, "noisy_mean"),
        "update": (held.updates, "apply"),
        "whole step": (run, "step"),
    }


def parts() -> dict[str, float]:
    """Return the milliseconds of each part, the median over steps."""
    run = trainer(WARM + STEPS * len(PARTS))
    run.fit(WARM)
    took: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(STEPS):
        for part in PARTS:
            place, name = places(run)[part]
            with mock.patch.object(place, name, timed(getattr(place, name), took[part])):
                run.step()
    return {part: round(statistics.median(some) * 1e3, 3) for part, some in took.items()}


def plain_step() -> float:
    x, y = torch.randn(BATCH, 59), torch.randint(0, 2, (BATCH,))
    step, took = plain(mlp, x, y), list[float]()
    for _ in range(STEPS):
        timed(step, took)()
    return round(statistics.median(took) * 1e3, 3)


def summed(compiled: bool) -> float:
    x, y = torch.randn(BATCH, 59), torch.randint(0, 2, (BATCH,))
    model, took = mlp(), list[float]()
    bounds = torch.from_numpy(np.linspace(0.1, 2, BATCH))
    for _ in range(STEPS):
        timed(clip_and_sum, took)(model, LOSS, x, y, bounds, compiled=compiled)
    return round(statistics.median(took) * 1e3, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [
        {
            "plain step": plain_step(),
            **parts(),
            "clip and sum, compiled": summed(compiled=True),
        }
        for _ in range(options.rounds)
    ]
    found = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
    results = {"machine": training.machine(), "milliseconds": found}
    text = json.dumps(results, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
