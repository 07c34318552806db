"""What all tests share: one thread each, and a PostgreSQL server of their own."""

import contextlib
import gc
import importlib.util
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for helpers that several folders share
# The folder tests/datasets is found as a package of that name, and transformers takes it for the
# library that it knows: where that library is not installed, the name leads nowhere.
_LIBRARY = importlib.util.find_spec("datasets")
if _LIBRARY is not None and _LIBRARY.origin is None:
    sys.modules["datasets"] = None  # type: ignore[assignment]
# Two workers of two threads each on two cores wait for one another; programs started inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
logging.getLogger("torch.__trace").disabled = True  # pytest would keep thousands of its records


OPERATORS = (
    "roi_align _roi_align_backward ps_roi_align _ps_roi_align_backward roi_pool _roi_pool_backward "
    "ps_roi_pool _ps_roi_pool_backward nms qnms qroi_align deform_conv2d _deform_conv2d_backward"
)


def pytest_configure(config: pytest.Config) -> None:
    """Let torchvision be imported, which transformers and lightning do where it is installed.

    Its compiled part does not load beside a CPU build of torch: its operators are defined here.
    """
    if importlib.util.find_spec("torchvision") is None:
        return
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in OPERATORS.split():
            library.define(f"{name}(Tensor x) -> Tensor")
        config.add_cleanup(lambda: library)  # which is undone when it is forgotten
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]


def pytest_collection() -> None:
    """Let no garbage be looked for while thousands of tests are made, which all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was collected out of each later search for garbage."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose name holds an address: two processes would not collect the same tests."""
    named = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if named:
        raise pytest.UsageError(f"a test's name holds an address of memory, give ids=: {named[0]}")


@dataclass
class Postgres:
    """A server on loopback in a temporary folder, run as a user without rights."""

    folder: Path
    port: int
    binaries: Path

    def command(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        return subprocess.run(
            [*user, *words], check=check, capture_output=True, text=True, cwd=self.folder
        )

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -k {self.folder} -c fsync=on"
        self.command(
            str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-o", options,
            "-w", "-t", "60", "-l", str(self.folder / "log"), "start",
        )  # fmt: skip

    def stop(self) -> None:
        self.command(
            str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-m", "immediate",
            "stop", check=False,
        )  # fmt: skip

    def stop_cleanly(self) -> None:
        """Stop after writing every page, so that the files on disk are what a reader will see."""
        self.command(
            str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "-w", "-m", "fast",
            "stop",
        )  # fmt: skip

    def wait_until_well(self) -> None:
        """Wait for the recovery after a crash, or start again: without room it stops itself."""
        ready = [str(self.binaries / "pg_isready"), "-h", "127.0.0.1", "-p", str(self.port)]
        data = [str(self.binaries / "pg_ctl"), "-D", str(self.folder / "data"), "status"]
        until = time.monotonic() + 60
        while self.command(*ready, check=False).returncode:
            assert time.monotonic() < until, "the server did not recover"
            if self.command(*data, check=False).returncode:
                self.start()
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill every process of the server at once, as a power cut would."""
        first = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        family = [first, *(p for p in _processes() if _stat(p)[1] == first)]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while any(_stat(pid)[0] not in "ZX" for pid in family):
            time.sleep(0.02)
        # Where nobody reaps the dead, their ids look alive to the locks they left.
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)
        for lock in self.folder.glob(".s.PGSQL.*"):
            lock.unlink()

    def address(self, database: str, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def database(self, copy_of: str = "/template1") -> str:
        """Make a database, empty or a copy of the one at an address; return its address."""
        import psycopg

        name, template = "t" + secrets.token_hex(6), copy_of.rpartition("/")[2]
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
        return self.address(name)


def _processes() -> list[int]:
    return [int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()]


def _stat(pid: int) -> tuple[str, int]:
    """Return a process's state and parent; X where it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return "X", 0
    return words[0], int(words[1])


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    return Path(initdb).resolve().parent if initdb else None


def _needed_binaries() -> Path:
    """Return where PostgreSQL's programs are, or skip the test with the reason."""
    pytest.importorskip("psycopg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server binaries are not installed (apt-get install postgresql)")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    return binaries


@contextlib.contextmanager
def _server(folder: Path, *options: str) -> Iterator[Postgres]:
    """Run a new server in an empty folder, as the user postgres where we are root."""
    binaries = _needed_binaries()
    folder.chmod(0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = Postgres(folder, port, binaries)
    words = ["-D", str(folder / "data"), "-A", "trust", "-U", "postgres", "-k", *options]
    server.command(str(binaries / "initdb"), *words)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    _needed_binaries()
    # Not below pytest's own folder, which another user may not enter; a short path for sockets.
    folder = Path("/tmp") / f"apiece-pg-{secrets.token_hex(6)}"
    folder.mkdir()
    try:
        with _server(folder) as server:
            yield server
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["data", pytest.param("wal", marks=pytest.mark.slow)])
def postgres_on_a_small_disk(request: pytest.FixtureRequest) -> Iterator[tuple[Postgres, Path]]:
    """A server with its tables, or its write-ahead log, on a small disk in memory; and the disk."""
    _needed_binaries()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a disk of its own for the server can be mounted by root only")
    folder = Path("/tmp") / f"apiece-pg-{secrets.token_hex(6)}"
    disk = folder / request.param
    disk.mkdir(parents=True)
    options = ["--wal-segsize=1"]
    if request.param == "wal":
        options += ["--waldir", str(disk / "segments")]
    words = ["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(disk)]
    try:
        if subprocess.run(words, capture_output=True, check=False).returncode:
            pytest.skip("no disk of its own for the server: mounting is not permitted here")
        try:
            disk.chmod(0o700)
            shutil.chown(disk, "postgres")
            with _server(folder, *options) as server:
                yield server, disk
        finally:
            subprocess.run(["umount", "-l", str(disk)], check=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/people.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
