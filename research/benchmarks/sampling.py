"""Time of drawing one Poisson batch at individual rates, and of ten million noise values.

python -m research.benchmarks.sampling --out research/results/sampling.json
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path

import numpy as np
import torch

from apiece.plan.parts import Stage
from apiece.training.batches import PoissonSampler
from apiece.training.randomness import ChaCha20Stream


def milliseconds(function: object, rounds: int) -> float:
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        function()  # type: ignore[operator]
        took.append(time.perf_counter() - begun)
    return round(statistics.median(took) * 1e3, 4)


def sampling(records: int, rates: np.ndarray, index: np.ndarray) -> dict[str, float]:
    stage = Stage(1, 1.0, 1.0, rates, np.ones(rates.size))
    begun = time.perf_counter()
    sampler = PoissonSampler(stage, index)
    start = time.perf_counter() - begun
    stream = ChaCha20Stream()
    sizes = [sampler.draw(stream).size for _ in range(5)]
    return {
        "records": records,
        "distinct_rates": int(rates.size),
        "mean_batch": float(np.mean(sizes)),
        "start_seconds": round(start, 3),
        "step_milliseconds": milliseconds(lambda: sampler.draw(stream), 50),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    many, few = 10_000_000, 1_000_000
    q = 4096 / many
    own = rng.uniform(0.2, 1.8, few) * 4096 / few
    stream, generator = ChaCha20Stream(), torch.Generator()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(row.split(":")[1].strip() for row in lines if row.startswith("model name"))
    results = {
        "machine": {"cpu": cpu, "threads": torch.get_num_threads(),
                    "python": platform.python_version(), "torch": torch.__version__},
        "three rates": sampling(many, np.array([0.5, 1.0, 1.8]) * q, rng.integers(0, 3, many)),
        "every record its own": sampling(few, own, np.arange(few)),
        "noise, a million values": {
            "chacha20_double_milliseconds": milliseconds(lambda: stream.normal(10**6), 9),
            "torch_float_milliseconds": milliseconds(
                lambda: torch.randn(10**6, generator=generator), 9
            ),
            "torch_double_milliseconds": milliseconds(
                lambda: torch.randn(10**6, generator=generator, dtype=torch.float64), 9
            ),
        },
    }  # fmt: skip
    text = json.dumps(results, indent=2)
    if options.out:
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
