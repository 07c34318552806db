"""What the ledger's currency costs: an account for one promise, four trainings, and a year.

python benchmarks/currency.py --out benchmarks/results/currency.json

`plans`: random plans of every strategy. For each group, the ε of the least account that pays for
one training over the ε that the training promises, and of the least that pays for four over the ε
of their exact composition. `year`: what a year of monthly trainings and weekly queries costs one
person, as the ε of the least account by Rényi divergence of the best order, by Gaussians without a
slack, by (μ², slack), and by exact composition of all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from apiece.accounting import privacy_curve, renyi_divergence
from apiece.assignment import assign
from apiece.budgets import Budgets
from apiece.errors import ApieceError
from apiece.filters import Costs, costs_of, gaussian_epsilon, renyi_budget
from apiece.ledger import plan_costs
from apiece.mechanisms import Composed, Gaussian, Mechanism, Repeated, Sampled

STRATEGIES = ("uniform", "scale", "sample", "hybrid", "threshold", "sequential", "jorgensen",
              "rounds", "adapdp")  # fmt: skip
PEOPLE = 20_000


def random_plan(seed: int) -> tuple[Any, dict[str, Any]] | None:
    """Draw a strategy, rate, epochs, δ and three budgets; None where no plan keeps them."""
    rng = np.random.default_rng(seed)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    rate = float(10 ** rng.uniform(-4, 0))
    epochs = float(10 ** rng.uniform(0.5, 2))
    steps = max(1, min(100_000, round(epochs / rate)))
    delta = float(10 ** rng.uniform(-10, -4))
    epsilon = np.sort(10 ** rng.uniform(-1, math.log10(8), 3))
    budgets = Budgets(np.repeat(epsilon, [6_000, 8_000, 6_000]), delta)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = assign(budgets, strategy, steps=steps, expected_batch_size=rate * PEOPLE,
                          clip_norm=1.0)  # fmt: skip
    except ApieceError:
        return None
    return plan, {"strategy": strategy, "rate": rate, "steps": steps, "delta": delta}


def repeated(costs: Costs, times: int) -> Costs:
    """Return what several trainings in a row cost, each charged by itself, all the same pair."""
    return Costs(costs.loss * times, np.minimum(costs.slack * times, 0.999), costs.group)


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
    one, four = costs.epsilon(delta), repeated(costs, 4).epsilon(delta)
    rows = []
    for g in range(len(plan.budget_groups)):
        mechanism = plan.mechanism_for(g)
        promise = float(privacy_curve(mechanism).epsilon(delta[g]).upper)
        if not promise > 0.01:
            continue
        exact = privacy_curve(Repeated(mechanism, 4)).epsilon(delta[g])
        rows.append(
            {
                **about,
                "seed": seed,
                "group": g,
                "joins": float(sum(s.steps * s.chances()[g] for s in plan.stages)),
                "promise": promise,
                "one": float(one[g]) / promise,
                "four": float(four[g]) / float(exact.upper),
                "below": bool(one[g] < promise * (1 - 1e-3) or four[g] < exact.lower),
                "seconds": seconds,
            }
        )
    return rows


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
                one = np.array([row["one"] for row in some])
                four = np.array([row["four"] for row in some])
                said[f"epsilon {name}, {rates}"] = {
                    "groups": len(some),
                    "one": [round(float(np.quantile(one, p)), 4) for p in (0.5, 0.9, 1)],
                    f"one at most {most}": round(float((one <= most).mean()), 3),
                    "four": [round(float(np.quantile(four, p)), 4) for p in (0.5, 0.9, 1)],
                    "four at most 1.15": round(float((four <= 1.15).mean()), 3),
                }
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
        "gaussian": float(gaussian_epsilon(math.sqrt(without), delta)),
        "gaussian with slack": float(sums.epsilon(delta)[0]),
        "exact": float(privacy_curve(Composed(months, weeks)).epsilon(delta).upper),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=200)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = [row for seed in range(given.plans) for row in measure_plan(seed)]
    step = {q: Sampled(Gaussian(z), q) for q, z in ((0.02, 2.0), (0.05, 4.0), (0.005, 0.8))}
    document = {
        "plans": summary(rows),
        "worst": sorted(rows, key=lambda row: -row["one"])[:10],
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
