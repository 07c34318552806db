"""Groups from a public file, and the command's options for them."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from apiece.cli import run
from apiece.datasets import Categorical, read_values
from apiece.datasets.tables import Dialect
from apiece.errors import DataError

PLACES = "town,region,code\nBonn,west,53\nKöln,west,50\n\nJena,east,\n"


@pytest.fixture
def places(tmp_path: Path) -> Path:
    """A public table of towns."""
    path = tmp_path / "places.csv"
    path.write_text(PLACES)
    return path


def test_a_columns_distinct_values_in_order(places: Path) -> None:
    assert read_values(places, "town") == ("Bonn", "Köln", "Jena")
    assert read_values(places, "region") == ("west", "east")
    # An empty cell is no value.
    assert read_values(places, "code") == ("53", "50")
    assert Categorical(read_values(places, "region")).values == ("west", "east")


def test_a_text_file_has_a_value_a_line(tmp_path: Path) -> None:
    path = tmp_path / "towns.txt"
    path.write_text("\ufeffBonn\n  Köln \n\nBonn\nSt. Pölten, Stadt\n", encoding="utf-8")
    assert read_values(path) == ("Bonn", "Köln", "St. Pölten, Stadt")


def test_a_parquet_file_has_its_own_types(tmp_path: Path) -> None:
    path = tmp_path / "codes.parquet"
    pd.DataFrame({"code": [3, 1, 3]}).to_parquet(path)
    assert read_values(path) == (3, 1)


def test_what_is_no_set_of_values_is_refused(places: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    bytes_of_another_coding = tmp_path / "latin.txt"
    bytes_of_another_coding.write_bytes("Köln".encode("latin-1"))
    for path, column, word in (
        (places, None, "which column"), (places, "nope", "no column 'nope'"),
        (empty, None, "no values"), (empty, "town", "no column"),
        (bytes_of_another_coding, None, "UTF-8"), (tmp_path / "none.txt", None, "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=word):
            read_values(path, column)


def ask(people: Path, *options: str) -> int:
    """Run a question about towns, with options that declare them."""
    words = ["query", str(people), "count(persons) by town, birth", "--person", "id",
             "--rows-per-person", "1", "--epsilon", "50", "--delta", "0", "--json"]  # fmt: skip
    return run([*words, *options])


def test_the_command_takes_a_file_and_another_columns_groups(
    places: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("duckdb", reason="needs the extra queries")
    people = tmp_path / "people.csv"
    people.write_text("id,town,birth\n1,Bonn,Jena\n2,Jena,Jena\n3,Ulm,Bonn\n")
    declared = ["--values", f"town=@{places}", "--values-of", "birth=town"]
    assert ask(people, *declared) == 0
    groups = json.loads(capsys.readouterr().out)["groups"]
    counts = {(g["town"], g["birth"]): round(g["estimate"]) for g in groups}
    assert len(counts) == 9
    assert counts["Bonn", "Jena"] == counts["Jena", "Jena"] == 1
    # Nobody declared Ulm.
    assert sum(counts.values()) == 2
    other = ["--values", f"town=@{places}::town", "--values", f"birth=@{places}::region"]
    assert ask(people, *other) == 0
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 6
    for options, word in (
        (["--values", f"town=@{places}::nope", "--values", "birth=A"], "no column"),
        (["--values", f"birth=@{places}", "--values", "town=A"], "no column 'birth'"),
        (["--values", "town=A,B", "--values-of", "birth=home"], "no declared values"),
        (["--values", "town=A,B", "--values", "birth=C", "--values-of", "birth=town"], "leave one"),
    ):
        assert ask(people, *options) == 2
        assert word in capsys.readouterr().err


def test_a_dialect_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "places.csv"
    path.write_text("town;region\nBonn;west\n")
    assert read_values(path, "region", Dialect(separator=";")) == ("west",)
