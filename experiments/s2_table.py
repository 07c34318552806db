"""S2's table and S1's Table 3: private gradient descent against individual filtering.

One model, one clip norm, one number of steps a data set. Private GD takes the noise at which all
its steps fit the budget. Filtering takes the noise at which `share` of those steps would fit at
the clip bound, goes on for all of them, and drops people as their own norms use their budgets up;
`share` is chosen on a seed that is not reported. Both add the same number of noises.

    python experiments/s2_table.py adult --seeds 5 --out adult.json
    APIECE_DATA=… python experiments/s2_table.py mnist --seeds 5 --out mnist.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.idx import idx_folder
from apiece.filters import GaussianFilter, RenyiFilter
from apiece.training.filtered import FilteredTrainer

DELTA = 1e-5
EPSILONS = (0.3, 0.5, 1.2)
SETTINGS = {
    "adult": {"steps": 50, "clip_norm": 0.5, "rate": 10.0, "shares": (0.8, 0.9)},
    "mnist": {"steps": 40, "clip_norm": 0.5, "rate": 10.0, "shares": (0.8, 0.9)},
}
Split = tuple[torch.Tensor, torch.Tensor]


def adult() -> tuple[Split, Split, int]:
    frame, schema = load("adult"), packaged_schema("adult")
    columns = schema.features(but={"income", "split"})
    inputs = torch.from_numpy(encode(frame, columns).features.astype(np.float32))
    labels = torch.tensor(encode_labels(frame, "income", schema.classes("income")))
    train = torch.tensor((frame["split"] == "train").to_numpy())
    inputs = inputs / inputs.norm(dim=1).clamp_min(1.0)[:, None]
    return (inputs[train], labels[train]), (inputs[~train], labels[~train]), 2


def mnist() -> tuple[Split, Split, int]:
    folder = Path(os.environ.get("APIECE_DATA", "../shared/data")) / "mnist"
    parts = []
    for split in ("train", "test"):
        images = idx_folder(folder, split)
        pixels = torch.from_numpy(images.scaled()).reshape(-1, 1, 28, 28)
        parts.append((features(pixels), torch.tensor(images.labels)))
    return parts[0], parts[1], 10


def features(pixels: torch.Tensor) -> torch.Tensor:
    """Sixteen fixed oriented filters, rectified and pooled to 7×7: no parameter sees the data."""
    angles = torch.arange(8) * torch.pi / 8
    grid = torch.arange(-3, 4).float()
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    along = x * torch.cos(angles)[:, None, None] + y * torch.sin(angles)[:, None, None]
    kernels = along * torch.exp(-(x**2 + y**2) / 4.5)
    kernels = (kernels / kernels.flatten(1).norm(dim=1)[:, None, None])[:, None]
    outputs = []
    for part in pixels.split(5000):
        response = nn.functional.conv2d(part, torch.cat([kernels, -kernels]), padding=3)
        pooled = nn.functional.avg_pool2d(response.clamp_min(0), 4).flatten(1)
        outputs.append(pooled / pooled.norm(dim=1, keepdim=True).clamp_min(1e-6))
    return torch.cat(outputs)


def loss_fn(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def run(
    data: tuple[Split, Split, int],
    people: Any,
    noise_stddev: float,
    setting: dict[str, Any],
    seed: int,
) -> tuple[float, list[int]]:
    """Return the test accuracy in per cent, and the number of active records at each step."""
    (inputs, targets), (test_inputs, test_targets), classes = data
    torch.manual_seed(seed)
    model = nn.Linear(inputs.shape[1], classes)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    trainer = FilteredTrainer(
        model,
        torch.optim.SGD(model.parameters(), setting["rate"], momentum=0.9),
        loss_fn,
        inputs,
        targets,
        people=people,
        clip_norm=setting["clip_norm"],
        noise_stddev=noise_stddev,
        seed=seed,
        physical_batch_size=10_000,
    )
    active = []
    for _ in range(setting["steps"]):
        trainer.step()
        active.append(int(trainer.active_records().sum()))
    with torch.no_grad():
        right = (model(test_inputs).argmax(1) == test_targets).double().mean()
    return 100 * float(right), active


def cell(
    data: tuple[Split, Split, int],
    setting: dict[str, Any],
    kind: str,
    epsilons: np.ndarray,
    share: float,
    seeds: list[int],
) -> dict[str, Any]:
    """Train once a seed; share 1 is private GD, in which nobody is ever dropped."""
    make = RenyiFilter if kind == "renyi" else GaussianFilter
    accuracies, active = [], []
    for seed in seeds:
        people = make(epsilons, DELTA)
        steps = max(round(setting["steps"] * share), 1)
        stddev = float(people.noise_stddev(setting["clip_norm"], steps).max())
        accuracy, active = run(data, people, stddev, setting, seed)
        accuracies.append(accuracy)
    return {
        "filter": kind,
        "share": share,
        "noise_stddev": stddev,
        "accuracy": round(float(np.mean(accuracies)), 3),
        "stddev": round(float(np.std(accuracies, ddof=1)), 3) if len(seeds) > 1 else None,
        "accuracies": [round(a, 3) for a in accuracies],
        "active_at_the_end": active[-1] / len(epsilons),
    }


def row(
    data: tuple[Split, Split, int], setting: dict[str, Any], name: str, epsilons: np.ndarray,
    seeds: list[int],
) -> list[dict[str, Any]]:  # fmt: skip
    found = []
    for kind in setting["filters"]:
        strict = np.full_like(epsilons, epsilons.min())
        for method, budgets in (("private GD", strict), ("filtering", epsilons)):
            shares = (1.0,) if method == "private GD" else setting["shares"]
            if len(shares) > 1:
                tried = [cell(data, setting, kind, budgets, s, [1000]) for s in shares]
                shares = (max(tried, key=lambda c: c["accuracy"])["share"],)
            result = cell(data, setting, kind, budgets, shares[0], seeds)
            found.append({"epsilon": name, "method": method, **result})
            print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=sorted(SETTINGS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("steps", "clip_norm", "rate"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float)
    parser.add_argument("--epsilons", type=float, nargs="*", default=EPSILONS)
    parser.add_argument("--filters", nargs="*", default=["renyi", "gaussian"])
    options = parser.parse_args()
    setting = {**SETTINGS[options.data], "filters": options.filters}
    for name in ("steps", "clip_norm", "rate"):
        if getattr(options, name) is not None:
            setting[name] = type(setting[name])(getattr(options, name))
    seeds = list(range(options.seeds))
    data = adult() if options.data == "adult" else mnist()
    size = len(data[0][1])
    start = time.perf_counter()
    rows = []
    for epsilon in options.epsilons:
        rows += row(data, setting, f"{epsilon:g}", np.full(size, epsilon), seeds)
    half = np.where(np.arange(size) < size // 2, 0.30, 0.31)
    rows += row(data, setting, "0.30/0.31", half, seeds)
    document = {
        "data": options.data,
        "records": size,
        "model": "softmax regression" + (" on fixed filters" if options.data == "mnist" else ""),
        "delta": DELTA,
        "setting": {**setting, "optimizer": "SGD, momentum 0.9, full batch"},
        "seeds": len(seeds),
        "seconds": round(time.perf_counter() - start, 1),
        "rows": rows,
    }
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
