"""The numerical accountant: tightness over its whole range, exact oracles, speed, memory.

    python -m research.benchmarks.accounting --out research/results/accounting.json

Beside it, in the same run and on the same settings: dp-accounting's PLD accountant at its own grid,
at a grid of accuracy 0.1 % and at a fine one, and prv-accountant.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from apiece import accounting
from apiece.accounting.exact import GaussianProfile, OneStep
from apiece.accounting.lattice.pairs import GaussianPair
from apiece.accounting.lattice.profile import Composition

STEPS, DELTA = 1465, 1e-5
ACCURACY = 1e-3
WHOLE = ((-6, 0), (math.log10(0.3), 2))
CORNER = ((-6, -3), (math.log10(0.3), 0.2))
"""log10 of (q, z): the whole range; where losses have heavy tails."""


def coverage(
    count: int, ranges: tuple[tuple[float, float], ...], random: np.random.Generator
) -> dict[str, Any]:
    """Gaps in ε over log-uniform settings."""
    gaps, loose, seconds = [], [], []
    for _ in range(count):
        q, z = (10 ** random.uniform(*ends) for ends in ranges)
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
        bounds = Composition(((GaussianPair(z), times),)).epsilon(delta)
        sides["gaussian"] += 1
        sides["violations"] += int(
            not (bounds.lower <= exact.upper and exact.lower <= bounds.upper)
        )
        q = 10 ** random.uniform(-6, 0)
        exact = OneStep(z, q).epsilon(delta)
        bounds = Composition(((GaussianPair(z, q), 1),)).epsilon(delta)
        sides["one_step"] += 1
        slack = 1 + 1e-12
        sides["violations"] += int(
            not (bounds.lower <= exact.upper * slack and exact.lower <= bounds.upper * slack)
        )
    return sides


def speed(curves: int, beside: int, random: np.random.Generator) -> dict[str, Any]:
    """One curve at T = 1465; many with distinct (q, z); the same settings by two others."""
    single = []
    for _ in range(15):
        begin = time.perf_counter()
        accounting.epsilons(
            noise_multiplier=2.0, sampling_probability=0.02, steps=STEPS, delta=DELTA
        )
        single.append(time.perf_counter() - begin)
    z, q = random.uniform(0.6, 5, curves), 10 ** random.uniform(-3, -1, curves)
    begin = time.perf_counter()
    ours = accounting.epsilons(noise_multiplier=z, sampling_probability=q, steps=STEPS, delta=DELTA)
    many = time.perf_counter() - begin
    own = many / curves
    gaps = (ours.upper - ours.lower) / np.maximum(ours.upper, 0.01)
    sides = [(z[i], q[i], float(ours.lower[i]), float(ours.upper[i])) for i in range(beside)]
    return {
        "one_curve_median_ms": 1e3 * float(np.median(single)),
        "curves": curves,
        "seconds": many,
        "ms_a_curve": 1e3 * own,
        "median_gap": float(np.median(gaps)),
        "largest_gap": float(gaps.max()),
        "dp_accounting": dp_accounting(sides, own),
        "one_by_one": one_by_one(sides),
        "dp_accounting_both_ends": both_ends(sides[:2], own),
        "prv_accountant": prv_accountant(sides[: max(beside // 4, 1)], own),
    }


def dp_accounting(sides: list[tuple[float, float, float, float]], own: float) -> dict[str, Any]:
    """dp-accounting's upper ε at its default grid, at one of accuracy 0.1 %, and at a fine one.

    Accuracy is the excess over our lower bound, relative to ε. The grid of 0.1 % is found from two
    others, the excess being quadratic in the step, and widened until it is no better than that.
    Ours is the time for both ends, whose gap is far below 0.1 % as a rule.
    """
    rows, fine = [], []
    for number, (z, q, lower, _) in enumerate(sides):
        (seconds, excess), (_, wider) = _dp_upper(z, q, lower, 1e-4), _dp_upper(z, q, lower, 2e-4)
        slope = max((wider - excess) / 3, 1e-12)
        interval = 1e-4 * math.sqrt(min(max((ACCURACY - excess) / slope + 1, 0.01), 1e4))
        coarse, found = _dp_upper(z, q, lower, interval)
        while found < ACCURACY:
            interval *= 1.1
            coarse, found = _dp_upper(z, q, lower, interval)
        rows.append((seconds, excess, coarse, found, interval))
        if number < 3:
            fine.append(_dp_upper(z, q, lower, 1e-5))
    seconds, excess, coarse, found, interval = np.array(rows).T
    finest, off = np.array(fine).T
    return {
        "curves": len(rows),
        "our_mean_gap": float(np.mean([(upper - lower) / upper for _, _, lower, upper in sides])),
        "default_interval": 1e-4,
        "default_mean_ms": 1e3 * float(seconds.mean()),
        "default_mean_excess": float(excess.mean()),
        "times_faster_at_default": float(seconds.mean()) / own,
        "accuracy": ACCURACY,
        "at_accuracy_median_interval": float(np.median(interval)),
        "at_accuracy_mean_ms": 1e3 * float(coarse.mean()),
        "at_accuracy_mean_excess": float(found.mean()),
        "times_faster_at_accuracy": float(coarse.mean()) / own,
        "fine_interval": 1e-5,
        "fine_mean_ms": 1e3 * float(finest.mean()),
        "fine_mean_excess": float(off.mean()),
        "times_faster_at_fine": float(finest.mean()) / own,
    }


def one_by_one(sides: list[tuple[float, float, float, float]], rounds: int = 5) -> dict[str, Any]:
    """The same settings asked one at a time of both, in turn: means, and their ratios.

    The finest grid and both ends take seconds each: the first 3 and 2 settings, once.
    """
    grids = {8e-4: rounds * len(sides), 1e-4: rounds * len(sides), 1e-5: 3}
    ours, theirs = [], {grid: [] for grid in grids}
    for number, (z, q, lower, _) in enumerate(sides * rounds):
        begin = time.perf_counter()
        accounting.epsilons(noise_multiplier=z, sampling_probability=q, steps=STEPS, delta=DELTA)
        ours.append(time.perf_counter() - begin)
        for grid, many in grids.items():
            if number < many:
                theirs[grid].append(_dp_upper(z, q, lower, grid)[0])
    own = float(np.mean(ours))
    return {
        "curves": len(sides),
        "rounds": rounds,
        "load": os.getloadavg()[0],
        "our_mean_ms": 1e3 * own,
        "times_faster": {f"{grid:g}": float(np.mean(s)) / own for grid, s in theirs.items()},
        "times_faster_both_ends": both_ends(sides[:2], own)["times_faster"],
        "times_faster_prv_accountant": prv_accountant(sides[:3], own).get("times_faster"),
    }


def _dp_upper(z: float, q: float, lower: float, interval: float) -> tuple[float, float]:
    """Seconds, and the excess over `lower`, of dp-accounting's upper ε."""
    import dp_accounting as dp
    from dp_accounting.pld import PLDAccountant

    event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))
    begin = time.perf_counter()
    accountant = PLDAccountant(value_discretization_interval=interval)
    value = accountant.compose(event, STEPS).get_epsilon(DELTA)
    return time.perf_counter() - begin, (value - lower) / value


def both_ends(sides: list[tuple[float, float, float, float]], own: float) -> dict[str, Any]:
    """dp-accounting from above and from below, at a grid ten times finer than its default.

    From below it rounds losses, which is of first order in the step: its gap is T·step and more.
    """
    from dp_accounting.pld import privacy_loss_distribution as pld_of

    logging.getLogger().setLevel(logging.ERROR)  # that connect-the-dots has no optimistic form
    seconds, gaps, ours = [], [], []
    for z, q, lower, upper in sides:
        begin = time.perf_counter()
        high, low = (
            pld_of.from_gaussian_mechanism(
                z,
                value_discretization_interval=1e-5,
                sampling_prob=q,
                pessimistic_estimate=pessimistic,
            )
            .self_compose(STEPS)
            .get_epsilon_for_delta(DELTA)
            for pessimistic in (True, False)
        )
        seconds.append(time.perf_counter() - begin)
        gaps.append((high - low) / high)
        ours.append((upper - lower) / upper)
    return {
        "curves": len(sides),
        "interval": 1e-5,
        "mean_ms": 1e3 * float(np.mean(seconds)),
        "times_faster": float(np.mean(seconds)) / own,
        "mean_gap": float(np.mean(gaps)),
        "our_mean_gap": float(np.mean(ours)),
    }


def prv_accountant(sides: list[tuple[float, float, float, float]], own: float) -> dict[str, Any]:
    """prv-accountant with an error of 0.01 in ε: its time, and its upper end over our lower."""
    try:
        from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant
    except ImportError:
        return {"skipped": "prv-accountant is not installed"}
    seconds, excess = [], []
    for z, q, lower, _ in sides:
        mechanism = PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=q)
        begin = time.perf_counter()
        accountant = PRVAccountant(
            prvs=[mechanism], max_self_compositions=[STEPS], eps_error=0.01, delta_error=1e-10
        )
        value = accountant.compute_epsilon(DELTA, [STEPS])[2]
        seconds.append(time.perf_counter() - begin)
        excess.append((value - lower) / value)
    return {
        "curves": len(sides),
        "eps_error": 0.01,
        "mean_ms": 1e3 * float(np.mean(seconds)),
        "mean_excess": float(np.mean(excess)),
        "times_faster": float(np.mean(seconds)) / own,
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
    parser.add_argument("--settings", type=int, default=500)
    parser.add_argument("--curves", type=int, default=1000)
    parser.add_argument("--beside", type=int, default=12)
    arguments = parser.parse_args()
    random = np.random.default_rng(3)
    result = {
        "machine": {"cpu": _cpu(), "threads": 2, "python": platform.python_version()},
        "speed": speed(arguments.curves, arguments.beside, random),
        "calibration": calibration(random),
        "oracles": oracles(60, random),
        "coverage": coverage(arguments.settings, WHOLE, random),
        "heavy_tails": coverage(arguments.settings // 2, CORNER, random),
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
