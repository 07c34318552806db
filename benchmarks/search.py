"""Forty configurations under one promise, on Adult: a search, fixed defaults, and paying for each.

A fifth of Adult's training rows; the test rows say how good a model is and choose nothing. Budgets
1, 2 and 3 of 54, 37 and 9 % of the records, δ = 1e-5, strategy Scale. Forty configurations: steps
and learning rates. Seeds are paired. JSON to --out or stdout.

    python benchmarks/search.py --out benchmarks/results/search.json
"""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np

from apiece import Budgets
from apiece.adapters import PrivateClassifier
from apiece.assignment import assign, assign_tuned
from apiece.datasets import load, packaged_schema
from apiece.jobs import Search
from apiece.mechanisms import Runs

RATES = [round(float(rate), 4) for rate in np.geomspace(0.01, 10, 20)]
STEPS = [50, 150]
BATCH = 512.0
LAWS = {"geometric, 10 runs": Runs(10), "logarithmic, 40 runs": Runs(40, 0)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    frame = load("adult")
    train, test = (
        frame[frame["split"] == part].drop(columns="split") for part in ("train", "test")
    )
    train = train.sample(frac=0.2, random_state=0)
    columns = {k: v for k, v in packaged_schema("adult").columns.items() if k in train.columns}
    columns.pop("income")
    classes = sorted(frame["income"].unique())
    epsilon = np.random.default_rng(0).choice([1.0, 2.0, 3.0], len(train), p=[0.54, 0.37, 0.09])

    def accuracy(seed: int, **how: object) -> dict[str, object]:
        begun = time.monotonic()
        model = PrivateClassifier(
            classes, columns, strategy="scale", batch_size=BATCH, random_state=seed, **how
        )
        model.fit(train.drop(columns="income"), train["income"], epsilon=epsilon)
        over = [p.epsilon_spent > p.epsilon for p in model.promises_]
        return {
            "seed": seed,
            "accuracy": model.score(test.drop(columns="income"), test["income"]),
            "settings": dict(model.run_.kept.settings),
            "spent_share": [p.spent_share for p in model.promises_],
            "over": sum(over),
            "seconds": round(time.monotonic() - begun, 1),
        }

    rows: dict[str, list[dict[str, object]]] = {}
    for seed in range(options.seeds):
        rows.setdefault("defaults: 150 steps, rate 2", []).append(accuracy(seed, steps=150))
        rows.setdefault("middle of the space: rate 0.3", []).append(
            accuracy(seed, steps=150, learning_rate=RATES[10])
        )
        for name, runs in LAWS.items():
            space = {"learning_rate": RATES, "steps": STEPS}
            rows.setdefault(name, []).append(accuracy(seed, search=Search(space, runs)))
        print(json.dumps({k: v[-1]["accuracy"] for k, v in rows.items()}), flush=True)
    # Paying for each of forty runs is a training of forty times the steps, of which all may be
    # looked at; how much noise that takes is told by the plans alone.
    budgets, how = Budgets(epsilon, 1e-5), {"expected_batch_size": BATCH, "steps": 150}
    once = assign(budgets, "scale", **how, clip_norm=1.0)
    each = assign(budgets, "scale", **{**how, "steps": 40 * 150}, clip_norm=1.0)
    noise = {"one run": once.noise_stddev, "forty runs, each paid for": each.noise_stddev}
    for name, runs in {**LAWS, "geometric, 40 runs": Runs(40)}.items():
        noise[name] = assign_tuned(budgets, "scale", [how], runs=runs)[0].noise_stddev
    text = json.dumps(
        {"machine": platform.processor() or platform.machine(), "noise": noise, "rows": rows},
        indent=1,
    )
    options.out.write_text(text + "\n") if options.out else print(text)


if __name__ == "__main__":
    main()
