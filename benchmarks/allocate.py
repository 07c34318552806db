"""Exactly k of T steps: how long a question takes, how close its bounds are, and what it saves.

    python benchmarks/allocate.py

Writes benchmarks/results/allocate.json: for each question ε by random allocation (lower, upper),
the processor time it took, and Poisson sampling with as many steps in expectation; then the noise
over signal of plans by Allocate and by Sample for the same budgets.
"""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path

from apiece import Budgets, assign
from apiece.accounting import privacy_curve
from apiece.accounting.lattice.allocation import law
from apiece.assignment.front import noise_over_signal
from apiece.plan.parts import allocated_steps, sampled_steps

QUESTIONS = [
    (1.0, 1000, 1, 1e-5), (0.5, 1000, 1, 1e-5), (2.0, 1000, 1, 1e-6), (0.7, 123, 1, 1e-8),
    (3.0, 7, 1, 1e-6), (1.0, 1000, 10, 1e-5), (2.0, 500, 25, 1e-6), (2.0, 2500, 50, 1e-6),
    (3.0, 700, 100, 1e-6), (0.7, 1000, 5, 1e-6), (2.0, 100, 3, 1e-5),
]  # fmt: skip
TRAININGS = [(100, 512, 20_000), (300, 256, 20_000), (30, 1024, 20_000)]  # steps, batch, records
OUT = Path(__file__).parent / "results" / "allocate.json"


def question(z: float, steps: int, times: int, delta: float) -> dict[str, float]:
    """Return bounds on ε, the processor time, and the upper bound of Poisson sampling."""
    law.cache_clear()
    began = time.process_time()
    own = privacy_curve(allocated_steps(z, times, steps)).epsilon(delta)
    took = time.process_time() - began
    poisson = privacy_curve(sampled_steps(z, times / steps, steps)).epsilon(delta)
    return {
        "z": z, "T": steps, "k": times, "delta": delta, "lower": own.lower, "upper": own.upper,
        "gap": own.upper - own.lower, "processor seconds": took, "poisson upper": poisson.upper,
    }  # fmt: skip


def training(steps: int, batch: float, records: int) -> dict[str, object]:
    """Return both plans' noise over signal for budgets 1, 2 and 3."""
    groups = [("strict", 1.0, 0.34), ("medium", 2.0, 0.43), ("weak", 3.0, 0.23)]
    budgets = Budgets.from_groups(groups, records, 1e-5)
    row: dict[str, object] = {"T": steps, "batch asked": batch, "records": records}
    for name in ("sample", "allocate"):
        plan = assign(budgets, name, steps=steps, expected_batch_size=batch, clip_norm=1.0)
        row[name] = {
            "noise over signal": noise_over_signal(plan),
            "expected batch size": plan.expected_batch_size,
            "noise": plan.noise_stddev,
            "spent share": plan.spent_share.tolist(),
            "steps of a record": (plan.stages[0].sampling_probability * steps).tolist(),
        }
    return row


def main() -> None:
    """Measure, print and store."""
    rows = [question(*each) for each in QUESTIONS]
    for row in rows:
        print(json.dumps(row))
    plans = [training(*each) for each in TRAININGS]
    for plan in plans:
        print(json.dumps(plan))
    machine = f"{platform.machine()}, {platform.system()}, loaded, one thread"
    OUT.write_text(json.dumps({"machine": machine, "questions": rows, "plans": plans}, indent=1))


if __name__ == "__main__":
    main()
