"""Rows kept of random graphs of rows with several owners, beside jax-privacy's selection.

Each graph's largest selection is bounded from above by a linear program. jax-privacy selects for
one row an owner only, in `_multi_owner.py` of its development version (not in release 2.0); where
that cannot be imported, Ganesh et al. 2025, Algorithm 2 (rows by their number of owners, one by
one), which it specialises, stands for it, and the result says so.

python -m research.benchmarks.owners --out research/results/owners.json     # 1 minute
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from apiece.budgets import Ownership

try:
    from jax_privacy import _multi_owner
except ImportError:
    _multi_owner = None

KINDS = {"pairs": (2, 2), "messages": (1, 4), "threads": (1, 4), "skewed": (1, 4)}
SIZES = ((3_000, 600), (3_000, 2_000), (3_000, 10_000))
LARGE = (300_000, 100_000)


def graph(kind: str, rows: int, people: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return edges (row, owner): uniform owners, neighbours in a ring, or owners by Zipf's law."""
    random = np.random.default_rng(seed)
    low, high = KINDS[kind]
    row = np.repeat(np.arange(rows), random.integers(low, high + 1, rows))
    if kind == "threads":
        owner = (random.integers(0, people, rows)[row] + random.integers(0, 6, row.size)) % people
    elif kind == "skewed":
        weight = 1 / np.arange(1, people + 1)
        owner = random.choice(people, row.size, p=weight / weight.sum())
    else:
        owner = random.integers(0, people, row.size)
    row, owner = np.unique(np.column_stack([row, owner]), axis=0).T
    return row, np.unique(owner, return_inverse=True)[1]


def theirs(row: np.ndarray, owner: np.ndarray) -> int:
    """Return how many rows jax-privacy keeps, or Algorithm 2 where it cannot be imported."""
    if _multi_owner is not None:
        return int(
            _multi_owner.greedy_contribution_bound(_multi_owner.MultiOwnerGraph(row, owner)).size
        )
    taken, kept = np.zeros(owner.max() + 1, dtype=bool), 0
    owners = np.split(owner, np.flatnonzero(np.diff(row)) + 1)
    for each in sorted(owners, key=len):
        if not taken[each].any():
            taken[each], kept = True, kept + 1
    return kept


def most(row: np.ndarray, owner: np.ndarray, limit: int) -> float:
    """Return an upper bound on the rows that any selection keeps."""
    size, people = int(row.max()) + 1, int(owner.max()) + 1
    edges = csr_matrix((np.ones(row.size), (owner, row)), shape=(people, size))
    return float(
        -linprog(-np.ones(size), A_ub=edges, b_ub=np.full(people, limit), bounds=(0, 1)).fun
    )


def seconds(function: Callable[[], object]) -> float:
    begun = time.perf_counter()
    function()
    return time.perf_counter() - begun


def compare(kind: str, rows: int, people: int, seeds: int) -> dict[str, object]:
    """Return the share of the bound that is kept, medians over the seeds."""
    ours, other, three = [], [], []
    for seed in range(seeds):
        row, owner = graph(kind, rows, people, seed)
        bound, own = most(row, owner, 1), Ownership.from_pairs(row, owner)
        ours.append(own.select(1).size / bound)
        other.append(theirs(row, owner) / bound)
        three.append(own.select(3).size / most(row, owner, 3))
    middle = [round(statistics.median(values), 4) for values in (ours, other, three)]
    names = ("apiece", "other", "apiece, three rows an owner")
    return {"graph": kind, "rows": rows, "people": people} | dict(zip(names, middle, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    row, owner = graph("messages", *LARGE, 0)
    large = Ownership.from_pairs(row, owner)
    turns = [
        (seconds(lambda: large.select(1)), seconds(lambda: theirs(row, owner))) for _ in range(3)
    ]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    results = {
        "machine": next(x.split(":")[1].strip() for x in lines if x.startswith("model name")),
        "python": platform.python_version(),
        "other": "jax-privacy" if _multi_owner else "Ganesh et al. 2025, Algorithm 2",
        "share of the bound that is kept": [
            compare(kind, *size, options.seeds) for kind in KINDS for size in SIZES
        ],
        "seconds, 300,000 messages": {
            "apiece": round(statistics.median(turn[0] for turn in turns), 3),
            "other": round(statistics.median(turn[1] for turn in turns), 3),
        },
    }
    text = json.dumps(results, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
