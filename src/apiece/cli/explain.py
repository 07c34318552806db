"""apiece explain: what a budget means for the person who gives it, in frequencies."""

from pathlib import Path
from typing import Any

import click

from apiece import _json
from apiece._files import PAGE
from apiece._text import shown
from apiece._types import Flags
from apiece.accounting import privacy_curve
from apiece.budgets import Levels
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
from apiece.errors import InputError, together
from apiece.mechanisms.algebra import from_dict

EXAMPLE = """
\b
Example:
  apiece explain --epsilon 1 --delta 1e-5
  apiece explain --epsilon 1 --delta 1e-5 --consent --purpose "a study of sleep"
  apiece explain --plan plan.json --group strict --figure strict.png
  apiece explain --groups strict:1:0.34,medium:2:0.43,weak:3:0.23 --records 50000 \\
                 --delta 1e-5 --batch-size 1024 --steps 1465 --excess 0.02 --page choose.html
"""
BUDGET = ("epsilon", "mechanism", "plan", "group")
OFFER = ("page", "groups", "records", "batch_size", "steps", "excess")
# What a missing option of the page may look like.
EXAMPLES = {
    "page": "choose.html",
    "groups": "strict:1:0.5,weak:3:0.5",
    "records": "50000",
    "batch_size": "1024",
    "steps": "1465",
    "excess": "0.02",
    "delta": "1e-5",
}


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
@option("--excess", help="Bound Δ̄ on the excess risk, for hybrid; with --groups.")
@option("--json")
def command(
    consent: bool, purpose: str | None, figure: Path | None, as_json: bool, **flags: Any
) -> None:
    """Say in frequencies what a budget (ε, δ) promises a person.

    The counts are exact for (ε, δ): some mechanism that keeps it reaches each. With --mechanism or
    --plan they hold for what is run, which allows less. Counts are rounded against the
    promise: no attacker does better on average.

    With --groups and --page it writes one HTML file, on which people pick a budget and see what it
    means under others' choices and each strategy. Planning takes a minute or two.
    """
    if any(flags[name] is not None for name in ("levels", "page", "groups")):
        refuse_given(
            (*BUDGET, "consent", "purpose", "figure"), "goes with a single budget; leave it out"
        )
        _page({name: flags[name] for name in (*OFFER, "delta")}, flags["levels"], as_json)
        return
    refuse_given(OFFER, "goes with --groups; leave it out, or give --groups and --page")
    if purpose is not None and not consent:
        raise InputError(
            "--purpose: is printed in the consent form; add --consent, or leave it out"
        )
    if consent and as_json:
        raise InputError("--consent: --json prints the form too; leave one of them out")
    explanation = _explanation(flags["delta"], *(flags[name] for name in BUDGET))
    if consent and flags["plan"] is not None:  # a plan's own curve tells how many chose what
        explanation = explain(explanation.epsilon, explanation.delta)
    if figure is not None:
        from apiece.reporting import promise, save

        save(promise(explanation), figure)
    document = explanation.to_dict() | {"consent": explanation.consent()}
    emit(as_json, document, explanation.consent(purpose) if consent else text(explanation))


def _page(asked: Flags, levels: str | None, as_json: bool) -> None:
    """Write the contributor's page."""
    from apiece.reporting.pages import contributor_page

    if levels is not None:
        if asked["groups"] is not None:
            raise InputError("--levels: stands in place of --groups; give one of the two")
        offered = Levels(levels)
        named = zip(offered.titles, offered.values(), strict=True)
        asked["groups"] = [(name, epsilon, 1 / len(offered)) for name, epsilon in named]
    mistakes: list[InputError] = []
    lacking = [name for name, value in asked.items() if value is None]
    if lacking:
        flags = ", ".join(map(make_flag, lacking))
        example = " ".join(f"{make_flag(name)} {EXAMPLES[name]}" for name in lacking)
        needs = "--page needs it" if len(lacking) == 1 else "--page needs them"
        mistakes.append(InputError(f"{flags}: missing; {needs}, as in {example}"))
    offer_groups = asked["groups"]
    if isinstance(offer_groups, str):
        try:
            offer_groups = parse_groups(offer_groups)
        except InputError as error:
            mistakes.append(error)
    if mistakes:
        raise together(mistakes)
    page = asked["page"]
    with Bar(0) as bar:

        def progress(_: int, of: int) -> None:
            bar.total = of
            bar.advance("plans")

        offer = choices(
            offer_groups,
            records=asked["records"],
            delta=asked["delta"],
            steps=asked["steps"],
            expected_batch_size=asked["batch_size"],
            bound=asked["excess"],
            progress=progress,
        )
    contributor_page(offer).save(page)
    count = len({outcome.strategy for outcome in offer.outcomes})
    said = f"wrote {page}: {len(offer.names)} budgets, each under {count} strategies"
    emit(as_json, offer.to_dict(), [said, *offer.left_out])


def _explanation(
    delta: float | None,
    epsilon: float | None,
    mechanism: str | None,
    plan: Path | None,
    group: str | None,
) -> Explanation:
    if plan is not None:
        if any(flag is not None for flag in (epsilon, delta, mechanism)):
            raise InputError(
                "--plan: has its own budgets and mechanisms; leave out the other options"
            )
        return _of_plan(plan, group)
    if group is not None:
        raise InputError("--group: is a group of --plan; give the plan's file too, or leave it out")
    delta = require_delta(delta)
    if mechanism is None:
        if epsilon is None:
            raise InputError("--epsilon: missing; give it, --mechanism, or --plan and --group")
        return explain(epsilon, delta)
    curve = privacy_curve(from_dict(_json.loads(mechanism, "--mechanism")))
    spent = float(curve.epsilon(delta).upper) if epsilon is None else epsilon
    return explain(spent, delta, curve=curve)


def _of_plan(path: Path, group: str | None) -> Explanation:
    plan = read_plan(path)
    plan.require()
    names = [str(name) for name in plan.budget_groups.name]
    # A level whose name is its number: "1" of a group "ε = 1" or, without levels, "epsilon=1".
    at = [k for k, name in enumerate(names) if name in (group, f"ε = {group}", f"epsilon={group}")]
    if len(at) != 1:
        some = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        what = "missing" if group is None else f"the plan has no {group!r}"
        raise InputError(f"--group: {what}; give one of {some}")
    curve, budget = plan.curve(at[0], method="pld"), plan.budget_groups
    epsilon, delta = float(budget.epsilon[at[0]]), float(budget.delta[at[0]])
    return explain(epsilon, delta, curve=curve, taking_part=count_participation(plan, at[0]))


def text(explanation: Explanation) -> str:
    """Return an explanation for people to read, 80 columns wide."""
    of = "the mechanism that is run" if explanation.tighter else "any mechanism that keeps it"
    return "\n".join(
        [
            f"ε = {shown(explanation.epsilon)} at δ = {shown(explanation.delta)}, "
            f"{explanation.relation.replace('_', '/')}, for {of}.",
            "The attacker knows everything about everyone else. The counts are averages.",
            "",
            *format_bullets(explanation.sentences),
            "",
            "What it does not cover:",
            *format_bullets(explanation.limits),
        ]
    )
