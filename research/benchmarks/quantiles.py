"""Quantiles beside what a user would pick instead: expected error of each on five tables.

    pip install opendp
    python -m research.benchmarks.quantiles --out research/results/quantiles.json

Contenders, all (ε, 0)-DP for one row more or less: apiece's exact exponential mechanism on a
decimal grid, plain and with `log`; the same on the gaps between values (Smith 2011); a tree of
Laplace counts with ten levels, made consistent (Hay et al. 2010); OpenDP's `make_private_quantile`
on 1,025 and on 16,385 candidates.

The error is |answer − quantile|, in the column's units, and its expectation is computed from the
law of the answer; the tree's is the mean of `--draws` answers. OpenDP draws by exponential noise:
candidate r wins with chance p_r·∫∏(1 − p_s·t)dt over the other s, p_s = e^(−score/scale), for its
own scale. `--check` compares the laws of the library's own answers with these.

Whose candidates lie next to a quantile is luck, so the declared bounds are drawn anew for each of
`--bounds` worlds, the same for all (and the incomes with them). The best of the others is chosen on
one half of the worlds and compared on the other, and the other way round; the interval of the ratio
is from 400 draws of worlds (bootstrap).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np

from apiece.queries import quantiles

Errors = dict[str, np.ndarray]  # contender → the mean error in each world
SEED = np.random.default_rng(2026)
BOUNDS = {  # that somebody might declare
    "ages of Adult, 600 people": (0.0, 120.0),
    "hours of Adult, all": (0.0, 168.0),
    "credits of German": (0.0, 50_000.0),
    "bills of Credit default": (-1e6, 1e6),
    "log-normal incomes, 5,000": (0.0, 1e6),
}
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


def quantile(values: np.ndarray, level: float) -> float:
    return float(np.quantile(values, level, method="inverted_cdf"))


def apiece(
    values: np.ndarray, low: float, high: float, level: float, eta: float, *, log: bool = False
) -> float:
    grid = quantiles.Grid.from_bounds(low, high, log=log)
    unit, size = 10.0**grid.exponent, grid.size
    at = np.clip(np.rint((np.clip(values, low, high) - grid.value(0)) / unit), 0, size - 1)
    part = quantiles.Segment(*np.unique(at.astype(np.int64), return_counts=True), 0, size - 1)
    target = quantiles.quantize_level(level) * part.rows
    law = quantiles.Law.from_segment(grid, part, target, quantiles.compute_rate(level, eta, 1))
    first, last = (
        grid.origin + np.array([getattr(place, end) for place in law.stretches])
        for end in ("low", "high")
    )
    fall, truth = np.array([float(each) for each in law.decays]), quantile(values, level) / unit
    mass = error = 0.0
    for step, lowest, highest, share in grid.pieces:
        begin, end = -(-np.maximum(first, lowest) // step), np.minimum(last, highest) // step
        count, aim = np.maximum(end - begin + 1, 0), truth / step
        cut = np.clip(np.floor(aim), begin - 1, end)  # multiples up to the quantile, and beyond
        below = (cut - begin + 1) * (aim - (begin + cut) / 2)
        above = (end - cut) * ((cut + 1 + end) / 2 - aim)
        mass += float(share) * float((count * fall).sum())
        error += float(share) * float((np.where(count, below + above, 0) * step * fall).sum())
    return error / mass * unit


def gaps(values: np.ndarray, low: float, high: float, level: float, eta: float) -> float:
    ends = np.concatenate([[low], np.sort(np.clip(values, low, high)), [high]])
    rank, width, truth = np.arange(ends.size - 1), np.diff(ends), quantile(values, level)
    score = -np.abs(rank - level * values.size) / (2 * max(level, 1 - level))
    some = width > 0
    logs = np.log(width[some]) + eta * score[some]
    chance = np.exp(logs - logs.max())
    near, far = ends[:-1][some] - truth, ends[1:][some] - truth
    errors = (far * np.abs(far) - near * np.abs(near)) / (2 * width[some])
    return float(chance @ np.abs(errors) / chance.sum())


def tree(
    values: np.ndarray, low: float, high: float, level: float, eta: float, draws: int
) -> float:
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

    truth = quantile(values, level)
    return statistics.fmean(abs(draw() - truth) for _ in range(draws))


SCALES: dict[tuple[float, float], float] = {}


def library(candidates: list[float], level: float, eta: float) -> tuple[object, float]:
    """Return OpenDP's mechanism, and the scale with which it keeps ε."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.symmetric_distance()

    def made(scale: float, among: list[float]) -> object:
        return dp.m.make_private_quantile(*space, dp.max_divergence(), among, level, scale)

    if (level, eta) not in SCALES:  # which does not depend on the candidates
        few = candidates[:3]
        found = dp.binary_search_param(lambda s: made(s, few), d_in=1, d_out=eta, T=float)
        SCALES[level, eta] = found
    return made(SCALES[level, eta], candidates), SCALES[level, eta]


NODES, WEIGHTS = np.polynomial.legendre.leggauss(12)
ENDS = np.concatenate([[0.0], np.geomspace(1e-9, 1.0, 60)])
HALF = np.diff(ENDS)[:, None] / 2
TIMES, SHARES = (ENDS[:-1, None] + HALF * (1 + NODES)).ravel(), (HALF * WEIGHTS).ravel()


def opendp(
    values: np.ndarray, low: float, high: float, level: float, eta: float, candidates: int = 1025
) -> float:
    among = np.linspace(low, high, candidates)
    scale, held = library(among.tolist(), level, eta)[1], np.sort(np.clip(values, low, high))
    below = np.searchsorted(held, among, "left")
    score = np.abs(below - level * (below + held.size - np.searchsorted(held, among, "right")))
    share, member, count = np.unique(
        np.exp((score.min() - score) / scale), return_inverse=True, return_counts=True
    )
    logs = np.zeros(TIMES.size)
    for start in range(0, share.size, 500):
        part = slice(start, start + 500)
        logs += (count[part, None] * np.log1p(-share[part, None] * TIMES)).sum(0)
    wins = np.array([p * float(SHARES @ np.exp(logs - np.log1p(-p * TIMES))) for p in share])
    assert abs(float(count @ wins) - 1) < 1e-9
    return float(wins[member] @ np.abs(among - quantile(values, level)))


def checked(real: Path, draws: int) -> list[dict[str, float | str]]:
    """Return how far the mean of the library's own answers is from its law, in standard errors."""
    rows: list[dict[str, float | str]] = []
    for table, eta in (("ages of Adult, 600 people", 0.1), ("credits of German", 0.3)):
        for values, low, high in worlds(table, real, 3):
            mechanism, _ = library(np.linspace(low, high, 1025).tolist(), 0.1, eta)
            held, truth = np.clip(values, low, high).tolist(), quantile(values, 0.1)
            drawn = np.array([abs(float(mechanism(held)) - truth) for _ in range(draws)])
            law, error = opendp(values, low, high, 0.1, eta), float(drawn.std() / draws**0.5)
            rows.append({"table": table, "law": law, "mean": float(drawn.mean()), "error": error})
    return rows


def contenders(draws: int) -> dict[str, Callable[..., float]]:
    names: dict[str, Callable[..., float]] = {
        "apiece": apiece,
        "apiece, log": lambda *a: apiece(*a, log=True),
        "gaps": gaps,
        "tree": lambda *a: tree(*a, draws),
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
        for eta in (0.1, 0.3, 1.0):
            errors = {
                name: np.array([error(*world, level, eta) for world in tried])
                for name, error in contenders(draws).items()
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
    parser.add_argument("--draws", type=int, default=40, help="of the tree, in each world")
    parser.add_argument("--check", type=int, default=300, help="draws of the library's own")
    parser.add_argument("--bounds", type=int, default=24, help="worlds")
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
    ours = checked(given.tables, given.check) if importlib.util.find_spec("opendp") else []
    told = {"machine": platform.processor() or platform.machine(), "opendp drawn": ours}
    text = json.dumps(told | {"rows": rows}, indent=1)
    print(text) if given.out is None else given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
