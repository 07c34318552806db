"""Finished runs for tests: typed, small, with two strategies and two groups."""

from dataclasses import replace
from functools import cache

from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.jobs import Run
from apiece.jobs.results import Total
from apiece.jobs.trained import Facts, Trained
from apiece.plan import Plan

SETTINGS = {
    "batch_size": 20.0, "steps": 4, "clip_norm": 1.0, "learning_rate": 1.0, "momentum": 0.0,
}  # fmt: skip
FACTS = Facts(
    source="people.csv", packaged=False, label="y", classes=("a", "b"), schema="s", features=3,
    training_records=100, test_records=20, commonest_class_share=0.6, simulated_budgets=False,
)  # fmt: skip


@cache
def sample_plan(strategy: str, delta: float = 1e-3) -> Plan:
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 100, delta)
    plan = assign(budgets, strategy, steps=4, expected_batch_size=20, clip_norm=1.0)
    return plan.public()


def trained(name: str, mean: float, spread: float = 0.01, plan: Plan | None = None) -> Trained:
    accuracy = (mean - spread, mean + spread)
    return Trained(name, plan or sample_plan(name), SETTINGS, (0, 2), accuracy, 1.0)


def sample_run() -> Run:
    """A run of uniform and scale, two models each, of which scale's first is kept."""
    return Run(
        version="0",
        name="x",
        data=FACTS,
        strategy="scale",
        hidden=(),
        analysis=None,
        no_limit_cap=None,
        seed=0,
        strategies=(trained("uniform", 0.7), trained("scale", 0.8)),
        models=4,
        totals=(Total("strict", 1e-3, 2.5), Total("weak", 1e-3, 7.5)),
    )


def renamed(plan: Plan, names: list[str]) -> Plan:
    """Return a plan whose groups have other names."""
    import numpy as np

    return replace(plan, budget_groups=replace(plan.budget_groups, name=np.array(names)))
