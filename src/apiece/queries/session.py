"""Session: private queries on one table, each charged to the people whose rows it uses."""

from __future__ import annotations

import hashlib
import json
import math
import secrets
import uuid
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from apiece import _check
from apiece._types import Json, Mask
from apiece.errors import AnalysisError, ApieceError, InputError, StateError
from apiece.filters import gaussian_mu
from apiece.ledger import Ledger
from apiece.queries.estimates import FIELDS, estimate
from apiece.queries.features import Features, features
from apiece.queries.grammar import Query, parse
from apiece.queries.noise import BITS, Bits, rounded_gaussians
from apiece.queries.people import with_account
from apiece.queries.scan import Registered
from apiece.queries.schema import Schema
from apiece.queries.sources import Log
from apiece.queries.table import nobody, register

CONFIDENCE = 0.95
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
        noise_multiplier: The noise's standard deviation over that contribution.
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
            delta: In (0, 1).
            analysis_id: The name under which the ledger charges it, once; asking the same query
                under the same id again returns the recorded answer. A new id by default.

        Returns:
            The answer, which may be published.

        Raises:
            InputError: For what is not a query, and one whose answer would be too large.
            DataError: For a column that is not declared as the query uses it.
            AnalysisError: For an analysis id that stands for something else.

        Guarantee:
            (epsilon, delta)-DP under adding or removing all rows of a person. With a ledger also
            each person's own (ε_i, δ_i) over everything the ledger ever charged, for adaptively
            chosen queries. Sums are of whole grid steps and the noise is an exact Gaussian rounded
            to the grid, so no floating-point effect weakens either. What is raised depends on the
            query, the schema and the ledger's record of `analysis_id`, on no row.
        """
        query = parse(text)
        epsilon = _check.positive("epsilon", epsilon)
        delta = _check.probability("delta", delta, low_open=True, high_open=True)
        analysis_id = str(uuid.uuid4()) if analysis_id is None else analysis_id
        what = features(query, self.schema)
        self._check_size(query, what)
        multiplier, stddev = _noise(what, self.schema.rows_per_person, epsilon, delta)
        key = self._fingerprint(query, epsilon, delta)
        if self.ledger is not None and self.ledger.status(analysis_id) == "committed":
            return _recorded(self.ledger.result(analysis_id), key, analysis_id)
        answer = Answer(
            query.text,
            analysis_id,
            self._estimates(query, what, self._sums(query, what, stddev, analysis_id), stddev),
            epsilon,
            delta,
            multiplier,
            CONFIDENCE,
            "add_remove",
            _guarantee(epsilon, delta, self.ledger is not None),
        )
        if self.ledger is None:
            return answer
        result = {"key": key, "answer": answer.to_dict()}
        return _recorded(self.ledger.commit(analysis_id, result), key, analysis_id)

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

    def _sums(self, query: Query, what: Features, stddev: float, analysis_id: str) -> Any:
        """Charge, sum over those who paid, add noise: shape (groups, cells, features)."""
        grid, width = math.ldexp(stddev, -BITS), len(what.columns)
        groups = 1 if query.by is None else len(self.schema.groups_of(query.by))
        try:
            with self.source.contributions(query, what, grid) as held:
                paid = None
                if self.ledger is not None:
                    ids, steps = held.norms()
                    paid = self._paid(self.ledger, analysis_id, ids, steps * grid, stddev)
                sums = held.totals(groups * what.size, paid)
        except ApieceError:
            raise
        except Exception as error:  # any of the engine's may quote a row
            self.log(f"query {query.text!r}: {type(error).__name__}: {error}")
            raise StateError(
                "query: could not be evaluated; the reason is in the steward's log"
            ) from None
        noise = iter(rounded_gaussians(groups * what.size * width, self.bits))
        noisy = [[float(value + next(noise)) * grid for value in row] for row in sums]
        return np.array(noisy).reshape(groups, what.size, width)

    def _paid(
        self, ledger: Ledger, analysis_id: str, people: Any, norms: Any, stddev: float
    ) -> Mask:
        """Charge everyone with an account who can pay; return who they are."""
        ids, known = with_account(people, ledger)
        if not known.all():
            self.log(
                f"analysis {analysis_id!r}: {int((~known).sum())} of {len(people)} people have no "
                "account; left out"
            )
        try:
            admitted = ledger.reserve(analysis_id, ids, norms[known], stddev)
        except AnalysisError as error:
            self.log(f"analysis {analysis_id!r}: {error}")
            raise _taken(analysis_id) from None
        paid = known.copy()
        if admitted.size < ids.size:
            paid[known] = np.isin(ids, admitted)
        return paid

    def _estimates(self, query: Query, what: Features, sums: Any, stddev: float) -> list[Json]:
        names: tuple[Any, ...] = (None,)
        if query.by is not None:
            names = self.schema.groups_of(query.by)
        found = []
        for name, values in zip(names, sums, strict=True):
            group = {} if query.by is None else {query.by: name}
            found.append({**group, **estimate(query, self.schema, values, stddev, CONFIDENCE)})
        return found

    def _fingerprint(self, query: Query, epsilon: float, delta: float) -> str:
        schema = {
            "person": self.schema.person,
            "bounds": dict(self.schema.bounds),
            "groups": dict(self.schema.groups),
            "rows": self.schema.rows_per_person,
            "kinds": dict(self.schema.kinds),
        }
        text = json.dumps([query.text, schema, epsilon, delta], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def _noise(what: Features, rows: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Return the noise multiplier and the noise's standard deviation in units of the features.

    A person adds at most rows·(norm + half a grid step in each coordinate), and the grid is a
    fraction of the noise, so the standard deviation solves a linear equation.
    """
    mu = float(gaussian_mu(epsilon, delta))
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


def _guarantee(epsilon: float, delta: float, ledger: bool) -> str:
    alone = (
        f"({epsilon:g}, {delta:g})-DP under adding or removing all rows of a person "
        "(exact Gaussian noise, rounded to a grid)"
    )
    if not ledger:
        return alone + "; this query alone"
    return alone + "; and each person's own budget over everything this ledger has charged"


def _recorded(result: Any, key: str, analysis_id: str) -> Answer:
    if not isinstance(result, dict) or result.get("key") != key:
        raise _taken(analysis_id)
    return Answer(**result["answer"])


def _taken(analysis_id: str) -> AnalysisError:
    return AnalysisError(
        f"analysis {analysis_id!r}: in use for another query or other terms; use a new id"
    )
