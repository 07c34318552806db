"""Job: everything that one training on a table is made from, as a TOML file and back.

[data]
source = "people.csv"         # CSV, Parquet, or a packaged table: adult, german, credit_default
label = "income"
schema = "people.toml"        # public schema; not needed where a packaged one fits
split = "part"                # column of "train" and "test"; else test_share, by coin
ids = "person"                # column of unique record ids
separator = ";"               # of a CSV file; with decimal = "," and encoding = "latin-1"

[budgets]
epsilon = "consent_epsilon"   # column; or simulated: groups = [{name, epsilon, share}, …]
delta = 1e-5                  # or a column
no_limit_cap = 8              # what "no limit" or inf in that column is read as

[training]
strategy = "sample"
batch_size = 512
steps = 1000
learning_rate_schedule = { points = [[0, 0.1], [50, 1], [1000, 0]], between = "cosine" }
noise_schedule = { points = [[0, 2], [500, 1]], between = "hold" }   # relative noise, by step

[compare]                     # optional: other strategies beside it, several seeds each
strategies = ["uniform", "scale", "sample"]
seeds = 3

[run]
# seed = 0                    # experiments only, never with a ledger; leave it out for a release
out = "runs/first"
ledger = "sqlite:///people.db"  # optional: charged before the first step, under this name
analysis = "income model 1"
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from apiece import _check
from apiece.assignment import STRATEGIES
from apiece.datasets import PACKAGED, PLAIN, Dialect
from apiece.errors import DataError, InputError, unknown
from apiece.plan import Schedule

SECTIONS = {
    "data": (
        "source",
        "label",
        "schema",
        "split",
        "test_share",
        "ids",
        "separator",
        "decimal",
        "encoding",
    ),
    "budgets": ("epsilon", "delta", "groups", "no_limit_cap"),
    "training": (
        "strategy",
        "batch_size",
        "steps",
        "clip_norm",
        "learning_rate",
        "momentum",
        "hidden",
        "learning_rate_schedule",
        "noise_schedule",
    ),
    "compare": ("strategies", "seeds", "settings"),
    "run": ("seed", "out", "ledger", "analysis"),
}


TUNED = ("batch_size", "steps", "clip_norm", "learning_rate", "momentum")


@dataclass(frozen=True, slots=True)
class Share:
    """One group of a simulated population: its name, its ε, and its share of the records."""

    name: str
    epsilon: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training on a table of people with a budget each; see the module for what each is.

    strategies: trained side by side, `seeds` times each; empty for `strategy` alone, once.
    settings: strategy → the values of `TUNED` that are its own; see `of`.
    hidden: widths of hidden layers; none is a (multinomial) logistic regression.
    learning_rate_schedule: factors on the learning rate, by step; noise_schedule: relative noise,
    held from point to point, as in `schedule_noise`. Both are part of every strategy's plan.
    seed: None draws all randomness from the operating system, as a release must.
    out: the run folder; None takes the first free one under runs/.
    separator, decimal, encoding: how a CSV file is written; see `datasets.Dialect`.
    no_limit_cap: the ε that "no limit" and inf are read as; without it they are refused.
    ledger, analysis: charge everyone in this ledger, under this name; `ids` are its persons.
    Raises `InputError` for values out of bounds.
    """

    source: str
    label: str | None = None
    schema: str | None = None
    split: str | None = None
    test_share: float = 0.2
    ids: str | None = None
    separator: str | None = None
    decimal: str = "."
    encoding: str = "utf-8"
    epsilon: str | None = None
    delta: float | str = 1e-5
    groups: tuple[Share, ...] = ()
    no_limit_cap: float | None = None
    strategy: str = "sample"
    batch_size: float = 512
    steps: int = 1000
    clip_norm: float = 1.0
    learning_rate: float = 1.0
    momentum: float = 0.0
    hidden: tuple[int, ...] = ()
    learning_rate_schedule: Schedule | None = None
    noise_schedule: Schedule | None = None
    strategies: tuple[str, ...] = ()
    seeds: int = 1
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seed: int | None = None
    out: str | None = None
    ledger: str | None = field(default=None, repr=False)  # may hold a password
    analysis: str | None = None
    name: str = field(default="run", compare=False)

    def __post_init__(self) -> None:
        for strategy in (self.strategy, *self.strategies):
            if strategy not in STRATEGIES:
                raise unknown("strategy", strategy, STRATEGIES)
        _check.count("steps", self.steps)
        _check.positive("batch_size", self.batch_size)
        _check.positive("clip_norm", self.clip_norm)
        _check.positive("learning_rate", self.learning_rate)
        _check.probability("momentum", self.momentum, high_open=True)
        _check.probability("test_share", self.test_share, high_open=True)
        _check.count("seeds", self.seeds)
        if self.no_limit_cap is not None:
            _check.positive("no_limit_cap", self.no_limit_cap)
        for width in self.hidden:
            _check.count("hidden", width)
        if self.seed is not None:
            _check.count("seed", self.seed, least=0)
        for strategy, own in self.settings.items():
            if strategy not in STRATEGIES:
                raise unknown("strategy in settings", strategy, STRATEGIES)
            for key in own:
                if key not in TUNED:
                    raise unknown(f"setting of {strategy}", key, TUNED)
            replace(self, settings={}, **own)
        noise = self.noise_schedule
        if noise is not None and noise.between != "hold" and len(noise.points) > 1:
            raise InputError(
                f"noise_schedule: between = {noise.between!r}, but the noise of a stage is one "
                'number; give between = "hold" and a point for each stage'
            )
        if (self.ledger is None) != (self.analysis is None):
            raise InputError(
                "ledger: give --ledger URL and --analysis NAME together; the name is what makes a "
                "repeated run charge once"
            )
        if self.ledger is not None and self.ids is None:
            raise InputError("ledger: needs --ids, the column with the persons' ids")
        if self.dialect != PLAIN and (
            self.packaged or Path(self.source).suffix in (".parquet", ".pq")
        ):
            raise InputError(
                f"separator, decimal, encoding: are for CSV files; leave them out for {self.source}"
            )
        if self.ledger is not None:
            from apiece.ledger import check_address

            check_address(self.ledger)  # before anything repeats it, or writes it down
        if self.ledger is not None and self.seed is not None:
            raise InputError(
                f"seed = {self.seed}: with a ledger people pay for noise that nobody can take off "
                "again, and a seed tells it to whoever knows it; leave the seed out"
            )
        drawn = self.split is None and not self.packaged and self.test_share > 0
        if self.ledger is not None and drawn:
            raise InputError(
                "ledger: without --split each run draws anew whom it trains on, so that a repeated "
                "run is another analysis; give --split COLUMN, or --test-share 0"
            )
        if (self.epsilon is None) == (not self.groups):
            raise InputError(
                "budgets: give the column of budgets with --epsilon (in a config: epsilon under "
                "[budgets]), or simulated groups in a config; one of the two"
            )
        if self.strategies and self.strategy not in self.strategies:
            raise InputError(
                f"strategies = {list(self.strategies)}: must contain strategy = {self.strategy!r}, "
                "whose model is kept"
            )

    @property
    def dialect(self) -> Dialect:
        """How the table is written, where it is a CSV file."""
        return Dialect(self.separator, self.decimal, self.encoding)

    @property
    def packaged(self) -> bool:
        """Whether the data come with apiece."""
        return self.source in PACKAGED

    def of(self, strategy: str) -> Job:
        """Return the job with the settings of one strategy."""
        return replace(self, **self.settings.get(strategy, {}))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the job as the sections of its TOML file, every value written out."""
        sections: dict[str, dict[str, Any]] = {}
        for section, names in SECTIONS.items():
            values = {name: getattr(self, name) for name in names}
            values = {name: value for name, value in values.items() if value not in (None, (), {})}
            if values:
                sections[section] = {name: _plain(value) for name, value in values.items()}
        return sections


def job_from_dict(data: Mapping[str, Any], *, name: str, changes: Mapping[str, Any]) -> Job:
    """Return the job in `data` (sections), with the values in `changes` (fields) put over it.

    Raises `OptionError` for a section or key that there is not, with the nearest one.
    """
    values: dict[str, Any] = {"name": name}
    for section, content in data.items():
        if section not in SECTIONS:
            raise unknown("section of the config", section, SECTIONS)
        if not isinstance(content, Mapping):
            raise InputError(f"config: [{section}] must be a table of keys")
        for key, value in content.items():
            if key not in SECTIONS[section]:
                raise unknown(f"key in [{section}]", key, SECTIONS[section])
            values[key] = value
    values |= changes
    values["settings"] = {
        strategy: {key: value for key, value in own.items() if key not in changes}
        for strategy, own in _settings(values.get("settings", {})).items()
    }
    if "source" not in values:
        raise InputError("data: none given; give --data FILE or [data] source in a config")
    for key in ("hidden", "strategies"):
        values[key] = _as_tuple(key, values.get(key, ()))
    for key in ("learning_rate_schedule", "noise_schedule"):
        values[key] = _schedule(key, values.get(key))
    values["groups"] = tuple(_share(g) for g in _as_tuple("groups", values.get("groups", ())))
    _check_texts(values)
    return Job(**values)


def read_job(path: str | Path, changes: Mapping[str, Any] | None = None) -> Job:
    """Return the job in a TOML file; relative paths in it are relative to where apiece runs."""
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"config {path}: cannot be read ({error}); give a TOML file") from None
    return job_from_dict(data, name=path.stem, changes=changes or {})


def complete(job: Job, *, out: Path) -> Job:
    """Return `job` as it is kept in its run folder: with absolute paths."""
    source = job.source if job.packaged else str(Path(job.source).resolve())
    schema = None if job.schema is None else str(Path(job.schema).resolve())
    return replace(job, source=source, schema=schema, out=str(out))


_TEXTS = (
    "source", "label", "schema", "split", "ids", "epsilon", "strategy", "out", "ledger", "analysis",
    "separator", "decimal", "encoding",
)  # fmt: skip


def _check_texts(values: Mapping[str, Any]) -> None:
    assert set(_TEXTS) <= {f.name for f in fields(Job)}
    for name in _TEXTS:
        value = values.get(name)
        if value is not None and not isinstance(value, str):
            raise InputError(f"{name} = {value!r}: must be a text; put it in quotes")


def _settings(value: Any) -> Mapping[str, Mapping[str, Any]]:
    if isinstance(value, Mapping) and all(isinstance(own, Mapping) for own in value.values()):
        return value
    raise InputError(
        f"settings = {value!r}: must be tables, as in settings.scale = {{ steps = 9 }}"
    )


def _share(group: Any) -> Share:
    if isinstance(group, Share):
        return group
    if not isinstance(group, Mapping) or set(group) != {"name", "epsilon", "share"}:
        raise InputError(f"groups: {group!r} must have just name, epsilon and share")
    return Share(str(group["name"]), group["epsilon"], group["share"])


def _schedule(name: str, value: Any) -> Schedule | None:
    if value is None or isinstance(value, Schedule):
        return value
    if not isinstance(value, Mapping) or not {"points"} <= set(value) <= {"points", "between"}:
        raise InputError(
            f"{name} = {value!r}: must have points, and may say between; as in "
            f'{name} = {{ points = [[0, 1], [500, 0.1]], between = "hold" }}'
        )
    try:
        return Schedule(_as_tuple("points", value["points"]), value.get("between", "linear"))
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def _as_tuple(name: str, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} = {value!r}: must be a list")
    return tuple(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Schedule):
        return {"points": _plain(value.points), "between": value.between}
    if isinstance(value, Share):
        return {"name": value.name, "epsilon": value.epsilon, "share": value.share}
    return value
