"""What the ledger's currency costs: an account for one promise, four trainings, and a year.

python -m research.benchmarks.currency --out research/results/currency.json

`plans`: random plans of every strategy. For each group, the ε of the least account that pays for
one training over the ε that the training promises, and of the least that pays for four over the ε
of their exact composition: with the share of δ as slack that suits the plan (`account_shares`),
with a tenth, and a lower bound for every account (B, S), which follows from the exact profile.
`year`: what a year of monthly trainings and weekly queries costs one person, as the ε of the least
account by Rényi divergence of the best order, by Gaussians without a slack, by (μ², slack), and by
exact composition of all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from apiece.accounting import privacy_curve
from apiece.accounting.renyi import divergence as renyi_divergence
from apiece.accounting.slack import gaussian_with_slack
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import ApieceError
from apiece.filters import Costs, costs_of
from apiece.filters.convert import renyi_budget
from apiece.ledger import plan_costs
from apiece.mechanisms import Composed, Gaussian, Mechanism, Repeated, Sampled
from apiece.numerics.gaussian import gaussian_epsilon_above

STRATEGIES = ("uniform", "scale", "sample", "hybrid", "threshold", "sequential", "jorgensen",
              "rounds", "adapdp")  # fmt: skip
PEOPLE = 20_000
PARTS = (0.5, 0.9, 1.0)
KINDS = ("one", "one, a tenth", "four", "four, a tenth")


def random_plan(seed: int) -> tuple[Any, dict[str, Any]] | None:
    """Draw a strategy, rate, epochs, δ and three budgets; None where no plan keeps them."""
    rng = np.random.default_rng(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    rate = float(10 ** rng.uniform(-4, 0))
    epochs = float(10 ** rng.uniform(0.5, 2))
    steps = max(1, min(100_000, round(epochs / rate)))
    delta = float(10 ** rng.uniform(-10, -4))
    epsilon = np.sort(10 ** rng.uniform(-1, math.log10(8), 3))
    # Hybrid asks how much more telling than the uniform mechanism its plan may be.
    excess = 0.05 if strategy == "hybrid" else None
    budgets = Budgets(np.repeat(epsilon, [6_000, 8_000, 6_000]), delta, excess=excess)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = assign(budgets, strategy, steps=steps, expected_batch_size=rate * PEOPLE,
                          clip_norm=1.0)  # fmt: skip
    except ApieceError:
        return None
    return plan, {"strategy": strategy, "rate": rate, "steps": steps, "delta": delta}


def least(mechanism: Mechanism, delta: float, times: int) -> float:
    """Return a lower bound on the ε of any account (B, S) that pays so often, each time the same.

    Between two shares the charge has at most the larger slack, and the account at least the rest
    that the smaller one leaves.
    """
    shares = np.linspace(0.0, 0.96, 25)
    curve = privacy_curve(mechanism)
    mu = np.asarray(gaussian_with_slack(curve, shares[1:] * delta / times).lower)
    kept = shares[:-1] * delta
    rest = (delta - kept) / (1 - kept)
    return float(gaussian_epsilon_above(math.sqrt(times) * mu, rest).min()) * (1 - 1e-6)


def measure_plan(seed: int) -> list[dict[str, Any]]:
    """Return the ratios of each group that takes part."""
    found = random_plan(seed)
    if found is None:
        return []
    plan, about = found
    start = time.process_time()
    costs = plan_costs(plan)
    seconds = (time.process_time() - start) / len(plan.budget_groups)
    delta = plan.budget_groups.delta
    shares = [costs.shares(delta, times=times) for times in (1, 4)]
    rows, met = [], set()
    for g in range(len(plan.budget_groups)):
        mechanism = plan.mechanism_for(g)
        promise = float(privacy_curve(mechanism).epsilon(delta[g]).upper)
        if mechanism in met or not promise > 0.01:
            continue
        met.add(mechanism)
        four = privacy_curve(Repeated(mechanism, 4)).epsilon(delta[g])
        row: dict[str, Any] = {
            **about,
            "seed": seed,
            "group": g,
            "joins": float(sum(s.steps * s.chances()[g] for s in plan.stages)),
            "promise": promise,
            "seconds": seconds,
        }
        for name, times, exact, share, aim in (
            ("one", 1, promise, shares[0], 1.01 if promise < 4 else 1.03),
            ("four", 4, float(four.upper), shares[1], 1.15),
        ):
            row[f"{name}, share"] = float(share[g])
            row[name] = float(costs.epsilon(delta, share, times=times)[g]) / exact
            row[f"{name}, a tenth"] = float(costs.epsilon(delta, times=times)[g]) / exact
            missed = row[name] > aim  # only there it is asked how much the currency itself takes
            row[f"{name}, bound"] = (
                least(mechanism, float(delta[g]), times) / exact if missed else None
            )
        row["below"] = bool(
            min(row["one"], row["one, a tenth"]) < 1 - 1e-3
            or min(row["four"], row["four, a tenth"]) * four.upper < four.lower
            or any(row[k] < (row[f"{k}, bound"] or 0.0) for k in ("one", "four"))
        )
        rows.append(row)
    return rows


def told(rows: list[dict[str, Any]], aims: dict[str, float]) -> dict[str, Any]:
    """Return how ratios lie; of those above their aim, how many no account (B, S) could reach."""
    said: dict[str, Any] = {"groups": len(rows)}
    for kind in KINDS:
        values = [row[kind] for row in rows]
        said[kind] = [round(float(np.quantile(values, part)), 4) for part in PARTS]
    for kind, aim in aims.items():
        missed = [row for row in rows if row[kind] > aim]
        bounds = [row[f"{kind}, bound"] for row in missed]
        said[f"{kind} at most {aim}"] = round(1 - len(missed) / len(rows), 3)
        said[f"{kind}: missed"] = len(missed)
        said[f"{kind}: missed by any account"] = sum(bound > aim for bound in bounds)
        gaps = [row[kind] / bound for row, bound in zip(missed, bounds, strict=True)]
        said[f"{kind}: above the bound"] = [
            round(float(np.quantile(gaps, part)), 4) for part in PARTS
        ] if gaps else []  # fmt: skip
    return said


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how the ratios lie, by the promise and by how often a record is expected to join."""
    said: dict[str, Any] = {"groups": len(rows), "below": sum(row["below"] for row in rows)}
    for name, low, high, most in (("to 4", 0.1, 4, 1.01), ("4 to 8", 4, 8, 1.03)):
        for rates, least, top in (
            ("joins 30 times or more", 30, math.inf),
            ("joins 3 to 30 times", 3, 30),
            ("joins less than 3 times", 0, 3),
        ):
            some = [r for r in rows if low <= r["promise"] < high and least <= r["joins"] < top]
            if some:
                said[f"epsilon {name}, {rates}"] = told(some, {"one": most, "four": 1.15})
    said["seconds a group"] = [
        round(float(np.quantile([row["seconds"] for row in rows], p)), 3) for p in (0.5, 1)
    ]
    return said


def by_renyi(mechanisms: list[Mechanism], delta: float) -> float:
    """Return the ε of the least account of the best order."""
    orders = 1 + np.geomspace(0.2, 400, 300)
    total = sum(np.asarray(renyi_divergence(m, orders)) for m in mechanisms)
    return float((total - renyi_budget(0.0, delta, orders)).min())


def year(training: Mechanism, query: Mechanism, delta: float) -> dict[str, float]:
    """Return the ε of an account for twelve trainings and 52 queries, counted in each way."""
    months, weeks = Repeated(training, 12), Repeated(query, 52)
    flat = costs_of([training, query], delta)
    without = 12 * flat.loss[0, -1] + 52 * flat.loss[1, -1]
    sums = Costs((12 * flat.loss[0] + 52 * flat.loss[1, -1])[None], (12 * flat.slack[0])[None])
    return {
        "one training": float(privacy_curve(training).epsilon(delta).upper),
        "one query": float(privacy_curve(query).epsilon(delta).upper),
        "renyi": by_renyi([months, weeks], delta),
        "gaussian": float(gaussian_epsilon_above(math.sqrt(without), delta)),
        "gaussian with a tenth as slack": float(sums.epsilon(delta)[0]),
        "gaussian with slack": float(sums.epsilon(delta, sums.shares(delta))[0]),
        "share": float(sums.shares(delta)[0]),
        "exact": float(privacy_curve(Composed(months, weeks)).epsilon(delta).upper),
    }


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "unknown")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.processes) as pool:
        rows = [row for some in pool.map(measure_plan, range(given.plans)) for row in some]
    step = {q: Sampled(Gaussian(z), q) for q, z in ((0.02, 2.0), (0.05, 4.0), (0.005, 0.8))}
    document = {
        "plans": summary(rows),
        "worst": sorted(rows, key=lambda row: -row["one"])[:10],
        "machine": machine(),
        "year": {
            f"q = {q}, {steps} steps, noise {s.mechanism.noise_multiplier}": year(
                Repeated(s, steps), Gaussian(40.0), 1e-6
            )
            for (q, s), steps in zip(step.items(), (1000, 400, 2000), strict=True)
        },
    }
    text = json.dumps(document, indent=1) + "\n"
    print(text, end="") if given.out is None else given.out.write_text(text)


if __name__ == "__main__":
    main()
