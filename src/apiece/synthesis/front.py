"""synthesize: from a table, a schema and people's budgets to a synthetic table."""

from __future__ import annotations

import hashlib
import itertools
import json
import uuid
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from apiece import _check
from apiece._files import STATE, write
from apiece._lazy import require
from apiece._types import AnyArray, Floats, Ids, Integers, Json, Mask
from apiece.budgets import Budgets
from apiece.budgets.frames import read_frame
from apiece.budgets.units import Units, find_positions
from apiece.datasets.schema import Schema
from apiece.datasets.tables import PLAIN, Dialect
from apiece.errors import InputError, StateError, StewardWarning, unknown
from apiece.filters import Costs
from apiece.filters.convert import SHARE
from apiece.queries.noise import BITS
from apiece.queries.session import find_accounts
from apiece.synthesis.charges import Charges
from apiece.synthesis.domain import DEFAULT_BINS, Bins, Domain
from apiece.synthesis.fitting import fit_model
from apiece.synthesis.marginals import Clique, Rows
from apiece.synthesis.raking import (
    Levels,
    Margins,
    estimate_counts,
    measure_gaps,
    measure_margins,
    rake_model,
)
from apiece.synthesis.rounds import (
    ROUNDS_PER_COLUMN,
    ExactRandomness,
    Rounds,
    Settings,
    State,
    read_state,
    write_state,
)
from apiece.synthesis.selection import weigh_candidates
from apiece.synthesis.synthetic import Synthetic, promise_errors
from apiece.synthesis.weights import Account, Weights

if TYPE_CHECKING:
    import pandas as pd

    from apiece.ledger import Ledger

# Columns of a marginal of each workload.
WORKLOADS: Final = {"columns": 1, "pairs": 2, "triples": 3}
# Cells of a marginal that may be measured, at most.
MOST_CELLS: Final = 10_000
# The model's size, in units of 2^20 bytes, at most.
MEGABYTES: Final = 16.0
# Streams of a seed that are no round.
# Above every number of a round and below 2³¹, where streams of choices begin.
_RAKING_STREAM: Final = 1 << 20
_ROWS_STREAM: Final = 1 << 21


@dataclass(frozen=True, slots=True)
class Step:
    """How far a synthesis is; all of it may be shown.

    Attributes:
        round: The round that was made; 0 for the columns.
        spent: The share of the budgets that is spent, in [0, 1].
        columns: Names of the columns that it measured.

    Example:
        >>> from apiece.synthesis import Step
        >>> Step(3, 0.25, ("age", "income")).round
        3
    """

    round: int
    spent: float
    columns: tuple[str, ...]


def synthesize(
    frame: object,
    schema: Schema,
    budgets: Budgets,
    *,
    workload: str = "pairs",
    bins: Bins = DEFAULT_BINS,
    rules: Iterable[str] = (),
    left_out: Iterable[str] = (),
    rake: float | None = None,
    rounds: int | None = None,
    model_megabytes: float = MEGABYTES,
    ledger: Ledger | None = None,
    analysis_id: str | None = None,
    checkpoint: str | Path | None = None,
    progress: Callable[[Step], object] | None = None,
    dialect: Dialect = PLAIN,
    seed: int | None = None,
) -> Synthetic:
    """Return a synthetic table of people who each spend exactly the budget that they asked for.

    Every column is measured, and then the marginal that the model fits worst, again and again, with
    noise, as in AIM; a person counts with a weight in proportion to the μ of their budget.

    Args:
        frame: A table (pandas, pyarrow or another that converts to them) or the path of a file.
        schema: What is public of its columns. With `person` a person may have up to
            `rows_per_person` rows, of which surplus ones do not count, by that person's own coins.
        budgets: Of each person, by id where the schema has a person's column; else of each row, in
            the order of the rows. People without a budget are left out.
        workload: Which marginals matter: "columns", "pairs" or "triples".
        bins: How many bins a number or a date has, for all columns, or by name; or edges.
        rules: What no row can be, as "age < 18 and marital = married". Rows that are so are left
            out, and no synthetic row is.
        left_out: Names of declared columns that are not synthesized.
        rake: The share of every budget, in (0, 1), that measures everybody's columns level by
            level, where who consents how far depends on the data; None for no such repair.
        rounds: For how many rounds noise is planned; by default 16 a column. Fewer are made where
            noise is halved on the way.
        model_megabytes: The model's size at most, in units of 2^20 bytes.
        ledger: Charges everybody's whole budget here to their account, before a row is counted.
            Whoever cannot pay is left out.
        analysis_id: The name under which it is charged, once; a new one by default.
        checkpoint: A file that keeps what was released after each round, from which the same call
            goes on. It holds nothing that may not be published.
        progress: Is shown a `Step` after each round.
        dialect: How a CSV file is written.
        seed: None takes randomness from the operating system, as a release needs. A whole number
            repeats it, for tests: who knows it can take the noise off.

    Raises:
        InputError: For settings out of bounds, and for budgets that do not fit the rows.
        DataError: For a schema without columns, and a table that lacks one.
        StateError: For a checkpoint of another call.
        AnalysisError: For an analysis id that stands for other terms.
        NotInstalledError: Without the extra `synthesis`.

    Guarantee:
        Each person's own (ε, δ)-DP under adding or removing all their rows: noise is exact and on a
        grid, choices are exact draws, both are charged before they are made, by one Gaussian filter
        with a budget each. Cells, noise, rounds and weights follow from what was public.

    References:
        McKenna, Mullins, Sheldon, Miklau 2022; docs/synthesis.md; docs/mathematics.md, section 11.

    Example:
        >>> import numpy as np
        >>> import pandas as pd
        >>> from apiece import Budgets, synthesize
        >>> from apiece.datasets import Categorical, Numeric, Schema
        >>> draws = np.random.default_rng(0)
        >>> people = pd.DataFrame({"age": draws.integers(18, 90, 2000)})
        >>> people["works"] = np.where(people["age"] < 65, "yes", "no")
        >>> schema = Schema({"age": Numeric(18, 90), "works": Categorical(("yes", "no"))})
        >>> budgets = Budgets([0.5] * 1000 + [2.0] * 1000, 1e-6)
        >>> synthetic = synthesize(people, schema, budgets, bins=8, seed=0)
        >>> rows = synthetic.frame(1000, seed=0)
        >>> bool(((rows["age"] < 63) == (rows["works"] == "yes")).mean() > 0.9)
        True
    """
    require("synthesis", "mbi", "jax")
    # Stage 1: what is public, and refused or fixed before a row is read.
    plan = _Plan.from_settings(
        schema, budgets, workload, bins, tuple(rules), tuple(left_out), rake, rounds,
        model_megabytes, with_ledger=ledger is not None,
    )  # fmt: skip
    if seed is not None:
        _check.count("seed", seed, least=0)
    name = str(uuid.uuid4()) if analysis_id is None else analysis_id
    if analysis_id is not None and ledger is None:
        raise InputError("analysis_id: names an entry of a ledger; give ledger too")
    # Stage 2: the rows that count, and whose they are; then everybody pays for all that follows.
    table = read_frame(frame, dialect)
    rows, records = _gather_rows(table, schema, budgets, plan, seed)
    if ledger is not None:
        rows, records = _charge_ledger(ledger, name, budgets, plan, rows, records)
    # A checkpoint stands for this plan alone: another one is refused.
    resumed = None if checkpoint is None else _read_checkpoint(Path(checkpoint), plan)
    machine = _Machine(plan, rows, seed, resumed)
    # Stage 3: rounds of choices and measurements, and the final model, which is made of them alone.
    state = machine.run(checkpoint, progress)
    model = fit_model(state.model, state.measurements)
    if machine.margins is not None:
        model = rake_model(model, estimate_counts(model, machine.margins))
    synthetic = Synthetic(
        domain=plan.domain,
        model=model,
        measurements=tuple(state.measurements),
        charges=_list_charges(plan, machine.account),
        public=plan.public,
        margins=machine.margins,
    )
    # Stage 4: real rows are looked at once more, for the steward: this part is in no file.
    check = _check_against_rows(synthetic, plan, rows)
    result = replace(synthetic, check=check)
    # Committed by the digest of all that was released: one charge pays for one table.
    if ledger is not None:
        ledger.commit(name, {"synthesis": _digest(synthetic.to_dict())})
    return result


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Plan:
    """All that is public and fixed before a row is read."""

    domain: Domain
    settings: Settings
    weights: Weights
    levels: Levels
    rake: float | None
    public: Json
    names: AnyArray

    @classmethod
    def from_settings(
        cls,
        schema: Schema,
        budgets: Budgets,
        workload: str,
        bins: Bins,
        rules: tuple[str, ...],
        left_out: tuple[str, ...],
        rake: float | None,
        rounds: int | None,
        model_megabytes: float,
        *,
        with_ledger: bool,
    ) -> _Plan:
        """Return the plan of a call, or raise what `synthesize` does."""
        _check_call(schema, workload, rake)
        megabytes = _check.positive("model_megabytes", model_megabytes)
        domain = Domain.from_schema(schema, bins=bins, rules=rules, but=left_out)
        cliques = _list_workload(domain.sizes, WORKLOADS[workload])
        planned = ROUNDS_PER_COLUMN * len(domain.sizes)
        settings = Settings(
            weigh_candidates(cliques),
            planned if rounds is None else _check.count("rounds", rounds),
            model_megabytes=megabytes,
            zeros=domain.zeros,
        )
        groups = budgets.groups
        # With a ledger an account keeps a share of its δ for charges that are no Gaussians.
        weights = Weights.from_budgets(
            groups.epsilon, groups.delta, slack=SHARE if with_ledger else 0.0
        )
        # Raking takes its share of every budget first.
        available = 1.0 if rake is None else 1.0 - rake
        # Computed from a fresh account, as no row is needed to know the noise.
        first_noise, _ = Account(weights).divide(settings.rounds, settings.choice_share)
        # With a share 1 − r of every μ², noise grows by 1/√(1 − r).
        first_noise /= available**0.5
        public: Json = {
            "schema": schema.to_dict(),
            "bins": bins if isinstance(bins, int) else {k: _plain_bins(v) for k, v in bins.items()},
            "rules": list(rules),
            "left_out": list(left_out),
            "workload": workload,
            "rake": rake,
            "rounds": settings.rounds,
            "model_megabytes": megabytes,
            "sizes": list(domain.sizes),
            "rows_per_person": schema.rows_per_person if schema.person is not None else 1,
            "person": schema.person,
            **_describe_weights(weights.weight, groups.records),
            "first_noise_stddev": first_noise,
            "epsilon": groups.epsilon.tolist(),
            "delta": groups.delta.tolist(),
        }
        levels = Levels.from_weights(weights, groups.records)
        return cls(domain, settings, weights, levels, rake, public, groups.name)


def _check_call(schema: Schema, workload: str, rake: float | None) -> None:
    """Raise what `synthesize` does for settings that no plan can have."""
    if workload not in WORKLOADS:
        raise unknown("workload", workload, WORKLOADS)
    if rake is not None and not 0 < rake < 1:
        raise InputError(f"rake = {rake!r}: must be in (0, 1), a share of every budget; try 0.2")
    if schema.person is not None and schema.rows_per_person is None:
        raise InputError(
            f"schema {schema.name}: rows_per_person is missing; say how many rows a person "
            "brings at most, a public number"
        )


def _describe_weights(weight: Floats, records: Integers) -> Json:
    """Return all people's weight together, its mean, and its squared coefficient of variation.

    weight: (G,) of a person of each group. records: (G,) how many there are.
    """
    # Rows are not known yet: how many there will be, and of what weight, follows from the budgets.
    planned_weight = float((weight * records).sum())
    mean_weight = planned_weight / float(records.sum())
    mean_square = float((weight**2 * records).sum() / records.sum())
    return {
        "planned_weight": planned_weight,
        "mean_weight": mean_weight,
        # E[w²]/E[w]² − 1.
        "weight_variation": max(mean_square / mean_weight**2 - 1, 0.0),
    }


def _plain_bins(value: Any) -> Any:
    return value if isinstance(value, int) else [float(edge) for edge in value]


def _list_workload(sizes: tuple[int, ...], width: int) -> list[Clique]:
    """Return the marginals of so many columns that are small enough, and every column."""
    columns: list[Clique] = [(column,) for column in range(len(sizes))]
    # Products as floats: cells of many columns overflow an integer.
    wide = [
        clique
        for clique in itertools.combinations(range(len(sizes)), min(width, len(sizes)))
        if np.prod([float(sizes[column]) for column in clique]) <= MOST_CELLS
    ]
    # Columns come last in a workload of pairs, each of them once.
    return list(dict.fromkeys([*wide, *columns])) if width > 1 else columns


def expect_errors(
    schema: Schema,
    budgets: Budgets,
    *,
    workload: str = "pairs",
    bins: Bins = DEFAULT_BINS,
    rules: Iterable[str] = (),
    left_out: Iterable[str] = (),
    rake: float | None = None,
    rounds: int | None = None,
) -> list[Json]:
    """Return the error that a synthesis promises for each column, before a row is read.

    Args:
        schema: As for `synthesize`, which explains these.
        budgets: Of the people.
        workload: Which marginals matter.
        bins: Of numbers and dates.
        rules: What no row can be.
        left_out: Columns that are not synthesized.
        rake: The share of budgets for everybody's columns.
        rounds: For which noise is planned.

    Returns:
        For each column its name, its number of cells, and the expected total variation by the noise
        of its first measurement, in [0, 1].

    Raises:
        InputError: As `synthesize`.

    Example:
        >>> from apiece import Budgets
        >>> from apiece.datasets import Numeric, Schema
        >>> from apiece.synthesis.front import expect_errors
        >>> errors = expect_errors(Schema({"age": Numeric(0, 99)}), Budgets([1.0] * 5000, 1e-6))
        >>> errors[0]["cells"], errors[0]["by_noise"] < 0.1
        (16, True)
    """
    plan = _Plan.from_settings(
        schema, budgets, workload, bins, tuple(rules), tuple(left_out), rake, rounds,
        MEGABYTES, with_ledger=False,
    )  # fmt: skip
    noise = float(plan.public["first_noise_stddev"])
    weight = float(plan.public["planned_weight"])
    return promise_errors(plan.domain.names, plan.domain.sizes, noise, weight)


def _gather_rows(
    table: pd.DataFrame, schema: Schema, budgets: Budgets, plan: _Plan, seed: int | None
) -> tuple[Rows, Integers]:
    """Return the rows that take part, and whose record of the budgets each is."""
    if schema.person is None:
        if len(budgets) != len(table):
            raise InputError(
                f"budgets: of {len(budgets)} records for {len(table)} rows; give one a row, or "
                "name the column of persons in the schema"
            )
        # Each row is a record of its own, in the order of the budgets.
        records = np.arange(len(table))
        limit = 1
    else:
        units = Units.of_column(table, schema.person)
        place = _find_budgets(budgets.ids, units.ids)
        records = place[units.owner]
        limit = int(plan.public["rows_per_person"])
    # By the row alone: whether it can be read and is allowed by the rules.
    codes, faulty = plan.domain.encode(table)
    takes_part = records >= 0
    surplus = np.zeros(len(table), bool)
    if schema.person is not None:
        surplus = takes_part & ~_choose_rows(units.owner, limit, seed)
    # Surplus is chosen among all rows of a person, whether they can be read or not: one row cannot
    # tell of another.
    _warn_steward(takes_part, faulty, surplus)
    kept = takes_part & ~faulty & ~surplus
    group = budgets.group_index[records[kept]]
    rows = Rows(codes[kept], group, plan.domain.sizes, limit)
    return rows, records[kept]


def _find_budgets(ids: Ids, people: Ids) -> Integers:
    """Return each person's place among the budgets, −1 without one; ids are compared as texts."""
    # Ids of a table and of budgets may differ in type: 7 and "7" are one person.
    texts = np.asarray(ids).astype(str)
    return find_positions(texts, np.asarray(people).astype(str))


def _choose_rows(owner: Integers, limit: int, seed: int | None) -> Mask:
    """Return which rows count: of each owner so many at most, by coins of that owner's rows."""
    stream = None if seed is None else [seed, _ROWS_STREAM]
    keys = np.random.default_rng(stream).random(owner.size)
    # Rows by owner, at random within: the first `limit` of each stay.
    order = np.lexsort((keys, owner))
    counts = np.bincount(owner)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    # (rows,): rank of each sorted row within its owner.
    rank = np.arange(owner.size) - starts[owner[order]]
    chosen = np.zeros(owner.size, bool)
    chosen[order[rank < limit]] = True
    return chosen


def _warn_steward(takes_part: Mask, faulty: Mask, surplus: Mask) -> None:
    """Tell the steward which rows do not count."""
    doubts = []
    if not takes_part.all():
        doubts.append(f"{int((~takes_part).sum())} of people without a budget")
    if faulty.any():
        doubts.append(
            f"{int(faulty.sum())} with a cell that is not as declared, or ruled out by a rule"
        )
    if surplus.any():
        doubts.append(f"{int(surplus.sum())} beyond rows_per_person")
    if doubts:
        warnings.warn(
            f"synthesize: of {takes_part.size} rows these do not count: {'; '.join(doubts)}; these "
            "numbers are data about people: show them to nobody else",
            StewardWarning,
            stacklevel=5,
        )


def _charge_ledger(
    ledger: Ledger, name: str, budgets: Budgets, plan: _Plan, rows: Rows, records: Integers
) -> tuple[Rows, Integers]:
    """Charge everybody's whole budget, and return the rows of those who paid."""
    import pyarrow as pa

    terms = {"synthesis": plan.public}
    if ledger.status(name, terms) == "committed":
        raise InputError(
            f"analysis {name!r}: its table was made, and its budgets are spent; load what was saved"
        )
    people = np.unique(records)
    # The ledger's accounts by id; who has none is left out like who cannot pay.
    texts = pa.array([str(person) for person in budgets.ids[people].tolist()])
    ids, has_account = find_accounts(texts, ledger)
    charged = people[has_account]
    # The whole limit at once: a synthesis that stops early has spent no less of an account.
    limits = plan.weights.limit[budgets.group_index[charged]]
    admitted = ledger.reserve_costs(name, ids, Costs.fixed(limits), terms=terms)
    paid = charged[np.isin(ids, admitted)]
    if paid.size < people.size:
        warnings.warn(
            f"synthesize: {people.size - paid.size} of {people.size} people have no account, or "
            "not enough in it, and are left out; these numbers are data about people: show them "
            "to nobody else",
            StewardWarning,
            stacklevel=3,
        )
    # From persons back to their rows.
    kept = np.isin(records, paid)
    part = Rows(rows.codes[kept], rows.group[kept], rows.sizes, rows.rows_per_person)
    return part, records[kept]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Resumed:
    """What a checkpoint holds: the state of the rounds, spending, and the margins."""

    state: State
    spent: Floats
    margins: Margins | None


class _Machine:
    """The rounds of a plan, from the beginning or from a checkpoint."""

    def __init__(self, plan: _Plan, rows: Rows, seed: int | None, resumed: _Resumed | None) -> None:
        self._plan = plan
        self._rows = rows
        self._seed = seed
        self._resumed = resumed
        self.margins: Margins | None = None
        spent = None
        if resumed is not None:
            spent = resumed.spent
            self.margins = resumed.margins
        # What was spent before the checkpoint is spent in the new account, too.
        self.account = Account(plan.weights, spent)

    def run(
        self, checkpoint: str | Path | None, progress: Callable[[Step], object] | None
    ) -> State:
        """Return the state after the last round."""
        rounds = Rounds(
            self._rows,
            self.account,
            self._plan.settings,
            lambda number: ExactRandomness(self._seed, number),
        )
        if self._resumed is not None:
            state = self._resumed.state
        else:
            # Raking takes its share before the rounds divide what is left.
            if self._plan.rake is not None:
                self.margins = measure_margins(
                    self._rows,
                    self.account,
                    self._plan.levels,
                    self._plan.rake,
                    ExactRandomness(self._seed, _RAKING_STREAM),
                    BITS,
                )
            state = rounds.begin()
            self._record(state, checkpoint, progress)
        # A round's release is on disk before the next one is charged.
        while not state.finished:
            state = rounds.advance(state)
            self._record(state, checkpoint, progress)
        return state

    def _record(
        self,
        state: State,
        checkpoint: str | Path | None,
        progress: Callable[[Step], object] | None,
    ) -> None:
        """Write a checkpoint, and show how far it is."""
        if checkpoint is not None:
            margins = None
            if self.margins is not None:
                margins = {
                    "noise_stddev": self.margins.noise_stddev.tolist(),
                    "by_level": {str(c): a.tolist() for c, a in self.margins.by_level.items()},
                }
            # The digest of all public settings: a checkpoint goes on only with the same call.
            content = {
                "checkpoint": _digest(self._plan.public),
                "state": write_state(state, self.account.spending),
                "margins": margins,
            }
            write(checkpoint, json.dumps(content), STATE)
        if progress is not None:
            names = self._plan.domain.names
            # Before the first round every column was measured.
            clique = state.measurements[-1].clique if state.round else range(len(names))
            columns = tuple(names[column] for column in clique)
            progress(Step(state.round, self.account.share_spent, columns))


def _read_checkpoint(path: Path, plan: _Plan) -> _Resumed | None:
    """Return what a checkpoint holds; None where there is none yet."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        mark = content["checkpoint"]
    except (OSError, ValueError, TypeError, KeyError):
        raise StateError(f"{path}: is no checkpoint of a synthesis; give another path") from None
    # Noise, rounds and cells follow from the plan: under another one the released values would be
    # misread.
    if mark != _digest(plan.public):
        raise StateError(
            f"{path}: is of another synthesis (other columns, budgets or settings); repeat that "
            "call, or give another path"
        )
    state, spent = read_state(content["state"], plan.domain.sizes, plan.domain.zeros)
    margins = None
    if content["margins"] is not None:
        by_level = {int(c): np.array(a) for c, a in content["margins"]["by_level"].items()}
        margins = Margins(np.array(content["margins"]["noise_stddev"]), by_level)
    return _Resumed(state, spent, margins)


def _digest(value: Json) -> str:
    """Return the SHA-256 of JSON values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _list_charges(plan: _Plan, account: Account) -> Charges:
    """Return what each budget has spent."""
    weights = plan.weights
    return Charges(
        plan.names,
        np.array(weights.epsilon),
        np.array(weights.delta),
        weights.weight,
        weights.limit,
        account.spending,
    )


def _check_against_rows(synthetic: Synthetic, plan: _Plan, rows: Rows) -> Json:
    """Return real errors and how far levels of consent differ: for the steward alone."""
    sizes = plan.domain.sizes
    names = plan.domain.names
    people = max(len(rows.codes), 1)
    columns = []
    for column, size in enumerate(sizes):
        # Without noise: for the steward's eyes alone.
        real = np.bincount(rows.codes[:, column], minlength=size) / people
        error = float(np.abs(real - synthetic.model.probabilities((column,))).sum() / 2)
        columns.append({"column": names[column], "error": error})
    pairs = []
    # A weight of one for every budget: plain counts of rows.
    ones = np.ones(len(plan.weights.weight), np.int64)
    for clique in itertools.combinations(range(len(sizes)), 2):
        if rows.sizes_of(clique) > MOST_CELLS:
            continue
        real = rows.count(clique, ones) / people
        error = float(np.abs(real - synthetic.model.probabilities(clique)).sum() / 2)
        pairs.append({"columns": [names[column] for column in clique], "error": error})
    # Worst pairs first.
    pairs.sort(key=lambda entry: -float(str(entry["error"])))
    gaps = measure_gaps(rows.codes, plan.levels.of_group[rows.group], sizes)
    return {
        "rows": len(rows.codes),
        "columns": columns,
        "pairs": pairs,
        "gaps": {names[column]: gap.tolist() for column, gap in gaps.items()},
    }
