"""Run: what a finished job found, as reports read it, and as its folder keeps it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from apiece import _json
from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.budgets.frames import capped
from apiece.contract import explain
from apiece.errors import DataError, StateError
from apiece.jobs.config import Job, read_job
from apiece.jobs.trained import (
    FORMAT,
    Accuracies,
    Bound,
    Errors,
    Facts,
    Interval,
    Level,
    Release,
    Trained,
    checklist,
    config_digest,
    require_same_digest,
    require_sealed,
    salt_of,
    sealed,
)
from apiece.mechanisms import Composed, Repeated
from apiece.plan import Plan

MOST = 10**12  # of records, features and models
_whole = _json.whole(MOST)
_seed = _json.whole(2**128)


def _share(value: Any, where: str) -> float:
    found = _json.number(value, where)
    if not 0 <= found <= 1:
        raise DataError(f"{where} = {found!r}: must be in [0, 1]")
    return found


def _unit(value: Any, where: str) -> str:
    if value not in ("record", "person"):
        raise DataError(f"{where} = {value!r}: must be record or person")
    return str(value)


def _ends(value: Any, where: str) -> tuple[float, float]:
    found = _json.listed(_json.number)(value, where)
    if len(found) != 2 or not found[0] < found[1]:
        raise DataError(f"{where} = {value!r}: must be a lower and an upper end")
    return found[0], found[1]


def _interval(value: Any, where: str) -> Interval:
    reads: dict[str, _json.Reader[Any]] = dict.fromkeys(("value", "lower", "upper"), _json.number)
    found = Interval(**_json.fields(value, where, reads))
    if not found.lower <= found.value <= found.upper:
        raise DataError(f"{where} = {value!r}: an interval that does not hold its value")
    return found


def _errors(value: Any, where: str) -> Errors:
    reads: dict[str, _json.Reader[Any]] = {"mean_absolute": _interval, "r2": _interval}
    return Errors(**_json.fields(value, where, reads))


def _as_is(value: Any, where: str) -> Any:
    return value  # computed anew, and compared


def _plan(value: Any, where: str) -> Plan:
    return Plan.from_dict(value)


def _day(value: Any, where: str) -> str:
    found = _json.text(value, where)
    try:
        same = date.fromisoformat(found).isoformat() == found
    except ValueError:
        same = False
    if not same:
        raise DataError(f"{where} = {found!r}: must be a day, as 2026-01-31")
    return found


def _texts(value: Any, where: str) -> tuple[str, ...]:
    return tuple(_json.listed(_json.text)(value, where))


def _object_of(read: _json.Reader[Any], value: Any, where: str) -> Json:
    return _json.fields(value, where, dict.fromkeys(value if isinstance(value, dict) else (), read))


_FACTS: dict[str, _json.Reader[Any]] = {
    "source": _json.text,
    "packaged": _json.flag,
    "label": _json.text,
    "classes": _texts,
    "schema": _json.text,
    "features": _whole,
    "unit": _unit,
    "target_range": _json.maybe(_ends),
    "training_records": _whole,
    "test_records": _whole,
    "commonest_class_share": _json.maybe(_share),
    "simulated_budgets": _json.flag,
    "columns": lambda value, where: _object_of(_as_is, value, where),
    "fingerprints": lambda value, where: _object_of(_json.text, value, where),
}
_SETTINGS: dict[str, _json.Reader[Any]] = {
    "batch_size": _json.number,
    "steps": _whole,
    "clip_norm": _json.number,
    "learning_rate": _json.number,
    "momentum": _json.number,
}
_OF_PATE: dict[str, _json.Reader[Any]] = {
    "teachers": _whole,
    "questions": _whole,
    "answers": _whole,
    "threshold": _share,
    "semi_supervised": _whole,
}
_TRAINED: dict[str, _json.Reader[Any]] = {
    "strategy": _json.text,
    "plan": _plan,
    "settings": lambda value, where: _json.fields(value, where, _SETTINGS, _OF_PATE),
    "seeds": _json.maybe(_json.listed(_seed)),
    "test_accuracy": _json.listed(_share),
    "test_accuracy_mean": _as_is,
    "test_accuracy_stddev": _as_is,
    "test_accuracy_by_person": _json.listed(_share),
    "test_errors": _json.listed(_errors),
    "seconds": _json.number,
}


def _bound(value: Any, where: str) -> Bound:
    found = _json.fields(value, where, _BOUND)
    if not re.fullmatch("[0-9a-f]{32}", found["salt"]):
        raise DataError(f"{where}.salt = {found['salt']!r}: must be 32 hexadecimal digits")
    return Bound(**found)


_BOUND: dict[str, _json.Reader[Any]] = {
    "weights": _json.text,
    "config": _json.text,
    "salt": _json.text,
    "head": _json.maybe(_json.text),
}


def _rows(value: Any, where: str) -> int | str:
    return "all" if value == "all" else _whole(value, where)


def _object(**readers: _json.Reader[Any]) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, readers)


_LEVEL: dict[str, _json.Reader[Any]] = {
    "name": _json.text,
    "epsilon": _json.number,
    "delta": _json.number,
}


def _level(value: Any, where: str) -> Level:
    return Level(**_json.fields(value, where, _LEVEL))


def _shares(value: Any, where: str) -> tuple[float, ...]:
    return tuple(_json.listed(_share)(value, where))


def _point(value: Any, where: str) -> tuple[int, float]:
    step, figure = value if isinstance(value, list) and len(value) == 2 else (None, None)
    return _whole(step, where), _json.number(figure, where)


def _tested(value: Any, where: str) -> Accuracies:
    read = _json.fields(value, where, _TESTED)
    found: Json = {k: tuple(v) if isinstance(v, list) else v for k, v in read.items()}
    return Accuracies(**found)


_TESTED: dict[str, _json.Reader[Any]] = {
    "accuracy": _json.maybe(_interval),
    "by_class": _json.listed(_json.maybe(_interval)),
    "confusion": _json.listed(_json.maybe(_shares)),
    "by_group": _json.listed(_json.maybe(_interval)),
    "curve": _json.listed(_point),
}
_TRAINING: dict[str, _json.Reader[Any]] = {
    "strategy": _json.text,
    "hidden": _json.listed(_whole),
    "rows_per_person": _json.maybe(_rows),
}
_RUN: dict[str, _json.Reader[Any]] = {
    "apiece": _json.text,
    "name": _json.text,
    "versions": lambda value, where: _object_of(_json.text, value, where),
    "purpose": _json.maybe(_json.text),
    "finished": _json.maybe(_day),
    "data": lambda value, where: Facts(**_json.fields(value, where, _FACTS)),
    "training": lambda value, where: _json.fields(value, where, _TRAINING, {"method": _json.text}),
    "ledger": _json.maybe(_object(analysis=_json.text)),
    "no_limit_cap": _json.maybe(_json.number),
    "levels": _json.listed(_level),
    "randomness": _object(seed=_json.maybe(_seed), noise=_as_is),
    "strategies": lambda value, where: tuple(_json.listed(_trained)(value, where)),
    "all_models": _object(models=_whole, groups=_as_is),
    "release": _as_is,
    "tested": _json.maybe(_tested),
    "bound": _json.maybe(_bound),
}


def _trained(value: Any, where: str) -> Trained:
    found = _json.fields(value, where, _TRAINED)
    del found["test_accuracy_mean"], found["test_accuracy_stddev"]
    seeds = found["seeds"]
    return Trained(
        **{
            **found,
            "seeds": None if seeds is None else tuple(seeds),
            "test_accuracy": tuple(found["test_accuracy"]),
            "test_accuracy_by_person": tuple(found["test_accuracy_by_person"]),
            "test_errors": tuple(found["test_errors"]),
        }
    )


def read_json(path: Path) -> Any:
    """Return what a file of a run folder holds; raise `DataError` where it cannot be read."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a run folder") from None
    return _json.loads(text, str(path))


def _arguments(data: Any, where: str) -> tuple[Json, int]:
    """Return the arguments of `Run`, but for its totals, and how many models each strategy has.

    Raises `InputError` for what `Run.to_dict` did not write, and for parts that do not fit.
    """
    top = _json.fields(data, where, _RUN)
    strategies: tuple[Trained, ...] = top["strategies"]
    models, training = top["all_models"]["models"], top["training"]
    names = [found.strategy for found in strategies]
    if training["strategy"] not in names or len(set(names)) < len(names):
        raise DataError(f"{where}: strategy {training['strategy']!r} is not among {names}, once")
    repeats, rest = divmod(models, len(names))
    if rest or not repeats > 0:
        raise DataError(f"{where}: {models} models of {len(names)} strategies")
    for found in strategies:
        _require_fitting(found, top["data"], repeats, strategies[0].plan, where)
    _require_told(top, strategies[0].plan, where)
    ledger = top["ledger"]
    return {
        "version": top["apiece"],
        "name": top["name"],
        "data": top["data"],
        "strategy": training["strategy"],
        "hidden": tuple(training["hidden"]),
        "rows_per_person": training["rows_per_person"],
        "method": training.get("method", "dp-sgd"),
        "versions": top["versions"],
        "purpose": top["purpose"],
        "finished": top["finished"],
        "levels": tuple(top["levels"]),
        "tested": top["tested"],
        "bound": top["bound"],
        "analysis": None if ledger is None else ledger["analysis"],
        "no_limit_cap": top["no_limit_cap"],
        "seed": top["randomness"]["seed"],
        "strategies": strategies,
        "models": models,
    }, repeats


def _require_fitting(found: Trained, data: Facts, repeats: int, first: Plan, where: str) -> None:
    """Raise `DataError` where one strategy's part cannot be of the same run as the others'."""
    number = data.target_range is not None
    tested = repeats * (data.test_records > 0) * (not number)
    wrong = {
        "test_accuracy": len(found.test_accuracy) != tested,
        "test_accuracy_by_person": (
            len(found.test_accuracy_by_person) != tested * (data.unit == "person")
        ),
        "test_errors": len(found.test_errors) not in (0, repeats * number),
        "data.classes": number == bool(data.classes),
        "plan.groups": not found.plan.budget_groups.same_as(first.budget_groups),
        "plan.unit": found.plan.unit != data.unit,
        "plan.records": found.plan.records != data.training_records,
        **found.contradicted,
    }
    for name, bad in wrong.items():
        if bad:
            raise DataError(
                f"{where}: {name} of strategy {found.strategy!r} does not fit the rest of the run; "
                "give a folder as apiece train wrote it"
            )


def _require_told(top: Json, plan: Plan, where: str) -> None:
    """Raise `DataError` where levels or figures are of other budgets or classes than the run's."""
    groups, levels, tested = plan.budget_groups, top["levels"], top["tested"]
    declared = {(level.epsilon, level.delta) for level in levels}
    asked = set(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    classes = len(top["data"].classes)
    wrong = {"levels": bool(levels) and not asked <= declared}
    if tested is not None:
        rows = [row for row in tested.confusion if row is not None]
        wrong |= {
            "tested.by_class": len(tested.by_class) not in (0, classes),
            "tested.by_group": len(tested.by_group) not in (0, len(groups)),
            "tested.confusion": len(tested.confusion) != len(tested.by_class)
            or any(len(row) != classes for row in rows),
        }
    for name, bad in wrong.items():
        if bad:
            raise DataError(
                f"{where}: {name} does not fit the rest of the run; give a folder as apiece train "
                "wrote it"
            )


def require_same(stored: Any, found: Any, where: str) -> None:
    """Raise `DataError` where what is stored differs from what was computed anew.

    Numbers may differ in their last digits, since other machines round otherwise.
    """
    if isinstance(found, dict) and isinstance(stored, dict) and found.keys() == stored.keys():
        for name, value in found.items():
            require_same(stored[name], value, f"{where}.{name}")
    elif isinstance(found, list) and isinstance(stored, list) and len(found) == len(stored):
        for i, value in enumerate(found):
            require_same(stored[i], value, f"{where}[{i}]")
    elif type(found) in (int, float) and type(stored) in (int, float):
        if not math.isclose(found, stored, rel_tol=1e-6, abs_tol=1e-12):
            raise _differs(stored, found, where)
    elif stored != found or type(stored) is not type(found):
        raise _differs(stored, found, where)


def _differs(stored: Any, found: Any, where: str) -> DataError:
    return DataError(
        f"{where} = {stored!r}, but by the plan it is {found!r}; give a folder as apiece train "
        "wrote it"
    )


_UNITS = {
    "record": "one record: a row of the table, with all that it says",
    "person": "one person: all rows of one id, however many",
}
_TRUSTED = (
    "the steward, who holds the data in the clear, makes the plan and runs the training",
    "the machine, its operating system and random generator, and the versions of software below",
)
_NOT_TRUSTED = (
    "whoever receives the model, with any other knowledge and any computing power",
    "the other contributors: what they choose or send raises nobody else's epsilon",
)
_COVERED = (
    "the parameters of the released model, the plan by which it was trained, and whatever is "
    "computed from them",
)
# By method: what it is, how people come in, what an attacker may know, what is assumed of units.
_WORDS = {
    "dp-sgd": (
        "DP-SGD: gradients clipped per unit, summed, and covered by Gaussian noise",
        "Poisson: each unit joins each step by its own secret coin",
        "an attacker who knows all other data, the plan, and the model after every step",
        "each unit's gradient depends on that unit alone, by this model's construction",
    ),
    "pate": (
        "PATE: teachers learn from the units' rows and vote on public rows; votes are counted, "
        "covered by Gaussian noise, and a student learns the class that comes out first",
        "none: each unit's rows go to teachers that its own secret coins choose",
        "an attacker who knows all other data, the plan, the public rows and every answer",
        "each unit's rows change the votes of its own teachers alone",
    ),
}


_TOLD = (
    "each level's Gaussian with its slack adds up with those of other results: mu squared to mu "
    "squared, slack to slack; the plan is made of public numbers, so these may be told"
)
_WITHHELD = (
    "the Gaussian that stands for each level, whose mu squared adds up, follows from how many "
    "people chose which level and is withheld; the steward has it from the plan, and a ledger "
    "charges it"
)


class _Subject(Protocol):
    """What a statement is of: the parts of a `Run` that it reads."""

    @property
    def version(self) -> str: ...
    @property
    def versions(self) -> Mapping[str, str]: ...
    @property
    def data(self) -> Facts: ...
    @property
    def strategy(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def rows_per_person(self) -> int | str | None: ...
    @property
    def analysis(self) -> str | None: ...
    @property
    def no_limit_cap(self) -> float | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def models(self) -> int: ...
    @property
    def purpose(self) -> str | None: ...
    @property
    def finished(self) -> str | None: ...
    @property
    def levels(self) -> tuple[Level, ...]: ...
    @property
    def kept(self) -> Trained: ...
    @property
    def bound(self) -> Bound | None: ...

    def to_dict(self) -> Json:
        """Return all of it as JSON types."""
        ...


def statement_of(run: _Subject) -> Json:
    """Return the statement of a run as JSON types; `statement_schema` says how it is built.

    Args:
        run: A finished `Run`.

    Guarantee:
        It is a function of what was declared: two tables that differ in anyone's rows or budget
        give the same, but for what it is bound to. ε and δ are those of the declared levels; where
        none were declared, which budgets people chose is not told. The Gaussian that stands for a
        level follows from the plan, and so from how many chose which: it is said of plans that were
        made from a released histogram or from budgets drawn for data that are public, and withheld
        of all others, whatever they hold. What it is bound to are digests:
        of the released weights, of the ledger's history, and of plan and figures under salts that
        it does not have, so that they confirm no guess about a person.

    References:
        Near et al. 2025.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.jobs import Facts, Run, Trained
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> found = Trained("scale", plan, {}, None, (), 1.0)
        >>> run = Run("1.0", "first", facts, "scale", (), None, None, None, (found,), 1, ())
        >>> statement_of(run)["unit_of_privacy"]["unit"]
        'record'
    """
    data = run.data
    bound = run.bound and run.bound.said(run.kept.plan.to_dict(), run.to_dict())
    return sealed({
        "statement": FORMAT,
        "purpose": run.purpose,
        "finished": run.finished,
        "for_release": run.seed is None and not run.kept.plan.objections,
        "unit_of_privacy": {"unit": data.unit, "means": _UNITS[data.unit]},
        "neighbouring": {
            "relation": run.kept.plan.relation,
            "means": f"one {data.unit} added or removed, under the same plan",
        },
        "guarantee": _guarantee(run),
        "mechanism": _mechanism(run),
        "covered": [*_COVERED, _WORDS[run.method][2]],
        "not_covered": list(_not_covered(run)),
        "trust": {
            "model": "central",
            "trusted": list(_TRUSTED),
            "not_trusted": list(_NOT_TRUSTED),
        },
        "assumptions": list(_assumptions(run)),
        "data": {
            "label": data.label,
            "classes": list(data.classes),
            "range": None if data.target_range is None else list(data.target_range),
            "schema": data.schema,
            "columns": {name: dict(column) for name, column in data.columns.items()},
        },
        "versions": {"apiece": run.version, **run.versions},
        "bound_to": bound,
    })  # fmt: skip


def statement_schema() -> Json:
    """Return the JSON schema of statements, which says what each field is.

    Example:
        >>> statement_schema()["title"]
        'A privacy statement of apiece'
    """
    path = files("apiece.jobs") / "statement.schema.json"
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def _guarantee(run: _Subject) -> Json:
    told = [(level, explain(level.epsilon, level.delta)) for level in run.levels]
    plan = run.kept.plan
    open_ = plan.counts == "released" or (run.data.packaged and run.data.simulated_budgets)
    return {
        "definition": "individualized (epsilon, delta)-differential privacy: each has their own",
        "of": "the release of one model, chosen without looking at others",
        "levels": [
            {
                "name": level.name,
                "epsilon": level.epsilon,
                "delta": level.delta,
                "right_of_1000_at_most": promise.frequencies.right,
                "sentence": promise.sentences[0],
                "gaussian": _gaussian(plan, level) if open_ else None,
            }
            for level, promise in told
        ],
        "levels_declared": bool(run.levels),
        "no_limit_cap": run.no_limit_cap,
        "verified": "before training and again when the run was read: each group's epsilon, an "
        "upper bound recomputed from the plan's own numbers, is at most what was asked",
        "composition": _TOLD if open_ else _WITHHELD,
    }


def _gaussian(plan: Plan, level: Level) -> Json | None:
    """Return the Gaussian that stands for a level in this plan; None where it has no such group."""
    groups = plan.budget_groups
    found = np.flatnonzero((groups.epsilon == level.epsilon) & (groups.delta == level.delta))
    if not found.size:
        return None
    # Of groups with one budget (by an excess, say) the largest μ holds for all.
    summaries = [plan.gaussian(int(group)) for group in found]
    return asdict(max(summaries, key=lambda summary: summary.mu))


def _mechanism(run: _Subject) -> Json:
    return {
        "name": _WORDS[run.method][0],
        "sampling": _WORDS[run.method][1],
        "strategy": run.strategy,
        "settings": dict(run.kept.settings),
        "hidden": list(run.hidden),
        "rows_per_person": run.rows_per_person,
        "accounting": run.kept.plan.method,
        "randomness": "operating system" if run.seed is None else "seed",
        "models_trained": run.models,
        "ledger": run.analysis is not None,
    }


def _not_covered(run: _Subject) -> Iterator[str]:
    yield (
        "accuracy and errors on held-out people, in metrics.json and the internal report: without "
        "noise, and for the steward alone"
    )
    if run.models > 1:
        yield (
            f"a comparison: {run.models} models were trained on the same people; releasing more "
            "than one, or the best by looking, costs more than is promised"
        )
    yield (
        "other results from the same people: they add up; the ledger that this run was charged to "
        "keeps the sum"
        if run.analysis is not None
        else "other results from the same people: they add up, and no ledger was charged"
    )
    yield "settings that were tuned on these people, if they were"
    yield "the number of people, and how many chose which budget: the plan takes them as public"
    yield "what is true of people in general, which a model tells of those who stay out too"
    if run.method == "pate":
        yield "the public rows: their features may show in the model"
    yield "the data before and beside the training: their collection, storage and access"
    yield "how long the training took and what memory it used, for who can watch the machine"


def _assumptions(run: _Subject) -> Iterator[str]:
    if run.seed is None:
        key = "its key was deleted, and no backup of it is kept"
        pate = "its key was never written down"
        yield f"the noise cannot be foreseen; {pate if run.method == 'pate' else key}"
    else:
        yield (
            "none of the promises holds for who knows the seed: this is an experiment, and its "
            "model must not be released"
        )
    yield _WORDS[run.method][3]
    yield "ranges and categories come from a public schema, settings from no look at these people"
    yield (
        "each person's rows carry that person's id"
        if run.data.unit == "person"
        else (
            "each person has one row; with several, the promise is of a row and not of the person"
        )
    )


CONFIG, PLAN, METRICS, MODEL, REPORT, STATEMENT = (
    "config.toml", "plan.json", "metrics.json", "model.pt", "report.html", "statement.json",
)  # fmt: skip
_TOTALS = 12  # groups for which the cost of all models together is stated


@dataclass(frozen=True, slots=True)
class Total:
    """What a group spends if every model of a run is released.

    Attributes:
        name: Of the group.
        delta: As asked.
        epsilon_spent: By all models together.

    Guarantee:
        `epsilon_spent` is rounded up.

    Example:
        >>> Total("strict", 1e-5, 2.5).epsilon_spent
        2.5
    """

    name: str
    delta: float
    epsilon_spent: float


@dataclass(frozen=True, repr=False)
class Run:
    """What one job found: public parameters, plans that were verified, and figures.

    Attributes:
        version: Of apiece.
        name: Of the job.
        data: The table and its schema.
        strategy: Whose first model is kept.
        hidden: The widths of its hidden layers.
        analysis: The run's name in the ledger that paid, None without one.
        no_limit_cap: The ε that "no limit" was read as, None where it was refused.
        seed: None for randomness of the operating system.
        strategies: Each strategy's models.
        models: How many were trained in all.
        totals: What all of them cost together; with many groups, that of some.
        rows_per_person: The most rows that a person brings to a step, or "all"; None where the unit
            is the record.
        method: "dp-sgd" or "pate".
        purpose: What the model is for, in the steward's words.
        finished: The day, as 2026-01-31, by universal time.
        levels: The budgets that people could choose from; none where these were not declared.
        tested: How well the kept model does, and on whom.
        versions: Of Python and the libraries that it was made with, by name.
        bound: What binds its statement to its folder; None of a run that is in none.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> found = Trained("scale", plan, {}, None, (), 1.0)
        >>> Run("1.0", "first", facts, "scale", (), None, None, None, (found,), 1, ()).release.fit
        'yes'
    """

    version: str
    name: str
    data: Facts
    strategy: str
    hidden: tuple[int, ...]
    analysis: str | None
    no_limit_cap: float | None
    seed: int | None
    strategies: tuple[Trained, ...]
    models: int
    totals: tuple[Total, ...]
    rows_per_person: int | str | None = None
    method: str = "dp-sgd"
    purpose: str | None = None
    finished: str | None = None
    levels: tuple[Level, ...] = ()
    tested: Accuracies | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    bound: Bound | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return what is public and short."""
        return f"Run({self.name}: {self.models} models, {self.strategy} kept)"

    @property
    def kept(self) -> Trained:
        """The models of the strategy that the folder holds one of."""
        return next(found for found in self.strategies if found.strategy == self.strategy)

    @cached_property
    def release(self) -> Release:
        """Whether the run is fit for release, made anew from its values."""
        return checklist(
            self.kept,
            self.data,
            seed=self.seed,
            models=self.models,
            no_limit_cap=self.no_limit_cap,
        )

    def to_dict(self) -> Json:
        """Return the run as JSON types: the content of metrics.json."""
        noise = "operating system" if self.seed is None else "reproducible"
        totals = [asdict(total) for total in self.totals]
        method = {} if self.method == "dp-sgd" else {"method": self.method}
        return {
            "apiece": self.version,
            "versions": dict(self.versions),
            "name": self.name,
            "purpose": self.purpose,
            "finished": self.finished,
            "data": self.data.to_dict(),
            "training": {
                "strategy": self.strategy,
                "hidden": list(self.hidden),
                "rows_per_person": self.rows_per_person,
                **method,
            },
            "ledger": None if self.analysis is None else {"analysis": self.analysis},
            "no_limit_cap": self.no_limit_cap,
            "levels": [asdict(level) for level in self.levels],
            "randomness": {"seed": self.seed, "noise": noise},
            "strategies": [found.to_dict() for found in self.strategies],
            "all_models": {"models": self.models, "groups": totals},
            "release": self.release.to_dict(),
            "tested": None if self.tested is None else self.tested.to_dict(),
            "bound": None if self.bound is None else self.bound.to_dict(),
        }

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON; NaN and infinity are refused.

        Args:
            indent: As for `json.dumps`.
        """
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Return the run in a folder that `apiece train` finished.

        What follows from the plans is computed anew: each group's ε, what all models cost together,
        the checklist. metrics.json, plan.json and config.toml must agree with it and with one
        another. The statement must be that of the run, and all of them, the weights in model.pt
        too, must be what it is bound to. That does not show who wrote them: whoever writes all of
        them anew can make others that agree.

        Args:
            folder: The run folder.

        Raises:
            StateError: For a run that was interrupted.
            DataError: For a folder that is none, is damaged, or says what is not so.
            InputError: For parameters in it that no plan can have.
        """
        folder = Path(folder)
        if not (folder / METRICS).is_file():
            if (folder / "checkpoints").is_dir():
                raise StateError(
                    f"{folder}: its run was interrupted; finish it with apiece train --resume "
                    f"{folder}"
                )
            raise DataError(
                f"{folder}: is no run folder, it has no {METRICS}; give the folder that "
                "apiece train wrote"
            )
        data = read_json(folder / METRICS)
        arguments, repeats = _arguments(data, str(folder / METRICS))
        plans = [found.plan for found in arguments["strategies"]]
        run = cls(**arguments, totals=totals(plans, repeats))
        require_same(data, run.to_dict(), str(folder / METRICS))
        plan = read_json(folder / PLAN)
        require_same(plan, run.kept.plan.to_dict(), str(folder / PLAN))
        _require_job(run, read_job(folder / CONFIG), folder / CONFIG)
        _require_bound(run, plan, data, folder)
        return run


def _require_bound(run: Run, plan: Any, metrics: Any, folder: Path) -> None:
    """Raise `DataError` where the statement is not of the run, or of other files than are there."""
    from apiece.jobs.model import load_model

    pass

    path, bound = folder / STATEMENT, run.bound
    said = require_sealed(read_json(path), str(path))
    if bound is None:
        raise DataError(f"{folder / METRICS}: binds no statement; train again, or use the apiece "
                        "that wrote it")  # fmt: skip
    found = statement_of(run)
    for name in ("bound_to", "digest"):  # of what is stored, and not of what was computed anew
        found[name] = said[name]
    require_same(said, found, str(path))
    require_same_digest(config_digest(_json.read_toml(folder / CONFIG, "config")), bound.config,
                        "config.toml", str(folder))  # fmt: skip
    if run.seed is not None:
        require_same_digest(bound.salt, salt_of(run.seed), "the seed", str(folder))
    for name, value in bound.said(plan, metrics).items():
        require_same_digest(value, said["bound_to"].get(name), name, str(folder))
    model = load_model(folder / MODEL)
    require_same_digest(model.statement, said, f"the statement in {MODEL}", str(folder))


def _require_job(run: Run, job: Job, path: Path) -> None:
    """Raise `DataError` where a run is not of this job."""
    for name, asked, found in _told(run, job):
        if asked != found:
            raise DataError(
                f"{path}: {name} = {asked}, but {METRICS} beside it has {found}; give a folder "
                "as apiece train wrote it"
            )


def _told(run: Run, job: Job) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a job and its run both tell: a name, the job's word and the run's.

    What is told by strategy comes last: it is asked of strategies that both have.
    """
    yield "strategy", job.training.strategy, run.strategy
    yield "strategies", job.strategies, tuple(found.strategy for found in run.strategies)
    yield "seeds", job.compare.seeds * len(job.strategies), run.models
    yield "method", job.training.method, run.method
    yield "hidden", job.training.hidden, run.hidden
    yield "rows_per_person", job.training.rows_per_person, run.rows_per_person
    yield "unit", job.data.unit, run.data.unit
    yield "seed", job.run.seed, run.seed
    yield "analysis", job.run.analysis, run.analysis
    yield "purpose", job.run.purpose, run.purpose
    yield "levels", declared_levels(job), run.levels
    yield "no_limit_cap", job.budgets.no_limit_cap, run.no_limit_cap
    yield "groups", bool(job.budgets.groups), run.data.simulated_budgets
    yield "source", job.data.packaged, run.data.packaged
    for found in run.strategies:
        yield f"seeds of {found.strategy}", job.seeds_of(found.strategy), found.seeds
        yield f"settings of {found.strategy}", tuned(job, found.strategy), found.settings


def tuned(job: Job, strategy: str) -> dict[str, float]:
    """Return the settings in which the strategies of a comparison may differ."""
    from apiece.jobs.config import TUNED

    training, pate = job.training_of(strategy), job.pate
    found = {name: getattr(training, name) for name in TUNED}
    if training.method == "pate":
        asked = {"questions": pate.asked, "semi_supervised": int(bool(pate.semi_supervised))}
        given = {name: getattr(pate, name) for name in ("teachers", "answers", "threshold")}
        found |= asked | {name: value for name, value in given.items() if value is not None}
    return found


def declared_levels(job: Job) -> tuple[Level, ...]:
    """Return the budgets that people could choose from, as a job declares them; maybe none."""
    asked = job.budgets
    if isinstance(asked.delta, str):
        return ()
    delta, cap = asked.delta, asked.no_limit_cap
    if asked.groups:
        return tuple(Level(g.name, float(capped(g.epsilon, cap)), delta) for g in asked.groups)
    return tuple(Level(f"ε = {each:g}", each, delta) for each in asked.levels)


def totalled(groups: int) -> list[int]:
    """Return of which groups the cost of all models is told: all, or some where there are many.

    Args:
        groups: How many there are.

    Example:
        >>> totalled(3), len(totalled(500))
        ([0, 1, 2], 12)
    """
    return list(np.round(np.linspace(0, groups - 1, min(groups, _TOTALS))).astype(int).tolist())


def totals(plans: Sequence[Plan], repeats: int) -> tuple[Total, ...]:
    """Return what groups would spend if every model, `repeats` of each plan, were released.

    With many groups, of some of them from the strictest to the loosest: each takes a composition.
    Empty for a single model.
    """
    groups = plans[0].budget_groups
    if len(plans) * repeats == 1:
        return ()
    found = []
    for g in totalled(len(groups)):
        every = Composed(*(Repeated(plan.mechanism_for(g), repeats) for plan in plans))
        delta = float(groups.delta[g])
        spent = float(privacy_curve(every, method="pld").epsilon(delta).upper)
        found.append(Total(str(groups.name[g]), delta, spent))
    return tuple(found)
