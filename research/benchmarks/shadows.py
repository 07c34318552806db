"""Shadow models as one computation against one by one: model-steps per second.

The MLP of Kaiser et al. 2026 (59, 128, 64, 2), Poisson batches of 32 from 1,000 records, DP-SGD
with AdamW. One by one is apiece's own Trainer, and Opacus where it is installed. All are timed in
turn, several times over, on one thread and with one process a core (each on one thread); medians
and their ratios. One model alone takes as many steps as all in the stack together. Kaiser et al.
2026's Fig. 6 in full is extrapolated: 256,000 models of 56,250 steps (30,000 records, 60 epochs).

    python -m research.benchmarks.shadows --out research/results/shadows.json
    python -m research.benchmarks.shadows --device cuda --models 4096 --out shadows_gpu.json
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.audit.stacked_training import UpdateRule, train
from apiece.budgets import Budgets
from apiece.plan import BoundPlan, Plan
from apiece.plan.parts import Stage
from apiece.training import Trainer
from apiece.training.stacked import StackedMlp
from research.machine import describe_machine

RECORDS, FEATURES, BATCH = 1000, 59, 32
FIG6_MODELS, FIG6_STEPS = 256_000, 30_000 * 60 // BATCH


def wait(device: str) -> None:
    """Wait for what the device still has to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def made_plan(steps: int) -> BoundPlan:
    """Return the plan of one budget group that every contender trains under."""
    budgets = Budgets(np.full(RECORDS, 8.0), 1e-5)
    stage = Stage(steps, float(BATCH), 1.0, np.array([BATCH / RECORDS]), np.array([1.0]))
    return Plan("benchmark", 1.0, budgets.groups, (stage,)).bind(budgets)


def made_data(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(RECORDS, FEATURES, device=device)
    return inputs, torch.randint(0, 2, (RECORDS,), device=device)


def mlp(device: str) -> nn.Module:
    layers = [nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(64, 2)).to(device)


def adamw(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=0.01, weight_decay=5e-4)


def stacked(models: int, steps: int, device: str) -> Callable[[], float]:
    """Return a function that trains `models` for `steps` and gives model-steps per second."""
    plan, data = made_plan(steps), made_data(device)
    model = StackedMlp((FEATURES, 128, 64, 2))

    def once() -> float:
        begun = time.perf_counter()
        train(
            model,
            data,
            plan,
            groups=np.zeros(RECORDS, dtype=np.int64),
            included=np.ones((models, RECORDS), dtype=bool),
            recipe=UpdateRule(),
            seed=0,
        )
        wait(device)
        return models * steps / (time.perf_counter() - begun)

    return once


def one_by_one(steps: int, device: str) -> Callable[[], float]:
    """Return a function that trains one model with Trainer, its capture and proof included."""
    plan, data = made_plan(steps), made_data(device)

    def once() -> float:
        begun, network = time.perf_counter(), mlp(device)
        loss = nn.CrossEntropyLoss(reduction="none")
        Trainer(network, adamw(network), loss, plan, data, seed=0).fit()
        wait(device)
        return steps / (time.perf_counter() - begun)

    return once


def opacus(steps: int, device: str) -> Callable[[], float] | None:
    """Return a function that trains one model with Opacus, or None where it is not installed."""
    try:
        from opacus import PrivacyEngine
    except ImportError:
        return None
    from torch.utils.data import DataLoader, TensorDataset

    data = TensorDataset(*made_data(device))

    def once() -> float:
        network = mlp(device)
        optimizer = adamw(network)
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


WHO = ("stacked", "one by one", "opacus")


def contender(who: str, models: int, steps: int, device: str) -> Callable[[], float] | None:
    if who == "stacked":
        return stacked(models, steps, device)
    return (opacus if who == "opacus" else one_by_one)(models * steps, device)


def alone(job: tuple[str, int, int, int]) -> list[float]:
    """Return a contender's rates, made in this process on one thread; none where it is not here."""
    who, models, steps, repeats = job
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    run = contender(who, models, steps, "cpu")
    if run is None:
        return []
    run()  # once, untimed
    return [run() for _ in range(repeats)]


def on_all_cores(models: int, steps: int, repeats: int) -> dict[str, float]:
    """Return the rates of all cores together, a process of one thread on each."""
    cores, found = os.cpu_count() or 1, {}
    with ProcessPoolExecutor(cores, mp_context=get_context("spawn")) as pool:
        for who in WHO:
            each = list(pool.map(alone, [(who, models, steps, repeats)] * cores))
            if each[0]:
                found[who] = sum(map(statistics.median, each))
    return found


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
    made = {w: contender(w, options.models, options.steps, options.device) for w in WHO}
    runs = {who: run for who, run in made.items() if run is not None}
    for run in runs.values():  # once each, untimed
        run()
    rates: dict[str, list[float]] = {who: [] for who in runs}
    for _ in range(options.repeats):
        for who, run in runs.items():
            rates[who].append(run())
    medians = {name: statistics.median(r) for name, r in rates.items()}
    found: dict[str, Any] = {
        "machine": describe_machine(),
        "device": torch.cuda.get_device_name() if options.device == "cuda" else "cpu",
        "models_stacked": options.models,
        "steps": options.steps,
        "model_steps_per_second": medians,
        "all_rates": rates,
        "fig6_model_steps": FIG6_MODELS * FIG6_STEPS,
        "fig6_hours_extrapolated": FIG6_MODELS * FIG6_STEPS / medians["stacked"] / 3600,
        "ratio": {w: medians["stacked"] / m for w, m in medians.items() if w != "stacked"},
    }
    if options.device == "cpu":
        found["all_cores"] = on_all_cores(options.models, options.steps, options.repeats)
    text = json.dumps(found, indent=1)
    if options.out is None:
        print(text)
    else:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
