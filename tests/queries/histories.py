"""Random histories of questions on two neighbouring tables, and what an asker sees of each.

One table lacks the rows of one person, `VICTIM`; everything else is the same: accounts, questions,
interruptions, failures of the storage. The noise of the table with the person is that of the other
less what the person was allowed to add, so that the noisy sums of an honest history are equal to
the bit, and so is everything that is seen. What that takes off the noise is what the person has to
have been charged for, once for each draw that was seen.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sqlalchemy import event

from apiece.datasets import Categorical, Lookup, Numeric, Schema
from apiece.errors import ApieceError
from apiece.ledger import Ledger
from apiece.queries import Session, declarations, register, session
from apiece.queries.noise import BITS
from apiece.queries.question import Question
from apiece.queries.table import Table

VICTIM = "v"
OTHERS = tuple(f"p{i}" for i in range(8))
STRANGERS = ("n0", "n1")  # in the table, without an account at first
NAMES = ("a", "b")
QUESTIONS = (
    "count()",
    "count() where not (id = 'v' and dx = 'HIV')",
    "count() where id = 'v'",
    "count() where id in ('n0', 'p1')",
    "sum(x)",
    "sum(x) by dx",
    "histogram(x, 20) by dx",
    "mean(x) where dx = 'HIV'",
    "sum(big)",
)
# In SQL: what overflows, divides by zero and is cast; public tables that match all rows but the
# person's, or nobody's; several statistics of one answer.
SELECTS = (
    "SELECT count(*) FROM t WHERE 1 / (CASE WHEN dx = 'HIV' THEN 0 ELSE x + 1 END) IS NULL",
    "SELECT sum(clamp(x / (x - x), 0, 5)), count(x / (x - 8)) FROM t",
    "SELECT sum(clamp(big * big, 0, 3)), count(*) FROM t",
    "SELECT avg(clamp(CAST(dx AS DOUBLE), 0, 1)), stddev(x) FROM t",
    "SELECT sum(clamp(CAST(id AS DOUBLE), 0, 1)) FROM t WHERE CAST(dx AS DOUBLE) IS NULL",
    "SELECT floor(x / 4) AS band, count(*), sum(x) FROM t GROUP BY band",
    "SELECT kind, count(*), avg(dose) FROM t JOIN drugs USING (dx) GROUP BY kind",
    "SELECT sum(dose * x) FROM t LEFT JOIN drugs d ON t.dx = d.dx WHERE d.dx IS NULL OR x > 2",
    "SELECT sum(depth), count(*) FROM t JOIN nobody USING (dx)",
    "SELECT count(*) FROM t LEFT JOIN nobody USING (dx) WHERE depth IS NULL",
    "SELECT avg(CASE WHEN dx = 'HIV' THEN clamp(ln(x - 9), -5, 5) ELSE x END) FROM t",
)
# Where a call of a function is a place at which a history can be cut; not where functions are
# called as often as there are blocks of contributors: how long things take is not hidden.
FILES = (
    "session.py",
    "ledger.py",
    "store.py",
    "estimates.py",
    "chain.py",
    "database.py",
)
PASSED_OVER = ("arrays", "discard_message", "_estimate_total")


class Killed(BaseException):
    """The process is gone: what it held is lost, and the next question comes from another."""


@dataclass(frozen=True)
class Ask:
    """A question under a name; `fault` is what befalls it."""

    name: str
    query: str
    epsilon: float
    rows: int
    version: int
    fault: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Enroll:
    who: tuple[str, ...]
    epsilon: tuple[float, ...]


@dataclass(frozen=True)
class Train:
    """A step that a training charges, on public norms; cut before its commit or not."""

    name: str
    cut: bool


Step = Ask | Enroll | Train


def history(rng: random.Random, questions: tuple[str, ...] = QUESTIONS) -> list[Step]:
    """Return some steps; many ask again what was asked, or something else under its name."""
    budgets = [0.02, 0.2, 2.0]
    late = rng.random() < 0.4
    who = OTHERS if late else (*OTHERS, VICTIM)
    steps: list[Step] = [Enroll(who, tuple(rng.choice(budgets) for _ in who))]
    asked: list[Ask] = []
    for _ in range(rng.randint(2, 6)):
        kind = rng.random()
        if kind < 0.2:
            who = (VICTIM if late else rng.choice([*STRANGERS, VICTIM, "p0"]),)
            steps.append(Enroll(who, (rng.choice([2.0, 4.0]),)))
        elif kind < 0.27:
            steps.append(Train(rng.choice(NAMES), rng.random() < 0.7))
        else:
            question = _question(rng, questions)
            if asked and rng.random() < 0.65:
                question = rng.choice(asked)
            step = Ask(*question_of(question), _fault(rng, 0.6))
            steps.append(step)
            asked.append(step)
    # everything that was asked is asked once more, and left alone
    return [*steps, *(Ask(*question_of(each)) for each in asked[-3:])]


def question_of(ask: Ask) -> tuple[str, str, float, int, int]:
    return ask.name, ask.query, ask.epsilon, ask.rows, ask.version


def _question(rng: random.Random, questions: tuple[str, ...]) -> Ask:
    rare = rng.random()
    return Ask(
        rng.choice(NAMES),
        rng.choice(questions),
        0.05 if rng.random() < 0.8 else 0.1,
        2 if rare < 0.1 else 1,
        1 if rare > 0.9 else 0,
    )


def _fault(rng: random.Random, chance: float) -> tuple[Any, ...]:
    if rng.random() >= chance:
        return ()
    kind = rng.choice(["interrupt", "interrupt", "kill", "disk", "overtaken"])
    if kind == "disk":
        return (kind, rng.randrange(2), rng.random() < 0.5)
    if kind == "overtaken":
        return (kind, rng.choice(["find_accounts", "draw_rounded_gaussians"]), rng.random() < 0.6)
    return (kind, rng.randrange(112))


@cache
def schema_of(rows: int, largest: float) -> Schema:
    columns = {
        "x": Numeric(0, 10), "big": Numeric(0, largest), "dx": Categorical(["flu", "HIV"]),
    }  # fmt: skip
    drugs = {"dx": ["flu", "pox"], "dose": [2.0, 5.0], "kind": ["a", "b"]}
    nobody = {"dx": ["cholera"], "depth": [3.0]}
    lookups = {"drugs": Lookup(drugs, "dx"), "nobody": Lookup(nobody, "dx")}
    return Schema(columns, person="id", rows_per_person=rows, lookups=lookups)


@cache
def table_of(rows: int, version: int, victim: bool, largest: float) -> Table:
    who = [*OTHERS, *STRANGERS, *OTHERS[:3], VICTIM, VICTIM]
    frame = pd.DataFrame({"id": who, "x": [float(i % 9 + version) for i in range(len(who))]})
    frame["big"], frame["dx"] = frame["x"] * 1e306, "flu"
    frame.loc[frame["id"] == VICTIM, "dx"] = "HIV"
    return register(frame[(frame["id"] != VICTIM) | victim], schema_of(rows, largest))


@dataclass
class World:
    """One of the two tables with its ledger, and what was seen of it."""

    url: str
    victim: bool
    seed: int
    seen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    # Of the answer that is being made: what the person adds to each statistic's sums.
    shifts: list[list[int]] = field(default_factory=list)
    # Whether noise of that answer was drawn.
    is_drawn: bool = False
    draws: list[float] = field(default_factory=list)  # of the present step: what each answer tells
    drawn: int = 0  # how often noise was drawn in the present step
    most: dict[str, float] = field(default_factory=dict)  # by name: what one answer tells
    answers: dict[str, set[str]] = field(default_factory=dict)
    told: float = 0.0  # by errors that came after a draw
    step: int = 0

    def __post_init__(self) -> None:
        self.ledger = self.opened()

    @property
    def on_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    def opened(self) -> Ledger:
        """Return the ledger as another process has it; nothing is waited for to be on the disk."""
        ledger = Ledger.open(self.url)
        if self.on_sqlite:
            event.listen(ledger.engine, "connect", _unsynchronised)
        return ledger

    def noise(self, count: int, _bits: object = None) -> list[int]:
        """Return the same noise in both worlds, less what the person adds to these sums."""
        drawn = random.Random(f"{self.seed} {self.step} {self.drawn}")
        self.drawn += 1
        shift = self.shifts.pop(0)
        if not self.is_drawn:
            self.draws.append(0.0)
        self.is_drawn = True
        # The statistics of an answer add up.
        self.draws[-1] += sum(s * s for s in shift) / 4.0**BITS
        return [round(drawn.gauss(0, 1) * 2**BITS) - s for s in shift[:count]]

    def take(self, number: int, step: Step) -> None:
        self.step, self.draws, self.drawn = number, [], 0
        match step:
            case Enroll(who, epsilon):
                self.seen.append(self._said(lambda: self.ledger.enroll(who, epsilon, 1e-6)))
            case Train(name, cut):
                self.seen.append(self._said(lambda: self._train(name, cut)))
            case Ask():
                self._ask(step)

    def _train(self, name: str, cut: bool) -> None:
        self.ledger.reserve(name, list(OTHERS), 0.01, 10.0, terms={"training": 1})
        if not cut:
            self.ledger.commit(name, "trained")

    def _ask(self, ask: Ask) -> None:
        with injected(self, ask):
            said = self._said(lambda: self._answer(ask, self.ledger))
        self.seen.append(said)
        if ask.fault[:1] == ("kill",):
            self.ledger = self.opened()
        for cost in self.draws:
            self.most[ask.name] = max(cost, self.most.get(ask.name, 0.0))
        injected_error = ask.fault and said.split(":")[0] in ("interrupted", "StateError")
        if not said.startswith("answer") and not injected_error:
            self.told += sum(self.draws)

    def _answer(self, ask: Ask, ledger: Ledger) -> str:
        self.shifts, self.is_drawn = [], False
        largest = declarations.LARGEST
        table = table_of(ask.rows, ask.version, self.victim, largest)
        source = Watched(self, table)
        asking = Session(source, schema_of(ask.rows, largest), ledger)
        found = asking.ask(ask.query, epsilon=ask.epsilon, delta=1e-6, analysis_id=ask.name)
        if (found.query, found.epsilon) != (ask.query, ask.epsilon):
            self.wrong.append(f"{ask.query!r} is answered with {found.query!r}")
        said = json.dumps(found.to_dict(), sort_keys=True)
        self.answers.setdefault(ask.name, set()).add(said)
        return said

    def _said(self, call: Callable[[], Any]) -> str:
        try:
            with np.errstate(all="ignore"):
                return f"answer: {call()}"
        except (KeyboardInterrupt, Killed):
            return "interrupted"
        except ApieceError as error:
            return f"{type(error).__name__}: {error}".replace(self.url, "URL")

    def problems(self) -> list[str]:
        """Return where the history told more than was charged, or was not one answer a name."""
        found = list(self.wrong)
        found += [f"{k}: {len(v)} answers" for k, v in self.answers.items() if len(v) > 1]
        told = self.told + sum(self.most.get(name, 0.0) for name in self.answers)
        enrolled = bool(self.ledger.enrolled([VICTIM])[0])
        charged = float(self.ledger.spent([VICTIM])[0]) if enrolled else 0.0
        if not told <= charged * (1 + 1e-9):
            found.append(f"{told:g} told, {charged:g} charged")
        return found


def _unsynchronised(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA synchronous = OFF")


@dataclass
class Watched:
    """A registered table that notes what the person adds to each sum."""

    world: World
    table: Table

    def __post_init__(self) -> None:
        self.declarations, self.fingerprint = self.table.declarations, self.table.fingerprint

    @contextmanager
    def contributions(self, question: Question, grid: float) -> Iterator[Any]:
        key = self.fingerprint, repr(question.query), grid
        if key not in _scanned:
            _scanned[key] = Scanned(self.table, question, grid)
        yield Held(self.world, _scanned[key])


@dataclass
class Held:
    """Contributions of which the person's share is noted."""

    world: World
    scanned: Scanned

    def norms(self, power: int) -> Any:
        assert power == 2
        return self.scanned.norms

    def totals(self, paid: Any) -> dict[int, list[int]]:
        total = self.scanned.totals(paid)
        without = self.scanned.totals(paid & (self.scanned.ids != VICTIM))
        none = [0] * self.scanned.width
        self.world.shifts.append(
            [
                a - b
                for cell in range(self.scanned.cells)
                for a, b in zip(total.get(cell, none), without.get(cell, none), strict=True)
            ]
        )
        return total


class Scanned:
    """What a scan found, which is a function of table, query and grid: many histories ask it."""

    def __init__(self, table: Table, question: Question, grid: float) -> None:
        self._given = table, question, grid
        self.asked = question
        groups, size, self.width = question.shape
        self.cells = groups * size
        with table.contributions(question, grid) as held:
            self.norms = held.norms(2)
        self.ids = np.array(self.norms[0].to_pylist(), dtype=object)
        self._totals: dict[bytes, dict[int, list[int]]] = {}

    def totals(self, paid: Any) -> dict[int, list[int]]:
        if paid.tobytes() not in self._totals:
            table, *asked = self._given
            with table.contributions(*asked) as held:
                held.norms(2)
                self._totals[paid.tobytes()] = held.totals(paid)
        return self._totals[paid.tobytes()]


_scanned: dict[tuple[str, str, float], Scanned] = {}


@contextmanager
def injected(world: World, ask: Ask) -> Iterator[None]:
    """Ask with this world's noise, and let what is to befall the question befall it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "draw_rounded_gaussians", world.noise)
        match ask.fault:
            case ("interrupt" | "kill" as how, at):
                error = KeyboardInterrupt if how == "interrupt" else Killed
                with cut(at, error):
                    yield
                return
            case ("disk", at, arrives) if world.on_sqlite:
                dialect = world.ledger.engine.dialect
                patched.setattr(dialect, "do_commit", _failing(at, arrives))
            case ("overtaken", where, same):
                other = ask if same else Ask(ask.name, "count() where dx = 'flu'", 0.05, 1, 0)
                patched.setattr(session, where, _overtaken(world, where, other))
        yield


@contextmanager
def cut(at: int, error: type[BaseException]) -> Iterator[None]:
    """Raise an error as the `at`-th function is called in `FILES`."""
    left = [at]

    def trace(frame: Any, event: str, _argument: object) -> None:
        code = frame.f_code
        if event != "call" or code.co_name[0] == "<" or code.co_name in PASSED_OVER:
            return
        if "/apiece/" not in code.co_filename or not code.co_filename.endswith(FILES):
            return
        left[0] -= 1
        if left[0] < 0:
            sys.settrace(None)
            raise error

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _failing(at: int, arrives: bool) -> Callable[[Any], None]:
    """Return a commit that fails the `at`-th time that something was written."""
    left = [at]

    def commit(connection: Any) -> None:
        wrote = connection.in_transaction and connection.total_changes > 0
        left[0] -= wrote
        if wrote and left[0] < 0:
            left[0] = 1 << 30
            if arrives:
                connection.commit()
            raise sqlite3.OperationalError("disk I/O error")
        connection.commit()

    return commit


def _overtaken(world: World, where: str, other: Ask) -> Callable[..., Any]:
    """Return what stands at `where`: the first call is overtaken by another process's question."""
    real, once = getattr(session, where), [True]

    def overtaken(*given: Any) -> Any:
        if once.pop() if once else False:
            held = world.shifts, world.is_drawn
            world.seen.append(world._said(lambda: world._answer(other, world.opened())))
            world.shifts, world.is_drawn = held
        return real(*given)

    return overtaken


def problems(
    seed: int,
    folder: Path | None,
    urls: tuple[str, ...] = (),
    questions: tuple[str, ...] = QUESTIONS,
) -> list[str]:
    """Return how the law fails over one random history; its ledgers are in `folder`, or `urls`."""
    steps = history(random.Random(seed), questions)
    urls = urls or tuple(f"sqlite:///{folder}/{seed}-{k}.db" for k in range(2))
    worlds = [World(url, victim, seed) for url, victim in zip(urls, (False, True), strict=True)]
    found: list[str] = []
    for number, step in enumerate(steps):
        for world in worlds:
            world.take(number, step)
        without, with_ = (world.seen[-2:] for world in worlds)
        if worlds[0].seen != worlds[1].seen:
            return [f"seed {seed}, {step}: {without} without the person, {with_} with them"]
    for world in worlds:
        found += [f"seed {seed}: {problem}" for problem in world.problems()]
    assert worlds[1].ledger.verify().ok
    spent = [world.ledger.spent(list(OTHERS)).tolist() for world in worlds]
    if spent[0] != spent[1]:
        found.append(f"seed {seed}: another's charge")
    return found
