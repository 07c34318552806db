"""Run: what a finished job found, as reports read it, and as its folder keeps it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from apiece import _json
from apiece._types import Json
from apiece.accounting import privacy_curve
from apiece.budgets import capped
from apiece.errors import DataError, StateError
from apiece.jobs import stored
from apiece.jobs.accuracies import Accuracies
from apiece.jobs.binding import Bound, config_digest, require_same_digest, require_sealed, salt_of
from apiece.jobs.config import Job, read_job
from apiece.jobs.release import Release, checklist
from apiece.jobs.trained import Facts, Level, Trained
from apiece.mechanisms import Composed, Repeated
from apiece.plan import Plan

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
        data = stored.read_json(folder / METRICS)
        arguments, repeats = stored.arguments(data, str(folder / METRICS))
        plans = [found.plan for found in arguments["strategies"]]
        run = cls(**arguments, totals=totals(plans, repeats))
        stored.require_same(data, run.to_dict(), str(folder / METRICS))
        plan = stored.read_json(folder / PLAN)
        stored.require_same(plan, run.kept.plan.to_dict(), str(folder / PLAN))
        _require_job(run, read_job(folder / CONFIG), folder / CONFIG)
        _require_bound(run, plan, data, folder)
        return run


def _require_bound(run: Run, plan: Any, metrics: Any, folder: Path) -> None:
    """Raise `DataError` where the statement is not of the run, or of other files than are there."""
    from apiece.jobs.model import load_model
    from apiece.jobs.statement import statement_of

    path, bound = folder / STATEMENT, run.bound
    said = require_sealed(stored.read_json(path), str(path))
    if bound is None:
        raise DataError(f"{folder / METRICS}: binds no statement; train again, or use the apiece "
                        "that wrote it")  # fmt: skip
    found = statement_of(run)
    for name in ("bound_to", "digest"):  # of what is stored, and not of what was computed anew
        found[name] = said[name]
    stored.require_same(said, found, str(path))
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
    from apiece.jobs.parts import TUNED

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
