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

makes the plot and the predictor from the stored results.
"""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from matplotlib.figure import Figure
from scipy.optimize import least_squares
from torch.nn.functional import one_hot

from apiece.assignment import Sample, Scale, Threshold, Uniform, assign
from apiece.assignment.front import noise_over_signal
from apiece.assignment.gains import relative_noise
from apiece.budgets import Budgets
from apiece.datasets import Numeric, load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.datasets.packaged import PACKAGED
from apiece.plan import BoundPlan
from apiece.recipes import soft_bins
from apiece.reporting import save
from research import RESULTS
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.feldman_2021_data import fixed_layer, with_one
from research.experiments.pictures import Images, cifar_parquet, idx_folder
from research.intervals import half_width
from research.store import Store

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
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
HERE = Path(__file__).parents[2]
MARK = "<!-- What follows is made by python -m research.experiments.when_it_pays. -->"
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


def by_noise(done: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return what `apiece plan --compare` tells: gains by the noise under Uniform."""
    rows = []
    for low, high in itertools.pairwise(NOISES):
        cells = [both(one) for one in done if low <= noise_of(one, "uniform") < high]
        if len(cells) >= 5:
            over, beside = zip(*cells, strict=True)
            rows.append(
                {
                    "noise": [low, high],
                    "trainings": len(cells),
                    "over uniform": middle(over),
                    "over one budget": middle(beside),
                }
            )
    return rows  # fmt: skip


def for_plans(done: Sequence[Outcome]) -> dict[str, Any]:
    """Return all that `apiece plan --compare` tells.

    The predictor is told where it errs less than "no gain" on data sets held back, on average and
    on most of them.
    """
    kept: dict[str, Any] = {"rows": by_noise(done), "curve": None}
    *each, mean = predicting(done).rows
    better = sum(float(row[3]) < float(row[2]) for row in each)
    if float(mean[3]) < float(mean[2]) and better > len(each) / 2:
        two, more, middle, width = fitted(done, by_size=False)[:4]
        kept["curve"] = {
            "heights": [round(float(np.exp(each)), 3) for each in (two, more)],
            "middle": round(float(np.exp(middle)), 4), "power": round(float(np.exp(-width)), 3),
            "error": float(mean[3]), "error of no gain": float(mean[2]),
        }  # fmt: skip
    return kept


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


def curve(weights: Numbers, known: Numbers, *, by_size: bool) -> Numbers:
    """Return the gain in points from one noise to another, by a logistic curve that falls.

    Its height is one for two classes and one for more, since two leave less to gain.
    """
    before, after, classes, size = known
    shift = weights[4] * size if by_size else 0.0
    height = np.exp(np.where(classes > 2, weights[1], weights[0]))
    places = [(weights[2] - x - shift) / np.exp(weights[3]) for x in (after, before)]
    high, low = (1 / (1 + np.exp(-place)) for place in places)
    return np.asarray(height * (high - low))


def known_of(one: Outcome, name: str) -> list[float]:
    classes = one.result["classes"]
    noises = [float(np.log(noise_of(one, each))) for each in ("uniform", name)]
    return [*noises, classes, float(np.log(one.unit["records"] / classes))]


def fitted(done: Sequence[Outcome], *, by_size: bool) -> Numbers:
    """Return the curve's weights, from Sample, Scale and Threshold against Uniform."""
    others = ("sample", "scale", "threshold")
    known = np.array([known_of(one, name) for one in done for name in others]).T
    truth = np.array([gains(one, name, "uniform").mean() for one in done for name in others])

    def lacks(weights: Numbers) -> Numbers:
        return curve(weights, known, by_size=by_size) - truth

    starts = itertools.product((2.0,), (4.0,), (-1.0, -2.0, -3.0), (-0.3,), (0.0,))
    fits = [least_squares(lacks, start, loss="soft_l1", max_nfev=2000) for start in starts]
    return np.asarray(min(fits, key=lambda fit: float(fit.cost)).x)


def held_back(done: Sequence[Outcome], *, by_size: bool) -> dict[str, list[tuple[float, float]]]:
    """Return (predicted, measured) gains of Sample over Uniform on each data set held back."""
    pairs = {}
    for name in sorted({one.unit["data"] for one in done}):
        weights = fitted([one for one in done if one.unit["data"] != name], by_size=by_size)
        own = [one for one in done if one.unit["data"] == name]
        known = np.array([known_of(one, "sample") for one in own]).T
        truth = [float(gains(one, "sample", "uniform").mean()) for one in own]
        pairs[name] = list(zip(curve(weights, known, by_size=by_size).tolist(), truth, strict=True))
    return pairs


def predicting(done: Sequence[Outcome]) -> Table:
    """Return the predictor's mean absolute error on data sets that it has not seen."""
    forms = [held_back(done, by_size=by_size) for by_size in (False, True)]
    rows = []
    for name in forms[0]:
        truth = [t for _, t in forms[0][name]]
        cells = [np.mean([abs(p - t) for p, t in form[name]]) for form in forms]
        rows.append([name, str(len(truth)), np.mean(np.abs(truth)), *cells])
    rows.append(["mean over data sets", str(len(done)),
                 *(np.mean([row[k] for row in rows]) for k in (2, 3, 4))])  # fmt: skip
    head = ["data set held back", "cells", "error of “no gain”", "of noise",
            "of noise and data per class"]  # fmt: skip
    return Table(head, [[*row[:2], *(f"{v:.2f}" for v in row[2:])] for row in rows])


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


def drawn(done: Sequence[Outcome]) -> Figure:
    """Return gains by noise, and predictions on data sets held back against what was measured."""
    figure = Figure(figsize=(10, 4), layout="constrained", facecolor="white")
    left, right = figure.subplots(1, 2)
    pairs = held_back(done, by_size=False)
    names = list(pairs)
    for place, name in enumerate(names):
        own = [one for one in done if one.unit["data"] == name]
        look = {"color": COLOURS[place], "marker": "osD^vP*"[place], "s": 22, "alpha": 0.8}
        noises = [noise_of(one, "uniform") for one in own]
        left.scatter(noises, [both(one)[0] for one in own], label=name, **look)
        left.scatter(noises, [both(one)[1] for one in own], **look | {"color": "0.75", "zorder": 0})
        predicted, measured = zip(*pairs[name], strict=True)
        right.scatter(predicted, measured, **look)
    ends = (-3.0, 60.0)
    right.plot(ends, ends, color="0.6", linewidth=1, zorder=0)
    left.set(
        xscale="log",
        yscale="symlog",
        xlabel="noise of the training over its signal, Uniform",
        ylabel="points gained by Sample",
        title="over Uniform; grey: over the better one budget",
    )
    right.set(xscale="symlog", yscale="symlog", xlim=ends, ylim=ends, title="data sets held back",
              xlabel="points predicted from the noise", ylabel="points measured")  # fmt: skip
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.axhline(0, color="0.8", linewidth=0.8, zorder=0)
    left.set_ylim(-3, 60)
    left.legend(frameon=False, fontsize="small", loc="upper left")
    return figure


def end_of_page(done: Sequence[Outcome], *, predictor: bool = True) -> str:
    """Return the tables of docs/results/when-it-pays.md, that of the predictor's errors last."""
    parts = {"By noise": 0, "By data set": 1, "By the share of strict people": 2, "By budgets": 3}
    found = summaries(done)
    shown = {title: found[place] for title, place in parts.items()}
    if predictor:
        shown["The predictor's error on data sets that it has not seen"] = predicting(done)
    return "\n\n".join(f"### {title}\n\n{table.markdown()}" for title, table in shown.items())


def main() -> None:
    done = Store(RESULTS).load(EXPERIMENT.name)
    kept = json.dumps(for_plans(done), indent=1)
    (HERE / "src" / "apiece" / "assignment" / "gains.json").write_text(f"{kept}\n")
    page = HERE / "docs" / "results" / "when-it-pays.md"
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    page.write_text(f"{text}{MARK}\n\n{end_of_page(done)}\n", encoding="utf-8")
    save(drawn(done), HERE / "docs" / "figures" / "when_it_pays.png")


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
    open="131 of 224 cells: 75 minutes on a quiet thread",
)

if __name__ == "__main__":
    main()
