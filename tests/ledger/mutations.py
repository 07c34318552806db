"""A ledger with a known truth, every way to edit it by hand, and what no edit may buy.

The editor can write any cell of any row, but does not rewrite the whole chain of digests.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from apiece.errors import ApieceError
from apiece.filters import Costs
from apiece.ledger import Ledger, codec, schema
from apiece.ledger.chain import Head

PEOPLE = codec.BLOCK + 4  # two blocks
IDS = np.arange(100, 100 + PEOPLE)
ASKED = np.array([100, 101, 102, 4197, 4198])  # of both blocks
POOR = 101
TABLES = (
    schema.META, schema.HEAD, schema.ENTRY, schema.PAYLOAD, schema.PEOPLE, schema.BALANCE,
)  # fmt: skip
Rows = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Truth:
    """What a ledger of `build` says while nobody has touched it."""

    admitted: list[int]
    spent: list[float]
    remaining: list[float]
    slack: list[float]
    head: Head


def build(url: str) -> Truth:
    """Make a ledger with analyses reserved and committed, and one who could not pay."""
    ledger = Ledger.open(url)
    ledger.enroll(IDS, np.where(IDS == POOR, 0.05, 1.0), 1e-6)
    ledger.reserve("answered", ASKED, [1.0, 0.1, 1.0, 1.0, 0.5], 12.0)
    ledger.commit("answered", {"mean": 41})
    ledger.enroll([102, 4198], 0.9, 1e-6)
    ledger.reserve_costs("trained", ASKED, Costs.fixed(np.full(ASKED.size, 1e-3), 3e-8))
    admitted = ledger.reserve("waiting", ASKED, 1.0, 10.0)
    assert POOR not in admitted
    assert admitted.size == 4
    return Truth(
        admitted.tolist(),
        ledger.spent(ASKED).tolist(),
        ledger.remaining(ASKED).tolist(),
        ledger.remaining_slack(ASKED).tolist(),
        ledger.head(),
    )


def dump(engine: sa.Engine) -> Rows:
    with engine.connect() as connection:
        return {
            t.name: [
                dict(r._mapping)
                for r in connection.execute(sa.select(t).order_by(*t.primary_key.columns))
            ]
            for t in TABLES
        }


def restore(engine: sa.Engine, rows: Rows) -> None:
    with engine.execution_options(apiece_writes=True).begin() as connection:
        for table in TABLES:
            connection.execute(sa.delete(table))
            connection.execute(sa.insert(table), rows[table.name])


@dataclass(frozen=True)
class Edit:
    """One row changed (`after`), taken away (None), or added (`before` is None)."""

    table: sa.Table
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    name: str

    def apply(self, engine: sa.Engine) -> bool:
        """Make it; return whether the database let it be made."""
        t = self.table
        try:
            with engine.execution_options(apiece_writes=True).begin() as connection:
                if self.before is not None:
                    where = [t.c[k] == self.before[k] for k in t.primary_key.columns.keys()]  # noqa: SIM118
                    connection.execute(sa.delete(t).where(*where))
                if self.after is not None:
                    words = ", ".join(self.after)
                    marks = ", ".join(f":{k}" for k in self.after)
                    # Not through the table's types: SQLite takes text where a number belongs.
                    connection.execute(
                        sa.text(f"INSERT INTO {t.name} ({words}) VALUES ({marks})"), self.after
                    )
        except sa.exc.DBAPIError:
            return False
        return True


def edits(rows: Rows, seed: int = 0) -> Iterator[Edit]:
    """Yield every edit: each column of each row of each table, in each way that fits its type."""
    rng = np.random.default_rng(seed)
    for table in TABLES:
        name, own = table.name, rows[table.name]
        keys = [c.name for c in table.primary_key.columns]
        for at, row in enumerate(own):
            label = f"{name}{[row[k] for k in keys]}"
            yield Edit(table, row, None, f"{label} deleted")
            for column in row:
                others = [r[column] for r in own[:at] + own[at + 1 :]]
                for how, value in _values(table, row, column, others, rng):
                    if value != row[column]:
                        yield Edit(table, row, {**row, column: value}, f"{label}.{column} {how}")
            for key in keys[-1:]:
                if isinstance(row[key], int):
                    for shift in (-1000, 1, 1000):
                        more = {**row, key: row[key] + shift}
                        yield Edit(table, None, more, f"{label} again as {more[key]}")


def _values(
    table: sa.Table, row: dict[str, Any], column: str, others: list[Any], rng: Any
) -> Iterator[tuple[str, Any]]:
    value = row[column]
    for k, other in enumerate(others[:3]):
        yield f"as in another row ({k})", other
    match value:
        case int():
            yield from ((f"= {v}", v) for v in (value - 1, value + 1, -1, 0, 2**40, "x", None, 0.5))
        case str():
            yield from (("emptied", ""), ("= {}", "{}"), ("= null", "null"), ("= []", "[]"))
            for place in (0, len(value) // 2, len(value) - 1):
                yield (
                    f"flipped at {place}",
                    value[:place] + chr(ord(value[place]) ^ 1) + value[place + 1 :],
                )
            yield from ((f"= {v}", v) for v in ("1", "2", "99", "ff" * 32, 7))
            yield from _bodies(value)
        case bytes():
            yield from _blobs(value, rng)
            if table is schema.PAYLOAD:
                yield from _payloads(value)


def _bodies(text: str) -> Iterator[tuple[str, str]]:
    """Entries that are well formed, and say something else."""
    try:
        body = json.loads(text)
    except ValueError:
        return
    if not isinstance(body, dict):
        return
    for key, value in body.items():
        changed: list[Any] = [None, 0, 1.5, "x", {}, "renyi", "reserve", "commit", "waiting"]
        if isinstance(value, int):
            changed += [value + 1, value - 1]
        for new in changed:
            yield f"{key} = {new!r}", json.dumps({**body, key: new}, sort_keys=True)
        yield f"without {key}", json.dumps({k: v for k, v in body.items() if k != key})
    yield "smaller units", json.dumps({**body, "units": [2.0**-60, 2.0**-80]})
    yield "migrated", json.dumps({**body, "migrated": {"people": 10**6, "order": 2.0}})


def _blobs(value: bytes, rng: Any) -> Iterator[tuple[str, bytes]]:
    yield from (("emptied", b""), ("zeroed", bytes(len(value))), ("doubled", value + value))
    yield from (("cut", value[:-1]), ("grown", value + b"\0"), ("noise", rng.bytes(len(value))))
    for place in (0, len(value) // 2, len(value) - 1):
        if value:
            flipped = bytes([value[place] ^ 1])
            yield f"flipped at {place}", value[:place] + flipped + value[place + 1 :]


def _payloads(value: bytes) -> Iterator[tuple[str, bytes]]:
    """Well-formed records of who was charged: everyone, nobody, at no cost."""
    try:
        mask, charges = codec.unpack_charges(value)
    except codec.DAMAGE:
        return
    everyone = np.ones_like(mask)
    yield "everyone, free", codec.pack_charges(everyone, np.zeros((mask.size, 2), "<i8"))
    yield "nobody", codec.pack_charges(~everyone, np.zeros((0, 2), "<i8"))
    yield "the same, free", codec.pack_charges(mask, np.zeros_like(charges))
    yield "the same, with slack", codec.pack_charges(mask, charges + np.array([0, 1]))
    wider = mask.copy()
    wider[:5] = True
    yield "the poor too", codec.pack_charges(wider, np.full((int(wider.sum()), 2), 7, "<i8"))


def probe(ledgers: dict[str, Ledger], truth: Truth) -> list[str]:
    """Return what an edited ledger gave away: wrong answers, free admissions, raw errors.

    ledgers: the same one, opened before the edit and after it; each question is put to both.
    """
    left = np.array(truth.remaining)
    norms = np.sqrt(np.maximum(left - 2.0**-40, 0.0))  # all that is left, to the last unit or so
    richer = np.where(np.arange(left.size) == 0, 2 * norms, norms)  # the first cannot pay this
    able = ASKED[1:].tolist()
    total = np.array(truth.spent) + norms**2 * (1 - 2.0**-40)
    checks: list[tuple[str, Callable[[Ledger], Any], Callable[[Any], bool]]] = [
        ("result", lambda x: x.result("answered"), lambda got: got == {"mean": 41}),
        ("status", lambda x: x.status("answered"), lambda got: got == "committed"),
        ("status 2", lambda x: x.status("waiting"), lambda got: got == "reserved"),
        ("spent", lambda x: x.spent(ASKED).tolist(), lambda got: got == truth.spent),
        ("remaining", lambda x: x.remaining(ASKED).tolist(), lambda got: got == truth.remaining),
        ("slack", lambda x: x.remaining_slack(ASKED).tolist(), lambda got: got == truth.slack),
        ("told", lambda x: x.reserve_costs("told", ASKED, Costs.fixed(
            np.zeros(ASKED.size), truth.slack[0] * 1.01)).tolist(), lambda got: set(got) <= {POOR}),
        ("commit", lambda x: x.commit("answered", 7), lambda got: got == {"mean": 41}),
        ("again", lambda x: x.reserve("answered", ASKED, 1.0, 10.0), lambda _: False),
        ("again 2", lambda x: x.reserve(
            "answered", ASKED, [1.0, 0.1, 1.0, 1.0, 0.5], 12.0), lambda _: False),
        ("replay", lambda x: x.reserve("waiting", ASKED, 1.0, 10.0).tolist(),
         lambda got: got == truth.admitted),
        ("new", lambda x: x.reserve("new", ASKED, richer, 1.0).tolist(),
         lambda got: set(got) <= set(able)),
        ("more", lambda x: x.reserve("more", ASKED, 0.01, 1.0).tolist(),
         lambda got: set(got) <= {100}),
        ("charged", lambda x: (x.status("new"), x.spent(ASKED).tolist()),
         lambda got: got[0] == "unknown" or (np.array(got[1])[1:] >= total[1:]).all()),
    ]  # fmt: skip
    given_away = []
    for (name, call, good), (which, ledger) in itertools.product(checks, ledgers.items()):
        try:
            got = call(ledger)
        except ApieceError:
            continue
        except Exception as error:
            given_away.append(f"{which} {name}: raw {type(error).__name__}: {error}")
            continue
        if not good(got):
            given_away.append(f"{which} {name}: {str(got)[:80]}")
    return given_away


def missed(ledger: Ledger) -> list[str]:
    """Return what `verify` should have found and did not."""
    try:
        return [] if ledger.verify().problems else ["verify: no problem found"]
    except ApieceError:
        return []
    except Exception as error:
        return [f"verify: raw {type(error).__name__}: {error}"]
