"""The sections of a page: one table says what each reads, and so in which editions it stands.

A section that reads "declared" alone is handed nothing else, whatever its template says, so that
a public edition cannot hold what it was not given. Every other section is for the steward, unless
what it reads is open: released with noise, or of public data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from apiece._types import Json
from apiece.budgets.groups import SMALL_GROUP
from apiece.contract import explain
from apiece.jobs.results import totalled
from apiece.reporting import figures
from apiece.reporting.closing import gains, held_out, interval_text
from apiece.reporting.declared import Subject

if TYPE_CHECKING:
    from apiece.jobs.trained import Promise
    from apiece.plan import Plan
    from apiece.reporting.declared import Declared, Subject

SHOWN = 40  # rows of a table; plan.json has every group


def everything(declared: Declared) -> Json:
    """Return nothing beside what is declared, which every template has."""
    return {}


def promise(declared: Declared) -> Json:
    """Return the levels, with what each means of 1,000 people, by (ε, δ) alone."""
    told = [(level, explain(level.epsilon, level.delta)) for level in declared.levels]
    return {"levels": told}


def standing(subject: Subject) -> Json:
    """Return the checklist for a release."""
    run = _run(subject)
    objections = [(name, o) for name, plan in subject.plans.items() for o in plan.objections]
    return {"release": run.release, "objections": objections}


def spent(subject: Subject) -> Json:
    """Return what each group asked and what each strategy spends of it."""
    by_strategy = {name: promises(plan) for name, plan in subject.plans.items()}
    first = promises(subject.plan)
    return {
        "by_strategy": by_strategy,
        "groups": first[:SHOWN],
        "more": len(first) - min(len(first), SHOWN),
        "small": sum(group.records < SMALL_GROUP for group in first),
        "least": SMALL_GROUP,
        "plan": subject.plan,
        "figure": figures.budgets(by_strategy),
    }


def promises(plan: Plan) -> tuple[Promise, ...]:
    """Return what each group asked and spends."""
    from apiece.jobs.trained import promises_of

    return promises_of(plan)


def meaning(subject: Subject) -> Json:
    """Return of how many in 1,000 a guess at membership is right, at most, by the plan itself."""
    groups = promises(subject.plan)[:SHOWN]
    told = [(g, None if g.guess is None else round(10 * g.guess)) for g in groups]
    return {"told": None if groups[0].guess is None else told, "many": len(subject.plan.groups)}


def profile(subject: Subject) -> Json:
    """Return the figure of δ at each ε for the strictest group, the loosest and one between."""
    count = len(subject.plan.groups)
    chosen = sorted({0, count // 2, count - 1})
    figure, points = figures.profile(subject.plan, chosen)
    return {"figure": figure, "points": points}


def contract(subject: Subject) -> Json:
    """Return what the others' choices do to each group, beside what was allowed."""
    plan, measures = subject.plan, subject.plan.measures
    if measures.forward is None or measures.backward is None:
        return {"clauses": None, "many": len(plan.groups)}
    clauses = []
    for g, group in enumerate(plan.groups[:SHOWN]):
        apart = float(measures.forward[g]), float(measures.backward[g])
        within = group.excess is None or max(apart) <= group.excess
        kept = float(measures.epsilon_spent[g]) <= group.epsilon and within
        clauses.append((group, float(measures.epsilon_spent[g]), *apart, kept))
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
    if not any(found.test_accuracy or found.test_errors for found in run.strategies):
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
        "by_class": _zipped(run.data.classes, tested, "by_class"),
        "confusion": _zipped(run.data.classes, tested, "confusion"),
        "curve": curve,
        "curve_figure": figures.learning_curve(curve, error=not run.data.classes),
        "interval_text": interval_text,
    }


def fit(subject: Subject) -> Json | None:
    """Return how often the kept model is right about those whom it was trained on, by group."""
    run = _run(subject)
    names = [group.name for group in run.kept.plan.groups]
    rows = _zipped(names, run.tested, "by_group")
    return {"by_group": rows[:SHOWN]} if rows else None


def _zipped(names: Any, tested: Any, field: str) -> list[tuple[str, Any]]:
    found = () if tested is None else getattr(tested, field)
    return list(zip(names, found, strict=True)) if found else []


def comparison(subject: Subject) -> Json | None:
    """Return what all models together cost beside the one that is kept."""
    run = _run(subject)
    if run.models == 1:
        return None
    chosen = totalled(len(run.kept.promises))
    alone = [run.kept.promises[g] for g in chosen]
    return {"totals": list(zip(run.totals, alone, strict=False)), "models": run.models}


def audit(subject: Subject) -> Json:
    """Return what an audit found: bounds, rates and scores by group; nobody's own."""
    findings = subject.findings
    assert findings is not None
    return {"findings": findings, "figure": figures.rocs(findings.rocs)}


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
    told = [
        (
            name,
            str(c["kind"]),
            _KINDS[c["kind"]](dict(c)),
            ", ".join(map(repr, c.get("missing", ()))),
        )
        for name, c in declared.columns.items()
        if c.get("kind") in _KINDS
    ]
    return {"features": told} if told else None


def made(declared: Declared) -> Json:
    """Return the settings of each strategy under the names that all have."""
    names = list(dict.fromkeys(n for own in declared.settings.values() for n in own))
    return {"names": names}


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
    run = _run(subject)
    return {"run": run, "data": run.data}


def _run(subject: Subject) -> Any:
    assert subject.run is not None
    return subject.run


EDITIONS = ("internal", "public")
DECLARED = "declared"
# What a section reads → why it is in no public edition.
READS = {
    DECLARED: "",
    "budgets": (
        "It follows from how many people chose which budget. It is public where these numbers "
        "were released with noise, and the plan was made from those (release_histogram)."
    ),
    "held out": "It is computed from held-out people, without noise.",
    "members": "It is computed from who was trained on.",
    "table": (
        "It describes the table itself: its size, and a hash by which whoever guesses the whole "
        "table can confirm the guess."
    ),
}
Context = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    Attributes:
        name: Of its template, and of its place on the page.
        title: Of it.
        of: The kinds of subject that it can be of.
        reads: One of `READS`.
        tell: From `Declared`, where that is all it reads, or else from the `Subject`: what its
            template shows; None where there is nothing to show.
        instead: Whether it stands for sections that a public edition leaves out, and so only there.

    Example:
        >>> Section("made", "How it was made", ("run",), "declared", lambda declared: {}).reads
        'declared'
    """

    name: str
    title: str
    of: tuple[str, ...]
    reads: str
    tell: Callable[[Any], Context | None]
    instead: bool = False


_RUN, _PLANNED, _AUDIT = ("run",), ("run", "plan"), ("findings",)
_ALL = (*_PLANNED, *_AUDIT)
SECTIONS = (
    Section("standing", "Whether it is fit for release", _RUN, "budgets", standing),
    Section("promise", "What was promised", _PLANNED, DECLARED, promise, instead=True),
    Section("spent", "What was promised, and what was spent", _PLANNED, "budgets", spent),
    Section("meaning", "What this means for one person", _PLANNED, "budgets", meaning),
    Section("profile", "The privacy profile", _PLANNED, "budgets", profile),
    Section("contract", "Whether every contract is kept", _PLANNED, "budgets", contract),
    Section("accuracy", "How good the models are", _RUN, "held out", accuracy),
    Section("fit", "How well it fits each budget group", _RUN, "members", fit),
    Section("influence", "How much each group moves the model", _PLANNED, "budgets",
            influence),
    Section("comparison", "What a comparison costs", _RUN, "budgets", comparison),
    Section("method", "How it was audited", _AUDIT, DECLARED, everything),
    Section("audit", "What the audit found", _AUDIT, "members", audit),
    Section("covered", "What the numbers do not cover", _PLANNED, DECLARED, everything),
    Section("features", "What it learned from", _RUN, DECLARED, features),
    Section("made", "How it was made", _PLANNED, DECLARED, made),
    Section("rates", "Rates and noise of each group", _PLANNED, "budgets", rates),
    Section("table", "The table", _RUN, "table", table),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A section that a public edition leaves out, and why.

    Example:
        >>> LeftOut("The table", READS["table"]).title
        'The table'
    """

    title: str
    why: str


def sections_of(subject: Subject, edition: str) -> list[tuple[Section, Context]]:
    """Return the sections of an edition with what their templates show, in order."""
    found = []
    for section in SECTIONS:
        if subject.declared.of not in section.of or _why_not(section, subject, edition):
            continue
        source: Any = subject.declared if section.reads == DECLARED else subject
        context = section.tell(source)
        if context is not None:
            found.append((section, context))
    return found


def left_out(subject: Subject, edition: str) -> list[LeftOut]:
    """Return what an edition leaves out, whether or not there is anything of it."""
    return [
        LeftOut(section.title, why)
        for section in SECTIONS
        if subject.declared.of in section.of and not section.instead
        for why in [_why_not(section, subject, edition)]
        if why
    ]


def _why_not(section: Section, subject: Subject, edition: str) -> str:
    """Return why a section is not in an edition; nothing where it is."""
    closed = section.reads != DECLARED and section.reads not in subject.open
    if edition == "public":
        if section.instead and "budgets" in subject.open:
            return "the sections that it stands for are there"
        return READS[section.reads] if closed else ""
    return "it stands for sections that are there" if section.instead else ""
