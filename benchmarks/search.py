"""Forty configurations on Adult: under one promise, each paid for by composition, and none tried.

8,000 of Adult's training rows; the test rows say how good a model is and choose nothing. Budgets
1, 2 and 3 of 54, 37 and 9 % of the records, δ = 1e-5, strategy Scale, batches of 512. The forty
are 20 learning rates and 2 numbers of steps. Seeds are paired. The JSON is written after each seed.

    python benchmarks/search.py --out benchmarks/results/search.json
"""

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from apiece import Budgets, privacy_curve
from apiece.adapters import PrivateClassifier
from apiece.assignment import assign, assign_tuned
from apiece.datasets import load, packaged_schema
from apiece.jobs import Search
from apiece.mechanisms import Runs
from apiece.reproduce import machine

PEOPLE, DELTA, BATCH, SEARCHED = 8000, 1e-5, 512.0, "scale"
SPACE = {
    "learning_rate": [round(float(rate), 4) for rate in np.geomspace(0.01, 10, 20)],
    "steps": [50, 150],
}
MIDDLE = SPACE["learning_rate"][10]
LAWS = {f"search, {mean} runs on average": Runs(mean) for mean in (10, 40)}
EACH = "forty runs, each paid for"


class Adult:
    """The people, what they asked for, and a fit on them."""

    def __init__(self):
        frame = load("adult")
        parts = {p: frame[frame["split"] == p].drop(columns="split") for p in ("train", "test")}
        train = parts["train"].sample(PEOPLE, random_state=0)
        self.rows, self.test = [
            (part.drop(columns="income"), part["income"]) for part in (train, parts["test"])
        ]
        self.columns = {
            name: column
            for name, column in packaged_schema("adult").columns.items()
            if name in self.rows[0].columns
        }
        self.classes = sorted(frame["income"].unique())
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


def plans(adult):
    """Return the noise that each way takes, and ε of one run of the forty by its steps."""
    how = {"expected_batch_size": BATCH, "steps": max(SPACE["steps"])}
    once = assign(adult.budgets, SEARCHED, **how, clip_norm=1.0)
    total = len(SPACE["learning_rate"]) * sum(SPACE["steps"])
    all_of_them = assign(
        adult.budgets, SEARCHED, expected_batch_size=BATCH, steps=total, clip_norm=1.0
    )
    noise = {"one run": once.noise_stddev, EACH: all_of_them.noise_stddev}
    both = [{**how, "steps": steps} for steps in SPACE["steps"]]
    for name, runs in {**LAWS, "logarithmic law, 40 runs on average": Runs(40, 0)}.items():
        tuned = assign_tuned(adult.budgets, SEARCHED, both, runs=runs, score_noise=20.0)
        noise[name] = tuned[-1].noise_stddev
    of_run = {}
    for steps in SPACE["steps"]:
        parts = [replace(all_of_them.mechanism_for(g), times=steps) for g in range(3)]
        of_run[steps] = np.array([privacy_curve(part).epsilon(DELTA).upper for part in parts])
    return noise, of_run


def paid_for_each(adult, seed, of_run):
    """Return the best of forty models on the people trained on, each at its share of the budgets.

    The choosing itself is charged nothing here and has no noise: that is in favour of this way.
    """
    models = [
        adult.fit(1000 * seed + k, of_run[steps], learning_rate=rate, steps=steps)
        for k, (rate, steps) in enumerate(itertools.product(*SPACE.values()))
    ]
    return max(models, key=lambda model: model.score(*adult.rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=6)
    options = parser.parse_args()
    adult = Adult()
    noise, of_run = plans(adult)
    ways = {
        "defaults: 150 steps, rate 2": lambda s: adult.fit(s, steps=150),
        f"150 steps, rate {MIDDLE:g}": lambda s: adult.fit(s, steps=150, learning_rate=MIDDLE),
        **{
            name: lambda s, runs=runs: adult.fit(s, search=Search(SPACE, runs))
            for name, runs in LAWS.items()
        },
        EACH: lambda s: paid_for_each(adult, s, of_run),
    }
    rows = {way: [] for way in ways}
    for seed in range(options.seeds):
        for way, fit in ways.items():
            begun = time.monotonic()
            rows[way].append({"seed": seed, **adult.measured(fit(seed), begun)})
            print(seed, way, rows[way][-1], flush=True)
        made = {
            "machine": machine(),
            "people": PEOPLE,
            "space": SPACE,
            "noise": noise,
            "epsilon of one of forty, by steps": {str(k): v.tolist() for k, v in of_run.items()},
            "rows": rows,
        }
        options.out.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
