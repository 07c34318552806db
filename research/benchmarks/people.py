"""Time of clipping by person beside clipping the same rows as records, interleaved.

Rows of one person stand side by side, as the trainer hands them over. Ragged persons have 1 to 500
rows, most of them few. Medians over rounds, and the median of the ratios in one round.

python -m research.benchmarks.people --out research/results/people.json     # 2 minutes
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from apiece.training import clip_and_sum

COUNTS = {"1": 1, "4": 4, "16": 16, "64": 64, "ragged": 0}


def mlp() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a network for a table, and 512 rows."""
    layers = nn.Linear(100, 64), nn.ReLU(), nn.Linear(64, 2)
    return nn.Sequential(*layers), torch.randn(512, 100), torch.randint(0, 2, (512,))


def cnn() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the network that is usual for MNIST, and 512 images."""
    network = nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, 3), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
        nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
    )  # fmt: skip
    return network, torch.randn(512, 1, 28, 28), torch.randint(0, 10, (512,))


class Words(nn.Module):
    """A small network over texts of 32 words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden = nn.Embedding(2000, 32), nn.Linear(32, 64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.words(x))).mean(1))


def text() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return it, and 512 texts."""
    return Words(), torch.randint(0, 2000, (512, 32)), torch.randint(0, 4, (512,))


MODELS = {"mlp": mlp, "mnist-cnn": cnn, "text": text}


def persons(rows: int, each: int, seed: int = 0) -> np.ndarray:
    """Return the person of each row: `each` rows a person, or ragged ones for 0."""
    if each:
        return np.arange(rows) // each
    sizes: list[int] = []
    random = np.random.default_rng(seed)
    while sum(sizes) < rows:
        sizes.append(int(min(500, np.ceil(random.lognormal(1.0, 1.2)))))
    return np.repeat(np.arange(len(sizes)), sizes)[:rows]


def compare(name: str, each: int, rounds: int) -> dict[str, float]:
    """Return milliseconds by row and by person, and their ratio."""
    torch.manual_seed(0)
    model, inputs, targets = MODELS[name]()
    loss, people = nn.CrossEntropyLoss(reduction="none"), persons(len(inputs), each)
    took: list[tuple[float, float]] = []
    for number in range(rounds + 4):
        turn = []
        for whose in (None, people):
            begun = time.perf_counter()
            clip_and_sum(model, loss, inputs, targets, 1.0, people=whose)
            turn.append(time.perf_counter() - begun)
        if number >= 4:  # looks come first, and the memory
            took.append((turn[0], turn[1]))
    rows, by_person = zip(*took, strict=True)
    return {
        "persons": int(people[-1]) + 1,
        "rows_ms": round(statistics.median(rows) * 1e3, 3),
        "persons_ms": round(statistics.median(by_person) * 1e3, 3),
        "ratio": round(statistics.median(b / a for a, b in took), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(row.split(":")[1].strip() for row in lines if row.startswith("model name"))
    machine = {"cpu": cpu, "threads": 1, "python": platform.python_version()}
    results = {
        "machine": machine | {"torch": torch.__version__},
        "rows": 512,
        "rows a person": {
            name: {label: compare(name, each, options.rounds) for label, each in COUNTS.items()}
            for name in MODELS
        },
    }
    print(json.dumps(results, indent=1))
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
