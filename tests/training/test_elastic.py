"""Another number of processes goes on with a run only where no step is made a second time.

The slow tests start two processes, kill one, and start them again: by hand, and by `torchrun`.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from apiece import Budgets, Rounds, Sample, assign
from apiece.errors import StateError
from apiece.training import Trainer
from apiece.training.processes import Processes

CHILD = """
import os, signal, sys
import numpy as np, torch, torch.distributed as dist
from torch import nn
from apiece import Budgets, Sample, assign
from apiece.training import ParquetShards, Trainer

folder, data, kill_at, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
dist.init_process_group("gloo")
of = ParquetShards(data, inputs=["a", "b"], target="y")
budgets = Budgets(np.tile([1.0, 4.0], len(of) // 2), 1e-3)
plan = assign(budgets, Sample(), steps=8, expected_batch_size=20, clip_norm=1.0)
torch.manual_seed(0)
model = nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
parts = (model, optimizer, nn.CrossEntropyLoss(reduction="none"), plan, of)

def die(done):
    if done.step == kill_at and dist.get_rank() == 1 and not os.path.exists(folder + ".died"):
        open(folder + ".died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)

if os.path.exists(folder):
    trainer = Trainer.resume(folder, *parts, save_every=2, callbacks=[die])
else:
    trainer = Trainer(*parts, seed=1, checkpoint=folder, save_every=2, callbacks=[die])
trainer.fit(steps - trainer.step_number)
if dist.get_rank() == 0:
    torch.save(model.weight.detach(), folder + ".pt")
dist.destroy_process_group()
"""


def trained(folder: Path, world: int, steps: int, kill_at: int = -1) -> torch.Tensor | None:
    """Start processes as `torchrun` does, by their environment; None if one was killed."""
    (folder.parent / "child.py").write_text(CHILD)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world)}
    words = [sys.executable, "-W", "ignore", str(folder.parent / "child.py"), str(folder)]
    children = [
        subprocess.Popen(
            [*words, str(folder.parent / "data"), str(kill_at), str(steps)],
            env=os.environ | shared | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    said = [child.communicate(timeout=400)[1] for child in children[::-1]]
    if kill_at >= 0:
        assert children[1].returncode == -signal.SIGKILL
        assert children[0].returncode != 0, "it went on without the other's records"
        return None
    assert all(child.returncode == 0 for child in children), said
    found: torch.Tensor = torch.load(f"{folder}.pt", weights_only=True)
    return found


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for number in range(4):
        rows = {"a": rng.normal(size=50), "b": rng.normal(size=50), "y": rng.integers(0, 2, 50)}
        pd.DataFrame(rows).to_parquet(tmp_path / "data" / f"{number}.parquet", row_group_size=10)
    return tmp_path / "data"


@pytest.mark.slow
def test_torchrun_starts_again_what_was_killed(shards: Path, tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 2, steps=8)
    folder = tmp_path / "run"
    (tmp_path / "child.py").write_text(CHILD)
    # Else torchrun hands new processes the store of the old ones, with addresses of the dead.
    env = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    child = ["--max-restarts", "1", str(tmp_path / "child.py"), str(folder), str(shards), "5", "8"]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *words, *child],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(f"{folder}.died").exists()
    assert whole is not None
    assert torch.equal(whole, torch.load(f"{folder}.pt", weights_only=True))


@pytest.mark.slow
@pytest.mark.usefixtures("shards")
def test_a_killed_process_changes_nothing_and_a_run_goes_on_with_fewer(tmp_path: Path) -> None:
    whole = trained(tmp_path / "whole", 2, steps=8)
    trained(tmp_path / "killed", 2, steps=8, kill_at=5)
    with pytest.raises(AssertionError, match="last number of processes, 2"):
        trained(tmp_path / "killed", 1, steps=8)
    again = trained(tmp_path / "killed", 2, steps=8)
    assert whole is not None
    assert again is not None
    assert torch.equal(whole, again)
    trained(tmp_path / "elastic", 2, steps=4)
    trained(tmp_path / "elastic", 1, steps=8)


class Pretended(Processes):
    """One process that counts as two and has all the records."""

    shard = (0, 1)

    def share_key(self, key: bytes) -> bytes:
        return key

    def share_parameters(self, tensors: Any) -> None:
        pass

    def gather(self, clipped: Any) -> Any:
        return clipped

    def share(self, noisy: Any) -> dict[str, torch.Tensor]:
        return dict(noisy)

    def wait(self) -> None:
        pass


def parts(strategy: Any) -> tuple[Any, ...]:
    budgets = Budgets(np.tile([1.0, 4.0], 20), 1e-3)
    plan = assign(budgets, strategy, steps=6, expected_batch_size=8, clip_norm=1.0)
    model = nn.Linear(2, 2)
    data = (torch.randn(40, 2), torch.arange(40) % 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, nn.CrossEntropyLoss(reduction="none"), plan, data


def stopped(of: tuple[Any, ...], folder: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Two processes train up to step `at`, and saved the last time after two steps."""
    with monkeypatch.context() as patched:
        patched.setattr(Processes, "current", classmethod(lambda _cls, _model: Pretended(0, 2)))
        trainer = Trainer(*of, seed=0, checkpoint=folder, save_every=2)
        for _ in range(at):
            trainer.step()


def test_one_goes_on_where_two_stopped_at_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = parts(Sample())
    stopped(of, tmp_path / "run", monkeypatch, at=2)
    trainer = Trainer.resume(tmp_path / "run", *of)
    trainer.fit()
    assert trainer.step_number == 6


@pytest.mark.parametrize("lost", ["steps", "journal"])
def test_no_step_is_made_again_by_another_number(
    lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps after the checkpoint would be made again from other records, with the same noise."""
    of = parts(Sample())
    stopped(of, tmp_path / "run", monkeypatch, at=3 if lost == "steps" else 2)
    if lost == "journal":
        next((tmp_path / "run").glob("**/*journal*")).unlink()
    with pytest.raises(StateError, match="resume with the run's last number of processes, 2"):
        Trainer.resume(tmp_path / "run", *of)


def test_a_coin_kept_for_a_stage_is_not_tossed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = parts(Rounds(rounds=2))
    if all(stage.participation is None for stage in of[3].stages):
        pytest.fail("the plan has no coins")
    stopped(of, tmp_path / "run", monkeypatch, at=2)
    with pytest.raises(StateError, match="take part in whole stages"):
        Trainer.resume(tmp_path / "run", *of)
