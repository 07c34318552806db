"""A ledger put back, at any moment: nobody pays with what a lost entry has charged already."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from apiece.errors import AnalysisError, ApieceError, DataError, StateError
from apiece.filters import Costs
from apiece.ledger import Ledger, anchor, chain, receipt
from apiece.ledger.anchor import HeadFile, Memory, read_head
from apiece.ledger.chain import Tip, Trail

from .tables import another_process

FITS = 2  # charges of one norm that the one person's budget bears


def made(folder: Path) -> Path:
    path = folder / "p.db"
    Ledger.make(str(path), ["ann"], 1.0, 1e-6)
    left = float(Ledger.open(str(path)).remaining(["ann"])[0])
    assert FITS <= left / NORM**2 < FITS + 1
    return path


NORM = 0.15  # with noise of 1: two of these fit a budget of (1, 1e-6)


@dataclass
class World:
    """A store, its head file, processes that use it, and what they were told.

    A process is a memory and some ledgers; a put-back copies an earlier store, with the head file
    or without. The law exempts nobody but a process that has seen nothing of what is lost, once
    the head file was put back as well: such a one does nothing here.
    """

    folder: Path
    random: random.Random
    path: Path = field(init=False)
    copies: list[tuple[bytes, bytes]] = field(default_factory=list)
    memories: list[dict[bytes, Memory]] = field(default_factory=list)
    ledgers: list[list[Ledger]] = field(default_factory=list)
    released: set[tuple[str, int]] = field(default_factory=set)  # answers that went out
    admitted: set[str] = field(default_factory=set)  # analyses that somebody was let into
    newest: int = 0
    done: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.path = made(self.folder)
        for _ in range(2):
            self.start()
        self.copies.append(self.now())

    @property
    def head(self) -> Path:
        return self.path.with_name("p.db.head")

    def start(self) -> None:
        self.memories.append({})
        self.ledgers.append([])

    def now(self) -> tuple[bytes, bytes]:
        return self.path.read_bytes(), self.head.read_bytes()

    def put_back(self, *, head: bool) -> None:
        store, heads = self.random.choice(self.copies)
        if self.random.random() < 0.5:  # over the file, or another in its place
            self.path.write_bytes(store)
        else:
            fresh = self.path.with_name("fresh")
            fresh.write_bytes(store)
            fresh.replace(self.path)
        if head:
            self.head.write_bytes(heads)

    def knows(self, process: int) -> bool:
        """Whether this process, or the head file, has what was last told to somebody."""
        seen = [m.tip.number for m in self.memories[process].values() if m.tip is not None]
        kept = [read_head(line) for line in self.head.read_text().splitlines()]
        return max([*seen, *(h.number for h in kept if h is not None)], default=-1) >= self.newest

    def ledger(self, process: int) -> Ledger:
        own = self.ledgers[process]
        if not own or self.random.random() < 0.3:
            own.append(Ledger.open(str(self.path)))
        return self.random.choice(own)

    def act(self, meanwhile: Callable[[], None] | None) -> None:
        """One call of a process; `meanwhile` happens between its commit and its head file."""
        process = self.random.randrange(len(self.memories))
        if not self.knows(process):
            return
        anchor._MEMORIES = self.memories[process]
        with between(meanwhile):
            try:
                self.call(self.ledger(process))
            except AnalysisError:
                pass  # used up
            except ApieceError:
                self.refused += 1
            else:
                self.remember_newest(process)
                self.copies.append(self.now())
                self.done += 1

    def remember_newest(self, process: int) -> None:
        """Note the newest entry of which this process was told: others may be exempt without it."""
        seen = [m.tip.number for m in self.memories[process].values() if m.tip]
        self.newest = max([self.newest, *seen])

    def call(self, ledger: Ledger) -> None:
        analysis = f"q{self.random.randrange(12)}"
        kind = self.random.choice(["reserve", "reserve", "commit", "commit", "result", "spent"])
        if kind == "reserve":
            if ledger.reserve(analysis, ["ann"], NORM, 1.0).size:
                self.admitted.add(analysis)
        elif kind == "commit":
            self.tell(analysis, ledger.commit(analysis, self.random.randrange(10**9)))
        elif kind == "result":
            self.tell(analysis, ledger.result(analysis))
        else:
            ledger.spent(["ann"])

    def tell(self, analysis: str, answer: int) -> None:
        if analysis in self.admitted:
            self.released.add((analysis, answer))

    def check(self) -> None:
        """Every answer is one charge's, and they are no more than the budget bears."""
        assert len(self.released) <= FITS, self.released
        assert len({analysis for analysis, _ in self.released}) == len(self.released)
        assert len(self.admitted) <= FITS, self.admitted


@contextlib.contextmanager
def between(meanwhile: Callable[[], None] | None) -> Iterator[None]:
    """Let something happen once between the commit in the store and the head file's line."""
    keep, waiting = HeadFile.keep, [meanwhile] if meanwhile else []

    def kept(self: HeadFile, last: Tip, known: Any, *, must: bool = True) -> None:
        if waiting and must and last.number not in known:
            waiting.pop()()
        keep(self, last, known, must=must)

    HeadFile.keep = kept  # type: ignore[method-assign]
    try:
        yield
    finally:
        HeadFile.keep = keep  # type: ignore[method-assign]


def killed() -> None:
    raise StateError("killed before the head file was written")


def history(folder: Path, seed: int, steps: int = 30) -> World:
    """Do things at random, and check after each."""
    folder.mkdir()
    world = World(folder, random.Random(seed))
    for _ in range(steps):
        draw = world.random.random()
        if draw < 0.15:
            world.put_back(head=world.random.random() < 0.4)
        elif draw < 0.20:
            world.start()
        elif draw < 0.26:
            world.act(killed)
        elif draw < 0.32:
            world.act(lambda: world.put_back(head=False))
        elif draw < 0.38:
            world.act(lambda: crowding(world))
        elif draw < 0.55:  # whoever put an older one back puts the newest back again
            world.path.write_bytes(world.copies[-1][0])
        else:
            world.act(None)
        world.check()
    return world


def crowding(world: World) -> None:
    """Put an old copy back, and let another process use it at once."""
    world.put_back(head=False)
    other = world.random.randrange(len(world.memories))
    mine = anchor._MEMORIES
    try:
        if world.knows(other):
            anchor._MEMORIES = world.memories[other]
            with contextlib.suppress(ApieceError):
                world.call(Ledger.open(str(world.path)))
                world.remember_newest(other)
    finally:
        anchor._MEMORIES = mine


@pytest.fixture(autouse=True)
def _memories() -> Iterator[None]:
    before = anchor._MEMORIES
    anchor._MEMORIES = {}
    yield
    anchor._MEMORIES = before


def search(folder: Path, seeds: range) -> tuple[int, int]:
    worlds = [history(folder / str(seed), seed) for seed in seeds]
    return sum(w.done for w in worlds), sum(w.refused for w in worlds)


def test_no_history_with_put_backs_overspends(tmp_path: Path) -> None:
    done, refused = search(tmp_path, range(15))
    assert done > 30
    assert refused > 5


@pytest.mark.slow
def test_no_long_history_with_put_backs_overspends(tmp_path: Path) -> None:
    done, refused = search(tmp_path, range(1000, 1600))
    assert done > 1500
    assert refused > 300


@pytest.mark.parametrize("looked", [True, False])
def test_a_copy_put_in_place_before_the_head_file_has_the_entry(
    looked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have charged on it meanwhile; without the second look both would pay."""
    if not looked:
        monkeypatch.setattr(chain, "require_entry", lambda *_: None)
    path, paid = made(tmp_path), []
    copy = path.read_bytes()

    def meanwhile() -> None:
        path.write_bytes(copy)
        another_process()
        paid.append(charges(Ledger.open(str(path)), 1))

    with between(meanwhile), contextlib.suppress(StateError):
        paid.append(charges(Ledger.open(str(path)), 1))
    assert paid == ([1] if looked else [1, 1])


BREAKS: dict[str, tuple[Any, str, Any]] = {
    "nothing is remembered": (Trail, "require_seen", lambda *_: None),
    "head file is not compared": (Trail, "_check_kept", lambda *_: None),
}


@pytest.mark.parametrize("planted", BREAKS)
def test_the_search_finds_a_planted_break(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*BREAKS[planted], raising=False)
    with pytest.raises(AssertionError):
        search(tmp_path, range(14, 100))  # the first that finds one is 16, or 20


def charges(ledger: Ledger, count: int) -> int:
    """How many of so many new analyses are paid for."""
    names = [os.urandom(4).hex() for _ in range(count)]
    return sum(ledger.reserve(name, ["ann"], NORM, 1.0).size for name in names)


@pytest.mark.parametrize("how", ["same object", "another object", "a thread", "another process"])
def test_many_charges_where_two_fit(how: str, tmp_path: Path) -> None:
    """The copy is put back after every charge: what is lost is what this process wrote itself."""
    path = made(tmp_path)
    copy = path.read_bytes()
    ledger, paid = Ledger.open(str(path)), []

    def charge() -> None:
        with contextlib.suppress(StateError):
            paid.append(charges(ledger, 1))

    for _ in range(20):
        if how == "another object":
            ledger = Ledger.open(str(path))
        if how == "another process":
            another_process()
            ledger = Ledger.open(str(path))
        if how == "a thread":
            thread = threading.Thread(target=charge)
            thread.start()
            thread.join()
        else:
            charge()
        path.write_bytes(copy)
    assert sum(paid) == 1


def test_one_charge_pays_for_one_answer(tmp_path: Path) -> None:
    """The copy is put back after every commit; it has the reservation, and no answer."""
    path = made(tmp_path)
    ledger = Ledger.open(str(path))
    ledger.reserve("q", ["ann"], NORM, 1.0)
    copy, answers = path.read_bytes(), set()
    for k in range(5):
        with contextlib.suppress(StateError):
            answers.add(ledger.commit("q", k))
        path.write_bytes(copy)
    assert answers == {0}


CALLS: tuple[Callable[[Ledger], Any], ...] = (
    lambda x: x.enroll(["bob"], 1.0, 1e-6),
    lambda x: x.reserve("r", ["ann"], NORM, 1.0),
    lambda x: x.reserve_costs("r", ["ann"], Costs.fixed([0.1], 1e-9)),
    lambda x: x.reserve_everyone("r", 0.1, 1.0),
    lambda x: x.commit("q", 1),
    lambda x: x.result("q"),
    lambda x: x.status("q"),
    lambda x: x.spent(["ann"]),
    lambda x: x.remaining(["ann"]),
    lambda x: x.enrolled(["ann"]),
    lambda x: x.head(),
    lambda x: x.people,
    lambda x: list(x.history()),
    lambda x: list(x.account_blocks()),
    lambda x: list(x.admitted("q")),
    lambda x: x.export("nowhere/x.parquet", "history"),
    lambda x: receipt(x, "ann"),
)


def test_every_path_refuses_a_store_that_was_put_back(ledger_url: str, tmp_path: Path) -> None:
    """On PostgreSQL rows are taken back, head and all; another object of the process knows."""
    ledger = Ledger.make(ledger_url, ["ann"], 1.0, 1e-6)
    ledger.reserve("p", ["ann"], NORM, 1.0)
    back = snapshot(ledger, tmp_path)
    ledger.reserve("q", ["ann"], NORM, 1.0)
    back()
    for call in CALLS:
        for each in (ledger, Ledger.open(ledger_url)):
            with pytest.raises(StateError, match=r"put back|cut short"):
                call(each)
    assert not Ledger.open(ledger_url).verify().ok


def snapshot(ledger: Ledger, folder: Path) -> Callable[[], None]:
    """Return what puts the store back as it is now."""
    path = ledger.engine.url.database or ""
    if ledger.engine.dialect.name == "sqlite":
        shutil.copy(path, folder / "copy")
        return lambda: (shutil.copy(folder / "copy", path), None)[1]
    names = ("head", "entry", "payload", "people", "balance")
    with ledger.engine.execution_options(apiece_writes=True).begin() as at:
        for name in names:
            at.exec_driver_sql(f"CREATE TABLE copy_{name} AS SELECT * FROM apiece_{name}")

    def back() -> None:
        with ledger.engine.execution_options(apiece_writes=True).begin() as at:
            for name in names:
                at.exec_driver_sql(f"DELETE FROM apiece_{name}")
                at.exec_driver_sql(f"INSERT INTO apiece_{name} SELECT * FROM copy_{name}")

    return back


def test_a_crash_before_the_head_file_locks_nobody_out(tmp_path: Path) -> None:
    path = made(tmp_path)
    with between(killed), pytest.raises(StateError, match="killed"):
        Ledger.open(str(path)).reserve("q", ["ann"], NORM, 1.0)
    another_process()
    ledger = Ledger.open(str(path))
    before = len(Path(f"{path}.head").read_text().splitlines())
    assert ledger.reserve("q", ["ann"], NORM, 1.0).tolist() == ["ann"]
    assert len(Path(f"{path}.head").read_text().splitlines()) == before + 1
    assert ledger.verify().ok


def test_what_a_reader_saw_is_kept_before_it_is_told(tmp_path: Path) -> None:
    """The answer of a process that was killed goes out through another's `result`."""
    path = made(tmp_path)
    Ledger.open(str(path)).reserve("q", ["ann"], NORM, 1.0)
    copy = path.read_bytes()
    with between(killed), pytest.raises(StateError, match="killed"):
        Ledger.open(str(path)).commit("q", 1)
    another_process()
    assert Ledger.open(str(path)).result("q") == 1
    another_process()
    path.write_bytes(copy)
    with pytest.raises(StateError, match="cut short"):
        Ledger.open(str(path)).commit("q", 2)


def test_a_ledger_without_its_head_file(tmp_path: Path) -> None:
    """New, it is taken; charged, it is refused with the line that would mend it; gone, as well."""
    path = made(tmp_path)
    head = Path(f"{path}.head")
    head.unlink()
    another_process()
    ledger = Ledger.open(str(path))
    ledger.reserve("q", ["ann"], NORM, 1.0)
    kept = head.read_text()
    for text in (None, "", "\n", "3:"):
        head.unlink() if text is None else head.write_text(text)
        another_process()
        with pytest.raises(StateError, match="missing or empty") as refused:
            Ledger.open(str(path)).spent(["ann"])
        assert "missing or empty" in Ledger.open(str(path)).verify().problems[0]
        head.write_text(str(refused.value).split()[-1] + "\n")
        assert Ledger.open(str(path)).spent(["ann"])[0] > 0
        assert kept.endswith(head.read_text())
    path.unlink()
    for create in (True, False):
        with pytest.raises(StateError, match=r"is not there, but head file .* is of one"):
            Ledger.open(str(path), create=create)
    with pytest.raises(StateError, match="is not there; put its newest copy back"):
        ledger.spent(["ann"])
    assert not path.exists()
    path.touch()  # as SQLite itself leaves it
    with pytest.raises(StateError, match="is of one that was"):
        Ledger.make(str(path), ["ann"], 1.0, 1e-6)


def test_a_link_to_a_ledger_names_the_file_to_give(tmp_path: Path) -> None:
    """By another name SQLite would keep another journal, and apiece another head file."""
    path = made(tmp_path)
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(DataError, match=f"is a link; give the file that it leads to, {path}"):
        Ledger.open(f"{tmp_path}/link.db")
    (tmp_path / "folder").symlink_to(tmp_path)  # a folder on the way may be a link
    Ledger.open(f"{tmp_path}/folder/p.db").reserve("q", ["ann"], NORM, 1.0)
    assert Ledger.open(str(path)).verify().ok


def test_a_reader_who_may_not_write_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a disk that is mounted to be read: the head file lags by a crash."""
    path = made(tmp_path)
    with between(killed), pytest.raises(StateError, match="killed"):
        Ledger.open(str(path)).reserve("q", ["ann"], NORM, 1.0)

    def read_only(*_: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(HeadFile, "_add", read_only)
    assert Ledger.open(str(path)).spent(["ann"])[0] > 0
    with pytest.raises(StateError, match="cannot be written"):
        Ledger.open(str(path)).reserve("r", ["ann"], NORM, 1.0)


PROCESS = """
import sys
from apiece.errors import StateError
from apiece.ledger import Ledger
try:
    print(Ledger.open(sys.argv[1]).reserve(sys.argv[2], ["ann"], float(sys.argv[3]), 1.0).size)
except StateError as error:
    print(error)
"""


def test_real_processes_refuse_a_copy_that_was_put_back(tmp_path: Path) -> None:
    path = made(tmp_path)

    def process(analysis: str) -> str:
        words = [sys.executable, "-c", PROCESS, str(path), analysis, str(NORM)]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()

    copy = path.read_bytes()
    assert process("a") == "1"
    newest = path.read_bytes()
    path.write_bytes(copy)
    assert "cut short or rewritten" in process("b")
    path.write_bytes(newest)
    assert process("b") == "1"


def test_a_forked_child_remembers_and_is_not_locked(tmp_path: Path) -> None:
    path = made(tmp_path)
    ledger = Ledger.open(str(path))
    copy = path.read_bytes()
    ledger.reserve("q", ["ann"], NORM, 1.0)
    memory = ledger.store._memory
    holder = threading.Thread(target=memory.writing.acquire)  # held by a thread that is not forked
    holder.start()
    holder.join()
    path.write_bytes(copy)
    child = os.fork()
    if not child:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                Ledger.open(str(path)).spent(["ann"])
            except StateError:
                code = 0 if memory.writing.acquire(timeout=5) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


SQLITE = {
    "swallows commits": "CREATE TRIGGER t BEFORE INSERT ON apiece_entry "
    "WHEN NEW.body LIKE '%commit%' BEGIN SELECT RAISE(IGNORE); END",
    "takes charges back": "CREATE TRIGGER t AFTER UPDATE ON apiece_head BEGIN "
    "DELETE FROM apiece_entry WHERE number > 1; END",
    "a view": "CREATE VIEW v AS SELECT * FROM apiece_entry",
    "a trigger beside": "CREATE TRIGGER t AFTER DELETE ON apiece_meta BEGIN SELECT 1; END",
}
POSTGRES = {
    "swallows commits": "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "
    "'BEGIN RETURN NULL; END'; CREATE TRIGGER t BEFORE INSERT ON apiece_entry FOR EACH ROW "
    "EXECUTE FUNCTION f()",
    "a rule": "CREATE RULE r AS ON INSERT TO apiece_entry DO INSTEAD NOTHING",
    "rows hidden": "ALTER TABLE apiece_balance ENABLE ROW LEVEL SECURITY",
    "inherits": "CREATE TABLE more () INHERITS (apiece_balance)",
    "unlogged": "ALTER TABLE apiece_entry SET UNLOGGED",
}


@pytest.mark.parametrize("kind", [*dict.fromkeys([*SQLITE, *POSTGRES])])
def test_what_acts_on_the_store_is_refused_and_found(kind: str, ledger_url: str) -> None:
    sql = (SQLITE if ledger_url.startswith("sqlite") else POSTGRES).get(kind)
    if sql is None:
        pytest.skip("the other database's")
    ledger = Ledger.make(ledger_url, ["ann"], 1.0, 1e-6)
    ledger.reserve("q", ["ann"], NORM, 1.0)
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        connection.exec_driver_sql(sql)
    for each in (ledger, Ledger.open(ledger_url)):
        with pytest.raises(StateError, match="could change what is written"):
            each.commit("q", 1)
    assert any("is not of this ledger" in p for p in ledger.verify().problems)


@pytest.mark.parametrize(
    "sql",
    ["CREATE TABLE notes (a)", "CREATE INDEX i ON apiece_entry (body)",
     "CREATE VIRTUAL TABLE words USING fts5(a)"],
)  # fmt: skip
def test_what_lies_beside_the_tables_is_found(sql: str, tmp_path: Path) -> None:
    path = made(tmp_path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql(sql)
    ledger = Ledger.open(str(path))
    assert ledger.spent(["ann"]).tolist() == [0.0]
    assert any("is not of this ledger" in p for p in ledger.verify().problems)


def test_a_table_that_ignores_conflicts_is_refused(tmp_path: Path) -> None:
    path = made(tmp_path)
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        connection.exec_driver_sql("PRAGMA writable_schema = ON")
        connection.exec_driver_sql(
            "UPDATE sqlite_master SET sql = replace(sql, 'PRIMARY KEY (number)', "
            "'PRIMARY KEY (number) ON CONFLICT IGNORE') WHERE name = 'apiece_entry'"
        )
    with pytest.raises(StateError, match="table 'apiece_entry' could change"):
        Ledger.open(str(path)).spent(["ann"])
