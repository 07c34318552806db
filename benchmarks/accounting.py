"""The numerical accountant: tightness over its whole range, exact oracles, speed, memory.

    python benchmarks/accounting.py --out benchmarks/results/accounting.json

Beside it, in the same run and on the same settings: dp-accounting's PLD accountant.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from apiece import accounting
from apiece.accounting import pld
from apiece.accounting.gdp import GaussianProfile
from apiece.accounting.pairs import GaussianPair


def coverage(count: int, random: np.random.Generator) -> dict[str, Any]:
    """Gaps in ε over log-uniform settings of the whole range."""
    gaps, loose, seconds = [], [], []
    for _ in range(count):
        q, z = 10 ** random.uniform(-6, 0), 10 ** random.uniform(math.log10(0.3), 2)
        times, delta = int(10 ** random.uniform(0, 6)), 10 ** random.uniform(-12, -3)
        setting = {"noise_multiplier": z, "sampling_probability": q, "steps": times, "delta": delta}
        begin = time.perf_counter()
        lower, upper = (float(b) for b in accounting.epsilons(**setting))
        seconds.append(time.perf_counter() - begin)
        if upper >= 0.01:
            gaps.append((upper - lower) / upper)
            if gaps[-1] > 1e-3:
                loose.append({**setting, "lower": lower, "upper": upper})
    return {
        "settings": count,
        "epsilon_at_least_0.01": len(gaps),
        "gap_at_most_0.1_percent": sum(g <= 1e-3 for g in gaps),
        "median_gap": float(np.median(gaps)),
        "largest_gap": max(gaps),
        "looser_ones": loose,
        "median_ms": 1e3 * float(np.median(seconds)),
        "mean_ms": 1e3 * float(np.mean(seconds)),
    }


def oracles(count: int, random: np.random.Generator) -> dict[str, Any]:
    """The lattice against closed forms: plain Gaussians, one sampled step; δ down to 1e-15."""
    sides = {"gaussian": 0, "one_step": 0, "violations": 0}
    for _ in range(count):
        z, delta = 10 ** random.uniform(-0.5, 2), np.array([10 ** random.uniform(-15, -3)])
        times = int(10 ** random.uniform(0, 5))
        exact = GaussianProfile(z / math.sqrt(times)).epsilon(delta)
        bounds = pld.Composition(((GaussianPair(z), times),)).epsilon(delta)
        sides["gaussian"] += 1
        sides["violations"] += int(
            not (bounds.lower <= exact.upper and exact.lower <= bounds.upper)
        )
        q = 10 ** random.uniform(-6, 0)
        exact = pld.OneSampledStep(z, q).epsilon(delta)
        bounds = pld.Composition(((GaussianPair(z, q), 1),)).epsilon(delta)
        sides["one_step"] += 1
        slack = 1 + 1e-12
        sides["violations"] += int(
            not (bounds.lower <= exact.upper * slack and exact.lower <= bounds.upper * slack)
        )
    return sides


def speed(curves: int, beside: int, random: np.random.Generator) -> dict[str, Any]:
    """One curve at T = 1465; many with distinct (q, z); the same settings by dp-accounting."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    steps, delta = 1465, 1e-5
    single = []
    for _ in range(15):
        begin = time.perf_counter()
        accounting.epsilons(
            noise_multiplier=2.0, sampling_probability=0.02, steps=steps, delta=delta
        )
        single.append(time.perf_counter() - begin)
    z, q = random.uniform(0.6, 5, curves), 10 ** random.uniform(-3, -1, curves)
    begin = time.perf_counter()
    lower, upper = accounting.epsilons(
        noise_multiplier=z, sampling_probability=q, steps=steps, delta=delta
    )
    many = time.perf_counter() - begin
    theirs, excess = [], []
    for i in range(beside):
        event = dp.PoissonSampledDpEvent(q[i], dp.GaussianDpEvent(z[i]))
        begin = time.perf_counter()
        accountant = PLDAccountant().compose(dp.SelfComposedDpEvent(event, steps))
        value = accountant.get_epsilon(delta)
        theirs.append(time.perf_counter() - begin)
        excess.append((value - lower[i]) / value)
    return {
        "one_curve_median_ms": 1e3 * float(np.median(single)),
        "curves": curves,
        "seconds": many,
        "largest_gap": float(np.max((upper - lower) / np.maximum(upper, 0.01))),
        "dp_accounting_curves": beside,
        "dp_accounting_mean_ms": 1e3 * float(np.mean(theirs)),
        "dp_accounting_default_largest_excess_over_our_lower_bound": float(np.max(excess)),
        "times_faster": float(np.mean(theirs)) / (many / curves),
    }


def calibration(random: np.random.Generator) -> dict[str, Any]:
    """Calibrated noise: how much of the ε asked is spent, recomputed; time an entry."""
    epsilon = random.uniform(0.3, 8, 40)
    setting = {"delta": 1e-5, "sampling_probability": 0.02, "steps": 1465}
    begin = time.perf_counter()
    z = accounting.noise_multipliers(epsilon=epsilon, **setting)
    seconds = time.perf_counter() - begin
    spent = accounting.epsilons(noise_multiplier=z, **setting).upper / epsilon
    return {
        "entries": epsilon.size,
        "ms_an_entry": 1e3 * seconds / epsilon.size,
        "least_share_spent": float(spent.min()),
        "largest_share_spent": float(spent.max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--settings", type=int, default=400)
    parser.add_argument("--curves", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=12)
    arguments = parser.parse_args()
    random = np.random.default_rng(3)
    result = {
        "machine": {"cpu": _cpu(), "threads": 2, "python": platform.python_version()},
        "speed": speed(arguments.curves, arguments.beside, random),
        "calibration": calibration(random),
        "oracles": oracles(60, random),
        "coverage": coverage(arguments.settings, random),
    }
    result["peak_memory_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = json.dumps(result, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


if __name__ == "__main__":
    main()
