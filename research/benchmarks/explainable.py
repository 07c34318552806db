"""PrivateClassifier beside DP-EBM and diffprivlib's logistic regression, on six tables.

    python -m research.benchmarks.explainable --out research/results/explainable.json

Needs interpret-core, diffprivlib with a scikit-learn that it bears (1.6), and statsmodels, whose
package has two of the tables: an environment of its own. Everybody has the same ε, as neither of
the others has budgets a record; δ = 1e-5, and diffprivlib has none. All see the same declared
ranges and values: numbers are clipped to them, and diffprivlib gets the encoded features, whose
norm is bounded by the columns. A contender is tried with its defaults, and with the settings of
its grid that have the smallest log loss on a fifth of the training rows, averaged over two seeds
(which is not private). Then every contender is fitted to all training rows of each split and
seed, and `difference` has mean and 95 % interval (Student's t) of the paired differences.
"""

import argparse
import json
import time
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score

from apiece.datasets import Categorical, Numeric, load, packaged_schema
from apiece.datasets.encode import encode
from apiece.sklearn import PrivateClassifier

EPSILONS = (0.5, 1.0, 4.0)
DELTA = 1e-5
SEEDS = 5
TUNING_SEEDS = 2
# Share of the training rows that settings are chosen on, and of all rows that are the test part.
HELD = 0.2
# Bins of the expected calibration error.
BINS = 15
METRICS = ("accuracy", "auroc", "calibration", "log_loss")
GRIDS = {
    "apiece": {"clip_norm": [2.0, 3.0, 5.0], "curves": [None, 0], "steps": [200]},
    "dp-ebm": {"max_bins": [16, 32], "max_rounds": [100, 300, 1000]},
    "diffprivlib": {"C": [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]},
}
# Ranges by the codebook of each table, and no glance at its rows.
AFFAIRS = {
    "rate_marriage": Numeric(1, 5),
    "age": Numeric(15, 45),
    "yrs_married": Numeric(0, 25),
    "children": Numeric(0, 6),
    "religious": Numeric(1, 4),
    "educ": Numeric(9, 20),
    "occupation": Numeric(1, 6),
    "occupation_husb": Numeric(1, 6),
}
HEALTH = {
    "lncoins": Numeric(0, 5),
    "idp": Numeric(0, 1),
    "lpi": Numeric(0, 8),
    "fmde": Numeric(0, 9),
    "physlm": Numeric(0, 1),
    "disea": Numeric(0, 60),
    "hlthg": Numeric(0, 1),
    "hlthf": Numeric(0, 1),
    "hlthp": Numeric(0, 1),
}
# As scikit-learn's description of the table states them, rounded outwards.
TUMOURS = {
    "radius": (5, 40), "texture": (5, 50), "perimeter": (40, 260), "area": (100, 4500),
    "smoothness": (0, 0.3), "compactness": (0, 1.2), "concavity": (0, 1.3),
    "concave points": (0, 0.3), "symmetry": (0.1, 0.7), "fractal dimension": (0.04, 0.21),
}  # fmt: skip
ERRORS = {
    "radius": (0, 3), "texture": (0, 5), "perimeter": (0, 22), "area": (0, 550),
    "smoothness": (0, 0.04), "compactness": (0, 0.14), "concavity": (0, 0.4),
    "concave points": (0, 0.06), "symmetry": (0, 0.08), "fractal dimension": (0, 0.03),
}  # fmt: skip


def read_packaged(name, label):
    table, schema = load(name), packaged_schema(name)
    columns = schema.features(but={label, "split"})
    split = None
    if "split" in table:
        split = (table["split"].astype(str) == "train").to_numpy()
    return table[list(columns)], table[label].astype(str).to_numpy(), columns, split


def read_affairs():
    from statsmodels.datasets import fair

    table = fair.load_pandas().data
    return table[list(AFFAIRS)], np.where(table["affairs"] > 0, "yes", "no"), AFFAIRS, None


def read_health():
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    return table[list(HEALTH)], np.where(table["mdvis"] > 0, "yes", "no"), HEALTH, None


def read_tumours():
    found = load_breast_cancer()
    columns = {}
    for name in found.feature_names:
        kind = name.replace("mean ", "").replace("worst ", "").replace(" error", "")
        columns[str(name)] = Numeric(*(ERRORS if "error" in name else TUMOURS)[kind])
    table = pd.DataFrame(found.data, columns=list(columns))
    return table, np.where(found.target == 0, "malignant", "benign"), columns, None


TABLES = {
    "adult": lambda: read_packaged("adult", "income"),
    "credit default": lambda: read_packaged("credit_default", "default"),
    "doctor visits": read_health,
    "affairs": read_affairs,
    "german": lambda: read_packaged("german", "risk"),
    "tumours": read_tumours,
}


def fit_apiece(data, rows, epsilon, seed, settings):
    table, y, columns = data
    model = PrivateClassifier(np.unique(y), columns, delta=DELTA, random_state=seed, **settings)
    model.fit(table[rows], y[rows], epsilon=epsilon)
    return lambda tested: model.predict_proba(table[tested])[:, 1]


def prepare_bins(table, columns):
    """Return cells for DP-EBM: numbers clipped to their ranges, other values as declared."""
    cells, kinds, bounds = {}, [], {}
    for position, (name, kind) in enumerate(columns.items()):
        if isinstance(kind, Numeric):
            numbers = pd.to_numeric(table[name], errors="coerce")
            cells[name] = numbers.clip(kind.lower, kind.upper).to_numpy(float)
            kinds.append("continuous")
            bounds[position] = (kind.lower, kind.upper)
        else:
            cells[name] = table[name].astype(str).to_numpy()
            kinds.append("nominal")
    return pd.DataFrame(cells), kinds, bounds


def fit_ebm(data, rows, epsilon, seed, settings):
    from interpret.privacy import DPExplainableBoostingClassifier

    table, y, columns = data
    cells, kinds, bounds = prepare_bins(table, columns)
    model = DPExplainableBoostingClassifier(
        feature_types=kinds, privacy_bounds=bounds, epsilon=epsilon, delta=DELTA,
        random_state=seed, n_jobs=1, **settings,
    )  # fmt: skip
    model.fit(cells[rows], y[rows])
    return lambda tested: model.predict_proba(cells[tested])[:, 1]


def fit_diffprivlib(data, rows, epsilon, seed, settings):
    from diffprivlib.models import LogisticRegression

    table, y, columns = data
    features = encode(table, columns).features.astype(float)
    # Each column's features have a norm of at most 1, a number with a cell for "missing" √2.
    norm = np.sqrt(sum(2 if kind.missing else 1 for kind in columns.values()))
    model = LogisticRegression(
        epsilon=epsilon, data_norm=float(norm), random_state=seed, max_iter=300, **settings
    )
    model.fit(features[rows], y[rows])
    return lambda tested: model.predict_proba(features[tested])[:, 1]


CONTENDERS = {"apiece": fit_apiece, "dp-ebm": fit_ebm, "diffprivlib": fit_diffprivlib}


def score(y, probability):
    names = np.unique(y)
    truth = y == names[1]
    bins = np.minimum((probability * BINS).astype(int), BINS - 1)
    gaps = [abs((probability - truth)[bins == place].sum()) for place in range(BINS)]
    return {
        "accuracy": float(((probability > 0.5) == truth).mean()),
        "auroc": float(roc_auc_score(truth, probability)),
        "calibration": float(sum(gaps) / len(y)),
        "log_loss": float(log_loss(truth, np.clip(probability, 1e-6, 1 - 1e-6))),
    }


def choose(name, data, trained, epsilon):
    """Return the settings of a contender with the smallest log loss on held-out training rows."""
    grid = GRIDS[name]
    best, smallest = {}, np.inf
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        losses = []
        for seed in range(TUNING_SEEDS):
            held = trained & (np.random.default_rng(1000 + seed).random(len(trained)) < HELD)
            predict = CONTENDERS[name](data, trained & ~held, epsilon, 100 + seed, settings)
            losses.append(score(data[1][held], predict(held))["log_loss"])
        if np.mean(losses) < smallest:
            best, smallest = settings, np.mean(losses)
    return best


def split_rows(split, size, seed):
    if split is not None:
        return split
    return np.random.default_rng(seed).random(size) >= HELD


def compare(first, second):
    """Return mean and 95 % interval of the paired differences first − second of each metric."""
    found = {}
    for metric in METRICS:
        gap = np.array([a[metric] - b[metric] for a, b in zip(first, second, strict=True)])
        half = stats.t.ppf(0.975, len(gap) - 1) * gap.std(ddof=1) / np.sqrt(len(gap))
        found[metric] = [float(gap.mean()), float(gap.mean() - half), float(gap.mean() + half)]
    return found


def measure(name, seeds):
    table, y, columns, split = TABLES[name]()
    table = table.reset_index(drop=True)
    data = (table, y, columns)
    counts = np.unique(y, return_counts=True)[1]
    found = {
        "rows": len(y),
        "columns": len(columns),
        "commonest class": float(counts.max() / len(y)),
        "categories": sum(isinstance(kind, Categorical) for kind in columns.values()),
    }
    for epsilon in EPSILONS:
        runs, chosen, seconds = {}, {}, {}
        for contender, fit in CONTENDERS.items():
            chosen[contender] = choose(contender, data, split_rows(split, len(y), 0), epsilon)
            for kind, settings in (("tuned", chosen[contender]), ("defaults", {})):
                key = f"{contender}, {kind}"
                runs[key] = []
                begun = time.monotonic()
                for seed in range(seeds):
                    rows = split_rows(split, len(y), seed)
                    predict = fit(data, rows, epsilon, seed, settings)
                    runs[key].append(score(y[~rows], predict(~rows)))
                seconds[key] = round((time.monotonic() - begun) / seeds, 2)
        difference = {}
        for other in ("dp-ebm", "diffprivlib"):
            for kind in ("tuned", "defaults"):
                pair = f"apiece − {other}, {kind}"
                difference[pair] = compare(runs[f"apiece, {kind}"], runs[f"{other}, {kind}"])
        found[f"epsilon {epsilon:g}"] = {
            "mean": {
                key: {metric: float(np.mean([run[metric] for run in part])) for metric in METRICS}
                for key, part in runs.items()
            },
            "stddev": {
                key: {m: float(np.std([run[m] for run in part], ddof=1)) for m in METRICS}
                for key, part in runs.items()
            },
            "difference": difference,
            "chosen": chosen,
            "seconds a fit": seconds,
        }
        print(name, epsilon, json.dumps(found[f"epsilon {epsilon:g}"]["mean"]), flush=True)
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
