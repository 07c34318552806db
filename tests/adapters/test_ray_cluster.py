"""On a Ray cluster of this machine: killed workers and drivers change no bit of what is found.

Skipped where ray is not installed: pip install ray.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from apiece.adapters import cluster
from apiece.assignment import assign
from apiece.audit import ShadowJob, train_shadows
from apiece.audit.shadows import Arrays, Mapper, Pool, Work
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.training.stacked import StackedMlp

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


def job() -> ShadowJob:
    """Six blocks of two models on forty records."""
    rng, groups = np.random.default_rng(0), np.arange(40) % 2
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 20, 1e-5)
    inputs = torch.from_numpy(rng.normal(size=(40, 4)).astype(np.float32))
    pool = Pool(np.arange(40), inputs, torch.arange(40) % 3, groups)
    plan = assign(budgets, "sample", steps=40, expected_batch_size=4, clip_norm=1.0)
    split = biregular(12, groups, generator=np.random.default_rng(0))
    return ShadowJob(pool, plan, StackedMlp((4, 8, 3)), split, UpdateRule(), seed=1, block=2)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of this machine, which this process is connected to."""
    ray = pytest.importorskip("ray", reason="ray is not installed")
    memory = 80 * 2**20
    own = {"address": "local", "num_cpus": 2, "object_store_memory": memory}  # no other's
    ray.init(**own, include_dashboard=False, log_to_driver=False)
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers know no tests
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


@pytest.fixture(scope="module")
def alone() -> Any:
    return train_shadows(job()).confidences


@dataclass
class DiesOnce:
    """Kills the process that trains `block` for the first time."""

    work: Work
    block: int
    died: Path

    def __call__(self, block: int) -> Arrays:
        if block == self.block and not self.died.exists():
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.work(block)


def killing(mapper: Mapper, block: int, died: Path) -> Mapper:
    return lambda work, blocks: mapper(DiesOnce(work, block, died), blocks)


@pytest.mark.usefixtures("address")
def test_blocks_are_those_trained_here(alone: Any) -> None:
    found = train_shadows(job(), mapper=cluster()).confidences
    assert found.tobytes() == alone.tobytes()


@pytest.mark.usefixtures("address")
@pytest.mark.parametrize("block", [0, 3, 5])
def test_a_killed_worker_changes_nothing(block: int, alone: Any, tmp_path: Path) -> None:
    mapper = killing(cluster(), block, tmp_path / "died")
    done: list[tuple[int, int]] = []
    scores = train_shadows(
        job(), folder=tmp_path / "shadows", mapper=mapper, progress=lambda *at: done.append(at)
    )
    assert (tmp_path / "died").exists()
    assert scores.confidences.tobytes() == alone.tobytes()
    assert done == [(k, 6) for k in range(1, 7)]


DRIVER = """
import os, signal, sys
from pathlib import Path
from test_ray_cluster import job
from apiece.adapters import cluster
from apiece.audit import train_shadows

def die(done, _):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)

train_shadows(job(), folder=Path(sys.argv[1]), mapper=cluster(sys.argv[2]), progress=die)
"""


def test_a_killed_driver_is_gone_on_with(address: str, alone: Any, tmp_path: Path) -> None:
    folder = tmp_path / "shadows"
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    words = [sys.executable, "-W", "ignore", "-c", DRIVER, str(folder), address]
    driver = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, timeout=300, check=False
    )
    assert driver.returncode == -signal.SIGKILL, driver.stderr.decode()
    written = {file: file.stat().st_mtime_ns for file in folder.glob("block-*.npz")}
    assert len(written) == 2
    done: list[int] = []
    scores = train_shadows(
        job(), folder=folder, mapper=cluster(), progress=lambda at, _: done.append(at)
    )
    assert scores.confidences.tobytes() == alone.tobytes()
    assert done == [3, 4, 5, 6]
    assert {file: file.stat().st_mtime_ns for file in written} == written
