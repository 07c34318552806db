"""Enrolling people as they consent: levels become accounts, and scopes and periods hold charges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from apiece._types import Integers
from apiece.budgets.consents import Standing
from apiece.errors import DataError
from apiece.ledger import chain, codec
from apiece.ledger.codec import BLOCK
from apiece.ledger.entries import ConsentEntry
from apiece.ledger.ledger import Ledger
from apiece.ledger.scopes import Permits, Scope

if TYPE_CHECKING:
    import pyarrow as pa


def enroll_consents(
    ledger: Ledger, standing: Standing, delta: float, *, slack: float | None = None
) -> int:
    """Open or change accounts as people permit, and hold all charges to it from now on.

    Args:
        ledger: The ledger of these people.
        standing: All consents that there are: whoever has an account and is not in it permits
            nothing.
        delta: δ of every account.
        slack: The share of delta kept for what is no Gaussian; see `Ledger.enroll`.

    Returns:
        How many accounts are new.

    Raises:
        DataError: For persons that this ledger's ids cannot be.

    Guarantee:
        From now on nobody is charged in a scope that they do not permit, after the last day for
        which that is known, or, in all scopes together, beyond the level that they permit. Whoever
        has already spent more than that is charged nothing more.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece import Ledger
        >>> from apiece.budgets import ConsentMapping, read_consents
        >>> from apiece.ledger import enroll_consents
        >>> mapping = ConsentMapping.from_toml('''
        ... source = "csv"
        ... levels = { low = 1, high = 8 }
        ... purpose = { science = "research" }
        ... columns = { person = "who", level = "level", purpose = "for" }
        ... ''')
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder, "consents.csv")
        ...     _ = path.write_text("who,level,for\\nann,high,science\\nbob,low,\\n")
        ...     ledger = Ledger.open(f"{folder}/people.db")
        ...     _ = ledger.set_policy("version = 1\\n[purpose.research]\\n[purpose.'*']")
        ...     _ = enroll_consents(ledger, read_consents(path, mapping).on(), 1e-6)
        ...     ledger.reserve("q", ["ann", "bob"], 1.0, 40.0, scope={"purpose": "care"}).tolist()
        ['bob']
    """
    ids, known = codec.parse_ids(standing.ids, ledger.id_kind)
    if not known.all():
        raise DataError(
            f"consents: {int((~known).sum())} persons are no whole numbers, as this ledger's ids "
            "are; write them as it does"
        )
    terms = np.zeros(0, codec.TERMS)
    if ids.size:
        terms = codec.make_terms(ids, standing.epsilon, delta, slack)
    store = ledger.store
    # Whoever is not among the ids keeps `until` 0, and so permits nothing from now on.
    with store.writing() as writing:
        people_before = writing.tip.people
        # Places of people who have spent more than their new level, a block at a time.
        overspent: list[Integers] = []
        places = store.enroll(writing, ids, terms, keep=slack is None, lower=overspent)
        people = writing.tip.people
        until = np.zeros(people, np.int64)
        until[places] = standing.until
        for places_of_block in overspent:
            until[places_of_block] = 0
        # (people, queriers, purposes), by place: all who have accounts, and not those alone who
        # consent.
        allowed = np.zeros((people, *standing.allowed.shape[1:]), dtype=bool)
        allowed[places] = standing.allowed
        permits = Permits(standing.queriers, standing.purposes, until, allowed)
        entry = ConsentEntry(standing.queriers, standing.purposes, standing.day.isoformat())
        blocks = range(-(-people // BLOCK))
        arrays = ((block, permits.pack(block)) for block in blocks)
        writing.tip = chain.append(
            writing.connection, store.salt, writing.tip, entry.to_body(), arrays
        )
    return people - people_before


def list_permitting(standing: Standing, scope: Scope) -> pa.Table:
    """Return who permits a scope, and their ε: a table for `apiece train --people`."""
    import pyarrow as pa

    permitting = standing.permits(scope) if scope else standing.allowed.any(axis=(1, 2))
    ids = pa.array(standing.ids[permitting])
    return pa.table({"person": ids, "epsilon": standing.epsilon[permitting]})
