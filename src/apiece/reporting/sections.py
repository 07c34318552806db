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
from apiece.reporting.catalogue import LANGUAGES, localize, translate
from apiece.reporting.closing import gains, interval_text, largest_bound, list_held_out

if TYPE_CHECKING:
    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Level

EDITIONS = ("internal", "public")
# Rows of a table; plan.json has every group.
SHOWN = 40
# What a section reads where it reads nothing of anybody.
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

    # "run", "plan" or "findings".
    of: str
    version: str = __version__
    # The next four are the steward's words.
    purpose: str | None = None
    controller: str | None = None
    contact: str | None = None
    valid_until: str | None = None
    # The day, as 2026-01-31.
    finished: str | None = None
    label: str | None = None
    classes: tuple[str, ...] = ()
    target_range: tuple[float, float] | None = None
    schema: str | None = None
    columns: Mapping[str, Json] = field(default_factory=dict)
    unit: str = "record"
    relation: str = RELATION
    # The strategy of the model that is released, or of the plan.
    strategy: str | None = None
    method: str = "dp-sgd"
    # The settings of each strategy.
    settings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    models: int | None = None
    # The runs of a search, on average.
    runs: float | None = None
    hidden: tuple[int, ...] = ()
    rows_per_person: int | str | None = None
    # Whether a seed was given, so that this is no release.
    seeded: bool = False
    no_limit_cap: float | None = None
    levels: tuple[Level, ...] = ()
    # Whether each person's steps are fixed, with correlated noise, and not drawn.
    fixed_steps: bool = False
    # Whether parts take turns, with correlated noise, and coins decide in each.
    turns: bool = False
    # Whether a ledger was charged.
    charged: bool = False
    # Whether budgets were simulated, for want of a column.
    simulated: bool = False
    # Whether the data come with apiece.
    packaged: bool = False
    audit: str | None = None
    attack: str | None = None
    # δ, confidence and method of each lower bound.
    bounds: tuple[tuple[float, float, str], ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Subject:
    """The subject of a page: what was declared, which anyone may see, and its data."""

    declared: Declared
    plans: Mapping[str, Plan]
    run: Run | None = None
    findings: Findings | None = None
    # The entries of `READS` that anyone may see too.
    open: frozenset[str] = frozenset()

    @property
    def plan(self) -> Plan:
        """The plan of the strategy that is released."""
        return self.plans[str(self.declared.strategy)]


def subject_of(value: object, levels: Asked) -> Subject:
    """Return the subject of a page of a plan, a run, findings or a fitted estimator.

    levels: what people of a plan could choose from; a run has its own.
    """
    from apiece.audit import Findings
    from apiece.jobs import Run

    # A fitted estimator describes its run.
    if hasattr(value, "described"):
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
            bounds=tuple((bound.delta, bound.confidence, bound.basis) for bound in value.bounds),
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
        f"report: {type(value).__name__} is no plan, run, findings, fitted estimator or answer; "
        "give one of these, such as Run.load(folder)"
    )


def _of_run(run: Run) -> Subject:
    """Return the subject of a run; its tables are public where they are packaged and simulated."""
    data = run.data
    run_fields = ("version", *SAID, "finished", "strategy", "method", "models", "hidden",
                  "rows_per_person", "no_limit_cap", "levels")  # fmt: skip
    data_fields = ("label", "classes", "target_range", "schema", "columns", "unit", "packaged")
    declared = Declared(
        of="run",
        **{name: getattr(run, name) for name in run_fields},
        **{name: getattr(data, name) for name in data_fields},
        settings={strategy.strategy: dict(strategy.settings) for strategy in run.strategies},
        seeded=run.seed is not None,
        charged=run.analysis is not None,
        simulated=data.simulated_budgets,
        runs=run.kept.plan.runs_on_average,
        fixed_steps=run.kept.plan.has_fixed_steps,
        turns=run.kept.plan.has_turns,
    )
    # Rows that come with apiece are public, and simulated budgets are nobody's: then nothing has to
    # be hidden.
    public = data.packaged and data.simulated_budgets
    open_reads = frozenset({"budgets", "held out", "members"} if public else ())
    plans = {strategy.strategy: strategy.plan for strategy in run.strategies}
    return Subject(declared, plans, run, open=open_reads)


def _of_plan(plan: Plan, levels: tuple[Level, ...]) -> Subject:
    """Return the subject of a plan; its budgets are public where their counts were released."""
    # Every plan has a reference since it was made.
    assert plan.reference is not None
    # As requested; the reference of fixed steps is one Gaussian.
    steps = plan.steps if plan.has_fixed_steps else plan.reference.steps
    declared = Declared(
        of="plan",
        unit=plan.unit,
        relation=plan.relation,
        strategy=plan.strategy,
        fixed_steps=plan.has_fixed_steps,
        turns=plan.has_turns,
        settings={plan.strategy: {"steps": steps, "clip_norm": plan.clip_norm}},
        levels=levels,
        runs=plan.runs_on_average,
    )
    open_reads = frozenset({"budgets"} if plan.counts == "released" else ())
    return Subject(declared, {plan.strategy: plan.public()}, open=open_reads)


def require_no_objections(subject: Subject) -> None:
    """Raise `InputError` where a plan has objections: a public page would be a release of it."""
    for name, plan in subject.plans.items():
        if plan.objections:
            raise InputError(
                f"edition = public: the plan of {name} is not fit for a release "
                f"({plan.objections[0]}); only the internal edition can be made"
            )


# A function a section, by its name: the values that its block in `report.html.j2` names. A section
# whose function returns None is left out.


def everything(declared: Declared) -> Json:
    """Return nothing beside what is declared, which every block has."""
    return {}


def promise(declared: Declared) -> Json:
    """Return the levels, with the meaning of each for 1,000 people, by (ε, δ) alone."""
    # By (ε, δ) alone: what the plan itself allows would tell how many people chose which level.
    levels = [(level, explain(level.epsilon, level.delta)) for level in declared.levels]
    rows = [(level, explanation.frequencies.right, None) for level, explanation in levels]
    return {"levels": levels, "rows": rows}


def standing(subject: Subject) -> Json:
    """Return the checklist for a release."""
    objections = []
    for name, plan in subject.plans.items():
        objections += [(name, objection) for objection in plan.objections]
    run = _require_run(subject)
    return {"release": run.release, "objections": objections, "folder": run.estimator is None}


def spent(subject: Subject) -> Json:
    """Return the ε that each group asked, and the ε that each strategy spends of it."""
    by_strategy = {name: list_promises(plan) for name, plan in subject.plans.items()}
    groups = list_promises(subject.plan)
    return {
        "by_strategy": by_strategy,
        "spent_by": [f"ε spent, {name}" for name in by_strategy],
        "groups": groups[:SHOWN],
        "more": len(groups) - min(len(groups), SHOWN),
        "small": sum(group.records < SMALL_GROUP for group in groups),
        "least": SMALL_GROUP,
        "plan": subject.plan,
        "figure": figures.budgets(by_strategy),
    }


def meaning(subject: Subject) -> Json:
    """Return for how many in 1,000 a guess is right at most, by (ε, δ) and by the plan itself."""
    groups = list_promises(subject.plan)[:SHOWN]
    rows = [(group, promised_right(group.epsilon, group.delta), group.right) for group in groups]
    return {"rows": rows}


def profile(subject: Subject) -> Json:
    """Return the figure of δ at each ε for the strictest group, the loosest and one between."""
    count = len(subject.plan.groups)
    # Groups stand from the strictest to the loosest; of few groups some of the three are one.
    figure, points = figures.profile(subject.plan, sorted({0, count // 2, count - 1}))
    return {"figure": figure, "points": points}


def contract(subject: Subject) -> Json:
    """Return each group's ε spent and excess, and whether both are within what was allowed."""
    plan = subject.plan
    measures = plan.measures
    # Of many groups it is not computed.
    if measures.forward is None or measures.backward is None:
        return {"clauses": None, "many": len(plan.groups)}
    clauses = []
    for position, group in enumerate(plan.groups[:SHOWN]):
        epsilon_spent = float(measures.epsilon_spent[position])
        forward = float(measures.forward[position])
        backward = float(measures.backward[position])
        is_kept = epsilon_spent <= group.epsilon
        if group.excess is not None:
            is_kept = is_kept and max(forward, backward) <= group.excess
        clauses.append((group, epsilon_spent, forward, backward, is_kept))
    return {"clauses": clauses, "many": len(plan.groups)}


def influence(subject: Subject) -> Json | None:
    """Return each group's share of the batch, and of the greatest pull on a step's sum."""
    plan = subject.plan
    # Shares of a batch are of one stage of clipped sums.
    if len(plan.stages) != 1 or subject.declared.method == "pate":
        return None
    groups = plan.groups
    people = sum(group.records for group in groups)
    # The records of each group in a batch, on average.
    joining = [group.records * group.sampling_probability for group in groups]
    # The greatest norm of each group's part of a step's sum.
    pull = [count * group.clip_norm for count, group in zip(joining, groups, strict=True)]
    rows = []
    for group, group_joining, group_pull in zip(groups, joining, pull, strict=True):
        shares = (group.records / people, group_joining / sum(joining), group_pull / sum(pull))
        rows.append((group, *shares))
    return {"rows": rows[:SHOWN], "figure": figures.influence(rows)}


def accuracy(subject: Subject) -> Json | None:
    """Return the accuracies or errors of the models on held-out people."""
    run = _require_run(subject)
    if not any(strategy.test_accuracy or strategy.test_errors for strategy in run.strategies):
        return None
    tested = run.tested
    classes = run.data.classes
    curve = () if tested is None else tested.curve
    return {
        "data": run.data,
        "strategies": run.strategies,
        "held_out": list_held_out(run),
        "gains": gains(run),
        "figure": figures.accuracy(run),
        "overall": None if tested is None else tested.accuracy,
        "by_class": _pair_with_names(classes, () if tested is None else tested.by_class),
        "taken": [f"taken for {name}" for name in classes],
        "confusion": _pair_with_names(classes, () if tested is None else tested.confusion),
        "curve": curve,
        "curve_figure": figures.learning_curve(curve, error=not classes),
        "interval_text": interval_text,
    }


def fit(subject: Subject) -> Json | None:
    """Return the accuracy of the released model on its training records, by group."""
    run = _require_run(subject)
    names = [group.name for group in run.kept.plan.groups]
    rows = _pair_with_names(names, () if run.tested is None else run.tested.by_group)
    return {"by_group": rows[:SHOWN]} if rows else None


def _pair_with_names(names: Sequence[str], values: Sequence[object]) -> list[tuple[str, object]]:
    """Return each value with its name; nothing where there are no values."""
    return list(zip(names, values, strict=True)) if values else []


def comparison(subject: Subject) -> Json | None:
    """Return the ε that all models together spend, beside that of the released one."""
    run = _require_run(subject)
    if run.models == 1 or not run.totals:
        return None
    promises = run.kept.promises
    # `total_costs` has chosen the same groups, by the same function.
    released = [promises[position] for position in choose_shown(len(promises))]
    return {"totals": list(zip(run.totals, released, strict=False)), "models": run.models}


def audit(subject: Subject) -> Json:
    """Return the findings of an audit: bounds, rates and scores by group, of no person."""
    assert subject.findings is not None
    return {"findings": subject.findings, "figure": figures.rocs(subject.findings.rocs)}


def _describe_numeric(column: Json) -> str:
    text = f"number from {column['lower']:g} to {column['upper']:g}"
    if column.get("scale") == "log":
        text += ", on a logarithmic scale"
    return text


def _describe_date(column: Json) -> str:
    return f"date from {column['lower']} to {column['upper']}"


def _describe_categorical(column: Json) -> str:
    return "one of " + ", ".join(map(str, column["values"]))


# Kind of a column → what its declaration says in words.
_DESCRIPTIONS: dict[str, Callable[[Json], str]] = {
    "numeric": _describe_numeric,
    "date": _describe_date,
    "categorical": _describe_categorical,
}


def features(declared: Declared) -> Json | None:
    """Return each feature's declared range or values."""
    rows = []
    for name, column in declared.columns.items():
        kind = column.get("kind")
        if kind in _DESCRIPTIONS:
            missing = ", ".join(map(repr, column.get("missing", ())))
            rows.append((name, str(kind), _DESCRIPTIONS[kind](column), missing))
    return {"features": rows} if rows else None


def made(declared: Declared) -> Json:
    """Return the names of all settings of all strategies, each once."""
    names: dict[str, None] = {}
    for settings in declared.settings.values():
        names |= dict.fromkeys(settings)
    return {"names": list(names)}


def rates(subject: Subject) -> Json | None:
    """Return the groups of plans of one stage: their sampling rates and clip norms."""
    rows = []
    for name, plan in subject.plans.items():
        if len(plan.stages) == 1 and plan.worst_paths is None:
            rows += [(name, group) for group in plan.groups[:SHOWN]]
    return {"rows": rows, "plan": subject.plan} if rows else None


def table(subject: Subject) -> Json:
    """Return the run and its data, for the size and the hash of the table."""
    run = _require_run(subject)
    return {"run": run, "data": run.data}


def _require_run(subject: Subject) -> Run:
    assert subject.run is not None
    return subject.run


@dataclass(frozen=True, slots=True)
class ReportSection:
    """One section of a page: a block of its template, and when it is shown."""

    # The block in `report.html.j2`.
    name: str
    title: str
    # The kinds of subject that it can be of.
    of: tuple[str, ...]
    # What it reads: one of `READS`.
    reads: str
    # Makes what the block shows, from `Declared` where that is all it reads, else from `Subject`.
    tell: Callable[..., Json | None]
    # Whether it stands only in a public edition, for a section that is left out there.
    instead: bool = False


# Kinds of subject that a section can be of.
_RUN = ("run",)
_PLANNED = ("run", "plan")
_AUDIT = ("findings",)
# In the order of the page.
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
        if subject.declared.of not in section.of:
            continue
        if _explain_omission(section, subject, edition):
            continue
        # The rule of this module: a section that reads what is declared is handed that and no more.
        values = section.tell(subject.declared if section.reads == DECLARED else subject)
        if values is not None:
            shown.append((section, values))
    return shown


def left_out(subject: Subject, edition: str) -> list[tuple[str, str]]:
    """Return (title, reason) of what an edition leaves out, whether or not there is any of it."""
    omissions = []
    for section in SECTIONS:
        if subject.declared.of in section.of and not section.instead:
            reason = _explain_omission(section, subject, edition)
            if reason:
                omissions.append((section.title, reason))
    return omissions


def left_out_text(subject: Subject, edition: str) -> str:
    """Return what an edition leaves out, and why, in one paragraph; empty where it is nothing."""
    titles_by_reason: dict[str, list[str]] = {}
    for title, reason in left_out(subject, edition):
        titles_by_reason.setdefault(reason, []).append(f"“{title}”")
    parts = [f"{reason}: {', '.join(titles)}" for reason, titles in titles_by_reason.items()]
    return "; ".join(parts)


def cards(subject: Subject, edition: str) -> list[tuple[str, str]]:
    """Return the three numbers on top of a page, each with what it is."""
    declared = subject.declared
    # The cards stand on top of every page, and are held to the same rule as sections.
    if edition == "public" and not _CARDS_READ[declared.of] <= subject.open:
        return list(_list_declared_cards(declared))
    if subject.findings is not None:
        return list(_list_findings_cards(subject.findings))
    groups = list_promises(subject.plan)
    size_card = _size_card(subject)
    spent_range = span([group.epsilon_spent for group in groups], rounded_up)
    asked_range = span([group.epsilon for group in groups], shown)
    # Spaces that do not break: a range stays on one line.
    asked_text = asked_range.replace(" ", "\N{NO-BREAK SPACE}")
    spent_card = (spent_range, f"ε spent, at most; asked was {asked_text}")
    rights = [group.right for group in groups if group.right is not None]
    if rights:
        name = "card.as-made" if subject.run else "card.planned"
        meaning_card = (span(rights, "{:,}".format), translate(name, LANGUAGES[0]))
    else:
        meaning_card = (str(len(groups)), "budget groups")
    return [size_card, spent_card, meaning_card]


# What the cards of each kind of subject read, of `READS`.
_CARDS_READ = {"run": {"budgets", "held out"}, "plan": {"budgets"}, "findings": {"members"}}


def _size_card(subject: Subject) -> tuple[str, str]:
    """Return the accuracy of the released model, or how many it was made from or for."""
    unit = subject.declared.unit
    run = subject.run
    if run is None:
        records = sum(group.records for group in list_promises(subject.plan))
        return f"{records:,}", f"{unit}s in the plan"
    position = [strategy.strategy for strategy in run.strategies].index(run.strategy)
    name, texts = list_held_out(run)[-1 if run.data.classes else 0]
    if texts[position] == "not tested":
        return f"{run.data.training_records:,}", f"{unit}s it learned from"
    return texts[position], f"{name}, on people who were held out"


def span(values: Sequence[float], text: Callable[[float], str]) -> str:
    """Return the least and the largest value as text, or one text where they read alike."""
    low = text(min(values))
    high = text(max(values))
    return low if low == high else f"{low} – {high}"


def promised_cards(
    levels: Sequence[tuple[float, float, int]], right_caption: str, language: str = LANGUAGES[0]
) -> Iterator[tuple[str, str]]:
    """Yield three cards on levels, each an ε, a δ and how many of 1,000 are guessed right.

    `right_caption` is the catalogue's name of what the last are of.
    """
    epsilon, delta, right = zip(*levels, strict=True)
    yield localize(span(epsilon, shown), language), translate("card.epsilon", language)
    counts = localize(span(right, "{:,}".format), language)
    yield counts, translate(right_caption, language)
    yield write_chance(max(delta), language), translate("card.delta", language)


def write_chance(delta: float, language: str) -> str:
    """Return δ as 1 in so many cases, a number of cases that is never above the truth."""
    cases = localize(f"{count_cases(1 / delta):,}", language)
    return translate("page.one-in", language, cases=cases)


def _list_declared_cards(declared: Declared) -> Iterator[tuple[str, str]]:
    """Yield three cards from what was declared alone."""
    if declared.levels:
        levels = []
        for level in declared.levels:
            right = promised_right(level.epsilon, level.delta)
            levels.append((level.epsilon, level.delta, right))
        yield from promised_cards(levels, "card.alone")
        return
    if declared.of == "findings":
        yield str(len(declared.bounds)), "lower bounds on ε"
        yield str(declared.models or 1), "models"
    else:
        settings = declared.settings[str(declared.strategy)]
        if declared.runs:
            yield f"{declared.runs:,g}", "runs on average, of which the best is kept"
        elif declared.models:
            yield f"{declared.models:,g}", "models trained"
        else:
            yield f"{settings['clip_norm']:,g}", "mean clip norm"
        yield f"{settings['steps']:,g}", "steps of training"
    unit = translate(f"card.unit-{declared.unit}", LANGUAGES[0])
    yield unit, translate("card.protected", LANGUAGES[0])


def _list_findings_cards(findings: Findings) -> Iterator[tuple[str, str]]:
    """Yield three cards from the findings of an audit."""
    bounds = findings.all_bounds()
    unconditional = [(name, bound) for name, bound in bounds if bound.assumption is None]
    largest = largest_bound(unconditional)
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


def _explain_omission(section: ReportSection, subject: Subject, edition: str) -> str:
    """Return why a section is not in an edition; empty where it is."""
    if edition != "public":
        return "it stands for sections that are there" if section.instead else ""
    if section.instead and "budgets" in subject.open:
        return "the sections that it stands for are there"
    is_closed = section.reads != DECLARED and section.reads not in subject.open
    return READS[section.reads] if is_closed else ""
