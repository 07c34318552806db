"""Boenisch et al. 2023, Table 2 on MNIST at its own settings: Uniform, Sample and Scale.

n = 60,000, B = 512, 9375 steps, clip norm .2, learning rate .6, δ = 1e-5, budgets 1/2/3 at 34/43/23
%, shuffled over the records; the CNN of Tramèr and Boneh; pixels in [0, 1]. One run's seed fixes
its budgets' order, first parameters, batches and noise. Accuracy is of the parameters after the
last step, on the test part.

A run that was stopped goes on from its last checkpoint; finished runs are not made again.

    APIECE_DATA=… python boenisch_2023_table2.py --seeds 3 --folder DIR --out table2.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.assignment import Sample, Scale, Uniform, assign
from apiece.budgets.populations import three_groups
from apiece.datasets.idx import idx_folder
from apiece.plan import Plan
from apiece.training import Trainer

SETTING = {"steps": 9375, "expected_batch_size": 512, "clip_norm": 0.2}
RATE, DELTA = 0.6, 1e-5
STRATEGIES = {"uniform": Uniform("strictest"), "sample": Sample(), "scale": Scale()}
PUBLISHED = {"uniform": [96.75, 0.15], "sample": [97.81, 0.09], "scale": [97.78, 0.08]}
Split = tuple[torch.Tensor, torch.Tensor]


def network() -> nn.Module:
    """The CNN of Tramèr and Boneh for MNIST (Boenisch et al. 2023 §4)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(32 * 4 * 4, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip


def mnist(split: str) -> Split:
    images = idx_folder(Path(os.environ.get("APIECE_DATA", "../shared/data")) / "mnist", split)
    return torch.from_numpy(images.scaled()), torch.from_numpy(images.labels)


def plan_of(records: int, strategy: str, method: str, seed: int) -> Plan:
    shuffle = np.random.default_rng(seed)
    budgets = three_groups(records, DELTA, generator=shuffle)
    return assign(budgets, STRATEGIES[strategy], method=method, **SETTING)  # type: ignore[arg-type]


def accuracy(model: nn.Module, split: Split) -> float:
    with torch.no_grad():
        guesses = torch.cat([model(part).argmax(1) for part in split[0].split(1000)])
    return 100 * float((guesses == split[1]).double().mean())


def run(name: str, folder: Path, train: Split, test: Split) -> dict[str, Any]:
    """Train one model, or the rest of it, and return its record."""
    strategy, method, seed = name.split("-")
    plan = plan_of(len(train[1]), strategy, method, int(seed))
    torch.manual_seed(int(seed))
    model = network().to(memory_format=torch.channels_last)  # twice as fast in max-pooling
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loss = nn.CrossEntropyLoss(reduction="none")
    if (folder / name).exists():
        trainer = Trainer.resume(folder / name, model, optimizer, loss, plan, train, save_every=500)
    else:
        trainer = Trainer(
            model, optimizer, loss, plan, train, seed=int(seed),
            checkpoint=folder / name, save_every=500,
        )  # fmt: skip
    trainer.fit()
    stage = plan.stages[0]
    return {
        "strategy": strategy, "method": method, "seed": int(seed),
        "accuracy_percent": accuracy(model, test),
        "noise_stddev": stage.noise_stddev,
        "sampling_probability": stage.sampling_probability.tolist(),
        "clip_norm": stage.clip_norm.tolist(),
    }  # fmt: skip


def summary(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for method in ("rdp", "pld"):
        for strategy in STRATEGIES:
            of = [r for r in runs.values() if (r["strategy"], r["method"]) == (strategy, method)]
            found = [r["accuracy_percent"] for r in of]
            if found:
                rows.append({
                    "strategy": strategy, "method": method, "seeds": len(found),
                    "mean": statistics.mean(found),
                    "stddev": statistics.stdev(found) if len(found) > 1 else None,
                    "published": PUBLISHED[strategy],
                })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folder", type=Path, required=True, help="checkpoints of unfinished runs")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = json.loads(options.out.read_text())["runs"] if options.out.exists() else {}
    train, test = mnist("train"), mnist("test")
    names = [
        f"{s}-{m}-{k}" for k in range(options.seeds) for m in ("rdp", "pld") for s in STRATEGIES
    ]
    for name in names:
        if name in runs:
            continue
        begun = time.time()
        runs[name] = run(name, options.folder, train, test)
        print(
            name, round(runs[name]["accuracy_percent"], 2), round(time.time() - begun), flush=True
        )
        result = {
            "experiment": "Boenisch et al. 2023 Table 2, MNIST",
            "setting": SETTING | {"rate": RATE, "delta": DELTA},
            "machine": {"cpu": platform.machine(), "torch": torch.__version__},
            "summary": summary(runs), "runs": runs,
        }  # fmt: skip
        partial = options.out.with_suffix(".partial")
        partial.write_text(json.dumps(result, indent=2) + "\n")
        partial.replace(options.out)


if __name__ == "__main__":
    main()
