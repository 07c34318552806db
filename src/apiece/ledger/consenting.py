"""Enrolling people as they consent: levels become accounts, and scopes and periods hold charges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from apiece._types import Integers
from apiece.budgets.consents import Standing
from apiece.errors import DataError
from apiece.ledger import accounts, chain, codec
from apiece.ledger.codec import BLOCK
from apiece.ledger.ledger import Ledger
from apiece.ledger.permits import Permits
from apiece.ledger.scopes import Scope

if TYPE_CHECKING:
    import pyarrow as pa


def enroll_consents(
    ledger: Ledger, standing: Standing, delta: float, *, slack: float | None = None
) -> int:
    """Open or change accounts as people permit, and hold all charges to it from now on.

    Args:
        ledger: Of these people.
        standing: All consents that there are: who has an account and is not in it permits nothing.
        delta: Of everybody.
        slack: As of `Ledger.enroll`.

    Returns:
        How many accounts are new.

    Raises:
        DataError: For persons that this ledger's ids cannot be.

    Guarantee:
        From now on nobody is charged in a scope that they do not permit, nor after the last day for
        which that is known, nor, in all scopes together, beyond the level that they permit; whoever
        has already spent more than that, nothing more.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.budgets import ConsentMapping, read_consents
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
    ids = _as_ids(ledger, standing.ids)
    terms = np.zeros(0, codec.TERMS)
    if ids.size:
        terms = codec.terms(ids, standing.epsilon, delta, slack)
    store = ledger.store
    with store.writing() as writing:
        at, salt, lower = writing.connection, store.salt, list[Integers]()
        places = store.directory(writing).find(ids)
        known = np.flatnonzero((places >= 0) & ~codec.among(places, store.trail.withdrawn))
        own, keep = (ids[known], places[known], terms[known]), slack is None
        last = accounts.amend(at, salt, writing.last, *own, store.origin, keep=keep, lower=lower)
        new = np.flatnonzero(places < 0)
        places[new] = last.people + np.arange(new.size)
        last = accounts.add(at, salt, last, ids[new], terms[new])
        until, allowed = np.zeros(last.people, np.int64), standing.allowed
        until[places] = standing.until
        until[places[known[np.concatenate([*lower, np.zeros(0, np.int64)])]]] = 0
        whole = np.zeros((last.people, *allowed.shape[1:]), dtype=bool)
        whole[places] = allowed
        permits = Permits(standing.queriers, standing.purposes, until, whole)
        body = {
            "kind": "consent",
            "queriers": standing.queriers,
            "purposes": standing.purposes,
            "day": standing.day.isoformat(),
        }
        packed = ((block, permits.pack(block)) for block in range(-(-last.people // BLOCK)))
        writing.last = chain.append(at, salt, last, body, packed)
    return new.size


def permitting(standing: Standing, scope: Scope) -> pa.Table:
    """Return who permits a scope, and their ε: a table for `apiece train --people`."""
    import pyarrow as pa

    who = standing.permits(scope) if scope else standing.allowed.any(axis=(1, 2))
    return pa.table({"person": pa.array(standing.ids[who]), "epsilon": standing.epsilon[who]})


def _as_ids(ledger: Ledger, persons: Any) -> codec.Ids:
    """Return persons as the ledger writes its ids."""
    if ledger.id_kind != "integer":
        return codec.checked_ids(persons, least=0)
    found = [codec.read_id(str(each), "integer") for each in persons]
    if strange := sum(each is None for each in found):
        raise DataError(
            f"consents: {strange} persons are no whole numbers, as this ledger's ids are; write "
            "them as it does"
        )
    return codec.checked_ids(found, least=0)
