"""Run: what a finished job or a fitted estimator found, as its folder keeps it.

What is read back is not believed: what follows from the plans is computed anew, and must agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from apiece import _json
from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.budgets.frames import apply_cap
from apiece.errors import DataError, StateError
from apiece.jobs.config import SAID, SETTINGS, TUNED, Job, Pate, Training, read_job
from apiece.jobs.settings import stored
from apiece.jobs.statement import (
    ALLOCATED,
    COVERED,
    FORMAT,
    NOT_TRUSTED,
    TRUSTED,
    UNITS,
    WORDS,
    Bound,
    assumptions,
    config_digest,
    guarantee,
    not_covered,
    require_same_digest,
    require_sealed,
    salt_of,
    sealed,
)
from apiece.jobs.trained import Accuracies, Facts, Level, Release, Seed, Trained, checklist
from apiece.mechanisms import Composed, Repeated
from apiece.plan import Plan

CONFIG, PLAN, METRICS, MODEL, REPORT, STATEMENT = (
    "config.toml", "plan.json", "metrics.json", "model.pt", "report.html", "statement.json",
)  # fmt: skip
COMPLETED = "papers.ready"  # holds papers completed later, until they are in their places
_SOME = 12  # groups for which the cost of all models together is stated, or a figure drawn
_REMEDY = "give a folder as apiece train wrote it"


@dataclass(frozen=True, slots=True)
class Total:
    """What a group spends if every model of a run is released, rounded up."""

    name: str
    delta: float
    epsilon_spent: float


@dataclass(frozen=True, repr=False)
class Run:
    """The outcome of one job: public parameters, plans that were verified, and figures.

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
        controller: Who answers for the data, likewise.
        contact: Whom to ask, likewise.
        valid_until: The last day on which the steward stands by the statement.
        finished: The day, as 2026-01-31, by universal time.
        levels: The budgets that people could choose from; none where these were not declared.
        tested: How well the kept model does, and on whom.
        versions: Of Python and the libraries that it was made with, by name.
        estimator: What else is needed to make the fitted estimator again, and its name; None of a
            job.
        bound: What binds its statement to its folder; None of a run that is in none.

    Example:
        >>> from apiece import Budgets, Scale, assign
        >>> from apiece.jobs import Run
        >>> from apiece.jobs.trained import Facts, Trained
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> models = Trained("scale", plan, {}, None, (), 1.0)
        >>> Run("1.0", "first", facts, "scale", (), None, None, None, (models,), 1, ()).release.fit
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
    controller: str | None = None
    contact: str | None = None
    valid_until: str | None = None
    finished: str | None = None
    levels: tuple[Level, ...] = ()
    tested: Accuracies | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    estimator: Json | None = None
    bound: Bound | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """Return what is public and short."""
        return f"Run({self.name}: {self.models} models, {self.strategy} kept)"

    @property
    def kept(self) -> Trained:
        """The models of the strategy that the folder holds one of."""
        return next(each for each in self.strategies if each.strategy == self.strategy)

    @cached_property
    def release(self) -> Release:
        """Whether the run is fit for release, made anew from its values."""
        return checklist(
            self.kept, self.data, seed=self.seed, models=self.models, no_limit_cap=self.no_limit_cap
        )

    def to_dict(self) -> Json:
        """Return the run as JSON types: the content of metrics.json."""
        noise = "operating system" if self.seed is None else "reproducible"
        training = {name: getattr(self, name) for name in _TRAINING}
        method = {} if self.method == "dp-sgd" else {"method": self.method}
        parts: Json = _json.plain({
            "apiece": self.version,
            **{name: getattr(self, name) for name in _STORED},
            "training": training | method,
            "ledger": None if self.analysis is None else {"analysis": self.analysis},
            "randomness": {"seed": self.seed, "noise": noise},
            "strategies": [each.to_dict() for each in self.strategies],
            "all_models": {"models": self.models, "groups": self.totals},
            "release": self.release.to_dict(),
        })  # fmt: skip
        return parts

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as JSON; NaN and infinity are refused.

        Args:
            indent: As for `json.dumps`.
        """
        return json.dumps(self.to_dict(), allow_nan=False, indent=indent)

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Return the run in a folder that `apiece train` finished, or an estimator saved.

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
                f"{folder}: is no run folder, it has no {METRICS}; give a folder that apiece train "
                "wrote or an estimator saved"
            )
        if (folder / COMPLETED).is_dir():
            raise StateError(
                f"{folder}: completing its papers was interrupted; apiece report {folder} ends it"
            )
        where = str(folder / METRICS)
        data = _read(folder / METRICS)
        run = _run_of(_json.fields(data, where, _RUN), where)
        require_same(data, run.to_dict(), where)
        plan = _read(folder / PLAN)
        require_same(plan, run.kept.plan.to_dict(), str(folder / PLAN))
        if run.estimator is None:
            for name, asked, told in _told(run, read_job(folder / CONFIG)):
                if asked != told:
                    raise DataError(
                        f"{folder / CONFIG}: {name} = {asked}, but {METRICS} beside it has "
                        f"{told}; {_REMEDY}"
                    )
        _require_bound(run, plan, data, folder)
        return run


def _read(path: Path) -> Any:
    """Return what a JSON file of a run folder holds; raise `DataError` where it cannot be read."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a run folder") from None
    return _json.loads(text, str(path))


def _label(value: object, where: str) -> object:
    if not isinstance(value, str | int | float):
        raise DataError(f"{where} = {value!r}: must be a text or a number")
    return value


def _object(**readers: _json.Reader[object]) -> _json.Reader[Json]:
    return lambda value, where: _json.fields(value, where, readers)


_TRAINED = _json.readers_of(Trained) | dict.fromkeys(
    ("test_accuracy_mean", "test_accuracy_stddev"),
    _json.as_is,  # computed anew, and compared
)
_ESTIMATOR: dict[str, _json.Reader[object]] = {
    "name": _json.text,
    "labels": _json.listed(_label),
    "columns": _json.as_is,
    "named": _json.flag,
    "recipe": _json.as_is,
    "shape": _json.maybe(_json.listed(_json.whole(10**6))),
}
# Settings of a job are read as from its config; the strategy of an estimator may be anybody's own.
_SETTINGS = {name: _json.maybe(stored(how)) for name, how in SETTINGS.items()}
_TRAINING = {name: _SETTINGS[name] for name in ("hidden", "rows_per_person")} | {
    "strategy": _json.text
}
# What metrics.json has under the names of the attributes, and what else it has.
_STORED: dict[str, _json.Reader[object]] = {
    "versions": _json.reader_of(Mapping[str, str]),
    "name": _json.text,
    **{name: _SETTINGS[name] for name in (*SAID, "no_limit_cap")},
    "finished": _SETTINGS["valid_until"],
    "data": _json.reader_of(Facts),
    "levels": _json.reader_of(tuple[Level, ...]),
    "tested": _json.maybe(_json.reader_of(Accuracies)),
    "estimator": _json.maybe(_object(**_ESTIMATOR)),
    "bound": _json.maybe(_json.reader_of(Bound)),
}
_RUN: dict[str, _json.Reader[object]] = _STORED | {
    "apiece": _json.text,
    "training": lambda value, where: _json.fields(
        value, where, _TRAINING, {"method": stored(SETTINGS["method"])}
    ),
    "ledger": _json.maybe(_object(analysis=_json.text)),
    "randomness": _object(seed=_json.maybe(_json.reader_of(Seed)), noise=_json.as_is),
    "strategies": _json.listed(_object(**_TRAINED)),
    "all_models": _object(models=_json.reader_of(int), groups=_json.as_is),
    "release": _json.as_is,
}


def _run_of(top: Json, where: str) -> Run:
    """Return the run of the fields of metrics.json; raise `InputError` where parts do not fit."""
    training, models, ledger = top["training"], top["all_models"]["models"], top["ledger"]
    strategies = tuple(
        Trained(**{k: v for k, v in each.items() if k in Trained.__dataclass_fields__})
        for each in top["strategies"]
    )
    names = [each.strategy for each in strategies]
    if training["strategy"] not in names or len(set(names)) < len(names):
        raise DataError(
            f"{where}: strategy {training['strategy']!r} is not among {names}, once; {_REMEDY}"
        )
    repeats, rest = (models, 0) if top["estimator"] else divmod(models, len(names))
    if rest or not repeats > 0:
        raise DataError(f"{where}: {models} models of {len(names)} strategies; {_REMEDY}")
    _require_fitting(strategies, top, 1 if top["estimator"] else repeats, where)
    return Run(
        version=top["apiece"],
        strategies=strategies,
        models=models,
        totals=() if top["estimator"] else totals([each.plan for each in strategies], repeats),
        analysis=None if ledger is None else ledger["analysis"],
        seed=top["randomness"]["seed"],
        **training,
        **{name: top[name] for name in _STORED},
    )


def _require_fitting(strategies: tuple[Trained, ...], top: Json, repeats: int, where: str) -> None:
    """Raise `DataError` where parts cannot be of one run."""
    data, levels, tested = top["data"], top["levels"], top["tested"]
    groups, number = strategies[0].plan.budget_groups, data.target_range is not None
    figures = repeats * (data.test_records > 0) * (not number)
    asked = set(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    declared = {(each.epsilon, each.delta) for each in levels}
    wrong = {"levels": bool(levels) and not asked <= declared}
    if tested is not None:
        by_class, classes = tested.by_class, len(data.classes)
        wrong |= {
            "tested.by_class": len(by_class) not in (0, classes),
            "tested.by_group": len(tested.by_group) not in (0, len(groups)),
            "tested.confusion": len(tested.confusion) != len(by_class)
            or any(row is not None and len(row) != classes for row in tested.confusion),
        }
    for own in strategies:
        by_person = len(own.test_accuracy_by_person)
        fits = {
            "test_accuracy": len(own.test_accuracy) == figures,
            "test_accuracy_by_person": by_person == figures * (data.unit == "person"),
            "test_errors": len(own.test_errors) in (0, repeats * number),
            "data.classes": number != bool(data.classes),
            "plan.groups": own.plan.budget_groups.same_as(groups),
            "plan.unit": own.plan.unit == data.unit,
            "plan.records": own.plan.records == data.training_records,
        }
        bad = {name: not good for name, good in fits.items()} | own.contradicted
        wrong |= {f"{name} of strategy {own.strategy!r}": each for name, each in bad.items()}
    for name, amiss in wrong.items():
        if amiss:
            raise DataError(f"{where}: {name} does not fit the rest of the run; {_REMEDY}")


def require_same(stored: object, computed: object, where: str) -> None:
    """Raise `DataError` where what is stored differs from what was computed anew."""
    # Numbers may differ in their last digits, since other machines round otherwise.
    if isinstance(computed, dict) and isinstance(stored, dict) and computed.keys() == stored.keys():
        for name, value in computed.items():
            require_same(stored[name], value, f"{where}.{name}")
        return
    if isinstance(computed, list) and isinstance(stored, list) and len(computed) == len(stored):
        for i, value in enumerate(computed):
            require_same(stored[i], value, f"{where}[{i}]")
        return
    numbers = (int, float)  # and no Booleans
    if type(computed) in numbers and type(stored) in numbers:
        same = math.isclose(computed, stored, rel_tol=1e-6, abs_tol=1e-12)  # type: ignore[arg-type]
    else:
        same = stored == computed and type(stored) is type(computed)
    if not same:
        raise DataError(f"{where} = {stored!r}, but by the plan it is {computed!r}; {_REMEDY}")


def _require_bound(run: Run, plan: Json, metrics: Json, folder: Path) -> None:
    """Raise `DataError` where the statement is not of the run, or of other files than are there."""
    from apiece.jobs.model import stored_state

    path, bound = folder / STATEMENT, run.bound
    said = require_sealed(_read(path), str(path))
    if bound is None:
        raise DataError(f"{folder / METRICS}: binds no statement; train again, or use the apiece "
                        "that wrote it")  # fmt: skip
    # What it is bound to is compared with what is stored, not with what was computed anew.
    expected = statement_of(run) | {name: said[name] for name in ("bound_to", "digest")}
    require_same(said, expected, str(path))
    config = None
    if run.estimator is None:
        config = config_digest(_json.read_toml(folder / CONFIG, "config"))
    require_same_digest(config, bound.config, "config.toml", str(folder))
    if run.seed is not None:
        require_same_digest(bound.salt, salt_of(run.seed), "the seed", str(folder))
    for name, value in bound.said(plan, metrics).items():
        require_same_digest(value, said["bound_to"].get(name), name, str(folder))
    _, carried = stored_state(folder / MODEL)
    require_same_digest(carried, said, f"the statement in {MODEL}", str(folder))


def _told(run: Run, job: Job) -> Iterator[tuple[str, object, object]]:
    """Yield what a job and its run both tell: a name, the job's word and the run's."""
    # What is told by strategy comes last: it is asked of strategies that both have.
    for name, value in fixed_by(job).items():
        yield name, value, getattr(run, name)
    yield "strategies", job.strategies, tuple(each.strategy for each in run.strategies)
    yield "unit", job.data.unit, run.data.unit
    yield "groups", bool(job.budgets.groups), run.data.simulated_budgets
    yield "source", job.data.packaged, run.data.packaged
    search, chosen = job.search.search(), run.kept.plan.selection
    yield "search", None if search is None else search.runs, None if chosen is None else chosen.runs
    for own in run.strategies:
        yield f"seeds of {own.strategy}", job.seeds_of(own.strategy), own.seeds
        asked = tuned(job.training_of(own.strategy), job.pate)
        if search is not None and search.admits(own.settings):
            asked |= {name: own.settings[name] for name in search.values}
        yield f"settings of {own.strategy}", asked, own.settings


def fixed_by(job: Job) -> dict[str, Any]:
    """Return what a job fixes of its run, by the names of `Run`."""
    of_training = ("strategy", "method", "hidden", "rows_per_person")
    return {
        **{name: getattr(job.training, name) for name in of_training},
        **{name: getattr(job.run, name) for name in ("seed", "analysis", *SAID)},
        "no_limit_cap": job.budgets.no_limit_cap,
        "levels": declared_levels(job),
        "models": job.compare.seeds * len(job.strategies),
    }


def tuned(training: Training, pate: Pate) -> dict[str, float]:
    """Return the settings in which trainings may differ."""
    settings = {name: getattr(training, name) for name in TUNED}
    if training.method == "pate":
        settings |= {"questions": pate.asked, "semi_supervised": int(bool(pate.semi_supervised))}
        given = {name: getattr(pate, name) for name in ("teachers", "answers", "threshold")}
        settings |= {name: value for name, value in given.items() if value is not None}
    return settings


def declared_levels(job: Job) -> tuple[Level, ...]:
    """Return the budgets that people could choose from, as a job declares them; maybe none."""
    asked = job.budgets
    if isinstance(asked.delta, str):
        return ()
    delta, cap = asked.delta, asked.no_limit_cap
    if asked.groups:
        return tuple(Level(g.name, float(apply_cap(g.epsilon, cap)), delta) for g in asked.groups)
    offered = asked.levels
    named = () if offered is None else zip(offered.titles, offered.values(), strict=True)
    return tuple(Level(name, epsilon, delta) for name, epsilon in named)


def some_of(groups: int) -> list[int]:
    """Return the positions of all groups, or of some from first to last where there are many."""
    return list(np.round(np.linspace(0, groups - 1, min(groups, _SOME))).astype(int).tolist())


def totals(plans: Sequence[Plan], repeats: int) -> tuple[Total, ...]:
    """Return what groups would spend if every model, `repeats` of each plan, were released."""
    # With many groups, of some of them from the strictest to the loosest: each takes a composition.
    # Empty for a single model.
    groups = plans[0].budget_groups
    if len(plans) * repeats == 1:
        return ()
    costs = []
    for g in some_of(len(groups)):
        every = Composed(*(Repeated(plan.mechanism_for(g), repeats) for plan in plans))
        delta = float(groups.delta[g])
        spent = float(privacy_curve(every, method="pld").epsilon(delta).upper)
        costs.append(Total(str(groups.name[g]), delta, spent))
    return tuple(costs)


def statement_of(run: Run) -> Json:
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
        >>> from apiece.jobs import Run, statement_of
        >>> from apiece.jobs.trained import Facts, Trained
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> facts = Facts("people.csv", False, "income", ("low", "high"), "adult", 3, 100, 0, None,
        ...               False)
        >>> models = Trained("scale", plan, {}, None, (), 1.0)
        >>> run = Run("1.0", "first", facts, "scale", (), None, None, None, (models,), 1, ())
        >>> statement_of(run)["unit_of_privacy"]["unit"]
        'record'
    """
    data, plan, seeded = run.data, run.kept.plan, run.seed is not None
    searched = plan.runs_on_average is not None
    public = plan.counts == "released" or (data.packaged and data.simulated_budgets)
    bound = run.bound and run.bound.said(plan.to_dict(), run.to_dict())
    return sealed({
        "statement": FORMAT,
        **{name: getattr(run, name) for name in SAID},
        "finished": run.finished,
        "for_release": not seeded and not plan.objections,
        "unit_of_privacy": {"unit": data.unit, "means": UNITS[data.unit]},
        "neighbouring": {
            "relation": plan.relation,
            "means": f"one {data.unit} added or removed, under the same plan",
        },
        "guarantee": guarantee(plan, run.levels, run.no_limit_cap, counts_are_public=public),
        "mechanism": _mechanism(run),
        "covered": [*COVERED, WORDS[run.method][2]],
        "not_covered": list(not_covered(
            models=run.models, charged=run.analysis is not None, method=run.method,
            searched=searched,
        )),
        "trust": {"model": "central", "trusted": list(TRUSTED), "not_trusted": list(NOT_TRUSTED)},
        "assumptions": list(assumptions(
            seeded=seeded, key_kept=run.method != "pate" and run.estimator is None,
            method=run.method, unit=data.unit, searched=searched,
        )),
        "data": {
            "label": data.label,
            "classes": list(data.classes),
            "range": data.target_range and list(data.target_range),
            "scale": data.target_range and data.target_scale,
            "schema": data.schema,
            "columns": {name: dict(column) for name, column in data.columns.items()},
        },
        "versions": {"apiece": run.version, **run.versions},
        "bound_to": bound,
    })  # fmt: skip


def _mechanism(run: Run) -> Json:
    searched = run.kept.plan.runs_on_average
    return {
        "name": WORDS[run.method][0],
        "sampling": ALLOCATED if run.strategy == "allocate" else WORDS[run.method][1],
        "strategy": run.strategy,
        "settings": dict(run.kept.settings),
        "hidden": list(run.hidden),
        "rows_per_person": run.rows_per_person,
        "accounting": run.kept.plan.method,
        "randomness": "operating system" if run.seed is None else "seed",
        "models_trained": run.models,
        **({} if searched is None else {"runs_on_average": searched}),
        "ledger": run.analysis is not None,
    }
