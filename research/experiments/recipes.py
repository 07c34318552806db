"""The papers' tasks with features that saw nobody and a linear head, each strategy tuned by itself.

A unit of trials is a task and a strategy: each strategy has the same settings to choose from, tried
on held-out training records. What does best there trains on all training records, by seeds that fix
the shuffle of budgets, batches and noise and that all strategies share; only then is the test part
read. The individual strategy is named before any trial: Sample. Of Uniform and the Thresholds the
one that did best on the held-out records is the better single budget.

    python -m research.experiments.recipes     # from the stored results: the picture of the README
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from apiece.assignment import Sample, Scale, Strategy, Threshold, Uniform, assign
from apiece.budgets import Budgets
from apiece.plan import BoundPlan
from apiece.recipes import Recipe
from apiece.reporting import save
from research import RESULTS
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments.feldman_2021_data import with_one
from research.experiments.mails import authors
from research.experiments.pictures import Images
from research.experiments.populations import exponential_skew, three_groups
from research.experiments.when_it_pays import (
    CHANCE,
    HERE,
    TABLES,
    Rows,
    accuracies,
    best,
    images_of,
    rows_of,
    train,
)
from research.experiments.when_it_pays import tuned as tried
from research.intervals import format_gain, format_interval, half_width
from research.store import Store

DELTA = 1e-5
DIGITS = Recipe(turn=12.0, whiten=0.75)
CLOTHES = Recipe(mirrored=True, whiten=0.5, beside="leaf-patches-linear")
COLOURS = Recipe(transform="leaf-patches", mirrored=True, power=0.5, groups=1, whiten=1.0)
ROWS = (*TABLES, "spam-assassin")  # data that are no images
RATES = tuple(2.0**power for power in range(3, 9))  # a step's length where all records clip
SETTINGS = {
    True: tuple(itertools.product((0.5, 1.0, 2.0, 4.0, *RATES[:4]), (0.3, 1.0))),  # of `ROWS`
    False: tuple(itertools.product(RATES, (0.1,))),
}


@dataclass(frozen=True)
class Task:
    """Data, what each record asks, and what every strategy may choose from."""

    data: str
    asks: str | float
    published: str = "–"
    features: Recipe = field(default_factory=Recipe)
    share: float = 1.0  # of the training records
    steps: tuple[int, ...] = (64, 256)
    chance: float = CHANCE  # of a record to be in a batch, under one budget for all

    def strategies(self, seed: int = 0) -> Mapping[str, Strategy]:
        """Those that differ for these budgets. seed: of coins that are tossed for a plan."""
        levels = {"1/2/3": (2.0, 3.0), "[.5, 1]": (0.6, 0.75)}.get(str(self.asks), ())
        found: dict[str, Strategy] = {"uniform": Uniform("strictest")}
        found |= {f"threshold {level:g}": Threshold(level) for level in levels}
        return found | ({"sample": Sample(), "scale": Scale()} if levels else {})

    def budgets(self, size: int) -> Budgets:
        """What so many records ask, in order; `train` shuffles them."""
        if self.asks == "1/2/3":
            return three_groups(size, DELTA)
        if self.asks == "[.5, 1]":
            return exponential_skew(size, DELTA)
        return Budgets(np.full(size, self.asks), DELTA)

    def records(self, place: Folders, scale: float) -> tuple[Rows, Rows]:
        """Training and test records."""
        return records(place, self.data, self.features, self.share * scale)

    @property
    def settings(self) -> Sequence[tuple[float, float]]:
        """Steps and clip norms to choose from."""
        return SETTINGS[self.data in ROWS]


TASKS: Mapping[str, Task] = {
    "Adult, 1/2/3": Task("adult", "1/2/3"),
    "Adult, [.5, 1]": Task("adult", "[.5, 1]"),
    "German Credit, 1/2/3": Task("german", "1/2/3"),
    "Credit Default, 1/2/3": Task("credit_default", "1/2/3"),
    "Mails by author, 1/2/3": Task("spam-assassin", "1/2/3"),
    "Adult, .3": Task("adult", 0.3, "83.91"),
    "Adult, .5": Task("adult", 0.5, "84.18"),
    "Adult, 1.2": Task("adult", 1.2, "84.48"),
    "MNIST, a fifth, 1/2/3": Task("mnist", "1/2/3", "–", DIGITS, 0.2),
    "CIFAR-10 (JPEG), a fifth, 1/2/3": Task("cifar10-jpeg", "1/2/3", "–", COLOURS, 0.2),
    "Fashion-MNIST, a fifth, [.5, 1]": Task("fashion-mnist", "[.5, 1]", "–", CLOTHES, 0.2),
    "MNIST, [.5, 1]": Task("mnist", "[.5, 1]", "95.19", DIGITS),
    "Fashion-MNIST, [.5, 1]": Task("fashion-mnist", "[.5, 1]", "79.81", CLOTHES),
    "CIFAR-10 (JPEG), 1/2/3": Task("cifar10-jpeg", "1/2/3", "58.03", COLOURS),
    "MNIST, 1/2/3": Task("mnist", "1/2/3", "97.81", DIGITS, steps=(256, 1024)),
    "MNIST, .3": Task("mnist", 0.3, "93.64", DIGITS),
    "MNIST, .5": Task("mnist", 0.5, "94.90", DIGITS),
    "MNIST, 1.2": Task("mnist", 1.2, "96.56", DIGITS),
}


@functools.lru_cache(maxsize=1)
def records(place: Folders, data: str, own: Recipe, share: float) -> tuple[Rows, Rows]:
    """Training and test records; a share of the training ones is random and always the same."""
    if data in TABLES:
        return rows_of(place.data, data)
    if data == "spam-assassin":
        x, y = authors(place.data / data)
        held = torch.from_numpy(np.random.default_rng(8).random(len(y)) < 0.25)
        return (with_one(x[~held]), y[~held]), (with_one(x[held]), y[held])
    parts = []
    for split in ("train", "test"):
        there = images_of(place.data, data, split)
        if split == "train" and share < 1:
            chosen = np.random.default_rng(8).permutation(len(there))[: round(share * len(there))]
            there = Images(there.pixels[chosen], there.labels[chosen])
        features = own.features(there.pixels, cache=place.work).flatten(1)
        parts.append((with_one(features), torch.from_numpy(there.labels)))
    return parts[0], parts[1]


@functools.lru_cache(maxsize=64)
def plan_of(task: Task, strategy: Strategy, size: int, steps: int) -> BoundPlan:
    return assign(task.budgets(size), strategy, steps=steps,
                  expected_batch_size=size * task.chance, clip_norm=1.0)  # fmt: skip


def run(tasks: Mapping[str, Task], unit: Unit, place: Folders) -> dict[str, Any]:
    """Try every setting of a strategy on held-out records, or test one of them by one seed."""
    torch.set_num_threads(1)
    task, seed = tasks[unit["task"]], unit.get("seed", 1000)
    rows, test = task.records(place, unit.get("scale", 1.0))
    classes = int(rows[1].max()) + 1  # as is public of these data sets
    size, few = len(rows[1]), task.data in ROWS
    strategy = task.strategies(seed)[unit["strategy"]]

    def plan(size: int, steps: int) -> BoundPlan:
        return plan_of(task, strategy, size, steps)

    if unit.get("held out"):
        found = tried(rows, classes, plan, task.steps, task.settings, 1 + few)
        return {"trials": [[score, steps, *setting] for score, steps, setting in found]}
    whole, setting = plan(size, unit["steps"]), (unit["rate"], unit["clip norm"])
    by_stage: list[float] = []
    weights = train(rows, classes, whole, [setting], seed, "linear",
                    lambda weights: by_stage.append(float(accuracies(weights, test))))  # fmt: skip
    asked = task.budgets(size).epsilon[np.random.default_rng([seed, 1]).permutation(size)]
    members = {
        f"{level:g}": float(accuracies(weights, (rows[0][at], rows[1][at])))
        for level in np.unique(asked)[[0, -1]]
        for at in [torch.from_numpy(np.flatnonzero(asked == level))]
    }
    found = {"accuracy": float(accuracies(weights, test)), "members": members}
    return found | ({"by stage": by_stage} if len(by_stage) > 1 else {})


def units(tasks: Mapping[str, Task], seeds: int, scale: float) -> list[Unit]:
    """Trials on held-out records; they have seeds of their own."""
    small = {} if scale == 1 else {"scale": scale}
    return [{"task": task, "strategy": name, "held out": True} | small
            for task, about in tasks.items() for name in about.strategies()]  # fmt: skip


def after(
    tasks: Mapping[str, Task], done: Sequence[Outcome], seeds: int, scale: float
) -> list[Unit]:
    """Tests of what the trials chose; of several Thresholds only the one that did best there."""
    found: list[Unit] = []
    small = {} if scale == 1 else {"scale": scale}
    for task, trials in chosen(tasks, done, scale).items():
        for name, (_, steps, rate, clip) in trials.items():
            if name == threshold_of(trials) or not name.startswith("threshold"):
                unit = {"task": task, "strategy": name, "steps": steps, "rate": rate,
                        "clip norm": clip}  # fmt: skip
                many = 3 * seeds if tasks[task].data in ROWS else seeds  # these cost nothing
                found += [unit | {"seed": seed} | small for seed in range(many)]
    return found


Trial = tuple[float, int, float, float]  # accuracy on held-out records, steps, rate, clip norm


def chosen(
    tasks: Mapping[str, Task], done: Sequence[Outcome], scale: float = 1.0
) -> dict[str, dict[str, Trial]]:
    """Each strategy's best trial, by task, where all of the task's strategies were tried."""
    found: dict[str, dict[str, Trial]] = {task: {} for task in tasks}
    for one in done:
        if one.unit.get("held out") and one.unit.get("scale", 1.0) == scale:
            found[one.unit["task"]][one.unit["strategy"]] = tuple(best(one.result["trials"]))
    return {t: by for t, by in found.items() if set(by) == set(tasks[t].strategies())}


def score_at(done: Sequence[Outcome], task: str, setting: Sequence[float]) -> float:
    """Uniform's accuracy on the held-out records at a setting."""
    (one,) = [one for one in done if dict(one.unit) == {"task": task, "strategy": "uniform",
                                                        "held out": True}]  # fmt: skip
    return next(score for score, *its in one.result["trials"] if its == list(setting))


def threshold_of(trials: Mapping[str, Trial]) -> str | None:
    """The Threshold that did best on the held-out records."""
    return max(
        (n for n in trials if n.startswith("threshold")), key=trials.__getitem__, default=None
    )


def one_budget(trials: Mapping[str, Trial]) -> str:
    """The better of Uniform and the best Threshold, by the held-out records."""
    return max(("uniform", threshold_of(trials) or "uniform"), key=trials.__getitem__)


def members_apart(result: Mapping[str, Any]) -> float:
    """Accuracy of the members at the largest ε less that of those at the smallest."""
    low, high = result["members"].values()
    return float(high - low)


def outcomes(
    tasks: Mapping[str, Task], done: Sequence[Outcome], task: str,
    of: Callable[[Mapping[str, Any]], float] = itemgetter("accuracy"),
) -> dict[str, dict[int, float]]:  # fmt: skip
    """Test accuracies of a task by strategy and seed, at the settings that the trials chose."""
    wanted = [u for u in after(tasks, done, 1, 1.0) if u["task"] == task and u["seed"] == 0]
    return {
        unit["strategy"]: {
            one.unit["seed"]: of(one.result) for one in done if dict(one.unit) | {"seed": 0} == unit
        }
        for unit in wanted
    }


def gains(by: Mapping[str, Mapping[int, float]], own: str, base: str) -> list[float]:
    """What a strategy gains over another, seed by seed."""
    both = sorted(set(by.get(own, {})) & set(by.get(base, {})))
    return [by[own][seed] - by[base][seed] for seed in both]


def tabulate(tasks: Mapping[str, Task], done: Sequence[Outcome]) -> list[Table]:
    """Return accuracies, gains, gains before and after tuning, settings, and members' accuracy."""
    reached, gained, shared, tuning, members = [], [], [], [], []
    for task, trials in chosen(tasks, done).items():
        by, threshold, single = (
            outcomes(tasks, done, task),
            threshold_of(trials),
            one_budget(trials),
        )
        names = ["uniform", threshold or "", "sample", "scale"]
        cells = [format_interval(list(by.get(name, {}).values())) for name in names]
        reached.append([task, *cells, tasks[task].published])
        if gains(by, "sample", "uniform"):
            pairs = (("sample", "uniform"), ("sample", single), ("scale", single))
            gained.append([task, *(format_gain(gains(by, *pair)) for pair in pairs), single])
            apart = outcomes(tasks, done, task, members_apart)
            members.append([task, *(format_gain(gains(apart, n, "uniform")) for n in names[1:])])
        if "sample" in trials:
            scores = trials["sample"][0], score_at(done, task, trials["sample"][1:])
            shared.append([task, f"{scores[0] - scores[1]:+.2f}",
                           f"{scores[0] - trials['uniform'][0]:+.2f}"])  # fmt: skip
        for name, (score, steps, rate, clip) in trials.items():
            tuning.append([task, name, f"{score:.2f}", str(steps), f"{rate:g}", f"{clip:g}"])
    return [
        Table(["task", "Uniform", "Threshold", "Sample", "Scale", "published best"], reached,
              "Test accuracy in %, mean and 95 % interval over seeds (number of seeds)"),
        Table(["task", "Sample over Uniform", "Sample over the better single budget",
               "Scale over the better", "the better"], gained,
              "What individual budgets gain, points, paired by seed, 95 % interval"),
        Table(["task", "Uniform at Sample's settings", "each at its own"], shared,
              "The gain of Sample over Uniform on the held-out records, points, before and after "
              "Uniform is tuned by itself"),
        Table(["task", "strategy", "held-out accuracy in %", "steps", "step", "clip norm"], tuning,
              "The best settings on held-out training records: the step is its length where all "
              "records clip"),
        Table(["task", "Threshold", "Sample", "Scale"], members,
              "How much better training records at the largest ε are predicted than those at the "
              "smallest, points, less the same under Uniform, paired by seed, 95 % interval"),
    ]  # fmt: skip


def drawn(done: Sequence[Outcome]) -> Figure:
    """Return Sample's gains by task, with 95 % intervals."""
    rows = []
    for task, trials in chosen(TASKS, done).items():
        by = outcomes(TASKS, done, task)
        pair = [gains(by, "sample", base) for base in ("uniform", one_budget(trials))]
        if len(pair[0]) >= 5:
            rows.append((task, *((float(np.mean(each)), half_width(each)) for each in pair)))
    rows.sort(key=lambda row: row[1])
    figure = Figure(figsize=(8, 0.6 + 0.42 * len(rows)), layout="constrained", facecolor="white")
    axes = figure.subplots()
    looks = (("over the strictest budget for all", "#0072B2"),
             ("over the better single budget", "#E69F00"))  # fmt: skip
    for k, (label, colour) in enumerate(looks):
        means, widths = zip(*(row[1 + k] for row in rows), strict=True)
        axes.barh(np.arange(len(rows)) + 0.2 - 0.4 * k, means, xerr=widths, height=0.36,
                  color=colour, ecolor="0.3", capsize=2, label=label)  # fmt: skip
    axes.set_yticks(range(len(rows)), [row[0] for row in rows])
    axes.axvline(0, color="0.6", linewidth=0.8)
    axes.set(xlabel="points of test accuracy gained by Sample")
    axes.legend(frameon=False, fontsize="small", loc="lower right")
    axes.spines[["top", "right"]].set_visible(False)
    return figure


EXPERIMENT = Experiment(
    name="recipes",
    paper="ours",
    shows="the papers' tasks with frozen features, each strategy tuned by itself",
    cost="minutes for a table, 10 to 20 for a fifth of a set of images, five times that for all",
    units=functools.partial(units, TASKS),
    after=functools.partial(after, TASKS),
    run=functools.partial(run, TASKS),
    tables=functools.partial(tabulate, TASKS),
    notes=lambda done: (
        "Settings were chosen on held-out training records: one fifth of them for images, two for "
        "other data. Sample was named beforehand as the individual strategy. The features of "
        "images were chosen earlier, with Sample, on held-out records too, which may favour it. "
        "Intervals are over seeds, not over the choice of the test part, which has 250 records for "
        "German Credit. "
        "Under “mails by author” a record is all mails of one author."
    ),
    needs=("mnist", "fashion-mnist", "cifar10-jpeg", "spam-assassin"),
    reads=lambda unit: sorted({TASKS[unit["task"]].data} - set(TABLES)),
    open="MNIST, Fashion-MNIST and CIFAR-10 in full: one to seven hours a task, resumable by task",
)

if __name__ == "__main__":
    stored = Store(RESULTS).load(EXPERIMENT.name)
    save(drawn(stored), Path(HERE / "docs" / "figures" / "gain.png"))
