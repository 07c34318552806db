"""Fixtures shared by several folders: a PostgreSQL server of the tests' own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest


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

    def kill(self) -> None:
        """Kill every process of the server at once, as a power cut would."""
        first = (self.folder / "data" / "postmaster.pid").read_text().split()[0]
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for pid in [first, *children]:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        while Path(f"/proc/{first}").exists():
            try:
                if Path(f"/proc/{first}/stat").read_text().split()[2] == "Z":
                    break
            except FileNotFoundError:
                break
            time.sleep(0.02)
        (self.folder / "data" / "postmaster.pid").unlink(missing_ok=True)

    def address(self, database: str, port: int | None = None) -> str:
        return f"postgresql://postgres@127.0.0.1:{port or self.port}/{database}"

    def database(self) -> str:
        """Make an empty database; return its address."""
        import psycopg

        name = "t" + secrets.token_hex(6)
        with psycopg.connect(self.address("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.address(name)


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    initdb = shutil.which("initdb") or (str(found[-1]) if found else None)
    return Path(initdb).resolve().parent if initdb else None


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    pytest.importorskip("psycopg")
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL's server binaries are not installed (apt-get install postgresql)")
    if os.geteuid() == 0 and shutil.which("runuser") is None:
        pytest.skip("PostgreSQL does not run as root, and there is no runuser")
    # Not below pytest's own folder, which another user may not enter; a short path for sockets.
    folder = Path("/tmp") / f"apiece-pg-{secrets.token_hex(6)}"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    server = Postgres(folder, port, binaries)
    server.command(
        str(binaries / "initdb"), "-D", str(folder / "data"), "-A", "trust", "-U", "postgres", "-k"
    )
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/people.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.database()
