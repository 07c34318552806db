"""Job: everything that one training on a table is made from, as a TOML file and back.

[data]
source = "people.csv"         # CSV, Parquet, or a packaged table: adult, german, credit_default
label = "income"
schema = "people.toml"        # public schema; not needed where a packaged one fits
split = "part"                # column of "train" and "test"; else test_share, by coin
ids = "person"                # column of unique record ids
person = "patient"            # in place of ids, where a person may have several rows: see --person
people = "consents.csv"       # with person, a second table of budgets and split, a row a person
separator = ";"               # of a CSV file; with decimal = "," and encoding = "latin-1"

[budgets]
epsilon = "consent_epsilon"   # column; or simulated: groups = [{name, epsilon, share}, …]
delta = 1e-5                  # or a column
no_limit_cap = 8              # what "no limit" or inf in that column is read as
levels = [1, 2, 8]            # the choices on the consent form, which reports may then name

[training]
strategy = "sample"
batch_size = 512
steps = 1000
rows_per_person = 5           # with person: the most rows that one brings to a step, or "all"
learning_rate_schedule = { points = [[0, 0.1], [50, 1], [1000, 0]], between = "cosine" }
noise_schedule = { points = [[0, 2], [500, 1]], between = "hold" }   # relative noise, by step

[pate]                        # with method = "pate" under [training]
teachers = 100
questions = 200
public = "public.csv"         # or public_share = 0.5, of the held-out units

[compare]                     # optional: other strategies beside it, several seeds each
strategies = ["uniform", "scale", "sample"]
seeds = 3

[run]
# seed = 0                    # experiments only, never with a ledger; leave it out for a release
out = "runs/first"
ledger = "sqlite:///people.db"  # optional: charged before the first step, under this name
analysis = "income model 1"
purpose = "who earns more than 50,000 a year"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apiece._json import read_toml
from apiece._types import Json
from apiece.errors import InputError, unknown
from apiece.jobs.parts import BudgetColumns, Comparison, Data, Output, Pate, Training
from apiece.jobs.settings import METHODS, plain, settings_of

PARTS = {
    "data": Data,
    "budgets": BudgetColumns,
    "training": Training,
    "pate": Pate,
    "compare": Comparison,
    "run": Output,
}
# Setting → the section that it is in; no two sections have one of the same name.
SECTION_OF = {name: section for section, part in PARTS.items() for name, _ in settings_of(part)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training on a table of people with a budget each: its parts, and a name for messages.

    Attributes:
        data: The table and its columns.
        budgets: Where everyone's ε and δ come from.
        training: One model, and the plan by which it is trained.
        pate: The teachers and the public rows, where the method is PATE.
        compare: Other strategies beside it.
        run: The randomness, and where the results go.
        name: For messages.

    Raises:
        InputError: For parts that do not go together; each checks its own settings.

    Example:
        >>> job = Job(data=Data(source="people.csv", label="income"),
        ...           budgets=BudgetColumns(epsilon="consent"))
        >>> job.strategies
        ('sample',)
    """

    data: Data
    budgets: BudgetColumns
    training: Training = field(default_factory=Training)
    pate: Pate = field(default_factory=Pate)
    compare: Comparison = field(default_factory=Comparison)
    run: Output = field(default_factory=Output)
    name: str = field(default="run", compare=False)

    def __post_init__(self) -> None:
        self._check_method()
        strategy, compared = self.training.strategy, self.compare.strategies
        if compared and strategy not in compared:
            raise InputError(
                f"strategy = {strategy!r}: its model is kept, so it must be one of [compare] "
                f"strategies = {list(compared)}; add it there, or take [compare] out"
            )
        self._check_rows()
        if self.run.ledger is None:
            return
        if self.data.ids is None and self.data.person is None:
            raise InputError("ledger: needs --ids or --person, the column with the persons' ids")
        if self.data.split is None and not self.data.packaged and self.data.test_share > 0:
            raise InputError(
                "ledger: without --split each run draws anew whom it trains on, so that a repeated "
                "run is another analysis; give --split COLUMN, or --test-share 0"
            )

    def _check_method(self) -> None:
        method, compare = self.training.method, self.compare
        if self.training.strategy not in METHODS[method]:
            raise unknown(f"strategy of method {method}", self.training.strategy, METHODS[method])
        for name in (*compare.strategies, *compare.settings):
            if name not in METHODS[method]:
                raise unknown(f"[compare]: strategy of method {method}", name, METHODS[method])
        given = [name for name, _ in settings_of(Pate) if getattr(self.pate, name) is not None]
        if method == "pate":
            self._check_pate()
        elif given:
            raise InputError(f"{given[0]}: is of PATE; give --method pate too, or leave it out")

    def _check_pate(self) -> None:
        training, pate = self.training, self.pate
        for name in ("rows_per_person", "noise_schedule", "learning_rate_schedule"):
            if getattr(training, name) is not None:
                raise InputError(
                    f"{name}: is of DP-SGD; with --method pate leave it out (all rows of a person "
                    "go to that person's teachers)"
                )
        if not training.batch_size == int(training.batch_size):
            raise InputError(
                f"batch_size = {training.batch_size:g}: with --method pate every teacher takes as "
                "many rows to a step; give a whole number"
            )
        if pate.teachers is None:
            raise InputError(
                "teachers: missing; give --teachers, as in --teachers 100: some hundred people a "
                "teacher are many"
            )
        if (pate.public is None) == (pate.public_share is None):
            raise InputError(
                "public: the student learns from public rows; give a table of them with --public, "
                "or declare a share of the held-out rows public with --public-share; one of the two"
            )

    def _check_rows(self) -> None:
        person, rows = self.data.person, self.training.rows_per_person
        if self.training.method == "pate":
            return
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
        own = self.compare.settings.get(strategy, {})
        return replace(self.training, strategy=strategy, **own)

    def seeds_of(self, strategy: str) -> tuple[int, ...] | None:
        """Return the seed of each model of a strategy; None for the system's randomness.

        No two models of the job share noise, and the kept one has the job's seed.

        Args:
            strategy: One of `strategies`.
        """
        if self.run.seed is None:
            return None
        kept = self.training.strategy
        order = [kept, *(s for s in dict.fromkeys(self.compare.strategies) if s != kept)]
        first = self.run.seed + order.index(strategy)
        return tuple(first + repeat * len(order) for repeat in range(self.compare.seeds))

    def seed_of(self, strategy: str, repeat: int) -> int | None:
        """Return the seed of one model of a strategy; None for the system's randomness.

        Args:
            strategy: One of `strategies`.
            repeat: Which of its models, from 0.
        """
        seeds = self.seeds_of(strategy)
        return None if seeds is None else seeds[repeat]

    def to_dict(self) -> dict[str, Json]:
        """Return the job as the sections of its TOML file, every value written out."""
        sections = {}
        for section, part in PARTS.items():
            values = {name: getattr(getattr(self, section), name) for name, _ in settings_of(part)}
            kept = {name: plain(v) for name, v in values.items() if v not in (None, (), {})}
            if kept:
                sections[section] = kept
        return sections


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
                known = [name for name, where in SECTION_OF.items() if where == section]
                raise unknown(f"key in [{section}]", key, known)
            sections[section][key] = value
    for key, value in changes.items():
        sections[SECTION_OF[key]][key] = value
    if "source" not in sections["data"]:
        raise InputError("data: none given; give --data FILE or [data] source in a config")
    parts: dict[str, Any] = {name: part(**sections[name]) for name, part in PARTS.items()}
    parts["compare"] = _without(parts["compare"], changes)
    return Job(**parts, name=name)


def _without(compare: Comparison, changes: Mapping[str, Any]) -> Comparison:
    """Return a comparison in which no strategy has a changed setting of its own."""
    kept = {
        strategy: {key: value for key, value in own.items() if key not in changes}
        for strategy, own in compare.settings.items()
    }
    return replace(compare, settings=kept)


def read_job(path: str | Path, changes: Mapping[str, Any] | None = None) -> Job:
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
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "first.toml"
        ...     _ = path.write_text('[data]\\nsource = "a.csv"\\n[budgets]\\nepsilon = "consent"')
        ...     read_job(path).name
        'first'
    """
    path = Path(path)
    data = read_toml(path, "config")
    return job_from_dict(data, name=path.stem, changes=changes or {})


def complete(job: Job, *, out: Path) -> Job:
    """Return `job` as it is kept in its run folder: with absolute paths."""
    data = job.data
    if not data.packaged:
        data = replace(data, source=str(Path(data.source).resolve()))
    if data.schema is not None:
        data = replace(data, schema=str(Path(data.schema).resolve()))
    if data.people is not None:
        data = replace(data, people=str(Path(data.people).resolve()))
    if job.pate.public is not None:
        public = str(Path(job.pate.public).resolve())
        job = replace(job, pate=replace(job.pate, public=public))
    return replace(job, data=data, run=replace(job.run, out=str(out)))
