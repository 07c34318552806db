"""Blocks of bytes: both ways without loss, and damage is named."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.errors import DataError, StateError
from apiece.ledger import codec

whole = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20)
whole_units = st.integers(0, 2**61) | st.just(0)
words = st.lists(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=20)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(whole | words)
def test_ids_both_ways(values: list[int] | list[str]) -> None:
    ids = codec.normalize_ids(values)
    back = codec.unpack_ids(codec.pack_ids(ids), ids.size)
    assert back.tolist() == ids.tolist()
    assert codec.find_kind(back) == codec.find_kind(ids)


@pytest.mark.parametrize("ids", [np.array([1, 2]), np.array(["a", "", "ε"])])
def test_damaged_ids_are_refused(ids: np.ndarray) -> None:
    packed = codec.pack_ids(ids)
    for data in (packed[:-1], packed + b"x", b"?" + packed[1:], b""):
        with pytest.raises((StateError, *codec.DAMAGE)):
            codec.unpack_ids(data, ids.size)
    with pytest.raises((StateError, *codec.DAMAGE)):
        codec.unpack_ids(packed, ids.size + 1)


@pytest.mark.parametrize(
    "ids",
    [
        [],
        [[1]],
        [1.5],
        [True],
        [None],
        ["a", 1],
        [1, "a"],
        [1, True],
        (7, "7"),
        [2**64],
        np.array([2**63], "u8"),
        [b"a"],
        "abc",
    ],
)
def test_what_is_no_list_of_ids(ids: object) -> None:
    with pytest.raises(DataError, match=r"^ids: "):
        codec.normalize_ids(ids)


def test_enrolled_people_both_ways() -> None:
    ids = np.array(["ann", "bob"])
    terms = np.array([(0.5, 1e-6, 7, 0), (1.0, 1e-5, 2**60, 2**50)], codec.TERMS)
    found, back = codec.unpack_enrolled(codec.pack_enrolled(ids, terms))
    assert found.tolist() == ["ann", "bob"]
    assert back.tolist() == terms.tolist()


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.booleans(), max_size=70), st.randoms(use_true_random=False))
def test_masked_values_both_ways(mask: list[bool], random) -> None:
    values = np.array([random.randrange(2**62) for _ in range(sum(mask))], "<i8")
    found, back = codec.unpack_mask(codec.pack_mask(np.array(mask, bool), values.tobytes()))
    assert (found.tolist(), back) == (mask, values.tobytes())


def test_a_cut_charge_is_damage() -> None:
    data = codec.pack_charges(np.ones(9, bool), np.zeros((9, 2), np.int64))
    short = zlib.compress(zlib.decompress(data)[:-8])
    for bad in (short, data[:-3], b"", zlib.compress(struct.pack("<I", 10**9))):
        with pytest.raises(codec.DAMAGE):
            codec.unpack_charges(bad)


@settings(max_examples=40, derandomize=True, deadline=None)
@given(st.lists(st.tuples(st.booleans(), whole_units, whole_units), max_size=40))
def test_charges_both_ways(each: list[tuple[bool, int, int]]) -> None:
    mask = np.array([paid for paid, *_ in each], bool)
    pairs = np.array([(a, b) for paid, a, b in each if paid], np.int64).reshape(-1, 2)
    data = codec.pack_charges(mask, pairs)
    found, back = codec.unpack_charges(data)
    assert (found.tolist(), back.tolist()) == (mask.tolist(), pairs.tolist())
    assert codec.unpack_pairs(codec.pack_pairs(pairs), len(pairs)).tolist() == pairs.tolist()


def test_units_of_another_number_of_people_are_damage() -> None:
    both = codec.pack_pairs(np.array([[1, 2], [3, 4], [5, 6]]))
    for data, size in ((both, 2), (both, 7), (both[:-1], 3), (b"", 1)):
        with pytest.raises(codec.DAMAGE):
            codec.unpack_pairs(data, size)


def test_by_block_finds_everyone_once() -> None:
    ordinals = np.random.default_rng(0).permutation(3 * codec.BLOCK)[:5000]
    groups = codec.group_by_block(ordinals)
    assert [block for block, _ in groups] == [0, 1, 2]
    assert sorted(np.concatenate([part for _, part in groups]).tolist()) == list(range(5000))
    assert all((ordinals[part] // codec.BLOCK == block).all() for block, part in groups)
    assert codec.group_by_block(ordinals[:0]) == []


def test_numbers_of_any_width_are_ids() -> None:
    for ids in ([np.int8(7), 8], (7, 8), np.array([7, 8], "u1"), np.array([7, 8], object)):
        assert codec.normalize_ids(ids).tolist() == [7, 8]
    assert codec.normalize_ids([], least=0).size == 0


SALT = b"\x01" * 32


def test_parts_do_not_run_into_each_other() -> None:
    assert codec.compute_digest(SALT, b"ab", b"c") != codec.compute_digest(SALT, b"a", b"bc")
    assert codec.compute_digest(SALT, b"ab") != codec.compute_digest(SALT, b"ab", b"")
    assert codec.compute_digest(SALT, b"ab") == codec.compute_digest(SALT, b"ab")
    assert len(codec.compute_digest(SALT)) == codec.DIGEST


def test_without_the_salt_nobody_can_make_one() -> None:
    assert codec.compute_digest(SALT, b"ab") != codec.compute_digest(b"\x02" * 32, b"ab")


def test_blocks_are_bound_to_their_place_and_table() -> None:
    made = {
        codec.digest_block(SALT, table, block, content)
        for table in ("people", "balance")
        for block in (0, 1)
        for content in (b"", b"x")
    }
    assert len(made) == 8


def test_an_entry_is_bound_to_the_one_before() -> None:
    first = codec.digest_entry(SALT, b"", "{}", b"root")
    assert first != codec.digest_entry(SALT, b"\x00", "{}", b"root")
    assert first != codec.digest_entry(SALT, b"", "{} ", b"root")
    assert first != codec.digest_entry(SALT, b"", "{}", b"toor")


def test_the_order_and_the_places_of_payloads_count() -> None:
    one = codec.digest_payloads(SALT, [(0, b"a"), (1, b"b")])
    assert one != codec.digest_payloads(SALT, [(1, b"b"), (0, b"a")])
    assert one != codec.digest_payloads(SALT, [(0, b"a"), (2, b"b")])
