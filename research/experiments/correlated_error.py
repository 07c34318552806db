"""How much correlated noise disturbs a training, against Poisson sampling at the same ε, by plans.

The measure is the noise on what an optimizer makes of gradients, a root mean square over steps,
over their sum: running sums, with momentum or a learning rate that falls linearly to nothing. All
records ask the same; δ = 1e-5. No training is run. "Square root" is what theory offers before any
search: the banded square root, without sampling, with the number of bands that is best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apiece.assignment import Correlated, Uniform, assign
from apiece.budgets import Budgets
from apiece.correlation.strategies import Banded
from apiece.correlation.workloads import Workload
from apiece.plan import Plan
from research.experiment import Experiment, Folders, Outcome, Table, Unit

RECORDS = 20_000
DELTA = 1e-5
EPSILONS = (1.0, 2.0, 3.0, 8.0)
# Steps and passes over the records.
SHAPES = ((1000, 1), (1000, 10), (256, 16))
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "sums": {},
    "momentum .9": {"momentum": 0.9},
    "schedule": {"falling": True},
}
# Of the issue of this measure: banded square root on paper, running sums.
PAPER = {
    (1000, 1): (0.81, 0.49, 0.38, 0.22),
    (1000, 10): (1.43, 1.12, 0.92, 0.55),
    (256, 16): (1.30, 1.23, 1.16, 0.89),
}


def workload_options(name: str, steps: int) -> dict[str, Any]:
    """Return the options of `Correlated` for a workload."""
    options = dict(WORKLOADS[name])
    if options.pop("falling", False):
        options["learning_rates"] = 1 - np.arange(steps) / steps
    return options


def disturbance(plan: Plan, workload: Workload) -> float:
    """Return the error of what the optimizer makes of gradients, over the batch."""
    (stage,) = plan.stages
    matrix = Banded([1.0]) if stage.correlated is None else stage.correlated.strategy
    return stage.noise_stddev * workload.mean_error(matrix) / stage.expected_batch_size


def run(unit: Unit, place: Folders) -> dict[str, Any]:
    """Return each side's disturbance over that of Poisson sampling."""
    steps, passes = unit["steps"], unit["passes"]
    options = workload_options(unit["workload"], steps)
    workload = Workload(steps, **options)
    budgets = Budgets(np.full(RECORDS, unit["epsilon"]), DELTA)
    shape: dict[str, Any] = {
        "steps": steps,
        "expected_batch_size": RECORDS * passes / steps,
        "clip_norm": 1.0,
    }
    poisson = disturbance(assign(budgets, Uniform(), **shape), workload)
    separation = steps // passes
    sides = {
        "fixed": Correlated(**options),
        "four buffers": Correlated(buffers=4, **options),
        "coins": Correlated(sampled=True, **options),
    }
    found: dict[str, Any] = {}
    for name, noise in sides.items():
        plan = assign(budgets, Uniform(), noise=noise, **shape)
        found[name] = round(disturbance(plan, workload) / poisson, 4)
        stage = plan.stages[0]
        if name == "coins":
            parts = 1 if stage.correlated is None else stage.correlated.separation
            found["parts"] = "fixed" if plan.has_fixed_steps else parts
    bands = sorted({1, 2, 4, 8, 16, *(n for n in (32, 64, 128) if n <= separation), separation})
    found["square root"] = round(
        min(
            disturbance(
                assign(budgets, Uniform(), noise=Correlated(strategy=Banded.square_root(n),
                                                            **options), **shape),
                workload,
            )
            for n in bands
        )
        / poisson,
        4,
    )  # fmt: skip
    return found


def units(seeds: int, scale: float) -> list[Unit]:
    """Return each setting; nothing in it is drawn."""
    return [
        {"steps": steps, "passes": passes, "epsilon": epsilon, "workload": workload}
        for steps, passes in SHAPES
        for workload in WORKLOADS
        for epsilon in EPSILONS
    ]


def tables(done: Sequence[Outcome]) -> list[Table]:
    """Return the ratios to Poisson sampling."""
    rows = []
    for outcome in done:
        unit, found = outcome.unit, outcome.result
        assert isinstance(found, dict)
        paper = "–"
        if unit["workload"] == "sums":
            position = EPSILONS.index(unit["epsilon"])
            paper = f"{PAPER[unit['steps'], unit['passes']][position]:.2f}"
        numbers = [f"{found[k]:.2f}" for k in ("square root", "fixed", "four buffers", "coins")]
        head = [f"{unit['steps']} in {unit['passes']} passes", unit["workload"]]
        rows.append([*head, f"{unit['epsilon']:g}", paper, *numbers, str(found["parts"])])
    columns = ["steps", "optimizer", "ε", "on paper", "square root", "fixed steps",
               "four buffers", "with coins", "parts"]  # fmt: skip
    return [Table(columns, rows)]


EXPERIMENT = Experiment(
    name="correlated-error",
    paper="ours",
    shows="how much correlated noise disturbs a training, over Poisson sampling at the same ε",
    cost="seconds a unit",
    units=units,
    run=run,
    tables=tables,
    notes=lambda done: (
        "Ratios of the noise on what the optimizer makes of gradients to that of Poisson "
        "sampling; below 1 is less noise. With coins the planner chooses the number of parts that "
        "take turns, from one (Poisson sampling) to fixed steps, so that no ratio is above 1."
    ),
)
