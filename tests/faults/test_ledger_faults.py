"""Killed, crowded, full, cut off, damaged: no over-spending, no answer without its charge."""

import contextlib
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import ApieceError, StateError
from apiece.ledger import Ledger, anchor

CHARGER = Path(__file__).with_name("charger.py")


def charger(mode: str, url: str, count: int, folder: Path) -> dict[str, Any]:
    words = [sys.executable, str(CHARGER), mode, url, str(count), "7", str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def check_kills(found: dict[str, Any]) -> None:
    assert found["problems"] == []
    assert found["over_budget"] == 0
    assert found["released_uncharged"] == 0
    assert found["reserved"] >= found["committed"] >= found["released"]


def test_killed_while_charging(ledger_url: str, tmp_path: Path) -> None:
    check_kills(charger("kill", ledger_url, 12, tmp_path))


@pytest.mark.slow
def test_killed_200_times_while_charging(ledger_url: str, tmp_path: Path) -> None:
    found = charger("kill", ledger_url, 200, tmp_path)
    check_kills(found)
    assert found["committed"] > 20  # many kills came after some work
    assert found["slack_spent"] > 0


def test_ten_processes_at_once(ledger_url: str, tmp_path: Path) -> None:
    found = charger("crowd", ledger_url, 3, tmp_path)
    assert found["failed"] == found["over_budget"] == 0
    assert found["admitted"] == found["admitted_by_balance"] == found["expected"]
    assert found["problems"] == []


def test_server_killed(postgres: Any) -> None:
    ledger = Ledger.open(postgres.database())
    ledger.enroll([1, 2], 1.0, 1e-6)
    ledger.reserve("a", [1, 2], 1.0, 10.0)
    spent = ledger.spent([1, 2])
    postgres.kill()
    with pytest.raises(StateError):
        ledger.reserve("b", [1, 2], 1.0, 10.0)
    postgres.start()
    assert ledger.spent([1, 2]).tolist() == spent.tolist()
    assert ledger.reserve("a", [1, 2], 1.0, 10.0).tolist() == [1, 2]
    assert ledger.spent([1, 2]).tolist() == spent.tolist()
    assert ledger.verify().ok


def test_full_disk_on_sqlite(tmp_path: Path) -> None:
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ids = np.arange(20_000)
    ledger.enroll(ids, 1.0, 1e-6)
    full = {"pages": 0}

    def limit(connection: Any, _record: Any) -> None:
        if full["pages"]:
            connection.execute(f"PRAGMA max_page_count = {full['pages']}")

    sa.event.listen(ledger.engine, "connect", limit)
    with sqlite3.connect(tmp_path / "p.db") as direct:
        pages = int(direct.execute("PRAGMA page_count").fetchone()[0])
    norms = np.random.default_rng(0).random(ids.size)
    for spare in (1, 5, 10):
        full["pages"] = pages + spare
        with pytest.raises(StateError, match="disk is full"):
            ledger.reserve("a", ids, norms, 10.0)
        assert ledger.status("a") == "unknown"
        assert not ledger.spent(ids).any()
        assert ledger.verify().ok
    full["pages"] = 0
    assert ledger.reserve("a", ids, norms, 10.0).size == ids.size


def fill(disk: Path) -> Path:
    """Write a file that leaves nothing free."""
    ballast, at = disk / "ballast", os.statvfs(disk)
    with ballast.open("wb") as out:
        out.write(bytes(at.f_bavail * at.f_frsize))
    return ballast


def test_full_disk_on_postgresql(postgres_on_a_small_disk: Any) -> None:
    """Wherever it runs out, in the tables or in the log: all of a charge is there, or nothing."""
    server, disk = postgres_on_a_small_disk
    ledger = Ledger.open(server.database())
    ids = np.arange(20_000)
    ledger.enroll(ids, 1.0, 1e-6)
    norms, k, refusal = np.random.default_rng(0).random(ids.size), 0, ""
    while not refusal:  # the log runs out only when its spare segments are used up
        assert k < 100, "the disk never ran full"
        ballast = fill(disk)
        try:
            ledger.reserve(f"a{k}", ids, norms, 200.0)
            k += 1
        except StateError as error:
            refusal = str(error)
        ballast.unlink()
        server.wait_until_well()
    assert "No space left on device" in refusal
    assert "\n" not in refusal
    assert ledger.status(f"a{k}") == "unknown"
    assert ledger.spent(ids) == pytest.approx(k * norms**2 / 200**2, rel=1e-9)
    assert ledger.verify().ok
    # What a caller does next: it is charged once.
    assert ledger.reserve(f"a{k}", ids, norms, 200.0).size == ids.size
    assert ledger.spent(ids) == pytest.approx((k + 1) * norms**2 / 200**2, rel=1e-9)
    assert ledger.verify().ok


class CutOff:
    """A proxy that drops the connection at a COMMIT, before or after the server has it."""

    def __init__(self, port: int, *, deliver: bool) -> None:
        self.target, self.deliver, self.armed, self.cut = port, deliver, False, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self.target))
            gone = threading.Event()
            for ends in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(*ends, gone), daemon=True).start()

    def pump(
        self, source: socket.socket, sink: socket.socket, watch: bool, gone: threading.Event
    ) -> None:
        try:
            while (data := source.recv(65536)) and not gone.is_set():
                if watch and self.armed and b"COMMIT" in data:
                    self.cut, self.armed = True, False
                    gone.set()
                    if self.deliver:
                        sink.sendall(data)
                        time.sleep(0.3)  # the server commits; its answer goes nowhere
                    return
                sink.sendall(data)
        except OSError:
            return
        finally:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()


@pytest.mark.parametrize("deliver", [True, False])
def test_connection_lost_in_mid_commit(postgres: Any, deliver: bool) -> None:
    url = postgres.database()
    proxy = CutOff(postgres.port, deliver=deliver)
    direct = Ledger.open(url)
    direct.enroll([1, 2], 1.0, 1e-6)
    ledger = Ledger.open(postgres.address(url.rsplit("/", 1)[1], proxy.port))
    proxy.armed = True
    with pytest.raises(StateError, match="same analysis id"):
        ledger.reserve("a", [1, 2], 1.0, 10.0)
    assert proxy.cut
    # Whether the charge arrived or not, the same call again charges it exactly once.
    assert ledger.reserve("a", [1, 2], 1.0, 10.0).tolist() == [1, 2]
    assert direct.spent([1, 2]) == pytest.approx([0.01, 0.01], rel=1e-9)
    assert direct.verify().ok
    proxy.listener.close()


@pytest.mark.parametrize("arrives", [True, False])
def test_file_system_fails_in_mid_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrives: bool
) -> None:
    """SQLite's lost connection: the commit ends in an error, with or without being on the disk."""
    ledger = Ledger.open(f"sqlite:///{tmp_path}/p.db")
    ledger.enroll([1, 2], 1.0, 1e-6)

    def fail(connection: Any) -> None:
        if arrives:
            connection.commit()
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(ledger.engine.dialect, "do_commit", fail)
        with pytest.raises(StateError, match="same analysis id"):
            ledger.reserve("a", [1, 2], 1.0, 10.0)
    assert ledger.status("a") == ("reserved" if arrives else "unknown")
    assert ledger.reserve("a", [1, 2], 1.0, 10.0).tolist() == [1, 2]
    assert ledger.spent([1, 2]) == pytest.approx([0.01, 0.01], rel=1e-9)
    assert ledger.verify().ok


def damaged_ledger(folder: Path) -> tuple[str, Path]:
    path = folder / "p.db"
    charged_ledger(f"sqlite:///{path}")
    return f"sqlite:///{path}", path


def charged_ledger(url: str) -> None:
    ledger = Ledger.open(url)
    ids = np.arange(6000)
    rng = np.random.default_rng(3)
    ledger.enroll(ids, 1.0, 1e-6)
    for k in range(3):
        ledger.reserve(f"a{k}", ids, rng.random(ids.size), 10.0)
        ledger.commit(f"a{k}", k)


def problems(url: str) -> list[str]:
    """What opening and verifying say; every damage must end in a typed error or a problem."""
    try:
        return list(Ledger.open(url, create=False).verify().problems)
    except ApieceError as error:
        return [str(error)]


def spends_more(url: str, budgets: float) -> bool:
    """Whether a charge of everything that was left, or more, can be made on the ledger."""
    try:
        ledger = Ledger.open(url, create=False)
        return bool(ledger.reserve("again", np.arange(6000), budgets, 1.0).size)
    except ApieceError:
        return False


def test_corrupted_pages_are_found(tmp_path: Path) -> None:
    url, path = damaged_ledger(tmp_path)
    assert problems(url) == []
    whole, head = path.read_bytes(), Path(f"{path}.head")
    kept = head.read_bytes()
    size = int.from_bytes(whole[16:18], "big")
    rng = np.random.default_rng(5)
    pages = len(whole) // size
    missed = []
    for page in rng.choice(pages, 40, replace=False):
        for content in (rng.bytes(size), bytes(size)):
            data = bytearray(whole)
            data[page * size : (page + 1) * size] = content
            path.write_bytes(data)
            head.write_bytes(kept)  # what was charged on the page before is put back, as a whole
            anchor._MEMORIES.clear()
            if not problems(url):
                missed.append(page)
            assert not spends_more(url, 0.269)  # μ(1, 1e-6)² is 0.0530, some of it spent
    assert missed == []
    path.write_bytes(whole)
    head.write_bytes(kept)
    anchor._MEMORIES.clear()
    assert problems(url) == []


CHANGES = [
    "UPDATE apiece_balance SET spent = zeroblob(length(spent)) WHERE block = 1",
    "DELETE FROM apiece_balance WHERE block = 1",
    "UPDATE apiece_people SET terms = zeroblob(length(terms)) WHERE block = 0",
    "UPDATE apiece_people SET size = size - 1 WHERE block = 1",
    "UPDATE apiece_payload SET data = zeroblob(8) WHERE number = 2 AND block = 0",
    "DELETE FROM apiece_payload WHERE number = 4 AND block = 1",
    "UPDATE apiece_entry SET body = replace(body, '10.0', '99.0') WHERE number = 2",
    "UPDATE apiece_entry SET digest = zeroblob(32) WHERE number = 3",
    "DELETE FROM apiece_entry WHERE number = 4",
    "DELETE FROM apiece_entry WHERE number = 7",
    "UPDATE apiece_head SET number = 6",
    "UPDATE apiece_head SET people = 1",
    "DELETE FROM apiece_head",
    "DELETE FROM apiece_entry WHERE number = 3",
    "UPDATE apiece_entry SET payload_root = digest WHERE number = 4",
    "UPDATE apiece_meta SET value = '00' || substr(value, 3) WHERE key = 'salt'",
]


@pytest.fixture(scope="module")
def charged_database(postgres: Any) -> str:
    url: str = postgres.database()
    charged_ledger(url)
    assert problems(url) == []
    return url


@pytest.mark.parametrize("statement", CHANGES)
def test_tampering_is_found(tmp_path: Path, statement: str) -> None:
    url, path = damaged_ledger(tmp_path)
    with sqlite3.connect(path) as direct:
        assert direct.execute(statement).rowcount >= 1
    assert problems(url)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE apiece_balance SET spent = decode(repeat('00', length(spent)), 'hex')",
        *(s for s in CHANGES if "zeroblob" not in s and "apiece_meta" not in s),
    ],
)
def test_tampering_is_found_on_postgresql(
    postgres: Any, charged_database: str, statement: str
) -> None:
    import psycopg

    url = postgres.database(copy_of=charged_database)
    with psycopg.connect(url) as direct:
        assert direct.execute(statement.encode()).rowcount >= 1
    assert problems(url)


def test_old_balances_put_back_are_refused(tmp_path: Path) -> None:
    """A row restored from an older state has a right digest of its own, but not in the head."""
    url, path = damaged_ledger(tmp_path)
    with sqlite3.connect(path) as direct:
        old = direct.execute("SELECT block, spent, digest FROM apiece_balance").fetchall()
    Ledger.open(url).reserve("later", np.arange(6000), 1.0, 10.0)
    with sqlite3.connect(path) as direct:
        for block, spent, digest in old:
            direct.execute(
                "UPDATE apiece_balance SET spent = ?, digest = ? WHERE block = ?",
                (spent, digest, block),
            )
    with pytest.raises(StateError, match="nothing was charged"):
        Ledger.open(url).reserve("more", [1], 0.1, 10.0)
    assert problems(url)


def flip(data: bytearray, at: int) -> None:
    data[at] ^= 0x10


@pytest.mark.parametrize("change", [flip])
def test_corrupted_page_on_postgresql(
    postgres: Any, change: Callable[[bytearray, int], None]
) -> None:
    url = postgres.database()
    ledger = Ledger.open(url)
    ids = np.arange(5000)
    ledger.enroll(ids, 1.0, 1e-6)
    ledger.reserve("a", ids, np.random.default_rng(0).random(5000), 10.0)
    with ledger.engine.connect() as connection:
        toast = "(SELECT reltoastrelid FROM pg_class WHERE relname = 'apiece_balance')"
        where = connection.execute(sa.text(f"SELECT pg_relation_filepath({toast})")).scalar_one()
    postgres.stop_cleanly()
    path = postgres.folder / "data" / where
    whole = path.read_bytes()
    data = bytearray(whole)
    for page in range(0, len(data), 8192):
        change(data, page + 4000)
    path.write_bytes(data)
    postgres.start()
    try:
        assert ledger.verify().problems
        with pytest.raises(StateError):
            ledger.reserve("b", ids, 0.1, 10.0)
    finally:
        postgres.stop_cleanly()
        path.write_bytes(whole)
        postgres.start()
    assert ledger.verify().ok
