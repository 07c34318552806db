"""How the settings of examples/adult.toml were picked: on a fifth of Adult's training part.

The held-out test part is not read. The settings are picked for the baseline, Uniform at the
strictest budget; Scale and Sample then use the same. JSON to --out or stdout.

    python benchmarks/adult_tuning.py --out benchmarks/results/adult_tuning.json
"""

import argparse
import json
import os
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apiece.datasets import load
from apiece.training.tabular import prepare, read_job, run

EXAMPLE = Path(__file__).parents[1] / "examples" / "adult.toml"
GRID = [(512, 500), (512, 1000), (512, 2000), (1024, 1000)]
RATES = [0.5, 1.0, 2.0, 4.0]
SEEDS = 3


def write_training_part(path: Path) -> None:
    """Write Adult's training rows with a fifth of them marked as the part to validate on."""
    frame = load("adult")
    frame = frame[frame["split"] == "train"].drop(columns="split")
    held = np.random.default_rng(1).random(len(frame)) < 0.2
    frame.assign(split=np.where(held, "test", "train")).to_parquet(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "adult.parquet"
        write_training_part(data)
        base = replace(
            read_job(EXAMPLE), source=str(data), label="income", split="split", seeds=SEEDS
        )
        base = replace(base, strategy="uniform", strategies=("uniform",), seed=100)
        for batch_size, steps in GRID:
            for rate in RATES:
                place = Path(folder) / f"{batch_size}-{steps}-{rate}"
                job = replace(base, batch_size=batch_size, steps=steps, learning_rate=rate)
                found = run(
                    prepare(job, out=place),
                    out=place,
                    render=lambda _: "",
                    watch=lambda *_: None,
                )["strategies"][0]
                rows.append(
                    {
                        "batch_size": batch_size,
                        "steps": steps,
                        "learning_rate": rate,
                        "validation_accuracy": found["test_accuracy"],
                        "mean": found["test_accuracy_mean"],
                    }
                )
    best = max(rows, key=lambda row: row["mean"])
    machine = {"processor": platform.machine(), "cores": os.cpu_count()}
    text = json.dumps(
        {"machine": machine, "strategy": "uniform", "best": best, "grid": rows}, indent=1
    )
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
