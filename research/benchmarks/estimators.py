"""PrivateClassifier with its defaults beside scikit-learn's logistic regression without privacy.

    python -m research.benchmarks.estimators [--seeds 3] [--out FILE]

prints JSON: accuracy on the test part of Adult (its own split) and of Default of Credit Card
Clients (a fifth, by a fixed coin).
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

from apiece.datasets import load, packaged_schema
from apiece.datasets.encode import encode
from apiece.datasets.packaged import PACKAGED
from apiece.sklearn import PrivateClassifier

EPSILONS = (0.1, 0.5, 1.0, 3.0)
# Names of budgets, their ε and shares: as in examples/adult.toml.
MIXED = ((0.1, 0.34), (0.5, 0.43), (1.0, 0.23))


def budgets(kind, size):
    if kind != "mixed":
        return kind
    values, shares = zip(*MIXED, strict=True)
    return np.random.default_rng(0).choice(values, size, p=shares)


def measure(name, seeds):
    table, schema, label = load(name), packaged_schema(name), PACKAGED[name].label
    columns = schema.features(but={label, "split"})
    if PACKAGED[name].split:
        trained = (table["split"].astype(str) == "train").to_numpy()
    else:
        trained = np.random.default_rng(0).random(len(table)) >= 0.2
    X, y = table[list(columns)], table[label].astype(str)
    found = {"records": int(trained.sum()), "test": int((~trained).sum())}
    features = encode(table, columns).features
    plain = LogisticRegression(max_iter=1000).fit(features[trained], y[trained])
    found["without privacy"] = float(plain.score(features[~trained], y[~trained]))
    found["commonest class"] = float(y[~trained].value_counts(normalize=True).iloc[0])
    for kind in (*EPSILONS, "mixed"):
        scores, begun = [], time.monotonic()
        for seed in range(seeds):
            model = PrivateClassifier(schema.classes(label), columns, random_state=seed)
            model.fit(X[trained], y[trained], epsilon=budgets(kind, found["records"]))
            assert all(p.epsilon_spent <= p.epsilon for p in model.promises_)
            scores.append(model.score(X[~trained], y[~trained]))
        found[f"epsilon {kind}"] = {
            "mean": float(np.mean(scores)),
            "stddev": float(np.std(scores, ddof=1)) if seeds > 1 else None,
            "seconds a fit": round((time.monotonic() - begun) / seeds, 1),
        }
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = json.dumps({n: measure(n, asked.seeds) for n in ("adult", "credit_default")}, indent=2)
    print(text)
    if asked.out:
        asked.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
