"""What pairs of columns add to PrivateClassifier, on the six tables of explainable.py.

    python -m research.benchmarks.pairs --out research/results/pairs.json

Needs the environment of explainable.py. Each table has four pairs, named by the matter and no
glance at its rows. At ε = 1 every pair is tried alone, and the two best together, with 4 and 16
knots for their numbers, on a fifth of the training rows, averaged over two seeds; the setting with
the smallest log loss is taken (which is not private). `chosen` tells whether it was better there
than no pair. Then, at each ε, three models are fitted to all training rows of each split and seed:
without pairs, with the knots of the setting alone, and with its pairs. `difference` has mean and
95 % interval (Student's t) of the paired differences of the last and each other.
"""

import argparse
import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np

from apiece.datasets import Categorical
from apiece.sklearn import PrivateClassifier
from research.benchmarks.explainable import (
    DELTA,
    HELD,
    METRICS,
    SEEDS,
    TABLES,
    TUNING_SEEDS,
    compare,
    score,
    split_rows,
)

EPSILONS = (1.0, 4.0)
# Where pairs are chosen.
CHOSEN_AT = 1.0
KNOTS = (4, 16)
PAIRS = {
    "adult": [
        ("age", "education_num"), ("age", "hours_per_week"),
        ("marital_status", "education_num"), ("occupation", "education_num"),
    ],
    "credit default": [
        ("PAY_0", "PAY_2"), ("PAY_0", "LIMIT_BAL"), ("PAY_0", "PAY_AMT1"), ("AGE", "MARRIAGE"),
    ],
    "doctor visits": [
        ("lncoins", "disea"), ("lncoins", "physlm"), ("disea", "physlm"), ("lpi", "fmde"),
    ],
    "affairs": [
        ("age", "yrs_married"), ("rate_marriage", "yrs_married"),
        ("rate_marriage", "religious"), ("children", "yrs_married"),
    ],
    "german": [
        ("duration", "credit_amount"), ("status", "duration"),
        ("purpose", "credit_amount"), ("age", "housing"),
    ],
    "tumours": [
        ("worst radius", "worst concave points"), ("worst area", "worst texture"),
        ("mean radius", "mean texture"), ("worst radius", "worst smoothness"),
    ],
}  # fmt: skip
MODELS = ("without", "knots alone", "with pairs")


def declare_knots(columns, pairs, knots):
    """Return the declarations with these knots for the numbers of pairs."""
    names = {name for pair in pairs for name in pair}
    return {
        name: replace(kind, knots=knots)
        if name in names and not isinstance(kind, Categorical)
        else kind
        for name, kind in columns.items()
    }


def fit(data, rows, tested, epsilon, seed, setting, model):
    """Return the scores on tested rows of a model that was fitted to rows."""
    table, y, columns = data
    pairs, knots = setting
    if model != "without":
        columns = declare_knots(columns, pairs, knots)
    estimator = PrivateClassifier(
        np.unique(y), columns, delta=DELTA, random_state=seed,
        pairs=pairs if model == "with pairs" else None,
    )  # fmt: skip
    estimator.fit(table[rows], y[rows], epsilon=epsilon)
    return score(y[tested], estimator.predict_proba(table[tested])[:, 1])


def try_setting(data, trained, setting, model="with pairs"):
    """Return a setting's mean log loss on held-out fifths of the training rows."""
    losses = []
    for seed in range(TUNING_SEEDS):
        held = trained & (np.random.default_rng(1000 + seed).random(len(trained)) < HELD)
        scores = fit(data, trained & ~held, held, CHOSEN_AT, 100 + seed, setting, model)
        losses.append(scores["log_loss"])
    return float(np.mean(losses))


def choose(name, data, trained):
    """Return the best setting, its log loss on held-out rows, and that without pairs."""
    losses = {}
    for knots in KNOTS:
        for pair in PAIRS[name]:
            setting = ((pair,), knots)
            losses[setting] = try_setting(data, trained, setting)
    (best,), knots = min(losses, key=losses.__getitem__)
    others = {pair: losses[(pair,), knots] for pair in PAIRS[name] if pair != best}
    both = ((best, min(others, key=others.__getitem__)), knots)
    losses[both] = try_setting(data, trained, both)
    setting = min(losses, key=losses.__getitem__)
    return setting, losses[setting], try_setting(data, trained, setting, "without")


def measure(name, seeds):
    table, y, columns, split = TABLES[name]()
    data = (table.reset_index(drop=True), y, columns)
    setting, loss, loss_without = choose(name, data, split_rows(split, len(y), 0))
    found = {
        "rows": len(y),
        "tried": [list(pair) for pair in PAIRS[name]],
        "chosen": {
            "pairs": [list(pair) for pair in setting[0]],
            "knots": setting[1],
            "held-out log loss": loss,
            "held-out log loss without": loss_without,
        },
    }
    print(name, json.dumps(found["chosen"]), flush=True)
    for epsilon in EPSILONS:
        runs = {model: [] for model in MODELS}
        for seed in range(seeds):
            rows = split_rows(split, len(y), seed)
            for model in MODELS:
                runs[model].append(fit(data, rows, ~rows, epsilon, seed, setting, model))
        found[f"epsilon {epsilon:g}"] = {
            "mean": {
                model: {metric: float(np.mean([run[metric] for run in part])) for metric in METRICS}
                for model, part in runs.items()
            },
            "difference": {
                f"with pairs − {model}": compare(runs["with pairs"], runs[model])
                for model in MODELS[:2]
            },
        }
        print(name, epsilon, json.dumps(found[f"epsilon {epsilon:g}"]), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=list(TABLES))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    stored = json.loads(asked.out.read_text()) if asked.out.exists() else {}
    for name in asked.tables:
        stored[name] = measure(name, asked.seeds)
        asked.out.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
