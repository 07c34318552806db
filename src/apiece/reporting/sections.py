"""The sections of a report: what each shows, and in which editions it stands.

A section that reads "declared" alone is handed nothing else, whatever its template says, so that
a public edition cannot hold what it was not given. Every other section is for the steward, unless
what it reads is open: released with noise, or of public data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from apiece._text import rounded_up, shown
from apiece._types import Json
from apiece._version import __version__
from apiece.budgets.groups import SMALL_GROUP
from apiece.contract import explain
from apiece.contract.explain import count_cases, promised_right
from apiece.errors import InputError
from apiece.jobs.config import SAID
from apiece.jobs.results import choose_shown
from apiece.jobs.trained import Asked, list_promises, read_levels
from apiece.plan import Plan
from apiece.plan.parts import RELATION
from apiece.reporting import figures
from apiece.reporting.closing import gains, held_out, interval_text, largest_bound

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Level

EDITIONS = ("internal", "public")
SHOWN = 40  # rows of a table; plan.json has every group
DECLARED = "declared"
# What a section reads → why it is in no public edition.
READS = {
    DECLARED: "",
    "budgets": (
        "what follows from how many people chose which budget (public where these numbers were "
        "released with noise, and the plan was made from those: release_histogram)"
    ),
    "held out": "what is computed from held-out people, without noise",
    "members": "what is computed from who was trained on",
    "table": (
        "what describes the table itself: its size, and a hash by which whoever guesses the whole "
        "table can confirm the guess"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was decided without looking at anybody: all that a public edition is made from."""

    # Two tables that differ in anyone's rows or budget give the same, as long as the same was
    # declared of them. Nothing here is a count of people.

    of: str  # "run", "plan" or "findings"
    version: str = __version__
    purpose: str | None = None  # with the next three, in the steward's words
    controller: str | None = None
    contact: str | None = None
    valid_until: str | None = None
    finished: str | None = None  # the day, as 2026-01-31
    label: str | None = None
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    schema: str | None = None
    columns: Mapping[str, Json] = field(default_factory=dict)
    unit: str = "record"
    relation: str = RELATION
    strategy: str | None = None  # of the model that is kept, or of the plan
    method: str = "dp-sgd"
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # by strategy
    models: int | None = None
    runs: float | None = None  # of a search, on average
    hidden: tuple[int, ...] = ()
    rows_per_person: int | str | None = None
    seeded: bool = False  # so that this is no release
    no_limit_cap: float | None = None
    levels: tuple[Level, ...] = ()
    charged: bool = False  # to a ledger
    simulated: bool = False  # budgets, for want of a column
    packaged: bool = False  # data that come with apiece
    audit: str | None = None
    attack: str | None = None
    bounds: tuple[tuple[float, float, str], ...] = ()  # δ, confidence and method


@dataclass(frozen=True, slots=True, repr=False)
class Subject:
    """What a page is of: what may be told to anyone, and the rest."""

    # `open` says what of the rest may be told to anyone too (some of `READS`).

    declared: Declared
    plans: Mapping[str, Plan]
    run: Run | None = None
    findings: Findings | None = None
    open: frozenset[str] = frozenset()

    @property
    def plan(self) -> Plan:
        """The plan of what is kept."""
        return self.plans[str(self.declared.strategy)]


def subject_of(value: object, levels: Asked) -> Subject:
    """Return what a page of a plan, a run or findings is of."""
    # `levels` are what people of a plan could choose from; a run tells its own.
    from apiece.audit import Findings
    from apiece.jobs import Run

    if hasattr(value, "described"):  # a fitted estimator
        value = value.described()
    if levels and not isinstance(value, Plan):
        raise InputError("levels: are for the page of a plan; a run has those of its config")
    if isinstance(value, Run):
        return _of_run(value)
    if isinstance(value, Findings):
        declared = Declared(
            of="findings",
            unit=value.unit or "record",
            strategy=value.strategy,
            models=value.models,
            audit=value.audit,
            attack=value.attack,
            bounds=tuple((b.delta, b.confidence, b.basis) for b in value.bounds),
        )
        return Subject(declared, {}, findings=value)
    if isinstance(value, Plan):
        return _of_plan(value, read_levels(levels, value))
    if isinstance(getattr(value, "plan", None), Plan):
        raise InputError(
            f"report: a {type(value).__name__} is no finished run; give its plan, as "
            "apiece.report(trainer.plan)"
        )
    raise InputError(
        f"report: {type(value).__name__} is no plan, run, findings or fitted estimator; give one "
        "of these, such as Run.load(folder)"
    )


def _of_run(run: Run) -> Subject:
    data = run.data
    of_run = ("version", *SAID, "finished", "strategy", "method", "models", "hidden",
              "rows_per_person", "no_limit_cap", "levels")  # fmt: skip
    of_data = ("label", "classes", "target_range", "schema", "columns", "unit", "packaged")
    declared = Declared(
        of="run",
        **{name: getattr(run, name) for name in of_run},
        **{name: getattr(data, name) for name in of_data},
        settings={s.strategy: dict(s.settings) for s in run.strategies},
        seeded=run.seed is not None,
        charged=run.analysis is not None,
        simulated=data.simulated_budgets,
        runs=run.kept.plan.runs_on_average,
    )
    public = data.packaged and data.simulated_budgets
    opened = frozenset({"budgets", "held out", "members"} if public else ())
    return Subject(declared, {s.strategy: s.plan for s in run.strategies}, run, open=opened)


def _of_plan(plan: Plan, levels: tuple[Level, ...]) -> Subject:
    assert plan.reference is not None  # set when the plan was made
    declared = Declared(
        of="plan",
        unit=plan.unit,
        relation=plan.relation,
        strategy=plan.strategy,
        settings={plan.strategy: {"steps": plan.reference.steps, "clip_norm": plan.clip_norm}},
        levels=levels,
        runs=plan.runs_on_average,
    )
    opened = frozenset({"budgets"} if plan.counts == "released" else ())
    return Subject(declared, {plan.strategy: plan.public()}, open=opened)


def require_no_objections(subject: Subject) -> None:
    """Raise `InputError` where a plan has objections: what must not be released has no page."""
    for name, plan in subject.plans.items():
        if plan.objections:
            raise InputError(
                f"edition = public: the plan of {name} is not fit for a release "
                f"({plan.objections[0]}); only the internal edition can be made"
            )


# What each section shows: the values that its block in `report.html.j2` names. None leaves it out.


def everything(declared: Declared) -> Json:
    """Return nothing beside what is declared, which every block has."""
    return {}


def promise(declared: Declared) -> Json:
    """Return the levels, with what each means of 1,000 people, by (ε, δ) alone."""
    told = [(level, explain(level.epsilon, level.delta)) for level in declared.levels]
    return {"levels": told, "rows": [(e, t.frequencies.right, None) for e, t in told]}


def standing(subject: Subject) -> Json:
    """Return the checklist for a release."""
    objections = [(name, o) for name, plan in subject.plans.items() for o in plan.objections]
    run = _run(subject)
    return {"release": run.release, "objections": objections, "folder": run.estimator is None}


def spent(subject: Subject) -> Json:
    """Return what each group asked and what each strategy spends of it."""
    by_strategy = {name: list_promises(plan) for name, plan in subject.plans.items()}
    first = list_promises(subject.plan)
    return {
        "by_strategy": by_strategy,
        "spent_by": [f"ε spent, {name}" for name in by_strategy],
        "groups": first[:SHOWN],
        "more": len(first) - min(len(first), SHOWN),
        "small": sum(group.records < SMALL_GROUP for group in first),
        "least": SMALL_GROUP,
        "plan": subject.plan,
        "figure": figures.budgets(by_strategy),
    }


def meaning(subject: Subject) -> Json:
    """Return of how many in 1,000 a guess is right at most, by (ε, δ) and by the plan itself."""
    groups = list_promises(subject.plan)[:SHOWN]
    return {"rows": [(g, promised_right(g.epsilon, g.delta), g.right) for g in groups]}


def profile(subject: Subject) -> Json:
    """Return the figure of δ at each ε for the strictest group, the loosest and one between."""
    count = len(subject.plan.groups)
    figure, points = figures.profile(subject.plan, sorted({0, count // 2, count - 1}))
    return {"figure": figure, "points": points}


def contract(subject: Subject) -> Json:
    """Return what the others' choices do to each group, beside what was allowed."""
    plan, measures = subject.plan, subject.plan.measures
    if measures.forward is None or measures.backward is None:
        return {"clauses": None, "many": len(plan.groups)}
    clauses = []
    for g, group in enumerate(plan.groups[:SHOWN]):
        moved = float(measures.forward[g]), float(measures.backward[g])
        within = group.excess is None or max(moved) <= group.excess
        kept = float(measures.epsilon_spent[g]) <= group.epsilon and within
        clauses.append((group, float(measures.epsilon_spent[g]), *moved, kept))
    return {"clauses": clauses, "many": len(plan.groups)}


def influence(subject: Subject) -> Json | None:
    """Return each group's share of the batch, and of the greatest pull on a step's sum."""
    plan = subject.plan
    if len(plan.stages) != 1 or subject.declared.method == "pate":
        return None
    groups = plan.groups
    joining = [g.records * g.sampling_probability for g in groups]
    pull = [n * g.clip_norm for n, g in zip(joining, groups, strict=True)]
    people = sum(g.records for g in groups)
    rows = [
        (g, g.records / people, n / sum(joining), p / sum(pull))
        for g, n, p in zip(groups, joining, pull, strict=True)
    ]
    return {"rows": rows[:SHOWN], "figure": figures.influence(rows)}


def accuracy(subject: Subject) -> Json | None:
    """Return how good the models are on held-out people."""
    run = _run(subject)
    if not any(s.test_accuracy or s.test_errors for s in run.strategies):
        return None
    tested = run.tested
    curve = () if tested is None else tested.curve
    return {
        "data": run.data,
        "strategies": run.strategies,
        "held_out": held_out(run),
        "gains": gains(run),
        "figure": figures.accuracy(run),
        "overall": None if tested is None else tested.accuracy,
        "by_class": _named(run.data.classes, () if tested is None else tested.by_class),
        "taken": [f"taken for {name}" for name in run.data.classes],
        "confusion": _named(run.data.classes, () if tested is None else tested.confusion),
        "curve": curve,
        "curve_figure": figures.learning_curve(curve, error=not run.data.classes),
        "interval_text": interval_text,
    }


def fit(subject: Subject) -> Json | None:
    """Return how often the kept model is right about those whom it was trained on, by group."""
    run = _run(subject)
    names = [group.name for group in run.kept.plan.groups]
    rows = _named(names, () if run.tested is None else run.tested.by_group)
    return {"by_group": rows[:SHOWN]} if rows else None


def _named(names: Sequence[str], values: Sequence[object]) -> list[tuple[str, object]]:
    return list(zip(names, values, strict=True)) if values else []


def comparison(subject: Subject) -> Json | None:
    """Return what all models together cost beside the one that is kept."""
    run = _run(subject)
    if run.models == 1 or not run.totals:
        return None
    alone = [run.kept.promises[g] for g in choose_shown(len(run.kept.promises))]
    return {"totals": list(zip(run.totals, alone, strict=False)), "models": run.models}


def audit(subject: Subject) -> Json:
    """Return what an audit found: bounds, rates and scores by group; nobody's own."""
    assert subject.findings is not None
    return {"findings": subject.findings, "figure": figures.rocs(subject.findings.rocs)}


_KINDS: dict[str, Callable[[Json], str]] = {
    "numeric": lambda c: (
        f"number from {c['lower']:g} to {c['upper']:g}"
        + (", on a logarithmic scale" if c.get("scale") == "log" else "")
    ),
    "date": lambda c: f"date from {c['lower']} to {c['upper']}",
    "categorical": lambda c: "one of " + ", ".join(map(str, c["values"])),
}


def features(declared: Declared) -> Json | None:
    """Return each feature's declared range or values."""
    rows = [
        (name, str(c["kind"]), _KINDS[c["kind"]](c), ", ".join(map(repr, c.get("missing", ()))))
        for name, c in declared.columns.items()
        if c.get("kind") in _KINDS
    ]
    return {"features": rows} if rows else None


def made(declared: Declared) -> Json:
    """Return the settings of each strategy under the names that all have."""
    return {"names": list(dict.fromkeys(n for own in declared.settings.values() for n in own))}


def rates(subject: Subject) -> Json | None:
    """Return what is done to the records of each group, of plans of one stage."""
    rows = [
        (name, group)
        for name, plan in subject.plans.items()
        if len(plan.stages) == 1 and plan.worst_paths is None
        for group in plan.groups[:SHOWN]
    ]
    return {"rows": rows, "plan": subject.plan} if rows else None


def table(subject: Subject) -> Json:
    """Return how many people the table has, and which table it is."""
    return {"run": _run(subject), "data": _run(subject).data}


def _run(subject: Subject) -> Run:
    assert subject.run is not None
    return subject.run


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One section of a page: a block of its template, and the place on the page."""

    # `of` are the kinds of subject that it can be of, `reads` is one of `READS`. `tell` makes what
    # the block shows, from `Declared` where that is all it reads, else from the `Subject`. A
    # section that stands `instead` of what a public edition leaves out stands only there.

    name: str
    title: str
    of: tuple[str, ...]
    reads: str
    tell: Callable[..., Json | None]
    instead: bool = False


_RUN, _PLANNED, _AUDIT = ("run",), ("run", "plan"), ("findings",)
SECTIONS = (
    ReportSection("standing", "Whether it is fit for release", _RUN, "budgets", standing),
    ReportSection("promise", "What was promised", _PLANNED, DECLARED, promise, instead=True),
    ReportSection("spent", "What was promised, and what was spent", _PLANNED, "budgets", spent),
    ReportSection("meaning", "What this means for one person", _PLANNED, "budgets", meaning),
    ReportSection("profile", "The privacy profile", _PLANNED, "budgets", profile),
    ReportSection("contract", "Whether every contract is kept", _PLANNED, "budgets", contract),
    ReportSection("accuracy", "How good the models are", _RUN, "held out", accuracy),
    ReportSection("fit", "How well it fits each budget group", _RUN, "members", fit),
    ReportSection(
        "influence", "How much each group moves the model", _PLANNED, "budgets", influence
    ),
    ReportSection("comparison", "What a comparison costs", _RUN, "budgets", comparison),
    ReportSection("method", "How it was audited", _AUDIT, DECLARED, everything),
    ReportSection("audit", "What the audit found", _AUDIT, "members", audit),
    ReportSection("covered", "What the numbers do not cover", _PLANNED, DECLARED, everything),
    ReportSection("features", "What it learned from", _RUN, DECLARED, features),
    ReportSection("made", "How it was made", _PLANNED, DECLARED, made),
    ReportSection("rates", "Rates and noise of each group", _PLANNED, "budgets", rates),
    ReportSection("table", "The table", _RUN, "table", table),
)


def sections_of(subject: Subject, edition: str) -> list[tuple[ReportSection, Json]]:
    """Return the sections of an edition with what they show, in order."""
    shown = []
    for section in SECTIONS:
        if subject.declared.of not in section.of or _why_not(section, subject, edition):
            continue
        values = section.tell(subject.declared if section.reads == DECLARED else subject)
        if values is not None:
            shown.append((section, values))
    return shown


def left_out(subject: Subject, edition: str) -> list[tuple[str, str]]:
    """Return (title, reason) of what an edition leaves out, whether or not there is any of it."""
    return [
        (section.title, why)
        for section in SECTIONS
        if subject.declared.of in section.of and not section.instead
        if (why := _why_not(section, subject, edition))
    ]


def left_out_text(subject: Subject, edition: str) -> str:
    """Return the same in one paragraph; nothing where nothing is left out."""
    titles: dict[str, list[str]] = {}
    for title, why in left_out(subject, edition):
        titles.setdefault(why, []).append(f"“{title}”")
    return "; ".join(f"{why}: {', '.join(each)}" for why, each in titles.items())


def cards(subject: Subject, edition: str) -> list[tuple[str, str]]:
    """Return the three numbers on top of a page, each with what it is."""
    declared, run, findings = subject.declared, subject.run, subject.findings
    reads = {"run": {"budgets", "held out"}, "plan": {"budgets"}, "findings": {"members"}}
    if edition == "public" and not reads[declared.of] <= subject.open:
        return list(_declared_cards(declared))
    if findings is not None:
        return list(_findings_cards(findings))
    groups = list_promises(subject.plan)
    first = f"{sum(g.records for g in groups):,}", f"{declared.unit}s in the plan"
    if run is not None and (told := held_out(run)):
        at = [each.strategy for each in run.strategies].index(run.strategy)
        name, texts = told[-1 if run.data.classes else 0]
        first = (texts[at], f"{name}, on people who were held out")
        if texts[at] == "not tested":
            first = f"{run.data.training_records:,}", f"{declared.unit}s it learned from"
    rights = [g.right for g in groups if g.right is not None]
    return [
        first,
        (
            span([g.epsilon_spent for g in groups], rounded_up),
            f"ε spent, at most; asked was {span([g.epsilon for g in groups], shown)}",
        ),
        (span(rights, "{:,}".format), MADE if run else f"{RIGHT}By this plan")
        if rights
        else (str(len(groups)), "budget groups"),
    ]


RIGHT = "of 1,000 people like you an attacker guesses right, at most; 500 by a coin. "
ALONE, MADE = RIGHT + "By ε and δ alone", RIGHT + "As it was made"


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return the least and the largest value as text, or the only one."""
    ends = dict.fromkeys(map(text, (min(values), max(values))))
    return " – ".join(ends)


def promised_cards(
    levels: Sequence[tuple[float, float, int]], what: str = ALONE
) -> Iterator[tuple[str, str]]:
    """Yield what levels promise, as (ε, δ, right of 1,000), in three numbers."""
    epsilon, delta, right = zip(*levels, strict=True)
    yield span(epsilon, shown), "ε, each person’s own: the smaller, the less can be learnt of them"
    yield span(right, "{:,}".format), what
    yield (
        f"1 in {count_cases(1 / max(delta)):,}",
        "chance, at most, that a result gives somebody away altogether: δ",
    )


def _declared_cards(declared: Declared) -> Iterator[tuple[str, str]]:
    if declared.levels:
        yield from promised_cards([
            (e.epsilon, e.delta, promised_right(e.epsilon, e.delta)) for e in declared.levels
        ])  # fmt: skip
        return
    if declared.of == "findings":
        yield str(len(declared.bounds)), "lower bounds on ε"
        yield str(declared.models or 1), "models"
    else:
        settings = declared.settings[str(declared.strategy)]
        if declared.runs:
            yield f"{declared.runs:,g}", "runs on average, of which the best is kept"
        else:
            number = declared.models if declared.models else settings["clip_norm"]
            yield f"{number:,g}", "models trained" if declared.models else "mean clip norm"
        yield f"{settings['steps']:,g}", "steps of training"
    yield f"1 {declared.unit}", "is protected: whether it took part"


def _findings_cards(findings: Findings) -> Iterator[tuple[str, str]]:
    sure = [(name, bound) for name, bound in findings.all_bounds() if bound.assumption is None]
    largest = largest_bound(sure)
    if largest is None:
        yield "–", "ε at least, by what the attack found"
    else:
        yield (
            f"{largest.epsilon:.3g}",
            f"ε of {largest.group} at least, with {100 * largest.confidence:.4g} % confidence",
        )
    areas = [roc.auc for roc in findings.rocs.values()]
    yield (f"{max(areas):.3f}" if areas else "–"), "area under the curve of the group told best"
    yield (
        (f"{findings.canaries:,}" if findings.canaries else "–"),
        "canaries that the bounds rest on",
    )


def _why_not(section: ReportSection, subject: Subject, edition: str) -> str:
    """Return why a section is not in an edition; nothing where it is."""
    if edition != "public":
        return "it stands for sections that are there" if section.instead else ""
    if section.instead and "budgets" in subject.open:
        return "the sections that it stands for are there"
    closed = section.reads != DECLARED and section.reads not in subject.open
    return READS[section.reads] if closed else ""
