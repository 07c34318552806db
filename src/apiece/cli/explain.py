"""apiece explain: what a budget means for the person who gives it, in frequencies."""

from pathlib import Path
from typing import Any

import click

from apiece import _json
from apiece._files import PAGE
from apiece._text import shown
from apiece._types import Flags
from apiece.accounting import privacy_curve
from apiece.assignment import Allocate, Correlated, Epochs, Hybrid, Sample, Scale, Strategy
from apiece.budgets.levels import Levels
from apiece.cli._command import (
    PATH,
    Bar,
    Command,
    Output,
    emit,
    format_bullets,
    make_flag,
    option,
    parse_groups,
    read_plan,
    refuse_given,
    require_delta,
)
from apiece.contract import Explanation, choices, explain
from apiece.contract.explain import count_participation
from apiece.errors import InputError, OptionError, together, unknown
from apiece.mechanisms.algebra import from_dict

EXAMPLE = """
\b
Example:
  apiece explain --epsilon 1 --delta 1e-5
  apiece explain --epsilon 1 --delta 1e-5 --consent --purpose "a study of sleep"
  apiece explain --plan plan.json --group strict --figure strict.png
  apiece explain --groups strict:1:0.34,medium:2:0.43,weak:3:0.23 --records 50000 \\
                 --delta 1e-5 --batch-size 1024 --steps 1465 --strategy scale --page choose.html
"""
# The options of a single budget, and those of the page of budgets on offer.
BUDGET = ("epsilon", "mechanism", "plan", "group")
OFFER = ("page", "groups", "records", "batch_size", "steps")
# The strategies of the page: what a contributor faces is one of them, which the steward chose. Each
# is made without settings, but for the bound of `Hybrid`.
PAGE_STRATEGIES: dict[str, type[Strategy]] = {
    kind.name: kind for kind in (Sample, Scale, Hybrid, Allocate, Epochs)
}
# The noise of the plans that the page is about.
PAGE_NOISES = ("independent", "correlated")
# An example of each option that the page needs.
EXAMPLES = {
    "page": "choose.html",
    "groups": "strict:1:0.5,weak:3:0.5",
    "records": "50000",
    "batch_size": "1024",
    "steps": "1465",
    "delta": "1e-5",
}
# The largest number of groups that a message lists.
MAX_NAMES = 8


@click.command(cls=Command, epilog=EXAMPLE)
@option("--epsilon", type=float, help="ε of the budget.")
@option("--delta", type=float)
@option("--mechanism", help="Mechanism that is run, as JSON; see apiece account --help.")
@option("--plan", type=PATH, help="JSON file of the plan that is run; with --group.")
@option("--group", help="Group of --plan whose budget is explained.")
@option("--consent", is_flag=True, help="Print a text for a consent form.")
@option("--purpose", help="Purpose of the result; with --consent.")
@option("--figure")
@option("--page", type=Output(PAGE), help="Write the contributor's page here; with --groups.")
@option("--groups", help="Budgets on offer with expected shares, as name:epsilon:share,…")
@option("--levels", help="In place of --groups, as low=1,high=8, with equal shares.")
@option("--records", help="Expected number of people; with --groups.")
@option("--batch-size", help="Expected batch size; with --groups.")
@option("--steps", help="Number of model updates; with --groups.")
@option("--strategy", help="How budgets will be kept: scale, sample, hybrid, allocate or epochs.")
@option("--excess", help="Bound Δ̄ on the excess risk; with --strategy hybrid.")
@option("--noise", help="independent or correlated (fixed batches); with --groups.")
@option("--language", help="en or de: of the contributor's page; with --groups.  [default: en]")
@option("--json")
def command(
    consent: bool, purpose: str | None, figure: Path | None, as_json: bool, **flags: Any
) -> None:
    """Say in frequencies what a budget (ε, δ) promises a person.

    The counts are exact for (ε, δ): some mechanism that keeps it reaches each. With --mechanism or
    --plan they hold for what is run, which allows less. Counts are rounded against the
    promise: no attacker does better on average.

    With --groups and --page it writes one HTML file, on which people pick a budget and see what it
    means, whatever the others choose, under the strategy that will be run.
    """
    # Two commands in one: the page of budgets on offer, or the meaning of a single one.
    if any(flags[name] is not None for name in ("levels", "page", "groups")):
        refuse_given(
            (*BUDGET, "consent", "purpose", "figure"), "goes with a single budget; leave it out"
        )
        offer = {name: flags[name] for name in (*OFFER, "delta")}
        noise = _read_noise(flags["noise"])
        strategy = _read_strategy(flags["strategy"], flags["excess"])
        language = _read_language(flags["language"])
        _write_page(offer, flags["levels"], strategy, noise, language, as_json)
        return
    refuse_given(
        (*OFFER, "strategy", "excess", "noise", "language"),
        "goes with --groups; leave it out, or give --groups and --page",
    )
    if purpose is not None and not consent:
        raise InputError(
            "--purpose: is printed in the consent form; add --consent, or leave it out"
        )
    if consent and as_json:
        raise InputError("--consent: --json prints the form too; leave one of them out")
    explanation = _explain_budget(
        flags["delta"],
        epsilon=flags["epsilon"],
        mechanism=flags["mechanism"],
        plan=flags["plan"],
        group=flags["group"],
    )
    if consent and flags["plan"] is not None:
        # A plan's own curve would tell the person how many others chose what.
        explanation = explain(explanation.epsilon, explanation.delta)
    if figure is not None:
        from apiece.reporting import promise, save

        save(promise(explanation), figure)
    document = explanation.to_dict() | {"consent": explanation.consent()}
    text = explanation.consent(purpose) if consent else format_explanation(explanation)
    emit(as_json, document, text)


def _read_language(language: str | None) -> str:
    """Return the language of the page; English where none is given."""
    # As late as the page itself, which needs another extra.
    from apiece.reporting.catalogue import LANGUAGES

    if language not in (None, *LANGUAGES):
        raise OptionError(f"--language = {language!r}: must be {' or '.join(LANGUAGES)}")
    return language or LANGUAGES[0]


def _read_noise(kind: str | None) -> Correlated | None:
    """Return the noise of the plans on the page; None for independent noise."""
    if kind not in (None, *PAGE_NOISES):
        raise unknown("noise", kind, PAGE_NOISES)
    return Correlated() if kind == "correlated" else None


def _read_strategy(name: str, excess: float | None) -> Strategy:
    """Return the strategy of the plans on the page."""
    if name not in PAGE_STRATEGIES:
        raise unknown("strategy", name, PAGE_STRATEGIES)
    kind = PAGE_STRATEGIES[name]
    if kind is Hybrid:
        if excess is None:
            raise InputError("--excess: missing; --strategy hybrid needs it, as in --excess 0.02")
        return Hybrid(excess)
    if excess is not None:
        raise InputError(f"--excess: is the bound of --strategy hybrid; {name} has none: leave out")
    return kind()


def _write_page(
    offer: Flags,
    levels: str | None,
    strategy: Strategy,
    noise: Correlated | None,
    language: str,
    as_json: bool,
) -> None:
    """Write the contributor's page of the budgets on offer."""
    from apiece.reporting.pages import contributor_page

    if levels is not None:
        if offer["groups"] is not None:
            raise InputError("--levels: stands in place of --groups; give one of the two")
        offer = offer | {"groups": _split_evenly(Levels(levels))}
    groups = _check_offer(offer)
    page = offer["page"]
    # How many plans there are is known once the first is made.
    with Bar(0) as bar:

        def show_progress(_: int, total: int) -> None:
            bar.total = total
            bar.advance("plans")

        computed = choices(
            groups,
            records=offer["records"],
            delta=offer["delta"],
            steps=offer["steps"],
            expected_batch_size=offer["batch_size"],
            bound=strategy.excess if isinstance(strategy, Hybrid) else None,
            strategies=[strategy],
            noise=noise,
            progress=show_progress,
        )
    contributor_page(computed, language=language).save(page)
    line = f"wrote {page}: {len(computed.names)} budgets, kept by {strategy.name}"
    emit(as_json, computed.to_dict(), line)


def _split_evenly(levels: Levels) -> list[tuple[str, float, float]]:
    """Return the levels as groups (name, ε, share) of equal shares."""
    share = 1 / len(levels)
    return [
        (name, epsilon, share) for name, epsilon in zip(levels.titles, levels.values(), strict=True)
    ]


def _check_offer(offer: Flags) -> list[tuple[str, float, float]]:
    """Return the budgets on offer; raise with all that is missing and wrong at once.

    The groups of the offer are the text of --groups, or have been made from --levels.
    """
    mistakes: list[InputError] = []
    missing = [name for name, value in offer.items() if value is None]
    if missing:
        flags = ", ".join(map(make_flag, missing))
        example = " ".join(f"{make_flag(name)} {EXAMPLES[name]}" for name in missing)
        remedy = "--page needs it" if len(missing) == 1 else "--page needs them"
        mistakes.append(InputError(f"{flags}: missing; {remedy}, as in {example}"))
    groups = offer["groups"]
    if isinstance(groups, str):
        try:
            groups = parse_groups(groups)
        except InputError as error:
            mistakes.append(error)
    if mistakes:
        raise together(mistakes)
    return list(groups)


def _explain_budget(
    delta: float | None,
    *,
    epsilon: float | None,
    mechanism: str | None,
    plan: Path | None,
    group: str | None,
) -> Explanation:
    """Return the explanation of (ε, δ), of a mechanism, or of a plan's group."""
    if plan is not None:
        if any(flag is not None for flag in (epsilon, delta, mechanism)):
            raise InputError(
                "--plan: has its own budgets and mechanisms; leave out the other options"
            )
        return _explain_group(plan, group)
    if group is not None:
        raise InputError("--group: is a group of --plan; give the plan's file too, or leave it out")
    delta = require_delta(delta)
    if mechanism is None:
        if epsilon is None:
            raise InputError("--epsilon: missing; give it, --mechanism, or --plan and --group")
        return explain(epsilon, delta)
    curve = privacy_curve(from_dict(_json.loads(mechanism, "--mechanism")))
    # Without a budget the mechanism's own ε at δ is explained.
    spent = float(curve.epsilon(delta).upper) if epsilon is None else epsilon
    return explain(spent, delta, curve=curve)


def _explain_group(path: Path, group: str | None) -> Explanation:
    """Return the explanation of a group of the plan in a file."""
    plan = read_plan(path)
    plan.require()
    names = [str(name) for name in plan.budget_groups.name]
    # A level whose name is its number: "1" of a group "ε = 1" or, without levels, "epsilon=1".
    spellings = (group, f"ε = {group}", f"epsilon={group}")
    positions = [position for position, name in enumerate(names) if name in spellings]
    if len(positions) != 1:
        listed = ", ".join(names[:MAX_NAMES])
        if len(names) > MAX_NAMES:
            listed += ", …"
        problem = "missing" if group is None else f"the plan has no {group!r}"
        raise InputError(f"--group: {problem}; give one of {listed}")
    (position,) = positions
    return explain(
        float(plan.budget_groups.epsilon[position]),
        float(plan.budget_groups.delta[position]),
        curve=plan.curve(position, method="pld"),
        taking_part=count_participation(plan, position),
    )


def format_explanation(explanation: Explanation) -> str:
    """Return an explanation for people to read, 80 columns wide."""
    subject = "the mechanism that is run" if explanation.tighter else "any mechanism that keeps it"
    return "\n".join(
        [
            f"ε = {shown(explanation.epsilon)} at δ = {shown(explanation.delta)}, "
            f"{explanation.relation.replace('_', '/')}, for {subject}.",
            "The attacker knows everything about everyone else. The counts are averages.",
            "",
            *format_bullets(explanation.sentences),
            "",
            "What it does not cover:",
            *format_bullets(explanation.limits),
        ]
    )
