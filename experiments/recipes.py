"""Recipes at the papers' budgets: features that saw nobody and a linear head, by every strategy.

Each record asks what it asks in the paper; budgets are shuffled over the records by the seed, which
also fixes batches and noise. Accuracy is of the parameters after the last step, on the test part.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pictures import Images, cifar_parquet, idx_folder

from apiece.assignment import Hybrid, Sample, Scale, Threshold, Uniform
from apiece.budgets import Budgets
from apiece.budgets.populations import exponential_skew, three_groups
from apiece.datasets import Numeric, load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.recipes import Recipe, outputs_of, soft_bins
from apiece.recipes.leaves import unit as at_norm_one
from apiece.reproduce import Done, Experiment, Place, Table, Unit, interval, signed

DELTA = 1e-5
HALF = {"batch_size": 4096.0, "epochs": 20.0}  # half the cost of twice both, 2 to 5 % more noise
LOOSE = {"learning_rate": 200.0, **HALF}
STRICT = {"learning_rate": 100.0, **HALF}
DIGITS = {"turn": 12.0, "whiten": 0.75, "learning_rate": 100.0, **HALF}
STRICT_DIGITS = DIGITS | {"learning_rate": 50.0}
LONG_DIGITS = DIGITS | {"learning_rate": 50.0, "epochs": 80.0}  # the noise hardly holds it back
CLOTHES = {"mirrored": True, "whiten": 0.5, "beside": "leaf-patches-linear", **STRICT}
PATCHES = {"transform": "leaf-patches", "groups": 32, "whiten": 1.0, "learning_rate": 100.0,
           **HALF}  # fmt: skip
COLOURS = PATCHES | {"mirrored": True, "power": 0.5, "groups": 1}
TABLE = {"batch_size": 4096.0, "epochs": 25.0, "clip_norm": 0.3, "learning_rate": 10.0}
BINS = 16
# Task: data, budgets, settings of the recipe, strategies, and what was published and aimed at.
TASKS: Mapping[str, Mapping[str, Any]] = {
    "MNIST, 1/2/3": {
        "data": "mnist", "budgets": "three", "recipe": LONG_DIGITS, "published": 97.81,
        "aim": 98.7, "thresholds": (2.0, 3.0),
    },
    "Fashion-MNIST, [.5, 1]": {
        "data": "fashion-mnist", "budgets": "spread", "recipe": CLOTHES, "published": 79.81,
        "aim": 88.5, "thresholds": (0.75, None),
    },
    "CIFAR-10 (JPEG), 1/2/3": {
        "data": "cifar10-jpeg", "budgets": "three", "recipe": COLOURS, "published": 58.03,
        "aim": 68.0, "thresholds": (2.0, 3.0),
    },
    "MNIST, [.5, 1]": {
        "data": "mnist", "budgets": "spread", "recipe": STRICT_DIGITS, "published": 95.19,
        "aim": 98.0, "thresholds": (0.75, None),
    },
    "MNIST, .3": {"data": "mnist", "budgets": 0.3, "recipe": STRICT_DIGITS, "published": 93.18,
                  "aim": 96.8},
    "MNIST, .5": {"data": "mnist", "budgets": 0.5, "recipe": STRICT_DIGITS, "published": 94.90,
                  "aim": 97.6},
    "MNIST, 1.2": {"data": "mnist", "budgets": 1.2, "recipe": DIGITS, "published": 96.56,
                   "aim": 98.4},
    "Adult, .3": {"data": "adult", "budgets": 0.3, "recipe": TABLE, "published": 83.91,
                  "aim": 84.6},
    "Adult, .5": {"data": "adult", "budgets": 0.5, "recipe": TABLE, "published": 84.18,
                  "aim": 84.8},
    "Adult, 1.2": {"data": "adult", "budgets": 1.2, "recipe": TABLE | {"learning_rate": 30.0},
                   "published": 84.48, "aim": 85.1},
}  # fmt: skip
# Other recipes that were tried once, and the share of the records taken.
SMALL_CNN = {"head": "small-cnn", "learning_rate": 4.0}
FEW = {"batch_size": 2048.0}
PIXELS = PATCHES | FEW | {"transform": "pixels", "groups": 1, "whiten": 0.0, "clip_norm": 0.1}
TRIED: Sequence[tuple[str, Mapping[str, Any], float]] = (
    ("MNIST, 1/2/3", LOOSE | FEW, 0.2),
    ("MNIST, 1/2/3", LOOSE | FEW | SMALL_CNN, 0.2),
    ("Fashion-MNIST, [.5, 1]", STRICT | FEW, 0.2),
    ("Fashion-MNIST, [.5, 1]", STRICT | FEW | SMALL_CNN, 0.2),
    ("MNIST, 1/2/3", LOOSE, 1.0),
    ("MNIST, 1/2/3", LOOSE | {"whiten": 0.5}, 1.0),
    ("MNIST, 1/2/3", DIGITS, 1.0),
    ("MNIST, .3", STRICT, 1.0),
    ("MNIST, .3", STRICT | {"whiten": 0.5}, 1.0),
    ("Fashion-MNIST, [.5, 1]", STRICT, 1.0),
    ("Fashion-MNIST, [.5, 1]", STRICT | {"whiten": 0.5}, 1.0),
    ("CIFAR-10 (JPEG), 1/2/3", PIXELS | SMALL_CNN, 0.2),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES | FEW, 0.2),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES | FEW | {"flips": True}, 0.2),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES, 1.0),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES | {"mirrored": True}, 1.0),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES | {"power": 0.5}, 1.0),
    ("CIFAR-10 (JPEG), 1/2/3", PATCHES | {"mirrored": True, "power": 0.5}, 1.0),
    ("CIFAR-10 (JPEG), 1/2/3", PIXELS | {"head": "equivariant-cnn", "learning_rate": 4.0}, 0.05),
)
PLAIN = Recipe().to_dict()
STRATEGIES = ("uniform", "sample", "scale", "hybrid 0.02")


def strategies(task: str) -> list[str]:
    """The strategies of a task; with one budget for all there is only one."""
    thresholds = TASKS[task].get("thresholds")
    if thresholds is None:
        return ["uniform"]
    named = ["threshold" if tau is None else f"threshold {tau:g}" for tau in thresholds]
    return [*STRATEGIES[:2], named[0], STRATEGIES[2], *named[1:], STRATEGIES[3]]


def strategy(name: str) -> Any:
    kind, _, number = name.partition(" ")
    value = float(number) if number else None
    made = {
        "uniform": lambda: Uniform("strictest"), "sample": Sample, "scale": Scale,
        "hybrid": lambda: Hybrid(value), "threshold": lambda: Threshold(value),
    }  # fmt: skip
    return made[kind]()


def budgets_of(kind: Any, size: int, seed: int) -> Budgets:
    shuffle = np.random.default_rng(seed)
    if kind == "three":
        return three_groups(size, DELTA, generator=shuffle)
    if kind == "spread":
        return exponential_skew(size, DELTA, generator=shuffle)
    return Budgets(np.full(size, kind), DELTA)


def some(images: Images, scale: float) -> Images:
    """A random share of the images, always the same."""
    chosen = np.random.default_rng(8).permutation(len(images.labels))
    chosen = chosen[: round(scale * len(chosen))]
    return Images(images.pixels[chosen], images.labels[chosen])


def images(data: Path, name: str, split: str) -> Images:
    if name == "cifar10-jpeg":
        return cifar_parquet(data / name / f"{split}.parquet")
    return idx_folder(data / name, split)


def people(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Adult by its packaged schema, numbers in soft bins; (n, 1, features, 1, 1) at norm 1."""
    frame, schema = load("adult"), packaged_schema("adult")
    frame = frame[(frame["split"] == split).to_numpy()]
    parts = []
    for name, kind in schema.features(but={"income", "split"}).items():
        values = torch.from_numpy(encode(frame, {name: kind}).features.astype(np.float32))
        parts.append(soft_bins(values, BINS) if isinstance(kind, Numeric) else values)
    labels = torch.from_numpy(encode_labels(frame, "income", schema.classes("income")))
    return at_norm_one(torch.cat(parts, dim=1))[:, None, :, None, None], labels


@functools.lru_cache(maxsize=2)
def features(
    data: Path, work: Path, name: str, split: str, own: Recipe, scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    if name == "adult":
        return people(split)
    there = images(data, name, split)
    if scale < 1:
        there = some(there, scale)
    return own.features(there.pixels, cache=work), torch.from_numpy(there.labels)


def run(unit: Unit, place: Place) -> dict[str, Any]:
    """Train one head; on the held-out sixth of the training part where the unit says so."""
    torch.set_num_threads(1)
    task = TASKS[unit["task"]]
    recipe = Recipe(**unit["recipe"])
    seen = ("transform", "mirrored", "turn", "power", "groups", "whiten", "beside", "flips")
    own = Recipe(**{name: getattr(recipe, name) for name in seen})
    x, y = features(place.data, place.work, task["data"], "train", own,
                    unit.get("scale", 1.0))  # fmt: skip
    if unit.get("held out"):
        order = torch.from_numpy(np.random.default_rng(7).permutation(len(y)))
        cut = len(y) // 6
        test, kept = (x[order[:cut]], y[order[:cut]]), order[cut:]
        x, y = x[kept], y[kept]
    else:
        test = features(place.data, place.work, task["data"], "test", own)
    budgets = budgets_of(task["budgets"], len(y), unit["seed"])
    plan = recipe.plan(budgets, strategy(unit["strategy"]))
    classes = int(y.max()) + 1  # as is public of these data sets
    head = recipe.train(plan, x, y, classes, seed=unit["seed"])
    right = (outputs_of(head, test[0]).argmax(1) == test[1]).double()
    fit = (outputs_of(head, x).argmax(1) == y).numpy()
    stage = plan.stages[0]
    return {
        "accuracy": 100 * float(right.mean()),
        "by class": [100 * float(right[test[1] == c].mean()) for c in range(classes)],
        "members by budget": {
            f"{e:g}": 100 * float(fit[budgets.epsilon == e].mean())
            for e in np.unique(budgets.epsilon)[[0, -1]]
        },
        "noise over signal": float(
            stage.noise_stddev / plan.stages[0].expected_batch_size / np.mean(stage.clip_norm)
        ),
        "steps": plan.steps,
    }


def units(seeds: int, scale: float) -> list[Unit]:
    small = {} if scale == 1 else {"scale": scale}
    found: list[Unit] = [
        {"task": task, "strategy": name, "seed": seed, "recipe": dict(TASKS[task]["recipe"])}
        | small
        for seed in range(seeds)
        for task in TASKS
        for name in strategies(task)
    ]
    return found + [tried(*each, scale) for each in TRIED]


def tried(task: str, recipe: Mapping[str, Any], share: float, scale: float = 1.0) -> Unit:
    """A unit of Sample, or of what there is, with another recipe than the task's, first seed."""
    name = strategies(task)[:2][-1]
    unit = {"task": task, "strategy": name, "seed": 0, "recipe": dict(recipe)}
    return unit if share * scale == 1 else unit | {"scale": share * scale}


def found(done: Sequence[Done], task: str, name: str) -> dict[int, float]:
    """Accuracies by seed of the whole training part, with the task's recipe."""
    return {
        one.unit["seed"]: one.result["accuracy"]
        for one in done
        if one.unit["task"] == task and one.unit["strategy"] == name
        and one.unit["recipe"] == TASKS[task]["recipe"] and "scale" not in one.unit
    }  # fmt: skip


def line(task: str, by: Mapping[str, Mapping[int, float]]) -> list[str]:
    """A task's row: of each kind of strategy the best, by the mean over seeds."""
    tops = []
    for kind in ("uniform", "threshold", "sample", "scale", "hybrid"):
        of = [list(v.values()) for name, v in by.items() if name.startswith(kind) and v]
        tops.append(max(of, key=statistics.fmean, default=[]))
    most = max(map(len, tops))  # one seed of a strategy says nothing against five of another
    best = max(statistics.fmean(values) for values in tops if len(values) >= min(3, most))
    about = TASKS[task]
    ends = [f"{about['published']:g}", f"{about['aim']:g}", f"{best:.2f}"]
    return [task, *(interval(values) for values in tops), *ends]


def tables(done: Sequence[Done]) -> list[Table]:
    rows, gains = [], []
    for task in TASKS:
        by = {name: found(done, task, name) for name in strategies(task)}
        if any(by.values()):
            rows.append(line(task, by))
            gains += [row for row in [gain(task, by)] if row]
    return [
        Table(["task", "Uniform", "Threshold", "Sample", "Scale", "Hybrid .02", "published best",
               "aim", "reached"], rows,
              "Test accuracy in %, mean and 95 % interval over seeds (number of seeds)"),
        Table(["task", "best individual", "over Uniform", "over the best Threshold"], gains,
              "What individual budgets gain, points, paired by seed, 95 % interval"),
        Table(["task", "strategy", "members at the smallest ε", "at the largest"], members(done),
              "Accuracy of members by what they asked, in %, first seed: budgets are at random"),
        Table(["task", "strategy", "what differs from the task's recipe", "accuracy in %",
               "of the task's recipe"], others(done), "Other settings that were run"),
    ]  # fmt: skip


def members(done: Sequence[Done]) -> list[list[str]]:
    """How well members of the smallest and of the largest budget are predicted, first seed."""
    rows = []
    for one in done:
        by = one.result["members by budget"]
        if one.unit["seed"] == 0 and len(by) == 2 and one.unit["recipe"] == own_of(one.unit):
            ends = [f"{e}: {a:.2f}" for e, a in sorted(by.items(), key=lambda it: float(it[0]))]
            rows.append([one.unit["task"], one.unit["strategy"], *ends])
    return rows


def own_of(unit: Unit) -> dict[str, Any]:
    return dict(TASKS[unit["task"]]["recipe"])


def changes_of(unit: Unit) -> str:
    """In what a unit differs from its task's own, for people."""
    own, its = PLAIN | own_of(unit), PLAIN | unit["recipe"]
    told = [f"{key} = {its[key] if its[key] != '' else 'none'}" for key in own
            if its[key] != own[key]]  # fmt: skip
    told += [f"{unit['scale']:g} of the records"] if "scale" in unit else []
    return ", ".join(told)


def others(done: Sequence[Done]) -> list[list[str]]:
    """What runs with other settings gave, beside the same strategy with the task's own."""
    by: dict[tuple[str, str, str], list[float]] = {}
    for one in done:
        where = (one.unit["task"], one.unit["strategy"], changes_of(one.unit))
        by.setdefault(where, []).append(one.result["accuracy"])
    return [
        [task, name, told, interval(values), interval(by.get((task, name, ""), []))]
        for (task, name, told), values in by.items() if told
    ]  # fmt: skip


def gain(task: str, by: dict[str, dict[int, float]]) -> list[str] | None:
    """The best individual strategy against Uniform and the best Threshold, seed by seed."""

    def top(kinds: tuple[str, ...]) -> str | None:
        of = [n for n in by if n.startswith(kinds) and by[n]]
        of = [n for n in of if len(by[n]) == max(len(by[m]) for m in of)]
        return max(of, key=lambda n: statistics.mean(by[n].values()), default=None)

    own, threshold = top(("sample", "scale", "hybrid")), top(("threshold",))
    if own is None or not by.get("uniform"):
        return None
    cells = [task, own]
    for other in ("uniform", threshold):
        if other is None:
            cells.append("–")
            continue
        seeds = sorted(set(by[own]) & set(by[other]))
        text = signed([by[own][s] - by[other][s] for s in seeds])
        cells.append(text if other == "uniform" else f"{text} ({other})")
    return cells


EXPERIMENT = Experiment(
    name="recipes",
    paper="ours",
    shows="the papers' tasks with frozen features",
    cost="half a minute a training on one thread, after some minutes for a data set's features",
    units=units,
    run=run,
    tables=tables,
    needs=("mnist",),
)
