"""The heads kept in a file: what was rewritten behind them is refused."""

import stat
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import StateError
from apiece.ledger import Ledger, schema
from apiece.ledger.anchor import VARIABLE, Anchor, HeadFile, Heads, read_head
from apiece.ledger.chain import Head, Tip, digest_state
from apiece.ledger.codec import digest_block, digest_entry, digest_payloads
from refusals import refused

from .tables import another_process


def rewrite(path: Path) -> None:
    """Do what an administrator can who reads the salt: take all charges back, digests and all."""
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        salt = bytes.fromhex(schema.read_settings(connection)["salt"])
        for row in connection.execute(sa.select(schema.BALANCE)).all():
            spent = bytes(len(row.spent))
            size = str(row.size).encode()
            digest = digest_block(salt, "balance", row.block, size, spent)
            connection.execute(sa.update(schema.BALANCE).values(spent=spent, digest=digest))
        connection.execute(sa.delete(schema.PAYLOAD).where(schema.PAYLOAD.c.number > 1))
        connection.execute(sa.delete(schema.ENTRY).where(schema.ENTRY.c.number > 1))
        last = connection.execute(sa.select(schema.ENTRY).where(schema.ENTRY.c.number == 1)).one()
        previous = connection.execute(
            sa.select(schema.ENTRY.c.digest).where(schema.ENTRY.c.number == 0)
        ).scalar_one()
        arrays = dict(schema.read_payloads(connection, 1))
        root = digest_payloads(salt, arrays.items())
        assert digest_state(connection, salt) in last.body
        assert digest_entry(salt, previous, last.body, root) == last.digest
        connection.execute(sa.update(schema.HEAD).values(number=1, digest=last.digest))
    engine.dispose()


def test_a_rewritten_ledger_is_believed_where_no_head_is_kept_and_refused_with_an_anchor(
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
    another_process()
    for call in (lambda x: x.spent([1]), lambda x: x.reserve("0", [1, 2], 1.0, 10.0)):
        with pytest.raises(StateError, match="cut short or rewritten"):
            call(Ledger.open(str(path), anchor=""))  # by the head file beside it
    (tmp_path / "p.db.head").unlink()  # whoever rewrites the ledger can replace it
    for call in (
        lambda x: x.spent([1]),
        lambda x: x.reserve("0", [1, 2], 1.0, 10.0),
        lambda x: x.enroll([3], 1.0, 1e-6),
        lambda x: x.head(),
    ):
        with pytest.raises(StateError, match="cut short or rewritten"):
            call(Ledger.open(str(path)))
    assert any("was kept" in p for p in Ledger.open(str(path)).verify().problems)
    # This is why the anchor is kept elsewhere: nothing beside the database can tell.
    monkeypatch.delenv("APIECE_LEDGER_ANCHOR")
    another_process()
    alone = Ledger.open(str(path))
    assert alone.verify(kept).ok
    assert alone.spent([1]).tolist() == [0.0]


def test_an_anchor_that_is_not_there_or_not_one_is_refused(tmp_path: Path) -> None:
    path, anchor = tmp_path / "p.db", tmp_path / "heads"
    Ledger.open(str(path)).enroll([1], 1.0, 1e-6)
    with pytest.raises(StateError, match="cannot be read"):
        Ledger.open(str(path), anchor=anchor).spent([1])
    head = Ledger.open(str(path)).head()
    for text in (
        "",
        "1:00\n",
        f"{head.number}:{head.digest}\n{head.number}:{'0' * 64}\n",
        "é",
        "x\n",
    ):
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
    with refused(StateError, "anchor"):
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
    nowhere, last = Anchor.of(None, None), Tip(4, b"\x07" * 32, 2)
    assert nowhere.files == []
    nowhere.keep(last, nowhere.read())
    assert nowhere.read().digests == {}
    monkeypatch.setenv(VARIABLE, str(tmp_path / "named"))
    assert Anchor.of(None, None).files == [HeadFile(tmp_path / "named")]
    store = tmp_path / "p.db"
    store.touch(0o640)
    both = Anchor.of(tmp_path / "own", store)
    both.keep(last, Heads({}, {}))
    both.keep(last, both.read())  # kept already
    assert both.read() == Heads({4: "07" * 32}, {4: "07" * 32})
    both.keep(last._replace(number=5), both.read())
    for name in ("own", "p.db.head"):
        assert (tmp_path / name).read_text() == f"4:{'07' * 32}\n5:{'07' * 32}\n"
    assert stat.S_IMODE((tmp_path / "p.db.head").stat().st_mode) == 0o640  # as its ledger's
    with pytest.raises(StateError, match="the ledger has the entry: mend the file"):
        HeadFile(tmp_path).keep(last, {})
    (tmp_path / "own").write_text(f"5:{'08' * 32}\n")
    with pytest.raises(StateError, match="entry 5 is not the same in its head file"):
        both.read()


LINES = [f"{n}:{n:064x}" for n in range(3)]


@pytest.mark.parametrize(
    "torn",
    [
        "",
        "3",
        "3:",
        "3:00",
        "\0" * 40,
        "3:00\0\0",
        "\n\n",
        "\0" * 9000,
        "3:00" + "\0" * 4096,
        "\0" * (4096 - 3 * 67),
    ],
)
def test_what_a_power_cut_leaves_of_a_line_is_no_line_and_joins_none(
    torn: str, tmp_path: Path
) -> None:
    path, store = tmp_path / "p.db.head", tmp_path / "p.db"
    store.touch()
    path.write_text("\n".join(LINES) + "\n" + torn)
    file = HeadFile(path, store)
    assert sorted(file.read()) == sorted(file.read(whole=True)) == [0, 1, 2]
    file.keep(Tip(3, b"\x09" * 32, 1), file.read())
    assert file.read()[3] == "09" * 32
    assert sorted(file.read(whole=True)) == [0, 1, 2, 3]


@pytest.mark.parametrize("line", ["x", "3:" + "g" * 64, "-1:" + "0" * 64, LINES[1][:-1] + "5", "é"])
def test_a_head_file_that_was_edited_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "p.db.head"
    path.write_text("\n".join([*LINES, line, ""]))
    with pytest.raises(StateError, match="not number:digest, or not that of an earlier line"):
        HeadFile(path, tmp_path / "p.db").read()


def test_of_a_long_file_the_end_is_read_and_for_verify_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "p.db.head"
    path.write_text("".join(f"{n}:{n:064x}\n" for n in range(5000)))
    file = HeadFile(path, tmp_path / "p.db")
    assert len(file.read(whole=True)) == 5000
    assert max(file.read()) == 4999
    assert len(file.read()) < 100
    Ledger.open(f"{tmp_path}/q.db").enroll([1], 1.0, 1e-6)
    (tmp_path / "q.db.head").write_text(path.read_text())
    with pytest.raises(StateError, match="cut short or rewritten"):
        Ledger.open(f"{tmp_path}/q.db").spent([1])
