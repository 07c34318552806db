"""Partial sensitivities: how long they take, beside what one would write without apiece.

    python -m research.benchmarks.sensitivity --out research/results/sensitivity.json

Every figure is the median of interleaved repetitions. The alternatives compute the same numbers:
for queries, double backward through the function in torch; for models, `torch.func` mapped over
records, and a loop of double backward passes, record by record.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from apiece.sensitivity import Expression, ModelLoss, partial_sensitivity
from apiece.sensitivity.neural import by_torch_func

RECORDS = 1_000_000
QUERY = Expression("a**2 + exp(2*b - a)", {"a": (1, 2), "b": (0.5, 3)})


def machine() -> dict[str, Any]:
    """Return the processor's model and the number of cores."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": os.cpu_count()}


def medians(tasks: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, dict[str, float]]:
    """Return each task's median seconds by the clock and of processor time.

    One warm-up, then one after another in turn. Processor time is what remains comparable where
    other work shares the machine.
    """
    for task in tasks.values():
        task()
    clock: dict[str, list[float]] = {name: [] for name in tasks}
    processor: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repetitions):
        for name, task in tasks.items():
            start, started = time.perf_counter(), time.process_time()
            task()
            clock[name].append(time.perf_counter() - start)
            processor[name].append(time.process_time() - started)
    return {
        name: {"clock": statistics.median(clock[name]), "cpu": statistics.median(processor[name])}
        for name in tasks
    }


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    return cross_entropy(outputs, targets, reduction="none")


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "cnn_784": nn.Sequential(
            *(nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1)),
            *(nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10)),
        ),
        "mlp_784_256": nn.Sequential(
            nn.Flatten(), nn.Linear(784, 256), nn.Tanh(), nn.Linear(256, 10)
        ),
    }


def loop(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One double backward pass a record."""
    parameters = list(model.parameters())
    for i in range(len(x)):
        one = x[i : i + 1].clone().requires_grad_()
        loss = losses(model(one), y[i : i + 1]).sum()
        gradients = torch.autograd.grad(loss, parameters, create_graph=True)
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        torch.autograd.grad(norm, one)


def of_models(repetitions: int) -> dict[str, Any]:
    """Return records a second, by the clock and of processor time, and how many times the
    alternatives' that is."""
    x, y = torch.randn(1024, 1, 28, 28), torch.randint(0, 10, (1024,))
    rates: dict[str, Any] = {}
    for name, model in networks().items():
        function = ModelLoss(model, losses)
        few = 1024 if name.startswith("cnn") else 128  # per-sample weights fill the memory

        def mapped(model: nn.Module = model, few: int = few) -> None:
            for start in range(0, few, 128):
                by_torch_func(model, losses, x[start : start + 128][:few], y[start : start + 128])

        seconds = medians(
            {
                "apiece": lambda function=function: partial_sensitivity(function, x, y),
                "torch_func": mapped,
                "loop": lambda model=model: loop(model, x[:32], y[:32]),
            },
            repetitions,
        )
        counts = {"apiece": len(x), "torch_func": few, "loop": 32}
        rates[name] = {
            by: {n: counts[n] / seconds[n][by] for n in counts} for by in ("clock", "cpu")
        }
        cpu = rates[name]["cpu"]
        rates[name]["times_torch_func"] = cpu["apiece"] / cpu["torch_func"]
        rates[name]["times_loop"] = cpu["apiece"] / cpu["loop"]
    return rates


def of_queries(repetitions: int) -> dict[str, Any]:
    """Return seconds for a million records, and for the certified bounds."""
    records = QUERY.design(RECORDS)

    def by_torch() -> None:
        x = torch.from_numpy(records).clone().requires_grad_()
        value = x[:, 0] ** 2 + torch.exp(2 * x[:, 1] - x[:, 0])
        (gradient,) = torch.autograd.grad(value.sum(), x, create_graph=True)
        torch.autograd.grad(gradient.norm(dim=1).sum(), x)

    seconds = medians(
        {"apiece": lambda: partial_sensitivity(QUERY, records), "torch": by_torch}, repetitions
    )
    bound = medians({"lipschitz_constant": QUERY.lipschitz_constant}, repetitions)
    found = QUERY.lipschitz_constant()
    return {
        "records": RECORDS,
        "seconds": seconds,
        "times_torch": seconds["torch"]["cpu"] / seconds["apiece"]["cpu"],
        "certified_bound": {
            "seconds": bound["lipschitz_constant"],
            "value": found.value,
            "upper": found.bounds.upper,
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="torch's; apiece sets none itself")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    result = {
        "machine": machine(),
        "threads": torch.get_num_threads(),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "query": of_queries(arguments.repetitions),
        "models": of_models(arguments.repetitions),
    }
    text = json.dumps(result, indent=2) + "\n"
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
