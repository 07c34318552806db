"""`apiece audit lira RUN --cluster`: killed workers and Ctrl-C change no bit.

A cluster as `ray start --head` makes it, beside the processes that use it. Skipped where ray is not
installed: pip install ray.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
BLOCKS, PATIENCE = 6, 300.0
ENV = os.environ | {
    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),  # of this cluster, and of who uses it
}


def waited_for(there: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE
    while not there():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def ports(count: int) -> list[int]:
    """Ports below those that Ray gives to its workers."""
    return [port for port in range(7100, 9900) if free(port)][:count]


@pytest.fixture(scope="module")
def addresses() -> Iterator[list[str]]:
    """Of one cluster: its own, and that of its client server."""
    pytest.importorskip("ray", reason="ray is not installed")
    main, client, agent, dashboard = ports(4)
    words = {
        "port": main,
        "ray-client-server-port": client,
        "dashboard-agent-listen-port": agent,
        "dashboard-port": dashboard,
        "node-ip-address": "127.0.0.1",
        "num-cpus": 2,
        "include-dashboard": "false",
        "object-store-memory": 80 * 2**20,
    }
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--disable-usage-stats", *(f"--{name}={value}" for name, value in words.items())]

    def started() -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        return subprocess.Popen(command, env=ENV, stdout=quiet, stderr=quiet)

    head = [started()]

    def well() -> bool:
        if head[-1].poll() is not None:  # it gives itself half a minute, which a busy machine takes
            head.append(started())
        return not free(main) and not free(client)

    try:
        waited_for(well)
        yield [f"127.0.0.1:{main}", f"ray://127.0.0.1:{client}"]
    finally:
        head[-1].terminate()
        head[-1].wait(60)


def free(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) != 0


def audit(run: Path, out: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "apiece", "audit", "lira", str(run), "--json"]
    given = ["--models", str(16 * BLOCKS), "--out", str(out), *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*command, *given], env=ENV, **pipes)  # type: ignore[call-overload,no-any-return]


def said(asked: subprocess.Popen[bytes], status: int = 0) -> bytes:
    out, err = asked.communicate(timeout=PATIENCE)
    assert asked.returncode == status, err.decode()
    return out if status == 0 else err


@pytest.fixture(scope="module")
def alone(run_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return said(audit(run_folder, tmp_path_factory.mktemp("alone")))


def kill_a_worker() -> None:
    """Kill a process of Ray's that is training a block, waiting for one to be there."""
    found: list[int] = []

    def there() -> list[int]:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes()
            except OSError:  # it ended
                continue
            if words.startswith(b"ray::_train"):
                found.append(int(process.name))
        return found

    waited_for(there)
    os.kill(found[0], signal.SIGKILL)


def blocks(out: Path) -> dict[str, int]:
    return {file.name: file.stat().st_mtime_ns for file in out.glob("block-*.npz")}


@pytest.mark.parametrize("which", [0, 1], ids=["host:port", "ray://"])
def test_a_killed_worker_and_a_driver_that_is_interrupted(
    which: int, addresses: list[str], run_folder: Path, alone: bytes, tmp_path: Path
) -> None:
    out, there = tmp_path / "shadows", ("--cluster", "--address", addresses[which])
    first = audit(run_folder, out, *there)
    kill_a_worker()
    waited_for(lambda: len(blocks(out)) >= 2)
    first.send_signal(signal.SIGINT)
    err = said(first, 130).decode()
    kept = blocks(out)
    assert 2 <= len(kept) < BLOCKS
    assert f"interrupted with {len(kept)} of {BLOCKS} blocks of models" in err
    assert "Traceback" not in err
    second = audit(run_folder, out, *there)
    kill_a_worker()
    assert said(second) == alone
    assert {name: at for name, at in blocks(out).items() if name in kept} == kept
    assert len(blocks(out)) == BLOCKS


def test_a_cluster_that_is_not_there_is_said_in_one_line(run_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed")
    (port,) = ports(1)
    for scheme in ("", "ray://"):
        given = ("--cluster", "--address", f"{scheme}127.0.0.1:{port}")
        err = said(audit(run_folder, tmp_path / "shadows", *given), 1).decode()
        assert err.count("\n") == 1
        assert "no cluster answers" in err
