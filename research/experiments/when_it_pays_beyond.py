"""Does the predictor of `when-it-pays` hold where it was not fitted? Correlated noise, a backbone.

Cells are as in `when-it-pays`, with its settings, splits and seeds. Of kind "correlated" they are
drawn at random from its cells with a linear model; Uniform, Scale and Epochs have fixed batches and
noise that is correlated between steps, Uniform also Poisson batches and independent noise, as
`apiece plan --compare` lists them. Of kind "backbone" the records are images of CIFAR-10 as the
features of a network that public photographs have trained, at norm 1, which `backbone` uses too.

Nothing here is used to fit the curve or its interval.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from apiece.assignment import Correlated, Epochs, Scale, Strategy, Uniform, assign
from apiece.assignment.front import noise_over_signal
from apiece.budgets import Budgets
from apiece.plan import BoundPlan
from research.experiment import Experiment, Folders, Outcome, Table, Unit
from research.experiments import recipes, when_it_pays, without_sampling
from research.experiments.backbone import PHOTOGRAPHS
from research.experiments.when_it_pays import CHANCE, DELTA, SEEDS, SETTINGS, SPLITS, STEPS, Rows
from research.intervals import half_width

# Data sets of the cells with correlated noise, and how many cells each has.
CORRELATED_DATA = ("adult", "mnist", "fashion-mnist", "cifar10-jpeg")
CELLS_OF_EACH = 3
# Cells on the backbone's features: numbers of records, and budgets of the strict and the loose.
BACKBONE_SIZES = (1000, 4000, 10000)
BACKBONE_BUDGETS = ((0.25, 2.0), (1.0, 2.0), (1.0, 8.0))
# The share of the training images whose features are made: 10,000.
BACKBONE_SHARE = 0.2
# The strategies with correlated noise.
CORRELATED: dict[str, Strategy] = {
    "uniform, correlated": Uniform("strictest"),
    "scale, correlated": Scale(),
    "epochs, correlated": Epochs(),
}
BACKBONE = ("uniform", "sample", "scale", "threshold")
# Takes a number of records and of steps.
Planner = Callable[[int, int], BoundPlan]
Trained = Callable[[Rows, BoundPlan, Sequence[tuple[float, float]], int], list[torch.Tensor]]


@functools.lru_cache(maxsize=64)
def correlated_plan(
    name: str, strict: int, loose: int, pair: tuple[float, float], steps: int
) -> BoundPlan:
    """Return the plan with correlated noise as `apiece plan` makes it, the strict first."""
    budgets = Budgets(np.repeat(pair, (strict, loose)), DELTA)
    return assign(
        budgets,
        CORRELATED[name],
        steps=steps,
        expected_batch_size=(strict + loose) * CHANCE,
        clip_norm=1.0,
        noise=Correlated(),
    )


def tune_and_test(rows: Rows, test: Rows, planner: Planner, train: Trained) -> dict[str, Any]:
    """Choose steps and setting on held-out fifths, then test what all records train."""
    x, y = rows
    trials: list[tuple[float, int, tuple[float, float]]] = []
    for steps in sorted(STEPS, reverse=True):
        scores = torch.zeros(len(SETTINGS), dtype=torch.float64)
        for split in range(SPLITS):
            order = torch.from_numpy(np.random.default_rng([split, 2]).permutation(len(y)))
            held = order[: len(y) // 5]
            fitted = order[len(y) // 5 :]
            plan = planner(len(fitted), steps)
            weights = train((x[fitted], y[fitted]), plan, SETTINGS, 1000 + split)
            scores += when_it_pays.accuracies(weights, (x[held], y[held])) / SPLITS
        trials += [
            (float(score), steps, setting) for score, setting in zip(scores, SETTINGS, strict=True)
        ]
    score, steps, setting = when_it_pays.best(trials)
    plan = planner(len(y), steps)
    accuracy = [
        float(when_it_pays.accuracies(train(rows, plan, [setting], seed), test))
        for seed in range(SEEDS)
    ]
    return {
        "accuracy": [round(value, 3) for value in accuracy],
        "held out": round(score, 3),
        "steps": steps,
        "rate": setting[0],
        "clip norm": setting[1],
        "noise over signal": noise_over_signal(planner(len(y), max(STEPS))),
    }


def run(unit: Unit, folders: Folders) -> dict[str, Any]:
    """Tune and test every strategy of a cell."""
    torch.set_num_threads(1)
    if unit["kind"] == "backbone":
        (x, y), test = recipes.records(folders, unit["data"], PHOTOGRAPHS, BACKBONE_SHARE)
    else:
        (x, y), test = when_it_pays.records(folders.data, unit["data"])
    classes = int(y.max()) + 1  # public of these data sets
    rows = (x[: unit["records"]], y[: unit["records"]])
    pair = (unit["strict"], unit["loose"])

    def make_planner(make: Callable[..., BoundPlan], name: str) -> Planner:
        def planner(size: int, steps: int) -> BoundPlan:
            strict = round(size * unit["share"])
            return make(name, strict, size - strict, pair, steps)

        return planner

    def train_sampled(
        rows: Rows, plan: BoundPlan, settings: Sequence[tuple[float, float]], seed: int
    ) -> list[torch.Tensor]:
        return when_it_pays.train(rows, classes, plan, settings, seed, "linear")

    def train_correlated(
        rows: Rows, plan: BoundPlan, settings: Sequence[tuple[float, float]], seed: int
    ) -> list[torch.Tensor]:
        return without_sampling.train(rows, classes, plan, settings, seed)

    found: dict[str, Any] = {"classes": classes, "features": x.shape[1]}
    for name in BACKBONE if unit["kind"] == "backbone" else ("uniform",):
        planner = make_planner(when_it_pays.plan_of, name)
        found[name] = tune_and_test(rows, test, planner, train_sampled)
    if unit["kind"] == "correlated":
        for name in CORRELATED:
            planner = make_planner(correlated_plan, name)
            found[name] = tune_and_test(rows, test, planner, train_correlated)
    return found


def units(seeds: int, scale: float) -> list[Unit]:
    """Return the cells; seeds are inside a cell, and a scale takes that share of the cells."""
    draws = np.random.default_rng(49)
    linear = [cell for cell in when_it_pays.units(1, 1.0) if cell["model"] == "linear"]
    cells: list[Unit] = []
    for name in CORRELATED_DATA:
        possible = [cell for cell in linear if cell["data"] == name]
        chosen = sorted(draws.permutation(len(possible))[:CELLS_OF_EACH])
        cells += [{"kind": "correlated", **possible[position]} for position in chosen]
    for size, (strict, loose) in itertools.product(BACKBONE_SIZES, BACKBONE_BUDGETS):
        cells.append(
            {
                "kind": "backbone",
                "data": "cifar10-jpeg",
                "records": size,
                "model": "linear",
                "share": 0.5,
                "strict": strict,
                "loose": loose,
            }
        )
    return cells[: max(1, round(scale * len(cells)))]


def tables(done: Sequence[Outcome]) -> list[Table]:
    """Return each strategy's gain over Uniform with Poisson sampling, cell by cell."""
    return [table_of(done, "correlated", tuple(CORRELATED)), table_of(done, "backbone", BACKBONE)]


def table_of(done: Sequence[Outcome], kind: str, names: Sequence[str]) -> Table:
    """Return the cells of a kind."""
    compared = [name for name in names if name != "uniform"]
    rows = []
    for one in done:
        unit = one.unit
        if unit["kind"] != kind:
            continue
        gains = [when_it_pays.gains(one, name, "uniform") for name in compared]
        rows.append(
            [
                unit["data"],
                str(unit["records"]),
                f"{unit['share']:g}",
                f"{unit['strict']:g} and {unit['loose']:g}",
                f"{when_it_pays.noise_of(one, 'uniform'):.3f}",
                f"{np.mean(one.result['uniform']['accuracy']):.2f}",
                *(f"{gain.mean():+.2f} ± {half_width(gain.tolist()):.2f}" for gain in gains),
            ]
        )
    head = ["data", "records", "share of the strict", "budgets", "noise under uniform",
            "uniform, %", *compared]  # fmt: skip
    return Table(head, rows, title=f"Of kind “{kind}”: gains over uniform")


EXPERIMENT = Experiment(
    name="when-it-pays-beyond",
    paper="ours",
    shows="whether the predictor of when-it-pays holds for correlated noise and a public backbone",
    cost="10 to 150 seconds a cell on one thread, and the backbone's features of 20,000 images",
    units=units,
    run=run,
    tables=tables,
    notes=lambda done: (
        "Each strategy chose among the same 36 settings on two held-out fifths of the training "
        "records; gains are means of five seeds with their 95 % interval, paired with Uniform "
        "under Poisson sampling. What the predictor makes of these cells is in [when individual "
        "budgets pay](when-it-pays.md#the-predictor-where-it-was-not-fitted)."
    ),
    needs=("mnist", "fashion-mnist", "cifar10-jpeg"),
    reads=lambda unit: [unit["data"]] if unit["data"] in when_it_pays.PICTURES else [],
)
