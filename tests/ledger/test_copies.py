"""A backup of a live ledger comes back whole or not at all, and never behind what is known."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from apiece import cli
from apiece.errors import ApieceError, DataError, InputError, StateError, UnsupportedError
from apiece.ledger import Head, Ledger, back_up_ledger, restore_ledger
from apiece.ledger.database import make_engine, transaction
from apiece.ledger.verify import verify
from refusals import refused
from tests.strange_paths import STRANGE, look, plant

from .tables import another_process

NORM = 0.15  # with noise of 1: two of these fit a budget of (1, 1e-6)


def made(folder: Path, **options: Any) -> Ledger:
    ledger = Ledger.make(str(folder / "p.db"), ["ann", "bob"], 1.0, 1e-6, **options)
    ledger.reserve("q", ["ann"], NORM, 1.0)
    return ledger


def lose(folder: Path, *names: str) -> None:
    """Take files away, and every process that knew them."""
    for name in ("p.db", *names):
        (folder / name).unlink()
    another_process()


def test_a_backup_comes_back_as_it_was(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    head = back_up_ledger(ledger, tmp_path / "b")
    spent = ledger.spent(["ann", "bob"]).tolist()
    lose(tmp_path)
    assert restore_ledger(tmp_path / "b", str(tmp_path / "p.db")) == head
    again = Ledger.open(str(tmp_path / "p.db"))
    assert again.spent(["ann", "bob"]).tolist() == spent
    assert again.verify().ok
    assert again.reserve("r", ["ann"], NORM, 1.0).size == 1
    assert again.reserve("s", ["ann"], NORM, 1.0).size == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "p.db", "p.db.head"]
    for name in ("b", "p.db"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600


def test_a_backup_is_no_ledger_and_no_database(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    back_up_ledger(ledger, tmp_path / "b.db")
    before = look(tmp_path)
    for call in (
        lambda: Ledger.open(str(tmp_path / "b.db")),
        lambda: Ledger.make(str(tmp_path / "b.db"), ["ann"], 1.0, 1e-6),
    ):
        with pytest.raises(StateError, match="is not a database"):
            call()
    with (
        pytest.raises(sqlite3.DatabaseError),
        contextlib.closing(sqlite3.connect(tmp_path / "b.db")) as direct,
    ):
        direct.execute("SELECT * FROM apiece_meta")
    assert look(tmp_path) == before


def test_a_backup_replaces_a_backup_and_nothing_else(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    for _ in range(2):
        back_up_ledger(ledger, tmp_path / "b")
    (tmp_path / "notes").write_text("mine")
    other = Ledger.make(str(tmp_path / "other.db"), ["cy"], 1.0, 1e-6)
    for name in ("notes", "other.db", "p.db", "p.db.head"):
        with pytest.raises(DataError):
            back_up_ledger(ledger, tmp_path / name)
    assert (tmp_path / "notes").read_text() == "mine"
    assert other.verify().ok
    assert ledger.verify().ok


@pytest.mark.parametrize("kind", STRANGE)
def test_a_backup_goes_to_no_strange_place(kind: str, tmp_path: Path) -> None:
    ledger = made(tmp_path)
    plant(kind, tmp_path / "b", b"mine")
    before = look(tmp_path)
    with pytest.raises(DataError):
        back_up_ledger(ledger, tmp_path / "b")
    assert look(tmp_path) == before


def test_a_backup_that_is_behind_is_refused_and_the_way_out_is_printed(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    head = back_up_ledger(ledger, tmp_path / "b")
    ledger.reserve("r", ["ann"], NORM, 1.0)
    lose(tmp_path)
    with refused(StateError, "entry 2", "entry 3") as error:
        restore_ledger(tmp_path / "b", str(tmp_path / "p.db"))
    assert not (tmp_path / "p.db").exists()
    # who accepts that the charges are lost does what is printed
    line = re.search(r"let head file (.*) hold the one line (\S+), and restore", str(error.value))
    assert line is not None
    Path(line[1]).write_text(f"{line[2]}\n")
    assert restore_ledger(tmp_path / "b", str(tmp_path / "p.db")) == head
    assert Ledger.open(str(tmp_path / "p.db")).verify().ok


def test_the_way_out_of_an_older_copy_is_printed_too(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    copy = (tmp_path / "p.db").read_bytes()
    ledger.reserve("r", ["ann"], NORM, 1.0)
    (tmp_path / "p.db").write_bytes(copy)
    another_process()
    with pytest.raises(StateError, match="If no newer copy is left") as error:
        Ledger.open(str(tmp_path / "p.db")).spent(["ann"])
    line = re.search(r"hold the one line (\S+)$", str(error.value))
    assert line is not None
    (tmp_path / "p.db.head").write_text(f"{line[1]}\n")
    assert Ledger.open(str(tmp_path / "p.db")).verify().ok


@pytest.mark.parametrize("kept", ["head file", "anchor", "memory", "head"])
def test_whatever_knows_a_later_entry_is_asked(kept: str, tmp_path: Path) -> None:
    anchor = tmp_path / "anchor"
    ledger = made(tmp_path, anchor=anchor)
    back_up_ledger(ledger, tmp_path / "b")
    early = (tmp_path / "p.db.head").read_bytes()
    ledger.reserve("r", ["ann"], NORM, 1.0)
    last = ledger.head()
    if kept != "head file":
        (tmp_path / "p.db.head").write_bytes(early)
    if kept != "anchor":
        anchor.write_bytes(early)
    (tmp_path / "p.db").unlink()
    if kept != "memory":
        another_process()
    head = last if kept == "head" else None
    with pytest.raises(StateError, match="could be spent again"):
        restore_ledger(tmp_path / "b", str(tmp_path / "p.db"), head=head, anchor=anchor)
    assert not (tmp_path / "p.db").exists()
    another_process()
    for path in (tmp_path / "p.db.head", anchor):
        path.write_bytes(early)
    restore_ledger(tmp_path / "b", str(tmp_path / "p.db"), anchor=anchor)


def test_where_nothing_is_kept_the_head_is_asked_for(tmp_path: Path, capsys: Any) -> None:
    ledger = made(tmp_path)
    head = back_up_ledger(ledger, tmp_path / "b")
    lose(tmp_path, "p.db.head")
    url = str(tmp_path / "p.db")
    with pytest.raises(InputError, match="no head file and no anchor"):
        restore_ledger(tmp_path / "b", url)
    for other in (Head(head.number, "0" * 64), Head(head.number + 1, head.digest)):
        with pytest.raises(StateError):
            restore_ledger(tmp_path / "b", url, head=other)
    words = ["ledger", "restore", str(tmp_path / "b"), url]
    assert cli.run([*words, "--head", "nonsense"]) == 2
    assert cli.run([*words, "--head", f"{head.number}:{head.digest}"]) == 0
    assert f"head {head.number}:{head.digest}" in capsys.readouterr().out
    assert Ledger.open(url).verify().ok


def test_what_is_there_stays(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    back_up_ledger(ledger, tmp_path / "b")
    url = str(tmp_path / "p.db")
    before = look(tmp_path)
    with pytest.raises(DataError, match="is there; put it away first"):
        restore_ledger(tmp_path / "b", url)
    assert look(tmp_path) == before
    lose(tmp_path)
    for end in ("-journal", "-wal"):
        (tmp_path / f"p.db{end}").write_bytes(b"of another state")
        with pytest.raises(DataError, match="play it back"):
            restore_ledger(tmp_path / "b", url)
        (tmp_path / f"p.db{end}").unlink()
    (tmp_path / "p.db").touch(0o600)  # as a kill leaves it
    restore_ledger(tmp_path / "b", url)
    assert Ledger.open(url).verify().ok


def test_what_is_no_backup_or_another_s_or_damaged_is_refused(tmp_path: Path) -> None:
    ledger = made(tmp_path)
    back_up_ledger(ledger, tmp_path / "b")
    (tmp_path / "other").mkdir()
    back_up_ledger(made(tmp_path / "other"), tmp_path / "foreign")
    shutil.copy(tmp_path / "p.db", tmp_path / "raw")
    whole = (tmp_path / "b").read_bytes()
    (tmp_path / "short").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "none").write_bytes(whole[:16])
    edited = bytearray(whole)
    place = whole.index(b'"kind":"reserve"')
    edited[place + 8 : place + 15] = b"RESERVE"
    (tmp_path / "edited").write_bytes(bytes(edited))
    lose(tmp_path)
    for name in ("foreign", "raw", "short", "none", "edited", "missing", "other"):
        with pytest.raises(ApieceError) as error:
            restore_ledger(tmp_path / name, str(tmp_path / "p.db"))
        assert "\n" not in str(error.value)
        assert not (tmp_path / "p.db").exists(), name
        assert not (tmp_path / ".p.db.restore").exists()
        another_process()
    restore_ledger(tmp_path / "b", str(tmp_path / "p.db"))


def test_a_ledger_is_copied_while_it_is_charged(tmp_path: Path) -> None:
    path = tmp_path / "p.db"
    ledger = Ledger.make(str(path), list(range(5000)), 8.0, 1e-6)
    stop = threading.Event()

    def charge() -> None:
        for k in range(200):
            if stop.is_set():
                return
            ledger.reserve_everyone(f"q{k}", 1.0, 500.0)

    writer = threading.Thread(target=charge)
    writer.start()
    try:
        heads = []
        for k in range(4):
            heads.append(back_up_ledger(Ledger.open(str(path)), tmp_path / f"b{k}"))
            time.sleep(0.05)
    finally:
        stop.set()
        writer.join()
    digests = {entry.number: entry.digest for entry in ledger.history()}
    for k, head in enumerate(heads):
        assert digests[head.number] == head.digest
        (tmp_path / f"at{k}").mkdir()
        another_process()
        assert restore_ledger(tmp_path / f"b{k}", str(tmp_path / f"at{k}/p.db"), head=head) == head


def test_a_planted_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied byte by byte beside SQLite's locks, a ledger that is written to is torn."""
    ledger = made(tmp_path)
    content = bytearray((tmp_path / "p.db").read_bytes())
    ledger.reserve("r", ["bob"], NORM, 1.0)
    later = (tmp_path / "p.db").read_bytes()
    half = len(content) // 8192 * 4096
    torn = b"apiece backup 1\0" + bytes(content[16:half]) + later[half:]
    (tmp_path / "b").write_bytes(torn)
    lose(tmp_path)
    with pytest.raises(StateError):
        restore_ledger(tmp_path / "b", str(tmp_path / "p.db"))
    # and without the look at what is known, the law above would not hold
    monkeypatch.setattr("apiece.ledger.copies.max", lambda _: -1, raising=False)
    monkeypatch.setattr("apiece.ledger.copies.verify", lambda e, s, _: verify(e, s, {}))
    (tmp_path / "q").mkdir()
    other = made(tmp_path / "q")
    back_up_ledger(other, tmp_path / "q" / "b")
    other.reserve("r", ["ann"], NORM, 1.0)
    lose(tmp_path / "q")
    restore_ledger(tmp_path / "q" / "b", str(tmp_path / "q" / "p.db"))
    assert (tmp_path / "q" / "p.db").exists()  # it went behind its head file
    with pytest.raises(StateError):  # which still refuses it
        Ledger.open(str(tmp_path / "q" / "p.db")).spent(["ann"])


KILLED = """
import sys
from apiece.ledger import Head, Ledger, back_up_ledger, restore_ledger
folder, what = sys.argv[1:3]
ledger = Ledger.open(f"{folder}/p.db") if what == "backup" else None
print("begun", flush=True)
while True:
    if ledger is not None:
        back_up_ledger(ledger, f"{folder}/b")
    else:
        restore_ledger(f"{folder}/b", f"{folder}/p.db")
        break
"""


@pytest.mark.parametrize("what", ["backup", "restore"])
@pytest.mark.parametrize("number", [0, 1, *(pytest.param(k, marks=pytest.mark.slow)
                                            for k in range(2, 20))])  # fmt: skip
def test_a_kill_leaves_the_old_or_the_new(what: str, number: int, tmp_path: Path) -> None:
    ledger = Ledger.make(str(tmp_path / "p.db"), list(range(20_000)), 8.0, 1e-6)
    ledger.reserve_everyone("q", 1.0, 500.0)
    head = back_up_ledger(ledger, tmp_path / "b")
    old = (tmp_path / "b").read_bytes()
    if what == "restore":
        lose(tmp_path)
    words = [sys.executable, "-c", KILLED, str(tmp_path), what]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "begun\n"
        time.sleep(0.002 + 0.011 * number)
        writer.kill()
    another_process()
    assert len((tmp_path / "b").read_bytes()) == len(old)
    if what == "restore" and not (tmp_path / "p.db").exists():
        assert restore_ledger(tmp_path / "b", str(tmp_path / "p.db")) == head
    again = Ledger.open(str(tmp_path / "p.db"))
    assert again.head() == head
    assert again.verify().ok
    if what == "backup":
        (tmp_path / "r").mkdir()
        assert restore_ledger(tmp_path / "b", str(tmp_path / "r" / "p.db"), head=head) == head
        back_up_ledger(again, tmp_path / "b")
        left = {p.name for p in tmp_path.iterdir()} - {"b", "p.db", "p.db.head", "r"}
        assert all((tmp_path / name).stat().st_size == 0 for name in left)  # of one moment


def test_postgres_is_copied_by_its_own_tools(
    ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps of the guide, where the server's tools are."""
    if not ledger_url.startswith("postgresql"):
        return
    anchor = tmp_path / "anchor"
    ledger = Ledger.make(ledger_url, ["ann"], 1.0, 1e-6, anchor=anchor)
    ledger.reserve("q", ["ann"], NORM, 1.0)
    for call in (
        lambda: back_up_ledger(ledger, tmp_path / "b"),
        lambda: restore_ledger(tmp_path / "b", ledger_url),
    ):
        with refused(UnsupportedError, "pg_dump", "--format"):
            call()
    assert not (tmp_path / "b").exists()
    if shutil.which("pg_dump") is None or shutil.which("pg_restore") is None:
        pytest.skip("no pg_dump here")
    url = ledger_url.replace("postgresql+psycopg", "postgresql")
    dump = ["pg_dump", "--format=custom", "--table=apiece_*", f"--file={tmp_path}/d", url]
    done = subprocess.run(dump, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        pytest.skip(f"pg_dump: {done.stderr.splitlines()[-1]}")
    early = anchor.read_bytes()
    ledger.reserve("r", ["ann"], NORM, 1.0)
    with transaction(make_engine(ledger_url), writes=True) as connection:
        for name in ("meta", "head", "entry", "payload", "people", "balance", "scope"):
            connection.exec_driver_sql(f"DROP TABLE apiece_{name}")
    subprocess.run(
        ["pg_restore", "--single-transaction", f"--dbname={url}", f"{tmp_path}/d"], check=True
    )
    another_process()
    with pytest.raises(StateError, match="whose digest was kept outside"):
        Ledger.open(ledger_url, anchor=anchor).spent(["ann"])
    anchor.write_bytes(early)
    assert Ledger.open(ledger_url, anchor=anchor).verify().ok
