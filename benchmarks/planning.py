"""Time and memory of planning: three groups, and up to 10⁷ distinct budgets.

    python benchmarks/planning.py --out benchmarks/results/planning.json

Side by side: the noise multiplier of one budget by Opacus-style repeated calls of dp-accounting's
own calibration (`dp_accounting.calibrate_dp_mechanism`), RDP and PLD, and, where Opacus is
installed, its `get_noise_multiplier`. Each case runs in its own process; sizes grow by factors of
ten. Peak memory is that process's.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
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
    from apiece.budgets.populations import three_groups

    budgets, times = three_groups(50000, 1e-5), []
    for _ in range(3):
        start = time.perf_counter()
        assign(budgets, strategy, steps=1465, expected_batch_size=1024, clip_norm=1.0)
        times.append(time.perf_counter() - start)
    return {"case": "three groups", "strategy": strategy, "seconds": statistics.median(times)}


def distinct_case(strategy: str, size: int, method: str) -> dict[str, Any]:
    from apiece.assignment import assign
    from apiece.budgets import Budgets

    generator = np.random.default_rng(0)
    epsilon = generator.uniform(0.5, 8, size)
    delta = np.exp(generator.uniform(np.log(1e-7), np.log(1e-5), size))
    start, cpu = time.perf_counter(), time.process_time()
    budgets = Budgets(epsilon, delta)
    settings = {"steps": 1000, "expected_batch_size": size / 100, "clip_norm": 1.0}
    plan = assign(budgets, strategy, method=method, **settings)  # type: ignore[arg-type]
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    ratio = plan.epsilon_spent / plan.budgets.epsilon
    free = ratio[~plan.saturated]
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


def other_case(name: str) -> dict[str, Any]:
    start = time.perf_counter()
    if name == "opacus":
        from opacus.accountants.utils import get_noise_multiplier

        noise = get_noise_multiplier(
            target_epsilon=1.0, target_delta=1e-5, sample_rate=1024 / 50000, steps=1465
        )
    else:
        import dp_accounting as dp
        from dp_accounting.pld import PLDAccountant
        from dp_accounting.rdp import RdpAccountant

        def event(z: float) -> Any:
            step = dp.PoissonSampledDpEvent(1024 / 50000, dp.GaussianDpEvent(z))
            return dp.SelfComposedDpEvent(step, 1465)

        accountant = {"dp-accounting rdp": RdpAccountant, "dp-accounting pld": PLDAccountant}[name]
        bracket = dp.ExplicitBracketInterval(0.5, 20.0)
        noise = dp.calibrate_dp_mechanism(accountant, event, 1.0, 1e-5, bracket, tol=1e-3)
    return {
        "case": "one noise multiplier",
        "by": name,
        "noise_multiplier": float(noise),
        "seconds": time.perf_counter() - start,
    }


def own_one() -> dict[str, Any]:
    from apiece.accounting import noise_multipliers

    start = time.perf_counter()
    noise = noise_multipliers(
        epsilon=1.0, delta=1e-5, sampling_probability=1024 / 50000, steps=1465
    )
    return {
        "case": "one noise multiplier",
        "by": "apiece pld",
        "noise_multiplier": float(noise),
        "seconds": time.perf_counter() - start,
    }


def run_case(text: str) -> dict[str, Any]:
    kind, *rest = text.split(":")
    match kind:
        case "groups":
            return groups_case(rest[0])
        case "distinct":
            return distinct_case(rest[0], int(float(rest[1])), rest[2])
        case "other":
            return other_case(rest[0])
        case _:
            return own_one()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out")
    parser.add_argument("--sizes", default="1e3,1e4,1e5,1e6,1e7")
    parser.add_argument("--methods", default="rdp,pld")
    parser.add_argument("--limit", type=float, default=600, help="seconds a case may take")
    parser.add_argument("--case", help="run one case in this process")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(run_case(arguments.case)))
        return
    cases = ["own", "other:dp-accounting rdp", "other:dp-accounting pld", "other:opacus"]
    cases += ["groups:scale", "groups:sample"]
    for size in arguments.sizes.split(","):
        cases += [
            f"distinct:{strategy}:{size}:{method}"
            for strategy in ("scale", "sample")
            for method in arguments.methods.split(",")
        ]
    results = []
    for case in cases:
        command = [sys.executable, __file__, "--case", case]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.limit)
        except subprocess.TimeoutExpired:
            results.append({"case": case, "not_run": f"more than {arguments.limit:g} s"})
            continue
        if done.returncode == 0:
            results.append(json.loads(done.stdout.splitlines()[-1]))
        else:
            results.append({"case": case, "not_run": done.stderr.strip().splitlines()[-1]})
        print(results[-1], file=sys.stderr)
    text = json.dumps({"machine": machine(), "results": results}, indent=1)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
