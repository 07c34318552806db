"""Time of one clipped sum beside a plain step, on networks that people train, and how it is made.

Both take turns; medians over rounds of processor time, and the median of the ratios. The sum is
held to a loop over records in double precision. Needs torchvision, timm, transformers and peft;
networks whose library is missing are left out, and the result says so.

python benchmarks/networks.py --out benchmarks/results/networks.json     # 10 minutes
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import platform
import statistics
import time
import warnings
from collections import Counter
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from network_models import NETWORKS, torchvision
from torch import nn

from apiece.training import clip_and_sum
from apiece.training.clipping.selection import paths_of

WARM = 6  # looks at whether records keep apart come in the first steps


def losses(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    """Return cross-entropy, a token's or a record's, one a record."""
    scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
    if scores.dim() == 2:
        return nn.functional.cross_entropy(scores, targets, reduction="none")
    each = nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def run(model: nn.Module, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


def rows(inputs: Any, where: slice) -> Any:
    if isinstance(inputs, dict):
        return {name: value[where] for name, value in inputs.items()}
    return inputs[where]


def distance(model: nn.Module, inputs: Any, targets: torch.Tensor) -> float:
    """Return how far the sum over four records is from a loop in double precision, relatively."""
    model = copy.deepcopy(model)
    for module in model.modules():
        for name in ("p", "dropout", "drop_prob"):  # of dropout, and of torchvision's random depth
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    some = rows(inputs, slice(4))
    found = clip_and_sum(model, losses, some, targets[:4], 1.0).gradients
    double = copy.deepcopy(model).double()
    tensors = [p for p in double.parameters() if p.requires_grad]
    total = [torch.zeros_like(p) for p in tensors]
    for k in range(4):
        one = rows(inputs, slice(k, k + 1))
        one = one.double() if isinstance(one, torch.Tensor) else one
        loss = losses(run(double, one), targets[k : k + 1]).sum()
        each = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
        norm = torch.stack([g.square().sum() for g in each]).sum().sqrt()
        for t, g in zip(total, each, strict=True):
            t += g * min(1.0, 1.0 / float(norm))
    pairs = zip(found.values(), total, strict=True)
    error = torch.stack([(a.double() - b).square().sum() for a, b in pairs]).sum().sqrt()
    return float(error / torch.stack([t.square().sum() for t in total]).sum().sqrt())


def measure(name: str, rounds: int) -> dict[str, Any]:
    """Return the figures of one network."""
    torch.manual_seed(0)
    model, inputs, targets = NETWORKS[name]()

    def plain() -> None:
        model.zero_grad()
        losses(run(model, inputs), targets).mean().backward()

    def ours() -> None:
        clip_and_sum(model, losses, inputs, targets, 1.0)

    begun = time.process_time()
    ours()
    first = time.process_time() - begun
    for _ in range(WARM):
        ours()
    took: list[tuple[float, float]] = []
    for _ in range(rounds):
        turn = []
        for step in (plain, ours):
            begun = time.process_time()
            step()
            turn.append(time.process_time() - begun)
        took.append((turn[0], turn[1]))
    parts = paths_of(model)
    return {
        "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
        "records": len(targets),
        "plain_ms": round(statistics.median(a for a, _ in took) * 1e3, 2),
        "apiece_ms": round(statistics.median(b for _, b in took) * 1e3, 2),
        "ratio": round(statistics.median(b / a for a, b in took), 3),
        "first_step_s": round(first, 2),
        "parts": dict(Counter(part.path for part in parts)),
        "by torch.func": sorted({p.kind for p in parts if p.path == "functional"}),
        "error against float64": float(f"{distance(model, inputs, targets):.1e}"),
    }


def versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "torchvision", "timm", "transformers", "peft"):
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="some networks only")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    with contextlib.suppress(ImportError):
        torchvision()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(row.split(":")[1].strip() for row in lines if row.startswith("model name"))
    results: dict[str, Any] = {}
    missing: list[str] = []
    for name in options.names or NETWORKS:
        try:
            results[name] = measure(name, options.rounds)
            print(name, json.dumps(results[name]), flush=True)
        except ImportError as error:
            missing.append(f"{name}: {error.name}")
    found = {
        "machine": {"cpu": cpu, "threads": 1, "python": platform.python_version()} | versions(),
        "networks": results,
        "not here": missing,
    }
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
