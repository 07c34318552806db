"""Exactly k of T steps: how long a question takes, how close its bounds are, and what it saves.

    python -m research.benchmarks.allocate
    python -m research.benchmarks.allocate accuracy

The first writes research/results/allocate.json: for each question ε by random allocation (lower,
upper), the processor time it took, and Poisson sampling with as many steps in expectation; then the
noise over signal of plans by Allocate and by Sample for the same budgets. The second writes
allocate_accuracy.json: softmax regression on 8,000 people of Adult by both strategies, the rate of
learning picked for each on people held out; people and budgets of a seed are the same for both.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import fmean, stdev

import numpy as np

from apiece import Budgets, assign
from apiece.accounting import privacy_curve
from apiece.accounting.lattice.allocation import build_ratio_law
from apiece.assignment.front import noise_over_signal
from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode, encode_labels
from apiece.plan import BoundPlan
from apiece.plan.parts import allocated_steps, sampled_steps
from apiece.training.batches import OneStream, draw_batches
from research import RESULTS
from research.machine import describe_machine

QUESTIONS = [
    (1.0, 1000, 1, 1e-5), (0.5, 1000, 1, 1e-5), (2.0, 1000, 1, 1e-6), (0.7, 123, 1, 1e-8),
    (3.0, 7, 1, 1e-6), (1.0, 1000, 10, 1e-5), (2.0, 500, 25, 1e-6), (2.0, 2500, 50, 1e-6),
    (3.0, 700, 100, 1e-6), (0.7, 1000, 5, 1e-6), (2.0, 100, 3, 1e-5),
]  # fmt: skip
TRAININGS = [(100, 512, 20_000), (300, 256, 20_000), (30, 1024, 20_000)]  # steps, batch, records
GROUPS = [("strict", 0.5, 0.34), ("medium", 1.0, 0.43), ("weak", 2.0, 0.23)]
PEOPLE, HELD, SEEDS, RATES = 8_000, 6_000, 20, (0.5, 1.0, 2.0, 4.0, 8.0)
ACCURACY = [(100, 256), (300, 256), (300, 80)]  # steps, batch; the last: single steps for many
OUT = RESULTS
Rows = tuple[np.ndarray, np.ndarray]


def question(z: float, steps: int, times: int, delta: float) -> dict[str, float]:
    """Return bounds on ε, the processor time, and the upper bound of Poisson sampling."""
    build_ratio_law.cache_clear()
    began = time.process_time()
    own = privacy_curve(allocated_steps(z, times, steps)).epsilon(delta)
    took = time.process_time() - began
    poisson = privacy_curve(sampled_steps(z, times / steps, steps)).epsilon(delta)
    return {
        "z": z, "T": steps, "k": times, "delta": delta, "lower": own.lower, "upper": own.upper,
        "gap": own.upper - own.lower, "processor seconds": took, "poisson upper": poisson.upper,
    }  # fmt: skip


def training(steps: int, batch: float, records: int) -> dict[str, object]:
    """Return both plans' noise over signal for budgets 1, 2 and 3."""
    groups = [("strict", 1.0, 0.34), ("medium", 2.0, 0.43), ("weak", 3.0, 0.23)]
    budgets = Budgets.from_groups(groups, records, 1e-5)
    row: dict[str, object] = {"T": steps, "batch asked": batch, "records": records}
    for name in ("sample", "allocate"):
        plan = assign(budgets, name, steps=steps, expected_batch_size=batch, clip_norm=1.0)
        row[name] = {
            "noise over signal": noise_over_signal(plan),
            "expected batch size": plan.expected_batch_size,
            "noise": plan.noise_stddev,
            "spent share": plan.spent_share.tolist(),
            "steps of a record": (plan.stages[0].sampling_probability * steps).tolist(),
        }
    return row


def adult() -> tuple[Rows, Rows]:
    """Return Adult's training and test part: features with a one, and classes."""
    schema, frame = packaged_schema("adult"), load("adult")
    x = encode(frame, schema.features(but={"income", "split"})).features
    y = encode_labels(frame, "income", schema.classes("income"))
    x, train = np.column_stack([x, np.ones(len(x))]), (frame["split"] == "train").to_numpy()
    return (x[train], y[train]), (x[~train], y[~train])


def trained(plan: BoundPlan, rows: Rows, rate: float, seed: int) -> np.ndarray:
    """Return softmax regression by DP-SGD; norms of its gradients (p - y) xᵀ have a closed form."""
    x, truth = rows[0], np.eye(2)[rows[1]]
    stage, noise = plan.stages[0], np.random.default_rng([seed, 1])
    weights, clip = np.zeros((2, x.shape[1])), stage.clip_norm[plan.group_index]
    for batch in draw_batches(plan, OneStream(np.random.default_rng([seed, 2]))):
        inside = np.exp(x[batch] @ weights.T)
        off = inside / inside.sum(axis=1, keepdims=True) - truth[batch]
        norm = np.linalg.norm(off, axis=1) * np.linalg.norm(x[batch], axis=1)
        factor = np.minimum(1, clip[batch] / np.maximum(norm, 1e-12))[:, None]
        total = (factor * off).T @ x[batch] + noise.normal(0, stage.noise_stddev, weights.shape)
        weights -= rate * total / stage.expected_batch_size
    return weights


def scored(weights: np.ndarray, rows: Rows) -> float:
    """Return accuracy in per cent."""
    return 100 * float(((rows[0] @ weights.T).argmax(axis=1) == rows[1]).mean())


def accuracy(steps: int, batch: float, train: Rows, test: Rows) -> dict[str, object]:
    """Return test accuracies by both strategies, seed by seed."""
    held, open_ = (tuple(part[at] for part in train) for at in (slice(HELD), slice(HELD, None)))
    budgets = Budgets.from_groups(GROUPS, PEOPLE, 1e-5)

    def some(seed: int) -> Rows:
        chosen = np.random.default_rng(seed).permutation(len(open_[1]))[:PEOPLE]
        return open_[0][chosen], open_[1][chosen]

    row: dict[str, object] = {"T": steps, "batch asked": batch, "people": PEOPLE}
    found = {}
    for name in ("sample", "allocate"):
        plan = assign(budgets, name, steps=steps, expected_batch_size=batch, clip_norm=1.0)
        tried = {
            rate: fmean(scored(trained(plan, some(s), rate, s), held) for s in (101, 102, 103))
            for rate in RATES
        }
        rate = max(tried, key=lambda r: tried[r])
        found[name] = [scored(trained(plan, some(s), rate, s), test) for s in range(SEEDS)]
        row[name] = {
            "rate": rate, "held out": tried, "test": found[name], "mean": fmean(found[name]),
            "noise over signal": noise_over_signal(plan), "noise": plan.noise_stddev,
            "expected batch size": plan.expected_batch_size,
            "spent share": plan.spent_share.tolist(),
            "steps of a record": (plan.stages[0].sampling_probability * steps).tolist(),
        }  # fmt: skip
    gaps = [a - b for a, b in zip(found["allocate"], found["sample"], strict=True)]
    row["allocate less sample"] = {"mean": fmean(gaps), "standard error": stdev(gaps) / SEEDS**0.5}
    return row


def main() -> None:
    """Measure, print and store."""
    if sys.argv[1:] == ["accuracy"]:
        parts = adult()
        told = {"accuracy": [accuracy(*each, *parts) for each in ACCURACY]}
        name = "allocate_accuracy.json"
    else:
        question(2.0, 12, 2, 1e-5)  # what is imported and made once in a process
        told = {
            "questions": [question(*each) for each in QUESTIONS],
            "plans": [training(*each) for each in TRAININGS],
        }
        name = "allocate.json"
    text = json.dumps({"machine": describe_machine(), **told}, indent=1)
    print(text)
    (OUT / name).write_text(text)


if __name__ == "__main__":
    main()
