"""The same table gives the same answer from every container, whatever kind its cells are of."""

import random
from collections import Counter
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np
import pytest
from kinds import COLUMNS, CONTAINERS, NAMES, SIZE, plain_pandas

from apiece.budgets.frames import read_frame
from apiece.datasets import Categorical, Dialect, cells
from apiece.datasets.encode import encode
from apiece.queries import Schema, Session, register
from apiece.tables import values

DECLARED = dict(zip(NAMES, COLUMNS.values(), strict=True))
COUNTS = {
    name: Counter(column.place(row) for row in range(SIZE)) for name, column in DECLARED.items()
}


def schema(**more: Any) -> Schema:
    return Schema(
        "id",
        groups={name: column.declared for name, column in DECLARED.items()},
        kinds={name: c.kind for name, c in DECLARED.items() if c.kind is not None},
        rows_per_person=1,
        **more,
    )


def counted(table: Any, name: str) -> dict[int, int]:
    """How many rows of a registered table have each declared value."""
    stored = table.schema.stored_group(name)
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
    session = Session(table, table.schema, bits=random.Random(0).getrandbits)
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
        session = Session(table, table.schema, bits=random.Random(0).getrandbits)
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
    monkeypatch.setattr(cells, "_doubles", widened)
    assert unread(plain_pandas()) != STRANGE
