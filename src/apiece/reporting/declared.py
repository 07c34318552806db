"""What a page is of, and what of that was declared before anybody's data were read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from apiece._version import __version__
from apiece.errors import InputError
from apiece.plan import Plan
from apiece.plan.parts import RELATION

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Level


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was decided without looking at anybody: all that a public edition is made from.

    Two tables that differ in anyone's rows or budget give the same, as long as the same was
    declared of them. Nothing here is a count of people.

    Attributes:
        of: "run", "plan" or "findings".
        version: Of apiece.
        purpose: In the steward's words.
        finished: The day, as 2026-01-31.
        label: What is predicted.
        classes: Its values.
        target_range: Its range, where it is a number.
        schema: The name of the schema.
        columns: The features' declared columns, by name.
        unit: "record" or "person".
        relation: The adjacency.
        strategy: Of the model that is kept, or of the plan.
        method: "dp-sgd" or "pate".
        settings: Strategy → how it was trained.
        models: How many were trained.
        hidden: Widths of hidden layers.
        rows_per_person: The most rows that a person brings to a step.
        seeded: Whether the randomness came from a seed, so that this is no release.
        no_limit_cap: The ε that "no limit" was read as.
        levels: The budgets that people could choose.
        charged: Whether a ledger was charged.
        simulated: Whether the budgets were drawn for want of a column.
        packaged: Whether the data come with apiece.
        audit: What was audited.
        attack: By which test.
        bounds: Of an audit: the δ and the confidence of its bounds, and how they are computed.
    """

    of: str
    version: str = __version__
    purpose: str | None = None
    finished: str | None = None
    label: str | None = None
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    schema: str | None = None
    columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    unit: str = "record"
    relation: str = RELATION
    strategy: str | None = None
    method: str = "dp-sgd"
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    models: int | None = None
    hidden: tuple[int, ...] = ()
    rows_per_person: int | str | None = None
    seeded: bool = False
    no_limit_cap: float | None = None
    levels: tuple[Level, ...] = ()
    charged: bool = False
    simulated: bool = False
    packaged: bool = False
    audit: str | None = None
    attack: str | None = None
    bounds: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Subject:
    """What a page is of.

    Attributes:
        declared: What may be told to anyone.
        plans: Strategy → plan, in the order of the run.
        run: Where it is one.
        findings: Of an audit.
        open: What of the rest may be told to anyone, since it was released with noise or the data
            are public: some of `sections.READS`.
    """

    declared: Declared
    plans: Mapping[str, Plan]
    run: Run | None = None
    findings: Findings | None = None
    open: frozenset[str] = frozenset()

    @property
    def plan(self) -> Plan:
        """The plan of what is kept."""
        return self.plans[str(self.declared.strategy)]


def subject_of(value: Any, levels: Sequence[tuple[float, float]]) -> Subject:
    """Return what a page of a plan, a run or findings is of.

    levels: pairs (ε, δ) that people could choose from, for a plan; a run tells its own. Raises
    `InputError` for anything else.
    """
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Level

    if levels and not isinstance(value, Plan):
        raise InputError("levels: are for the page of a plan; a run has those of its config")
    if isinstance(value, Run):
        return _of_run(value)
    if isinstance(value, Findings):
        return _of_findings(value)
    if isinstance(value, Plan):
        given = tuple(Level(f"ε = {e:g}", float(e), float(d)) for e, d in levels)
        _require_declared(value, given)
        return _of_plan(value, given)
    raise InputError(
        f"report: {type(value).__name__} is no plan, run or findings; give one of these, such as "
        "Run.load(folder)"
    )


def _require_declared(plan: Plan, levels: tuple[Level, ...]) -> None:
    """Raise `InputError` where levels are given, and a group's budget is none of them."""
    given = {(level.epsilon, level.delta) for level in levels}
    odd = [group for group in plan.groups if (group.epsilon, group.delta) not in given]
    if levels and odd:
        raise InputError(
            f"levels: epsilon, delta = {odd[0].epsilon:g}, {odd[0].delta:g} of a group is none of "
            "them; give every budget that people could choose"
        )


def _of_run(run: Run) -> Subject:
    data = run.data
    declared = Declared(
        of="run",
        version=run.version,
        purpose=run.purpose,
        finished=run.finished,
        label=data.label,
        classes=data.classes,
        target_range=data.target_range,
        schema=data.schema,
        columns=data.columns,
        unit=data.unit,
        strategy=run.strategy,
        method=run.method,
        settings={s.strategy: dict(s.settings) for s in run.strategies},
        models=run.models,
        hidden=run.hidden,
        rows_per_person=run.rows_per_person,
        seeded=run.seed is not None,
        no_limit_cap=run.no_limit_cap,
        levels=run.levels,
        charged=run.analysis is not None,
        simulated=data.simulated_budgets,
        packaged=data.packaged,
    )
    public = {"budgets", "held out", "members"} if data.packaged and data.simulated_budgets else ()
    return Subject(
        declared, {s.strategy: s.plan for s in run.strategies}, run, None, frozenset(public)
    )


def _of_plan(plan: Plan, levels: tuple[Level, ...]) -> Subject:
    assert plan.reference is not None  # set when the plan was made
    settings = {"steps": plan.reference.steps, "clip_norm": plan.clip_norm}
    declared = Declared(
        of="plan",
        unit=plan.unit,
        relation=plan.relation,
        strategy=plan.strategy,
        settings={plan.strategy: settings},
        levels=levels,
    )
    public = {"budgets"} if plan.counts == "released" else ()
    return Subject(declared, {plan.strategy: plan.public()}, None, None, frozenset(public))


def _of_findings(findings: Findings) -> Subject:
    declared = Declared(
        of="findings",
        unit=findings.unit or "record",
        strategy=findings.strategy,
        models=findings.models,
        audit=findings.audit,
        attack=findings.attack,
        bounds=tuple((b.delta, b.confidence, b.method) for b in findings.bounds),
    )
    return Subject(declared, {}, None, findings)


def require_no_objections(subject: Subject) -> None:
    """Raise `InputError` where a plan has objections: what must not be released has no page."""
    for name, plan in subject.plans.items():
        if plan.objections:
            raise InputError(
                f"edition = public: the plan of {name} is not fit for a release "
                f"({plan.objections[0]}); only the internal edition can be made"
            )
