"""The tables and their version."""

import pytest
import sqlalchemy as sa

from apiece.errors import StateError
from apiece.ledger import Ledger, schema

from .tables import SALT


def test_schema_of_the_future_is_refused(ledger_url: str) -> None:
    ledger = Ledger.open(ledger_url)
    with ledger.engine.execution_options(apiece_writes=True).begin() as connection:
        connection.execute(sa.text("UPDATE apiece_meta SET value = '99' WHERE key = 'schema'"))
    with pytest.raises(StateError, match="version 99"):
        Ledger.open(ledger_url)


def test_a_database_holds_a_ledger_once_its_tables_are_made(tables: sa.Connection) -> None:
    empty = sa.create_engine("sqlite://")
    with empty.connect() as connection:
        assert not schema.has_ledger(connection)
    empty.dispose()
    assert schema.has_ledger(tables)
    assert schema.read_settings(tables) == {"schema": str(schema.VERSION), "salt": SALT.hex()}


def test_versions() -> None:
    schema.check_version("p.db", str(schema.VERSION))
    with pytest.raises(StateError, match=r"ledger p\.db: .*use a newer apiece"):
        schema.check_version("p.db", str(schema.VERSION + 1))
    for version in range(1, schema.VERSION):
        with pytest.raises(StateError, match=rf"ledger p\.db: .*version {version}, from before"):
            schema.check_version("p.db", str(version))
    with pytest.raises(StateError, match="'three' is not a number"):
        schema.check_version("p.db", "three")


@pytest.mark.parametrize("create", [True, False])
@pytest.mark.parametrize("version", [1, 4, 5])
def test_schema_of_before_the_first_release_is_refused_and_left_as_it_is(
    ledger_url: str, version: int, create: bool
) -> None:
    engine = Ledger.open(ledger_url).engine
    with engine.execution_options(apiece_writes=True).begin() as connection:
        connection.execute(
            sa.text("UPDATE apiece_meta SET value = :v WHERE key = 'schema'"), {"v": str(version)}
        )
    with pytest.raises(StateError, match=rf"version {version}, from before the first release"):
        Ledger.open(ledger_url, create=create)
    with engine.connect() as connection:
        assert schema.read_settings(connection)["schema"] == str(version)


def test_payloads_are_in_the_order_of_their_blocks_which_are_whole(tables: sa.Connection) -> None:
    for block in (7, 0, 3):
        row = {"number": 1, "block": block, "data": bytes([block])}
        tables.execute(sa.insert(schema.PAYLOAD), [row, {**row, "number": 2}])
    assert list(schema.read_payloads(tables, 1)) == [(0, b"\0"), (3, b"\3"), (7, b"\7")]
    assert list(schema.read_payloads(tables, 9)) == []
    tables.exec_driver_sql("UPDATE apiece_payload SET block = 0.5 WHERE block = 3")
    with pytest.raises(TypeError):  # SQLite lets it in
        list(schema.read_payloads(tables, 1))
