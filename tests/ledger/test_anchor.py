"""The heads kept in a file: what was rewritten behind them is refused."""

import stat
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import StateError
from apiece.ledger import Ledger, read_head, schema
from apiece.ledger.anchor import VARIABLE, Anchor
from apiece.ledger.chain import Head, Last, state_root
from apiece.ledger.digests import block_digest, entry_digest, payload_root


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
        arrays = dict(schema.payloads(connection, 1))
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


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.integers(0, 10**17), st.binary(min_size=32, max_size=32))
def test_a_head_is_read_as_it_is_written_and_nothing_else_is(number: int, digest: bytes) -> None:
    line = f"{number}:{digest.hex()}"
    assert read_head(line) == Head(number, digest.hex())
    for other in (f"0{line}", f"-{line}", f" {line}", line + "\n", line[:-1], line.upper() + "A"):
        assert read_head(other) is None


def test_where_heads_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    nowhere, last = Anchor.of(None), Last(4, b"\x07" * 32, 2)
    assert nowhere.path is None
    nowhere.keep(last, {})
    assert nowhere.read() == {}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert Anchor.of(None).path == tmp_path / "named"
    own = Anchor.of(tmp_path / "own")
    own.keep(last, {})
    own.keep(last, own.read())  # kept already
    assert own.read() == {4: "07" * 32}
    own.keep(last._replace(number=5), own.read())
    assert (tmp_path / "own").read_text() == f"4:{'07' * 32}\n5:{'07' * 32}\n"
    with pytest.raises(StateError, match="the ledger has the entry: mend the file"):
        Anchor(tmp_path).keep(last, {})
