"""What a ledger believes: the history it followed and its anchor, never what was put back."""

import os
import shutil
import sqlite3
import stat
import threading
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from apiece.errors import ApieceError, StateError
from apiece.ledger import Ledger, read_head, schema
from apiece.ledger.chain import payload_root, state_root
from apiece.ledger.digests import block_digest, entry_digest


def people_file(folder: Path) -> tuple[str, Path]:
    path = folder / "p.db"
    Ledger.open(str(path)).enroll(["ann", "bob"], 1.0, 1e-6)
    return f"sqlite:///{path}", path


def test_a_live_process_refuses_a_ledger_that_was_put_back(tmp_path: Path) -> None:
    """After the restore somebody else has the place that the process knows as cy's."""
    url, path = people_file(tmp_path)
    shutil.copy(path, tmp_path / "backup")
    live = Ledger.open(url)
    live.enroll(["cy"], 1.0, 1e-6)
    assert live.reserve("q", ["cy"], 1.0, 20.0).tolist() == ["cy"]
    shutil.copy(tmp_path / "backup", path)
    other = Ledger.open(url)
    other.enroll(["dan"], 1.0, 1e-6)
    for call in (
        lambda: live.reserve("r", ["cy"], 1.0, 20.0),
        lambda: live.enroll(["eve"], 1.0, 1e-6),
        lambda: live.spent(["cy"]),
        lambda: live.commit("q", 1),
        lambda: live.status("q"),
        lambda: list(live.history()),
    ):
        with pytest.raises(StateError, match="put back"):
            call()
    assert other.spent(["dan"]).tolist() == [0.0]
    assert other.verify().ok


def test_a_live_process_refuses_another_ledger_of_the_same_length(tmp_path: Path) -> None:
    url, path = people_file(tmp_path)
    live = Ledger.open(url)
    live.spent(["ann"])
    path.unlink()
    Ledger.open(url).enroll(["bob", "ann"], 1.0, 1e-6)  # the same people, in another order
    with pytest.raises(StateError):
        live.reserve("q", ["ann"], 1.0, 10.0)
    assert not Ledger.open(url).spent(["ann", "bob"]).any()


def test_sixteen_threads_share_one(ledger_url: str) -> None:
    """While people are enrolled, each is charged for their own contributions alone."""
    shared = Ledger.open(ledger_url)
    ids = np.arange(40)
    failures: list[BaseException] = []

    def work(own: int) -> None:
        try:
            shared.enroll(ids[own::8], 1.0, 1e-6)
            for k in range(3):
                shared.reserve(f"{own}-{k}", ids[own::8], (own + 1) / 20, 10.0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    own = (ids % 8 + 1) / 20
    assert shared.spent(ids) == pytest.approx(3 * own**2 / 100, rel=1e-9)
    assert shared.verify().ok


def rewrite(path: Path) -> None:
    """Do what an administrator can who reads the salt: take all charges back, digests and all."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        salt = bytes.fromhex(schema.meta(connection)["salt"])
        for row in connection.execute(sa.select(schema.BALANCE)).all():
            spent = bytes(len(row.spent))
            digest = block_digest(salt, "balance", row.block, spent)
            connection.execute(sa.update(schema.BALANCE).values(spent=spent, digest=digest))
        connection.execute(sa.delete(schema.PAYLOAD).where(schema.PAYLOAD.c.number > 1))
        connection.execute(sa.delete(schema.ENTRY).where(schema.ENTRY.c.number > 1))
        last = connection.execute(sa.select(schema.ENTRY).where(schema.ENTRY.c.number == 1)).one()
        previous = connection.execute(
            sa.select(schema.ENTRY.c.digest).where(schema.ENTRY.c.number == 0)
        ).scalar_one()
        arrays = schema.payloads(connection, 1)
        root = payload_root(salt, arrays.items())
        assert state_root(connection, salt) in last.body
        assert entry_digest(salt, previous, last.body, root) == last.digest
        connection.execute(sa.update(schema.HEAD).values(number=1, digest=last.digest))
    engine.dispose()


def test_a_rewritten_ledger_is_believed_without_an_anchor_and_refused_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, anchor = tmp_path / "p.db", tmp_path / "heads"
    monkeypatch.setenv("APIECE_LEDGER_ANCHOR", str(anchor))
    ledger = Ledger.open(str(path))
    ledger.enroll([1, 2], 1.0, 1e-6)
    kept = ledger.head()
    for k in range(3):
        ledger.reserve(f"{k}", [1, 2], 1.0, 10.0)
        ledger.commit(f"{k}", k)
    assert stat.S_IMODE(anchor.stat().st_mode) == 0o600
    assert [read_head(line) for line in anchor.read_text().splitlines()][-1] == ledger.head()
    assert ledger.verify().ok
    rewrite(path)
    with pytest.raises(StateError, match="put back"):
        ledger.spent([1])
    for call in (
        lambda x: x.spent([1]),
        lambda x: x.reserve("0", [1, 2], 1.0, 10.0),
        lambda x: x.enroll([3], 1.0, 1e-6),
        lambda x: x.head(),
    ):
        with pytest.raises(StateError, match="cut short or rewritten"):
            call(Ledger.open(str(path)))
    assert any("was kept" in p for p in Ledger.open(str(path)).verify().problems)
    # This is why the file is kept: nothing inside the database can tell.
    monkeypatch.delenv("APIECE_LEDGER_ANCHOR")
    alone = Ledger.open(str(path))
    assert alone.verify(kept).ok
    assert alone.spent([1]).tolist() == [0.0]


def test_an_anchor_that_is_not_there_or_not_one_is_refused(tmp_path: Path) -> None:
    path, anchor = tmp_path / "p.db", tmp_path / "heads"
    Ledger.open(str(path)).enroll([1], 1.0, 1e-6)
    with pytest.raises(StateError, match="cannot be read"):
        Ledger.open(str(path), anchor=anchor).spent([1])
    head = Ledger.open(str(path)).head()
    for text in ("1:00\n", f"{head.number}:{head.digest}\n{head.number}:{'0' * 64}\n", "é", "x\n"):
        anchor.write_text(text)
        with pytest.raises(StateError, match=r"anchor .*heads"):
            Ledger.open(str(path), anchor=anchor).spent([1])
    anchor.write_text(f"{head.number}:{head.digest}\n")  # begun with the head that status prints
    ledger = Ledger.open(str(path), anchor=anchor)
    ledger.reserve("q", [1], 1.0, 10.0)
    ledger.reserve("q", [1], 1.0, 10.0)
    assert len(anchor.read_text().splitlines()) == 2


def test_an_anchor_planted_as_a_link_is_not_followed(tmp_path: Path) -> None:
    path, anchor = tmp_path / "p.db", tmp_path / "heads"
    anchor.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="anchor"):
        Ledger.open(str(path), anchor=anchor)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_ledger_file_is_its_owners_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        ledger = Ledger.open(str(tmp_path / "new.db"))
        (tmp_path / "planted.db").touch(0o666)
        Ledger.open(str(tmp_path / "planted.db"))
    finally:
        os.umask(before)
    for name in ("new.db", "planted.db"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    ledger.enroll([1], 1.0, 1e-6)
    with sqlite3.connect(tmp_path / "new.db") as direct:
        direct.execute("BEGIN IMMEDIATE")
        direct.execute("UPDATE apiece_head SET people = 9")
        assert stat.S_IMODE((tmp_path / "new.db-journal").stat().st_mode) == 0o600
        direct.rollback()


def test_a_link_to_nowhere_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "p.db").symlink_to(tmp_path / "elsewhere.db")
    with pytest.raises(ApieceError):
        Ledger.open(str(tmp_path / "p.db"))
    assert not (tmp_path / "elsewhere.db").exists()


def test_people_who_cannot_be_enrolled_leave_no_ledger(ledger_url: str) -> None:
    for ids, epsilon, options in (
        (["a", "b"], [0.1, 3.0], {"method": "renyi", "order": 2.0}),
        (["a", "a"], [1.0, 3.0], {}),
        (["a", "b"], [1.0, -3.0], {}),
    ):
        with pytest.raises(ApieceError):
            Ledger.make(ledger_url, ids, epsilon, 1e-6, **options)  # type: ignore[arg-type]
        with pytest.raises(ApieceError, match="no ledger there"):
            Ledger.open(ledger_url, create=False)
        if ledger_url.startswith("sqlite"):
            assert not Path(ledger_url.removeprefix("sqlite:///")).exists()
    assert Ledger.make(ledger_url, ["a", "b"], [1.0, 3.0], 1e-6).people == 2
    assert Ledger.open(ledger_url).verify().ok
    with pytest.raises(StateError, match="exists already"):
        Ledger.make(ledger_url, ["a", "b"], [1.0, 3.0], 1e-6)
