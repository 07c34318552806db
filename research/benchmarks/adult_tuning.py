"""How the settings of examples/adult.toml were picked: on a fifth of Adult's training part.

The held-out test part is not read. Every setting is tried for Uniform at the strictest budget, for
Scale and for Sample; `best` has the best setting of each, and the best for their mean.
JSON to --out or stdout.

    python -m research.benchmarks.adult_tuning --out research/results/adult_tuning.json
"""

import argparse
import json
import os
import platform
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from apiece.datasets import load
from apiece.jobs import prepare, read_job, run

EXAMPLE = Path(__file__).parents[2] / "examples" / "adult.toml"
GRID = [(256, 500), (512, 250), (512, 500), (512, 1000)]
RATES = [0.25, 0.5, 1.0, 2.0]
SEEDS = 3


def write_training_part(path: Path) -> None:
    """Write Adult's training rows with a fifth of them marked as the part to validate on."""
    frame = load("adult")
    frame = frame[frame["split"] == "train"].drop(columns="split")
    held = np.random.default_rng(1).random(len(frame)) < 0.2
    frame.assign(split=np.where(held, "test", "train")).to_parquet(path)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _setting(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("batch_size", "steps", "learning_rate")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "adult.parquet"
        write_training_part(data)
        changes = {"source": str(data), "label": "income", "split": "split", "seeds": SEEDS}
        base = read_job(EXAMPLE, changes | {"seed": 100, "settings": {}})
        for batch_size, steps in GRID:
            for rate in RATES:
                place = Path(folder) / f"{batch_size}-{steps}-{rate}"
                training = replace(
                    base.training, batch_size=batch_size, steps=steps, learning_rate=rate
                )
                job = replace(base, training=training)
                found = run(prepare(job, out=place), out=place).strategies
                setting = {"batch_size": batch_size, "steps": steps, "learning_rate": rate}
                validated = {s.strategy: list(s.test_accuracy) for s in found}
                means = [fmean(s.test_accuracy) for s in found]
                rows.append(setting | {"validation_accuracy": validated, "mean": fmean(means)})
    best = {
        name: _setting(max(rows, key=lambda row: fmean(row["validation_accuracy"][name])))
        for name in base.compare.strategies
    }
    best["mean"] = _setting(max(rows, key=lambda row: row["mean"]))
    machine = {"processor": _processor(), "cores": os.cpu_count()}
    text = json.dumps({"machine": machine, "best": best, "grid": rows}, indent=1)
    if out is None:
        print(text)
    else:
        out.write_text(text + "\n")


if __name__ == "__main__":
    main()
