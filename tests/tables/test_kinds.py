"""The same table gives the same answer from every container, whatever kind its cells are of."""

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kinds import COLUMNS, CONTAINERS, NAMES, SIZE, plain_pandas

from apiece.budgets.frames import read_frame
from apiece.datasets import Categorical, Schema, cells
from apiece.datasets.encode import encode
from apiece.datasets.tables import Dialect
from apiece.queries import Session, register
from apiece.tables import values
from apiece.tables.values import Declared, text_of

DECLARED = dict(zip(NAMES, COLUMNS.values(), strict=True))
COUNTS = {
    name: Counter(column.place(row) for row in range(SIZE)) for name, column in DECLARED.items()
}


def schema(**more: Any) -> Schema:
    columns = {name: column.declare() for name, column in DECLARED.items()}
    return Schema(columns, person="id", rows_per_person=1, **more)


def counted(table: Any, name: str) -> dict[int, int]:
    """How many rows of a registered table have each declared value."""
    stored = table.declarations.stored_group(name)
    sql = f"SELECT coalesce({stored}, -1), count(*) FROM rows GROUP BY ALL"
    return dict(table.database.execute(sql).fetchall())


@pytest.mark.parametrize("container", CONTAINERS)
def test_declared_groups_are_counted_alike(container: str, tmp_path: Path) -> None:
    made, dialect = CONTAINERS[container]
    messages: list[str] = []
    decimal = dialect.get("decimal", ".")
    table = register(
        made(tmp_path), schema(decimal=decimal), log=messages.append, dialect=Dialect(**dialect)
    )
    found = {kind: counted(table, n) for kind, n in zip(COLUMNS, NAMES, strict=True)}
    assert found == {kind: dict(COUNTS[n]) for kind, n in zip(COLUMNS, NAMES, strict=True)}
    for name, column in DECLARED.items():
        strange = sum(column.place(row) < 0 and column.cell(row) is not None for row in range(SIZE))
        said = f"column {name!r}: {strange} cells are no declared value"
        assert (said in messages) == (strange > 0), messages
    session = Session(table, schema(decimal=decimal), seed=0)
    for name in ("c5", "c8", "c13", "c18"):
        literal = DECLARED[name].literal
        question = f"count(persons) where {name} = {literal} and not {name} != {literal}"
        (group,) = session.ask(question, epsilon=300, delta=0.0).groups
        assert round(group["estimate"]) == COUNTS[name][0]
    table.close()


@pytest.mark.parametrize("container", CONTAINERS)
def test_declared_categories_are_learned_alike(container: str, tmp_path: Path) -> None:
    made, dialect = CONTAINERS[container]
    columns = {n: Categorical(tuple(map(str, c.declared))) for n, c in DECLARED.items()}
    frame = read_frame(made(tmp_path), Dialect(**dialect))
    encoded = encode(frame, columns, decimal=dialect.get("decimal", "."))
    at = 0
    for (name, column), kind in zip(DECLARED.items(), COLUMNS, strict=True):
        places = np.array([column.place(row) for row in range(SIZE)])
        for place in range(len(column.declared)):
            assert (encoded.features[:, at] == (places == place)).all(), kind
            at += 1
        assert encoded.unread[name] == int((places < 0).sum()), kind


def test_a_literal_of_each_kind_is_compared_by_value(tmp_path: Path) -> None:
    """`where` with the first declared value counts the rows of its group."""
    for container in ("CSV with commas", "Parquet"):
        table = register(CONTAINERS[container][0](tmp_path), schema())
        session = Session(table, schema(), seed=0)
        for kind, name in zip(COLUMNS, NAMES, strict=True):
            question = f"count(persons) where {name} = {DECLARED[name].literal}"
            (group,) = session.ask(question, epsilon=300, delta=0.0).groups
            assert round(group["estimate"]) == COUNTS[name][0], (container, kind)
        table.close()


BREAKS: dict[str, Any] = {
    "numbers by their spelling": ("numeric", lambda cell, _: str(cell)),
    "booleans by their spelling": ("boolean", lambda cell, _: str(cell)),
    "moments by their spelling": ("date", lambda cell, _: str(cell)),
    "texts as they are stored": ("text", lambda cell, _: cell if isinstance(cell, str) else None),
    "letters as they are composed": ("text", lambda cell, _: str(cell).strip()),
    "blanks as they stand": ("text", lambda cell, _: normalize("NFC", cell)),
}


def unread(frame: Any) -> dict[str, int]:
    columns = {n: Categorical(tuple(map(str, c.declared))) for n, c in DECLARED.items()}
    return dict(encode(frame, columns).unread)


STRANGE = {n: sum(c.place(row) < 0 for row in range(SIZE)) for n, c in DECLARED.items()}


@pytest.mark.parametrize("name", BREAKS)
def test_a_planted_break_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each notion of a value that compares spellings gives another table than this one."""
    kind, form = BREAKS[name]

    def tried(cell: object, decimal: str) -> object:
        try:
            return form(cell, decimal)
        except (TypeError, ValueError):
            return None

    monkeypatch.setitem(values._FORMS, kind, tried)
    assert unread(plain_pandas()) != STRANGE


def test_a_planted_break_of_narrow_floats_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread(plain_pandas()) == STRANGE
    widened = lambda cells: cells.to_numpy(dtype=np.float64, na_value=np.nan)  # noqa: E731
    monkeypatch.setattr(cells, "_widen_floats", widened)
    assert unread(plain_pandas()) != STRANGE


# Of a column: its declared values, its cells as a typed container holds them, and as texts.
UNDECLARED = {
    "booleans": ([False], [True, False, None], ["True", "FALSE", ""]),
    "booleans as texts": (["false"], [True, False, None], ["TRUE", "false", ""]),
    "whole numbers beside a gap": ([1], [1.0, 2.0, None], ["1.0", "2.0", ""]),
    "codes with zeros": ([1, 2], [3, 1, 20], ["03", "01", "20"]),
    "decimals": ([0.5], [0.25, 0.5, 7.0], [".250", "0.50", "7.00"]),
    "days": (
        ["2024-01-03"], [date(2024, 1, 4), date(2024, 1, 3), None], ["2024-1-4", "2024-1-3", ""],
    ),
}  # fmt: skip


@pytest.mark.parametrize("column", UNDECLARED)
@pytest.mark.parametrize("sign", ["=", "<>", "<", ">="])
def test_undeclared_cells_are_compared_alike(column: str, sign: str, tmp_path: Path) -> None:
    """A filter gives the same rows of a file of texts as of a typed container."""
    declared, typed, spelled = UNDECLARED[column]
    path = tmp_path / "spelled.csv"
    pd.DataFrame({"who": ["a", "b", "c"], "g": spelled}).to_csv(path, index=False)
    stored = pa.table({"who": ["a", "b", "c"], "g": pa.array(typed)})
    schema = Schema({"g": Categorical(declared)}, person="who", rows_per_person=1)
    counts = []
    for source in (path, stored):
        table = register(source, schema)
        session = Session(table, schema, seed=0)
        questions = [f"count(persons) where g {sign} '{text_of(value)}'" for value in declared]
        answers = [session.ask(question, epsilon=300, delta=0.0) for question in questions]
        counts.append([round(answer.groups[0]["estimate"]) for answer in answers])
        table.close()
    assert counts[0] == counts[1]


def test_a_text_that_no_declared_value_resembles_stays_as_it_is() -> None:
    for declared in (["a"], [1, "n/a"], [True, "perhaps"], ["1", "01"]):
        for cell in ("03", "3.0", "True", "2024-1-4"):
            if Declared(declared).position(cell) < 0:
                assert Declared(declared).text(cell) == cell


@pytest.mark.parametrize("container", ["csv", "pandas", "arrow", "numbers"])
def test_an_empty_cell_is_the_declared_group_of_no_text(container: str, tmp_path: Path) -> None:
    """It is grouped and compared as "", and counted for the steward as a value."""
    cells: list[Any] = ["1", "", None, "2"]
    if container == "numbers":
        cells = [1.0, None, None, 2.0]
    frame = pd.DataFrame({"who": list("abcd"), "g": cells})
    source: Any = frame
    if container == "csv":
        source = tmp_path / "people.csv"
        frame.to_csv(source, index=False)
    elif container == "arrow":
        source = pa.Table.from_pandas(frame)
    schema = Schema({"g": Categorical(["1", ""])}, person="who", rows_per_person=1)
    messages: list[str] = []
    table = register(source, schema, log=messages.append)
    session = Session(table, schema, seed=0)
    expected = {
        "count(persons) by g": [1, 2],
        "count(persons) where g = ''": [2],
        "count(persons) where g <> ''": [2],
        "count(persons) where g is null": [0],
    }
    for question, counts in expected.items():
        groups = session.ask(question, epsilon=300, delta=0.0).groups
        assert [round(group["estimate"]) for group in groups] == counts, question
    assert messages[0] == "column 'g': 1 cells are no declared value"
    table.close()


@pytest.mark.parametrize(
    "declared", [[True, False, ""], ["Yes", ""], ["TRUE", "false", ""], [1, 0, ""]]
)
def test_a_column_with_gaps_keeps_its_kind(declared: list[Any]) -> None:
    """The empty cell beside yes and no does not make texts of them."""
    without = Declared(declared[:-1])
    cells = [True, np.False_, "TRUE", "false", 1, "0", "Yes"]
    assert Declared(declared).positions(cells).tolist() == without.positions(cells).tolist()
    assert Declared(declared).position(None) == len(declared) - 1
    assert [Declared(declared).text(str(cell)) for cell in cells] == [
        without.text(str(cell)) for cell in cells
    ]
