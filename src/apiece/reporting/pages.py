"""Pages that stand alone: a report and a contributor's page.

Their words stand in `templates`; `sections` says what a report shows in which edition.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from apiece._files import PAGE, write
from apiece._text import guessing, plain, rounded_up, shown
from apiece._types import Json
from apiece.contract import Choices
from apiece.contract.choices import Outcome
from apiece.errors import InputError, unknown
from apiece.reporting.answers import describe_answer
from apiece.reporting.catalogue import LANGUAGES, localize, translate
from apiece.reporting.closing import release_title, spent_text
from apiece.reporting.sections import (
    EDITIONS,
    Subject,
    cards,
    left_out_text,
    require_no_objections,
    sections_of,
    subject_of,
    write_chance,
)

if TYPE_CHECKING:
    from jinja2 import Environment

    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Asked, Interval
    from apiece.plan import Plan
    from apiece.queries import Answer

# Strategies whose way with a contributor the catalogue of texts says.
_WAYS = ("scale", "epochs", "sample", "hybrid", "allocate")


@dataclass(frozen=True, slots=True)
class Report:
    """One self-contained HTML page: it loads nothing from anywhere.

    Attributes:
        html: The page.

    Example:
        >>> from apiece.reporting import Report
        >>> Report("<p>One page</p>")
        Report(15 characters)
    """

    html: str

    def save(self, path: str | Path) -> Path:
        """Write the page, complete or not at all.

        Args:
            path: Of the file, which ends in .html. Of what is there only a page that apiece wrote
                is replaced.

        Returns:
            The path.

        Raises:
            DataError: Where it cannot be written, or would take the place of something else.
        """
        write(path, self.html, PAGE)
        return Path(path)

    def __repr__(self) -> str:
        # Not the page itself: it may hold data about people.
        return f"Report({len(self.html)} characters)"

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that neither its styles nor the notebook's meet."""
        # As plain text: what is marked up escapes the marks of whoever escapes it.
        page = escape(str(self.html))
        return (
            f'<iframe srcdoc="{page}" title="report" sandbox="allow-scripts" '
            'style="width: 100%; height: 46rem; border: 1px solid #8886"></iframe>'
        )


class Described(Protocol):
    """An object that describes its run, such as a fitted estimator."""

    def described(self) -> Run:
        """Return the run."""


def report(
    value: Plan | Run | Findings | Described | Answer,
    *,
    edition: str = "internal",
    levels: Asked = (),
) -> Report:
    """Return the page of a plan, a run, the findings of an audit, a fitted estimator or an answer.

    The internal edition is for the steward: it has accuracy on held-out people without noise, and
    how many chose which budget. Names from the data are escaped. The same value gives the same
    page, to the byte.

    Args:
        value: A plan, a finished run such as `Run.load(folder)`, findings of an audit, a fitted
            estimator (whose own `report` also takes held-out rows), or the answer to a question,
            whose editions are one: all of it is released.
        edition: "internal", or "public".
        levels: For a plan, what people could choose from: {name: ε} at the plan's δ, a text such as
            "low=1,high=8", or pairs (ε, δ), which a public edition
            may then name. A run has those of its config.

    Raises:
        InputError: For anything else, levels that a plan's budgets are not among, and a public
            edition of a plan with objections.

    Guarantee:
        A public edition is a function of what was declared before anybody's data were read, and of
        what was released with noise. Two tables that differ in anyone's rows or budget give the
        same bytes, as long as the same was declared of them and neither is refused. It lists what
        it leaves out, and why. Of public data nothing has to be left out.

    Example:
        >>> from apiece import Budgets, Scale, assign, report
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> "100" in report(plan).html, "ε = 2" in report(plan, edition="public").html
        (True, False)
        >>> "ε = 2" in report(plan, edition="public", levels=[(2.0, 1e-5), (4.0, 1e-5)]).html
        True
    """
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    # An answer is there only where its module is.
    asking = sys.modules.get("apiece.queries.session")
    if asking is not None and isinstance(value, asking.Answer):
        if levels:
            raise InputError("levels: are for the page of a plan; leave them out")
        return Report(environment().get_template("answer.html.j2").render(describe_answer(value)))
    subject = subject_of(value, levels)
    if edition == "public":
        require_no_objections(subject)
    return Report(render(subject, edition))


def render(subject: Subject, edition: str) -> str:
    """Return the HTML of a subject in one edition."""
    # Every text from the data is escaped. A section is given what it reads, and nothing else.
    from markupsafe import Markup

    template = environment().get_template("report.html.j2")

    def render_block(name: str, **values: object) -> Markup:
        # Blocks are rendered one by one, each with its own values, so that none can read what
        # another was given.
        context = template.new_context(values | {"declared": subject.declared})
        parts = template.blocks[name](context)
        return Markup("".join(parts).rstrip("\n"))

    sections = []
    for section, values in sections_of(subject, edition):
        sections.append((section, render_block(section.name, **values)))
    return render_block(
        "page",
        edition=edition,
        sections=sections,
        cards=cards(subject, edition),
        left_out=left_out_text(subject, edition),
    )


def environment(form: str = "html") -> Environment:
    """Return the templates' environment for HTML or Markdown, which escapes every value."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    def escape(value: object) -> object:
        # Figures are marked up already (a subclass of str), and stay as they are.
        if type(value) is not str:
            return value
        # Control characters and the like are shown as codes in every format.
        text = plain(value)
        if form != "markdown":
            # HTML is escaped by jinja2 itself.
            return text
        return re.sub(r"([\\`*_{}\[\]<>#|~$])", r"\\\1", text)

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=form == "html",
        undefined=StrictUndefined,
        finalize=escape,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False}
    environment.globals["guessing"] = guessing()
    table_macros = environment.get_template("table.html.j2").module
    environment.globals["table"] = vars(table_macros)["table"]
    environment.filters |= {
        "spent": spent_text,
        "percent": lambda share: f"{100 * share:.2f} %",
        "rounded_up": rounded_up,
        "release_title": release_title,
        "share": _write_share,
        "shown": shown,
        "sentence": lambda text: text[:1].upper() + text[1:],
        # Without an exponent: YAML 1.1 reads 1e-05 as a text.
        "number": partial(np.format_float_positional, trim="0"),
    }
    return environment


def _write_share(share: Interval | None) -> str:
    """Return a share with its interval, in per cent."""
    if share is None:
        return "nobody"
    return f"{100 * share.value:.1f} % [{100 * share.lower:.1f}, {100 * share.upper:.1f}]"


def contributor_page(
    choices: Choices, strategy: str | None = None, language: str = LANGUAGES[0]
) -> Report:
    """Return the page on which a contributor picks a budget and sees what it means."""
    # The strategy is the steward's to choose, and so the page has one: the first of the choices
    # unless it is named. Where what the others choose changes nothing, they are not asked about.
    # The page computes nothing; every count on it was made by `contract.choices`, and is rounded
    # up. Without JavaScript and in print it shows a table of all.
    strategy = strategy or choices.outcomes[0].strategy
    # (the contributor's budget, what the others choose) → what follows.
    outcomes = {
        (outcome.budget, outcome.others): outcome
        for outcome in choices.outcomes
        if outcome.strategy == strategy
    }
    if not outcomes:
        names = tuple(dict.fromkeys(outcome.strategy for outcome in choices.outcomes))
        raise unknown("strategy", strategy, names)
    say = partial(_say_in, language)
    shares = zip(choices.names, choices.shares, strict=True)
    expected = [
        say("choose.share", share=f"{100 * share:.0f}", name=plain(name)) for name, share in shares
    ]
    # None stands for the shares that are expected; a number for all others choosing that budget.
    others: list[tuple[int | None, str]] = [
        (None, say("choose.expected", shares=", ".join(expected)))
    ]
    for position, name in enumerate(choices.names):
        others.append((position, say("choose.all-others", name=plain(name))))
    if not _depends_on_others(choices, outcomes):
        others = [(None, say("choose.whatever-they"))]
    template = environment().get_template("contributor.html.j2")
    html = template.render(
        choices=choices,
        strategy=strategy,
        language=language,
        say=say,
        records=localize(f"{choices.records:,}", language),
        epsilons=[localize(shown(promise.epsilon), language) for promise in choices.promises],
        bound=None if choices.bound is None else localize(shown(choices.bound), language),
        way=say(f"choose.way-{strategy}", most=choices.most) if strategy in _WAYS else "",
        others=others,
        outcomes=outcomes,
        guaranteed=[choices.guaranteed(budget, strategy) for budget in range(len(choices.names))],
        chances=[write_chance(promise.delta, language) for promise in choices.promises],
        data=_list_counts(choices, strategy, outcomes, language),
    )
    return Report(html)


def _say_in(language: str, text: str, **values: object) -> str:
    """Return a text of the catalogue, or a sentence of an explanation, in a language."""
    return translate(text, language, **{name: str(value) for name, value in values.items()})


def _depends_on_others(
    choices: Choices, outcomes: Mapping[tuple[int, int | None], Outcome]
) -> bool:
    """Return whether a count on the page moves with what the others choose."""
    for budget in range(len(choices.names)):
        rows = [outcome for (own, _), outcome in outcomes.items() if own == budget]
        if len({(row.explanation.frequencies, row.more, row.sentences) for row in rows}) > 1:
            return True
    return False


def _list_counts(
    choices: Choices,
    strategy: str,
    outcomes: Mapping[tuple[int, int | None], Outcome],
    language: str,
) -> Json:
    """Return the counts that the page's script looks up, by the keys that it makes, and words."""
    counts = {}
    for (budget, others), outcome in outcomes.items():
        # As the script of the page writes it: the budget, a blank, and what the others choose.
        key = "" if others is None else others
        counts[f"{budget} {key}"] = {
            "right": outcome.explanation.frequencies.right,
            "more": outcome.more,
            "sentences": [plain(translate(sentence, language)) for sentence in outcome.sentences],
        }
    budgets = range(len(choices.names))
    guaranteed = [choices.guaranteed(budget, strategy) for budget in budgets]
    promised = [promise.frequencies.right for promise in choices.promises]
    words = {
        "excess": translate("choose.excess", language, more="{more}"),
        "none": translate("choose.no-excess", language),
        "field": translate("choose.field", language, more="{more}"),
    }
    return {"outcomes": counts, "guaranteed": guaranteed, "promised": promised, "words": words}
