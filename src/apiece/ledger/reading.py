"""Reading a ledger: balances, answers, history, proofs, exports; each read is checked first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import sqlalchemy as sa

from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.errors import AnalysisError, InputError, unknown
from apiece.ledger import accounts, codec, schema
from apiece.ledger.anchor import Anchor
from apiece.ledger.chain import Entry, Head, check_id, check_terms, digest_terms
from apiece.ledger.codec import BLOCK
from apiece.ledger.entries import Subject
from apiece.ledger.proofs import check_head, make_head, prove_account
from apiece.ledger.scopes import Policy, Scope, name_account, normalize_scope
from apiece.ledger.store import LedgerStore
from apiece.ledger.verify import LedgerVerification

if TYPE_CHECKING:
    import pyarrow as pa


class LedgerReader:
    """All that a ledger can be asked without changing it."""

    def __init__(self, engine: sa.Engine, anchor: Anchor) -> None:
        self.engine = engine
        self.store = LedgerStore(engine, anchor)
        # Who asks, what for, of which source and period: the scope of what this object charges.
        self.scope: Json = {}

    def within(self, scope: Scope) -> Self:
        """Return this ledger for one asker: what it charges is in a scope; see `reserve`.

        Give it to a `Session`, a training or a `LedgerFilter`. Raises `InputError` for what is not
        a scope.
        """
        # The copy has the same store, and so the same connection, history and lock.
        result = copy(self)
        result.scope = normalize_scope(scope)
        return result

    @property
    def policy(self) -> Policy:
        """The policy of scopes that holds; of version 0 where there is none."""
        with self.store.reading():
            return self.store.trail.policy

    def withdrawn(self, ids: Any) -> Mask:
        """Return who of these persons withdrew or does not permit this scope; nobody unknown."""
        enrolled, barred = self._find_people(ids)
        return enrolled & barred

    def admitted(self, analysis_id: str, *, withdrawn: bool = False) -> Iterator[Ids]:
        """Yield the ids of those who paid for an analysis, 4,096 at most at a time.

        Data about people, in the order of enrolment, without those who have withdrawn since or
        permit it no more, unless `withdrawn` is true. Raises `AnalysisError` where nothing was
        reserved under this id, and `StateError` where what was stored is damaged.
        """
        check_id(analysis_id)
        trail = self.store.trail
        with self.store.reading() as reading:
            trail.require(analysis_id)
            stored, entry = trail.read_reservation(reading.connection, analysis_id)
            # All arrays are checked before the first id goes out. Then some blocks at a time are
            # read again, each against its digest: the lock is free while the caller works.
            digests = trail.digest_arrays(reading.connection, stored.number)
        for blocks in schema.split_chunks(sorted(digests)):
            expected = {block: digests[block] for block in blocks}
            with self.store.reading() as reading:
                arrays = trail.read_blocks(reading.connection, stored.number, expected)
                people = accounts.read_people(reading.connection, self.store.salt, blocks)
                barred = trail.find_barred(entry.subject.scope)
            for block in blocks:
                paid, _ = codec.unpack_charges(arrays[block])
                places = block * BLOCK + np.arange(paid.size)
                paid &= withdrawn | ~codec.mark_members(places, barred)
                packed, terms = people[block]
                # Who came after the charge is in the block, and not in its mask.
                ids = codec.unpack_ids(packed, terms.size)[: paid.size]
                yield ids[paid]

    def status(self, analysis_id: str, terms: Any = None, scope: Scope | None = None) -> str:
        """Return "unknown", "reserved" or "committed".

        Terms and scope, which `reserve` explains, are compared before anything private is read, if
        terms are given. Raises `AnalysisError` where it was reserved under other terms, or under
        none.
        """
        check_id(analysis_id)
        subject = self._describe(terms, scope)
        trail = self.store.trail
        with self.store.reading() as reading:
            if analysis_id not in trail.reserved:
                return "unknown"
            if terms is not None:
                _, entry = trail.read_reservation(reading.connection, analysis_id)
                check_terms(analysis_id, entry.subject, subject)
            return "committed" if analysis_id in trail.committed else "reserved"

    def result(self, analysis_id: str) -> Any:
        """Return the result that was committed. Raises `AnalysisError` where there is none."""
        check_id(analysis_id)
        trail = self.store.trail
        with self.store.reading() as reading:
            trail.require(analysis_id)
            if analysis_id not in trail.committed:
                raise AnalysisError(f"analysis {analysis_id!r}: reserved, but not committed")
            return trail.read_result(reading.connection, analysis_id)

    def find_entry(self, analysis_id: str) -> int:
        """Return the number of the entry with the result of an analysis; raise as `result`."""
        check_id(analysis_id)
        with self.store.reading():
            self.store.trail.require(analysis_id)
            number = self.store.trail.committed.get(analysis_id)
            if number is None:
                raise AnalysisError(f"analysis {analysis_id!r}: reserved, but not committed")
            return number

    def spent(self, ids: Any) -> Floats:
        """Return the μ² that each person has spent, (people,). Data about people.

        Raises `DataError` for a person without an account.
        """
        _, spent = self.balances(ids)
        return np.asarray(spent[:, 0] * codec.UNIT)

    def remaining(self, ids: Any) -> Floats:
        """Return the μ² that is left of each person's budget, as `spent`; 0 after a withdrawal."""
        limits, spent = self.balances(ids)
        remaining = limits - spent
        return np.asarray(remaining[:, 0] * codec.UNIT)

    def remaining_slack(self, ids: Any) -> Floats:
        """Return each person's slack that is left. Data about people."""
        limits, spent = self.balances(ids)
        remaining = limits - spent
        return np.asarray(remaining[:, 1] * codec.SLACK_UNIT)

    def balances(self, ids: Any) -> tuple[Integers, Integers]:
        """Return limits and spending, each (people, 2) units of μ² and slack. Data about people."""
        # Those who paid may be nobody.
        ids = codec.normalize_ids(ids, least=0)
        trail = self.store.trail
        with self.store.reading() as reading:
            places = self.store.directory(reading).require_places(ids)
            account = name_account(trail.policy, self.scope, trail.find_time())
            spent, limits = accounts.read_balances(reading.connection, trail.salt, places, account)
        barred = codec.mark_members(places, trail.find_barred(self.scope))
        # Nothing is left to whoever takes no part.
        limits[barred] = spent[barred]
        return limits, spent

    def head(self) -> Head:
        """Return the last entry's number and digest. Keep them elsewhere: see `verify`."""
        with self.store.reading() as reading:
            return reading.tip.head

    @property
    def people(self) -> int:
        """How many people have accounts."""
        with self.store.reading() as reading:
            return reading.tip.people

    @property
    def id_kind(self) -> str | None:
        """The type of the people's ids: "integer", "text", or None while nobody is enrolled."""
        with self.store.reading() as reading:
            return self.store.directory(reading).kind

    def enrolled(self, ids: Any) -> Mask:
        """Return who has an account, did not withdraw and permits this scope. Data about people."""
        enrolled, barred = self._find_people(ids)
        return enrolled & ~barred

    def _find_people(self, ids: object) -> tuple[Mask, Mask]:
        """Return which of these persons have an account, and which of those take no part."""
        ids = codec.normalize_ids(ids, least=0)
        with self.store.reading() as reading:
            directory = self.store.directory(reading)
            # A ledger without people has no kind of ids that these could be unlike.
            places = np.full(ids.size, -1)
            if directory.kind is not None:
                places = directory.find(ids)
            barred = self.store.trail.find_barred(self.scope)
            return places >= 0, codec.mark_members(places, barred)

    def history(self) -> Iterator[Entry]:
        """Yield the entries, oldest first; they hold nothing about a single person."""
        with self.store.reading() as reading:
            # Read to the end within the lock, and told without it.
            entries = list(self.store.trail.read_entries(reading.connection))
        for stored, digest in entries:
            content = stored.content
            analysis = content.find_analysis()
            yield Entry(stored.number, content.kind, stored.at, analysis, digest.hex())

    def account_blocks(self) -> Iterator[tuple[Ids, codec.Terms, Integers]]:
        """Yield everyone's ids, terms and spending in units, some thousands at a time.

        All stand as they are at one moment: until the last is yielded, whoever would write to the
        ledger (on SQLite) or use this object (in another thread) waits.
        """
        trail = self.store.trail
        with self.store.reading() as reading:
            account = name_account(trail.policy, self.scope, trail.find_time())
            blocks = range(-(-reading.tip.people // BLOCK))
            rows = accounts.read_accounts(reading.connection, trail.salt, blocks, [account])
            for _, packed, terms, balances in rows:
                ids = codec.unpack_ids(packed, terms.size)
                yield ids, terms, codec.pad_pairs(balances.get(account), terms.size)

    def publish(self, since: Json | None = None) -> Json:
        """Return the head of the history for everybody to keep; it tells nothing of anybody.

        It has the number of entries, and the roots of two Merkle trees: of all entries, and of
        everyone's account after them. since: a head published before; the result proves that it
        continues that one. Raises `InputError` for one that is not an earlier head of this ledger.
        """
        with self.store.reading() as reading:
            return make_head(self.store, reading, reading.tip.number + 1, since)

    def prove(self, person: int | str, head: Json) -> Json:
        """Return a person's receipt with proofs against a published head. Data about a person.

        Raises `DataError` for a person who had no account then, `InputError` for a foreign head.

        Example:
            >>> import tempfile
            >>> from apiece.ledger import Ledger, check_receipt
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     ledger = Ledger.make(f"{folder}/people.db", ["ann", "bob"], 1.0, 1e-6)
            ...     _ = ledger.reserve("q", ["ann"], norms=1.0, noise_stddev=30.0)
            ...     head = ledger.publish()
            ...     check_receipt(ledger.prove("ann", head), head)
            []
        """
        with self.store.reading() as reading:
            return prove_account(self.store, reading, person, check_head(head))

    def verify(self, head: Head | None = None) -> LedgerVerification:
        """Recompute every digest, and every balance from the history; damage becomes a problem.

        head: one that was kept elsewhere. Nothing else tells a true history from one that was cut
        short or rewritten with all its digests, head file and anchor. Raises `StateError` where
        head file, anchor, this process's memory and `head` contradict each other.
        """
        return self.store.verify(head)

    def export(
        self, path: str | Path, table: str = "accounts", *, analysis_id: str | None = None
    ) -> int:
        """Return how many rows were written to a Parquet file, whole or not at all.

        table: "accounts" (id, epsilon, delta, of μ² and slack the limit and what is spent: data
        about people), "history" (number, kind, at, analysis, digest: nothing about a single
        person), or "paid" (who paid for `analysis_id`: data about people). Only an earlier export
        is replaced.

        Raises `OptionError` for another table, `InputError` for "paid" without an analysis or an
        analysis without it, `AnalysisError` for an unknown one, `DataError` where it cannot be
        written. Whether anybody paid changes no outcome.
        """
        if table not in accounts.TABLES:
            raise unknown("table", table, accounts.TABLES)
        if (table == "paid") != (analysis_id is not None):
            raise InputError(
                f"table = {table!r}: 'paid' needs the name of an analysis, and the other tables "
                "take none; give it, or leave it out"
            )

        # The parts are made while the file is written: no table of all people is in memory.
        parts: Iterable[pa.Table]
        if analysis_id is not None:
            parts = self._tabulate_paid(analysis_id)
        elif table == "accounts":
            parts = accounts.tabulate_accounts(self.account_blocks())
        else:
            parts = [accounts.tabulate_history(self.history())]
        empty = "it has no accounts to export; enroll people first"
        return accounts.write_parquet(parts, path, self.store.files, empty)

    def _tabulate_paid(self, analysis_id: str) -> Iterator[pa.Table]:
        """Yield the ids of those who paid; no rows, and no error, where that is nobody."""
        import pyarrow as pa

        # First a part without rows, by which the file has its column where nobody paid too.
        nobody = np.zeros(0, dtype=np.int64 if self.id_kind == "integer" else np.str_)
        yield pa.table({"id": pa.array(nobody)})
        for ids in self.admitted(analysis_id):
            yield pa.table({"id": pa.array(ids)})

    def _describe(
        self, terms: Any, scope: Scope | None, noise_stddev: float | None = None
    ) -> Subject:
        """Return the subject of a reservation; scope: by default that of `within`."""
        # The history keeps a keyed digest of the terms, and so neither the question nor a way to
        # try one.
        chosen = self.scope if scope is None else normalize_scope(scope)
        return Subject(chosen, digest_terms(self.store.salt, terms), noise_stddev)
