"""A statement of what a run promises, for an officer and for machines: nothing in it is of people.

It answers the questions of Near et al. 2025 (NIST SP 800-226): what is protected, from whom, by how
much, by which mechanism, what is covered and what is not. It stands in `model.pt` and beside it,
may go wherever the model goes, and is made of what was declared alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib.resources import files
from typing import Protocol

import numpy as np

from apiece._types import Json
from apiece.contract import explain
from apiece.jobs.binding import FORMAT, Bound, sealed
from apiece.jobs.trained import Facts, Level, Trained
from apiece.plan import Plan

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
