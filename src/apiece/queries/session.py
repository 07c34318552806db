"""Session: private queries on one table, each charged to the people whose rows it uses."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from apiece import _check
from apiece._lazy import lacking
from apiece._text import shown
from apiece._types import Floats, Ids, Integers, Json, Mask
from apiece.datasets.schema import Schema
from apiece.errors import (
    AnalysisError,
    ApieceError,
    InputError,
    StateError,
    UnsupportedError,
    together,
    unknown,
)
from apiece.filters import Costs
from apiece.ledger import Ledger
from apiece.ledger.chain import check_new_id
from apiece.ledger.codec import UNIT, make_terms, parse_id, to_units
from apiece.ledger.reports import SHARES, count_bins, cumulate_bins
from apiece.queries.adjusting import make_consistent, make_rows
from apiece.queries.declarations import Declarations
from apiece.queries.discovery import Discovery
from apiece.queries.estimates import estimate
from apiece.queries.fields import FIELDS, is_sql
from apiece.queries.forecast import Width, find_least_epsilon, forecast_width
from apiece.queries.mistakes import find_mistakes
from apiece.queries.noise import (
    BITS,
    SLACK,
    Bits,
    draw_rounded_gaussians,
    draw_rounded_laplaces,
    make_bits,
)
from apiece.queries.parts import Part, check_shares, make_parts, square_mu
from apiece.queries.presentation import present_groups
from apiece.queries.quantiles import CONFIDENCE, Grid, Segment, describe_group
from apiece.queries.question import Question, resolve
from apiece.queries.registration import Registration, is_registered, order_parts
from apiece.queries.scan import (
    CellCounts,
    Contributions,
    RankedContributions,
    Registered,
    Sums,
    Texts,
)
from apiece.queries.sources import Log
from apiece.queries.sql import Statement, parse_statement
from apiece.queries.table import DeferredTable, Table, discard_message, register

# Made-up rows of a group where no number is said.
ROWS: Final = 1000
# Noisy sums of an answer, at most: each is a draw of exact noise.
CELLS: Final = 2**22
# ℓ2 norm of a person in `release_standing`, who is in one bin of each of two histograms.
NORM: Final = math.sqrt(2)
# Texts of whole numbers that surely fit 64 bits.
_SHORT: Final = "^(0|-?[1-9][0-9]{0,17})$"
# Ids that are looked up at a time.
_PART: Final = 2**20


@dataclass(frozen=True, slots=True)
class Answer:
    """A released answer: noisy, and charged to whoever is in it.

    Attributes:
        query: Its text.
        analysis_id: The name under which the ledger has charged it.
        groups: One estimate with its interval for each declared group; of several statistics,
            under "statistics", one each by name.
        epsilon: ε for the person with the largest possible contribution; others pay less.
        delta: δ for that person.
        noise_multiplier: The noise's standard deviation (of Laplace noise: its scale) over that
            contribution.
        confidence: That of the intervals, which are about the noise alone.
        relation: "add_remove", of all rows of a person.
        guarantee: The promise as a sentence.
        counted: "persons", each once, "rows", or "values" where distinct ones are counted.
        rows_per_person: The most rows that a person brings; where persons are counted by group, the
            most groups.

    Example:
        >>> import pandas as pd
        >>> from apiece.datasets import Schema
        >>> from apiece.queries import Session
        >>> schema = Schema({}, person="id", rows_per_person=1)
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

    def frame(self, *, rounded: bool = False, library: str = "pandas") -> Any:
        """Return the answer as a table: a row a number.

        Args:
            rounded: Whether numbers are rounded for publication: to two digits of half their
                interval, which is rounded outwards.
            library: "pandas" or "polars".

        Returns:
            A table with the grouping columns, "statistic" where there are several, "part" where a
            statistic has several numbers, "estimate", "low" and "high" (NaN without an interval).

        Raises:
            InputError: For another library, and a grouping column with the name of a column above.
            NotInstalledError: Where polars is not installed.

        Example:
            >>> import pandas as pd
            >>> from apiece.datasets import Schema
            >>> from apiece.queries import Session
            >>> session = Session(pd.DataFrame({"id": range(1000)}), Schema({}, person="id"))
            >>> answer = session.ask("count(persons)", epsilon=1.0, delta=0)
            >>> answer.frame().columns.tolist()
            ['estimate', 'low', 'high']
        """
        rows = make_rows(self.groups, self.query, rounded=rounded)
        if library not in ("pandas", "polars"):
            raise unknown("library", library, ["pandas", "polars"])
        if library == "pandas":
            import pandas as pd

            return pd.DataFrame(rows)
        try:
            import polars as pl
        except ModuleNotFoundError:
            raise lacking("polars") from None
        return pl.DataFrame(rows)

    def consistent(self, *others: Answer) -> list[Answer]:
        """Return this answer and others of the same table, made consistent with each other.

        Counts or sums become non-negative, and the groups of a finer answer add up to those of a
        coarser one. It is post-processing, and costs nobody anything; intervals stay as they are.
        Rows of no declared group are in a total and in none of its groups: where there are some,
        the total is drawn towards the groups.

        Args:
            *others: Answers of one count or sum a group, whose grouping columns the finest has.

        Raises:
            InputError: For answers of other numbers, of which not all groups are shown, about
                different rows or columns, and persons who may be in several groups.

        Example:
            >>> import pandas as pd
            >>> from apiece.datasets import Categorical, Schema
            >>> from apiece.queries import Session
            >>> schema = Schema({"g": Categorical(["a", "b"])}, person="id", rows_per_person=1)
            >>> people = pd.DataFrame({"id": range(900), "g": ["a", "b", "b"] * 300})
            >>> session = Session(people, schema)
            >>> total = session.ask("count()", epsilon=0.1, delta=0)
            >>> groups = session.ask("count() by g", epsilon=0.1, delta=0)
            >>> total, groups = total.consistent(groups)
            >>> parts = sum(group["estimate"] for group in groups.groups)
            >>> abs(total.groups[0]["estimate"] - parts) < 1e-6
            True
        """
        answers = [self, *others]
        _require_additive(answers)
        parts = [(answer.query, answer.groups) for answer in answers]
        return [
            replace(answer, groups=groups)
            for answer, groups in zip(answers, make_consistent(parts), strict=True)
        ]


def _require_additive(answers: Sequence[Answer]) -> None:
    """Raise `InputError` for answers whose groups do not add up to one another."""
    # What is added up, of which columns and rows → the first answer that asks for it.
    asked: dict[object, str] = {}
    for answer in answers:
        statement = parse_statement(answer.query)
        query = statement.queries[0]
        calculates = any(formula.statistic < 0 for _, formula in statement.formulas or ())
        if len(statement.queries) > 1 or calculates or query.aggregate not in ("count", "sum"):
            raise InputError(
                f"consistent: {answer.query!r} is not one count or sum of each group; give such "
                "answers"
            )
        if statement.limits or statement.shown is not None:
            raise InputError(
                f"consistent: {answer.query!r} does not show all groups; ask without HAVING and "
                "LIMIT, which cost nothing afterwards"
            )
        if answer.counted == "persons" and answer.rows_per_person > 1:
            raise InputError(
                f"consistent: {answer.query!r} counts a person in several groups, which do not add "
                "up; count rows, or groups of which a person is in one"
            )
        # A derived column is the same where its expression is, whatever it is called.
        columns = tuple((name, query.derived.get(name)) for name in query.columns)
        asked.setdefault((query.aggregate, columns, query.where), answer.query)
    if len(asked) > 1:
        first, second = list(asked.values())[:2]
        raise InputError(
            f"consistent: {first!r} and {second!r} are about different rows or columns; give "
            "answers that differ in their groups alone"
        )


@dataclass(frozen=True, slots=True)
class QueryCost:
    """The most that a question costs, from public numbers: no row and no account is read.

    Attributes:
        query: Its text.
        epsilon: ε for the person with the largest possible contribution.
        delta: δ for that person.
        mu: μ of the Gaussian that this is charged as; others pay for what their own rows add.
        noise_multiplier: The noise's standard deviation (of Laplace noise: its scale) over that
            contribution.
        counted: "persons", each once, or "rows".
        rows_per_person: The most rows that a person brings; where persons are counted by group, the
            most groups.
        widths: Statistic → half the width that its 95 % interval will have in one group. That of
            counts, sums and histograms is public; of others it is that of made-up rows.

    Example:
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.queries import query_cost
        >>> schema = Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1)
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
    widths: Mapping[str, Width] = field(default_factory=dict)

    def times(self, epsilon: float, delta: float) -> int:
        """Return how many such questions an untouched account surely pays for.

        Args:
            epsilon: Of the account.
            delta: Of the account; a tenth of it is kept for slack, as by default.

        Raises:
            BudgetError: For what no account can be.
        """
        account = make_terms(np.zeros(1, dtype=np.int64), epsilon, delta)
        # The account's limit is rounded down and the charge up, so that the quotient is never too
        # large.
        charge = square_mu(np.array(self.mu))
        return int(account["limit"][0] // to_units(charge))


def query_cost(
    text: str,
    schema: Schema,
    *,
    epsilon: float,
    delta: float,
    split: Sequence[float] | None = None,
    rows: int = ROWS,
) -> QueryCost:
    """Return what a question costs, before it is asked; no table is read and nobody is charged.

    Args:
        text: The query.
        schema: Of the table.
        epsilon: Positive and finite, as for `Session.ask`, whose errors this raises.
        delta: In [0, 1); 0 where the noise may be Laplace noise.
        split: As for `Session.ask`.
        rows: Made-up rows of a group, for widths that depend on rows: a public guess.

    Raises:
        InputError: As `Session.ask`, and for fewer than one row.

    Guarantee:
        Nobody is charged more. It does not say whether somebody can pay: that depends on their
        rows.

    Example:
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.queries import query_cost
        >>> schema = Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1)
        >>> query_cost("median(age)", schema, epsilon=0.3, delta=0).delta
        0.0
    """
    declarations = Declarations.from_schema(schema)
    request = _Request.from_text(
        text, declarations, epsilon, delta, analysis_id="", source="", split=split
    )
    return QueryCost(
        query=request.statement.text,
        epsilon=request.epsilon,
        delta=request.delta,
        mu=request.largest_mu,
        noise_multiplier=request.multiplier,
        widths={
            label: forecast_width(part, _check.count("rows", rows))
            for label, part in zip(request.statement.labels, request.parts, strict=True)
            if not part.question.is_discovery
        },
        **request.counts,
    )


def least_epsilon(
    text: str,
    schema: Schema,
    *,
    within: str,
    delta: float,
    rows: int = ROWS,
    split: Sequence[float] | None = None,
) -> float:
    """Return the least ε whose answer is narrow enough, rounded up; no table is read.

    Args:
        text: The query.
        schema: Of the table.
        within: Half the width of a 95 % interval: "50" in the unit of the statistic, or "2%": of
            the rows of a group for counts, else of the column's range.
        delta: As for `Session.ask`.
        rows: Made-up rows of a group, for widths that depend on rows: a public guess.
        split: As for `Session.ask`.

    Raises:
        InputError: As `Session.ask`, and where no ε is enough.

    Guarantee:
        With it no interval of a count, sum or histogram is wider: it is rounded up.

    Example:
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.queries import least_epsilon
        >>> schema = Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1)
        >>> least_epsilon("count()", schema, within="50", delta=0)
        0.06
    """
    declarations = Declarations.from_schema(schema)
    request = _Request.from_text(
        text, declarations, 1.0, delta, analysis_id="", source="", split=split
    )
    questions = request.questions
    # Only the questions and δ of this request are of use; its own ε is a stand-in that passes all
    # checks.
    shares = check_shares(split, len(questions))

    def parts_of(epsilon: float) -> Sequence[Part]:
        return make_parts(questions, epsilon, request.delta, shares)

    epsilon = find_least_epsilon(parts_of, within, rows)
    # To three digits, up.
    step = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return float(f"{math.ceil(epsilon / step) * step:.3g}")


@dataclass(frozen=True, repr=False)
class Session:
    """Ask private queries of `source`, described by `schema`.

    Args:
        source: What `register` or `register_on_spark` has returned, the folder in which `register`
            has kept a table, or what else `register` takes; or name → such a source, of several
            tables of the same people, each with rows of its own.
        schema: The one that the table was registered with; a folder of `register` has its own. Of
            several tables name → schema.
        ledger: Charges each person for their own contribution and answers from those whose budget
            allows it, leaving out who has no account. Without one, each answer is (epsilon,
            delta)-DP by itself and nothing is remembered.
        seed: None takes randomness from the operating system, as a release needs. A whole number
            from 0 on repeats the noise, for tests and lessons: who knows it can take the noise off.
        log: Takes the steward's messages, which speak of rows.

    Raises:
        InputError: For a table that was registered with another schema.
        DataError: As `register`.

    Example:
        >>> import pandas as pd
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.queries import Session
        >>> people = pd.DataFrame({"id": range(1000), "age": [20.0, 60.0] * 500})
        >>> schema = Schema({"age": Numeric(0, 100)}, person="id", rows_per_person=1)
        >>> session = Session(people, schema)
        >>> answer = session.ask("mean(age)", epsilon=1.0, delta=1e-6)
        >>> 30 < answer.groups[0]["estimate"] < 50
        True
    """

    source: object = field(repr=False)
    schema: Schema | Mapping[str, Schema] | None = None
    ledger: Ledger | None = None
    seed: int | None = field(default=None, repr=False)
    log: Log = field(default=discard_message, repr=False)
    # Source of the noise, from the seed.
    _bits: Bits = field(init=False, repr=False, compare=False)
    # Of several tables: name → a session of that table, with the same noise and ledger.
    _tables: dict[str, Session] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_bits", make_bits(self.seed))
        # Several tables, a registered folder, a table that some engine holds, or what is still to
        # be read.
        if isinstance(self.source, Mapping):
            self._open_tables(self.source)
            return
        schema = self.schema
        if isinstance(schema, Mapping):
            raise InputError("schema: of several tables, and the source is one; give its schema")
        source = self.source
        # A registered folder brings its schema, and reads no row before a question needs one.
        if isinstance(source, str | Path) and is_registered(source):
            registered = Registration.open(source)
            object.__setattr__(self, "source", DeferredTable.from_registration(registered))
            schema = registered.schema if schema is None else schema
            object.__setattr__(self, "schema", schema)
        if schema is None:
            raise InputError(
                "schema: missing; give the one that declares the table's columns, as in "
                "Schema({'age': Numeric(0, 100)}, person='id')"
            )
        if not isinstance(self.source, Registered):
            table = register(self.source, schema, log=self.log)
            object.__setattr__(self, "source", table)
        elif self.source.declarations != Declarations.from_schema(schema):
            raise InputError("schema: not the one that the table was registered with; give that")

    def _open_tables(self, sources: Mapping[str, object]) -> None:
        """Open a session of each table, by its name."""
        schemas: Mapping[str, Schema | None] = {}
        # One schema for all tables, or one for each of them.
        if isinstance(self.schema, Mapping):
            schemas = self.schema
        elif self.schema is not None:
            schemas = dict.fromkeys(sources, self.schema)
        surplus = schemas.keys() - sources.keys()
        if surplus or not sources:
            name = min(surplus, default="")
            raise InputError(f"source: no table {name!r}; give name → source, each with its schema")
        for name, source in sources.items():
            table = Session(source, schemas.get(name), self.ledger, self.seed, self.log)
            # All tables draw from one source. With sources of their own the same seed would give
            # the same noise to each, and the difference of two answers would be free of it.
            object.__setattr__(table, "_bits", self._bits)
            self._tables[name] = table

    def _choose_table(self, text: str, table: str | None) -> Session:
        """Return the session of the table that a question names."""
        # SQL says after FROM which table it asks; the short form has no word for it.
        name = table
        if name is None and is_sql(text):
            name = parse_statement(text).table
        if name is None:
            raise InputError(
                "query: of several tables, and it names none; write SELECT … FROM a table, or give "
                f"table, one of {', '.join(self._tables)}"
            )
        if name not in self._tables:
            raise InputError(f"query: {unknown('table', name, list(self._tables))}")
        return self._tables[name]

    @property
    def _table(self) -> Registered:
        assert isinstance(self.source, Registered)
        return self.source

    def ask(
        self,
        text: str,
        *,
        epsilon: float,
        delta: float,
        analysis_id: str | None = None,
        split: Sequence[float] | None = None,
        share: float | None = None,
        table: str | None = None,
    ) -> Answer:
        """Return the answer to a query; it costs anyone at most (epsilon, delta).

        Args:
            text: The query, in the language of `grammar`, or a SELECT in SQL, which needs the extra
                `sql`.
            epsilon: Positive and finite.
            delta: In [0, 1). With 0 a count, sum or histogram has Laplace noise; otherwise the
                noise is Gaussian. A quantile is drawn by the exponential mechanism and needs none.
            analysis_id: The name under which the ledger charges it, once; by default a new one. It
                stands for its terms: query, schema, epsilon, delta and source. Asked again on the
                same terms, also by several processes at once or after a crash, the answer is the
                one recorded first.
            split: Of several statistics in one SELECT the share of each, in proportion: of μ², or
                of epsilon where delta is 0. By default such that each sum has the same noise,
                relative to the bounds of its column.
            share: Of SELECT DISTINCT with a ledger: the most of anybody's account that it takes, in
                (0, 1]. Whoever would pay more has a smaller weight, by their own account alone.
            table: Of several tables the one that is asked; SQL names it after FROM.

        Raises:
            InputError: For what is not a query, one whose answer would be too large, epsilon, delta
                or share out of bounds, a share of what has no weights, delta = 0 where the noise is
                Gaussian, and where the schema does not say how many rows a person brings.
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
        if self._tables:
            return self._choose_table(text, table).ask(
                text,
                epsilon=epsilon,
                delta=delta,
                analysis_id=analysis_id,
                split=split,
                share=share,
            )
        # Without a name the question is a new analysis, which nothing that is asked later can
        # repeat.
        name = str(uuid.uuid4()) if analysis_id is None else analysis_id
        source = self._table.fingerprint
        # The request is complete, and all that is wrong with it raised, before a row is read.
        request = _Request.from_text(
            text,
            self._table.declarations,
            epsilon,
            delta,
            analysis_id=name,
            source=source,
            split=split,
            share=share,
        )
        if self.ledger is None:
            if share is not None:
                raise InputError(
                    "share: is of accounts; give the session a ledger, or leave it out"
                )
            return self._answer(request)
        entry = _record_once(
            self.ledger, name, request.terms, lambda: self._answer(request).to_dict()
        )
        # An entry has its parts in the order of their names.
        statement = request.statement
        labels = [*statement.group_labels.values(), *statement.labels]
        labels += [label for label, _ in statement.formulas or ()]
        entry["groups"] = order_parts(entry["groups"], labels)
        # An older entry does not say what the question counts; the request does.
        return Answer(**{**request.counts, **entry})

    def _answer(self, request: _Request) -> Answer:
        """Return the answer to a request, charged if there is a ledger."""
        if request.questions[0].is_discovery:
            groups = self._find_values(request)
        else:
            columns = [
                self._estimate_part(part, cells)
                for part, cells in zip(request.parts, self._sum_cells(request), strict=True)
            ]
            groups = present_groups(request.statement, request.questions, columns)
        return Answer(
            query=request.statement.text,
            analysis_id=request.analysis_id,
            groups=groups,
            epsilon=request.epsilon,
            delta=request.delta,
            noise_multiplier=request.multiplier,
            confidence=CONFIDENCE,
            relation="add_remove",
            guarantee=request.write_guarantee(self.ledger),
            **request.counts,
        )

    def _find_values(self, request: _Request) -> list[Json]:
        """Charge, and return the values whose noisy weight exceeds the threshold, in order."""
        question = request.questions[0]
        discovery = Discovery.from_budget(question.rows, request.epsilon, request.delta)
        table = self._table
        if not isinstance(table, Table | DeferredTable):
            raise UnsupportedError(
                "query: SELECT DISTINCT is answered by duckdb alone; leave out --engine, or "
                "declare the values"
            )
        # Nobody's value is weighed before they have paid, and only values that somebody has are
        # told: what the threshold hides is that there was such a value at all.
        with self._hide_rows(request), table.values(question) as values:
            paid = None
            people, counts = values.people()
            steps = discovery.count_steps(counts)
            if self.ledger is not None:
                # Weights follow from each person's own account, so that they are a person's own
                # business.
                if request.share is not None:
                    budgets = self._find_budgets(self.ledger, people)
                    weights = discovery.weigh(budgets, request.share)
                    steps = discovery.count_steps(counts, weights)
                # A person pays for the Gaussian that hides their weight and, as slack, for the
                # chance that a value of theirs alone is told.
                costs = discovery.costs(counts, steps)
                paid = self._reserve(self.ledger, request, people, *costs)
            totals = values.weights(paid, steps)
        noise = draw_rounded_gaussians(len(totals), self._bits)
        (label,) = request.statement.group_labels.values()
        return [
            {label: value}
            for (value, weight), deviate in zip(totals, noise, strict=True)
            if weight + deviate > discovery.threshold
        ]

    def _find_budgets(self, ledger: Ledger, people: Texts) -> Floats:
        """Return the μ² of each person's account; 0 of those without one, who are left out."""
        ids, has_account = find_accounts(people, ledger)
        limits, _ = ledger.balances(ids)
        budgets = np.zeros(len(people))
        budgets[has_account] = limits[:, 0] * UNIT
        return budgets

    @contextmanager
    def _hide_rows(self, request: _Request) -> Iterator[None]:
        """Turn an error of the engine's, which may quote a row, into one that does not."""
        try:
            yield
        except ApieceError:
            raise
        except Exception as error:
            self.log(f"query {request.statement.text!r}: {type(error).__name__}: {error}")
            raise StateError(
                "query: could not be evaluated; the reason is in the steward's log"
            ) from None

    def _estimate_part(self, part: Part, sums: Sums | CellCounts) -> list[Json]:
        """Return a statistic's estimate of each group from its sums."""
        # Ranked rows go to the exponential mechanism; all other sums get noise, cell by cell.
        if part.question.grid is not None:
            counts = sums if isinstance(sums, tuple) else _count_cells(sums)
            return self._draw_groups(part, part.question.grid, counts)
        assert not isinstance(sums, tuple)
        if part.question.is_distinct:
            sums = _count_values(part, sums)
        return self._estimate_groups(part, sums)

    def _estimate_groups(self, part: Part, sums: Sums) -> list[Json]:
        """Return each group's estimate from its noisy sums."""
        shape = part.question.shape
        groups, cells, features = shape
        # Every cell gets noise, also one to which nobody adds anything.
        draw_noise = draw_rounded_laplaces if part.pure else draw_rounded_gaussians
        noise = iter(draw_noise(math.prod(shape), self._bits))
        zeros = [0] * features
        noisy = []
        for cell in range(groups * cells):
            # Whole numbers are added, exactly. What doubles do to the noisy number is
            # post-processing.
            steps = [value + next(noise) for value in sums.get(cell, zeros)]
            noisy.append([float(step) * part.grid for step in steps])
        return [
            # The noisy sums are of shape (groups, cells, features); a group's are (cells,
            # features).
            estimate(part.question.take_group(number), values, part.scale, part.pure)
            for number, values in enumerate(np.array(noisy).reshape(shape))
        ]

    def _draw_groups(self, part: Part, grid: Grid, counts: CellCounts) -> list[Json]:
        """Return each group's quantiles, drawn by the exponential mechanism."""
        question = part.question
        cells, rows = counts
        # The cells of a group are the points of the grid, one group after the other.
        first_cells = np.arange(len(question.groups) + 1) * grid.size
        limits = np.searchsorted(cells, first_cells).tolist()
        groups = []
        for first_cell, (begin, end) in zip(first_cells, pairwise(limits), strict=False):
            segment = Segment(cells[begin:end] - first_cell, rows[begin:end], 0, grid.size - 1)
            group = describe_group(
                grid, segment, question.query, part.epsilon, question.rows, self._bits
            )
            groups.append(group)
        return groups

    def _sum_cells(self, request: _Request) -> list[Sums | CellCounts]:
        """Charge, and return each part's sums over those who paid, in steps of its grid."""
        # The cursors of all parts stay open until the last sum is formed. Everybody is charged for
        # all parts at once, and before any of them is summed.
        with self._hide_rows(request), ExitStack() as stack:
            scans = [
                stack.enter_context(self._table.contributions(part.question, part.grid))
                for part in request.parts
            ]
            masks: list[Mask | None] = [None] * len(scans)
            if self.ledger is not None:
                norms = [
                    contributions.norms(part.norm_power)
                    for part, contributions in zip(request.parts, scans, strict=True)
                ]
                masks = [*self._charge(self.ledger, request, norms)]
            return [
                _sum_part(part, contributions, paid)
                for part, contributions, paid in zip(request.parts, scans, masks, strict=True)
            ]

    def _charge(
        self, ledger: Ledger, request: _Request, norms: Sequence[tuple[Texts, Floats]]
    ) -> list[Mask]:
        """Charge everyone with an account who can pay; return of each part who they are."""
        if len(request.parts) == 1:
            ((people, steps),) = norms
            return [self._charge_one(ledger, request, people, steps * request.parts[0].grid)]
        # Independent parts compose as Gaussians do: their μ² add up (Dong, Roth, Su 2022). A person
        # pays for those parts in which they have rows.
        people, positions = _join_people([ids for ids, _ in norms])
        cost = np.zeros(len(people))
        for part, position, (_, steps) in zip(request.parts, positions, norms, strict=True):
            # A person is in each part once.
            cost[position] += square_mu(part.mu(steps * part.grid))
        paid = self._reserve(ledger, request, people, cost * (1 + SLACK))
        return [paid[position] for position in positions]

    def _charge_one(self, ledger: Ledger, request: _Request, people: Texts, norms: Floats) -> Mask:
        """Charge for a single statistic; return who has paid."""
        (part,) = request.parts
        # Gaussian noise is charged by norm and scale, Laplace noise and the exponential mechanism
        # by the μ² of a Gaussian that dominates them.
        if part.pure:
            return self._reserve(ledger, request, people, square_mu(part.mu(norms)))
        ids, has_account = self._find_accounts(ledger, request, people)
        admitted = ledger.reserve(
            request.analysis_id, ids, norms[has_account], part.scale, terms=request.terms
        )
        return self._mark_paid(request, ids, admitted, has_account)

    def _reserve(
        self,
        ledger: Ledger,
        request: _Request,
        people: Texts,
        cost: Floats,
        slack: Floats | None = None,
    ) -> Mask:
        """Charge people these μ², and slacks if there are some; return who has paid."""
        ids, has_account = self._find_accounts(ledger, request, people)
        slacks = 0.0 if slack is None else slack[has_account]
        costs = Costs.fixed(cost[has_account], slacks)
        admitted = ledger.reserve_costs(request.analysis_id, ids, costs, terms=request.terms)
        return self._mark_paid(request, ids, admitted, has_account)

    def _find_accounts(self, ledger: Ledger, request: _Request, people: Texts) -> tuple[Ids, Mask]:
        """Return the ids that have an account, and which of the people they are."""
        ids, has_account = find_accounts(people, ledger)
        # How many are left out is told to the steward alone.
        strangers = int((~has_account).sum())
        if strangers:
            self.log(
                f"analysis {request.analysis_id!r}: {strangers} of {len(people)} people have no "
                "account; left out"
            )
        return ids, has_account

    def _mark_paid(self, request: _Request, ids: Ids, admitted: Ids, has_account: Mask) -> Mask:
        """Return which of the people have paid, those with an account being `ids`, in order."""
        if admitted.size == ids.size:
            return has_account
        self.log(
            f"analysis {request.analysis_id!r}: {ids.size - admitted.size} of {has_account.size} "
            "people have no budget left, or were charged less when it was first asked; left out"
        )
        # `has_account` is over all people, `ids` over those in it, in the same order.
        paid = has_account.copy()
        paid[has_account] = np.isin(ids, admitted)
        return paid


def _join_people(parts: Sequence[Texts]) -> tuple[Texts, list[Integers]]:
    """Return everybody of several lists of ids, once, and where each list's people are in it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk for part in parts for chunk in part.chunks]
    everybody = pc.unique(pa.chunked_array(chunks, pa.string()))
    # By the bytes of the id, so that a charge that is repeated after a crash is the same one.
    people = everybody.take(pc.array_sort_indices(everybody))
    positions = [
        np.asarray(pc.index_in(part, value_set=people).combine_chunks()).astype(np.int64)
        for part in parts
    ]
    return pa.chunked_array([people]), positions


def _sum_part(part: Part, contributions: Contributions, paid: Mask | None) -> Sums | CellCounts:
    """Return a part's sums over those who paid; where rows are ranked, the rows of each cell."""
    question = part.question
    if question.grid is not None and isinstance(contributions, RankedContributions):
        return contributions.count_rows(paid, len(question.groups) * question.grid.size)
    return contributions.totals(paid)


def _count_cells(sums: Sums) -> CellCounts:
    """Return the cells that have rows, in order, and how many."""
    cells = np.array(sorted(sums), dtype=np.int64)
    rows = np.array([sums[cell][0] for cell in cells.tolist()], dtype=np.int64)
    return cells, rows


def _count_values(part: Part, sums: Sums) -> Sums:
    """Return how many values somebody has in each group, in steps of the noise's grid."""
    # A person who alone has a value was charged for as many steps, or one more.
    steps = math.floor(1 / part.grid)
    counts: Sums = {}
    for cell, (count,) in sums.items():
        if count > 0:
            group = counts.setdefault(cell // part.question.values, [0])
            group[0] += steps
    return counts


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked, with its noise and what the ledger holds it to, fixed before a row is read."""

    statement: Statement
    # One part a statistic, in the order of the text.
    parts: tuple[Part, ...]
    epsilon: float
    # δ of the promise: 0 where the exponential mechanism alone answers, whatever was asked.
    delta: float
    analysis_id: str
    # What the analysis id stands for in the ledger: query, schema, source, ε and δ.
    terms: Json = field(repr=False)
    # The most of an account that the question takes, where people have weights.
    share: float | None = None

    @classmethod
    def from_text(
        cls,
        text: str,
        declarations: Declarations,
        epsilon: float,
        delta: float,
        *,
        analysis_id: str,
        source: str,
        split: Sequence[float] | None = None,
        share: float | None = None,
    ) -> Self:
        """Return the request for a query, or raise what `Session.ask` does."""
        # All mistakes are raised together, so that one more try is enough.
        mistakes = find_mistakes(text, declarations, epsilon=epsilon, delta=delta)
        if mistakes:
            raise together(mistakes)
        statement = parse_statement(text)
        shares = check_shares(split, len(statement.queries))
        questions = [resolve(query, declarations, source) for query in statement.queries]
        for question in questions:
            _require_size(question)
        _require_labels(statement)
        # The exponential mechanism needs no δ: alone it promises none.
        promised_delta = delta
        if len(questions) == 1 and questions[0].grid:
            promised_delta = 0.0
        # Of several parts those with derived dates have the fullest terms.
        terms = max((question.terms for question in questions), key=_count_terms)
        # The terms have what was asked, and not what is promised: they are compared before a part
        # is made.
        terms = {**terms, "epsilon": epsilon, "delta": delta}
        if shares is not None:
            terms["split"] = list(shares)
        if share is not None:
            share = _check.probability("share", share, low_open=True)
            if not questions[0].is_discovery:
                raise InputError("share: is of SELECT DISTINCT; leave it out")
            terms["share"] = share
        return cls(
            statement=statement,
            parts=make_parts(questions, epsilon, promised_delta, shares),
            epsilon=epsilon,
            delta=promised_delta,
            analysis_id=analysis_id,
            terms=terms,
            share=share,
        )

    @property
    def questions(self) -> list[Question]:
        """The question of each statistic."""
        return [part.question for part in self.parts]

    @property
    def counts(self) -> Json:
        """The unit of the answer, and how many of them a person may bring."""
        # Statistics of different units are said to count rows.
        units = {question.unit for question in self.questions}
        unit = units.pop() if len(units) == 1 else "rows"
        return {
            "counted": unit,
            "rows_per_person": max(question.rows for question in self.questions),
        }

    @property
    def multiplier(self) -> float:
        """The noise multiplier; of several statistics, that of all of them as one Gaussian."""
        if len(self.parts) == 1:
            return self.parts[0].multiplier
        return 1 / self.largest_mu if self.delta else 1 / self.epsilon

    @property
    def largest_mu(self) -> float:
        """μ of the Gaussian that the person with the largest contribution is charged as."""
        if len(self.parts) == 1:
            return self.parts[0].largest_mu
        # μ of independent parts is the root of the sum of their squares.
        return math.hypot(*(part.largest_mu for part in self.parts)) * (1 + SLACK)

    def write_guarantee(self, ledger: Ledger | None) -> str:
        """Return the promise as a sentence."""
        names = dict.fromkeys(_name_mechanism(part) for part in self.parts)
        scope = "this query alone"
        if ledger is not None:
            scope = "and each person's own budget over everything this ledger has charged"
            if ledger.policy.version:
                scope += f". {ledger.policy.protects}"
        epsilon = shown(self.epsilon)
        delta = shown(self.delta)
        return (
            f"({epsilon}, {delta})-DP under adding or removing "
            f"all rows of a person ({' and '.join(names)}); {scope}"
        )


def _name_mechanism(part: Part) -> str:
    """Return what hides a statistic, for the promise."""
    if part.question.is_discovery:
        return "a threshold on exact Gaussian noise, rounded to a grid"
    if part.question.grid:
        return "an exact exponential mechanism"
    return f"exact {'Laplace' if part.pure else 'Gaussian'} noise, rounded to a grid"


def _count_terms(terms: Json) -> int:
    return len(terms["schema"])


def _require_labels(statement: Statement) -> None:
    """Refuse a name of the answer's columns that its parts have too."""
    clash = {*FIELDS, "level"}.intersection(statement.group_labels.values())
    if clash:
        raise InputError(
            f"query: {min(clash)!r} is the name of a part of the answer; give the column another "
            "name, with AS"
        )


def _require_size(question: Question) -> None:
    """Refuse answers that are too large, or whose parts would share a name."""
    query = question.query
    groups, cells, features = question.shape
    # In SQL such a column can have another name in the answer, which `_require_labels` looks at.
    has_names = not query.is_sql and FIELDS.intersection(query.by)
    if not groups * cells * features <= CELLS:
        raise InputError(
            f"query: {groups} groups of {cells * features} noisy sums; give at most {CELLS} in all"
        )
    has_intercept = query.aggregate == "regression" and "intercept" in query.columns
    if has_intercept or has_names:
        raise InputError(
            "query: a column has the name of a part of the answer (such as 'estimate' or "
            "'intercept'); rename the column"
        )


def _record_once(
    ledger: Ledger, analysis_id: str, terms: Json, compute_answer: Callable[[], Json]
) -> Json:
    """Return the ledger's answer to an analysis, which is the first that was ever computed."""
    # The terms are compared before a row is read. Whoever else asks on the same terms meanwhile is
    # answered with what was committed first, and so is the one who committed it.
    status = ledger.status(analysis_id, terms)
    if status == "unknown":
        check_new_id(analysis_id)
    if status != "committed":
        try:
            return dict(ledger.commit(analysis_id, compute_answer()))
        except AnalysisError:
            # Another process has committed it, or taken the name, since then.
            if ledger.status(analysis_id, terms) != "committed":
                raise
    return dict(ledger.result(analysis_id))


def find_accounts(ids: Texts, ledger: Ledger) -> tuple[Ids, Mask]:
    """Return the ids that have an account, as the ledger writes them, and which they are."""
    # No two texts become one id: where the ledger's ids are whole numbers, "7" is 7, and "07" has
    # no account. The ids returned are in the order of the texts.
    kind = ledger.id_kind
    if kind is None:
        return np.zeros(0, dtype=np.int64), np.zeros(len(ids), dtype=bool)
    accounts: list[Ids] = []
    masks: list[Mask] = []
    for start in range(0, max(1, len(ids)), _PART):
        part = ids.slice(start, _PART)
        if kind == "integer":
            candidates, mask = _read_integers(part)
        else:
            candidates = np.array(part.to_pylist(), dtype=str)
            mask = np.ones(len(part), dtype=bool)
        # The mask is over the part's ids, `is_enrolled` over those of them that can be ids of the
        # ledger.
        is_enrolled = ledger.enrolled(candidates)
        mask[mask] = is_enrolled
        accounts.append(candidates[is_enrolled])
        masks.append(mask)
    return np.concatenate(accounts), np.concatenate(masks)


def _read_integers(ids: Texts) -> tuple[Integers, Mask]:
    """Return the ids that are whole numbers, written in the one way, and which they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # Short texts are cast column by column; the few others are read one by one, some of them beyond
    # 64 bits.
    is_short = np.asarray(pc.match_substring_regex(ids, _SHORT)).astype(bool)
    integers = np.zeros(len(ids), dtype=np.int64)
    short = pc.filter(ids, pa.array(is_short))
    integers[is_short] = pc.cast(short, pa.int64())
    is_integer = is_short.copy()
    for index in np.flatnonzero(~is_short).tolist():
        integer = parse_id(ids[index].as_py(), "integer")
        if integer is not None:
            integers[index] = integer
            is_integer[index] = True
    return integers[is_integer], is_integer


# Smallest and largest standard deviation of noise on counts of accounts. With more noise a person
# is less than one step of the grid.
_LEAST_NOISE: Final = 1e-3
_MOST_NOISE: Final = 2.0**BITS


def release_standing(
    ledger: Ledger, analysis_id: str, *, noise_stddev: float, seed: int | None = None
) -> Json:
    """Return, with noise, how many accounts have at least each share left; it may be published.

    It counts the accounts that can pay for it, as they stand after they have paid.

    Args:
        ledger: All of its accounts are charged.
        analysis_id: A name that no other analysis has; asked again, the answer is the first one's.
        noise_stddev: On the number of accounts between two shares.
        seed: None takes randomness from the operating system, as a release needs. A whole number
            from 0 on repeats the noise, for tests and lessons: who knows it can take the noise off.

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
        >>> from apiece.queries.session import release_standing
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

    def count_accounts() -> Json:
        """Charge every account, and return the noisy counts."""
        # Everybody pays first: the counts are those of accounts after this charge.
        ledger.reserve_everyone(analysis_id, NORM, stddev, terms=terms)
        # Queries and trainings, by the bin between two shares in which the account is left.
        bins: Integers = np.zeros((2, len(SHARES) + 1), dtype=np.int64)
        for ids in ledger.admitted(analysis_id):
            bins += count_bins(*ledger.balances(ids))
        grid = math.ldexp(stddev, -BITS)
        # A person adds a whole number of grid steps, and at most 1 in all.
        steps_per_person = math.floor(1 / grid)
        noise = draw_rounded_gaussians(bins.size, make_bits(seed))
        steps = (bins * steps_per_person).ravel().tolist()
        values = [(count + deviate) * grid for count, deviate in zip(steps, noise, strict=True)]
        noisy = np.array(values).reshape(bins.shape)
        answer: Json = {"shares": list(SHARES), "noise_stddev": stddev}
        for kind, counts in cumulate_bins(noisy).items():
            answer[kind] = [round(count) for count in counts]
        return answer

    return _record_once(ledger, analysis_id, terms, count_accounts)
