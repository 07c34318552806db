"""No edit of a ledger's tables buys an answer, an admission or a budget; `verify` finds each."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from apiece.errors import ApieceError
from apiece.ledger import Ledger, schema
from apiece.ledger.chain import Trail
from apiece.ledger.codec import compute_digest
from apiece.ledger.entries import StoredEntry

from .mutations import Edit, build, dump, edits, missed, probe, restore
from .tables import another_process


class World:
    """One ledger that is edited, probed and put back."""

    def __init__(self, url: str) -> None:
        self.url, self.truth = url, build(url)
        self.engine = Ledger.open(url).engine
        self.rows = dump(self.engine)
        self.head = Path(f"{self.engine.url.database}.head")  # beside SQLite
        self.kept = self.head.read_bytes() if self.head.exists() else None

    def put_back(self) -> None:
        """Put the rows back as they were, and all that remembers the edited ones."""
        restore(self.engine, self.rows)
        if self.kept is not None:
            self.head.write_bytes(self.kept)
        another_process()

    def gives_away(self, edit: Edit) -> list[str] | None:
        """Return what an edit bought; None where the database did not make it.

        SQLite refuses some, and writes the next whole number for a key that is NULL.
        """
        live = Ledger.open(self.url, create=False)
        live.spent([100])
        try:
            if not edit.apply(self.engine) or dump(self.engine) == self.rows:
                return None
            found, opened = missed(live), {"live": live}
            with contextlib.suppress(ApieceError):
                opened["fresh"] = Ledger.open(self.url, create=False)
            found += probe(opened, self.truth)
            return [f"{edit.name}: {what}" for what in found]
        finally:
            self.put_back()


@pytest.fixture
def world(ledger_url: str) -> World:
    return World(ledger_url)


def sweep(world: World, every: int) -> tuple[int, list[str]]:
    made, found = 0, []
    for edit in list(edits(world.rows))[::every]:
        bought = world.gives_away(edit)
        made += bought is not None
        found += bought or []
    return made, found


def test_the_untouched_ledger_passes_the_probes(world: World) -> None:
    """All probes but `verify` hold on it, so that what they report later is the edit's doing."""
    ledger = Ledger.open(world.url)
    assert missed(ledger) == ["verify: no problem found"]
    assert probe({"live": ledger, "fresh": Ledger.open(world.url)}, world.truth) == []


def test_no_edit_buys_anything(world: World) -> None:
    made, found = sweep(world, every=67 if "sqlite" in world.url else 201)
    assert found == []
    assert made > 3


@pytest.mark.parametrize(
    "name",
    [
        "apiece_entry[0].number = 0.5",
        "apiece_entry[3].number = 0.5",
        "apiece_payload[2, 0].block = 0.5",
        "apiece_entry[2].body analysis = 1.5",
    ],
)
def test_edits_that_once_passed(tmp_path: Path, name: str) -> None:
    """SQLite takes a fraction where a whole number belongs, and a body holds one for an id."""
    world = World(f"sqlite:///{tmp_path}/p.db")
    (edit,) = [edit for edit in edits(world.rows) if edit.name == name]
    assert world.gives_away(edit) == []


@pytest.mark.parametrize("table", ["apiece_entry", "apiece_head", "apiece_payload"])
def test_a_fraction_is_not_rounded_away(tmp_path: Path, table: str) -> None:
    """2.5 would be read as 2, in the right place."""
    world = World(f"sqlite:///{tmp_path}/p.db")
    with world.engine.execution_options(apiece_writes=True).begin() as connection:
        last = f"number = (SELECT max(number) FROM {table})"
        connection.exec_driver_sql(f"UPDATE {table} SET number = number + 0.5 WHERE {last}")
    assert missed(Ledger.open(world.url, create=False)) == []


@pytest.mark.slow
def test_no_edit_of_any_cell_buys_anything(world: World) -> None:
    made, found = sweep(world, every=1)
    print(f"{world.engine.dialect.name}: {made} edits")
    assert found == []
    assert made > 450


def believing(self: Trail, row: Any, number: int) -> StoredEntry:
    return StoredEntry.read(json.loads(row.body))


def believing_arrays(self: Trail, connection: Any, number: int) -> dict[int, bytes]:
    return {
        block: compute_digest(self.salt, data)
        for block, data in schema.read_payloads(connection, number)
    }


BREAKS = {
    "entries": ("_check", believing, "result = 'x'", "result"),
    "arrays": ("digest_arrays", believing_arrays, "the poor too", "replay"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_the_probes_see_a_ledger_that_believes(
    name: str, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the checks taken out, edits buy answers and admissions, and the probes say so."""
    world = World(ledger_url)
    attribute, instead, edited, gives = BREAKS[name]
    monkeypatch.setattr(Trail, attribute, instead)
    some = [edit for edit in edits(world.rows) if edited in edit.name]
    found = [what for edit in some for what in world.gives_away(edit) or []]
    assert any(gives in what for what in found)
