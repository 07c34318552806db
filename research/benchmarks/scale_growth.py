"""How planning, the ledger, shards and queries grow with people: processor time and peak memory.

Each stage and size runs in a process of its own, so that its peak memory is its own; the slope is
that of log time, or of log memory, over log people between the two largest sizes. The ledger is
SQLite's, or with APIECE_SCALE_LEDGER=postgresql://user@host/name{size} one of those databases.

python -m research.benchmarks.scale_growth --sizes 4 5 6 --out research/results/scale_growth.json
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

    path, writer = folder / f"people-{group}" / "people.parquet", None
    if path.exists():
        return path
    path.parent.mkdir()
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


URL = os.environ.get("APIECE_SCALE_LEDGER", "sqlite:///{folder}/people.db")


def _ledger(size: int, folder: Path) -> Any:
    from apiece.ledger import Ledger

    ledger = Ledger.open(URL.format(folder=folder, size=size))
    if ledger.people == size:
        return ledger
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
    paid = ledger.reserve("list", np.arange(size), norms, 20.0)
    ledger.commit("list")
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
    start = time.process_time()
    assert ledger.verify().ok
    return time.process_time() - start


@stage
def ledger_writers(size: int, folder: Path) -> float:
    """Ten processes at once, each charging everyone; seconds by the clock until the last is done.

    Nothing is lost and nobody overdrawn: each person has paid as often as their budget allows.
    """
    from apiece.ledger import codec

    ledger = _ledger(size, folder)
    once = int(codec.to_units(codec.compute_losses(1.0, 20.0)))
    words = [sys.executable, "-W", "ignore", __file__, "--write", str(size), str(folder)]
    start = time.perf_counter()
    writers = [subprocess.Popen([*words, str(number)]) for number in range(WRITERS)]
    failed = [writer.wait() for writer in writers]
    took = time.perf_counter() - start
    assert failed == [0] * WRITERS
    paid = 0
    for _, terms, spent in ledger.account_blocks():
        times = np.minimum(WRITERS, terms["limit"] // once)
        assert (spent == times * once).all()
        paid += int(times.sum())
    names = [f"writer {number}" for number in range(WRITERS)]
    assert paid == sum(ids.size for name in names for ids in ledger.admitted(name))
    assert ledger.verify().ok
    return took


WRITERS = 10


def write(size: int, folder: Path, number: int) -> None:
    """Charge everyone once."""
    ledger = _ledger(size, folder)
    ledger.reserve_everyone(f"writer {number}", 1.0, 20.0)
    ledger.commit(f"writer {number}")


@stage
def ledger_export(size: int, folder: Path) -> float:
    """Everyone's account, to a Parquet file."""
    ledger = _ledger(size, folder)
    start = time.process_time()
    assert ledger.export(folder / "accounts.parquet") == size
    return time.process_time() - start


@stage
def shard_batches(size: int, folder: Path) -> float:
    """Twenty batches of 64 expected records, read from row groups of 1,000."""
    from apiece.plan.parts import Stage
    from apiece.training import ParquetShards
    from apiece.training.batches import PoissonSampler
    from apiece.training.randomness import ChaCha20Stream

    path = people_file(size, folder, group=1000)
    of = ParquetShards(path.parent, inputs=["income", "x"], target="y")
    rates = np.array([64.0 / size])
    sampler = PoissonSampler(Stage(20, 64.0, 1.0, rates, np.ones(1)), np.zeros(size, np.int64))
    stream = ChaCha20Stream()
    start = time.process_time()
    for _ in range(20):
        of.__getitems__(sampler.draw(stream).tolist())
    return time.process_time() - start


QUERY = "mean(income)"


def _asked(table: Any, schema: Any, ledger: Any = None) -> None:
    from apiece.queries import Session

    Session(table, schema, ledger).ask(QUERY, epsilon=0.1, delta=1e-9)


def _schema() -> Any:
    from apiece.datasets import Numeric, Schema

    return Schema({"income": Numeric(0, 200_000)}, person="id", rows_per_person=1)


@stage
def query_duckdb(size: int, folder: Path) -> float:
    from apiece.queries import register

    path = people_file(size, folder)
    start = time.perf_counter()
    _asked(register(path, _schema()), _schema())
    return time.perf_counter() - start


@stage
def query_ledger(size: int, folder: Path) -> float:
    """The same, charged to a ledger in which everyone has an account."""
    from apiece.queries import register

    ledger, path = _ledger(size, folder), people_file(size, folder)
    start = time.perf_counter()
    _asked(register(path, _schema()), _schema(), ledger)
    return time.perf_counter() - start


@stage
def query_spark(size: int, folder: Path) -> float:
    from apiece.queries.spark import register_on_spark, start_spark

    path, spark = people_file(size, folder), start_spark("local[2]")
    start = time.perf_counter()
    table = register_on_spark(path, _schema(), spark=spark, workspace=folder)
    _asked(table, _schema())
    return time.perf_counter() - start


def one(name: str, size: int, folder: Path) -> dict[str, float]:
    seconds = STAGES[name](size, folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": round(seconds, 4), "peak_megabytes": round(peak, 1)}


def apart(name: str, size: int, folder: Path) -> dict[str, Any]:
    """Run a stage in a process of its own; return what it took, or why it failed."""
    words = [sys.executable, "-W", "ignore", __file__, "--one", name, str(size), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = (done.stderr if done.returncode else done.stdout).strip().splitlines()[-1:]
    return {"failed": lines} if done.returncode else dict(json.loads(lines[0]))


def slopes(sizes: dict[str, Any]) -> dict[str, float]:
    """Growth from each size to the next, as the exponent of people; of seconds and of memory."""
    rows = [row for row in sizes.values() if "seconds" in row]
    return (
        {
            what: round(math.log10(last[what] / before[what]), 2)
            for before, last in [rows[-2:]]
            for what in ("seconds", "peak_megabytes")
            if before[what] > 0 < last[what]
        }
        if len(rows) > 1
        else {}
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 5, 6], help="Powers of ten.")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--out", type=Path, help="Adds to what is there.")
    parser.add_argument("--one", nargs=3, metavar=("STAGE", "SIZE", "FOLDER"), help="Run it here.")
    parser.add_argument("--write", nargs=3, metavar=("SIZE", "FOLDER", "NUMBER"), help="Charge it.")
    given = parser.parse_args()
    if given.write:
        write(int(given.write[0]), Path(given.write[1]), int(given.write[2]))
        return
    if given.one:
        print(json.dumps(one(given.one[0], int(given.one[1]), Path(given.one[2]))))
        return
    found: dict[str, Any] = {}
    if given.out and given.out.exists():
        found = json.loads(given.out.read_text())["stages"]
    for power in given.sizes:
        with tempfile.TemporaryDirectory() as folder:
            for name in given.stages:
                stage = found.setdefault(name, {"sizes": {}})
                load = round(os.getloadavg()[0], 1)
                stage["sizes"][f"10^{power}"] = apart(name, 10**power, Path(folder)) | {
                    "load": load
                }
                stage["slope"] = slopes(stage["sizes"])
                document = {"cores": os.cpu_count(), "query": QUERY, "stages": found}
                text = json.dumps(document, indent=1) + "\n"
                if given.out:
                    given.out.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
