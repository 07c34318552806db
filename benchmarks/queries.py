"""The same query by apiece, OpenDP and diffprivlib: error at equal (ε, δ), and what a budget buys.

Error: root mean square over repeats of `mean` and `sum` at one (ε, δ); diffprivlib's mean is
Laplace (δ = 0), OpenDP's is the Gaussian under its own accounting. Budget: how many sums a person
with a budget can be part of, by the individual charge and by the worst case, on skewed data.

    python benchmarks/queries.py --out benchmarks/results/queries.json
"""

from __future__ import annotations

import random
import sys
import time
import types
import warnings
from typing import Any

import numpy as np
import pandas as pd

from apiece.filters import GaussianFilter, gaussian_mu
from apiece.queries import Schema, Session
from ledger import emit, machine, options

HIGH, DELTA = 200_000.0, 1e-6


def people(size: int) -> pd.DataFrame:
    income = np.random.default_rng(0).lognormal(10.3, 0.8, size)
    return pd.DataFrame({"id": np.arange(size), "income": np.clip(income, 0, HIGH)})


def by_apiece(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    session = Session(
        frame, Schema("id", bounds={"income": (0, HIGH)}), bits=random.Random(seed).getrandbits
    )
    answer = session.ask(f"{what}(income)", epsilon=epsilon, delta=DELTA)
    return float(answer.groups[0]["estimate"])


def by_opendp(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    values, size = frame["income"].tolist(), len(frame)
    space = dp.vector_domain(dp.atom_domain(bounds=(0.0, HIGH)), size=size), dp.symmetric_distance()
    total = space >> (dp.t.then_sum() if what == "sum" else dp.t.then_mean())

    def make(scale: float) -> Any:
        return dp.c.make_fix_delta(
            dp.c.make_zCDP_to_approxDP(total >> dp.m.then_gaussian(scale)), DELTA
        )

    # Its size is public and fixed, so neighbours differ in one value: distance 2.
    scale = dp.binary_search_param(make, 2, (epsilon, DELTA), (0.0, HIGH * 1000))
    return float(make(scale)(values))


def by_diffprivlib(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    # Its models do not load with a current scikit-learn; its tools need none of them.
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    run = tools.sum if what == "sum" else tools.mean
    return float(run(frame["income"], epsilon=epsilon, bounds=(0, HIGH), random_state=seed))


def errors(size: int, epsilon: float, repeats: int) -> dict[str, Any]:
    frame, found = people(size), {}
    for what in ("sum", "mean"):
        true = float(getattr(frame["income"], what)())
        found[what] = {"true": true}
        for run in (by_apiece, by_opendp, by_diffprivlib):
            name = run.__name__.removeprefix("by_")
            try:
                start = time.perf_counter()
                values = [run(frame, what, epsilon, seed) for seed in range(repeats)]
                found[what][name] = {
                    "rmse": float(np.sqrt(np.mean((np.array(values) - true) ** 2))),
                    "seconds_each": (time.perf_counter() - start) / repeats,
                }
            except Exception as error:
                found[what][name] = {"failed": f"{type(error).__name__}: {error}"[:200]}
    return found


def gain(size: int, budget: float, epsilon: float) -> dict[str, Any]:
    """How many sums fit a budget: everyone charged the worst case, or their own contribution."""
    norms = people(size)["income"].to_numpy() / HIGH
    stddev = 1 / float(gaussian_mu(epsilon, DELTA))
    worst = int(GaussianFilter(budget, DELTA).limit * stddev**2)
    own = np.floor(float(GaussianFilter(budget, DELTA).limit) * stddev**2 / norms**2)
    after = 4 * worst
    return {
        "budget_epsilon": budget,
        "query_epsilon": epsilon,
        "sums_at_the_worst_case": worst,
        "sums_by_own_contribution": {q: float(np.quantile(own, float(q))) for q in ("0.1", "0.5")},
        "share_of_people_still_in_after_4_times_as_many": float((own >= after).mean()),
        "share_of_the_total_still_in": float(norms[own >= after].sum() / norms.sum()),
    }


def main() -> None:
    out = options(__doc__)
    warnings.simplefilter("ignore")
    emit(
        {
            "machine": machine(),
            "delta": DELTA,
            "error": {
                f"n={size}, epsilon={epsilon:g}": errors(size, epsilon, 40)
                for size, epsilon in ((1000, 0.5), (10_000, 0.5))
            },
            "gain": [gain(100_000, 1.0, 0.1), gain(100_000, 3.0, 0.3)],
            "not_compared": {"Tumult Analytics": "runs on Spark, which is not installed here"},
        },
        out,
    )


if __name__ == "__main__":
    main()
