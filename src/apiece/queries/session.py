"""Session: private queries on one table, each charged to the people whose rows it uses."""

from __future__ import annotations

import math
import secrets
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from apiece import _check
from apiece._types import Json, Mask
from apiece.accounting import gaussian_of_laplace
from apiece.errors import AnalysisError, ApieceError, InputError, StateError
from apiece.filters import Costs
from apiece.filters.convert import gaussian_mu
from apiece.ledger import Ledger
from apiece.queries.estimates import FIELDS, estimate
from apiece.queries.features import Features, features
from apiece.queries.grammar import Query, parse
from apiece.queries.noise import BITS, Bits, rounded_gaussians, rounded_laplaces
from apiece.queries.people import with_account
from apiece.queries.scan import Registered
from apiece.queries.schema import Schema
from apiece.queries.sources import Log
from apiece.queries.table import nobody, register

CONFIDENCE = 0.95
PURE = ("count", "sum", "histogram")  # a row adds to one sum alone
CELLS = 2**22  # of an answer, at most: each is a draw of exact noise


@dataclass(frozen=True, slots=True)
class Answer:
    """A released answer: noisy, and charged to whoever is in it.

    Attributes:
        query: Its text.
        analysis_id: Under which the ledger has charged it.
        groups: One estimate with its interval a declared group.
        epsilon: What the query costs the person with the largest possible contribution, under
            adding or removing all of a person's rows; most people are charged less.
        delta: The same.
        noise_multiplier: The noise's standard deviation (of Laplace noise: its scale) over that
            contribution.
        confidence: Of the intervals, which are about the noise alone.
        relation: "add_remove".
        guarantee: The promise as a sentence.

    Example:
        >>> import pandas as pd
        >>> people = pd.DataFrame({"id": range(1000), "age": [20.0, 60.0] * 500})
        >>> session = Session(people, Schema("id", bounds={"age": (0, 100)}))
        >>> answer = session.ask("count()", epsilon=1.0, delta=1e-6)
        >>> answer.relation, 900 < answer.groups[0]["estimate"] < 1100
        ('add_remove', True)
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

    def to_dict(self) -> Json:
        """Return the answer as JSON values."""
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Session:
    """Ask private queries of `source`, described by `schema`.

    Args:
        source: A registered `Table` or `SparkTable`, or what `register` takes; that is registered
            when the session is made.
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
        >>> people = pd.DataFrame({"id": range(1000), "age": [20.0, 60.0] * 500})
        >>> session = Session(people, Schema("id", bounds={"age": (0, 100)}))
        >>> answer = session.ask("mean(age)", epsilon=1.0, delta=1e-6)
        >>> 30 < answer.groups[0]["estimate"] < 50
        True
    """

    source: Any = field(repr=False)
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

    def ask(
        self, text: str, *, epsilon: float, delta: float, analysis_id: str | None = None
    ) -> Answer:
        """Answer one query (see `grammar`) at a cost of at most (epsilon, delta) to anyone.

        Args:
            text: The query.
            epsilon: Positive and finite.
            delta: In [0, 1). With 0 a count, sum or histogram has Laplace noise; otherwise the
                noise is Gaussian.
            analysis_id: The name under which the ledger charges it, once. It stands for its terms:
                query, schema, epsilon, delta and source. Asked again on the same terms, also by
                several processes at once or after a crash, the answer is the one that was recorded
                first. A new id by default.

        Returns:
            The answer, which may be published.

        Raises:
            InputError: For what is not a query, and one whose answer would be too large.
            DataError: For a column that is not declared as the query uses it.
            AnalysisError: For an analysis id that stands for other terms; no row is read.

        Guarantee:
            (epsilon, delta)-DP under adding or removing all rows of a person. With a ledger also
            each person's own (ε_i, δ_i) over everything the ledger ever charged, for adaptively
            chosen queries. Sums are of whole grid steps and the noise is an exact Gaussian or
            Laplace deviate rounded to the grid, so no floating-point effect weakens either. What is
            raised depends on the terms and those that the ledger has for `analysis_id`, on no row,
            wherever an earlier call was interrupted.
        """
        query = parse(text)
        epsilon = _check.positive("epsilon", epsilon)
        delta = _check.probability("delta", delta, high_open=True)
        if delta == 0 and query.aggregate not in PURE:
            raise InputError(
                f"delta = 0: {query.aggregate} has Gaussian noise, which needs one; give a delta, "
                f"such as 1e-6 ({', '.join(PURE)} may have 0, for Laplace noise)"
            )
        analysis_id = str(uuid.uuid4()) if analysis_id is None else analysis_id
        what = features(query, self.schema)
        self._check_size(query, what)
        noise = _noise(what, self.schema.rows_per_person, epsilon, delta)
        terms = {
            "query": query.text,
            "schema": asdict(self.schema),
            "epsilon": epsilon,
            "delta": delta,
            "source": self.source.fingerprint,
        }
        asked = _Asked(query, what, epsilon, delta, *noise, analysis_id, terms)
        if self.ledger is None:
            return self._answer(asked)
        return self._recorded(asked, self.ledger)

    def _recorded(self, asked: _Asked, ledger: Ledger) -> Answer:
        """Return the answer in the ledger, which is the first that was ever computed.

        The terms are compared before a row is read. Whoever else asks on the same terms meanwhile
        is answered with what was committed first, and so is the one who committed it.
        """
        if ledger.status(asked.analysis_id, asked.terms) != "committed":
            try:
                own = self._answer(asked)
                return Answer(**ledger.commit(asked.analysis_id, own.to_dict()))
            except AnalysisError:  # committed or taken since then
                if ledger.status(asked.analysis_id, asked.terms) != "committed":
                    raise
        return Answer(**ledger.result(asked.analysis_id))

    def _answer(self, asked: _Asked) -> Answer:
        return Answer(
            asked.query.text,
            asked.analysis_id,
            self._estimates(asked, self._sums(asked)),
            asked.epsilon,
            asked.delta,
            asked.multiplier,
            CONFIDENCE,
            "add_remove",
            _guarantee(asked, self.ledger is not None),
        )

    def _check_size(self, query: Query, what: Features) -> None:
        """Refuse answers that are too large, or whose parts would share a name."""
        groups = 1 if query.by is None else len(self.schema.groups_of(query.by))
        if not groups * what.size * len(what.columns) <= CELLS:
            raise InputError(
                f"query: {groups} groups of {what.size * len(what.columns)} noisy sums; give at "
                f"most {CELLS} in all"
            )
        if query.by in FIELDS or (query.aggregate == "regression" and "intercept" in query.columns):
            raise InputError(
                "query: a column has the name of a part of the answer (such as 'estimate' or "
                "'intercept'); rename the column"
            )

    def _sums(self, asked: _Asked) -> Any:
        """Charge, sum over those who paid, add noise: shape (groups, cells, features)."""
        query, what = asked.query, asked.what
        grid, width = math.ldexp(asked.scale, -BITS), len(what.columns)
        groups = 1 if query.by is None else len(self.schema.groups_of(query.by))
        try:
            with self.source.contributions(query, what, grid) as held:
                paid = None
                if self.ledger is not None:
                    ids, steps = held.norms(1 if asked.pure else 2)
                    paid = self._paid(self.ledger, asked, ids, steps * grid)
                sums = held.totals(groups * what.size, paid)
        except ApieceError:
            raise
        except Exception as error:  # any of the engine's may quote a row
            self.log(f"query {query.text!r}: {type(error).__name__}: {error}")
            raise StateError(
                "query: could not be evaluated; the reason is in the steward's log"
            ) from None
        drawn = rounded_laplaces if asked.pure else rounded_gaussians
        noise = iter(drawn(groups * what.size * width, self.bits))
        noisy = [[float(value + next(noise)) * grid for value in row] for row in sums]
        return np.array(noisy).reshape(groups, what.size, width)

    def _paid(self, ledger: Ledger, asked: _Asked, people: Any, norms: Any) -> Mask:
        """Charge everyone with an account who can pay; return who they are."""
        ids, known = with_account(people, ledger)
        if not known.all():
            self.log(
                f"analysis {asked.analysis_id!r}: {int((~known).sum())} of {len(people)} people "
                "have no account; left out"
            )
        if asked.pure:
            mu = gaussian_of_laplace(norms[known] / asked.scale)
            costs = Costs.fixed(mu * mu * (1 + 2.0**-40))
            admitted = ledger.reserve_costs(asked.analysis_id, ids, costs, terms=asked.terms)
        else:
            admitted = ledger.reserve(
                asked.analysis_id, ids, norms[known], asked.scale, terms=asked.terms
            )
        paid = known.copy()
        if admitted.size < ids.size:
            self.log(
                f"analysis {asked.analysis_id!r}: {ids.size - admitted.size} of {len(people)} "
                "people have no budget left, or were charged less when it was first asked; left out"
            )
            paid[known] = np.isin(ids, admitted)
        return paid

    def _estimates(self, asked: _Asked, sums: Any) -> list[Json]:
        query = asked.query
        names: tuple[Any, ...] = (None,)
        if query.by is not None:
            names = self.schema.groups_of(query.by)
        found = []
        for name, values in zip(names, sums, strict=True):
            group = {} if query.by is None else {query.by: name}
            made = estimate(query, self.schema, values, asked.scale, CONFIDENCE, asked.pure)
            found.append({**group, **made})
        return found


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question with its noise and what the ledger holds it to, fixed before a row is read."""

    query: Query
    what: Features
    epsilon: float
    delta: float
    multiplier: float
    scale: float
    analysis_id: str
    terms: Json = field(repr=False)

    @property
    def pure(self) -> bool:
        """Whether the noise is Laplace noise."""
        return self.delta == 0


def _noise(what: Features, rows: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Return the noise multiplier and the noise's scale in units of the features.

    A person adds at most rows·(norm + half a grid step in each coordinate), and the grid is a
    fraction of the noise, so its scale solves a linear equation. Where δ is 0 a row adds to one
    coordinate, and the scale is that of Laplace noise.
    """
    mu = float(gaussian_mu(epsilon, delta)) if delta else epsilon
    coordinates = len(what.columns) * len(what.cells)
    rounding = rows * math.ldexp(math.sqrt(coordinates), -BITS - 1)
    if not mu > 2 * rounding:
        raise InputError(
            f"epsilon = {epsilon:g}, delta = {delta:g}: too small for the grid of the noise with "
            f"{rows} rows per person; give a larger epsilon or fewer rows"
        )
    stddev = rows * what.norm / (mu - rounding) * (1 + 2.0**-40)
    if not stddev / (rows * what.norm) > 2.0**-20:
        raise InputError(f"epsilon = {epsilon:g}: gives no privacy; give a smaller one")
    return 1 / mu, stddev


def _guarantee(asked: _Asked, ledger: bool) -> str:
    noise = "Laplace" if asked.pure else "Gaussian"
    alone = (
        f"({asked.epsilon:g}, {asked.delta:g})-DP under adding or removing all rows of a person "
        f"(exact {noise} noise, rounded to a grid)"
    )
    if not ledger:
        return alone + "; this query alone"
    return alone + "; and each person's own budget over everything this ledger has charged"
