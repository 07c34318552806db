"""Forty configurations: under one promise, each paid for by composition, and none tried.

8,000 training rows of Adult, or of MNIST with four pixels averaged to one, and a linear model; the
test rows say how good a model is and choose nothing. Budgets 1, 2 and 3 of 54, 37 and 9 % of the
records, δ = 1e-5, strategy Scale, batches of 512. The forty are 20 learning rates and 2 numbers of
steps. Seeds are paired. The JSON is written after each seed.

    python -m research.benchmarks.search --out research/results/search.json
    python -m research.benchmarks.search --data mnist --seeds 5 \\
        --out research/results/search_mnist.json
"""

import argparse
import itertools
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from apiece import Budgets, privacy_curve
from apiece.adapters.estimators import PrivateClassifier
from apiece.assignment import assign
from apiece.assignment.tuned import assign_tuned
from apiece.datasets import Numeric, load, packaged_schema
from apiece.jobs import Search
from apiece.mechanisms import Runs
from research.experiments.pictures import idx_folder
from research.machine import describe_machine

PEOPLE, DELTA, BATCH, SEARCHED = 8000, 1e-5, 512.0, "scale"
SPACE = {
    "learning_rate": [round(float(rate), 4) for rate in np.geomspace(0.01, 10, 20)],
    "steps": [50, 150],
}
MIDDLE = SPACE["learning_rate"][10]
LAWS = {f"search, {mean} runs on average": Runs(mean) for mean in (10, 40)}
EACH = "forty runs, each paid for"


def adult():
    """Return rows and labels to train on and to test on, the classes and the columns."""
    frame = load("adult")
    parts = {p: frame[frame["split"] == p].drop(columns="split") for p in ("train", "test")}
    parts["train"] = parts["train"].sample(PEOPLE, random_state=0)
    rows, test = [(part.drop(columns="income"), part["income"]) for part in parts.values()]
    schema = packaged_schema("adult").columns
    columns = {name: schema[name] for name in schema if name in rows[0].columns}
    return rows, test, sorted(frame["income"].unique()), columns


def mnist():
    """Return the same of handwritten digits, of 14 × 14 pixels."""
    found = []
    for part in ("train", "test"):
        images = idx_folder(Path(os.environ["APIECE_DATA"]) / "mnist", part)
        small = images.pixels.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)).reshape(-1, 196)
        found.append((small, images.labels))
    (pixels, labels), test = found
    some = np.random.default_rng(0).choice(len(labels), PEOPLE, replace=False)
    return (pixels[some], labels[some]), test, list(range(10)), Numeric(0, 255)


class World:
    """The people, what they asked for, and a fit on them."""

    def __init__(self, data):
        self.rows, self.test, self.classes, self.columns = {"adult": adult, "mnist": mnist}[data]()
        chances = np.random.default_rng(0).choice([0, 1, 2], PEOPLE, p=[0.54, 0.37, 0.09])
        self.group, self.asked = chances, np.array([1.0, 2.0, 3.0])
        self.budgets = Budgets(self.asked[chances], DELTA)

    def fit(self, seed, epsilon=None, **how):
        """Fit an estimator; nobody's promise is broken."""
        model = PrivateClassifier(
            self.classes, self.columns, delta=DELTA, strategy=SEARCHED, batch_size=BATCH,
            random_state=seed, **how,
        )  # fmt: skip
        asked = self.asked if epsilon is None else epsilon
        model.fit(*self.rows, epsilon=asked[self.group])
        assert all(p.epsilon_spent <= p.epsilon for p in model.promises_)
        return model

    def measured(self, model, begun):
        """Return what is kept of a model."""
        chosen = model.run_.kept.settings
        return {
            "accuracy": float(model.score(*self.test)),
            "settings": {name: chosen[name] for name in SPACE},
            "seconds": round(time.monotonic() - begun, 1),
        }


def plans(world):
    """Return the noise that each way takes, and ε of one run of the forty by its steps."""
    how = {"expected_batch_size": BATCH, "steps": max(SPACE["steps"])}
    once = assign(world.budgets, SEARCHED, **how, clip_norm=1.0)
    total = len(SPACE["learning_rate"]) * sum(SPACE["steps"])
    all_of_them = assign(
        world.budgets, SEARCHED, expected_batch_size=BATCH, steps=total, clip_norm=1.0
    )
    noise = {"one run": once.noise_stddev, EACH: all_of_them.noise_stddev}
    both = [{**how, "steps": steps} for steps in SPACE["steps"]]
    for name, runs in {**LAWS, "logarithmic law, 40 runs on average": Runs(40, 0)}.items():
        tuned = assign_tuned(world.budgets, SEARCHED, both, runs=runs, score_noise=20.0)
        noise[name] = tuned[-1].noise_stddev
    of_run = {}
    for steps in SPACE["steps"]:
        parts = [replace(all_of_them.mechanism_for(g), times=steps) for g in range(3)]
        of_run[steps] = np.array([privacy_curve(part).epsilon(DELTA).upper for part in parts])
    return noise, of_run


def paid_for_each(world, seed, of_run):
    """Return the best of forty models on the people trained on, each at its share of the budgets.

    The choosing itself is charged nothing here and has no noise: that is in favour of this way.
    """
    models = [
        world.fit(1000 * seed + k, of_run[steps], learning_rate=rate, steps=steps)
        for k, (rate, steps) in enumerate(itertools.product(*SPACE.values()))
    ]
    return max(models, key=lambda model: model.score(*world.rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", choices=("adult", "mnist"), default="adult")
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    world = World(options.data)
    noise, of_run = plans(world)
    ways = {
        "defaults: 150 steps, rate 2": lambda s: world.fit(s, steps=150),
        f"150 steps, rate {MIDDLE:g}": lambda s: world.fit(s, steps=150, learning_rate=MIDDLE),
        **{
            name: lambda s, runs=runs: world.fit(s, search=Search(SPACE, runs))
            for name, runs in LAWS.items()
        },
        EACH: lambda s: paid_for_each(world, s, of_run),
    }
    rows = {way: [] for way in ways}
    for seed in range(options.seeds):
        for way, fit in ways.items():
            begun = time.monotonic()
            rows[way].append({"seed": seed, **world.measured(fit(seed), begun)})
            print(seed, way, rows[way][-1], flush=True)
        made = {
            "machine": describe_machine(),
            "data": options.data,
            "people": PEOPLE,
            "space": SPACE,
            "noise": noise,
            "epsilon of one of forty, by steps": {str(k): v.tolist() for k, v in of_run.items()},
            "rows": rows,
        }
        options.out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
