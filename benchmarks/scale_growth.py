"""How planning, the ledger, shards and queries grow with people: processor time and peak memory.

Each stage and size runs in a process of its own, so that its peak memory is its own; the slope is
that of log time over log people between the two largest sizes.

python benchmarks/scale_growth.py --sizes 4 5 6 --out benchmarks/results/scale_growth.json
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

STAGES: dict[str, Callable[[int, Path], float]] = {}
CHUNK = 1_000_000


def stage(run: Callable[[int, Path], float]) -> Callable[[int, Path], float]:
    STAGES[run.__name__] = run
    return run


def people_file(size: int, folder: Path, group: int = CHUNK) -> Path:
    """Ids, budgets of three levels and an income, written some rows at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, writer = folder / "people.parquet", None
    for start in range(0, size, CHUNK):
        rng, rows = np.random.default_rng(start), min(CHUNK, size - start)
        table = pa.table(
            {
                "id": np.arange(start, start + rows),
                "consent": rng.choice([0.5, 1.0, 4.0], rows),
                "income": rng.lognormal(10.3, 0.6, rows),
                "x": rng.normal(size=rows),
                "y": rng.integers(0, 2, rows),
            }
        )
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table, row_group_size=group)
    assert writer is not None
    writer.close()
    return path


@stage
def plan(size: int, folder: Path) -> float:
    from apiece.assignment import assign_levels
    from apiece.budgets import BudgetLevels

    path = people_file(size, folder)
    start = time.process_time()
    levels = BudgetLevels.from_parquet(path, epsilon="consent", delta=1e-7)
    took = time.process_time() - start
    assign_levels(levels, "scale", steps=100, expected_batch_size=size / 100, clip_norm=1.0)
    return took


def _ledger(size: int, folder: Path) -> Any:
    from apiece.ledger import Ledger

    ledger = Ledger.open(f"sqlite:///{folder}/people.db")
    for start in range(0, size, CHUNK):
        ids = np.arange(start, min(start + CHUNK, size))
        epsilon = np.random.default_rng(start).choice([0.5, 1.0, 4.0], ids.size)
        ledger.enroll(ids, epsilon, 1e-7)
    return ledger


@stage
def ledger_enroll(size: int, folder: Path) -> float:
    start = time.process_time()
    _ledger(size, folder)
    return time.process_time() - start


@stage
def ledger_charge_list(size: int, folder: Path) -> float:
    """A list of everyone, each with a norm."""
    ledger = _ledger(size, folder)
    norms = np.random.default_rng(1).random(size)
    start = time.process_time()
    paid = ledger.reserve("sum", np.arange(size), norms, 20.0)
    ledger.commit("sum")
    took = time.process_time() - start
    assert paid.size == size
    return took


@stage
def ledger_charge(size: int, folder: Path) -> float:
    """Everyone, each with a norm, some blocks at a time; and who paid, read back."""
    ledger = _ledger(size, folder)
    start = time.process_time()
    paid = ledger.reserve_everyone("sum", _norms, 20.0)
    ledger.commit("sum")
    assert paid == sum(part.size for part in ledger.admitted("sum")) == size
    return time.process_time() - start


def _norms(ids: Any) -> Any:
    return (ids * 2654435761 % 2**32) / 2**32


@stage
def ledger_verify(size: int, folder: Path) -> float:
    ledger = _ledger(size, folder)
    ledger.reserve_everyone("sum", _norms, 20.0)
    start = time.process_time()
    assert ledger.verify().ok
    return time.process_time() - start


@stage
def shard_batches(size: int, folder: Path) -> float:
    """Twenty batches of 64 expected records, read from row groups of 1,000."""
    from apiece.plan import Stage
    from apiece.training import ChaCha20Stream, ParquetShards
    from apiece.training.batches import PoissonSampler

    people_file(size, folder, group=1000)
    of = ParquetShards(folder, inputs=["income", "x"], target="y")
    rates = np.array([64.0 / size])
    sampler = PoissonSampler(Stage(20, 64.0, 1.0, rates, np.ones(1)), np.zeros(size, np.int64))
    stream = ChaCha20Stream()
    start = time.process_time()
    for _ in range(20):
        of.__getitems__(sampler.draw(stream).tolist())
    return time.process_time() - start


QUERY = "mean(income)"


def _asked(table: Any, schema: Any) -> None:
    from apiece.queries import Session

    Session(table, schema).ask(QUERY, epsilon=1.0, delta=1e-9)


def _schema() -> Any:
    from apiece.queries import Schema

    return Schema("id", bounds={"income": (0, 200_000)})


@stage
def query_duckdb(size: int, folder: Path) -> float:
    from apiece.queries import register

    path = people_file(size, folder)
    start = time.perf_counter()
    _asked(register(path, _schema()), _schema())
    return time.perf_counter() - start


@stage
def query_spark(size: int, folder: Path) -> float:
    from apiece.queries import register_on_spark, start_spark

    path, spark = people_file(size, folder), start_spark("local[2]")
    start = time.perf_counter()
    table = register_on_spark(path, _schema(), spark=spark, workspace=folder)
    _asked(table, _schema())
    return time.perf_counter() - start


def one(name: str, size: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        seconds = STAGES[name](size, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": round(seconds, 4), "peak_megabytes": round(peak, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 5, 6], help="Powers of ten.")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("STAGE", "SIZE"), help="Run it here.")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], int(given.one[1]))))
        return
    found: dict[str, Any] = {}
    for name in given.stages:
        rows = {}
        for power in given.sizes:
            words = [sys.executable, "-W", "ignore", __file__, "--one", name, str(10**power)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                rows[f"10^{power}"] = {"failed": done.stderr.strip().splitlines()[-1:]}
                continue
            rows[f"10^{power}"] = json.loads(done.stdout.strip().splitlines()[-1])
        times = [row["seconds"] for row in rows.values() if "seconds" in row]
        slope = math.log10(times[-1] / times[-2]) if len(times) > 1 and times[-2] > 0 else None
        found[name] = {"sizes": rows, "slope": None if slope is None else round(slope, 2)}
        machine = {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}
        text = json.dumps({"machine": machine, "query": QUERY, "stages": found}, indent=1) + "\n"
        if given.out:
            given.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
