"""The constants behind the estimators' defaults, each beside its neighbours, on held-out rows.

    python -m research.benchmarks.estimator_defaults --out research/results/estimator_defaults.json

Needs the environment of explainable_regression.py. One constant at a time is changed, and the
model fitted to four fifths of a table's training rows, five times, by other coins and seeds; test
rows are not read. `difference` has mean and 95 % interval (Student's t) of the paired differences,
neighbour − default: of log loss and accuracy, or of the share of the variance that is not
explained, 1 − R². Less is better but for accuracy; "no effect" is where another constant binds.
Tables go from 442 to 61,395 rows.
"""

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from apiece.adapters.defaults import AMOUNT, CLASSES, measure_noise
from apiece.errors import ApieceError
from apiece.plan import Schedule
from apiece.sklearn import PrivateClassifier, PrivateRegressor
from research.benchmarks import explainable, explainable_regression
from research.intervals import half_width

EPSILONS = (1.0,)
DELTA = 1e-5
SEEDS = 5
HELD = 0.2
# Factors on a constant that has no natural neighbours.
FACTORS = (0.5, 2.0)
CURVES = (0, 8, 16, 32)
MOMENTA = (0.0, 0.95)
CONSTANT = Schedule(((0, 1.0),))
METRICS = {"classes": ("log_loss", "accuracy"), "amount": ("unexplained",)}


def list_neighbours(defaults, batch, steps):
    """Return constants of an estimator and its changes: parameters, and those of `Defaults`."""
    found = {}
    for factor in FACTORS:
        found[f"clip norm × {factor:g}"] = {"clip_norm": defaults.clip_norm * factor}, {}
        found[f"noise × {factor:g}"] = {}, {"noise": defaults.noise * factor}
        found[f"largest rate × {factor:g}"] = {}, {"largest": defaults.largest * factor}
        found[f"steps × {factor:g}"] = {"steps": int(steps * factor)}, {}
        found[f"batch × {factor:g}"] = {"batch_size": batch * factor}, {}
    for momentum in MOMENTA:
        found[f"momentum {momentum:g}"] = {"momentum": momentum}, {}
    found["constant rate"] = {"learning_rate_schedule": CONSTANT}, {}
    for knots in CURVES:
        found[f"curves {knots}"] = {"curves": knots}, {}
    return found


class Classes:
    """A table with classes, of which the training part alone is read."""

    kind = "classes"
    defaults = CLASSES

    def __init__(self, name):
        table, self.y, self.columns, split = explainable.TABLES[name]()
        self.rows = table.reset_index(drop=True)
        self.trained = explainable.split_rows(split, len(self.y), 0)

    def make(self, seed, settings):
        return PrivateClassifier(
            np.unique(self.y), self.columns, delta=DELTA, random_state=seed, **settings
        )

    def score(self, model, held):
        found = explainable.score(self.y[held], model.predict_proba(self.rows[held])[:, 1])
        return {metric: found[metric] for metric in METRICS[self.kind]}


class Amount:
    """A table with an amount, of which the training part alone is read."""

    kind = "amount"
    defaults = AMOUNT

    def __init__(self, name):
        self.data = explainable_regression.TABLES[name]()
        self.rows = self.data.rows
        self.y = self.data.y
        self.trained = explainable_regression.split_rows(len(self.y), 0)

    def make(self, seed, settings):
        data = self.data
        return PrivateRegressor(
            data.target, data.columns, delta=DELTA, random_state=seed, **settings
        )

    def score(self, model, held):
        return {"unexplained": 1 - float(model.score(self.rows[held], self.y[held]))}


# Tables with an amount: large, middling and small ones.
AMOUNTS = ("hourly earnings", "doctor visits", "test scores", "yearly wages", "diabetes")
TABLES = {f"{name}, classes": (Classes, name) for name in explainable.TABLES} | {
    f"{name}, amount": (Amount, name) for name in AMOUNTS
}


def fit(data, seed, epsilon, settings, constants):
    """Return a model with these settings and constants, and which rows it has not seen."""
    held = data.trained & (np.random.default_rng(2000 + seed).random(len(data.y)) < HELD)
    rows = data.trained & ~held
    model = data.make(200 + seed, settings)
    model._defaults = replace(data.defaults, **constants)
    model.fit(data.rows[rows], data.y[rows], epsilon=epsilon)
    return model, held


def score_setting(data, seed, epsilon, settings, constants):
    """Return a setting's scores on the held-out rows of a seed."""
    model, held = fit(data, seed, epsilon, settings, constants)
    return data.score(model, held)


def measure_neighbour(data, runs, epsilon, changes):
    """Return the paired differences of a neighbour from the default's runs, or why there are none.

    A change of a constant that the first seed does not feel is one that another constant binds.
    Knots may be the default's for a few seeds alone, where its noise is near their limit.
    """
    try:
        changed = [score_setting(data, 0, epsilon, *changes)]
    except ApieceError as refusal:
        return str(refusal)
    if changed[0] == runs[0] and "curves" not in changes[0]:
        return "no effect"
    changed += [score_setting(data, seed, epsilon, *changes) for seed in range(1, len(runs))]
    return compare(changed, runs)


def compare(first, second):
    """Return mean and 95 % interval of the paired differences first − second of each metric."""
    found = {}
    for metric in first[0]:
        gaps = [a[metric] - b[metric] for a, b in zip(first, second, strict=True)]
        mean, half = float(np.mean(gaps)), half_width(gaps)
        found[metric] = [mean, mean - half, mean + half]
    return found


def measure(name, seeds, epsilon):
    kind, table = TABLES[name]
    data = kind(table)
    begun = time.monotonic()
    runs, curves = [], set()
    for seed in range(seeds):
        model, held = fit(data, seed, epsilon, {}, {})
        runs.append(data.score(model, held))
        curves.add(model.curves_)
    batch = model.plan_.stages[0].expected_batch_size
    found = {
        "rows": int(data.trained.sum()),
        "default": {
            "curves": max(curves) if len(curves) == 1 else sorted(curves),
            "noise in the sum of gradients": measure_noise(model.plan_),
            "batch": batch,
        },
        "mean": {metric: float(np.mean([run[metric] for run in runs])) for metric in runs[0]},
        "difference": {},
    }
    for neighbour, changes in list_neighbours(data.defaults, batch, model.steps).items():
        if len(curves) == 1 and neighbour == f"curves {model.curves_}":
            continue
        found["difference"][neighbour] = measure_neighbour(data, runs, epsilon, changes)
    found["seconds"] = round(time.monotonic() - begun, 1)
    print(name, epsilon, json.dumps(found), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(EPSILONS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for epsilon in asked.epsilons:
        for name in asked.tables:
            part = stored.setdefault(f"epsilon {epsilon:g}", {})
            part[name] = measure(name, asked.seeds, epsilon)
            asked.out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
