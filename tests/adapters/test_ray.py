"""Blocks trained as Ray tasks are those trained here; runs where ray is installed."""

import socket
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from apiece.adapters.ray import cluster
from apiece.assignment import assign
from apiece.audit.shadows import Pool, ShadowJob, train_shadows
from apiece.audit.splits import biregular
from apiece.audit.stacked_training import UpdateRule
from apiece.budgets import Budgets
from apiece.errors import InputError, StateError, UnsupportedError
from apiece.training.stacked import StackedMlp


def squares(block: int) -> dict[str, np.ndarray]:
    return {"confidences": np.full((1, 2), float(block**2))}


class RayError(Exception):
    pass


class RayTaskError(RayError):
    pass


class FakeRay:
    """As much of Ray as the mapper uses; tasks come back last first."""

    exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError)

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
    assert fake.log == ["init local", "put", "cpus 2", "shutdown"]


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
    with pytest.raises(UnsupportedError, match="pip install ray"):
        list(cluster()(squares, range(1)))


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_where_nobody_listens_ray_is_not_left_to_wait(scheme: str, fake: FakeRay) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"{scheme}127.0.0.1:{free.getsockname()[1]}"
        assert len(list(cluster(address)(squares, range(1)))) == 1
    fake.log.clear()
    with pytest.raises(StateError, match=f"no cluster answers at {address}.*ray start --head"):
        list(cluster(address)(squares, range(1)))
    assert fake.log == []


@pytest.mark.parametrize("ended", [ConnectionError, SystemExit])
def test_the_cluster_around_that_is_dead_is_one_line(
    ended: type[BaseException], fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise ended(1)

    monkeypatch.setattr(fake, "init", init)
    with pytest.raises(StateError, match="no cluster answers at auto"):
        list(cluster("auto")(squares, range(1)))


@pytest.mark.usefixtures("fake")
@pytest.mark.parametrize("address", ["", "here", "host:", "host:many", "ray://host", "host:99999"])
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(InputError, match=f"address = '{address}': give host:port"):
        list(cluster(address)(squares, range(1)))


def test_a_block_that_no_worker_survives_is_named(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(task: tuple[object, object, int]) -> object:
        raise RayError

    monkeypatch.setattr(fake, "get", lost)
    with pytest.raises(StateError, match=r"block 1 was lost with its worker \(RayError\)"):
        list(cluster()(squares, range(2)))
    assert fake.log[-1] == "shutdown"


def test_what_training_raises_is_raised(fake: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def raised(task: tuple[object, object, int]) -> object:
        raise RayTaskError

    monkeypatch.setattr(fake, "get", raised)
    with pytest.raises(RayTaskError):
        list(cluster()(squares, range(2)))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_cluster_of_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started here, whatever Ray remembers of others."""
    pytest.importorskip("ray", reason="ray is not installed")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    groups = np.arange(12) % 2
    budgets = Budgets.from_groups([("strict", 1.0, 0.5), ("weak", 3.0, 0.5)], 6, 1e-5)
    pool = Pool(np.arange(12), torch.randn(12, 4), torch.arange(12) % 3, groups)
    plan = assign(budgets, "scale", steps=3, expected_batch_size=2, clip_norm=1.0)
    split = biregular(8, groups, generator=np.random.default_rng(0))
    job = ShadowJob(pool, plan, StackedMlp((4, 5, 3)), split, UpdateRule(), seed=1, block=3)
    spread = train_shadows(job, mapper=cluster())
    np.testing.assert_array_equal(spread.confidences, train_shadows(job).confidences)
