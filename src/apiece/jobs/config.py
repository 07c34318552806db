"""Job: everything that one training on a table is made from, as a TOML file and back.

Every setting is declared here, once: as a field of the section that it stands in. The TOML file,
the options of `apiece train`, the checks, the config in a run folder and how metrics.json is read
are made from these fields. `docs/main-job.md` has an example of each.
"""

# Annotations are kept as types, not as texts: they say how a setting is read.
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from apiece._json import plain, read_toml
from apiece._types import Flags, Json
from apiece.assignment.request import Correlated
from apiece.budgets.levels import Levels, Offered
from apiece.datasets.packaged import PACKAGED
from apiece.datasets.tables import PLAIN, Dialect, is_parquet
from apiece.errors import InputError, as_given, unknown
from apiece.jobs.search import Search
from apiece.jobs.settings import (
    JobSection,
    Share,
    check,
    list_strategies,
    pass_through,
    read_address,
    read_below_one,
    read_day,
    read_delta,
    read_held_schedule,
    read_inside_one,
    read_list,
    read_method,
    read_natural,
    read_noise,
    read_row_limit,
    read_schedule,
    read_scope_text,
    read_shares,
    read_strategy,
    refuse_past,
    setting,
    settings_of,
)
from apiece.plan import Schedule

# Public rows that teachers are asked about by default.
_DEFAULT_QUESTIONS: Final = 200
# Mean number of runs of a search by default.
_DEFAULT_RUNS: Final = 20.0


def read_settings_by_strategy(name: str, value: object) -> Mapping[str, Mapping[str, Any]]:
    """Return strategy → the settings of `TUNED` that it has of its own, each checked."""
    is_nested = isinstance(value, Mapping) and all(
        isinstance(settings, Mapping) for settings in value.values()
    )
    if not isinstance(value, Mapping) or not is_nested:
        raise InputError(
            f"{name} = {value!r}: must be tables, as in settings.scale = {{ steps = 9 }}"
        )
    for strategy, settings in value.items():
        read_strategy("strategy in settings", strategy)
        for key in settings:
            if key not in TUNED:
                raise unknown(f"setting of {strategy}", key, TUNED)
        # Raises for values out of bounds.
        Training(strategy=strategy, **settings)
    return {strategy: dict(settings) for strategy, settings in value.items()}


def _read_strategies(name: str, value: object) -> tuple[str, ...]:
    return tuple(read_strategy("strategy", strategy) for strategy in read_list(name, value))


def _read_offer(name: str, value: object) -> Levels:
    return Levels(cast(Offered, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """[data]: the table, its columns, and how a CSV file is written (`datasets.tables.Dialect`).

    Without `split`, `test_share` of the units is held out, by coin. With `person` the persons are
    the units, and budgets and split are theirs; `people` is a second table that says them.
    """

    source: str = setting(
        "CSV or Parquet file, or a packaged table: adult, german, credit_default.",
        required=True, flag="data",
    )  # fmt: skip
    label: str | None = setting("Column to predict.")
    schema: str | None = setting("Public schema (TOML); see apiece schema --help.")
    split: str | None = setting("Column that says 'train' or 'test'.")
    test_share: float = setting(
        "Share of the units to hold out; without --split.", read=read_below_one, value=0.2
    )
    ids: str | None = setting("Column of unique record ids.")
    person: str | None = setting(
        "Column of persons' ids. A person may have several rows, and is protected as a whole."
    )
    people: str | None = setting(
        "Second table of budgets and split, one row a person; with --person."
    )
    separator: str | None = setting("Cell separator of a CSV file: , ; or tab.", default=",")
    decimal: str = setting("Decimal mark of a CSV file: . or ,", value=".")
    encoding: str = setting("Text encoding of a CSV file.", value="utf-8")

    def __post_init__(self) -> None:
        check(self)
        if self.person is not None and self.ids is not None:
            raise InputError(
                "ids: the units are persons, and records have no ids of their own; give one of "
                "--ids and --person"
            )
        if self.people is not None and self.person is None:
            raise InputError("people: give --person too, the column of persons' ids in both tables")
        # A dialect that no table has is a mistake, such as a separator of a Parquet file.
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
    """[budgets]: where everyone's ε and δ come from: a column, or simulated `groups`.

    `levels` are what the consent form offers: public, where those that somebody chose are not. The
    column has their names and no other.
    """

    epsilon: str | None = setting("Column of each record's ε.")
    delta: float | str = setting(
        "One δ for all, or the column of each record's δ.",
        read=read_delta, value=1e-5, default="",
    )  # fmt: skip
    groups: tuple[Share, ...] = setting(read=read_shares, value=())
    no_limit_cap: float | None = setting("The ε to use where a budget is 'no limit' or inf.")
    levels: Levels | None = setting(
        "Words of the budget column, as low=1,medium=3,high=8; or its numbers, as 1,3,8.",
        read=_read_offer,
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.epsilon is None) == (not self.groups):
            raise InputError(
                "budgets: give the column of budgets with --epsilon (in a config: epsilon under "
                "[budgets]), or simulated groups in a config; one of the two"
            )
        # Levels name an ε each, at one δ that is public.
        if self.levels and (self.groups or isinstance(self.delta, str)):
            raise InputError(
                "levels: go with a column of ε and one δ for all; leave them out (simulated groups "
                "are their own declaration)"
            )


# Method → settings that it has where they are left out.
_DEFAULTS: Final[dict[str, Flags]] = {
    "dp-sgd": {"strategy": "sample"},
    "pate": {"strategy": "weight", "batch_size": 32.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """[training]: one model, and the plan by which it is trained.

    With PATE, batch_size is that of each teacher and of the student. Without hidden layers the
    model is a (multinomial) logistic regression. The schedules are factors on the learning rate and
    on the noise, by step, as in `schedule_noise`; they are part of every strategy's plan.
    """

    method: str = setting("Training method: dp-sgd or pate.", read=read_method, value="dp-sgd")
    strategy: str = setting(
        "uniform, scale, sample or threshold; with --method pate uniform, upsample or weight.",
        read=read_strategy, default="sample; weight with --method pate",
    )  # fmt: skip
    # None until people are read: as many as let each group spend its ε, at most 512.
    batch_size: float | None = setting(
        "Expected batch size.",
        default="512, or fewer, so that each group can spend its ε; 32 with --method pate",
        tuned=True,
    )
    steps: int = setting("Number of model updates.", value=1000, tuned=True)
    clip_norm: float = setting("Mean clip norm.", value=1.0, tuned=True)
    learning_rate: float = setting("Learning rate of SGD.", value=1.0, tuned=True)
    momentum: float = setting("Momentum of SGD.", read=read_below_one, value=0.0, tuned=True)
    hidden: tuple[int, ...] = setting("Width of a hidden layer; repeatable.", value=())
    rows_per_person: int | str | None = setting(
        "Most rows that a person brings to a step: a public number, or all.", read=read_row_limit
    )
    learning_rate_schedule: Schedule | None = setting(read=read_schedule)
    noise_schedule: Schedule | None = setting(read=read_held_schedule)
    noise: str | None = setting(
        "independent, with batches drawn by chance; correlated, with fixed batches; or cyclic, "
        "with coins as well.",
        read=read_noise, default="independent",
    )  # fmt: skip
    separation: int | None = setting(
        "Steps between two of one record; with --noise correlated.", default="a pass"
    )
    bands: int | None = setting(
        "Bands of correlated noise: one copy of the model each.", default="the separation"
    )
    buffers: int | None = setting("Copies of the model that correlated noise remembers.")

    def __post_init__(self) -> None:
        check(self)
        self._check_noise()
        # The defaults of a method are written out, so that a stored config says them.
        defaults = _DEFAULTS[self.method]
        # In fixed batches nobody is sampled: groups differ by their clip norms instead.
        if self.method == "dp-sgd" and self.noise == "correlated":
            defaults = {"strategy": "scale"}
        for name, value in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)

    def _check_noise(self) -> None:
        """Raise `InputError` for settings of correlated noise without it, or that do not fit."""
        if self.noise in (None, "independent"):
            for name in ("separation", "bands", "buffers"):
                if getattr(self, name) is not None:
                    remedy = as_given("noise", "correlated")
                    raise InputError(f"{name}: is of correlated noise; give {remedy} too")
            return
        if self.noise_schedule is not None:
            raise InputError(
                "noise_schedule: correlated noise is of one size in all steps; leave it out"
            )
        # Raises for a separation, bands or buffers that do not fit.
        self.correlated_noise()

    def correlated_noise(self) -> Correlated | None:
        """Return how the noise is correlated, for what this optimizer makes of it; None if not."""
        if self.noise in (None, "independent"):
            return None
        schedule = self.learning_rate_schedule
        rates = None
        if schedule is not None:
            # The noise is shaped for what the optimizer makes of the sums, and so needs the rate of
            # every step.
            rates = np.array([schedule.at(step) for step in range(self.steps)])
        return Correlated(
            separation=self.separation,
            bands=self.bands,
            buffers=self.buffers,
            momentum=self.momentum,
            learning_rates=rates,
            sampled=self.noise == "cyclic",
        )


# Settings of a training in which strategies may differ.
TUNED = tuple(name for name, entry in settings_of(Training) if entry.tuned)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pate:
    """[pate]: with method = "pate", the teachers, the public rows, and what is asked about them.

    Public rows are not protected: their features may show in the model. Their labels are not used.
    """

    teachers: int | None = setting("Number of teachers; with --method pate.")
    questions: int | None = setting("Number of public rows to ask about.", default="200")
    answers: int | None = setting("Largest number of answers; with --threshold.")
    threshold: float | None = setting(
        "Share of the noisy votes below which a question stays unanswered.", read=read_inside_one
    )
    public: str | None = setting("Table of public rows for the teachers to label.")
    public_share: float | None = setting(
        "Share of the held-out units to declare public, in place of --public.", read=read_inside_one
    )
    semi_supervised: bool | None = setting(
        "Spread the answers over all public rows; needs scikit-learn.", default="false"
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def question_count(self) -> int:
        """How many public rows the teachers are asked about."""
        return _DEFAULT_QUESTIONS if self.questions is None else self.questions


def check_method(training: Training, pate: Pate, *, searched: bool) -> None:
    """Raise `InputError` for a setting of the other method, and for one that the method needs."""
    remedy = as_given("method", "pate")
    if training.method == "dp-sgd":
        # Every field of the section is None where it is left out.
        for name, _ in settings_of(Pate):
            if getattr(pate, name) is not None:
                raise InputError(f"{name}: is for PATE; give {remedy} too, or leave it out")
        return
    if searched:
        raise InputError(f"search: is for DP-SGD; with {remedy} leave it out")
    for name in ("rows_per_person", "noise_schedule", "learning_rate_schedule", "noise"):
        if getattr(training, name) is not None:
            raise InputError(
                f"{name}: is for DP-SGD; with {remedy} leave it out (all rows of a person go to "
                "that person's teachers)"
            )
    # PATE has a default.
    assert training.batch_size is not None
    if not training.batch_size == int(training.batch_size):
        raise InputError(
            f"batch_size = {training.batch_size:g}: with {remedy} each teacher's step takes that "
            "many rows; give a whole number"
        )
    if pate.teachers is None:
        raise InputError(
            f"teachers: missing; give {as_given('teachers', 100)}, for instance; some hundred "
            "people for each teacher are plenty"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """[search]: a `Search`, with the path of public rows to score on; none without `space`."""

    space: Mapping[str, Any] | None = setting(read=pass_through)
    runs: Any = setting(read=pass_through)
    score_noise: float | None = setting()
    validation: str | None = setting()

    def __post_init__(self) -> None:
        check(self)
        details = (self.runs, self.score_noise, self.validation)
        if self.space is None and any(value is not None for value in details):
            raise InputError(
                "search: space is missing; say which settings are searched, as in "
                "space = { steps = [50, 200] }"
            )
        # Made once and thrown away: its checks raise here, before any file is read.
        if self.space is not None:
            self.search()

    def search(self) -> Search | None:
        """Return what is searched, checked; None for one run."""
        if self.space is None:
            return None
        runs = _DEFAULT_RUNS if self.runs is None else self.runs
        return Search(self.space, runs, self.score_noise, self.validation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """[compare]: other strategies beside the job's, each trained `seeds` times."""

    # None is the job's alone.
    strategies: tuple[str, ...] = setting(read=_read_strategies, value=())
    seeds: int = setting(
        "Number of models to train for each strategy.", value=1, default="1, with --compare 3"
    )
    # Strategy → the values of `TUNED` that it has of its own.
    settings: Mapping[str, Flags] = setting(read=read_settings_by_strategy, factory=dict)

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """[run]: the randomness, where the results go, and the ledger that pays for them.

    Without `seed` all randomness comes from the operating system, as a release must have it.
    """

    seed: int | None = setting(
        "Seed for repeatable experiments; never for a release.", read=read_natural
    )
    out: str | None = setting("Run folder, new or empty.", default="the first free under runs/")
    # Its address may hold a password.
    ledger: str | None = setting(
        "Ledger to charge before the first step; with --ids or --person.",
        read=read_address,
        secret=True,
    )
    analysis: str | None = setting("The run's name in the ledger; repeated, it charges once.")
    scope: str | None = setting(
        "Scope of the charge: querier=NAME,purpose=NAME,…", read=read_scope_text
    )
    purpose: str | None = setting("Purpose of the model, for report and statement.")
    controller: str | None = setting("Who answers for the data; for the statement.")
    contact: str | None = setting("Whom to ask, such as an address; for the statement.")
    valid_until: str | None = setting(
        "Last day of the statement's validity, as 2030-12-31.", read=read_day
    )

    def __post_init__(self) -> None:
        check(self)
        if (self.ledger is None) != (self.analysis is None):
            raise InputError(
                "ledger: give --ledger URL and --analysis NAME together; the name is what makes a "
                "repeated run charge once"
            )
        if self.scope is not None and self.ledger is None:
            raise InputError("scope: is of a charge to a ledger; give --ledger too")
        if self.ledger is not None and self.seed is not None:
            raise InputError(
                f"seed = {self.seed}: with a ledger people pay for secret noise, and whoever knows "
                "the seed knows the noise; leave the seed out"
            )


# What the steward says of a model, in the words of the steward.
SAID: Final = ("purpose", "controller", "contact", "valid_until")


def read_words(words: Mapping[str, object], *known: str) -> dict[str, str]:
    """Return what the steward says now, checked; `known` are names that an error lists too.

    Raises `InputError` for a name that is none of `SAID`, and for a day that is past.
    """
    for name in words:
        if name not in SAID:
            raise unknown("argument", name, (*SAID, *known))
    checked = RunSettings(**words)  # type: ignore[arg-type]
    refuse_past("valid_until", checked.valid_until)
    return {name: getattr(checked, name) for name in words}


# Section of a config → its class.
PARTS = {
    "data": Data,
    "budgets": BudgetColumns,
    "training": Training,
    "pate": Pate,
    "search": SearchSettings,
    "compare": Comparison,
    "run": RunSettings,
}
# No two sections have a setting of the same name.
SETTINGS: Final = {
    name: entry for section in PARTS.values() for name, entry in settings_of(section)
}
# Setting → its section.
SECTION_OF: Final = {
    name: section for section, part in PARTS.items() for name, _ in settings_of(part)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training on a table of people with a budget each: its parts, and a name for messages.

    Attributes:
        data: The table and its columns.
        budgets: Where everyone's ε and δ come from.
        training: One model, and the plan by which it is trained.
        pate: The teachers and the public rows, where the method is PATE.
        search: Settings that it is the best of.
        compare: Other strategies beside it.
        run: The randomness, and where the results go.
        name: For messages.

    Raises:
        InputError: For parts that do not go together; each checks its own settings.

    Example:
        >>> from apiece.jobs import Job
        >>> from apiece.jobs.config import BudgetColumns, Data
        >>> job = Job(data=Data(source="people.csv", label="income"),
        ...           budgets=BudgetColumns(epsilon="consent"))
        >>> job.strategies
        ('sample',)
    """

    data: Data
    budgets: BudgetColumns
    training: Training = field(default_factory=Training)
    pate: Pate = field(default_factory=Pate)
    search: SearchSettings = field(default_factory=SearchSettings)
    compare: Comparison = field(default_factory=Comparison)
    run: RunSettings = field(default_factory=RunSettings)
    name: str = field(default="run", compare=False)

    def __post_init__(self) -> None:
        self._check_strategies()
        self._check_method()
        strategies = self.compare.strategies
        if strategies and self.training.strategy not in strategies:
            raise InputError(
                f"strategy = {self.training.strategy!r}: its model is kept, so it must be one of "
                f"[compare] strategies = {list(strategies)}; add it there, or take [compare] out"
            )
        if self.search.space is not None:
            self._check_search()
        if self.run.ledger is not None:
            self._check_ledger()

    def _check_strategies(self) -> None:
        method = self.training.method
        known = list_strategies(method)
        if self.training.strategy not in known:
            raise unknown(f"strategy of method {method}", self.training.strategy, known)
        for name in (*self.compare.strategies, *self.compare.settings):
            if name not in known:
                raise unknown(f"[compare]: strategy of method {method}", name, known)

    def _check_method(self) -> None:
        pate = self.pate
        check_method(self.training, pate, searched=self.search.space is not None)
        if self.training.method == "dp-sgd":
            self._check_rows_per_person()
        elif (pate.public is None) == (pate.public_share is None):
            raise InputError(
                "public: the student learns from public rows; give a table of them with --public, "
                "or declare a share of the held-out rows public with --public-share; one of the two"
            )

    def _check_ledger(self) -> None:
        if self.data.ids is None and self.data.person is None:
            raise InputError("ledger: needs --ids or --person, the column with the persons' ids")
        if self.data.split_column is None and self.data.test_share > 0:
            raise InputError(
                "ledger: without --split each run draws anew whom it trains on, so that a repeated "
                "run is another analysis; give --split COLUMN, or --test-share 0"
            )

    def _check_search(self) -> None:
        compare = self.compare
        if compare.strategies or compare.settings or compare.seeds > 1:
            raise InputError(
                "search: chooses one model; leave out [compare], --compare and --seeds"
            )
        for name in ("noise_schedule", "learning_rate_schedule", "noise"):
            if getattr(self.training, name) is not None:
                raise InputError(f"{name}: is for one run; with a search leave it out")

    def _check_rows_per_person(self) -> None:
        person = self.data.person
        rows = self.training.rows_per_person
        if person is None and rows is not None:
            raise InputError(
                "rows_per_person: without --person each row is a record; give --person COLUMN, or "
                "leave it out"
            )
        if person is not None and rows is None:
            raise InputError(
                "rows_per_person: missing; with --person say how many rows a person brings to a "
                "step at most, as in --rows-per-person 5 (or all): a public number, never one "
                "read from these people's rows"
            )

    @property
    def strategies(self) -> tuple[str, ...]:
        """The strategies that are trained, in order: those compared, or the job's alone."""
        return self.compare.strategies or (self.training.strategy,)

    def training_of(self, strategy: str) -> Training:
        """Return how one strategy is trained: as the job's, but for what is its own.

        Args:
            strategy: One of `strategies`.
        """
        return replace(self.training, strategy=strategy, **self.compare.settings.get(strategy, {}))

    def seeds_of(self, strategy: str) -> tuple[int, ...] | None:
        """Return the seed of each model of a strategy; None for the system's randomness.

        No two models of the job share noise, and the kept one has the job's seed.

        Args:
            strategy: One of `strategies`.
        """
        if self.run.seed is None:
            return None
        # The strategy of the released model comes first: its first model has the job's own seed.
        strategies = (self.training.strategy, *self.compare.strategies)
        order = list(dict.fromkeys(strategies))
        first_seed = self.run.seed + order.index(strategy)
        # Seeds interleave: strategy s has seed + s, seed + s + m, seed + s + 2m, … for m
        # strategies, and no two are equal.
        return tuple(first_seed + repeat * len(order) for repeat in range(self.compare.seeds))

    def to_dict(self) -> dict[str, Json]:
        """Return the job as the sections of its TOML file, every value written out."""
        sections = {}
        for name in PARTS:
            content = _write_section(getattr(self, name))
            if content:
                sections[name] = content
        return sections


def _write_section(section: JobSection) -> Json:
    """Return the settings of a section that are not left out, as TOML holds them."""
    content = {}
    for name, _ in settings_of(section):
        value = getattr(section, name)
        # What is left out is not written: a config that is read back has the same defaults.
        if value not in (None, (), {}):
            content[name] = plain(value)
    return content


def job_from_dict(data: Mapping[str, Any], *, name: str, changes: Mapping[str, Any]) -> Job:
    """Return the job in a dictionary of sections.

    Args:
        data: Section → setting → value, as in a TOML file.
        name: For messages.
        changes: Setting → value, put over it. A changed setting holds for every strategy, also one
            that has its own.

    Raises:
        OptionError: For a section or key that there is not, with the nearest one.
        InputError: For bad values.

    Example:
        >>> from apiece.jobs.config import job_from_dict
        >>> data = {"data": {"source": "people.csv"}, "budgets": {"epsilon": "consent"}}
        >>> job_from_dict(data, name="first", changes={"steps": 20}).training.steps
        20
    """
    sections: dict[str, Json] = {section: {} for section in PARTS}
    for section, content in data.items():
        if section not in PARTS:
            raise unknown("section of the config", section, PARTS)
        if not isinstance(content, Mapping):
            raise InputError(f"config: [{section}] must be a table of keys")
        for key, value in content.items():
            if SECTION_OF.get(key) != section:
                known = [name for name, owner in SECTION_OF.items() if owner == section]
                raise unknown(f"key in [{section}]", key, known)
            sections[section][key] = value
    # Options of the command line have no section: names are unique, so that each belongs to one.
    for key, value in changes.items():
        sections[SECTION_OF[key]][key] = value
    if "source" not in sections["data"]:
        raise InputError("data: none given; give --data FILE or [data] source in a config")
    # Each section checks its own settings, and `Job` what they are together.
    parts: dict[str, Any] = {name: part(**sections[name]) for name, part in PARTS.items()}
    # A setting that is given anew holds for every strategy.
    compare = parts["compare"]
    unchanged = {}
    for strategy, settings in compare.settings.items():
        unchanged[strategy] = {key: value for key, value in settings.items() if key not in changes}
    parts["compare"] = replace(compare, settings=unchanged)
    return Job(**parts, name=name)


def read_job(path: str | Path, changes: Mapping[str, object] | None = None) -> Job:
    """Return the job in a TOML file.

    Args:
        path: Of the file; relative paths in it are relative to where apiece runs.
        changes: As for `job_from_dict`.

    Raises:
        DataError: For a file that cannot be read.
        OptionError: As for `job_from_dict`.
        InputError: As for `job_from_dict`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from apiece.jobs import read_job
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "first.toml"
        ...     _ = path.write_text('[data]\\nsource = "a.csv"\\n[budgets]\\nepsilon = "consent"')
        ...     read_job(path).name
        'first'
    """
    path = Path(path)
    return job_from_dict(read_toml(path, "config"), name=path.stem, changes=changes or {})


def complete(job: Job, *, out: Path) -> Job:
    """Return a job as its run folder holds it: with absolute paths."""
    # A packaged table is known by its name, and every other path would mean something else where
    # the run is resumed from.
    table_paths = ["schema", "people"]
    if not job.data.packaged:
        table_paths.append("source")
    return replace(
        job,
        data=_resolve_paths(job.data, table_paths),
        pate=_resolve_paths(job.pate, ["public"]),
        search=_resolve_paths(job.search, ["validation"]),
        run=replace(job.run, out=str(out)),
    )


def _resolve_paths(section: Any, names: Sequence[str]) -> Any:
    """Return a section with absolute paths in some of its settings."""
    paths = {}
    for name in names:
        path = getattr(section, name)
        if path is not None:
            paths[name] = str(Path(path).resolve())
    return replace(section, **paths)
