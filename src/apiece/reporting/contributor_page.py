"""The contributor's page: one file in which a person sees what each budget on offer means."""

from __future__ import annotations

from apiece._text import plain, shown
from apiece._types import Json
from apiece.contract import Choices
from apiece.reporting.pages import Report

WAYS = {
    "scale": (
        "Everyone is used equally often, and the smaller your budget, the less weight your data "
        "have. What the others choose changes nothing for you."
    ),
    "sample": (
        "The smaller your budget, the less often your data are used. How often depends on what "
        "the others choose: so does what an attacker can do."
    ),
    "hybrid": (
        "As Sample, but what the others choose may make an attacker right about at most {most} "
        "more of 1,000 people than if everybody had your budget."
    ),
}


def contributor_page(choices: Choices) -> Report:
    """Return the page on which a contributor compares the budgets on offer.

    It loads nothing from anywhere and sends nothing; every count on it was made by
    `contract.choices`. Without JavaScript and in print it shows tables of all counts.

    Args:
        choices: Of `contract.choices`.

    Guarantee:
        Counts are rounded up, since they are upper bounds.

    Example:
        >>> from apiece.assignment import Sample
        >>> from apiece.contract import choices
        >>> offered = [("strict", 1.0, 0.5), ("weak", 3.0, 0.5)]
        >>> found = choices(offered, records=100, delta=1e-5, steps=1, expected_batch_size=10,
        ...                 bound=0.02, strategies=[Sample()])
        >>> "strict" in contributor_page(found).html
        True
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    strategies = list(dict.fromkeys(outcome.strategy for outcome in choices.outcomes))
    return Report(
        environment.get_template("contributor.html.j2").render(
            choices=choices,
            strategies=strategies,
            ways={name: WAYS.get(name, "").format(most=choices.most) for name in strategies},
            others=_others(choices),
            outcomes={(o.strategy, o.budget, o.others): o for o in choices.outcomes},
            data=_data(choices, strategies),
        )
    )


def _others(choices: Choices) -> list[tuple[int | None, str]]:
    """Return what the others may choose, in words."""
    expected = ", ".join(
        f"{share:.0%} “{plain(name)}”"
        for name, share in zip(choices.names, choices.shares, strict=True)
    )
    everyone = [(h, f"all others choose “{plain(name)}”") for h, name in enumerate(choices.names)]
    return [(None, f"as is expected: {expected}"), *everyone]


def _data(choices: Choices, strategies: list[str]) -> Json:
    """Return what the page's script looks up; it computes nothing itself."""
    return {
        "outcomes": {
            f"{o.strategy} {o.budget} {'' if o.others is None else o.others}": {
                "right": o.explanation.frequencies.right,
                "more": o.more,
                "sentences": [plain(s) for s in o.explanation.sentences],
            }
            for o in choices.outcomes
        },
        "guaranteed": {
            f"{name} {g}": choices.guaranteed(g, name)
            for name in strategies
            for g in range(len(choices.names))
        },
        "promised": [promise.frequencies.right for promise in choices.promises],
    }
