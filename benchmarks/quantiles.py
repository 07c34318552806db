"""Quantiles beside what a user would pick instead: mean error of each on five tables.

    pip install opendp && python benchmarks/quantiles.py --out benchmarks/results/quantiles.json

Contenders, all (ε, 0)-DP for one row more or less: apiece's exact exponential mechanism on a
decimal grid; the same on the gaps between values (Smith 2011), in floating point; a tree of
Laplace counts with ten levels, made consistent (Hay et al. 2010); OpenDP's `make_private_quantile`
on 1,025 and on 16,385 candidates. The error is |answer − quantile|, averaged
over draws and over three pairs of bounds that somebody might declare, so that nobody's candidates
lie on a quantile by luck; in the column's units.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import secrets
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apiece.queries import quantiles

Draw = Callable[[], float]
SEED = np.random.default_rng(2026)


Table = tuple[np.ndarray, list[tuple[float, float]]]


def tables(real: Path) -> dict[str, Table]:
    import pandas as pd

    def column(table: str, name: str) -> np.ndarray:
        return pd.read_parquet(real / f"{table}.parquet")[name].to_numpy(float)

    made = np.random.default_rng(1)
    return {
        "ages of Adult, 600 people": (
            made.choice(column("adult", "age"), 600),
            [(0, 120), (0, 100), (10, 110)],
        ),
        "hours of Adult, all": (column("adult", "hours_per_week"), [(0, 168), (0, 100), (0, 120)]),
        "credits of German": (
            column("german", "credit_amount"),
            [(0, 50_000), (0, 30_000), (0, 100_000)],
        ),
        "bills of Credit default": (
            column("credit_default", "BILL_AMT1"),
            [(-1e6, 1e6), (-2e5, 1e6), (-1e6, 1.5e6)],
        ),
        "log-normal incomes, 5,000": (made.lognormal(10, 1, 5_000), [(0, 1e6), (0, 7e5), (0, 2e6)]),
    }


def apiece(values: np.ndarray, low: float, high: float, level: float, eta: float) -> Draw:
    grid = quantiles.Grid.between(low, high)
    steps = (np.clip(values, low, high) - grid.value(0)) * 10.0**-grid.exponent
    places = np.clip(np.rint(steps), 0, grid.size - 1).astype(np.int64)
    points, counts = np.unique(places, return_counts=True)
    runs = quantiles.Runs.of(grid, points, counts, level)
    weighted = quantiles.weights(grid, runs, level, eta, 1)
    return lambda: grid.value(quantiles.draw(grid, runs, weighted, secrets.randbits))


def gaps(values: np.ndarray, low: float, high: float, level: float, eta: float) -> Draw:
    ends = np.concatenate([[low], np.sort(np.clip(values, low, high)), [high]])
    rank = np.arange(ends.size - 1)
    score = -np.abs(rank - level * values.size) / (2 * max(level, 1 - level))
    with np.errstate(divide="ignore"):
        logs = np.log(np.diff(ends)) + eta * score
    chance = np.exp(logs - logs.max())
    chance /= chance.sum()

    def draw() -> float:
        at = SEED.choice(chance.size, p=chance)
        return float(SEED.uniform(ends[at], ends[at + 1]))

    return draw


def tree(values: np.ndarray, low: float, high: float, level: float, eta: float) -> Draw:
    levels, size = 10, 2**10
    unit = (np.clip(values, low, high) - low) / (high - low)
    leaves = np.bincount(np.minimum((unit * size).astype(int), size - 1), minlength=size)
    exact = [leaves.reshape(2**k, -1).sum(1).astype(float) for k in range(1, levels + 1)]

    def draw() -> float:
        noisy = [counts + SEED.laplace(0, levels / eta, counts.size) for counts in exact]
        # upward: the best of a node and its children; downward: their difference, shared
        for k in range(levels - 2, -1, -1):
            weight = 2 ** (levels - k)
            below = noisy[k + 1].reshape(-1, 2).sum(1)
            share = (weight - weight / 2) / (weight - 1)
            noisy[k] = share * noisy[k] + (1 - share) * below
        for k in range(1, levels):
            left = noisy[k - 1] - noisy[k].reshape(-1, 2).sum(1)
            noisy[k] = noisy[k] + left.repeat(2) / 2
        ranks = np.maximum.accumulate(np.cumsum(noisy[-1]))
        at = np.searchsorted(ranks, level * ranks[-1])
        return low + (high - low) * (min(int(at), size - 1) + 0.5) / size

    return draw


def opendp(
    values: np.ndarray, low: float, high: float, level: float, eta: float, candidates: int = 1025
) -> Draw:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()
    among = np.linspace(low, high, candidates).tolist()

    def made(scale: float) -> object:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), among, level, scale)

    scale = dp.binary_search_param(made, d_in=1, d_out=eta, T=float)
    mechanism, held = made(scale), np.clip(values, low, high).tolist()
    return lambda: float(mechanism(held))


def contenders() -> dict[str, Callable[..., Draw]]:
    names: dict[str, Callable[..., Draw]] = {"apiece": apiece, "gaps": gaps, "tree": tree}
    if importlib.util.find_spec("opendp"):
        names["opendp"] = opendp
        names["opendp, 16,385 candidates"] = lambda *a: opendp(*a, candidates=2**14 + 1)
    return names


def measure(real: Path, draws: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for table, (values, bounds) in tables(real).items():
        for level in (0.1, 0.5, 0.9):
            truth = float(np.quantile(values, level, method="inverted_cdf"))
            for eta in (0.1, 0.3, 1.0):
                errors = {
                    name: statistics.fmean(
                        abs(draw() - truth)
                        for low, high in bounds
                        for draw in [make(values, low, high, level, eta)]
                        for _ in range(draws)
                    )
                    for name, make in contenders().items()
                }
                best = min(errors.values())
                ratio = errors["apiece"] / best if best else 1.0
                row = {"table": table, "n": len(values), "level": level, "epsilon": eta}
                rows.append({**row, "truth": truth, "errors": errors, "over_best": ratio})
                print(row, {k: round(v, 3) for k, v in errors.items()}, round(ratio, 3), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--tables", type=Path, default=Path("src/apiece/datasets/data"))
    given = parser.parse_args()
    rows = measure(given.tables, given.draws)
    ratios = sorted(float(row["over_best"]) for row in rows)  # type: ignore[arg-type]
    found = {"draws": given.draws, "rows": rows}
    found |= {"median_over_best": statistics.median(ratios), "most_over_best": ratios[-1]}
    text = json.dumps(found, indent=1)
    print(text) if given.out is None else given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
