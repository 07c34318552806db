"""Blocks trained as Ray tasks are those trained here; runs where ray is installed."""

import sys

import numpy as np
import pytest
import torch

from apiece.adapters.ray import cluster
from apiece.assignment import assign
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import Recipe
from apiece.budgets import Budgets
from apiece.errors import UnsupportedError
from apiece.training.stacked import StackedMlp


def squares(block: int) -> dict[str, np.ndarray]:
    return {"confidences": np.full((1, 2), float(block**2))}


class FakeRay:
    """As much of Ray as the mapper uses; tasks come back last first."""

    def __init__(self) -> None:
        self.open, self.log = False, list[str]()

    def is_initialized(self) -> bool:
        return self.open

    def init(self, **settings: object) -> None:
        self.open = True
        self.log.append(f"init {settings['address']}")

    def shutdown(self) -> None:
        self.open = False
        self.log.append("shutdown")

    def put(self, value: object) -> object:
        self.log.append("put")
        return value

    def remote(self, **options: float) -> object:
        class Task:
            @staticmethod
            def remote_of(function: object) -> object:
                class Handle:
                    @staticmethod
                    def remote(work: object, block: int) -> tuple[object, object, int]:
                        return function, work, block

                return Handle

        self.log.append(f"cpus {options['num_cpus']:g}")
        return Task.remote_of

    def wait(self, tasks: list[object], num_returns: int) -> tuple[list[object], list[object]]:
        assert num_returns == 1
        return tasks[-1:], tasks[:-1]

    def get(self, task: tuple[object, object, int]) -> object:
        function, work, block = task
        return function(work, block)  # type: ignore[operator]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    return ray


def test_every_block_comes_back_once(fake: FakeRay) -> None:
    found = dict(cluster(cpus=2)(squares, range(5)))
    assert {block: arrays["confidences"][0, 0] for block, arrays in found.items()} == {
        0: 0,
        1: 1,
        2: 4,
        3: 9,
        4: 16,
    }
    assert fake.log == ["init None", "put", "cpus 2", "shutdown"]


def test_an_open_connection_is_left_open(fake: FakeRay) -> None:
    fake.open = True
    assert len(list(cluster()(squares, range(3)))) == 3
    assert fake.open
    assert fake.log == ["put", "cpus 1"]


def test_ray_is_closed_when_the_caller_stops_early(fake: FakeRay) -> None:
    blocks = iter(cluster()(squares, range(3)))
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert fake.log[-1] == "shutdown"


def test_without_ray_the_message_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UnsupportedError, match=r"apiece\[ray\]"):
        list(cluster()(squares, range(1)))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_one_machine() -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    groups = np.arange(12) % 2
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 6, 1e-5)
    pool = Pool(np.arange(12), torch.randn(12, 4), torch.arange(12) % 3, groups)
    plan = assign(budgets, "scale", steps=3, expected_batch_size=2, clip_norm=1.0)
    split = biregular(8, groups, generator=np.random.default_rng(0))
    job = ShadowJob(pool, plan, StackedMlp((4, 5, 3)), split, Recipe(), seed=1, block=3)
    spread = train_shadows(job, mapper=cluster())
    np.testing.assert_array_equal(spread.confidences, train_shadows(job).confidences)
