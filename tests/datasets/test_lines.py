"""CSV lines: each record stands on its own line, or the file is refused."""

import io

import pytest

from apiece.datasets.blocks import UnclearLineError, read_batches, split_header
from apiece.errors import DataError

NAMES = ["id", "age"]


def read(*lines: bytes) -> tuple[dict[str, list[str | None]], list[str]]:
    log: list[str] = []
    found = list(read_batches(io.BytesIO(b"".join(lines)), NAMES, NAMES, log.append))
    return {name: [c for batch in found for c in batch[name].to_pylist()] for name in NAMES}, log


@pytest.mark.parametrize(
    ("line", "cells"),
    [
        (b"ann,7\n", ("ann", "7")),
        (b"ann,7\r\n", ("ann", "7")),
        (b"ann,\n", ("ann", None)),
        (b'"a,b","say ""hi"""\n', ("a,b", 'say "hi"')),
        (b"\xff,7\n", (None, "7")),
        (b" ann ,7\n", (" ann ", "7")),
    ],
)
def test_cells_of_a_line(line: bytes, cells: tuple[str | None, str | None]) -> None:
    found, log = read(line)
    assert (found["id"], found["age"]) == ([cells[0]], [cells[1]])
    assert log == []


@pytest.mark.parametrize("line", [b"ann\n", b"ann,7,8\n", b'"ann,7"\n'])
def test_a_line_with_other_fields_is_left_out_and_logged(line: bytes) -> None:
    found, log = read(line, b"bob,8\n")
    assert found == {"id": ["bob"], "age": ["8"]}
    assert len(log) == 1
    assert log[0].startswith("line 2: ")


@pytest.mark.parametrize("line", [b'"ann,7\n', b'ann",7\n', b'a"n"n,7\n', b"ann\r,7\n"])
def test_a_line_whose_end_is_unclear_refuses_the_file(line: bytes) -> None:
    with pytest.raises(UnclearLineError, match="line 3"):
        read(b"bob,8\n", line)


def test_an_empty_line_is_nothing() -> None:
    assert read(b"\n", b"ann,7\n")[0] == {"id": ["ann"], "age": ["7"]}


def test_headers() -> None:
    assert split_header(b"\xef\xbb\xbfid,age\n") == NAMES
    for line in (b"", b"\n", b'"id,age\n'):
        with pytest.raises(DataError, match="not a header"):
            split_header(line)
