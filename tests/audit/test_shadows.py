"""Shadow jobs: the same result however they are run, no model twice, none lost."""

import importlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from apiece.audit.shadows import (
    Arrays,
    Pool,
    ShadowJob,
    Work,
    claim,
    processes,
    serially,
    train_shadows,
)
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule, confidences, train
from apiece.budgets import Units
from apiece.errors import DataError, InputError
from apiece.training.stacked import StackedMlp
from refusals import refused

from .worlds import plan, pool


def job(models: int = 10, block: int = 4, **change: object) -> ShadowJob:
    data = pool()
    included = biregular(models, data.groups, generator=np.random.default_rng(0))
    base = ShadowJob(
        data, plan(), StackedMlp((7, 6, 3)), included, UpdateRule(), seed=1, block=block
    )
    return replace(base, **change)  # type: ignore[arg-type]


def test_folder_and_memory_agree(tmp_path: Path) -> None:
    one, seen = job(), []
    kept = train_shadows(one, folder=tmp_path, progress=lambda k, n: seen.append((k, n)))
    held = train_shadows(one)
    np.testing.assert_array_equal(kept.confidences, held.confidences)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert kept.ids.tolist() == one.pool.ids.tolist()
    assert set(kept.groups) == {"strict", "weak"}
    assert claim(one, tmp_path) == []


def test_only_what_is_missing_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = job()
    whole = train_shadows(one, folder=tmp_path)
    (tmp_path / "block-000001.npz").unlink()
    trained = []
    original = ShadowJob.train_block

    def spy(self: ShadowJob, block: int) -> dict[str, np.ndarray]:
        trained.append(block)
        return original(self, block)

    monkeypatch.setattr(ShadowJob, "train_block", spy)
    again = train_shadows(one, folder=tmp_path)
    assert trained == [1]
    np.testing.assert_array_equal(again.confidences, whole.confidences)


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from audit import test_shadows as t
from apiece.audit.shadows import ShadowJob, train_shadows
original = ShadowJob.train_block
def slow(self, block):
    with open({log!r}, "a") as log:
        log.write(f"{{block}}\\n")
    found = original(self, block)
    time.sleep(0.3)
    return found
ShadowJob.train_block = slow
train_shadows(t.job(models=24, block=2), folder=Path({folder!r}))
"""


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After SIGKILL: blocks with a file are never trained again, all others just once."""
    folder, log = tmp_path / "run", tmp_path / "log"
    code = textwrap.dedent(SCRIPT).format(
        tests=str(Path(__file__).parents[1]), log=str(log), folder=str(folder)
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while len(list(folder.glob("block-*.npz"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = {int(p.stem.split("-")[1]) for p in folder.glob("block-*.npz")}
    assert 3 <= len(kept) < 12
    first = [int(line) for line in log.read_text().split()]
    one = job(models=24, block=2)
    assert set(claim(one, folder)) == set(range(12)) - kept
    whole, again = train_shadows(one), list[int]()
    original = ShadowJob.train_block

    def spy(self: ShadowJob, block: int) -> Arrays:
        again.append(block)
        return original(self, block)

    monkeypatch.setattr(ShadowJob, "train_block", spy)
    resumed = train_shadows(one, folder=folder)
    assert len(first) == len(set(first))
    assert set(first) >= kept
    assert sorted(again) == sorted(set(range(12)) - kept)
    np.testing.assert_array_equal(resumed.confidences, whole.confidences)


@pytest.mark.slow
def test_two_processes_give_the_same() -> None:
    one = job()
    spread = train_shadows(one, mapper=processes(2))
    np.testing.assert_array_equal(spread.confidences, train_shadows(one).confidences)


@pytest.mark.slow
def test_blocks_that_wait_are_not_begun_after_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "marking_work.py").write_text(
        "import pathlib, time\n"
        "def work(folder, block):\n"
        "    pathlib.Path(folder, str(block)).touch()\n"
        "    time.sleep(0.05)\n"
        "    return {}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "begun"
    folder.mkdir()
    work = partial(importlib.import_module("marking_work").work, folder)
    blocks = processes(1)(work, range(200))
    next(iter(blocks))
    blocks.close()  # type: ignore[attr-defined]
    assert 1 <= len(list(folder.iterdir())) < 100


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_processes_end_with_the_one_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "marking_work.py").write_text(
        "import os, pathlib, time\n"
        "def work(folder, block):\n"
        "    pathlib.Path(folder, str(os.getpid())).touch()\n"
        "    time.sleep(0.05)\n"
        "    return {}\n"
    )
    folder = tmp_path / "pids"
    folder.mkdir()
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from functools import partial\n"
        "from marking_work import work\n"
        "from apiece.audit.shadows import processes\n"
        "if __name__ == '__main__':\n"
        f"    list(processes(2)(partial(work, {str(folder)!r}), range(100_000)))\n"
    )
    (tmp_path / "script.py").write_text(code)
    process = subprocess.Popen([sys.executable, str(tmp_path / "script.py")])
    deadline = time.monotonic() + 300
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.wait()
    begun = [int(path.name) for path in folder.iterdir()]
    assert len(begun) == 2
    while any(map(running, begun)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(running, begun))


def running(pid: int) -> bool:
    """Whether the process is there; one that has ended and waits to be reaped is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"recipe": UpdateRule(learning_rate=0.02)},
        {"plan": plan(noise_stddev=0.6)},
        {"included": np.ones((10, 40), dtype=bool)},
        {"block": 5},
        {"model": StackedMlp((7, 5, 3))},
        {"pool": replace(pool(), inputs=pool().inputs + 1)},
    ],
    ids=["seed", "recipe", "plan", "included", "block", "model", "data"],
)
def test_another_job_in_the_folder_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    claim(job(), tmp_path)
    with pytest.raises(DataError, match="another job"):
        claim(job(**change), tmp_path)


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    claim(job(), tmp_path)
    (tmp_path / "job.json").write_text("{half")
    with pytest.raises(DataError):
        claim(job(), tmp_path)


def test_the_order_in_which_blocks_come_back_does_not_matter(tmp_path: Path) -> None:
    one = job()

    def backwards(work: Work, blocks: Iterable[int]) -> Iterator[tuple[int, Arrays]]:
        yield from serially(work, reversed(list(blocks)))

    whole = train_shadows(one).confidences
    for folder in (None, tmp_path):
        found = train_shadows(one, folder=folder, mapper=backwards)
        np.testing.assert_array_equal(found.confidences, whole)


def of_people(**change: object) -> ShadowJob:
    """40 persons with 1 to 4 rows each; a person's rows are not side by side."""
    data, generator = pool(), np.random.default_rng(3)
    whose = generator.permutation(np.repeat(data.ids, np.arange(40) % 4 + 1))
    rows = pool(whose.size, seed=4)
    people = replace(Units.of(whose, data.ids), most=change.pop("most", None))  # type: ignore[arg-type]
    return job(pool=Pool(data.ids, rows.inputs, rows.targets, data.groups, people), **change)


def test_scores_are_of_persons(tmp_path: Path) -> None:
    one = of_people()
    found = train_shadows(one, folder=tmp_path)
    assert found.confidences.shape == (10, 40)
    assert found.ids.tolist() == one.pool.ids.tolist()
    data = one.pool.inputs, one.pool.targets
    flat = train(
        one.model, data, one.plan, groups=one.pool.groups,
        included=one.included[:4], recipe=one.recipe, seed=one.seed, people=one.pool.people,
    )  # fmt: skip
    each = confidences(one.model, flat, *data)
    assert one.pool.people is not None
    for person in (0, 7, 39):
        mine = one.pool.people.rows[slice(*one.pool.people.starts[person : person + 2])]
        assert mine.size == person % 4 + 1
        expected = each[:, mine].mean(axis=1)
        np.testing.assert_allclose(found.confidences[:4, person], expected, rtol=1e-5)
    for other in (of_people(most=2), job()):
        with pytest.raises(DataError, match="another job"):
            train_shadows(other, folder=tmp_path)


def test_groups_of_each_model() -> None:
    """A group for each (model, record) is followed: group 0 for all differs from the pool's."""
    one = job()
    zero = replace(one, groups=np.zeros(one.included.shape, dtype=np.int64))
    same = replace(one, groups=np.broadcast_to(one.pool.groups, one.included.shape))
    found = train_shadows(one).confidences
    np.testing.assert_array_equal(train_shadows(same).confidences, found)
    assert not np.array_equal(train_shadows(zero).confidences, found)


def test_bad_input() -> None:
    data = pool()
    with refused(DataError, "included"):
        job(included=np.ones((3, 5), dtype=bool))
    with pytest.raises(InputError, match="position 7"):
        job(pool=replace(data, groups=np.full(40, 7)))
    with refused(InputError, "processes"):
        processes(0)
    with refused(DataError, "pool"):
        Pool(data.ids, data.inputs[:5], data.targets, data.groups)
    broken = data.inputs.clone()
    broken[3, 0] = torch.nan
    with pytest.raises(DataError, match=f"record {data.ids[3]}"):
        Pool(data.ids, broken, data.targets, data.groups)
    by_person = of_people().pool
    with refused(DataError, "pool"):
        replace(by_person, people=None)
    persons = replace(plan(), unit="person")
    assert of_people(plan=persons).plan.unit == "person"
    with pytest.raises(InputError, match="plan is for persons"):
        job(plan=persons)
    with pytest.raises(DataError, match="row 3"):
        replace(by_person, inputs=by_person.inputs.index_fill(0, torch.tensor([3]), torch.inf))
