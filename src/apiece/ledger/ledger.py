"""Ledger: one durable account per person, across trainings and queries."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from apiece import _check
from apiece.errors import AnalysisError, BudgetError, DataError, InputError, StateError
from apiece.ledger import accounts, chain, codec, enrolment, schema, units
from apiece.ledger.chain import Entry, Head, Locked
from apiece.ledger.charging import charge, entry_body, replay
from apiece.ledger.codec import BLOCK, Ids, Integers
from apiece.ledger.database import is_missing, make_engine, name, transaction
from apiece.ledger.directory import Directory
from apiece.ledger.export import export
from apiece.ledger.schema import ANALYSIS, ENTRY, HEAD
from apiece.ledger.verify import Verification, verify

Floats = npt.NDArray[np.float64]


class Ledger:
    """Durable accounts of privacy loss, charged before anything is released.

    Make one with `Ledger.open(url)`. Guarantee: over every analysis ever reserved, by any number
    of processes, adaptively chosen, each person's charges stay within their own budget, so with
    Gaussian noise each person's transcript is (ε, δ)-DP under add/remove adjacency (the ledger is
    a Gaussian filter; with `method="renyi"` a Rényi filter of one order).

    Protocol: `reserve` charges, in one transaction, all who can pay, and returns them; compute on
    those alone; `commit` records that the answer goes out, and returns the answer to release.
    Charges are never given back. Reserving again under the same analysis id charges nothing.
    """

    def __init__(self, engine: sa.Engine, settings: dict[str, Any], salt: bytes) -> None:
        self.engine, self.salt = engine, salt
        self.method: str = settings["filter"]
        self.order: float | None = settings["order"]
        self._directory = Directory()

    def __repr__(self) -> str:
        return f"Ledger.open({name(self.engine)!r})"

    @classmethod
    def open(
        cls,
        url: str = "sqlite:///people.db",
        *,
        method: str | None = None,
        order: float | None = None,
        create: bool = True,
    ) -> Ledger:
        """Open the ledger at `url`, making an empty one (which admits nobody) if there is none.

        url: sqlite:///file, a file's path, or postgresql://user@host/name. method: "gaussian"
        (default; exact for Gaussian noise) or "renyi" with an `order`, which can also charge
        trainings with sampled batches; fixed when the ledger is made. create: whether to make one.

        Raises `StateError` for a database that cannot be reached and a ledger from a newer
        version, `InputError` for settings other than the stored ones, `DataError` where, with
        create=False, there is none. An older version is migrated.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.open(f"sqlite:///{folder}/people.db")
        ...     _ = ledger.enroll(["ann", "bob"], epsilon=[0.1, 1.0], delta=1e-6)
        ...     ledger.reserve("q1", ["ann", "bob"], norms=1.0, noise_stddev=10.0).tolist()
        ['bob']
        """
        asked = (method or "gaussian", units.checked_order(method or "gaussian", order))
        engine = make_engine(url)
        if not create and is_missing(engine):
            raise _none_there(engine)
        with transaction(engine, writes=False) as connection:
            there = schema.exists(connection)
            version = schema.check_version(schema.meta(connection)["schema"]) if there else None
        if not there and not create:
            raise _none_there(engine)
        if version != schema.VERSION:
            with transaction(engine, writes=True) as connection:
                _prepare(connection, *asked)
        with transaction(engine, writes=False) as connection:
            salt = bytes.fromhex(schema.meta(connection)["salt"])
            first = connection.execute(sa.select(ENTRY.c.body).where(ENTRY.c.number == 0)).scalar()
        try:
            settings = json.loads(first or "")
        except ValueError:
            raise StateError(f"ledger {name(engine)}: its first entry is damaged") from None
        if method is not None and asked != (settings["filter"], settings["order"]):
            raise InputError(
                f"ledger {name(engine)}: made with method {settings['filter']!r}, order "
                f"{settings['order']}, not {asked[0]!r}, {asked[1]}; these cannot change"
            )
        return cls(engine, settings, salt)

    def enroll(self, ids: Any, epsilon: Any, delta: Any) -> int:
        """Open accounts, or change the budgets of open ones; return how many are new.

        ids: whole numbers or text, of one kind in a ledger. epsilon, delta: one entry a person or
        scalars. The same terms again change nothing. Raises `BudgetError` for a budget lower
        than what the person has spent; then nothing at all is changed.
        """
        ids = codec.checked_ids(ids)
        terms = self._terms(ids, epsilon, delta)
        with transaction(self.engine, writes=True) as connection:
            head = self._lock(connection)
            found = self._directory.find(ids)
            known = found >= 0
            head = enrolment.amend(
                connection, self.salt, head, ids[known], found[known], terms[known]
            )
            enrolment.add(connection, self.salt, self._directory, head, ids[~known], terms[~known])
        return int((~known).sum())

    def reserve(self, analysis_id: str, ids: Any, norms: Any, noise_stddev: float) -> Ids:
        """Charge a Gaussian sum to everyone who can pay; return their ids, in the order given.

        norms: bound on each person's contribution to the sum (ℓ2), or one for all; noise_stddev:
        of the noise on it. Durable before it returns; all or nothing. Only the returned persons
        may enter the sum. Who is returned is data about people.

        Repeated with the same arguments it returns the same ids and charges nothing, as long as
        the analysis is not committed; use that after a crash. Raises `AnalysisError` where the id
        stands for another analysis or a committed one, `DataError` for an unknown person,
        `InputError` for a norm that is negative or not finite.
        """
        loss = units.losses(self.method, self.order, norms, noise_stddev)
        return self._reserve(analysis_id, ids, loss, {"noise_stddev": float(noise_stddev)})

    def reserve_losses(self, analysis_id: str, ids: Any, losses: Any) -> Ids:
        """Charge losses in the filter's own unit: μ², or the Rényi divergence at `order`.

        For mechanisms that are not one Gaussian sum, such as a whole training. With the Gaussian
        filter a loss μ² is right only for what a μ-Gaussian mechanism can simulate.
        """
        return self._reserve(analysis_id, ids, units.nonnegative("losses", losses), {})

    def commit(self, analysis_id: str, result: Any = None) -> Any:
        """Record that the analysis is being released; return the result to release.

        result: any JSON value. Of several commits of one analysis, the first one's result counts
        and is what all of them return, so that one charge never pays for two noisy answers.
        """
        _analysis_id(analysis_id)
        try:
            json.dumps(result, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise InputError(f"result: {error}; give a JSON value") from None
        with transaction(self.engine, writes=True) as connection:
            head = self._lock(connection)
            row = self._analysis(connection, analysis_id)
            if row.committed is not None:
                return entry_body(connection, row.committed)["result"]
            body = {"kind": "commit", "analysis": analysis_id, "result": result}
            number = chain.append(connection, self.salt, head, body, [])
            connection.execute(
                sa.update(ANALYSIS).where(ANALYSIS.c.id == analysis_id).values(committed=number)
            )
        return result

    def status(self, analysis_id: str) -> str:
        """Return "unknown", "reserved" or "committed"."""
        with transaction(self.engine, writes=False) as connection:
            row = self._find_analysis(connection, _analysis_id(analysis_id))
        return "unknown" if row is None else ("reserved" if row.committed is None else "committed")

    def result(self, analysis_id: str) -> Any:
        """Return the result that was committed. Raises `AnalysisError` where there is none."""
        with transaction(self.engine, writes=False) as connection:
            row = self._analysis(connection, _analysis_id(analysis_id))
            if row.committed is None:
                raise AnalysisError(f"analysis {analysis_id!r}: reserved, but not committed")
            return entry_body(connection, row.committed)["result"]

    def spent(self, ids: Any) -> Floats:
        """Return what each person has spent: μ², or Rényi divergence. Data about people."""
        return np.asarray(self._balance(ids)[0] * units.UNIT)

    def remaining(self, ids: Any) -> Floats:
        """Return what is left of each person's budget, in the same unit. Data about people."""
        spent, limit = self._balance(ids)
        return np.asarray((limit - spent) * units.UNIT)

    def head(self) -> Head:
        """Return the last entry's number and digest. Keep them elsewhere: see `verify`."""
        with transaction(self.engine, writes=False) as connection:
            row = connection.execute(sa.select(HEAD.c.number, HEAD.c.digest)).one()
        return Head(int(row.number), bytes(row.digest).hex())

    @property
    def people(self) -> int:
        """How many people have accounts."""
        with transaction(self.engine, writes=False) as connection:
            return int(connection.execute(sa.select(HEAD.c.people)).scalar_one())

    @property
    def id_kind(self) -> str | None:
        """Of the people's ids: "integer", "text", or None while nobody is enrolled."""
        with transaction(self.engine, writes=False) as connection:
            people = connection.execute(sa.select(HEAD.c.people)).scalar_one()
            self._directory.refresh(connection, self.salt, int(people))
        return self._directory.kind

    def enrolled(self, ids: Any) -> codec.Mask:
        """Return which of these persons have an account. Data about people."""
        ids = codec.checked_ids(ids, least=0)
        if self.id_kind is None:
            return np.zeros(ids.size, dtype=bool)
        return self._directory.find(ids) >= 0

    def history(self) -> Iterator[Entry]:
        """Yield the entries, oldest first; they hold nothing about a single person."""
        with transaction(self.engine, writes=False) as connection:
            for number, body, digest in connection.execute(
                sa.select(ENTRY.c.number, ENTRY.c.body, ENTRY.c.digest).order_by(ENTRY.c.number)
            ):
                entry = json.loads(body)
                yield Entry(
                    number, entry["kind"], entry["at"], entry.get("analysis"), bytes(digest).hex()
                )

    def verify(self, head: Head | None = None) -> Verification:
        """Recompute every digest, and every balance from the history.

        head: one that was kept elsewhere; without it, a history that was cut short or rewritten
        together with all its digests cannot be told from a true one.
        """
        return verify(self.engine, self.salt, head)

    def export(self, path: str | Path, table: str = "accounts") -> int:
        """Write "accounts" (data about people) or "history" to Parquet; return its rows."""
        return export(self, path, table)

    def _terms(self, ids: Ids, epsilon: Any, delta: Any) -> codec.Terms:
        eps = _check.positive_array("epsilon", epsilon, error=BudgetError)
        dlt = _check.positive_array("delta", delta, below=1.0, error=BudgetError)
        for label, array in (("epsilon", eps), ("delta", dlt)):
            if array.ndim and array.shape != ids.shape:
                raise BudgetError(f"{label}: {array.size} entries for {ids.size} ids")
        terms = np.zeros(ids.size, dtype=codec.TERMS)
        terms["epsilon"], terms["delta"] = eps, dlt
        terms["limit"] = units.limits(
            self.method, self.order, terms["epsilon"].copy(), terms["delta"].copy()
        )
        return terms

    def _lock(self, connection: sa.Connection) -> Locked:
        head = chain.lock(connection, self.salt)
        self._directory.refresh(connection, self.salt, head[2])
        return head

    def _reserve(self, analysis_id: str, ids: Any, loss: Floats, about: dict[str, Any]) -> Ids:
        _analysis_id(analysis_id)
        ids = codec.checked_ids(ids, least=0)
        if loss.ndim and loss.shape != ids.shape:
            raise InputError(f"{loss.size} norms or losses for {ids.size} ids; give one a person")
        charges = np.broadcast_to(units.to_units(loss), ids.shape)
        with transaction(self.engine, writes=True) as connection:
            head = self._lock(connection)
            ordinals = self._directory.numbers(ids)
            request = chain.keyed(self.salt, ordinals.tobytes(), charges.tobytes()).hex()
            row = self._find_analysis(connection, analysis_id)
            if row is not None:
                admitted = replay(connection, row, analysis_id, request, ordinals)
                return np.asarray(ids[admitted])
            admitted, payloads = charge(connection, self.salt, ordinals, charges)
            body = {"kind": "reserve", "analysis": analysis_id, "request": request, **about}
            number = chain.append(connection, self.salt, head, body, payloads)
            connection.execute(sa.insert(ANALYSIS).values(id=analysis_id, reserved=number))
        return np.asarray(ids[admitted])

    def _balance(self, ids: Any) -> tuple[Integers, Integers]:
        ids = codec.checked_ids(ids)
        spent, limit = np.zeros(ids.size, np.int64), np.zeros(ids.size, np.int64)
        with transaction(self.engine, writes=False) as connection:
            count = connection.execute(sa.select(HEAD.c.people)).scalar_one()
            self._directory.refresh(connection, self.salt, int(count))
            ordinals = self._directory.numbers(ids)
            groups = codec.by_block(ordinals)
            blocks = [block for block, _ in groups]
            people = accounts.read_people(connection, self.salt, blocks)
            balances = accounts.read_spent(connection, self.salt, blocks)
        for block, part in groups:
            at = ordinals[part] % BLOCK
            spent[part], limit[part] = balances[block][at], people[block][1]["limit"][at]
        return spent, limit

    def _find_analysis(self, connection: sa.Connection, analysis_id: str) -> Any:
        return connection.execute(sa.select(ANALYSIS).where(ANALYSIS.c.id == analysis_id)).first()

    def _analysis(self, connection: sa.Connection, analysis_id: str) -> Any:
        row = self._find_analysis(connection, analysis_id)
        if row is None:
            raise AnalysisError(
                f"analysis {analysis_id!r}: unknown to this ledger; reserve it first"
            )
        return row


def _none_there(engine: sa.Engine) -> DataError:
    return DataError(f"ledger {name(engine)}: no ledger there; run `apiece ledger init`")


def _prepare(connection: sa.Connection, method: str, order: float | None) -> None:
    """Make the tables, or migrate them; another process may have been first."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(7307199140915)")
    if schema.exists(connection):
        stored = schema.meta(connection)
        version = schema.check_version(stored["schema"])
        if version < schema.VERSION:
            schema.migrate(connection, version)
            salt = bytes.fromhex(stored["salt"])
            body = {"kind": "migrate", "schema": schema.VERSION}
            chain.append(connection, salt, chain.lock(connection, salt), body, [])
        return
    salt = secrets.token_bytes(32)
    schema.create(connection, salt)
    connection.execute(sa.insert(HEAD).values(one=1, number=-1, digest=b"", people=0))
    body = {"kind": "init", "filter": method, "order": order, "unit": units.UNIT}
    chain.append(connection, salt, (-1, b"", 0), body, [])


def _analysis_id(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isprintable():
        raise InputError(f"analysis_id = {value!r}: give 1 to 200 printable characters")
    return value
