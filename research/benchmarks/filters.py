"""How long it takes to charge and filter ten million people in memory.

python -m research.benchmarks.filters --out research/results/filters.json
"""

from __future__ import annotations

import time

import numpy as np

from apiece.filters import GaussianFilter, RenyiFilter
from research.benchmarks.ledger import emit, machine, options


def naive(total: np.ndarray, limit: np.ndarray, norms: np.ndarray, stddev: float) -> np.ndarray:
    """What one would write: no checks, no rounding towards privacy."""
    new = total + (norms / stddev) ** 2
    active = new <= limit
    total[:] = np.where(active, new, total)
    return active


def main() -> None:
    out = options(__doc__)
    people, repeats = 10_000_000, 15
    norms = np.random.default_rng(0).random(people)
    gaussian = GaussianFilter(np.ones(people), 1e-5)
    renyi = RenyiFilter(np.ones(people), 1e-5)
    total, limit = np.zeros(people), np.full(people, float(gaussian.limit[0]))
    runs = {
        "GaussianFilter": lambda: gaussian.admit(norms, 30.0),
        "RenyiFilter": lambda: renyi.admit(norms, 30.0),
        "plain numpy": lambda: naive(total, limit, norms, 30.0),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    milliseconds = {
        name: {"median": 1000 * float(np.median(t)), "fastest": 1000 * min(t)}
        for name, t in times.items()
    }
    emit({"machine": machine(), "people": people, "milliseconds": milliseconds}, out)


if __name__ == "__main__":
    main()
