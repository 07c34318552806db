"""Session: private queries on one table, each charged to the people whose rows it uses."""

from __future__ import annotations

import math
import secrets
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Final, Self

import numpy as np

from apiece import _check
from apiece._text import shown
from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.accounting import gaussian_of_bounded_range, gaussian_of_laplace
from apiece.errors import AnalysisError, ApieceError, InputError, StateError, together
from apiece.filters import Costs
from apiece.filters.convert import gaussian_mu
from apiece.ledger import Ledger
from apiece.ledger.chain import check_new_id
from apiece.ledger.codec import read_id, to_units
from apiece.ledger.codec import terms as account_terms
from apiece.ledger.reports import SHARES, binned, cumulated
from apiece.queries.estimates import FIELDS, estimate
from apiece.queries.grammar import parse
from apiece.queries.mistakes import find_mistakes
from apiece.queries.noise import BITS, Bits, rounded_gaussians, rounded_laplaces
from apiece.queries.quantiles import CONFIDENCE, Grid, Segment, describe_group, draws
from apiece.queries.scan import Question, Registered, Sums, Texts, resolve
from apiece.queries.schema import Schema
from apiece.queries.sources import Log
from apiece.queries.table import nobody, register

CELLS: Final = 2**22  # of an answer, at most: each is a draw of exact noise
NORM: Final = math.sqrt(2)  # a person is in one place of each of two histograms
_SHORT: Final = "^(0|-?[1-9][0-9]{0,17})$"  # of these each fits 64 bits
_PART: Final = 2**20  # ids looked up at a time


@dataclass(frozen=True, slots=True)
class Answer:
    """A released answer: noisy, and charged to whoever is in it.

    Attributes:
        query: Its text.
        analysis_id: The name under which the ledger has charged it.
        groups: One estimate with its interval for each declared group.
        epsilon: ε for the person with the largest possible contribution; others pay less.
        delta: The same for δ.
        noise_multiplier: The noise's standard deviation (of Laplace noise: its scale) over that
            contribution.
        confidence: That of the intervals, which are about the noise alone.
        relation: "add_remove", of all rows of a person.
        guarantee: The promise as a sentence.
        counted: "persons", each once, or "rows".
        rows_per_person: The most rows that a person brings; where persons are counted by group, the
            most groups.

    Example:
        >>> import pandas as pd
        >>> from apiece.queries import Schema, Session
        >>> schema = Schema("id", rows_per_person=1)
        >>> session = Session(pd.DataFrame({"id": range(1000)}), schema)
        >>> answer = session.ask("count()", epsilon=1.0, delta=1e-6)
        >>> answer.counted, 900 < answer.groups[0]["estimate"] < 1100
        ('persons', True)
    """

    query: str
    analysis_id: str
    groups: list[Json]
    epsilon: float
    delta: float
    noise_multiplier: float
    confidence: float
    relation: str
    guarantee: str
    counted: str
    rows_per_person: int

    def to_dict(self) -> Json:
        """Return the answer as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueryCost:
    """The most that a question costs, from public numbers: no row and no account is read.

    Attributes:
        query: Its text.
        epsilon: ε for the person with the largest possible contribution.
        delta: The same for δ.
        mu: μ of the Gaussian that this is charged as; others pay for what their own rows add.
        noise_multiplier: As in `Answer`.
        counted: As in `Answer`.
        rows_per_person: As in `Answer`.

    Example:
        >>> from apiece.queries import Schema, query_cost
        >>> schema = Schema("id", bounds={"age": (0, 100)}, rows_per_person=1)
        >>> cost = query_cost("mean(age)", schema, epsilon=0.3, delta=1e-6)
        >>> cost.times(1.0, 1e-6)
        9
    """

    query: str
    epsilon: float
    delta: float
    mu: float
    noise_multiplier: float
    counted: str
    rows_per_person: int

    def times(self, epsilon: float, delta: float) -> int:
        """Return how many such questions an untouched account surely pays for.

        Args:
            epsilon: Of the account.
            delta: The same; a tenth of it is kept for slack, as by default.

        Raises:
            BudgetError: For what no account can be.
        """
        account = account_terms(np.zeros(1, dtype=np.int64), epsilon, delta)
        return int(account["limit"][0] // to_units(_loss(np.array(self.mu))))


def query_cost(text: str, schema: Schema, *, epsilon: float, delta: float) -> QueryCost:
    """Return what a question costs, before it is asked; no table is read and nobody is charged.

    Args:
        text: The query.
        schema: Of the table.
        epsilon: As for `Session.ask`, and so all errors.
        delta: The same.

    Guarantee:
        Nobody is charged more. It does not say whether somebody can pay: that depends on their
        rows.

    Example:
        >>> from apiece.queries import Schema, query_cost
        >>> schema = Schema("id", bounds={"age": (0, 100)}, rows_per_person=1)
        >>> query_cost("median(age)", schema, epsilon=0.3, delta=0).delta
        0.0
    """
    asked = _Asked.of(text, schema, epsilon, delta, "", "")
    largest = float(asked.question.rows) if asked.question.grid else asked.scale * asked.epsilon
    return QueryCost(
        query=asked.question.query.text,
        epsilon=asked.epsilon,
        delta=asked.delta,
        mu=float(asked.mu(np.array(largest))) if asked.pure else 1 / asked.multiplier,
        noise_multiplier=asked.multiplier,
        **asked.counts,
    )


@dataclass(frozen=True, repr=False)
class Session:
    """Ask private queries of `source`, described by `schema`.

    Args:
        source: A registered `Table` or `SparkTable`, or what `register` takes.
        schema: The one that the table was registered with.
        ledger: Charges each person for their own contribution and answers from those whose budget
            allows it, leaving out who has no account. Without one, each answer is (epsilon,
            delta)-DP by itself and nothing is remembered.
        bits: The noise's randomness, cryptographic by default.
        log: Takes the steward's messages, which speak of rows.

    Raises:
        InputError: For a table that was registered with another schema.
        DataError: As `register`.

    Example:
        >>> import pandas as pd
        >>> from apiece.queries import Schema, Session
        >>> people = pd.DataFrame({"id": range(1000), "age": [20.0, 60.0] * 500})
        >>> session = Session(people, Schema("id", bounds={"age": (0, 100)}, rows_per_person=1))
        >>> answer = session.ask("mean(age)", epsilon=1.0, delta=1e-6)
        >>> 30 < answer.groups[0]["estimate"] < 50
        True
    """

    source: object = field(repr=False)
    schema: Schema
    ledger: Ledger | None = None
    bits: Bits = field(default=secrets.randbits, repr=False)
    log: Log = field(default=nobody, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.source, Registered):
            table = register(self.source, self.schema, log=self.log)
            object.__setattr__(self, "source", table)
        elif self.source.schema != self.schema:
            raise InputError("schema: not the one that the table was registered with; give that")

    @property
    def _table(self) -> Registered:
        assert isinstance(self.source, Registered)
        return self.source

    def ask(
        self, text: str, *, epsilon: float, delta: float, analysis_id: str | None = None
    ) -> Answer:
        """Return the answer to a query (see `grammar`); it costs anyone at most (epsilon, delta).

        Args:
            text: The query.
            epsilon: Positive and finite.
            delta: In [0, 1). With 0 a count, sum or histogram has Laplace noise; otherwise the
                noise is Gaussian. A quantile is drawn by the exponential mechanism and needs none.
            analysis_id: The name under which the ledger charges it, once; by default a new one. It
                stands for its terms: query, schema, epsilon, delta and source. Asked again on the
                same terms, also by several processes at once or after a crash, the answer is the
                one recorded first.

        Raises:
            InputError: For what is not a query, one whose answer would be too large, epsilon or
                delta out of bounds, delta = 0 where the noise is Gaussian, and where the schema
                does not say how many rows a person brings.
            DataError: For a column that is not declared as the query uses it.
            AnalysisError: For an analysis id that stands for other terms; no row is read.

        Guarantee:
            (epsilon, delta)-DP under adding or removing all rows of a person. With a ledger also
            each person's own (ε_i, δ_i) over everything the ledger ever charged, for adaptively
            chosen queries. Sums are of whole grid steps, the noise is an exact Gaussian or Laplace
            deviate rounded to the grid, and the exponential mechanism draws from whole weights, so
            no floating-point effect weakens them. What is raised depends on the terms and those
            that the ledger has for `analysis_id`, on no row, wherever an earlier call was
            interrupted.
        """
        name = str(uuid.uuid4()) if analysis_id is None else analysis_id
        asked = _Asked.of(text, self.schema, epsilon, delta, name, self._table.fingerprint)
        if self.ledger is None:
            return self._answer(asked)
        told = _recorded(self.ledger, name, asked.terms, lambda: self._answer(asked).to_dict())
        # An older entry does not say what the question counts; it does.
        return Answer(**{**asked.counts, **told})

    def _answer(self, asked: _Asked) -> Answer:
        sums, question = self._sums(asked), asked.question
        grid = question.grid
        made = self._estimated(asked, sums) if grid is None else self._drawn(asked, grid, sums)
        return Answer(
            query=question.query.text,
            analysis_id=asked.analysis_id,
            groups=[labels | each for labels, each in zip(question.groups, made, strict=True)],
            epsilon=asked.epsilon,
            delta=asked.delta,
            noise_multiplier=asked.multiplier,
            confidence=CONFIDENCE,
            relation="add_remove",
            guarantee=asked.guarantee(self.ledger),
            **asked.counts,
        )

    def _estimated(self, asked: _Asked, sums: Sums) -> list[Json]:
        """Return each group's estimate from its noisy sums."""
        groups, size, width = shape = asked.question.shape
        drawn = rounded_laplaces if asked.pure else rounded_gaussians
        noise, none = iter(drawn(math.prod(shape), self.bits)), [0] * width
        noisy = [
            [float(value + next(noise)) * asked.grid for value in sums.get(cell, none)]
            for cell in range(groups * size)
        ]
        return [
            estimate(asked.question, values, asked.scale, asked.pure)
            for values in np.array(noisy).reshape(shape)
        ]

    def _drawn(self, asked: _Asked, grid: Grid, sums: Sums) -> list[Json]:
        """Return each group's quantiles, drawn by the exponential mechanism."""
        question = asked.question
        cells = np.array(sorted(sums), dtype=np.int64)
        rows = np.array([sums[cell][0] for cell in cells.tolist()], dtype=np.int64)
        starts = np.arange(len(question.groups) + 1) * question.size
        ends, made = np.searchsorted(cells, starts), []
        for start, (begin, end) in zip(starts, pairwise(ends.tolist()), strict=False):
            part = Segment(cells[begin:end] - start, rows[begin:end], 0, grid.size - 1)
            about = question.query, asked.epsilon, question.rows
            made.append(describe_group(grid, part, *about, self.bits))
        return made

    def _sums(self, asked: _Asked) -> Sums:
        """Charge, and return the sums of each cell over those who paid, in steps of the grid."""
        try:
            with self._table.contributions(asked.question, asked.grid) as held:
                paid = None
                if self.ledger is not None:
                    ids, steps = held.norms(1 if asked.pure else 2)
                    paid = self._paid(self.ledger, asked, ids, steps * asked.grid)
                return held.totals(paid)
        except ApieceError:
            raise
        except Exception as error:  # any of the engine's may quote a row
            self.log(f"query {asked.question.query.text!r}: {type(error).__name__}: {error}")
            raise StateError(
                "query: could not be evaluated; the reason is in the steward's log"
            ) from None

    def _paid(self, ledger: Ledger, asked: _Asked, people: Texts, norms: Floats) -> Mask:
        """Charge everyone with an account who can pay; return who they are."""
        ids, paid = with_account(people, ledger)
        said, size = f"analysis {asked.analysis_id!r}", len(people)
        if not paid.all():
            self.log(f"{said}: {int((~paid).sum())} of {size} people have no account; left out")
        norms, terms = norms[paid], asked.terms
        if asked.pure:
            costs = Costs.fixed(_loss(asked.mu(norms)))
            admitted = ledger.reserve_costs(asked.analysis_id, ids, costs, terms=terms)
        else:
            admitted = ledger.reserve(asked.analysis_id, ids, norms, asked.scale, terms=terms)
        if admitted.size < ids.size:
            self.log(
                f"{said}: {ids.size - admitted.size} of {size} people have no budget left, or "
                "were charged less when it was first asked; left out"
            )
            paid[paid] = np.isin(ids, admitted)
        return paid


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question with its noise and what the ledger holds it to, fixed before a row is read."""

    question: Question
    epsilon: float
    delta: float  # of the promise: 0 of the exponential mechanism, whatever was asked
    analysis_id: str
    terms: Json = field(repr=False)  # what the analysis id stands for
    multiplier: float
    scale: float

    @classmethod
    def of(
        cls, text: str, schema: Schema, epsilon: float, delta: float, name: str, source: str
    ) -> Self:
        """Return a question with its noise, or raise what `Session.ask` does."""
        mistakes = find_mistakes(text, schema, epsilon=epsilon, delta=delta)
        if mistakes:
            raise together(mistakes)
        query = parse(text)
        question = resolve(query, schema, source)
        _require_size(question)
        terms = {**question.terms, "epsilon": epsilon, "delta": delta}
        promised = 0.0 if question.grid else delta
        return cls(question, epsilon, promised, name, terms, *_noise(question, epsilon, promised))

    @property
    def counts(self) -> Json:
        """Return what the answer is of, and how many a person may bring."""
        return {"counted": self.question.counted, "rows_per_person": self.question.rows}

    @property
    def pure(self) -> bool:
        """Whether the promise has no δ: Laplace noise, or the exponential mechanism."""
        return self.delta == 0

    @property
    def grid(self) -> float:
        """Return a step of the sums, in units of the features: whole rows where they are ranked."""
        return 1.0 if self.question.grid else math.ldexp(self.scale, -BITS)

    def mu(self, norms: Floats) -> Floats:
        """Return the μ that a pure answer costs those who add so much."""
        if self.question.grid is None:
            return gaussian_of_laplace(norms / self.scale)
        times = draws(self.question.query)
        one = gaussian_of_bounded_range(norms * (self.epsilon / (self.question.rows * times)))
        return np.asarray(one * math.sqrt(times) * (1 + 2.0**-50))

    def guarantee(self, ledger: Ledger | None) -> str:
        """Return the promise as a sentence."""
        how = f"exact {'Laplace' if self.pure else 'Gaussian'} noise, rounded to a grid"
        if self.question.grid:
            how = "an exact exponential mechanism"
        whose = "this query alone"
        if ledger is not None:
            whose = "and each person's own budget over everything this ledger has charged"
            whose += f". {ledger.policy.protects}" if ledger.policy.version else ""
        return (
            f"({shown(self.epsilon)}, {shown(self.delta)})-DP under adding or removing "
            f"all rows of a person ({how}); {whose}"
        )


def _loss(mu: Floats) -> Floats:
    """Return the μ² that a pure answer is charged."""
    return np.asarray(mu * mu * (1 + 2.0**-40))


def _require_size(question: Question) -> None:
    """Refuse answers that are too large, or whose parts would share a name."""
    query, (groups, size, width) = question.query, question.shape
    if not groups * size * width <= CELLS:
        raise InputError(
            f"query: {groups} groups of {size * width} noisy sums; give at most {CELLS} in all"
        )
    if FIELDS.intersection(query.by) or (
        query.aggregate == "regression" and "intercept" in query.columns
    ):
        raise InputError(
            "query: a column has the name of a part of the answer (such as 'estimate' or "
            "'intercept'); rename the column"
        )


def _noise(question: Question, epsilon: float, delta: float) -> tuple[float, float]:
    """Return the noise multiplier and the noise's scale in units of the features."""
    # Gaussian noise hides what a person adds by its ℓ2 norm, Laplace noise (δ = 0) by its ℓ1 norm.
    # The grid is a fraction of the noise, so the scale solves
    # scale · mu = norm + rounding · grid, with grid = scale · 2^−BITS.
    mu = float(gaussian_mu(epsilon, delta)) if delta else epsilon
    norm, steps = question.sensitivity(2 if delta else 1)
    rounding = math.ldexp(steps, -BITS)
    if not mu > 2 * rounding:
        raise InputError(
            f"epsilon = {epsilon:g}, delta = {delta:g}: too small for the grid of the noise with "
            f"{question.rows} rows per person; give a larger epsilon or fewer rows"
        )
    scale = norm / (mu - rounding) * (1 + 2.0**-40)
    if not scale / norm > 2.0**-20:
        raise InputError(f"epsilon = {epsilon:g}: gives no privacy; give a smaller one")
    return 1 / mu, scale


def _recorded(ledger: Ledger, analysis_id: str, terms: Json, answer: Callable[[], Json]) -> Json:
    """Return the answer in the ledger, which is the first that was ever computed."""
    # The terms are compared before a row is read. Whoever else asks on the same terms meanwhile is
    # answered with what was committed first, and so is the one who committed it.
    status = ledger.status(analysis_id, terms)
    if status == "unknown":
        check_new_id(analysis_id)
    if status != "committed":
        try:
            return dict(ledger.commit(analysis_id, answer()))
        except AnalysisError:  # committed or taken since then
            if ledger.status(analysis_id, terms) != "committed":
                raise
    return dict(ledger.result(analysis_id))


def with_account(ids: Texts, ledger: Ledger) -> tuple[Ids, Mask]:
    """Return the ids as the ledger writes them, and who has an account; nobody's error."""
    # No two texts become one id: where the ledger's ids are whole numbers, "7" is 7, and "07" has
    # no account. The ids returned are those with an account, in the order given.
    kind = ledger.id_kind
    if kind is None:
        return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
    accounts: list[Ids] = []
    masks: list[Mask] = []
    for start in range(0, max(1, len(ids)), _PART):
        part = ids.slice(start, _PART)
        if kind == "integer":
            values, can_be = _integers(part)
        else:
            values, can_be = np.array(part.to_pylist(), dtype=str), np.ones(len(part), dtype=bool)
        known = ledger.enrolled(values)
        can_be[can_be] = known
        accounts.append(values[known])
        masks.append(can_be)
    return np.concatenate(accounts), np.concatenate(masks)


def _integers(ids: Texts) -> tuple[Integers, Mask]:
    """Return those that are whole numbers, written in the one way, and which they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    short = np.asarray(pc.match_substring_regex(ids, _SHORT)).astype(bool)
    values = np.zeros(len(ids), dtype=np.int64)
    values[short] = pc.cast(pc.filter(ids, pa.array(short)), pa.int64())
    can_be = short.copy()
    for place in np.flatnonzero(~short).tolist():
        whole = read_id(ids[place].as_py(), "integer")
        if whole is not None:
            values[place], can_be[place] = whole, True
    return values[can_be], can_be


# Noise on counts of accounts. With more a person is less than one step of the grid of the noise.
_LEAST_NOISE: Final = 1e-3
_MOST_NOISE: Final = 2.0**BITS


def release_standing(
    ledger: Ledger, analysis_id: str, *, noise_stddev: float, bits: Bits = secrets.randbits
) -> Json:
    """Return, with noise, how many accounts have at least each share left; it may be published.

    It counts the accounts that can pay for it, as they stand after they have paid.

    Args:
        ledger: All of its accounts are charged.
        analysis_id: A name that no other analysis has; asked again, the answer is the first one's.
        noise_stddev: On the number of accounts between two shares.
        bits: The noise's randomness, cryptographic by default.

    Returns:
        The shares, and for "queries" and "trainings" the counts (see `ledger.standing`).

    Raises:
        AnalysisError: For a name that stands for another analysis.
        InputError: For noise that is not in [0.001, 2²⁴].

    Guarantee:
        A Gaussian mechanism of sensitivity √2 under adding or removing a person, and charged as
        such: others' accounts depend on a person's rows only through what was released.

    Example:
        >>> import tempfile
        >>> from apiece import Ledger
        >>> from apiece.queries import release_standing
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     ledger = Ledger.make(f"{folder}/p.db", list(range(2000)), 3.0, 1e-6)
        ...     standing = release_standing(ledger, "standing in May", noise_stddev=20.0)
        >>> 1700 < standing["queries"][1] < 2300
        True
    """
    stddev = _check.positive("noise_stddev", noise_stddev)
    if not _LEAST_NOISE <= stddev <= _MOST_NOISE:
        raise InputError(
            f"noise_stddev = {stddev:g}: must be from {_LEAST_NOISE:g} to {_MOST_NOISE:g}; give "
            "the error that counts of accounts may have"
        )
    terms = {"standing": list(SHARES), "noise_stddev": stddev}

    def counted() -> Json:
        ledger.reserve_everyone(analysis_id, NORM, stddev, terms=terms)
        bins: Integers = np.zeros((2, len(SHARES) + 1), dtype=np.int64)
        for ids in ledger.admitted(analysis_id):
            bins += binned(*ledger.balances(ids))
        grid = math.ldexp(stddev, -BITS)
        one = math.floor(1 / grid)  # whole steps of the grid that a person adds, at most 1 in all
        drawn = rounded_gaussians(bins.size, bits)
        steps = zip((bins * one).ravel().tolist(), drawn, strict=True)
        noisy = np.array([(count + noise) * grid for count, noise in steps]).reshape(bins.shape)
        return {"shares": list(SHARES), "noise_stddev": stddev} | {
            kind: [round(count) for count in each] for kind, each in cumulated(noisy).items()
        }

    return _recorded(ledger, analysis_id, terms, counted)
