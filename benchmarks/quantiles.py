"""Quantiles beside what a user would pick instead: mean error of each on five tables.

    pip install opendp && python benchmarks/quantiles.py --out benchmarks/results/quantiles.json

Contenders, all (ε, 0)-DP for one row more or less: apiece's exact exponential mechanism on a
decimal grid, plain and with `log`; the same on the gaps between values (Smith 2011), in floating
point; a tree of Laplace counts with ten levels, made consistent (Hay et al. 2010); OpenDP's
`make_private_quantile` on 1,025 and on 16,385 candidates.

The error is |answer − quantile|, in the column's units. Whose candidates lie next to a quantile is
luck, so the declared bounds are drawn anew for each of `--bounds` worlds, the same for all (and the
incomes with them). In each world there are `--draws` answers of OpenDP and ten times as many of the
others, which are quick. The least of several noisy means is
too small, so the best of the others is chosen on one half of the worlds and compared on the other,
and the other way round; the interval of the ratio is from 400 draws of worlds (bootstrap).
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
Errors = dict[str, np.ndarray]  # contender → the mean error in each world
SEED = np.random.default_rng(2026)
BOUNDS = {  # that somebody might declare
    "ages of Adult, 600 people": (0.0, 120.0),
    "hours of Adult, all": (0.0, 168.0),
    "credits of German": (0.0, 50_000.0),
    "bills of Credit default": (-1e6, 1e6),
    "log-normal incomes, 5,000": (0.0, 1e6),
}
QUICK = 10  # times as many draws of what is quick to draw
OURS = ("apiece", "apiece, log")


def worlds(name: str, real: Path, count: int) -> list[tuple[np.ndarray, float, float]]:
    """Return tables with the bounds that are declared of them."""
    import pandas as pd

    def column(table: str, of: str) -> np.ndarray:
        return pd.read_parquet(real / f"{table}.parquet")[of].to_numpy(float)

    made = np.random.default_rng(1)
    low, high = BOUNDS[name]
    found = []
    for _ in range(count):
        values = {
            "ages": lambda: made.choice(column("adult", "age"), 600),
            "hours": lambda: column("adult", "hours_per_week"),
            "credits": lambda: column("german", "credit_amount"),
            "bills": lambda: column("credit_default", "BILL_AMT1"),
            "log-normal": lambda: made.lognormal(10, 1, 5_000),
        }[name.split(" ")[0]]()
        wider = np.exp(made.uniform(-0.3, 0.7, 2))
        found.append((values, *(float(f"{end:.3g}") for end in (low * wider[0], high * wider[1]))))
    return found


def apiece(
    values: np.ndarray, low: float, high: float, level: float, eta: float, *, log: bool = False
) -> Draw:
    grid = quantiles.Grid.between(low, high, log=log)
    steps = (np.clip(values, low, high) - grid.value(0)) * 10.0**-grid.exponent
    places = np.clip(np.rint(steps), 0, grid.size - 1).astype(np.int64)
    part = quantiles.Segment(*np.unique(places, return_counts=True), 0, grid.size - 1)
    rate = quantiles.rate_of(level, eta, 1)
    law = quantiles.Law.of(grid, part, quantiles.whole(level) * part.rows, rate)
    return lambda: grid.value(law.draw(secrets.randbits)[0])


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


SCALES: dict[tuple[float, float], float] = {}


def opendp(
    values: np.ndarray, low: float, high: float, level: float, eta: float, candidates: int = 1025
) -> Draw:
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def made(scale: float, count: int = candidates) -> object:
        among = np.linspace(low, high, count).tolist()
        return dp.m.make_private_quantile(*space, dp.max_divergence(), among, level, scale)

    if (level, eta) not in SCALES:  # which does not depend on the candidates
        found = dp.binary_search_param(lambda scale: made(scale, 3), d_in=1, d_out=eta, T=float)
        SCALES[level, eta] = found
    mechanism, held = made(SCALES[level, eta]), np.clip(values, low, high).tolist()
    return lambda: float(mechanism(held))


def contenders() -> dict[str, Callable[..., Draw]]:
    names: dict[str, Callable[..., Draw]] = {
        "apiece": apiece,
        "apiece, log": lambda *a: apiece(*a, log=True),
        "gaps": gaps,
        "tree": tree,
    }
    if importlib.util.find_spec("opendp"):
        names["opendp"] = opendp
        names["opendp, 16,385 candidates"] = lambda *a: opendp(*a, candidates=2**14 + 1)
    return names


def over_best(errors: Errors, name: str, order: np.ndarray) -> float:
    """Return a contender's error over that of the best of the others, chosen on other worlds."""
    halves = [order[: order.size // 2], order[order.size // 2 :]]
    others = [other for other in errors if other not in OURS]
    mine = theirs = 0.0
    for chosen, compared in (halves, halves[::-1]):
        best = min(others, key=lambda other: float(errors[other][chosen].mean()))
        mine += float(errors[name][compared].mean())
        theirs += float(errors[best][compared].mean())
    return mine / theirs if theirs else 1.0 if not mine else float("inf")


def measure(
    table: str, real: Path, count: int, draws: int, levels: list[float]
) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    tried = worlds(table, real, count)
    for level in levels:
        truths = [float(np.quantile(v, level, method="inverted_cdf")) for v, _, _ in tried]
        for eta in (0.1, 0.3, 1.0):
            errors = {
                name: np.array(
                    [
                        statistics.fmean(abs(draw() - truth) for _ in range(times))
                        for (values, low, high), truth in zip(tried, truths, strict=True)
                        for draw in [make(values, low, high, level, eta)]
                        for times in [draws if "opendp" in name else QUICK * draws]
                    ]
                )
                for name, make in contenders().items()
            }
            row: dict[str, object] = {"table": table, "level": level, "epsilon": eta}
            row |= {"worlds": count, "draws": draws}
            row["errors"] = {name: float(each.mean()) for name, each in errors.items()}
            for name in OURS:
                # Each resampled set of worlds is halved by parity, as the worlds are.
                order = np.r_[0:count:2, 1:count:2]
                picks = [
                    np.r_[SEED.choice(order[: count // 2], count // 2),
                          SEED.choice(order[count // 2 :], count - count // 2)]
                    for _ in range(400)
                ]  # fmt: skip
                drawn = [over_best(errors, name, pick) for pick in picks]
                ends = [float(np.quantile(drawn, q)) for q in (0.025, 0.975)]
                row[f"{name} over best"] = [over_best(errors, name, order), *ends]
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draws", type=int, default=25, help="in each world")
    parser.add_argument("--bounds", type=int, default=16, help="worlds")
    parser.add_argument("--table", choices=BOUNDS, action="append")
    parser.add_argument("--level", type=float, action="append")
    parser.add_argument("--tables", type=Path, default=Path("src/apiece/datasets/data"))
    given = parser.parse_args()
    rows = [
        row
        for table in given.table or BOUNDS
        for row in measure(
            table, given.tables, given.bounds, given.draws, given.level or [0.1, 0.5, 0.9]
        )
    ]
    text = json.dumps({"rows": rows}, indent=1)
    print(text) if given.out is None else given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
