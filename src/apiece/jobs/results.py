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
from typing import Any, Final

import numpy as np

from apiece import _json
from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.budgets.frames import apply_cap
from apiece.errors import DataError, StateError
from apiece.jobs.config import SAID, SETTINGS, TUNED, BudgetColumns, Job, Pate, Training, read_job
from apiece.jobs.settings import stored_reader
from apiece.jobs.statement import (
    ALLOCATED,
    COVERED,
    FIXED_STEPS,
    FORMAT,
    METHOD_TEXTS,
    NOT_TRUSTED,
    TRUSTED,
    TURNS,
    UNITS,
    Bound,
    choose_salt,
    digest_config,
    list_assumptions,
    list_not_covered,
    require_same_digest,
    require_sealed,
    seal,
    state_guarantee,
)
from apiece.jobs.trained import Accuracies, Facts, Level, Release, Seed, Trained, make_checklist
from apiece.mechanisms import Composed, Repeated
from apiece.plan import Plan

# Files of a run folder.
CONFIG: Final = "config.toml"
PLAN: Final = "plan.json"
METRICS: Final = "metrics.json"
MODEL: Final = "model.pt"
REPORT: Final = "report.html"
STATEMENT: Final = "statement.json"
# A folder that holds papers completed later, until they are in their places.
COMPLETED: Final = "papers.ready"
# Groups for which the cost of all models together is stated, or a figure drawn, at most.
_MAX_SHOWN: Final = 12
# Values of a shape that a stored estimator may have, at most.
_MAX_WIDTH: Final = 10**6
# What numbers that are computed anew may differ by, since other machines round otherwise.
_RELATIVE_TOLERANCE: Final = 1e-6
_ABSOLUTE_TOLERANCE: Final = 1e-12
_REMEDY: Final = "give a folder as apiece train wrote it"


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
        return next(models for models in self.strategies if models.strategy == self.strategy)

    @cached_property
    def release(self) -> Release:
        """Whether the run is fit for release, made anew from its values."""
        return make_checklist(
            self.kept, self.data, seed=self.seed, count=self.models, no_limit_cap=self.no_limit_cap
        )

    def to_dict(self) -> Json:
        """Return the run as JSON types: the content of metrics.json."""
        noise = "operating system" if self.seed is None else "reproducible"
        training = {name: getattr(self, name) for name in _TRAINING}
        # A file that names no method is of DP-SGD, and is read as such.
        if self.method != "dp-sgd":
            training["method"] = self.method
        parts: Json = _json.plain({
            "apiece": self.version,
            **{name: getattr(self, name) for name in _STORED},
            "training": training,
            "ledger": None if self.analysis is None else {"analysis": self.analysis},
            "randomness": {"seed": self.seed, "noise": noise},
            "strategies": [models.to_dict() for models in self.strategies],
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
        source = str(folder / METRICS)
        # metrics.json must be what the run that it describes would write.
        metrics = _read_json(folder / METRICS)
        run = _make_run(_json.fields(metrics, source, _RUN), source)
        require_same(metrics, run.to_dict(), source)
        # Then the plan, the job and the statement, each against the run that metrics.json
        # describes.
        plan = _read_json(folder / PLAN)
        require_same(plan, run.kept.plan.to_dict(), str(folder / PLAN))
        # An estimator has no config.
        if run.estimator is None:
            _require_job(run, read_job(folder / CONFIG), folder)
        _require_bound(run, plan, metrics, folder)
        return run


def _read_json(path: Path) -> Any:
    """Return what a JSON file of a run folder holds; raise `DataError` where it cannot be read."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); give a run folder") from None
    return _json.loads(text, str(path))


def _read_label(value: object, where: str) -> object:
    if not isinstance(value, str | int | float):
        raise DataError(f"{where} = {value!r}: must be a text or a number")
    return value


def _read_pair(value: object, where: str) -> list[str]:
    names = _json.listed(_json.text)(value, where)
    if len(names) != 2:
        raise DataError(f"{where} = {value!r}: must be the names of two columns")
    return names


def _object_reader(**readers: _json.Reader[object]) -> _json.Reader[Json]:
    """Return a reader of objects with these fields and no other."""
    return lambda value, where: _json.fields(value, where, readers)


# Fields that are computed anew, and compared, are read as they are.
_TRAINED = {
    **_json.readers_of(Trained),
    "test_accuracy_mean": _json.as_is,
    "test_accuracy_stddev": _json.as_is,
}
_ESTIMATOR: dict[str, _json.Reader[object]] = {
    "name": _json.text,
    "labels": _json.listed(_read_label),
    "columns": _json.as_is,
    "named": _json.flag,
    "recipe": _json.as_is,
    "shape": _json.maybe(_json.listed(_json.whole(_MAX_WIDTH))),
}
# Of an estimator with pairs of columns.
_PAIRED: dict[str, _json.Reader[object]] = {"pairs": _json.listed(_read_pair)}
# Settings of a job are read as from its config; the strategy of an estimator may be anybody's own.
_SETTINGS = {name: _json.maybe(stored_reader(setting)) for name, setting in SETTINGS.items()}
_TRAINING = {
    "hidden": _SETTINGS["hidden"],
    "rows_per_person": _SETTINGS["rows_per_person"],
    "strategy": _json.text,
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
    "estimator": _json.maybe(lambda value, where: _json.fields(value, where, _ESTIMATOR, _PAIRED)),
    "bound": _json.maybe(_json.reader_of(Bound)),
}
_RUN: dict[str, _json.Reader[object]] = _STORED | {
    "apiece": _json.text,
    "training": lambda value, where: _json.fields(
        value, where, _TRAINING, {"method": stored_reader(SETTINGS["method"])}
    ),
    "ledger": _json.maybe(_object_reader(analysis=_json.text)),
    "randomness": _object_reader(seed=_json.maybe(_json.reader_of(Seed)), noise=_json.as_is),
    "strategies": _json.listed(_object_reader(**_TRAINED)),
    "all_models": _object_reader(models=_json.reader_of(int), groups=_json.as_is),
    "release": _json.as_is,
}


def _make_run(fields: Json, source: str) -> Run:
    """Return the run of the fields of metrics.json; raise `DataError` where parts do not fit."""
    training = fields["training"]
    count = fields["all_models"]["models"]
    ledger = fields["ledger"]
    # An estimator is one model, though a search may have trained many for it.
    is_estimator = bool(fields["estimator"])
    strategies = tuple(map(_make_trained, fields["strategies"]))
    names = [models.strategy for models in strategies]
    if training["strategy"] not in names or len(set(names)) < len(names):
        raise DataError(
            f"{source}: strategy {training['strategy']!r} is not among {names}, once; {_REMEDY}"
        )
    # Models of each strategy; an estimator has one, whatever was trained for it.
    repeats = count if is_estimator else count // len(names)
    if not repeats > 0 or (not is_estimator and count % len(names)):
        raise DataError(f"{source}: {count} models of {len(names)} strategies; {_REMEDY}")
    _require_fitting(strategies, fields, 1 if is_estimator else repeats, source)
    totals: tuple[Total, ...] = ()
    if not is_estimator:
        # What all models cost is computed anew from the plans, and `load` compares it with what is
        # stored.
        totals = total_costs([models.plan for models in strategies], repeats)
    return Run(
        version=fields["apiece"],
        strategies=strategies,
        models=count,
        totals=totals,
        analysis=None if ledger is None else ledger["analysis"],
        seed=fields["randomness"]["seed"],
        **training,
        **{name: fields[name] for name in _STORED},
    )


def _make_trained(fields: Json) -> Trained:
    """Return the models of a strategy from their stored fields, without what follows from them."""
    # Stored fields have what follows from the others too, which is computed anew.
    names = Trained.__dataclass_fields__
    return Trained(**{name: value for name, value in fields.items() if name in names})


def _require_fitting(
    strategies: tuple[Trained, ...], fields: Json, repeats: int, source: str
) -> None:
    """Raise `DataError` where parts cannot be of one run."""
    misfits = _find_misfits(strategies[0].plan, fields)
    for models in strategies:
        for name, is_misfit in _find_misfits_of(models, strategies[0], fields, repeats).items():
            misfits[f"{name} of strategy {models.strategy!r}"] = is_misfit
    for name, is_misfit in misfits.items():
        if is_misfit:
            raise DataError(f"{source}: {name} does not fit the rest of the run; {_REMEDY}")


def _find_misfits(plan: Plan, fields: Json) -> dict[str, bool]:
    """Return which parts do not fit the run, of those that its strategies share."""
    groups = plan.budget_groups
    tested = fields["tested"]
    budgets = set(zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True))
    declared = {(level.epsilon, level.delta) for level in fields["levels"]}
    misfits = {"levels": bool(fields["levels"]) and not budgets <= declared}
    if tested is not None:
        classes = len(fields["data"].classes)
        rows = [row for row in tested.confusion if row is not None]
        misfits["tested.by_class"] = len(tested.by_class) not in (0, classes)
        misfits["tested.by_group"] = len(tested.by_group) not in (0, len(groups))
        is_ragged = any(len(row) != classes for row in rows)
        misfits["tested.confusion"] = len(tested.confusion) != len(tested.by_class) or is_ragged
    return misfits


def _find_misfits_of(
    models: Trained, reference: Trained, fields: Json, repeats: int
) -> dict[str, bool]:
    """Return which parts of a strategy's models do not fit the run, or the reference strategy."""
    data = fields["data"]
    plan = models.plan
    # A number has a range and no classes, and a class the other way round.
    is_number = data.target_range is not None
    # How many figures there must be: one a model, where somebody was held out.
    figures = 0 if is_number or data.test_records == 0 else repeats
    figures_by_person = figures if data.unit == "person" else 0
    # The errors of a number may say nothing, as where all held-out rows have one value.
    error_counts = (0, repeats if is_number else 0)
    return {
        "test_accuracy": len(models.test_accuracy) != figures,
        "test_accuracy_by_person": len(models.test_accuracy_by_person) != figures_by_person,
        "test_errors": len(models.test_errors) not in error_counts,
        "data.classes": is_number == bool(data.classes),
        "plan.groups": not plan.budget_groups.same_as(reference.plan.budget_groups),
        "plan.unit": plan.unit != data.unit,
        "plan.records": plan.records != data.training_records,
        **models.contradictions,
    }


def require_same(stored: object, computed: object, where: str) -> None:
    """Raise `DataError` where what is stored differs from what was computed anew."""
    # Objects and lists are compared part by part, so that the message names the part and numbers
    # may differ in their last digits.
    if isinstance(computed, dict) and isinstance(stored, dict) and computed.keys() == stored.keys():
        for name, value in computed.items():
            require_same(stored[name], value, f"{where}.{name}")
        return
    if isinstance(computed, list) and isinstance(stored, list) and len(computed) == len(stored):
        for position, value in enumerate(computed):
            require_same(stored[position], value, f"{where}[{position}]")
        return
    if not _is_same(stored, computed):
        raise DataError(f"{where} = {stored!r}, but by the plan it is {computed!r}; {_REMEDY}")


def _is_same(stored: object, computed: object) -> bool:
    """Whether two values are of one type and equal; numbers may differ in their last digits."""
    # A Boolean is no number here.
    numbers = (int, float)
    if type(computed) in numbers and type(stored) in numbers:
        return math.isclose(
            computed,  # type: ignore[arg-type]
            stored,  # type: ignore[arg-type]
            rel_tol=_RELATIVE_TOLERANCE,
            abs_tol=_ABSOLUTE_TOLERANCE,
        )
    return bool(stored == computed) and type(stored) is type(computed)


def _require_bound(run: Run, plan: Json, metrics: Json, folder: Path) -> None:
    """Raise `DataError` where the statement is not of the run, or of other files than are there."""
    from apiece.jobs.model import read_state

    path = folder / STATEMENT
    bound = run.bound
    statement = require_sealed(_read_json(path), str(path))
    if bound is None:
        raise DataError(f"{folder / METRICS}: binds no statement; train again, or use the apiece "
                        "that wrote it")  # fmt: skip
    # What it is bound to is compared with what is stored, not with what was computed anew.
    expected = statement_of(run) | {name: statement[name] for name in ("bound_to", "digest")}
    require_same(statement, expected, str(path))
    config = None
    if run.estimator is None:
        config = digest_config(_json.read_toml(folder / CONFIG, "config"))
    require_same_digest(config, bound.config, "config.toml", str(folder))
    # The salt of a release is random and cannot be computed anew.
    if run.seed is not None:
        require_same_digest(bound.salt, choose_salt(run.seed), "the seed", str(folder))
    for name, value in bound.list_digests(plan, metrics).items():
        require_same_digest(value, statement["bound_to"].get(name), name, str(folder))
    # The weights carry the statement too, for whoever is given the model alone.
    _, carried = read_state(folder / MODEL)
    require_same_digest(carried, statement, f"the statement in {MODEL}", str(folder))


def _require_job(run: Run, job: Job, folder: Path) -> None:
    """Raise `DataError` where the config and metrics.json do not say the same."""
    for name, by_job, by_run in _pair_values(run, job):
        if by_job != by_run:
            raise DataError(
                f"{folder / CONFIG}: {name} = {by_job}, but {METRICS} beside it has "
                f"{by_run}; {_REMEDY}"
            )


def _pair_values(run: Run, job: Job) -> Iterator[tuple[str, object, object]]:
    """Yield what a job and its run both say: a name, the job's value and the run's."""
    for name, value in list_fixed(job).items():
        yield name, value, getattr(run, name)
    yield "strategies", job.strategies, tuple(models.strategy for models in run.strategies)
    yield "unit", job.data.unit, run.data.unit
    yield "groups", bool(job.budgets.groups), run.data.simulated_budgets
    yield "source", job.data.packaged, run.data.packaged
    search = job.search.search()
    selection = run.kept.plan.selection
    # The law of the number of runs is in config and plan alike; the number itself is nowhere.
    law_of_job = None if search is None else search.runs
    law_of_run = None if selection is None else selection.runs
    yield "search", law_of_job, law_of_run
    # By strategy last: the strategies have been compared by then.
    for models in run.strategies:
        strategy = models.strategy
        yield f"seeds of {strategy}", job.seeds_of(strategy), models.seeds
        settings = list_tuned(job.training_of(strategy), job.pate)
        # A search chose these settings: they need only be among those that it may draw.
        if search is not None and search.admits(models.settings):
            settings |= {name: models.settings[name] for name in search.values}
        yield f"settings of {strategy}", settings, models.settings


def list_fixed(job: Job) -> dict[str, Any]:
    """Return what a job fixes of its run, by the names of `Run`."""
    return {
        "strategy": job.training.strategy,
        "method": job.training.method,
        "hidden": job.training.hidden,
        "rows_per_person": job.training.rows_per_person,
        "seed": job.run.seed,
        "analysis": job.run.analysis,
        **{name: getattr(job.run, name) for name in SAID},
        "no_limit_cap": job.budgets.no_limit_cap,
        "levels": declare_levels(job.budgets),
        "models": job.compare.seeds * len(job.strategies),
    }


def list_tuned(training: Training, pate: Pate) -> dict[str, float]:
    """Return the settings in which trainings may differ."""
    settings = {name: getattr(training, name) for name in TUNED}
    if training.method == "pate":
        settings["questions"] = pate.question_count
        settings["semi_supervised"] = int(bool(pate.semi_supervised))
        for name in ("teachers", "answers", "threshold"):
            value = getattr(pate, name)
            if value is not None:
                settings[name] = value
    return settings


def declare_levels(budgets: BudgetColumns) -> tuple[Level, ...]:
    """Return the budgets that people could choose from, as a job declares them; maybe none."""
    delta = budgets.delta
    if isinstance(delta, str):
        return ()
    if budgets.groups:
        cap = budgets.no_limit_cap
        return tuple(
            Level(group.name, float(apply_cap(group.epsilon, cap)), delta)
            for group in budgets.groups
        )
    if budgets.levels is None:
        return ()
    titled = zip(budgets.levels.titles, budgets.levels.values(), strict=True)
    return tuple(Level(title, epsilon, delta) for title, epsilon in titled)


def choose_shown(groups: int) -> list[int]:
    """Return the positions of all groups, or of some from first to last where there are many."""
    positions = np.linspace(0, groups - 1, min(groups, _MAX_SHOWN))
    return list(np.round(positions).astype(int).tolist())


def total_costs(plans: Sequence[Plan], repeats: int) -> tuple[Total, ...]:
    """Return what groups would spend if every model, `repeats` of each plan, were released.

    With many groups it is that of some, from the strictest to the loosest: each takes a
    composition. Empty for a single model.
    """
    groups = plans[0].budget_groups
    # What a single model costs is said by its plan.
    if len(plans) * repeats == 1:
        return ()
    costs = []
    for index in choose_shown(len(groups)):
        # All models see the same people: their mechanisms compose.
        composed = Composed(*(Repeated(plan.mechanism_for(index), repeats) for plan in plans))
        delta = float(groups.delta[index])
        spent = float(privacy_curve(composed, method="pld").epsilon(delta).upper)
        costs.append(Total(str(groups.name[index]), delta, spent))
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
        >>> from apiece.jobs import Run
        >>> from apiece.jobs.results import statement_of
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
    data = run.data
    plan = run.kept.plan
    is_seeded = run.seed is not None
    is_searched = plan.runs_on_average is not None
    # Otherwise the Gaussian of a level would tell how many people chose which.
    counts_are_public = plan.counts == "released" or (data.packaged and data.simulated_budgets)
    target_range = None
    target_scale = None
    if data.target_range is not None:
        target_range = list(data.target_range)
        target_scale = data.target_scale
    not_covered = list_not_covered(
        models=run.models,
        charged=run.analysis is not None,
        method=run.method,
        searched=is_searched,
    )
    assumptions = list_assumptions(
        seeded=is_seeded,
        key_stored=run.method != "pate" and run.estimator is None,
        method=run.method,
        unit=data.unit,
        searched=is_searched,
        fixed_steps=run.kept.plan.has_fixed_steps or run.kept.plan.has_turns,
    )
    bound_to = None
    if run.bound is not None:
        bound_to = run.bound.list_digests(plan.to_dict(), run.to_dict())
    return seal({
        "statement": FORMAT,
        **{name: getattr(run, name) for name in SAID},
        "finished": run.finished,
        "for_release": not is_seeded and not plan.objections,
        "unit_of_privacy": {"unit": data.unit, "means": UNITS[data.unit]},
        "neighbouring": {
            "relation": plan.relation,
            "means": f"one {data.unit} added or removed, under the same plan",
        },
        "guarantee": state_guarantee(
            plan, run.levels, run.no_limit_cap, counts_are_public=counts_are_public
        ),
        "mechanism": _describe_mechanism(run),
        "covered": [*COVERED, METHOD_TEXTS[run.method].attacker],
        "not_covered": list(not_covered),
        "trust": {"model": "central", "trusted": list(TRUSTED), "not_trusted": list(NOT_TRUSTED)},
        "assumptions": list(assumptions),
        "data": {
            "label": data.label,
            "classes": list(data.classes),
            "range": target_range,
            "scale": target_scale,
            "schema": data.schema,
            "columns": {name: dict(column) for name, column in data.columns.items()},
            **_describe_pairs(run),
        },
        "versions": {"apiece": run.version, **run.versions},
        "bound_to": bound_to,
    })  # fmt: skip


def _describe_pairs(run: Run) -> Json:
    """Return the pairs of columns whose joint effect was learned; nothing where there is none."""
    pairs = (run.estimator or {}).get("pairs")
    return {"pairs": pairs} if pairs else {}


def _describe_mechanism(run: Run) -> Json:
    """Return how the model was made: method, settings, accounting and randomness."""
    method = METHOD_TEXTS[run.method]
    runs_on_average = run.kept.plan.runs_on_average
    sampling = method.sampling
    if run.strategy == "allocate":
        sampling = ALLOCATED
    elif run.kept.plan.has_fixed_steps:
        sampling = FIXED_STEPS
    elif run.kept.plan.has_turns:
        sampling = TURNS
    mechanism: Json = {
        "name": method.name,
        "sampling": sampling,
        "strategy": run.strategy,
        "settings": dict(run.kept.settings),
        "hidden": list(run.hidden),
        "rows_per_person": run.rows_per_person,
        "accounting": run.kept.plan.method,
        "randomness": "operating system" if run.seed is None else "seed",
        "models_trained": run.models,
    }
    if runs_on_average is not None:
        mechanism["runs_on_average"] = runs_on_average
    mechanism["ledger"] = run.analysis is not None
    return mechanism
