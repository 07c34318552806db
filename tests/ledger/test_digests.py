"""Digests tell content apart that other ways of joining it would confuse, and need the salt."""

from apiece.ledger import digests

SALT = b"\x01" * 32


def test_parts_do_not_run_into_each_other() -> None:
    assert digests.keyed(SALT, b"ab", b"c") != digests.keyed(SALT, b"a", b"bc")
    assert digests.keyed(SALT, b"ab") != digests.keyed(SALT, b"ab", b"")
    assert digests.keyed(SALT, b"ab") == digests.keyed(SALT, b"ab")
    assert len(digests.keyed(SALT)) == digests.SIZE


def test_without_the_salt_nobody_can_make_one() -> None:
    assert digests.keyed(SALT, b"ab") != digests.keyed(b"\x02" * 32, b"ab")


def test_blocks_are_bound_to_their_place_and_table() -> None:
    made = {
        digests.block_digest(SALT, table, block, content)
        for table in ("people", "balance")
        for block in (0, 1)
        for content in (b"", b"x")
    }
    assert len(made) == 8


def test_an_entry_is_bound_to_the_one_before() -> None:
    first = digests.entry_digest(SALT, b"", "{}", b"root")
    assert first != digests.entry_digest(SALT, b"\x00", "{}", b"root")
    assert first != digests.entry_digest(SALT, b"", "{} ", b"root")
    assert first != digests.entry_digest(SALT, b"", "{}", b"toor")


def test_the_order_and_the_places_of_payloads_count() -> None:
    one = digests.payload_root(SALT, [(0, b"a"), (1, b"b")])
    assert one != digests.payload_root(SALT, [(1, b"b"), (0, b"a")])
    assert one != digests.payload_root(SALT, [(0, b"a"), (2, b"b")])
