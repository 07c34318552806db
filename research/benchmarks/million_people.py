"""A million persons with ten million rows: time and memory of a plan, of the rows, and of a step.

Times are of the processor, one thread.

python -m research.benchmarks.million_people --out research/results/million_people.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apiece import Budgets, Sample, assign
from apiece.budgets import Units
from apiece.plan.parts import Stage
from apiece.training.batches import PoissonSampler
from apiece.training.randomness import ChaCha20Stream
from apiece.training.sums import choose_rows

PERSONS, ROWS, LIMIT, STEPS = 1_000_000, 10_000_000, 20, 1000


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    begun = time.process_time()
    found = function()
    return found, round(time.process_time() - begun, 4)


def megabytes() -> float:
    """The most memory that the process has had so far."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def with_rows(people: np.ndarray, ids: np.ndarray) -> Units:
    """Whose each row is, with the rows of each person at hand."""
    units = Units.of(people, ids)
    _ = units.rows
    return units


def steps(of: Units, stage: Stage, index: np.ndarray) -> dict[str, float]:
    """Milliseconds a step takes to draw persons and to say which rows they bring."""
    sampler, seconds = timed(lambda: PoissonSampler(stage, index))
    stream, generator = ChaCha20Stream(), np.random.default_rng(0)
    drawn, brought, rows = [], [], []
    for _ in range(21):
        persons, took = timed(lambda: sampler.draw(stream))
        drawn.append(took)
        some, took = timed(lambda: choose_rows(of, persons, generator.bytes(32)))  # noqa: B023
        brought.append(took)
        rows.append(some.rows.size)
    return {
        "sampler_seconds": seconds,
        "draw_milliseconds": round(float(np.median(drawn)) * 1e3, 3),
        "bring_milliseconds": round(float(np.median(brought)) * 1e3, 3),
        "rows_a_step": float(np.mean(rows)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    random = np.random.default_rng(0)
    weights = random.pareto(1.5, PERSONS) + 0.1  # ragged: most have few rows, some thousands
    extra = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random(ROWS - PERSONS))
    people = random.permutation(np.concatenate([np.arange(PERSONS), extra]))
    ids = random.permutation(PERSONS)
    asked = random.choice([0.5, 1.0, 4.0], PERSONS)
    before = megabytes()
    budgets = Budgets(asked, 1e-7, ids=ids)
    plan, planning = timed(
        lambda: assign(budgets, Sample(), steps=STEPS, expected_batch_size=4096, clip_norm=1.0)
    )
    planned = megabytes()
    of, reading = timed(lambda: with_rows(people, ids))
    texts = people.astype(str), ids.astype(str)
    _, reading_text = timed(lambda: with_rows(*texts))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(row.split(":")[1].strip() for row in lines if row.startswith("model name"))
    results = {
        "machine": {"cpu": cpu, "python": platform.python_version(), "numpy": np.__version__},
        "persons": PERSONS,
        "rows": ROWS,
        "most_rows_of_a_person": int(of.counts.max()),
        "planning_seconds": planning,
        "peak_megabytes": {"before": before, "planned": planned, "in_all": megabytes()},
        "rows_of_people": {
            "seconds": reading,
            "seconds_of_text_ids": reading_text,
            "megabytes_kept": round(
                (of.owner.nbytes + of.rows.nbytes + of.starts.nbytes) / 2**20, 1
            ),
        },
        "step": steps(of, plan.stages[0], plan.group_index),
        f"step, at most {LIMIT} rows a person": steps(
            replace(of, most=LIMIT), plan.stages[0], plan.group_index
        ),
    }
    found = json.dumps(results, indent=2)
    if options.out:
        options.out.write_text(found + "\n")
    print(found)


if __name__ == "__main__":
    main()
