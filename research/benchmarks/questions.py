"""Questions that once took more than ten seconds, each with three variants: the time of each.

    python -m research.benchmarks.questions --out research/results/questions.json

Each question is asked in a process of its own, which stops it after `--limit` seconds; the time of
imports does not count. On a machine that others use too CPU seconds are the ones to compare, and
the load says how far they may be from those of a quiet one. `--only` picks questions whose name
contains a text. The answer is stored beside the time, so that two results can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from apiece.accounting import (
    AdvantageBudget,
    PowerBudget,
    calibrate,
    noise_multipliers,
    privacy_curve,
)
from apiece.assignment import Hybrid, Sample, Scale, Strategy, assign
from apiece.assignment.front import noise_over_signal
from apiece.budgets import Budgets
from apiece.contract import enforce
from apiece.mechanisms import Repeated, Sampled
from apiece.mechanisms.mixture import MixtureOfGaussians

Answer = dict[str, Any]


def advantage(limit: float, **given: Any) -> Answer:
    """A parameter by the greatest advantage."""
    found = calibrate(AdvantageBudget(limit), **given)
    return {found.parameter: found.value, "spent_share": found.achieved / limit}


def power(limit: float, alpha: float, **given: Any) -> Answer:
    """A parameter by the greatest power at one rate of false positives."""
    found = calibrate(PowerBudget(limit, alpha), **given)
    return {found.parameter: found.value, "spent_share": found.achieved / limit}


def mixture(noise: float, shifts: Any, chances: Any, steps: int, coin: float = 1.0) -> Answer:
    """The advantage against an owner of many rows."""
    step: Any = MixtureOfGaussians(noise, shifts, chances)
    found = privacy_curve(Repeated(step if coin == 1 else Sampled(step, coin), steps)).advantage()
    return {"lower": found.lower, "upper": found.upper}


def noise(count: int, steps: int, rates: tuple[float, float], seed: int = 0) -> Answer:
    """Noise multipliers of many budgets at many rates."""
    random = np.random.default_rng(seed)
    found = noise_multipliers(
        epsilon=random.uniform(0.3, 8, count),
        delta=10 ** random.uniform(-9, -4, count),
        sampling_probability=10 ** random.uniform(*np.log10(rates), count),
        steps=steps,
    )
    return {"mean": float(found.mean()), "largest": float(found.max())}


def plan(
    strategy: Strategy,
    epsilons: Any,
    size: int,
    delta: float,
    steps: int,
    batch: float,
    **more: Any,
) -> Answer:
    """A plan of a few groups of one size, or of as many budgets as people."""
    rows = [(f"group {k}", epsilon, 1 / len(epsilons)) for k, epsilon in enumerate(epsilons)]
    budgets = (
        Budgets.from_groups(rows, size, delta)
        if len(epsilons) < size
        else Budgets(np.asarray(epsilons), delta)
    )
    found = assign(budgets, strategy, steps=steps, expected_batch_size=batch, clip_norm=1.0, **more)
    shares = found.epsilon_spent / found.budget_groups.epsilon
    return {
        "least_spent_share": float(shares.min()),
        "batch": found.expected_batch_size,
        "noise_over_signal": float(noise_over_signal(found)),
    }


def padded(sizes: dict[float, int], delta: float, bound: float, public: int, **more: Any) -> Answer:
    """The best plan within bounds on the excess, with public records that may be added."""
    epsilon = np.repeat(list(sizes), list(sizes.values()))
    budgets = Budgets(epsilon, delta, excess=bound)
    found = enforce(budgets, public=public, clip_norm=1.0, **more)
    return {"strategy": found.strategy, "noise_over_signal": float(noise_over_signal(found))}


EVEN = np.ones(256) / 257
ROWS = np.arange(1, 257) / 256
FIVE, THREE = (0.5, 1.0, 2.0, 4.0, 8.0), (0.5, 2.0, 8.0)
MANY = tuple(np.linspace(0.5, 8, 300).tolist())
RARE: Answer = {"noise_multiplier": 5.77, "sampling_probability": 7.25e-4}
FEW_STEPS: Answer = {"steps": 100, "expected_batch_size": 50.0}

QUESTIONS: dict[str, list[Callable[[], Answer]]] = {
    "steps or noise within an advantage": [
        lambda: advantage(0.25, **RARE),
        lambda: advantage(0.1, noise_multiplier=20.0, sampling_probability=1e-3),
        lambda: advantage(0.5, noise_multiplier=1.0, sampling_probability=1e-3),
        lambda: advantage(0.25, sampling_probability=7.25e-4, steps=200_000),
    ],
    "steps or noise within a power": [
        lambda: power(0.2, 0.1, **RARE),
        lambda: power(0.05, 0.01, noise_multiplier=20.0, sampling_probability=1e-3),
        lambda: power(0.3, 0.1, noise_multiplier=1.0, steps=10_000),
        lambda: power(0.2, 0.1, sampling_probability=7.25e-4, steps=200_000),
    ],
    "advantage of a mixture of 256 components": [
        lambda: mixture(1.0, ROWS, EVEN, 100),
        lambda: mixture(64.0, np.arange(1.0, 257), EVEN, 1000),
        lambda: mixture(0.5, ROWS, 0.9 ** np.arange(256) * 0.1, 10),
        lambda: mixture(1.0, ROWS, EVEN, 1000, 0.01),
        lambda: mixture(0.5, 10 * ROWS, 0.9 ** np.arange(256) * 0.1, 10, 0.1),
        lambda: mixture(5.0, 100 * ROWS, EVEN, 100, 1e-4),
    ],
    "noise for 1,000 budgets": [
        lambda: noise(1000, 1465, (1e-3, 0.1)),
        lambda: noise(1000, 1465, (0.02, 0.02)),
        lambda: noise(1000, 100, (1e-4, 0.5), 1),
        lambda: noise(1000, 10**5, (1e-4, 1e-2), 2),
    ],
    "plans whose batch holds hardly anybody": [
        lambda: plan(Sample(), FIVE, 10_000, 1e-10, 10, 1.0),
        lambda: plan(Sample(), THREE, 60, 1e-5, 10**5, 0.01),
        lambda: plan(Hybrid(0.02), THREE, 200, 1e-5, 100, 0.2),
        lambda: plan(Scale(), FIVE, 10_000, 1e-10, 10, 1.0),
        lambda: plan(Sample(), THREE, 300, 1e-5, 1000, 1.0, method="rdp"),
        lambda: plan(Hybrid(0.1), FIVE, 10_000, 1e-10, 10, 1.0),
    ],
    "hybrid with a few hundred distinct budgets": [
        lambda: plan(Hybrid(0.02), MANY, 300, 1e-5, 100, 30.0),
        lambda: plan(Hybrid(0.1), MANY, 300, 1e-5, 1000, 3.0),
        lambda: plan(Hybrid(0.005), MANY[:150], 150, 1e-6, 500, 10.0),
        lambda: plan(Hybrid(0.02), (*MANY, *np.linspace(8, 10, 200)), 500, 1e-5, 100, 50.0),
    ],
    "the best plan with public records": [
        lambda: padded({4.0: 60, 1.0: 240}, 1e-6, 0.004, 200, steps=20, expected_batch_size=25.0),
        lambda: padded({4.0: 200, 1.0: 800}, 1e-8, 0.004, 500, **FEW_STEPS),
        lambda: padded({1.0: 340, 2.0: 430, 3.0: 230}, 1e-5, 0.01, 1000, **FEW_STEPS),
        lambda: padded({0.5: 100, 8.0: 100}, 1e-5, 0.02, 50, steps=1000, expected_batch_size=4.0),
    ],
}


def ask(name: str, variant: int) -> dict[str, Any]:
    """Return one answer and the time it took."""
    begin, cpu = time.perf_counter(), time.process_time()
    answer = QUESTIONS[name][variant]()
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    return {"seconds": wall, "cpu_seconds": cpu, "answer": answer}


def asked_alone(name: str, variant: int, limit: float) -> dict[str, Any]:
    """Return `ask`, in a process of its own."""
    command = [sys.executable, __file__, "--ask", name, str(variant)]
    threads = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=threads)
    except subprocess.TimeoutExpired:
        return {"not_run": f"more than {limit:g} s"}
    if done.returncode:
        return {"not_run": done.stderr.strip().splitlines()[-1]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "cpu": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="a part of the questions' names")
    parser.add_argument("--limit", type=float, default=300, help="seconds a question may take")
    parser.add_argument("--note", help="kept in the result, such as what else the machine did")
    parser.add_argument("--ask", nargs=2, help="one question and its variant, in this process")
    arguments = parser.parse_args()
    if arguments.ask:
        print(json.dumps(ask(arguments.ask[0], int(arguments.ask[1]))))
        return
    before, results = machine(), []
    for name, variants in QUESTIONS.items():
        for number in range(len(variants)):
            if arguments.only in name:
                found = asked_alone(name, number, arguments.limit)
                results.append({"question": name, "variant": number, **found})
                print(results[-1], file=sys.stderr)
    load = {"before": before.pop("load"), "after": machine()["load"]}
    whole = {"machine": before, "load_average": load, "note": arguments.note, "results": results}
    text = json.dumps(whole, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
