"""On a Spark cluster of this machine: executors killed on the way change no bit and no charge.

Skipped where pyspark or Java is missing.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_worlds import SCHEMA
from test_spark import rows, sums, written

from apiece.ledger import Ledger
from apiece.queries import Session, register, spark
from apiece.queries.spark import register_on_spark

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.filterwarnings("default"),
]
WORKERS = 2


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A master and two workers with one executor each, and a session on them."""
    pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
    from pyspark.sql import SparkSession

    home, folder = Path(pyspark.__file__).parent, tmp_path_factory.mktemp("spark")
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    env = os.environ | {"SPARK_HOME": str(home), "PYTHONPATH": paths}
    port = _port()
    address = f"spark://127.0.0.1:{port}"

    def started(role: str, *words: str) -> subprocess.Popen[bytes]:
        named = f"org.apache.spark.deploy.{role}"
        command = [str(home / "bin" / "spark-class"), named, "--host", "127.0.0.1", *words]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(command, env=env, cwd=folder, **quiet)  # type: ignore[call-overload,no-any-return]

    nodes = [started("master.Master", "--port", str(port), "--webui-port", "0")]
    for number in range(WORKERS):
        own = ("-c", "1", "-m", "1g", "-d", str(folder / str(number)), "--webui-port", "0")
        nodes.append(started("worker.Worker", *own, address))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = SparkSession.builder.master(address).appName("tests")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": paths,
        "spark.ui.showConsoleProgress": "false",
    }.items():
        made = made.config(name, value)
    session = made.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        for node in nodes:
            node.terminate()
            node.wait(60)


def executors(session: Any) -> list[int]:
    """Return the processes of this application's executors."""
    name, found = session.sparkContext.applicationId.encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it ended
            continue
        if name in words and b"org.apache.spark.executor.CoarseGrainedExecutorBackend" in words:
            found.append(int(process.name))
    return found


def kill_one(session: Any) -> None:
    """Kill an executor, waiting for one to be there."""
    until = time.monotonic() + 120
    while not (found := executors(session)):
        assert time.monotonic() < until, "no executor came up"
        time.sleep(0.1)
    os.kill(found[0], signal.SIGKILL)


def tables(session: Any, folder: Path, seed: int) -> tuple[Any, Any]:
    """One random table, read by DuckDB and by the cluster."""
    rng = random.Random(seed)
    one, several = written(rows(rng, "typed"), folder / "t", rng)
    there = register_on_spark(several, SCHEMA, spark=session, workspace=folder)
    return register(one, SCHEMA), there


class Killed:
    """Totals whose executor is killed first: what it kept of `norms` is lost."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, held: Any, paid: Any) -> Any:
        kill_one(held.spark)
        self.times += 1
        return TOTALS(held, paid)


TOTALS = spark.SparkContributions.totals


@pytest.mark.parametrize("text", ["mean(x)", "count() by city"])
def test_an_executor_killed_between_norms_and_sums_changes_no_bit(
    text: str, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tables(cluster, tmp_path, 7)
    expected, killed = sums(here, text), Killed()
    monkeypatch.setattr(spark.SparkContributions, "totals", lambda *args: killed(*args))
    assert sums(there, text) == expected
    assert killed.times == 2


def test_an_executor_killed_in_mid_query_charges_nobody_twice(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charges, answer and history are those without Spark; asked again, nothing is charged."""
    here, there = tables(cluster, tmp_path, 5)
    ids, killed, found = here.people.tolist()[1:], Killed(), []
    monkeypatch.setattr(spark.SparkContributions, "totals", lambda *args: killed(*args))
    for number, table in enumerate((here, there)):
        ledger = Ledger.open(f"sqlite:///{tmp_path}/{number}.db")
        ledger.enroll(ids, np.where(np.arange(len(ids)) % 2, 0.1, 2.0), 1e-6)
        for _ in range(2):
            asking = Session(table, SCHEMA, ledger, seed=1)
            answer = asking.ask("count()", epsilon=0.4, delta=1e-6, analysis_id="q").groups
            kinds = [entry.kind for entry in ledger.history()]
            found.append((answer, ledger.spent(ids).tolist(), kinds, ledger.verify().ok))
    assert killed.times == 1
    assert found[0] == found[1] == found[2] == found[3]
    spent, kinds = found[0][1:3]
    assert min(spent) == 0 < max(spent)
    assert kinds == ["init", "enroll", "reserve", "commit"]
