"""The data and the model of `feldman_2021_table`: Adult, and MNIST through a fixed first layer."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from research.experiments.pictures import idx_folder

HIDDEN = 32
HELD_OUT = 1 / 6  # of the training records, for choosing settings


@dataclass(frozen=True)
class Task:
    """Training and evaluation records, and the name of the network: see `model`."""

    inputs: torch.Tensor
    targets: torch.Tensor
    test_inputs: torch.Tensor
    test_targets: torch.Tensor
    network: str

    @property
    def size(self) -> int:
        return len(self.targets)

    def held_out(self) -> Task:
        """Return the same task with part of its training records in the place of the test ones."""
        order = torch.from_numpy(np.random.default_rng(7).permutation(self.size))
        cut = round(self.size * HELD_OUT)
        test, train = order[:cut], order[cut:]
        return Task(
            self.inputs[train],
            self.targets[train],
            self.inputs[test],
            self.targets[test],
            self.network,
        )

    def model(self, seed: int) -> nn.Module:
        """Return a fresh network; a regression and every last layer start from zero."""
        width = {"regression": self.inputs.shape[1], "hidden": HIDDEN}
        last = nn.Linear(width[self.network], int(self.targets.max()) + 1)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        if self.network == "regression":
            return last
        first = nn.Linear(self.inputs.shape[1], HIDDEN)
        nn.init.normal_(first.weight, generator=torch.Generator().manual_seed(seed))
        nn.init.zeros_(first.bias)
        return nn.Sequential(first, nn.Tanh(), last)

    @torch.no_grad()
    def accuracy(self, model: nn.Module) -> float:
        """Return the share of evaluation records put in the right class, in per cent."""
        right = model(self.test_inputs).argmax(1) == self.test_targets
        return 100 * float(right.double().mean())


def adult() -> Task:
    """Adult by its packaged schema, records scaled to norm 1 at most; softmax regression."""
    frame, schema = load("adult"), packaged_schema("adult")
    columns = schema.features(but={"income", "split"})
    inputs = torch.from_numpy(encode(frame, columns).features.astype(np.float32))
    labels = torch.tensor(encode_labels(frame, "income", schema.classes("income")))
    train = torch.tensor((frame["split"] == "train").to_numpy())
    inputs = inputs / inputs.norm(dim=1).clamp_min(1.0)[:, None]
    return Task(inputs[train], labels[train], inputs[~train], labels[~train], "regression")


def mnist(data: Path) -> Task:
    """MNIST, all 60,000 records, through `fixed_layer`; one hidden layer of tanh."""
    parts = (through(data / "mnist", split) for split in ("train", "test"))
    return Task(*(each for part in parts for each in part), "hidden")


@functools.lru_cache(maxsize=2)
def through(folder: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images of a folder of MNIST's kind through `fixed_layer`, and their labels."""
    images = idx_folder(folder, split)
    return fixed_layer(torch.from_numpy(images.scaled())), torch.from_numpy(images.labels)


def with_one(x: torch.Tensor) -> torch.Tensor:
    """Return rows with a one at the end, so that the bias is a weight."""
    return torch.cat([x, torch.ones(len(x), 1)], dim=1)


def fixed_layer(pixels: torch.Tensor) -> torch.Tensor:
    """Return sixteen oriented filters, rectified, pooled to 4×4, centred, at norm 1: (n, 256).

    No number in it comes from the data.
    """
    angles = torch.arange(8) * torch.pi / 8
    grid = torch.arange(-3, 4).float()
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    along = x * torch.cos(angles)[:, None, None] + y * torch.sin(angles)[:, None, None]
    kernels = along * torch.exp(-(x**2 + y**2) / 4.5)
    kernels = (kernels / kernels.flatten(1).norm(dim=1)[:, None, None])[:, None]
    outputs = []
    for part in pixels.split(5000):
        response = nn.functional.conv2d(part, torch.cat([kernels, -kernels]), padding=3)
        pooled = nn.functional.avg_pool2d(response.clamp_min(0), 7)
        centred = (pooled - pooled.mean(dim=1, keepdim=True)).flatten(1)
        outputs.append(centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-6))
    return torch.cat(outputs)
