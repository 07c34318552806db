"""A few rows of two columns, and estimators that are fitted to them in no time."""

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from apiece.sklearn import Categorical, Numeric, PrivateClassifier, PrivateRegressor

ROWS = 400
COLUMNS = {"age": Numeric(0, 100), "city": Categorical(["Bonn", "Köln"], missing=["?"])}


@cache
def people() -> pd.DataFrame:
    """Return a table whose column `age` says the label and the pay."""
    generator = np.random.default_rng(0)
    age = generator.uniform(0, 100, ROWS)
    city = generator.choice(["Bonn", "Köln", "?"], ROWS)
    label = np.where(age > 50, "old", "young")
    return pd.DataFrame({"age": age, "city": city, "label": label, "pay": 3 * age})


def features() -> pd.DataFrame:
    return people()[["age", "city"]]


def classifier(**changes: Any) -> PrivateClassifier:
    """Return an estimator of few steps, repeatable."""
    given = {"steps": 20, "batch_size": 100, "delta": 1e-4, "random_state": 0, **changes}
    return PrivateClassifier(["young", "old"], COLUMNS, **given)


def regressor(**changes: Any) -> PrivateRegressor:
    """Return an estimator of few steps, repeatable."""
    given = {"steps": 40, "batch_size": 200, "delta": 1e-4, "random_state": 0, **changes}
    return PrivateRegressor(Numeric(0, 300), COLUMNS, **given)
