"""Synthetic tables at one budget for all, beside OpenDP's AIM: errors of pairs, and seconds.

    python3.11 -m venv opendp && opendp/bin/pip install "opendp[mbi,polars]==0.16.0"
    python -m research.benchmarks.synthetic_tables --opendp opendp/bin/python \\
        --table CPS1988 --epsilon 1 --out research/results/synthetic_tables.json

All contenders see the same cells (those of research/experiments/synthesis.py), ask for all pairs
and for models of 2 MB at most, and draw as many rows as the table has. OpenDP takes part twice: at
the ρ that it converts to (ε, δ), which is AIM as published; and at ρ = μ²/2 for apiece's own μ, so
that the Gaussian noise for a budget is the same in both. Contenders run in turn, seed by seed.
Results that the file has are not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from apiece.filters import GaussianFilter
from apiece.synthesis.fitting import fit_model
from apiece.synthesis.marginals import Rows
from apiece.synthesis.weights import Account, Weights
from research.experiments.synthesis import DELTA, measure_errors, read_rows, run_rounds
from research.intervals import half_width

CONTENDERS = ("apiece", "OpenDP", "OpenDP, equal noise")
TABLES = ("CPS1988", "NMES1988")
EPSILONS = (0.2, 1.0)


def run_apiece(
    codes: np.ndarray, sizes: tuple[int, ...], epsilon: float, seed: int
) -> tuple[np.ndarray, dict[str, float]]:
    """Return synthetic rows and seconds of apiece, its final model fitted by mbi."""
    begun = time.perf_counter()
    account = Account(Weights.from_budgets(np.array([epsilon]), np.array([DELTA])))
    rows = Rows(codes, np.zeros(len(codes), np.int64), sizes)
    state = run_rounds(rows, account, seed)
    model = fit_model(state.model, state.measurements)
    made = model.draw(len(codes), np.random.default_rng(seed))
    return made, {"seconds": time.perf_counter() - begun}


def run_opendp(
    python: str, codes: np.ndarray, sizes: tuple[int, ...], epsilon: float, rho: float
) -> tuple[np.ndarray, dict[str, float]]:
    """Return synthetic rows, seconds and ρ of OpenDP's AIM; with ρ = 0 its own conversion's."""
    script = Path(__file__).resolve().with_name("opendp_aim.py")
    with tempfile.TemporaryDirectory() as folder:
        cells = Path(folder) / "cells.npz"
        rows = Path(folder) / "rows.npy"
        np.savez(cells, codes=codes, sizes=np.array(sizes))
        words = [python, str(script), str(cells), str(rows), str(epsilon), str(DELTA), str(rho)]
        ran = subprocess.run(
            words, capture_output=True, text=True, check=True, env={"OMP_NUM_THREADS": "1"}
        )
        return np.load(rows), json.loads(ran.stdout.strip().splitlines()[-1])


def run_contender(
    contender: str, table: str, epsilon: float, seed: int, python: str
) -> dict[str, Any]:
    """Return the errors and the seconds of one synthesis."""
    domain, train, _, _ = read_rows(table)
    if contender == "apiece":
        made, figures = run_apiece(train, domain.sizes, epsilon, seed)
    else:
        mu_squared = float(np.atleast_1d(GaussianFilter(epsilon, DELTA).limit)[0])
        rho = 0.0 if contender == "OpenDP" else mu_squared / 2
        made, figures = run_opendp(python, train, domain.sizes, epsilon, rho)
    unit = {"table": table, "epsilon": epsilon, "contender": contender, "seed": seed}
    errors = {
        "pairs": measure_errors(domain.sizes, train, made, 2),
        "triples": measure_errors(domain.sizes, train, made, 3),
    }
    return {**unit, **errors, **figures}


def print_table(results: list[dict[str, Any]]) -> None:
    """Print means and 95 % intervals: a line a table, a budget and a contender."""
    for table, epsilon, contender in itertools.product(TABLES, EPSILONS, CONTENDERS):
        key = (table, epsilon, contender)
        found = [r for r in results if (r["table"], r["epsilon"], r["contender"]) == key]
        if not found:
            continue
        parts = []
        for measure, digits in (("pairs", 4), ("triples", 4), ("seconds", 1)):
            values = np.array([r[measure] for r in found])
            around = f" ± {half_width(values):.{digits}f}" if values.size > 1 else ""
            parts.append(f"{values.mean():.{digits}f}{around}")
        print(f"| {table} | {epsilon:g} | {contender} | {len(found)} | {' | '.join(parts)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--opendp", required=True, help="interpreter that has opendp[mbi,polars]")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--table", choices=TABLES, action="append")
    parser.add_argument("--epsilon", type=float, action="append")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    content: dict[str, Any] = {"machine": platform.processor() or platform.machine(), "results": []}
    if arguments.out.exists():
        content = json.loads(arguments.out.read_text(encoding="utf-8"))
    results = content["results"]
    keys = ("table", "epsilon", "contender", "seed")
    stored = {tuple(r[key] for key in keys) for r in results}
    for seed, table, epsilon, contender in itertools.product(
        range(arguments.seeds),
        arguments.table or TABLES,
        arguments.epsilon or EPSILONS,
        CONTENDERS,
    ):
        if (table, epsilon, contender, seed) in stored:
            continue
        results.append(run_contender(contender, table, epsilon, seed, arguments.opendp))
        text = json.dumps(content, indent=1)
        arguments.out.write_text(text + "\n", encoding="utf-8")
        print(results[-1], flush=True)
    print_table(results)


if __name__ == "__main__":
    main()
