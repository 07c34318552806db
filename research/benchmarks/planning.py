"""Time and memory of planning: three groups, and up to 10⁷ distinct budgets.

    python -m research.benchmarks.planning --out research/results/planning.json

Beside it, what calibrates one budget elsewhere: Opacus (`get_noise_multiplier`, by RDP and by PRV)
and dp-accounting (`calibrate_dp_mechanism`, by RDP and by PLD), on a few budgets of the same
population. Neither plans for many, so their time for 10⁶ distinct budgets is the mean time of one,
times 10⁶: an extrapolation, marked as such. Last, how much less noise PLD needs than RDP at the
settings of Boenisch et al. 2023. `--against FOLDER` runs a few cases by turns with this source and
with that of another checkout, in CPU seconds, for `planning_in_turn.json`. Each case runs in its
own process; sizes grow by factors of ten; peak memory is that process's.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def machine() -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = names[0] if names else platform.processor()
    return {"cpu": model, "cores": os.cpu_count(), "python": platform.python_version()}


def groups_case(strategy: str) -> dict[str, Any]:
    from apiece.assignment import assign
    from apiece.budgets import Budgets

    groups = [("strict", 1.0, 0.34), ("medium", 2.0, 0.43), ("weak", 3.0, 0.23)]
    budgets, times, cpu = Budgets.from_groups(groups, 50000, 1e-5), [], []
    for _ in range(3):
        start, used = time.perf_counter(), time.process_time()
        assign(budgets, strategy, steps=1465, expected_batch_size=1024, clip_norm=1.0)
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - used)
    found = {"case": "three groups", "strategy": strategy, "seconds": statistics.median(times)}
    return found | {"cpu_seconds": statistics.median(cpu)}


def curves_case() -> dict[str, Any]:
    from apiece.accounting import epsilons

    random, used = np.random.default_rng(0), []
    z, q = random.uniform(0.6, 3, 1000), 10 ** random.uniform(-3, -1, 1000)
    for _ in range(3):
        start = time.process_time()
        epsilons(noise_multiplier=z, sampling_probability=q, steps=1465, delta=1e-5)
        used.append(time.process_time() - start)
    return {"case": "1,000 curves", "cpu_seconds": statistics.median(used)}


def distinct_case(strategy: str, size: int, method: str) -> dict[str, Any]:
    from apiece.assignment import assign
    from apiece.budgets import Budgets

    epsilon, delta = population(size)
    start, cpu = time.perf_counter(), time.process_time()
    budgets = Budgets(epsilon, delta)
    settings = {"steps": 1000, "expected_batch_size": size / 100, "clip_norm": 1.0}
    plan = assign(budgets, strategy, method=method, **settings)  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    ratio = plan.epsilon_spent / plan.budget_groups.epsilon
    free = ratio[ratio >= 0.95]
    return {
        "case": "distinct budgets",
        "strategy": strategy,
        "method": method,
        "records": size,
        "seconds": wall,
        "cpu_seconds": cpu,
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "least_spent": float(free.min()),
        "most_spent": float(ratio.max()),
        "batch_over_asked": plan.expected_batch_size / (size / 100),
    }


def population(size: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(0)
    epsilon = generator.uniform(0.5, 8, size)
    return epsilon, np.exp(generator.uniform(np.log(1e-7), np.log(1e-5), size))


def calibration_by(name: str) -> Callable[[float, float], float]:
    """Return what calibrates the noise multiplier of one (ε, δ) at q = 0.01 and 1000 steps."""
    if name.startswith("opacus"):
        from opacus.accountants.utils import get_noise_multiplier

        def opacus(epsilon: float, delta: float) -> float:
            return float(
                get_noise_multiplier(
                    target_epsilon=epsilon,
                    target_delta=delta,
                    sample_rate=0.01,
                    steps=1000,
                    accountant=name.split()[1],
                )
            )

        return opacus
    if name.startswith("apiece"):
        from apiece.accounting import noise_multipliers

        def own(epsilon: float, delta: float) -> float:
            settings = {"sampling_probability": 0.01, "steps": 1000, "method": name.split()[1]}
            return float(noise_multipliers(epsilon=epsilon, delta=delta, **settings))  # type: ignore[arg-type]

        return own
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def event(z: float) -> Any:
        return dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(z)), 1000)

    accountant = {"rdp": RdpAccountant, "pld": PLDAccountant}[name.split()[1]]

    def theirs(epsilon: float, delta: float) -> float:
        bracket = dp.ExplicitBracketInterval(0.4, 20.0)
        return float(
            dp.calibrate_dp_mechanism(accountant, event, epsilon, delta, bracket, tol=1e-3)
        )

    return theirs


def one_case(name: str, budgets: int = 5) -> dict[str, Any]:
    calibrate = calibration_by(name)
    times, noises = [], []
    for epsilon, delta in zip(*(column.tolist() for column in population(budgets)), strict=True):
        start = time.perf_counter()
        noises.append(calibrate(epsilon, delta))
        times.append(time.perf_counter() - start)
    mean = statistics.fmean(times)
    return {
        "case": "one budget at a time",
        "by": name,
        "budgets": budgets,
        "mean_seconds": mean,
        "noise_multipliers": noises,
        "million_budgets_extrapolated_hours": mean * 1e6 / 3600,
    }


PUBLISHED = {
    "SVHN": (73257, 1024, 2146),
    "CIFAR-10": (50000, 1024, 1465),
    "MNIST": (60000, 512, 9375),
}


def noise_case() -> dict[str, Any]:
    from apiece.accounting import noise_multipliers

    rows = []
    for name, (records, batch, steps) in PUBLISHED.items():
        for epsilon in (1.0, 2.0, 3.0):
            settings = {"epsilon": epsilon, "delta": 1e-5, "steps": steps}
            rate = batch / records
            pld, rdp = (
                float(noise_multipliers(sampling_probability=rate, method=m, **settings))  # type: ignore[arg-type]
                for m in ("pld", "rdp")
            )
            less = 100 * (1 - pld / rdp)
            row = {"data": name, "epsilon": epsilon, "rdp": rdp, "pld": pld}
            rows.append(row | {"percent_less": less})
    return {
        "case": "noise multiplier by PLD and by RDP, settings of Boenisch et al. 2023",
        "rows": rows,
    }


def run_case(text: str) -> dict[str, Any]:
    kind, *rest = text.split(":")
    match kind:
        case "groups":
            return groups_case(rest[0])
        case "distinct":
            return distinct_case(rest[0], int(float(rest[1])), rest[2])
        case "one":
            return one_case(rest[0])
        case "curves":
            return curves_case()
        case _:
            return noise_case()


def growth(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each strategy and method, how time and memory grow from size to size."""
    found = []
    distinct = [r for r in results if r.get("case") == "distinct budgets"]
    for key in dict.fromkeys((r["strategy"], r["method"]) for r in distinct):
        rows = [r for r in distinct if (r["strategy"], r["method"]) == key]
        pairs = list(itertools.pairwise(rows))
        found.append(
            {
                "strategy": key[0],
                "method": key[1],
                "records": [r["records"] for r in rows],
                "times_longer": [b["seconds"] / a["seconds"] for a, b in pairs],
                "times_memory": [b["peak_gigabytes"] / a["peak_gigabytes"] for a, b in pairs],
            }
        )
    return found


def in_turn(other: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the CPU seconds of a few cases by another checkout's source and by this one."""
    cases = ["curves", "groups:scale", "groups:sample"]
    cases += [f"distinct:{strategy}:1e5:pld" for strategy in ("scale", "sample")]
    places, found = {"before": other, "now": Path(__file__).parents[2]}, []
    for case in cases:
        used: dict[str, list[float]] = {name: [] for name in places}
        for _ in range(rounds):
            for name, place in places.items():
                done = subprocess.run(
                    [sys.executable, __file__, "--case", case],
                    capture_output=True,
                    text=True,
                    check=True,
                    env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(place / "src")},
                )
                used[name].append(json.loads(done.stdout.splitlines()[-1])["cpu_seconds"])
        found.append({"case": case, "cpu_seconds": used})
        print(found[-1], file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--sizes", default="1e3,1e4,1e5,1e6,1e7")
    parser.add_argument("--limit", type=float, default=600, help="seconds a case may take")
    parser.add_argument("--case", help="run one case in this process")
    parser.add_argument("--against", type=Path, help="a checkout of another commit")
    parser.add_argument("--rounds", type=int, default=2, help="of each of both, with --against")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(arguments.case)))
        return
    if arguments.against:
        head = ["git", "-C", str(arguments.against), "rev-parse", "--short", "HEAD"]
        before = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        load, rows = os.getloadavg()[0], in_turn(arguments.against, arguments.rounds)
        whole = {"machine": machine(), "load": load, "before": before, "results": rows}
        if arguments.out:
            Path(arguments.out).write_text(json.dumps(whole, indent=1) + "\n")
        return
    tools = ("apiece", "dp-accounting")
    cases = [f"one:{tool} {method}" for tool in tools for method in ("rdp", "pld")]
    cases += ["one:opacus rdp", "one:opacus prv", "noise", "groups:scale", "groups:sample"]
    for size in arguments.sizes.split(","):
        methods = ("pld", "rdp") if float(size) <= 1e6 else ("pld",)
        cases += [f"distinct:{s}:{size}:{m}" for s in ("scale", "sample") for m in methods]
    results = []
    for case in cases:
        command = [sys.executable, __file__, "--case", case]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=arguments.limit,
                env=os.environ | {"OMP_NUM_THREADS": "1"},  # curves run in threads of our own
            )
        except subprocess.TimeoutExpired:
            results.append({"case": case, "not_run": f"more than {arguments.limit:g} s"})
            continue
        if done.returncode == 0:
            results.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            results.append({"case": case, "not_run": done.stderr.strip().splitlines()[-1]})
        print(results[-1], file=sys.stderr)
    whole = {"machine": machine(), "results": results, "growth": growth(results)}
    text = json.dumps(whole, indent=1)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
