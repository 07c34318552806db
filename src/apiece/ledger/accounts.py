"""Accounts in blocks: opened, changed, read, written, exported; none that is not its digest's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import sqlalchemy as sa

from apiece._files import EXPORT, writing
from apiece._text import rounded_up
from apiece._types import Ids, Integers, Mask
from apiece.errors import BudgetError, DataError, StateError
from apiece.ledger import chain, codec
from apiece.ledger.chain import Entry, Tip
from apiece.ledger.codec import BLOCK, REMEDY, SLACK_UNIT, TERMS, UNIT, Terms, pad_pairs
from apiece.ledger.entries import AmendEntry, EnrollEntry
from apiece.ledger.schema import BALANCE, PEOPLE, SCOPE, read_pages, split_chunks
from apiece.ledger.scopes import NO_POLICY, Policy, compute_pools, is_account
from apiece.numerics.gaussian import gaussian_epsilon_above

if TYPE_CHECKING:
    import pyarrow as pa

# What `write_parquet` can be asked for.
TABLES: Final = ("accounts", "history", "paid")
# Blocks in one of a file's row groups: a quarter of a million people.
GROUP: Final = 64

# One stored block: its number, how many people it has, and its columns.
BlockRow = tuple[int, int, list[bytes]]


class BlockRows(NamedTuple):
    """The rows that hold something of each block, and the name that their digests have for it."""

    table: sa.Table
    name: str
    columns: tuple[str, ...]
    scope: str = ""

    def select(self, blocks: Sequence[int]) -> sa.ColumnElement[bool]:
        """Return SQL for the rows of some blocks."""
        in_blocks = self.table.c.block.in_(blocks)
        if not self.scope:
            return in_blocks
        return sa.and_(self.table.c.scope == self.scope, in_blocks)

    def digest(self, salt: bytes, block: int, size: int, content: Sequence[bytes]) -> bytes:
        """Return the digest of a row."""
        return codec.digest_block(salt, self.name, block, str(size).encode(), *content)

    def check(self, salt: bytes, row: sa.Row[Any]) -> list[bytes]:
        """Return what is stored of a block. Raises `StateError` where it is not its digest's."""
        # The size is under the digest too: it says how many people the bytes are of.
        content = [bytes(getattr(row, column)) for column in self.columns]
        if self.digest(salt, row.block, row.size, content) != bytes(row.digest):
            table = "people" if self.table is PEOPLE else "balances"
            raise StateError(f"ledger: the {table} of block {row.block} are damaged; {REMEDY}")
        return content

    def read(
        self, connection: sa.Connection, salt: bytes, blocks: Sequence[int]
    ) -> Iterator[BlockRow]:
        """Yield number, size and content of blocks, checked."""
        for part in split_chunks(blocks):
            query = sa.select(self.table).where(self.select(part))
            for row in connection.execute(query):
                yield row.block, row.size, self.check(salt, row)

    def write(self, connection: sa.Connection, salt: bytes, rows: Sequence[BlockRow]) -> None:
        """Insert or replace number, size and content of blocks."""
        for part in split_chunks([block for block, *_ in rows]):
            # Blocks are deleted and inserted anew, in SQL that both databases share.
            stale = sa.delete(self.table).where(self.select(part))
            connection.execute(stale)
        values: list[dict[str, Any]] = []
        for block, size, content in rows:
            value: dict[str, Any] = {"scope": self.scope} if self.scope else {}
            value["block"] = block
            value["size"] = size
            value |= zip(self.columns, content, strict=True)
            value["digest"] = self.digest(salt, block, size, content)
            values.append(value)
        if values:
            connection.execute(sa.insert(self.table), values)


PEOPLE_ROWS: Final = BlockRows(PEOPLE, "people", ("ids", "terms"))


def select_balances(scope: str) -> BlockRows:
    """Return the rows of the spending in a scope; "" is that of whole accounts."""
    if not scope:
        return BlockRows(BALANCE, "balance", ("spent",))
    # The scope is in the name that is digested, so that one scope's row cannot stand for another's.
    return BlockRows(SCOPE, f"scope {scope}", ("spent",), scope)


def list_scopes(connection: sa.Connection) -> list[str]:
    """Return the scopes in which anybody was charged, and "" of whole accounts."""
    query = sa.select(SCOPE.c.scope).distinct()
    # Sorted here: databases sort texts in several ways.
    scopes = [str(scope) for scope in connection.execute(query).scalars()]
    return ["", *sorted(scopes)]


def list_account_scopes(connection: sa.Connection) -> list[str]:
    """Return the scopes of a whole account, or of one period's."""
    return [scope for scope in list_scopes(connection) if is_account(scope)]


def yield_ids(connection: sa.Connection, salt: bytes, first_block: int) -> Iterator[Ids]:
    """Yield the ids of the blocks from `first_block` on."""
    rows = sa.select(PEOPLE).where(PEOPLE.c.block >= first_block)
    for row in read_pages(connection, rows, PEOPLE.c.block):
        packed, _ = PEOPLE_ROWS.check(salt, row)
        yield codec.unpack_ids(packed, row.size)


def read_people(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int]
) -> dict[int, tuple[bytes, Terms]]:
    """Return the packed ids and the terms of each block."""
    rows = PEOPLE_ROWS.read(connection, salt, blocks)
    return {block: (ids, np.frombuffer(terms, TERMS)) for block, _, (ids, terms) in rows}


def read_spent(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int], scope: str = ""
) -> dict[int, Integers]:
    """Return what people have spent, (people, 2) units; in a scope of those who were there then."""
    rows = select_balances(scope).read(connection, salt, blocks)
    return {block: codec.unpack_pairs(spent, size) for block, size, (spent,) in rows}


def read_accounts(
    connection: sa.Connection, salt: bytes, blocks: Sequence[int], scopes: Sequence[str] = ("",)
) -> Iterator[tuple[int, bytes, Terms, dict[str, Integers]]]:
    """Yield each block, its packed ids, its terms, and by scope what is spent where anything is."""
    for part in split_chunks(blocks):
        # Some blocks at a time, of all scopes together: a charge needs terms and balances of the
        # same people.
        people = read_people(connection, salt, part)
        spent_of_scopes = {scope: read_spent(connection, salt, part, scope) for scope in scopes}
        for block in part:
            ids, terms = people[block]
            spent = {
                scope: spent_of_blocks[block]
                for scope, spent_of_blocks in spent_of_scopes.items()
                if block in spent_of_blocks
            }
            yield block, ids, terms, spent


def read_balances(
    connection: sa.Connection, salt: bytes, places: Integers, scope: str = ""
) -> tuple[Integers, Integers]:
    """Return what each person has spent and may spend, each (people, 2) units."""
    spent = np.zeros((places.size, 2), np.int64)
    limits = np.zeros((places.size, 2), np.int64)
    parts = dict(codec.group_by_block(places))
    for block, _, terms, balances in read_accounts(connection, salt, list(parts), [scope]):
        part = parts[block]
        rows = places[part] % BLOCK
        # `part` are positions in `places`, `rows` those of the same people in their block.
        spent[part] = pad_pairs(balances.get(scope), terms.size)[rows]
        limits[part] = codec.read_limits(terms)[rows]
    return spent, limits


def write_people(
    connection: sa.Connection, salt: bytes, rows: Sequence[tuple[int, Ids | bytes, Terms]]
) -> None:
    """Insert or replace blocks of people; their ids may be packed already."""
    stored: list[BlockRow] = []
    for block, ids, terms in rows:
        packed = ids if isinstance(ids, bytes) else codec.pack_ids(ids)
        stored.append((block, len(terms), [packed, terms.tobytes()]))
    PEOPLE_ROWS.write(connection, salt, stored)


def write_spent(
    connection: sa.Connection, salt: bytes, rows: list[tuple[int, Integers]], scope: str = ""
) -> None:
    """Insert or replace blocks of balances."""
    stored = [(block, len(spent), [codec.pack_pairs(spent)]) for block, spent in rows]
    select_balances(scope).write(connection, salt, stored)


def amend_accounts(
    connection: sa.Connection,
    salt: bytes,
    tip: Tip,
    ids: Ids,
    places: Integers,
    terms: Terms,
    keep: bool = False,
    lower: list[Integers] | None = None,
    policy: Policy = NO_POLICY,
) -> Tip:
    """Change the terms of people who have accounts; return the last entry after it.

    keep: leave accounts of the same ε and δ as they are, whatever their slack. lower: leave out,
    and note the places of, who has spent more than their new limit; without it that is refused.
    policy: the one that holds, whose sure shares are parts of the new accounts from now on: what
    was taken of the shared pools is found anew.
    """
    parts = dict(codec.group_by_block(places))
    rows: list[tuple[int, Ids | bytes, Terms]] = []
    payloads: list[tuple[int, bytes]] = []
    pools: dict[str, list[tuple[int, Integers]]] = {}
    scopes = list_scopes(connection)
    for block, packed, old_terms, balances in read_accounts(connection, salt, list(parts), scopes):
        part = parts[block]
        # Who of this block changes, as positions in `ids`, and where each stands in the block.
        old_terms_of_part = old_terms[places[part] % BLOCK]
        changed = part[_find_changes(old_terms_of_part, terms[part], keep=keep)]
        if not changed.size:
            continue
        in_block = places[changed] % BLOCK
        spent = _find_most_spent(balances, in_block, old_terms.size)
        # What an account spent of a ρ is no μ² of Gaussians: it cannot become an account of these.
        was_concentrated = codec.find_concentrated(old_terms[in_block])
        loses = was_concentrated & ~codec.find_concentrated(terms[changed]) & spent.any(axis=1)
        # Either nobody may be below what they have spent, and the transaction ends here with
        # nothing changed, or such people keep their terms and are told to the caller.
        if lower is None:
            if loses.any():
                person = ids[changed][loses][0].item()
                raise BudgetError(
                    f"person {person!r}: was promised rho, and has spent some of it; enroll with "
                    "rho again"
                )
            _refuse_lower(ids[changed], terms[changed], spent)
        else:
            is_lower = loses | (codec.read_limits(terms[changed]) < spent).any(axis=1)
            lower.append(places[changed[is_lower]])
            changed = changed[~is_lower]
            in_block = in_block[~is_lower]
        # The block is written whole, its ids as they were packed; the entry has the changed terms
        # alone.
        new_terms = old_terms.copy()
        new_terms[in_block] = terms[changed]
        mask = np.zeros(old_terms.size, dtype=bool)
        mask[in_block] = True
        rows.append((block, packed, new_terms))
        # Mask and terms are in the order of the block, as `Fold.amend_accounts` reads them.
        changes = new_terms[mask].tobytes()
        payloads.append((block, codec.pack_mask(mask, changes)))
        # New limits have other shares, and so other parts of what was charged are beyond them.
        spent_of_pools = compute_pools(policy, codec.read_limits(new_terms), balances)
        for scope, pool_spent in spent_of_pools.items():
            pools.setdefault(scope, []).append((block, pool_spent))
    # Terms that are as before leave no entry.
    if not rows:
        return tip
    # The tables come first: the entry has the digest of the state after it.
    write_people(connection, salt, rows)
    for scope, spent_by_block in pools.items():
        write_spent(connection, salt, spent_by_block, scope)
    # Whoever folds the history finds the pools anew just where the entry says so.
    entry = AmendEntry(pools=bool(policy.sure))
    return chain.append(connection, salt, tip, entry.to_body(), payloads)


def _find_changes(old: Terms, new: Terms, *, keep: bool) -> Mask:
    """Return whose terms change; keep: not those of the same ε and δ."""
    changes = old != new
    if keep:
        same_budget = (old["epsilon"] == new["epsilon"]) & (old["delta"] == new["delta"])
        changes = changes & ~same_budget
    return np.asarray(changes)


def _find_most_spent(balances: dict[str, Integers], in_block: Integers, people: int) -> Integers:
    """Return what some of a block have spent in the account in which they spent the most."""
    # A whole account, or one for each period: a limit must cover the fullest of them.
    spent = [
        pad_pairs(balance, people)[in_block]
        for scope, balance in balances.items()
        if is_account(scope)
    ]
    return np.asarray(np.max(spent, axis=0))


def open_accounts(
    connection: sa.Connection,
    salt: bytes,
    tip: Tip,
    ids: Ids,
    terms: Terms,
) -> Tip:
    """Open accounts for people who have none; return the last entry after it."""
    if not ids.size:
        return tip
    # New people take the places after the last, which may be in a block that others have begun.
    places = tip.people + np.arange(ids.size)
    people: list[tuple[int, Ids | bytes, Terms]] = []
    balances: list[tuple[int, Integers]] = []
    payloads: list[tuple[int, bytes]] = []
    for block, part in codec.group_by_block(places):
        payloads.append((block, codec.pack_enrolled(ids[part], terms[part])))
        block_ids = ids[part]
        block_terms = terms[part]
        spent = codec.make_zero_pairs(part.size)
        # The last block may have room left. It is read, extended and written whole; the entry has
        # those who are new.
        has_people = places[part[0]] % BLOCK != 0
        if has_people:
            ((_, packed, old_terms, old_spent),) = read_accounts(connection, salt, [block])
            old_ids = codec.unpack_ids(packed, old_terms.size)
            block_ids = np.concatenate([old_ids, block_ids])
            block_terms = np.concatenate([old_terms, block_terms])
            # The balance of whole accounts has a row for everybody; balances of scopes stay shorter
            # until the next charge there.
            spent = np.concatenate([old_spent[""], spent])
        people.append((block, block_ids, block_terms))
        balances.append((block, spent))
    # As above: the tables, and then the entry with the digest of their state.
    write_people(connection, salt, people)
    write_spent(connection, salt, balances)
    after = tip._replace(people=tip.people + ids.size)
    return chain.append(connection, salt, after, EnrollEntry().to_body(), payloads)


def _refuse_lower(ids: Ids, terms: Terms, spent: Integers) -> None:
    """Raise `BudgetError` for a limit below what is spent."""
    lower = np.argwhere(codec.read_limits(terms) < spent)
    if not lower.size:
        return
    # The first who has spent more, and whether of μ² (0) or of slack (1).
    row, is_slack = lower[0]
    person = ids[row].item()
    epsilon = terms["epsilon"][row]
    delta = float(terms["delta"][row])
    # An account of a ρ is marked by a slack below 0, and has none.
    slack = max(terms["slack"][row], 0) * SLACK_UNIT
    if codec.find_concentrated(terms)[row]:
        allowed = terms["limit"][row] * UNIT / 2
        needed = rounded_up(spent[row, 0] * UNIT / 2, 6)
        problem = f"rho = {allowed:g} is below what is spent, rho = {needed}"
        remedy = "give at least that"
        if is_slack:
            problem = "rho: some of what is spent has a slack, whose rho is infinite"
            remedy = "keep epsilon and delta"
    elif is_slack:
        spent_slack = spent[row, 1] * SLACK_UNIT
        problem = f"the new slack, {slack:.6g}, is below what is spent, {spent_slack:.6g}"
        remedy = "keep delta, or give a larger one"
    else:
        # s + (1 − s)·G(ε) ≤ δ: the Gaussians may have (δ − s)/(1 − s).
        gaussian_delta = np.array([(delta - slack) / (1 - slack)])
        mu = np.sqrt(spent[row, :1] * UNIT)
        spent_epsilon = gaussian_epsilon_above(mu, gaussian_delta)[0]
        problem = (
            f"epsilon = {epsilon:g} at delta = {delta:g} is below what is spent, "
            f"epsilon = {rounded_up(spent_epsilon, 6)}"
        )
        remedy = "give at least that"
    raise BudgetError(
        f"person {person!r}: {problem}; what was released cannot be taken back: {remedy}"
    )


def write_parquet(
    parts: Iterable[pa.Table], path: str | Path, inputs: Iterable[Path], empty: str = ""
) -> int:
    """Write the rows to a Parquet file as they come; return how many.

    empty: what is wrong where nothing comes. Raises `DataError` then.
    """
    import pyarrow.parquet as pq

    rows = 0
    with writing(path, EXPORT, inputs) as file, ExitStack() as stack:
        writer = None
        for part in parts:
            # The first part decides the columns' types; a later one of other types is an error of
            # the writer's.
            if writer is None:
                schema = part.schema.with_metadata({"apiece": "ledger export"})
                writer = stack.enter_context(pq.ParquetWriter(file, schema))
            writer.write_table(part.replace_schema_metadata(schema.metadata))
            rows += part.num_rows
        if writer is None:
            raise DataError(f"ledger: {empty}")
    return rows


def tabulate_accounts(blocks: Iterable[tuple[Ids, Terms, Integers]]) -> Iterator[pa.Table]:
    """Yield id, ε, δ, of μ² and slack limit and spending, and ρ where it was promised, in parts."""
    import pyarrow as pa

    # One row group of the file for every so many blocks.
    remaining = iter(blocks)
    while group := list(islice(remaining, GROUP)):
        ids, terms, spent = (np.concatenate(column) for column in zip(*group, strict=True))
        yield pa.table(
            {
                "id": pa.array(ids),
                "epsilon": np.ascontiguousarray(terms["epsilon"]),
                "delta": np.ascontiguousarray(terms["delta"]),
                "limit": terms["limit"] * UNIT,
                "spent": spent[:, 0] * UNIT,
                "slack": np.maximum(terms["slack"], 0) * SLACK_UNIT,
                "slack_spent": spent[:, 1] * SLACK_UNIT,
                "rho": pa.array(terms["limit"] * UNIT / 2, mask=~codec.find_concentrated(terms)),
            }
        )


def tabulate_history(entries: Iterable[Entry]) -> pa.Table:
    """Return number, kind, at, analysis and digest of every entry; nothing about one person."""
    import pyarrow as pa

    rows = list(entries)
    names = ("number", "kind", "at", "analysis", "digest")
    return pa.table({name: pa.array([getattr(row, name) for row in rows]) for name in names})
