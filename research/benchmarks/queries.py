"""The same query by apiece, OpenDP, diffprivlib, Tumult: error at equal (ε, δ); what a budget buys.

Error: root mean square over repeats of `mean` and `sum` at one (ε, δ). diffprivlib and Tumult take
Laplace noise (δ = 0); apiece and OpenDP have both noises, the Gaussian under their own accounting.
Budget: how many sums
a person with a budget can be part of, by the individual charge and by the worst case, on skewed
data. Tumult Analytics needs an interpreter of its own; see tumult.py.

    pip install opendp diffprivlib
    python -m research.benchmarks.queries --tumult tumult/bin/python \\
        --out research/results/queries.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from apiece.datasets import Numeric, Schema
from apiece.filters import GaussianFilter
from apiece.filters.convert import gaussian_mu
from apiece.queries import Session
from research.benchmarks.ledger import emit, machine

HIGH, DELTA = 200_000.0, 1e-6


def people(size: int) -> pd.DataFrame:
    income = np.random.default_rng(0).lognormal(10.3, 0.8, size)
    return pd.DataFrame({"id": np.arange(size), "income": np.clip(income, 0, HIGH)})


def by_apiece(
    frame: pd.DataFrame, what: str, epsilon: float, seed: int, delta: float = DELTA
) -> float:
    session = Session(
        frame,
        Schema({"income": Numeric(0, HIGH)}, person="id", rows_per_person=1),
        seed=seed,
    )
    answer = session.ask(f"{what}(income)", epsilon=epsilon, delta=delta)
    return float(answer.groups[0]["estimate"])


def by_apiece_laplace(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    return by_apiece(frame, what, epsilon, seed, delta=0.0)


def opendp_total(frame: pd.DataFrame, what: str) -> tuple[Any, Any, list[float]]:
    """OpenDP, its sum or mean of as many bounded values as the table has, and the values."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    values, size = frame["income"].tolist(), len(frame)
    space = dp.vector_domain(dp.atom_domain(bounds=(0.0, HIGH)), size=size), dp.symmetric_distance()
    return dp, space >> (dp.t.then_sum() if what == "sum" else dp.t.then_mean()), values


def by_opendp(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    dp, total, values = opendp_total(frame, what)

    def make(scale: float) -> Any:
        return dp.c.make_fix_delta(
            dp.c.make_zCDP_to_approxDP(total >> dp.m.then_gaussian(scale)), DELTA
        )

    # Its size is public and fixed, so neighbours differ in one value: distance 2.
    scale = dp.binary_search_param(make, 2, (epsilon, DELTA), (0.0, HIGH * 1000))
    return float(make(scale)(values))


def by_opendp_laplace(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    dp, total, values = opendp_total(frame, what)

    def make(scale: float) -> Any:
        return total >> dp.m.then_laplace(scale)

    scale = dp.binary_search_param(make, 2, epsilon, (0.0, HIGH * 1000))
    return float(make(scale)(values))


def by_diffprivlib(frame: pd.DataFrame, what: str, epsilon: float, seed: int) -> float:
    # Its models do not load with a current scikit-learn; its tools need none of them.
    sys.modules.setdefault("diffprivlib.models", types.ModuleType("diffprivlib.models"))
    from diffprivlib import tools

    run = tools.sum if what == "sum" else tools.mean
    return float(run(frame["income"], epsilon=epsilon, bounds=(0, HIGH), random_state=seed))


def by_tumult(python: str, frame: pd.DataFrame, epsilon: float, repeats: int) -> dict[str, Any]:
    """Return the estimates of both queries; its repeats are the groups of one Spark job."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.parquet"
        script = Path(__file__).resolve().with_name("tumult.py")
        frame.to_parquet(path)
        # Not resolved: the interpreter of a virtual environment is a link.
        words = [Path(python).absolute(), script, path, epsilon, DELTA, HIGH, repeats]
        done = subprocess.run(
            list(map(str, words)), capture_output=True, text=True, check=True, cwd=folder
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def errors(size: int, epsilon: float, repeats: int, tumult: str | None) -> dict[str, Any]:
    frame, found = people(size), {}
    spark = {} if tumult is None else by_tumult(tumult, frame, epsilon, repeats)
    for what in ("sum", "mean"):
        true = float(getattr(frame["income"], what)())
        found[what] = {"true": true}
        for run in (by_apiece, by_apiece_laplace, by_opendp, by_opendp_laplace, by_diffprivlib):
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
        if spark:
            values = np.array(spark[what]["estimates"])
            found[what]["tumult"] = {
                "rmse": float(np.sqrt(np.mean((values - true) ** 2))),
                "seconds_of_one_job": spark[what]["seconds"],
            }
    return found


def gain(size: int, budget: float, epsilon: float) -> dict[str, Any]:
    """How many sums fit a budget: everyone charged the worst case, or their own contribution.

    Whoever drops out is missing from the sum; `error_of_the_last` sets that bias, with the noise,
    against asking as many sums of everybody with so much more noise that the worst case fits.
    """
    norms = people(size)["income"].to_numpy() / HIGH
    limit, stddev = (
        float(GaussianFilter(budget, DELTA).limit),
        1 / float(gaussian_mu(epsilon, DELTA)),
    )
    worst, total = int(limit * stddev**2), float(norms.sum())
    own = np.floor(limit * stddev**2 / norms**2)
    last = {}
    for times in (1, 2, 4, 16):
        missing = float(norms[own < times * worst].sum()) / total
        last[f"{times} times as many"] = {
            "people_still_in": float((own >= times * worst).mean()),
            "total_still_in": 1 - missing,
            "own_contribution": float(np.hypot(missing, stddev / total)),
            "worst_case_and_more_noise": stddev * times**0.5 / total,
        }
    return {
        "budget_epsilon": budget,
        "query_epsilon": epsilon,
        "sums_at_the_worst_case": worst,
        "sums_by_own_contribution": {q: float(np.quantile(own, float(q))) for q in ("0.1", "0.5")},
        "error_of_the_last": last,
    }


def gain_of_subgroups(size: int, budget: float, epsilon: float, share: float) -> dict[str, Any]:
    """How many counts of changing subgroups fit, until a twentieth of a subgroup is missing.

    Each count is of `share` of the people, drawn anew: who is not in it pays nothing for it.
    """
    everyone, stddev = (
        GaussianFilter(np.full(size, budget), DELTA),
        1 / float(gaussian_mu(epsilon, DELTA)),
    )
    rng, counts, missing = np.random.default_rng(0), 0, 0.0
    while missing < 0.05:
        inside = rng.random(size) < share
        counts += 1
        missing = 1 - float(everyone.admit(inside.astype(float), stddev)[inside].mean())
    return {
        "budget_epsilon": budget,
        "query_epsilon": epsilon,
        "share_of_the_people_in_a_subgroup": share,
        "counts_at_the_worst_case": int(everyone.limit[0] * stddev**2),
        "counts_by_own_contribution": counts - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tumult", help="Interpreter that has tmlt.analytics, and Java beside it.")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    emit(
        {
            "machine": machine(),
            "delta": DELTA,
            "error": {
                f"n={size}, epsilon={epsilon:g}": errors(size, epsilon, 40, given.tumult)
                for size, epsilon in ((1000, 0.5), (10_000, 0.5))
            },
            "gain": [gain(100_000, 1.0, 0.1), gain(100_000, 3.0, 0.3)],
            "gain_of_subgroups": gain_of_subgroups(100_000, 1.0, 0.1, 0.02),
        },
        given.out,
    )


if __name__ == "__main__":
    main()
