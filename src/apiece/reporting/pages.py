"""Pages that stand alone: a report, a contributor's page, a statement.

Their words stand in `templates` and, for a statement, in the statement itself; `sections` says what
a report shows in which edition.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from apiece._files import PAGE, write
from apiece._text import plain, rounded_up, shown
from apiece._types import Json
from apiece.contract import Choices
from apiece.errors import UnsupportedError, unknown
from apiece.reporting.closing import release_title, spent_text
from apiece.reporting.sections import (
    EDITIONS,
    Subject,
    left_out,
    require_no_objections,
    sections_of,
    subject_of,
)

if TYPE_CHECKING:
    from fpdf import FPDF
    from jinja2 import Environment

    from apiece.audit import Findings
    from apiece.jobs import Run
    from apiece.jobs.trained import Interval
    from apiece.plan import Plan

_WAYS = {
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
_SIZES = (10.0, 9.0, 8.0, 7.0, 6.0)  # points: the largest at which all is on one page
_LEVELS = 12  # shown on the page; all are in statement.json
_LONGEST = 300  # characters of a text that somebody wrote
_INK, _QUIET = (28, 39, 51), (86, 99, 111)


@dataclass(frozen=True, slots=True)
class Report:
    """One self-contained HTML page: it loads nothing from anywhere.

    Attributes:
        html: The page.

    Example:
        >>> Report("<p>One page</p>")
        Report(15 characters)
    """

    html: str

    def save(self, path: str | Path) -> Path:
        """Return the path, after the page is written there, whole or not at all.

        Args:
            path: Of the file, which ends in .html. Of what is there only a page that apiece wrote
                is replaced.

        Raises:
            DataError: Where it cannot be written, or would take the place of something else.
        """
        write(path, self.html, PAGE)
        return Path(path)

    def __repr__(self) -> str:
        return f"Report({len(self.html)} characters)"  # the page speaks for itself

    def _repr_html_(self) -> str:
        return self.html


def report(
    value: Plan | Run | Findings,
    *,
    edition: str = "internal",
    levels: Sequence[tuple[float, float]] = (),
) -> Report:
    """Return the page of a plan, a run or what an audit found.

    The internal edition is for the steward: it has accuracy on held-out people without noise, and
    how many chose which budget. Names from the data are escaped. The same value gives the same
    page, to the byte.

    Args:
        value: A plan, a finished run such as `Run.load(folder)`, or findings of an audit.
        edition: "internal", or "public".
        levels: For a plan, the pairs (ε, δ) that people could choose from, which a public edition
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
        >>> from apiece import Budgets, Scale, assign
        >>> plan = assign(Budgets([2.0] * 100, 1e-5), Scale(), steps=10, expected_batch_size=10,
        ...               clip_norm=1.0)
        >>> "100" in report(plan).html, "ε = 2" in report(plan, edition="public").html
        (True, False)
        >>> "ε = 2" in report(plan, edition="public", levels=[(2.0, 1e-5), (4.0, 1e-5)]).html
        True
    """
    if edition not in EDITIONS:
        raise unknown("edition", edition, EDITIONS)
    subject = subject_of(value, levels)
    if edition == "public":
        require_no_objections(subject)
    return Report(render(subject, edition))


def render(subject: Subject, edition: str) -> str:
    """Return the HTML of a subject in one edition.

    Every text from the data is escaped. A section is given what it reads, and nothing else.
    """
    from markupsafe import Markup

    template = _environment().get_template("report.html.j2")

    def block(name: str, **context: object) -> Markup:
        parts = template.blocks[name](template.new_context(context | {"declared": declared}))
        return Markup("".join(parts).rstrip("\n"))

    declared = subject.declared
    sections = [
        (section, block(section.name, **context))
        for section, context in sections_of(subject, edition)
    ]
    return block("page", edition=edition, sections=sections, left_out=left_out(subject, edition))


def _environment() -> Environment:
    """Return what makes HTML: values are escaped, and no character of theirs does anything."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("apiece.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        # Figures are marked up already, and stay as they are.
        finalize=lambda value: plain(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "spent": spent_text,
        "percent": lambda share: f"{100 * share:.2f} %",
        "rounded_up": rounded_up,
        "release_title": release_title,
        "share": _share,
        "shown": shown,
    }
    return environment


def _share(share: Interval | None) -> str:
    """Return a share with its interval, in per cent."""
    if share is None:
        return "nobody"
    return f"{100 * share.value:.1f} % [{100 * share.lower:.1f}, {100 * share.upper:.1f}]"


def contributor_page(choices: Choices) -> Report:
    """Return the page on which a contributor picks a budget and sees what it means.

    The person chooses a budget, what the others choose and the strategy, and sees of how many
    people in 1,000 an attacker is right. The page computes nothing; every count on it was made by
    `contract.choices`, and is rounded up. Without JavaScript and in print it shows tables of all.
    """
    strategies = list(dict.fromkeys(outcome.strategy for outcome in choices.outcomes))
    expected = ", ".join(
        f"{share:.0%} “{plain(name)}”"
        for name, share in zip(choices.names, choices.shares, strict=True)
    )
    others: list[tuple[int | None, str]] = [(None, f"as is expected: {expected}")]
    others += [(h, f"all others choose “{plain(n)}”") for h, n in enumerate(choices.names)]
    return Report(
        _environment()
        .get_template("contributor.html.j2")
        .render(
            choices=choices,
            strategies=strategies,
            ways={name: _WAYS.get(name, "").format(most=choices.most) for name in strategies},
            others=others,
            outcomes={(o.strategy, o.budget, o.others): o for o in choices.outcomes},
            data=_lookup(choices, strategies),
        )
    )


def _lookup(choices: Choices, strategies: list[str]) -> Json:
    """Return what the page's script looks up."""
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


def statement_pdf(statement: Mapping[str, Any]) -> bytes:
    """Return a statement as a PDF of one page, A4; the same statement gives the same bytes.

    Raises `UnsupportedError` where it does not fit on a page. Source of the questions that it
    answers: Near et al. 2025.
    """
    from fpdf.fonts import TTFFont

    for size in _SIZES:
        document = _drawn(statement, size)
        try:
            if document.pages_count == 1:
                return bytes(document.output())
        finally:
            for font in document.fonts.values():
                if isinstance(font, TTFFont):
                    font.close()
    raise UnsupportedError("statement: does not fit on one page; shorten the purpose")


def _drawn(statement: Mapping[str, Any], size: float) -> FPDF:
    from fpdf import FPDF
    from matplotlib import get_data_path

    document = FPDF(format="A4", unit="mm")
    day = statement["finished"] or "2000-01-01"  # without a day, any: the page then names none
    document.set_creation_date(datetime.fromisoformat(day).replace(tzinfo=UTC))
    document.set_title("Privacy statement")
    document.set_creator("apiece statement")
    document.set_lang("en")
    fonts = Path(get_data_path()) / "fonts" / "ttf"
    document.add_font("page", "", fonts / "DejaVuSans.ttf")
    document.add_font("page", "B", fonts / "DejaVuSans-Bold.ttf")
    document.set_margins(16, 13)
    document.set_auto_page_break(auto=True, margin=12)
    document.add_page()
    for text, style, points, colour in _lines(statement, size):
        document.set_text_color(*colour)
        document.set_font("page", style, points)
        if style and points == size:
            document.ln(size * 0.13)  # before a question
        _write(document, text, points)
    return document


def _lines(
    statement: Mapping[str, Any], size: float
) -> Iterator[tuple[str, str, float, tuple[int, int, int]]]:
    """Yield each paragraph with its style, size and colour."""
    label = _cut(statement["data"]["label"])
    yield f"Privacy statement: a model that predicts “{label}”", "B", size + 5, _INK
    if statement["purpose"]:
        yield _cut(statement["purpose"]), "", size + 1, _INK
    day = f"Made on {statement['finished']}. " if statement["finished"] else ""
    experiment = "An experiment: this model must not be released. "
    standing = "" if statement["for_release"] else experiment
    end = "Nothing on this page was computed from anybody’s data."
    yield f"{day}{standing}{end}", "", size + 1, _QUIET
    for question, answers in _answers(statement):
        yield question, "B", size, _INK
        for answer in answers:
            yield answer[:1].upper() + answer[1:], "", size, _INK


def _answers(statement: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    unit, near, promise = (
        statement[name] for name in ("unit_of_privacy", "neighbouring", "guarantee")
    )
    mechanism, trust = statement["mechanism"], statement["trust"]
    yield "Whose presence is hidden? (unit of privacy)", [f"{unit['means']}."]
    yield "Between which data? (neighbouring relation)", [f"{near['means']} ({near['relation']})."]
    yield (
        "How well? (ε and δ)",
        [f"{promise['definition']}, for {promise['of']}.", *_levels(promise)],
    )
    yield "What does it add up to with other results?", [f"{promise['composition']}."]
    yield "Is it kept?", [f"{promise['verified']}."]
    yield (
        "By what? (mechanism)",
        [
            f"{mechanism['name']}. {mechanism['sampling']}. Strategy {mechanism['strategy']}, "
            f"accounting {mechanism['accounting']}, noise from the {mechanism['randomness']}; "
            f"models trained: {mechanism['models_trained']}, "
            f"{'charged to a ledger' if mechanism['ledger'] else 'no ledger charged'}."
        ],
    )
    yield "What is covered?", _listed(statement["covered"])
    yield "What is not covered?", _listed(statement["not_covered"])
    yield f"Who is trusted? ({trust['model']} model)", _listed(trust["trusted"])
    yield "Who is not?", _listed(trust["not_trusted"])
    yield "What is assumed?", _listed(statement["assumptions"])
    versions = ", ".join(f"{name} {number}" for name, number in statement["versions"].items())
    yield (
        "Made with",
        [f"Versions: {_cut(versions)}. For machines the same is in statement.json and model.pt."],
    )
    word, bound = "It is bound to no model: of a run that is in no folder.", statement["bound_to"]
    if bound is not None:
        ledger = f" Ledger: head {bound['ledger']}." if bound["ledger"] else ""
        word = f"{bound['signature']}. Weights: SHA-256 {bound['weights']}.{ledger}"
    yield "Whose word is it, and on which model?", [word]


def _levels(promise: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each declared budget, of the first ones."""
    levels = promise["levels"]
    for level in levels[:_LEVELS]:
        epsilon = f"ε = {level['epsilon']:g}"
        name = "" if level["name"] == epsilon else f"{_cut(level['name'], 40)}: "
        gaussian = ""
        if (summary := level["gaussian"]) is not None:
            mu = math.ceil(summary["mu"] * 1e4) / 1e4  # rounded up
            gaussian = f" As a Gaussian: μ = {mu:g}, slack {summary['slack']:g}, "
            gaussian += f"regret {summary['regret']:.2g}."
        yield (
            f"•  {name}{epsilon}, δ = {level['delta']:g}. Of 1,000 people, 500 of whom took part, "
            f"a guess is right about at most {level['right_of_1000_at_most']:,}.{gaussian}"
        )
    if len(levels) > _LEVELS:
        yield f"•  and {len(levels) - _LEVELS} more, in statement.json"
    if not levels:
        yield (
            "Which budgets people could choose was not declared; those that they chose are not "
            "told."
        )
    if promise["no_limit_cap"] is not None:
        yield f"•  who set no limit: ε = {promise['no_limit_cap']:g}"


def _listed(texts: list[str]) -> list[str]:
    return [f"•  {text}" for text in texts]


def _write(document: FPDF, text: str, size: float) -> None:
    """Write lines; a character that the font does not have is shown as its escape."""
    known = document.fonts["page"].cmap  # type: ignore[union-attr]  # a font of a file
    safe = "".join(c if ord(c) in known else ascii(c)[1:-1] for c in plain(text))
    document.multi_cell(0, size * 0.46, safe, align="L", new_x="LMARGIN", new_y="NEXT")


def _cut(text: str, most: int = _LONGEST) -> str:
    safe = plain(text)
    return safe if len(safe) <= most else safe[: most - 1] + "…"
