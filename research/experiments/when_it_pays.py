"""When do individual budgets pay? Sample and Scale against one budget for all, tuned alike.

A cell is a data set, a number of training records, a model and two budgets: a share of the records
asks the strict ε, the others the loose one, at random. Each strategy is tuned by itself: the same
36 settings (18 step sizes and clip norms, 2 numbers of steps), each tried on the same two splits
into four fifths of the training records and the held-out fifth. The settings with the best mean
accuracy there train on all training records, with five seeds that fix the shuffle of budgets, the
batches and the noise and are shared by all strategies. The test part is read once, by these models.

"One budget for all" is Uniform at the strict ε, or Threshold, which leaves the strict out and
trains at the loose ε, whichever did better on the held-out records. The individual strategy is
named before anything is trained: Sample.

    python -m research.experiments.when_it_pays

makes the page, the plot and the predictor from the stored results (`gain_prediction`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import one_hot

from apiece.assignment import Sample, Scale, Threshold, Uniform, assign
from apiece.assignment.front import noise_over_signal
from apiece.budgets import Budgets
from apiece.datasets import Numeric, load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.packaged import PACKAGED
from apiece.plan import BoundPlan
from apiece.prospects.gains import relative_noise
from apiece.recipes import soft_bins
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.feldman_2021_data import fixed_layer, with_one
from research.experiments.pictures import Images, cifar_parquet, idx_folder
from research.intervals import half_width

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
NOISES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)  # of a training under Uniform: edges of the table
HERE = Path(__file__).parents[2]
Numbers = npt.NDArray[np.float64]
Rows = tuple[torch.Tensor, torch.Tensor]


def rows_of(data: Path, name: str) -> tuple[Rows, Rows]:
    """Return training and test records: features at norm 1 and a one for the bias, and labels."""
    pick = np.random.default_rng(8)
    if name in PICTURES:
        parts = []
        for split, most in (("train", max(SIZES)), ("test", 10**4)):
            there = images_of(data, name, split)
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


def images_of(data: Path, name: str, split: str) -> Images:
    if name == "cifar10-jpeg":
        return cifar_parquet(data / name / f"{split}.parquet")
    return idx_folder(data / name, split)


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
    seed: int, model: str, watch: Callable[[list[torch.Tensor]], object] = lambda weights: None,
) -> list[torch.Tensor]:  # fmt: skip
    """Train by a plan at several settings side by side, on the same batches.

    Each setting has its own noise. Steps shrink linearly to nothing. watch: is shown the weights
    after each stage. Where a plan averages its stages' models, which are linear, their weights are.
    """
    x, y = rows
    many, total = len(settings), 0
    shuffle, draws = np.random.default_rng([seed, 1]), torch.Generator().manual_seed(seed)
    group = plan.group_index[shuffle.permutation(len(y))]
    squares, truth = x.square().sum(dim=1), one_hot(y, classes).float()
    rates, norms = torch.tensor(settings).T
    averaged = plan.combine == "average"
    weights = begun(many, x.shape[1], classes, model, draws)
    mean = [torch.zeros_like(weight) for weight in weights]
    for stage in plan.stages:
        if averaged:
            weights = begun(many, x.shape[1], classes, model, draws)
        chance = stage.sampling_probability[group]
        if stage.participation is not None:  # one coin a stage
            chance = chance * (shuffle.random(len(y)) < stage.participation[group])
        clip = torch.from_numpy(np.asarray(stage.clip_norm)[group]).float()
        for step in range(stage.steps):
            at = torch.from_numpy(np.flatnonzero(shuffle.random(len(y)) < chance))
            bounds = norms[:, None] * clip[at]
            sums = clipped_sums(x[at], truth[at], squares[at], weights, bounds)
            part = step / stage.steps if averaged else (total + step) / plan.steps
            pace = rates / norms / stage.expected_batch_size * (1 - part)
            for weight, each in zip(weights, sums, strict=True):
                noise = torch.randn(each.shape, generator=draws) * float(stage.noise_stddev)
                weight -= pace[:, None, None] * (each + noise * norms[:, None, None])
        total += stage.steps
        watch(weights)
        share = stage.weight / sum(other.weight for other in plan.stages)
        mean = [old + share * own for old, own in zip(mean, weights, strict=True)]
    return mean if averaged else weights


def begun(
    many: int, features: int, classes: int, model: str, draws: torch.Generator
) -> list[torch.Tensor]:
    """Return as many fresh models: zeros, but for a hidden layer that all share."""
    if model == "linear":
        return [torch.zeros(many, features, classes)]
    first = torch.randn((features, HIDDEN), generator=draws)
    return [first.expand(many, -1, -1).clone(), torch.zeros(many, HIDDEN + 1, classes)]


def clipped_sums(
    few: torch.Tensor, truth: torch.Tensor, squares: torch.Tensor, weights: Sequence[torch.Tensor],
    bounds: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    """Return the sums of clipped gradients by layer.

    A record's gradient is an outer product in each layer, so its norm has a closed form. bounds:
    clip norms, (settings, records).
    """
    many, hidden = len(bounds), len(weights) > 1
    outputs = side_by_side(few, weights[0])
    below = few.expand(many, -1, -1)
    if hidden:
        below = torch.cat([outputs.tanh(), torch.ones(many, len(few), 1)], dim=2)
        outputs = below @ weights[1]
    residual = outputs.softmax(dim=2) - truth
    size = residual.square().sum(dim=2)
    if hidden:
        inner = (residual @ weights[1][:, :-1].mT) * (1 - below[:, :, :-1].square())
        size = size * below.square().sum(dim=2) + inner.square().sum(dim=2) * squares
    else:
        size = size * squares
    factor = (bounds / size.sqrt().clamp_min(1e-9)).clamp_max(1.0)[..., None]
    if hidden:
        return [summed(few, factor * inner), below.mT @ (factor * residual)]
    return [summed(few, factor * residual)]


def side_by_side(few: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return (settings, records, k) from (records, d) and (settings, d, k), by one product."""
    outputs = few @ weights.movedim(1, 0).flatten(1)
    return outputs.view(len(few), *weights.shape[::2]).movedim(1, 0)


def summed(few: torch.Tensor, inner: torch.Tensor) -> torch.Tensor:
    """Return each setting's sum of outer products, (settings, d, k), by one product."""
    sums = few.T @ inner.movedim(0, 1).flatten(1)
    return sums.view(-1, len(inner), inner.shape[2]).movedim(1, 0)


def accuracies(weights: Sequence[torch.Tensor], rows: Rows) -> torch.Tensor:
    """Return the accuracy of each setting's model in per cent."""
    x, y = rows
    outputs = side_by_side(x, weights[0])
    if len(weights) > 1:
        ones = torch.ones(*outputs.shape[:2], 1)
        outputs = torch.cat([outputs.tanh(), ones], dim=2) @ weights[1]
    return 100 * (outputs.argmax(dim=2) == y).double().mean(dim=1)


def tuned(
    rows: Rows, classes: int, plan: Callable[[int, int], BoundPlan], lengths: Sequence[int],
    settings: Sequence[tuple[float, float]], splits: int, model: str = "linear",
) -> list[tuple[float, int, tuple[float, float]]]:  # fmt: skip
    """Return the accuracy on held-out fifths, steps and setting of each trial, the longest first.

    plan: takes a number of records and of steps.
    """
    x, y = rows
    found = []
    for steps in sorted(lengths, reverse=True):
        scores = torch.zeros(len(settings), dtype=torch.float64)
        for split in range(splits):
            order = torch.from_numpy(np.random.default_rng([split, 2]).permutation(len(y)))
            held, kept = order[: len(y) // 5], order[len(y) // 5 :]
            weights = train((x[kept], y[kept]), classes, plan(len(kept), steps), settings,
                            1000 + split, model)  # fmt: skip
            scores += accuracies(weights, (x[held], y[held])) / splits
        found += [(float(s), steps, each) for s, each in zip(scores, settings, strict=True)]
    return found


def best(trials: Sequence[Any]) -> Any:
    """Return the first of the trials that did best on the held-out records."""
    return max(trials, key=lambda trial: float(trial[0]))


def run(unit: Unit, place: Folders) -> dict[str, Any]:
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

        tried = tuned((x, y), classes, plan, STEPS, SETTINGS, SPLITS, unit["model"])
        score, steps, setting = best(tried)
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


def noise_of(one: Outcome, name: str) -> float:
    """Return the noise of a whole training over its signal, under a strategy's plan."""
    classes, features = one.result["classes"], one.result["features"]
    parameters = features * classes
    if one.unit["model"] == "hidden":
        parameters = features * HIDDEN + (HIDDEN + 1) * classes
    return relative_noise(one.result[name]["noise over signal"], max(STEPS), parameters)


def one_budget(one: Outcome) -> str:
    """Return the better of Uniform and Threshold, by the held-out records."""
    return max(("uniform", "threshold"), key=lambda name: float(one.result[name]["held out"]))


def gains(one: Outcome, name: str, base: str) -> Numbers:
    """Return what a strategy gained in points, seed by seed."""
    own, other = (np.array(one.result[each]["accuracy"]) for each in (name, base))
    return np.asarray(own - other)


def both(one: Outcome) -> tuple[float, float]:
    """Return Sample's mean gain over Uniform and over the better one-budget strategy."""
    return tuple(float(gains(one, "sample", b).mean()) for b in ("uniform", one_budget(one)))


def middle(values: Sequence[float]) -> list[float]:
    """Return the middle four fifths of values."""
    return [round(float(each), 2) for each in np.quantile(values, (0.1, 0.9))]


def summary(done: Sequence[Outcome], head: str, name_of: Callable[[Outcome], str]) -> Table:
    """Return gains by what a cell is."""
    rows = []
    names = sorted({name_of(one) for one in done}, key=lambda name: (len(name.split()), name))
    for name in names:
        cells = [one for one in done if name_of(one) == name]
        row = [name, str(len(cells))]
        for base in (lambda one: "uniform", one_budget):
            each = [gains(one, "sample", base(one)) for one in cells]
            means = [float(values.mean()) for values in each]
            low, high = middle(means)
            reaches = [half_width(values.tolist()) for values in each]
            sure = [sum(m > r for m, r in zip(means, reaches, strict=True)),
                    sum(m < -r for m, r in zip(means, reaches, strict=True))]  # fmt: skip
            row += [
                f"{np.median(means):+.2f}",
                f"{low:+.2f} to {high:+.2f}",
                f"{sure[0]}, {sure[1]}",
            ]
        rows.append(row)
    columns = ["median", "middle 80 %", "surely more, less"]
    heads = [f"over {base}: {c}" for base in ("uniform", "the better") for c in columns]
    return Table([head, "cells", *heads], rows)


def tables(done: Sequence[Outcome]) -> list[Table]:
    """Return what the page of all papers shows: the rest is on the experiment's own page."""
    return summaries(done)[:1]


def summaries(done: Sequence[Outcome]) -> list[Table]:
    """Return gains by noise, data set, share and budgets."""

    def noise(one: Outcome) -> str:
        low, high = next(p for p in itertools.pairwise(NOISES) if noise_of(one, "uniform") < p[1])
        return f"{low:g} to {high:g}"

    return [
        summary(done, "noise under uniform", noise),
        summary(done, "data set", lambda one: str(one.unit["data"])),
        summary(done, "share of the strict", lambda one: f"{one.unit['share']:g}"),
        summary(done, "budgets", lambda one: f"{one.unit['strict']:g} and {one.unit['loose']:g}"),
    ]


def main() -> None:
    from research.experiments import gain_prediction

    gain_prediction.write_all()


EXPERIMENT = Experiment(
    name="when-it-pays",
    paper="ours",
    shows="what Sample and Scale gain over one budget for all, each tuned by itself",
    cost="5 to 110 seconds a cell on one thread",
    units=units,
    run=run,
    tables=tables,
    notes=lambda done: (
        "Each strategy chose among the same 36 settings on two held-out fifths of the training "
        "records; gains are means of five seeds, paired. “The better” is the better of Uniform and "
        "Threshold, by the held-out records. More tables are in [when individual budgets "
        "pay](when-it-pays.md)."
    ),
    needs=("mnist", "fashion-mnist", "cifar10-jpeg"),
    reads=lambda unit: [unit["data"]] if unit["data"] in PICTURES else [],
)

if __name__ == "__main__":
    main()
