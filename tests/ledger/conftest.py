"""The tables of an empty ledger, in memory: for what is done inside one transaction."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from apiece.ledger import schema

from .tables import SALT


@pytest.fixture
def tables() -> Iterator[sa.Connection]:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as connection:
        schema.create_tables(connection, SALT)
        yield connection
    engine.dispose()
