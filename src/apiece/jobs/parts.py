"""The parts of a job, one a section of its TOML file: every setting is declared here, once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apiece import _check
from apiece.datasets import PACKAGED, PLAIN, Dialect, is_parquet
from apiece.errors import InputError, unknown
from apiece.jobs import settings as of
from apiece.jobs.settings import Share, check, setting, settings_of
from apiece.plan import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """[data]: the table, its columns, and how a CSV file is written (`datasets.Dialect`).

    source: a CSV or Parquet file, or the name of a packaged table. split: a column of "train" and
    "test"; without one `test_share` of the units is held out, by coin. person: where a person may
    have several rows, the column of their ids; the persons are then the units, and budgets and
    split are of persons. people: a second table, with a row a person, that says them.
    Raises `InputError` for a setting out of bounds, settings that do not go together, or a dialect
    for what is no CSV file.
    """

    source: str = setting(
        of.text, required=True, flag="data",
        help="CSV or Parquet, or packaged: adult, german, credit_default.",
    )  # fmt: skip
    label: str | None = setting(of.text, help="Column to predict.")
    schema: str | None = setting(of.text, help="Public schema (TOML); see: apiece schema --help.")
    split: str | None = setting(of.text, help="Column that says 'train' or 'test'.")
    test_share: float = setting(
        of.below_one, value=0.2, kind=float, help="Without --split: share held out."
    )
    ids: str | None = setting(of.text, help="Column with unique record ids.")
    person: str | None = setting(
        of.text, help="Column with persons' ids, who may have several rows; protects persons."
    )
    people: str | None = setting(
        of.text, help="Second table, a row a person: budgets and split; with --person."
    )
    separator: str | None = setting(of.text, default=",", help="Of a CSV file's cells: , ; or tab.")
    decimal: str = setting(of.text, value=".", help="Decimal mark in a CSV file: . or ,")
    encoding: str = setting(of.text, value="utf-8", help="Of a CSV file.")

    def __post_init__(self) -> None:
        check(self)
        if self.person is not None and self.ids is not None:
            raise InputError(
                "ids: records have no ids of their own where the units are persons; give one of "
                "--ids and --person"
            )
        if self.people is not None and self.person is None:
            raise InputError("people: give --person too, the column of persons' ids in both tables")
        tables = [self.source] if self.people is None else [self.source, self.people]
        declared = Dialect(self.separator, self.decimal, self.encoding)
        if declared != PLAIN and all(self.dialect_of(table) == PLAIN for table in tables):
            raise InputError(
                "separator, decimal, encoding: are for CSV files; leave them out for "
                + " and ".join(tables)
            )

    @property
    def unit(self) -> str:
        """Whose presence is hidden: "record" (a row) or "person" (all rows of one id)."""
        return "record" if self.person is None else "person"

    def dialect_of(self, table: str) -> Dialect:
        """Return how one of the tables is written: as declared, where it is a CSV file."""
        if table in PACKAGED or is_parquet(table):
            return PLAIN
        return Dialect(self.separator, self.decimal, self.encoding)

    @property
    def packaged(self) -> bool:
        """Whether the data come with apiece."""
        return self.source in PACKAGED

    @property
    def split_column(self) -> str | None:
        """The column that says who is trained on; None where coins do."""
        return self.split or (PACKAGED[self.source].split if self.packaged else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetColumns:
    """[budgets]: where everyone's ε and δ come from.

    epsilon: a column; or simulated: groups. no_limit_cap: the ε that "no limit" and inf are read
    as; without it they are refused. levels: the ε that people could choose from, as the consent
    form says: public, where those that somebody chose are not; any other in the column is refused.
    Raises `InputError` for both or neither of epsilon and groups, and for levels of groups or
    without one δ for all.
    """

    epsilon: str | None = setting(of.text, help="Column with each record's ε.")
    delta: float | str = setting(
        of.delta, value=1e-5, default="1e-5", help="One δ for all, or the name of a column."
    )
    groups: tuple[Share, ...] = setting(of.shares, value=())
    no_limit_cap: float | None = setting(
        _check.positive, kind=float, help="The ε that 'no limit' and inf are read as."
    )
    levels: tuple[float, ...] = setting(
        of.levels, value=(), kind=float, repeatable=True, flag="level",
        help="An ε that people could choose, as the consent form says; repeatable.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)
        if (self.epsilon is None) == (not self.groups):
            raise InputError(
                "budgets: give the column of budgets with --epsilon (in a config: epsilon under "
                "[budgets]), or simulated groups in a config; one of the two"
            )
        if self.levels and (self.groups or isinstance(self.delta, str)):
            raise InputError(
                "levels: are of a column of ε with one δ for all; leave them out (simulated groups "
                "are declared as they are)"
            )


_DEFAULTS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"strategy": "sample", "batch_size": 512.0},
    "pate": {"strategy": "weight", "batch_size": 32.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """[training]: one model, and the plan by which it is trained.

    method: "dp-sgd", or "pate": teachers and a student, see [pate]; batch_size is then of each.
    hidden: widths of hidden layers; none is a (multinomial) logistic regression.
    rows_per_person: with [data] person, the most rows that a person brings to a step, or "all".
    learning_rate_schedule: factors on the learning rate, by step; noise_schedule: relative noise,
    held from point to point, as in `schedule_noise`. Both are part of every strategy's plan.
    """

    method: str = setting(of.method, value="dp-sgd", help="dp-sgd or pate.")
    strategy: str = setting(
        of.strategy, default="sample; weight with --method pate",
        help="uniform, scale, sample or threshold; with --method pate uniform, upsample or weight.",
    )  # fmt: skip
    batch_size: float = setting(
        _check.positive, kind=float, tuned=True, default="512; 32 with --method pate",
        help="Expected batch size.",
    )  # fmt: skip
    steps: int = setting(_check.count, value=1000, kind=int, tuned=True, help="Number of updates.")
    clip_norm: float = setting(
        _check.positive, value=1.0, kind=float, tuned=True, help="Mean clip norm."
    )
    learning_rate: float = setting(
        _check.positive, value=1.0, kind=float, tuned=True, help="Of plain SGD."
    )
    momentum: float = setting(of.below_one, value=0.0, kind=float, tuned=True, help="Of SGD.")
    hidden: tuple[int, ...] = setting(
        of.counts, value=(), kind=int, repeatable=True,
        help="Width of a hidden layer; repeatable.",
    )  # fmt: skip
    rows_per_person: int | str | None = setting(
        of.rows, help="Most rows that a person brings to a step, a public number, or all."
    )
    learning_rate_schedule: Schedule | None = setting(of.schedule)
    noise_schedule: Schedule | None = setting(of.held_schedule)

    def __post_init__(self) -> None:
        check(self)
        for name, value in _DEFAULTS[self.method].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)


TUNED = tuple(name for name, how in settings_of(Training) if how.tuned)


def _own_settings(name: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the settings that strategies have of their own, each checked; see `TUNED`."""
    if not isinstance(value, Mapping) or not all(isinstance(v, Mapping) for v in value.values()):
        raise InputError(
            f"{name} = {value!r}: must be tables, as in settings.scale = {{ steps = 9 }}"
        )
    for strategy, own in value.items():
        of.strategy("strategy in settings", strategy)
        for key in own:
            if key not in TUNED:
                raise unknown(f"setting of {strategy}", key, TUNED)
        Training(strategy=strategy, **own)
    return {strategy: dict(own) for strategy, own in value.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pate:
    """[pate]: with method = "pate", the teachers, the public rows, and what is asked about them.

    public: a table of public rows, with the features' columns; or public_share: of the units that
    are held out, the share that is declared public. What is public is not protected: its features
    may show in the model. Labels of public rows are not used. threshold: as for `plan_votes`.
    """

    teachers: int | None = setting(
        _check.count, kind=int, help="How many teachers; with --method pate."
    )
    questions: int | None = setting(
        _check.count, kind=int, default="200",
        help="How many public rows the teachers are asked about.",
    )  # fmt: skip
    answers: int | None = setting(
        _check.count, kind=int, help="At most so many are answered; with --threshold."
    )
    threshold: float | None = setting(
        of.share, kind=float, help="Share of the votes, with noise, below which none is answered."
    )
    public: str | None = setting(
        of.text, help="Table of public rows that teachers are asked about."
    )
    public_share: float | None = setting(
        of.share, kind=float, help="Or: share of the held-out units that is declared public."
    )
    semi_supervised: bool | None = setting(
        of.yes_or_no, kind=bool, default="false",
        help="Spread the answers over all public rows; needs scikit-learn.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check(self)

    @property
    def asked(self) -> int:
        """How many public rows the teachers are asked about."""
        return 200 if self.questions is None else self.questions


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """[compare]: other strategies beside the job's, each trained `seeds` times.

    strategies: none is the job's alone. settings: strategy → the values of `TUNED` of its own.
    """

    strategies: tuple[str, ...] = setting(of.strategies, value=())
    seeds: int = setting(
        _check.count, value=1, kind=int, default="1, with --compare 3",
        help="How often to train each strategy.",
    )  # fmt: skip
    settings: Mapping[str, Mapping[str, Any]] = setting(_own_settings, factory=dict)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """[run]: the randomness, where the results go, and the ledger that pays for them.

    seed: None draws all randomness from the operating system, as a release must.
    out: the run folder; None takes the first free one under runs/.
    ledger, analysis: charge everyone in this ledger, under this name.
    purpose: what the model is for, as report and statement say it.
    Raises `InputError` for one of ledger and analysis without the other, and for a ledger with a
    seed.
    """

    seed: int | None = setting(
        of.seed, kind=int, help="Repeatable randomness: for experiments, not for release."
    )
    out: str | None = setting(
        of.text, default="the first free under runs/", help="Run folder, new or empty."
    )
    ledger: str | None = setting(  # its address may hold a password
        of.ledger, secret=True, help="Charge this ledger before the first step; needs ids."
    )
    analysis: str | None = setting(
        of.text, help="The run's name in the ledger; repeated, it charges once."
    )
    purpose: str | None = setting(
        of.text, help="What the model is for, as report and statement say it."
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.ledger is None) != (self.analysis is None):
            raise InputError(
                "ledger: give --ledger URL and --analysis NAME together; the name is what makes a "
                "repeated run charge once"
            )
        if self.ledger is not None and self.seed is not None:
            raise InputError(
                f"seed = {self.seed}: with a ledger people pay for noise that nobody can take off "
                "again, and a seed tells it to whoever knows it; leave the seed out"
            )
