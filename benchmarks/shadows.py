"""Shadow models as one computation against one by one with Opacus: model-steps per second.

The MLP of Kaiser et al. 2026 (59, 128, 64, 2), Poisson batches of 32 from 1,000 records, DP-SGD
with AdamW, one thread. Both are timed in turn, several times over; medians and their ratio. Where
Opacus is not installed, the stacked rate alone is reported. Kaiser et al. 2026's Fig. 6 in full is
extrapolated: 256,000 models of 56,250 steps (30,000 records, 60 epochs).

    python benchmarks/shadows.py --out benchmarks/results/shadows.json
    python benchmarks/shadows.py --device cuda --models 4096 --out shadows_gpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apiece.audit.stacked_training import UpdateRule, train
from apiece.budgets import Budgets
from apiece.plan import Plan, Stage
from apiece.training.stacked import StackedMlp

RECORDS, FEATURES, BATCH = 1000, 59, 32
FIG6_MODELS, FIG6_STEPS = 256_000, 30_000 * 60 // BATCH


def wait(device: str) -> None:
    """Wait for what the device still has to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def stacked(models: int, steps: int, device: str) -> Callable[[], float]:
    """Return a function that trains `models` for `steps` and gives model-steps per second."""
    budgets = Budgets(np.full(RECORDS, 8.0), 1e-5).groups
    q = np.array([BATCH / RECORDS])
    stage = Stage(steps, float(BATCH), 1.0, q, np.array([1.0]))
    plan = Plan("benchmark", 1.0, budgets, (stage,), np.array([False]))
    inputs = torch.randn(RECORDS, FEATURES, device=device)
    targets = torch.randint(0, 2, (RECORDS,), device=device)
    model = StackedMlp((FEATURES, 128, 64, 2))

    def once() -> float:
        begun = time.perf_counter()
        train(
            model,
            (inputs, targets),
            plan,
            groups=np.zeros(RECORDS, dtype=np.int64),
            included=np.ones((models, RECORDS), dtype=bool),
            recipe=UpdateRule(),
            seed=0,
        )
        wait(device)
        return models * steps / (time.perf_counter() - begun)

    return once


def opacus(steps: int, device: str) -> Callable[[], float] | None:
    """Return a function that trains one model with Opacus, or None where it is not installed."""
    try:
        from opacus import PrivacyEngine
    except ImportError:
        return None
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(
        torch.randn(RECORDS, FEATURES, device=device),
        torch.randint(0, 2, (RECORDS,), device=device),
    )

    def once() -> float:
        layers = [nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
        network = nn.Sequential(*layers, nn.Linear(64, 2)).to(device)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=5e-4)
        private, optimizer, loader = PrivacyEngine().make_private(
            module=network,
            optimizer=optimizer,
            data_loader=DataLoader(data, batch_size=BATCH),
            noise_multiplier=1.0,
            max_grad_norm=1.0,
        )
        loss, done, begun = nn.CrossEntropyLoss(), 0, time.perf_counter()
        while done < steps:
            for x, y in loader:
                optimizer.zero_grad()
                loss(private(x), y).backward()
                optimizer.step()
                done += 1
                if done == steps:
                    break
        wait(device)
        return steps / (time.perf_counter() - begun)

    return once


def processor() -> str:
    """Return the model name of the processor."""
    for line in Path("/proc/cpuinfo").read_text().split("\n"):
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    ours = stacked(options.models, options.steps, options.device)
    theirs = opacus(options.steps, options.device)
    rates: dict[str, list[float]] = {"stacked": [], "opacus": []}
    ours()  # once each, untimed
    if theirs is not None:
        theirs()
    for _ in range(options.repeats):
        rates["stacked"].append(ours())
        if theirs is not None:
            rates["opacus"].append(theirs())
    medians = {name: statistics.median(r) for name, r in rates.items() if r}
    found: dict[str, Any] = {
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "threads_used": 1,
            "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        },
        "torch": torch.__version__,
        "models_stacked": options.models,
        "steps": options.steps,
        "model_steps_per_second": medians,
        "all_rates": rates,
        "fig6_model_steps": FIG6_MODELS * FIG6_STEPS,
        "fig6_hours_extrapolated": FIG6_MODELS * FIG6_STEPS / medians["stacked"] / 3600,
    }
    if "opacus" in medians:
        found["ratio"] = medians["stacked"] / medians["opacus"]
    text = json.dumps(found, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
