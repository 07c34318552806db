"""The law of the block reader: cell for cell and word for word, what one line at a time gives."""

import io
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from apiece.datasets import blocks
from apiece.datasets.blocks import UnclearLineError, read_batches, read_cell, split_line

NAMES = ["a", "b", "c"]
ATOMS = [
    b"", b"x", b"7", b"1.5", b" ", b"\t", b"\x00", b"\x1b", b"\x7f", b"\xc3\xa9", b"\xc2\x85",
    b"\xc2", b"\xff", b"\xed\xa0\x80", b"\xf0\x9f\x92\xa9", b"\xe2\x80\xa8", b"\xef\xbb\xbf", b'"',
    b'""', b'"q"', b'"a,b"', b'"say ""hi"""', b'"\xc3\xa9"', b'x"y', b",", b",,", b"\r", b"\r\r",
    b"NULL", b"\\N",
]  # fmt: skip
ENDS = [b"\n", b"\r\n"]
Found = tuple[dict[str, list[str | None]] | str, list[str]]


def one_by_one(data: bytes, wanted: list[str]) -> Found:
    """The reading as it is defined: each line from itself alone."""
    log: list[str] = []
    columns: dict[str, list[str | None]] = {name: [] for name in wanted}
    for number, line in enumerate(io.BytesIO(data), start=2):
        try:
            cells = split_line(line)
        except UnclearLineError:
            return f"line {number}", log
        if len(cells) == len(NAMES):
            for name in wanted:
                columns[name].append(read_cell(cells[NAMES.index(name)]))
        elif cells:
            log.append(f"line {number}: {len(cells)} fields, not {len(NAMES)}; left out")
    return columns, log


def in_blocks(data: bytes, wanted: list[str], block: int) -> Found:
    log: list[str] = []
    try:
        found = list(read_batches(io.BytesIO(data), NAMES, wanted, log.append, block=block))
    except UnclearLineError as error:
        return str(error).split(":")[0], log
    for batch in found:
        batch.validate(full=True)
    columns = {
        name: [cell for batch in found for cell in batch[name].to_pylist()] for name in wanted
    }
    return columns, log


cells = st.lists(st.sampled_from(ATOMS), min_size=1, max_size=3).map(b"".join)
lines = st.builds(
    lambda parts, end: b",".join(parts) + end,
    st.lists(cells, min_size=0, max_size=4),
    st.sampled_from(ENDS),
)
good = st.builds(
    lambda parts, end: b",".join(parts) + end,
    st.lists(
        st.sampled_from([a for a in ATOMS if not set(a) & set(b'",\r')]), min_size=3, max_size=3
    ),
    st.sampled_from(ENDS),
)
files = st.builds(
    lambda whole, last: b"".join(whole) + last,
    st.lists(st.one_of(good, good, lines), max_size=12),
    st.one_of(st.just(b""), cells, st.just(b"x,y,z")),
)


@settings(max_examples=300, deadline=None)
@given(files, st.integers(1, 40), st.permutations(NAMES), st.integers(1, 3))
@example(b"\r\r\n", 9, NAMES, 3)
@example(b"x,y,z\r", 9, NAMES, 3)
@example(b'"","",""\n', 9, NAMES, 1)
@example(b"\xff,\xc3\xa9,\xc2\x85\n\n,,", 1, NAMES, 3)
def test_blocks_read_what_lines_do(data: bytes, block: int, order: list[str], count: int) -> None:
    wanted = list(order)[:count]
    assert in_blocks(data, wanted, block) == one_by_one(data, wanted)


def test_lines_too_long_for_arrow_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_LONG", 6)
    data = b'a,b,c\na long,line,here\n"a",b,\n\na,b\n\xff,\xc2\x85,longer\n'
    assert in_blocks(data, NAMES, 64) == one_by_one(data, NAMES)


@pytest.mark.slow
def test_blocks_read_what_lines_do_more_often() -> None:
    """100,000 files of random atoms, by blocks of random sizes."""
    rng = random.Random(0)
    for _ in range(100_000):
        parts = rng.choices([*ATOMS, b",", b",", *ENDS], k=rng.randrange(30))
        data, block = b"".join(parts), rng.randrange(1, 50)
        assert in_blocks(data, NAMES, block) == one_by_one(data, NAMES), data


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("_read_cells", lambda cells: cells.cast("large_string")),  # what no text has
        ("_split_single_line", lambda line, *_: line.split(b",")),  # a quote hides no comma
        ("_UNREADABLE", "~"),  # control characters beyond ASCII
    ],
)
def test_the_law_sees_a_planted_break(
    name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, name, broken)
    data = b'"a,b",x,y\r\n\xc2\x85,y,\xc3\xa9\n'
    assert in_blocks(data, NAMES, 64) != one_by_one(data, NAMES)
