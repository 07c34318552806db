"""The one reader of tables: what is declared is read, nothing is guessed from anybody's row."""

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apiece.budgets import Budgets
from apiece.datasets import Numeric, tables
from apiece.datasets.cells import parse_numbers, read_texts
from apiece.datasets.encode import encode
from apiece.datasets.tables import Dialect, read_header, read_table
from apiece.errors import BudgetError, DataError
from refusals import refused


def write(path: Path, content: str | bytes, encoding: str = "utf-8") -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def cells(path: Path, **dialect: str) -> list[list[str]]:
    return read_table(path, Dialect(**dialect)).to_numpy().tolist()


RIGHT: dict[str, tuple[str, str | bytes, dict[str, str]]] = {
    "comma": ("t.csv", "a,b\n1,x\n", {}),
    "byte-order mark": ("t.csv", b"\xef\xbb\xbfa,b\n1,x\n", {}),
    "carriage returns": ("t.csv", b"a,b\r\n1,x\r\n", {}),
    "no last newline": ("t.csv", "a,b\n1,x", {}),
    "blank lines": ("t.csv", "\na,b\n\n1,x\n\n", {}),
    "quoted": ("t.csv", '"a","b"\n"1","x"\n', {}),
    "blanks": ("t.csv", "a, b\n1, x\n", {}),
    "tab by name": ("t.tsv", "a\tb\n1\tx\n", {}),
    "tab by flag": ("t.txt", "a\tb\n1\tx\n", {"separator": "tab"}),
    "semicolon": ("t.csv", "a;b\n1;x\n", {"separator": ";"}),
    "packed": ("t.csv.gz", gzip.compress(b"a,b\n1,x\n"), {}),
    "utf-16": ("t.csv", "a,b\n1,x\n".encode("utf-16"), {"encoding": "utf-16"}),
}


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_declared_is_read(case: str, tmp_path: Path) -> None:
    name, content, dialect = RIGHT[case]
    path = write(tmp_path / name, content)
    assert cells(path, **dialect) == [["1", "x"]]
    assert list(read_header(path, Dialect(**dialect))) == ["a", "b"]


def test_quotes_and_letters_of_other_tongues(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", 'a,b\n"x, ""y""",Ü\n', "latin-1")
    assert cells(path, encoding="latin-1") == [['x, "y"', "Ü"]]


REFUSED: dict[str, tuple[str, str | bytes, dict[str, str], str]] = {
    "too many cells": ("t.csv", "a,b\n1,x\n1,x,y\n", {}, "line 3: 3 cells where the header has 2"),
    "too few cells": ("t.csv", "a,b\n1\n", {}, "line 2: 1 cells where the header has 2"),
    "open quote": ("t.csv", 'a,b\n1,"x\n2,y\n', {}, "line 2: quotes do not match"),
    "two open quotes": ("t.csv", 'a,b\n1,"x\n2,y\n3,"\n', {}, "line 2: a quoted cell goes on"),
    "line break": ("t.csv", 'a,b\n1,"x\ny"\n', {}, "line 2: a quoted cell goes on"),
    "text after a quote": ("t.csv", 'a,b\n1,"x"y\n', {}, "line 2: quotes do not match"),
    "latin-1": ("t.csv", "a,b\n1,x\n1,ü\n".encode("latin-1"), {}, "line 3: is not utf-8"),
    "utf-16": ("t.csv", "a,b\n1,x\n".encode("utf-16"), {}, "encoding='utf-16'"),
    "utf-16 without mark": ("t.csv", "a,b\n1,x\n".encode("utf-16-le"), {}, "encoding='utf-16'"),
    "semicolons": ("t.csv", "a;b\n1,5;x\n", {}, "separator=';'"),
    "tabs": ("t.csv", "a\tb\n1\tx\n", {}, "separator='tab'"),
    "commas": ("t.csv", "a,b\n1,x\n", {"separator": ";"}, "separator=','"),
    "a column twice": ("t.csv", "a,b,a\n1,x,2\n", {}, "columns 1 and 3 have one name"),
    "no rows": ("t.csv", "a,b\n", {}, "no rows"),
    "empty": ("t.csv", "", {}, "cannot be read"),
    "blank": ("t.csv", "\n\n", {}, "cannot be read"),
    "spreadsheet": ("t.xlsx", b"PK\x03\x04", {}, "CSV UTF-8"),
    "spreadsheet in disguise": ("t.csv", b"PK\x03\x04", {}, "CSV UTF-8"),
    "old spreadsheet": ("t.xls", b"\xd0\xcf\x11\xe0", {}, "CSV UTF-8"),
    "parquet in disguise": ("t.csv", b"PAR1", {}, "ends in .parquet"),
    "csv in disguise": ("t.parquet", "a,b\n", {}, "cannot be read"),
    "not packed": ("t.csv.gz", "a,b\n1,x\n", {}, "cannot be read"),
    "json": ("t.json", "[]", {}, "pandas.read_json"),
    "archive": ("t.zip", b"PK\x03\x04", {}, "unpack"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_as_declared_is_refused_with_the_remedy(case: str, tmp_path: Path) -> None:
    name, content, dialect, words = REFUSED[case]
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(words)) as caught:
        read_table(path, Dialect(**dialect))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"separator": ""}, {"separator": "ab"}, {"separator": '"'}, {"separator": "x"},
        {"separator": 3}, {"decimal": ";"}, {"decimal": None}, {"encoding": "utf-99"},
        {"encoding": "hex"}, {"encoding": "a\0"}, {"encoding": None},
    ],
)  # fmt: skip
def test_a_dialect_is_checked(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        Dialect(**wrong)


def test_decimal_commas_are_read_where_declared_and_only_there(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "e;n\n1,5;1.000\n2;2\n")
    comma = Dialect(";", ",")
    assert Budgets.from_frame(path, epsilon="e", delta=1e-5, dialect=comma).epsilon.tolist() == [
        1.5,
        2.0,
    ]
    with pytest.raises(BudgetError, match="decimal=','"):
        Budgets.from_frame(path, epsilon="e", delta=1e-5, dialect=Dialect(";"))
    with refused(BudgetError, "'n'", 1, "dialect=Dialect"):
        Budgets.from_frame(path, epsilon="n", delta=1e-5, dialect=comma)


@pytest.mark.parametrize("word", ["inf", "Infinity", "∞", "no limit", "NO LIMIT", "unlimited"])
def test_no_limit_is_the_steward_s_cap(word: str, tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", f"e\n1\n{word}\n")
    capped = Budgets.from_frame(path, epsilon="e", delta=1e-5, no_limit_cap=8)
    assert capped.epsilon.tolist() == [1.0, 8.0]
    with pytest.raises(BudgetError, match="no_limit_cap=8"):
        Budgets.from_frame(path, epsilon="e", delta=1e-5)
    for cap in (0, -1, np.nan, np.inf):
        with refused(BudgetError, "no_limit_cap"):
            Budgets.from_frame(path, epsilon="e", delta=1e-5, no_limit_cap=cap)


def test_a_delta_of_no_limit_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "e,d\n1,inf\n")
    with pytest.raises(BudgetError, match="delta column"):
        Budgets.from_frame(path, epsilon="e", delta="d", no_limit_cap=8)


def test_ids_are_what_is_stored(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "e,who\n1,007\n1,7\n")
    assert Budgets.from_frame(path, epsilon="e", delta=1e-5, ids="who").ids.tolist() == ["007", "7"]
    big = 2**53
    frame = pd.DataFrame({"e": [1.0, 1.0], "who": [big, big + 1]})
    frame.to_parquet(tmp_path / "t.parquet")
    found = Budgets.from_frame(tmp_path / "t.parquet", epsilon="e", delta=1e-5, ids="who").ids
    assert found.tolist() == [big, big + 1]


def test_one_null_does_not_merge_the_ids_of_others(tmp_path: Path) -> None:
    """As floats 2^53 and 2^53 + 1 are one; one row without an id must not make them so."""
    big = 2**53
    frame = pd.DataFrame({"who": pd.array([big, big + 1, None], dtype="Int64")})
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_texts(read_table(tmp_path / "t.parquet")["who"]).tolist() == [
        str(big),
        str(big + 1),
        "",
    ]


@pytest.mark.parametrize("folder", ["who=7", "a[1]", "x*"])
def test_a_path_is_one_file_and_adds_no_column(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    frame = pd.DataFrame({"who": ["a", "b"]}).set_index("who", drop=False)
    frame.to_parquet(tmp_path / folder / "t.parquet")
    assert read_texts(read_table(tmp_path / folder / "t.parquet")["who"]).tolist() == ["a", "b"]
    write(tmp_path / folder / "t.csv", "who\na\n")
    assert cells(tmp_path / folder / "t.csv") == [["a"]]


def test_an_index_that_was_stored_is_a_column(tmp_path: Path) -> None:
    pd.DataFrame({"e": [1.0]}, index=pd.Index(["p"], name="who")).to_parquet(tmp_path / "t.parquet")
    assert sorted(read_table(tmp_path / "t.parquet").columns) == ["e", "who"]


CELL = st.text(
    st.characters(codec="utf-8", exclude_characters="\r\n\0", exclude_categories=["Cs"]),
    max_size=6,
) | st.sampled_from(["1", "1.5", "2024-01-01", "007", "inf", "NA", "true", "1e3", "9" * 30, "-1"])


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(CELL, CELL), min_size=2, max_size=6),
    other=st.tuples(CELL, CELL),
    at=st.integers(0, 5),
)
def test_no_row_changes_how_another_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[str, str]],
    other: tuple[str, str],
    at: int,
) -> None:
    """Replace one person's row by any other: all else is the same to the letter and the bit."""
    at %= len(rows)
    folder = tmp_path_factory.mktemp("t")
    replaced = [*rows[:at], other, *rows[at + 1 :]]
    found = []
    for number, table in enumerate((rows, replaced)):
        pd.DataFrame(table, columns=["a", "b"]).to_csv(folder / f"{number}.csv", index=False)
        frame = read_table(folder / f"{number}.csv")
        assert len(frame) == len(rows)
        read = [read_texts(frame[c]) for c in ("a", "b")]
        kept = [np.delete(column, at) for column in read]
        values = [np.delete(parse_numbers(column), at) for column in read]
        features = encode(frame, dict.fromkeys(("a", "b"), Numeric(0, 9, missing=("", "1"))))
        values.append(np.delete(features.features, at, axis=0))
        found.append(([k.tolist() for k in kept], [v.tobytes() for v in values]))
    assert found[0] == found[1]


LINE = st.text(st.sampled_from('a1,," \t.-é\ufeff\x1c'), max_size=9) | st.sampled_from(["", "1,2"])


@settings(derandomize=True, max_examples=200, deadline=None)
@given(lines=st.lists(LINE, min_size=1, max_size=6), separator=st.sampled_from(",\t"))
def test_a_block_is_read_as_its_lines_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], separator: str
) -> None:
    """In one block, cut by Arrow or by Python, or in blocks of a line: the same, or all refuse."""
    path = write(tmp_path_factory.mktemp("t") / "t.csv", "\n".join([f"a{separator}b", *lines]))
    with pytest.MonkeyPatch.context() as patch:
        found = []
        for block, cut in (
            (1 << 20, tables._split_plain),
            (1, tables._split_plain),
            (1 << 20, lambda *_: None),
        ):
            patch.setattr(tables, "BLOCK", block)
            patch.setattr(tables, "_split_plain", cut)
            try:
                found.append(cells(path, separator=separator))
            except DataError as error:
                found.append(re.search("line [0-9]+|no rows", str(error))[0])
    assert found[0] == found[1] == found[2]
