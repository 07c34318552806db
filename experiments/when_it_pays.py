"""When do individual budgets pay? Sample and Scale against one budget for all, tuned alike.

A cell is a data set, a number of training records, a model and two budgets: a share of the records
asks the strict ε, the others the loose one, at random. Each strategy is tuned by itself: the same 36
settings (18 step sizes and clip norms, 2 numbers of steps), each tried on the same two splits into
four fifths of the training records and the held-out fifth. The settings with the best mean accuracy
there train on all training records, with five seeds that fix the shuffle of budgets, the batches
and the noise and are shared by all strategies. The test part is read once, by these models.

"One budget for all" is Uniform at the strict ε, or Threshold, which leaves the strict out and trains
at the loose ε, whichever did better on the held-out records. The individual strategy is named
before anything is trained: Sample.

    python experiments/when_it_pays.py     # from the stored results: the plot, and the predictor
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from feldman_2021_data import fixed_layer
from pictures import Images, cifar_parquet, idx_folder
from torch.nn.functional import one_hot

from apiece.assignment import Sample, Scale, Threshold, Uniform, assign
from apiece.assignment.front import noise_over_signal
from apiece.budgets import Budgets
from apiece.datasets import PACKAGED, Numeric, load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.plan import BoundPlan
from apiece.recipes import soft_bins
from apiece.reproduce import Done, Experiment, Place, Table, Unit, signed

DELTA, CHANCE, SEEDS, SPLITS, HIDDEN, BINS = 1e-5, 1 / 16, 5, 2, 32, 8
RATES = tuple(2.0**power for power in range(-2, 7))  # a step's length where all records clip
SETTINGS = tuple(itertools.product(RATES, (0.2, 1.0)))  # with the mean clip norm
STEPS = (64, 256)
SIZES = (1000, 4000, 16000)
SHARES = (0.5, 0.1, 0.9)
BUDGETS = ((0.25, 0.5), (0.25, 2.0), (1.0, 2.0), (1.0, 8.0))
TABLES = ("adult", "credit_default", "german")
PICTURES = ("mnist", "fashion-mnist", "cifar10-jpeg")
SMALL = {"german": 750, "digits": 1347}  # training records there are
STRATEGIES = {"uniform": Uniform("strictest"), "sample": Sample(), "scale": Scale()}
Rows = tuple[torch.Tensor, torch.Tensor]


def rows_of(data: Path, name: str) -> tuple[Rows, Rows]:
    """Return training and test records: features at norm 1 and a one for the bias, and labels."""
    pick = np.random.default_rng(8)
    if name in PICTURES:
        parts = []
        for split, most in (("train", max(SIZES)), ("test", 10**4)):
            if name == "cifar10-jpeg":
                there = cifar_parquet(data / name / f"{split}.parquet")
            else:
                there = idx_folder(data / name, split)
            chosen = pick.permutation(len(there))[:most]
            few = Images(there.pixels[chosen], there.labels[chosen])
            grey = torch.from_numpy(few.scaled()).mean(dim=1, keepdim=True)
            parts.append((with_one(fixed_layer(grey)), torch.from_numpy(few.labels)))
        return parts[0], parts[1]
    if name == "digits":
        from sklearn.datasets import load_digits

        bunch = load_digits()
        x, y = torch.from_numpy(bunch.data).float(), torch.from_numpy(bunch.target)
        held = pick.random(len(y)) < 0.25
    else:
        x, y, held = table(name, pick)
    x = with_one(x / x.norm(dim=1, keepdim=True).clamp_min(1e-6))
    order = torch.from_numpy(pick.permutation(len(y)))
    train, test = order[~held[order]], order[held[order]]
    return (x[train], y[train]), (x[test], y[test])


def table(name: str, pick: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Return a packaged table by its schema, numbers in soft bins, and which rows are the test."""
    frame, schema, label = load(name), packaged_schema(name), PACKAGED[name].label
    parts = []
    for column, kind in schema.features(but={label, "split"}).items():
        values = torch.from_numpy(encode(frame, {column: kind}).features.astype(np.float32))
        parts.append(soft_bins(values, BINS) if isinstance(kind, Numeric) else values)
    labels = torch.from_numpy(encode_labels(frame, label, schema.classes(label)))
    if "split" in frame:
        return torch.cat(parts, dim=1), labels, (frame["split"] == "test").to_numpy()
    return torch.cat(parts, dim=1), labels, pick.random(len(frame)) < 0.25


def with_one(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], dim=1)


records = functools.lru_cache(maxsize=8)(rows_of)


@functools.lru_cache(maxsize=64)
def plan_of(name: str, strict: int, loose: int, pair: tuple[float, float], steps: int) -> Any:
    """Return a strategy's plan for the strict, who come first; mean clip norm 1."""
    strategy = STRATEGIES.get(name, Threshold(pair[1]))
    budgets = Budgets(np.repeat(pair, (strict, loose)), DELTA)
    size = (strict + loose) * CHANCE
    return assign(budgets, strategy, steps=steps, expected_batch_size=size, clip_norm=1.0)


def train(
    rows: Rows, classes: int, plan: BoundPlan, settings: Sequence[tuple[float, float]],
    seed: int, model: str,
) -> list[torch.Tensor]:  # fmt: skip
    """Train by a plan at several settings side by side, on the same batches.

    A record's gradient is an outer product in each layer, so its norm has a closed form. Each
    setting has its own noise. Steps shrink linearly to nothing.
    """
    x, y = rows
    many, stage = len(settings), plan.stages[0]
    shuffle, draws = np.random.default_rng([seed, 1]), torch.Generator().manual_seed(seed)
    group = plan.group_index[shuffle.permutation(len(y))]
    chance = stage.chances()[group]
    clip = torch.from_numpy(np.asarray(stage.clip_norm)[group]).float()
    squares, truth = x.square().sum(dim=1), one_hot(y, classes).float()
    rates, norms = torch.tensor(settings).T
    shapes = [(many, x.shape[1], classes)]
    if model == "hidden":
        shapes = [(many, x.shape[1], HIDDEN), (many, HIDDEN + 1, classes)]
    weights = [torch.zeros(shape) for shape in shapes]
    if model == "hidden":
        weights[0] += torch.randn(shapes[0][1:], generator=draws)
    for step in range(stage.steps):
        at = torch.from_numpy(np.flatnonzero(shuffle.random(len(y)) < chance))
        few = x[at]
        outputs = torch.einsum("bd,sdk->sbk", few, weights[0])
        below = few.expand(many, -1, -1)
        if model == "hidden":
            below = torch.cat([outputs.tanh(), torch.ones(many, len(at), 1)], dim=2)
            outputs = below @ weights[1]
        residual = outputs.softmax(dim=2) - truth[at]
        size = residual.square().sum(dim=2)
        if model == "hidden":
            inner = (residual @ weights[1][:, :-1].mT) * (1 - below[:, :, :-1].square())
            size = size * below.square().sum(dim=2) + inner.square().sum(dim=2) * squares[at]
        else:
            size = size * squares[at]
        factor = (norms[:, None] * clip[at] / size.sqrt().clamp_min(1e-9)).clamp_max(1.0)[..., None]
        sums = [below.mT @ (factor * residual)]
        if model == "hidden":
            sums.insert(0, torch.einsum("bd,sbk->sdk", few, factor * inner))
        pace = rates / norms / stage.expected_batch_size * (1 - step / stage.steps)
        for weight, total in zip(weights, sums, strict=True):
            noise = torch.randn(total.shape, generator=draws) * float(stage.noise_stddev)
            weight -= pace[:, None, None] * (total + noise * norms[:, None, None])
    return weights


def accuracies(weights: Sequence[torch.Tensor], rows: Rows) -> torch.Tensor:
    """Return the accuracy of each setting's model in per cent."""
    x, y = rows
    outputs = torch.einsum("bd,sdk->sbk", x, weights[0])
    if len(weights) > 1:
        ones = torch.ones(*outputs.shape[:2], 1)
        outputs = torch.cat([outputs.tanh(), ones], dim=2) @ weights[1]
    return 100 * (outputs.argmax(dim=2) == y).double().mean(dim=1)


def run(unit: Unit, place: Place) -> dict[str, Any]:
    """Tune and test every strategy in one cell."""
    torch.set_num_threads(1)
    (x, y), test = records(place.data, unit["data"])
    x, y = x[: unit["records"]], y[: unit["records"]]
    classes = int(records(place.data, unit["data"])[0][1].max()) + 1  # public of these data sets
    pair = (unit["strict"], unit["loose"])
    found: dict[str, Any] = {"classes": classes, "features": x.shape[1]}
    for name in (*STRATEGIES, "threshold"):

        def plan(size: int, steps: int, name: str = name) -> Any:
            strict = round(size * unit["share"])
            return plan_of(name, strict, size - strict, pair, steps)

        tried = []
        for steps in STEPS:
            scores = torch.zeros(len(SETTINGS), dtype=torch.float64)
            for split in range(SPLITS):
                order = torch.from_numpy(np.random.default_rng([split, 2]).permutation(len(y)))
                held, kept = order[: len(y) // 5], order[len(y) // 5 :]
                weights = train((x[kept], y[kept]), classes, plan(len(kept), steps), SETTINGS,
                                1000 + split, unit["model"])  # fmt: skip
                scores += accuracies(weights, (x[held], y[held])) / SPLITS
            best = int(scores.argmax())
            tried.append((float(scores[best]), steps, SETTINGS[best]))
        score, steps, setting = max(tried)
        whole = plan(len(y), steps)
        accuracy = [
            float(accuracies(train((x, y), classes, whole, [setting], s, unit["model"]), test))
            for s in range(SEEDS)
        ]
        found[name] = {
            "accuracy": [round(each, 3) for each in accuracy], "held out": round(score, 3),
            "steps": steps, "rate": setting[0], "clip norm": setting[1],
            "noise over signal": noise_over_signal(plan(len(y), max(STEPS))),
        }  # fmt: skip
    return found


def units(seeds: int, scale: float) -> list[Unit]:
    """Return the cells in a fixed order at random, so that the first ones are of every kind.

    Seeds are inside a cell; a scale takes that share of the cells.
    """
    by: list[list[Unit]] = []
    for place, name in enumerate((*TABLES, "digits", *PICTURES)):
        sizes = [SMALL[name]] if name in SMALL else SIZES
        cells: list[Unit] = [
            {"data": name, "records": n, "model": model, "share": share, "strict": e, "loose": f}
            for n, share, (e, f) in itertools.product(sizes, SHARES, BUDGETS)
            for model in ("linear", "hidden")
            if model == "linear" or (n == 4000 and share == 0.5)
        ]
        order = np.random.default_rng([place, 3]).permutation(len(cells))
        by.append([cells[k] for k in order])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*by))
    found = [cell for cell in turns if cell is not None]
    return found[: max(1, round(scale * len(found)))]


def tables(done: Sequence[Done]) -> list[Table]:
    return []


EXPERIMENT = Experiment(
    name="when-it-pays",
    paper="ours",
    shows="what Sample and Scale gain over one budget for all, each tuned by itself",
    cost="5 to 40 seconds a cell on one thread",
    units=units,
    run=run,
    tables=tables,
    needs=lambda data: None if (data / "mnist").is_dir() else f"no folder mnist in {data}",
)
